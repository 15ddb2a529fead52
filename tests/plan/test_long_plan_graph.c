/* As test_plan_graph.c, with many more small graphs. WEFT_SEED=S: others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support_graph_cases.h"

static uint64_t seed(void) {
  const char *text = getenv("WEFT_SEED");
  return text != NULL ? strtoull(text, NULL, 10) : 1;
}

static void test_times(void **state) {
  (void)state;
  struct graph_tally tally;
  graph_cases_compare_times(seed(), 2000, &tally);
}

static void test_memory(void **state) {
  (void)state;
  struct graph_tally tally;
  graph_cases_compare_memory(seed(), 2000, 4, &tally);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_times), cmocka_unit_test(test_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
