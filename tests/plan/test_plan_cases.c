/* The planner's cases: 150 random problems, against the results of another planner. With little
 * work here; test_long_plan_cases.c has the quality targets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "support_case_search.h"

/* Work is counted, not timed, so sanitizers get the same plans: they run some of the cases, for what
 * only they see. How good plans are is a question to all 150; a mean of ten says little of that. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { EVERY = 15 };
#else
enum { EVERY = 1 };
#endif

static void cases_are_near_their_bounds(void **state) {
  (void)state;
  const struct case_summary summary = search_cases(0.06, EVERY);
  print_message(
      "%u cases: %u optimal, %u above the peer; mean gap %.3f %% of equal, %.3f %% of "
      "unequal stages, worst %.3f %%\n",
      summary.count, summary.optimal, summary.above_peer, summary.mean_gap[0], summary.mean_gap[1],
      summary.worst_gap);
  assert_true(summary.count * EVERY >= 150);
  if (EVERY == 1) {
    assert_true(summary.optimal >= 120);
    assert_true(summary.mean_gap[0] <= 0.2);
    assert_true(summary.mean_gap[1] <= 0.4);
    assert_true(summary.above_peer * 20 <= summary.count);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(cases_are_near_their_bounds)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
