/* Which cores ranks get, on machines that are made of files, and that threads are bound to
 * them and come free again. */
#define _GNU_SOURCE /* sched_getaffinity() */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "bench/rank_cores.h"

static char folder[64];

static int set_up(void **state) {
  (void)state;
  (void)snprintf(folder, sizeof folder, "/tmp/weft-cores-XXXXXX");
  return mkdtemp(folder) != NULL ? 0 : -1;
}

static int tear_down(void **state) {
  char command[128];
  (void)state;
  (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
  return system(command);
}

/* ---- Machines ---- */

static void write_file(uint32_t processor, const char *name, const char *text) {
  char path[160];
  (void)snprintf(path, sizeof path, "%s/cpu%u/topology/%s", folder, (unsigned)processor, name);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fprintf(file, "%s\n", text) > 0);
  assert_int_equal(fclose(file), 0);
}

static void make_folder(uint32_t processor, const char *name) {
  char path[160];
  (void)snprintf(path, sizeof path, "%s/cpu%u%s", folder, (unsigned)processor, name);
  assert_int_equal(mkdir(path, 0700), 0);
}

static void add_processor(uint32_t processor, const char *siblings, const char *package,
                          const char *node) {
  char name[32];
  make_folder(processor, "");
  make_folder(processor, "/topology");
  (void)snprintf(name, sizeof name, "/node%s", node);
  make_folder(processor, name);
  write_file(processor, "thread_siblings_list", siblings);
  write_file(processor, "physical_package_id", package);
}

/* What two ranks get of a list that ends with a negative number. */
static void expect_pair(const int *allowed, uint32_t first, uint32_t second) {
  uint32_t processors[16];
  size_t count = 0;
  for (; allowed[count] >= 0; count++) {
    processors[count] = (uint32_t)allowed[count];
  }
  const struct weft_cli_cores cores = weft_cli_cores_of(folder, processors, count, 2);
  assert_int_equal(cores.count, 2);
  assert_int_equal(cores.processors[0], first);
  assert_int_equal(cores.processors[1], second);
}
#define EXPECT_PAIR(first, second, ...) expect_pair((const int[]){__VA_ARGS__, -1}, first, second)

/* Four cores with two threads each, neighbours in number; two to a package. */
static void test_siblings_are_neighbours(void **state) {
  (void)state;
  const char *const siblings[] = {"0-1", "0-1", "2-3", "2-3", "4-5", "4-5", "6-7", "6-7"};
  for (uint32_t n = 0; n < 8; n++) {
    add_processor(n, siblings[n], n < 4 ? "0" : "1", n < 4 ? "0" : "1");
  }
  EXPECT_PAIR(0, 2, 0, 1, 2, 3, 4, 5, 6, 7);
  EXPECT_PAIR(1, 3, 1, 3, 5, 7);
  EXPECT_PAIR(4, 6, 0, 1, 4, 5, 6, 7); /* one core of the first package only */
  EXPECT_PAIR(1, 5, 1, 5);             /* one of each */
  EXPECT_PAIR(6, 7, 6, 7);             /* one core */
}

/* One package and two memories: cores 0,3 and 2 are near the first, 1,4 near the other. */
static void test_siblings_are_apart(void **state) {
  (void)state;
  add_processor(0, "0,3", "0", "0");
  add_processor(1, "1,4", "0", "1");
  add_processor(2, "2", "0", "0");
  add_processor(3, "0,3", "0", "0");
  add_processor(4, "1,4", "0", "1");
  EXPECT_PAIR(0, 2, 0, 1, 2, 3, 4);
  EXPECT_PAIR(0, 1, 0, 1, 3, 4); /* no memory has two */
  EXPECT_PAIR(2, 3, 1, 2, 3, 4);
}

static void test_nothing_is_told(void **state) {
  const uint32_t three[] = {4, 7, 9};
  (void)state;
  EXPECT_PAIR(4, 7, 4, 7, 9);
  assert_int_equal(weft_cli_cores_of(folder, three, 3, 3).count, 3);
  assert_int_equal(weft_cli_cores_of(folder, three, 1, 2).count, 0);
  assert_int_equal(weft_cli_cores_of(folder, three, 0, 2).count, 0);
  assert_int_equal(weft_cli_cores_of(folder, three, 3, 0).count, 0);
  assert_int_equal(weft_cli_cores_of(folder, three, 3, WEFT_CLI_CORES_MAX + 1).count, 0);
}

/* ---- As text ---- */

static void test_text(void **state) {
  const struct weft_cli_cores two = {.count = 2, .processors = {3, 4294967295}};
  const struct weft_cli_cores none = {.count = 0};
  struct weft_cli_cores found = {.count = 7};
  char text[WEFT_CLI_CORES_TEXT];
  (void)state;
  weft_cli_cores_write(&two, text);
  assert_string_equal(text, "3,4294967295");
  assert_true(weft_cli_cores_read(text, &found));
  assert_int_equal(found.count, 2);
  assert_memory_equal(found.processors, two.processors, 2 * sizeof(uint32_t));
  weft_cli_cores_write(&none, text);
  assert_string_equal(text, "");
  assert_true(weft_cli_cores_read(text, &found));
  assert_int_equal(found.count, 0);
  const char *const wrong[] = {
      "-1",  "1,",   ",1",         "a",
      "1 2", "1,,2", "4294967296", "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"};
  for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
    assert_false(weft_cli_cores_read(wrong[k], &found));
  }
}

/* ---- Here ---- */

static void test_binding(void **state) {
  struct weft_cli_affinity affinity;
  cpu_set_t before, bound, after;
  (void)state;
  const struct weft_cli_cores cores = weft_cli_cores_choose(1);
  const struct weft_cli_cores none = {.count = 0}, wrong = {.count = 1, .processors = {100000}};
  assert_int_equal(cores.count, 1);
  assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
  assert_true(CPU_ISSET(cores.processors[0], &before));
  weft_cli_affinity_keep(&affinity);
  assert_true(weft_cli_cores_bind(&cores, 0));
  assert_int_equal(sched_getaffinity(0, sizeof bound, &bound), 0);
  assert_int_equal(CPU_COUNT(&bound), 1);
  assert_true(CPU_ISSET(cores.processors[0], &bound));
  weft_cli_affinity_restore(&affinity);
  assert_true(weft_cli_cores_bind(&none, 0));
  assert_false(weft_cli_cores_bind(&cores, 1));
  assert_false(weft_cli_cores_bind(&wrong, 0));
  assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
  assert_true(CPU_EQUAL(&before, &after));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_siblings_are_neighbours, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_siblings_are_apart, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_nothing_is_told, set_up, tear_down),
      cmocka_unit_test(test_text),
      cmocka_unit_test(test_binding),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
