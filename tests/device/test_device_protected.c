/* The protected device of the tests: it does what a device does, and an access by anybody
 * else ends the process. What runs on it: the ctest names that end with _protected and
 * _staged. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "support_protected_device.h"

enum { BYTES = 1000 };

static void test_works_through_its_functions(void **state) {
  (void)state;
  struct weft_device *device = protected_device();
  struct weft_error error;
  unsigned char in[BYTES], out[BYTES];
  uint64_t sum;
  for (unsigned k = 0; k < BYTES; k++) {
    in[k] = (unsigned char)(k * 7);
  }
  assert_false(weft_device_is_host(device));
  void *a = weft_device_allocate(device, NULL, BYTES);
  void *b = weft_device_allocate(device, NULL, BYTES);
  assert_int_equal((uintptr_t)a % WEFT_DEVICE_ALIGN, 0);
  const struct weft_copy copies[] = {
      {.to = a, .to_device = device, .from = in, .row_bytes = BYTES, .rows = 1},
      {.to = b,
       .to_device = device,
       .from = a,
       .from_device = device,
       .row_bytes = 10,
       .rows = 100,
       .to_stride = 10,
       .from_stride = 10},
      {.to = out, .from = b, .from_device = device, .row_bytes = BYTES, .rows = 1}};
  for (unsigned k = 0; k < 3; k++) {
    assert_int_equal(weft_copy(&copies[k], NULL, &error), WEFT_OK);
  }
  assert_memory_equal(in, out, BYTES);
  assert_int_equal(weft_device_checksum(device, b, BYTES, &sum, &error), WEFT_OK);
  assert_true(sum == weft_checksum(in, BYTES));
  assert_int_equal(weft_device_fill(device, b, 3, BYTES, NULL, &error), WEFT_OK);
  assert_int_equal(weft_copy(&copies[2], NULL, &error), WEFT_OK);
  assert_true(out[0] == 3 && out[BYTES - 1] == 3);
  weft_device_free(device, NULL, a, BYTES);
  weft_device_free(device, NULL, b, BYTES);
  assert_int_equal(protected_device_blocks(), 0);
  assert_null(weft_device_allocate(device, NULL, UINT64_MAX));
}

/* Two kinds that are not the host: refused by name. */
static void test_no_copy_between_kinds(void **state) {
  (void)state;
  struct weft_device *device = protected_device();
  struct weft_device_ops ops = *device->ops;
  struct weft_device other = {.ops = &ops};
  struct weft_error error;
  char a, b;
  ops.name = "other";
  const struct weft_copy copy = {
      .to = &a, .to_device = &other, .from = &b, .from_device = device, .row_bytes = 1, .rows = 1};
  assert_int_equal(weft_copy(&copy, NULL, &error), WEFT_ERR_UNAVAILABLE);
  assert_non_null(strstr(error.message, "protected"));
  assert_non_null(strstr(error.message, "other"));
  assert_non_null(strstr(error.hint, "host"));
}

/* In a child: the signal that ends it. */
static int signal_of(void (*access)(volatile unsigned char *data), void *data) {
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    (void)signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler, too */
    access(data);
    _exit(0);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* NOLINTNEXTLINE(readability-non-const-parameter): signal_of() takes both */
static void read_byte(volatile unsigned char *data) { (void)*data; }
static void write_byte(volatile unsigned char *data) { *data = 1; }

static void test_an_access_ends_the_process(void **state) {
  (void)state;
  struct weft_device *device = protected_device();
  void *data = weft_device_allocate(device, NULL, BYTES);
  char host = 0;
  assert_int_equal(signal_of(read_byte, data), SIGSEGV);
  assert_int_equal(signal_of(write_byte, data), SIGSEGV);
  assert_int_equal(signal_of(read_byte, &host), 0);
  weft_device_free(device, NULL, data, BYTES);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_works_through_its_functions),
      cmocka_unit_test(test_no_copy_between_kinds),
      cmocka_unit_test(test_an_access_ends_the_process),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
