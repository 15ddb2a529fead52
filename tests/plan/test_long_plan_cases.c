/* The planner's cases with half a second of work on each of two threads, about what a second
 * has: the targets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "support_case_search.h"

static void targets_are_met(void **state) {
  (void)state;
  const struct case_marks marks = search_cases(0.5, 1);
  print_message(
      "%u cases: %u optimal, %u above the peer; mean gap %.3f %% of equal, %.3f %% of "
      "unequal stages, worst %.3f %%\n",
      marks.count, marks.optimal, marks.above_peer, marks.mean_gap[0], marks.mean_gap[1],
      marks.worst_gap);
  assert_int_equal(marks.count, 150);
  assert_int_equal(marks.above_peer, 0);
  assert_true(marks.mean_gap[0] <= 0.2);
  assert_true(marks.mean_gap[1] <= 0.7);
  assert_true(marks.worst_gap <= 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(targets_are_met)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
