/* The host as a device: what NULL means. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <weft/device.h>

static void test_memory_is_aligned_and_zero(void **state) {
  (void)state;
  for (uint64_t bytes = 0; bytes < 300; bytes += 37) {
    unsigned char *data = weft_device_allocate(NULL, NULL, bytes);
    assert_non_null(data);
    assert_int_equal((uintptr_t)data % WEFT_DEVICE_ALIGN, 0);
    for (uint64_t k = 0; k < bytes; k++) {
      assert_int_equal(data[k], 0);
    }
    weft_device_free(NULL, NULL, data, bytes);
  }
  assert_null(weft_device_allocate(NULL, NULL, UINT64_MAX));
  assert_null(weft_device_allocate(NULL, NULL, PTRDIFF_MAX));
  weft_device_free(NULL, NULL, NULL, 8);
}

static void test_copies_rows(void **state) {
  (void)state;
  struct weft_error error;
  unsigned char from[3][8], to[3][4];
  for (unsigned k = 0; k < sizeof from; k++) {
    from[k / 8][k % 8] = (unsigned char)k;
  }
  const struct weft_copy copy = {
      .to = to, .from = &from[0][2], .row_bytes = 4, .rows = 3, .to_stride = 4, .from_stride = 8};
  assert_int_equal(weft_copy(&copy, NULL, &error), WEFT_OK);
  for (unsigned k = 0; k < 3; k++) {
    assert_memory_equal(to[k], &from[k][2], 4);
  }
  /* Nothing to copy: pointers are not looked at. */
  assert_int_equal(weft_copy(&(struct weft_copy){.rows = 3}, NULL, &error), WEFT_OK);
}

static void test_fill_and_checksum(void **state) {
  (void)state;
  struct weft_error error;
  unsigned char data[33], expected[33];
  uint64_t sum;
  memset(expected, 7, sizeof expected);
  assert_int_equal(weft_device_fill(NULL, data, 7, sizeof data, NULL, &error), WEFT_OK);
  assert_memory_equal(data, expected, sizeof data);
  assert_int_equal(weft_device_checksum(NULL, data, sizeof data, &sum, &error), WEFT_OK);
  assert_true(sum == weft_checksum(expected, sizeof expected) && sum != 0);
}

static void test_null_is_the_host(void **state) {
  (void)state;
  struct weft_device *host = weft_host_device();
  assert_true(weft_device_is_host(NULL) && weft_device_is_host(host));
  assert_string_equal(weft_device_name(NULL), weft_device_name(host));
  assert_null(host->ops->event_create); /* nothing is enqueued, so nothing has to be waited for */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_memory_is_aligned_and_zero),
      cmocka_unit_test(test_copies_rows),
      cmocka_unit_test(test_fill_and_checksum),
      cmocka_unit_test(test_null_is_the_host),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
