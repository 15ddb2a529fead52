/* The planner's cases with half a second of work on each of two threads: the quality targets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "support_case_search.h"

static void targets_are_met(void **state) {
  (void)state;
  const struct case_summary summary = search_cases(0.5, 1);
  print_message(
      "%u cases: %u optimal, %u above the peer; mean gap %.3f %% of equal, %.3f %% of "
      "unequal stages, worst %.3f %%\n",
      summary.count, summary.optimal, summary.above_peer, summary.mean_gap[0], summary.mean_gap[1],
      summary.worst_gap);
  assert_int_equal(summary.count, 150);
  assert_true(summary.optimal >= 143);
  assert_int_equal(summary.above_peer, 0);
  assert_true(summary.mean_gap[0] <= 0.2);
  assert_true(summary.mean_gap[1] <= 0.7);
  assert_true(summary.worst_gap <= 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(targets_are_met)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
