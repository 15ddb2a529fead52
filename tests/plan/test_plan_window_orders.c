/* Orders from time windows, against the optimum of small problems and against another planner. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "plan/construct/constructors.h"
#include "support_cases.h"
#include "support_exhaustive.h"
#include "support_planning.h"

#if defined(__SANITIZE_ADDRESS__)
enum { ROUNDS = 60, CASES = 5 };
#else
enum { ROUNDS = 300, CASES = 40 };
#endif

static struct weft_shape draw_shape(struct weft_random *random) {
  const uint32_t v = 1 + weft_random_below(random, 2);
  return (struct weft_shape){.ranks = v == 2 ? 2 : 2 + weft_random_below(random, 2),
                             .stages_per_rank = v,
                             .microbatches = 2 + weft_random_below(random, v == 2 ? 2 : 4),
                             .placement = v == 2 && weft_random_below(random, 2) == 0
                                              ? WEFT_PLACEMENT_V
                                              : WEFT_PLACEMENT_LOOP};
}

static void small_problems_are_mostly_solved(void **state) {
  (void)state;
  unsigned solved = 0, proved = 0;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    struct weft_random random = {.state = seed};
    const struct weft_shape shape = draw_shape(&random);
    struct planning planning;
    planning_init(&planning, &random, &shape, weft_random_below(&random, 4) == 0);
    struct weft_problem *problem = &planning.problem;
    problem->objective = weft_random_below(&random, 2);
    for (uint32_t r = 0; r < shape.ranks; r++) {
      const double more = 1 + weft_random_below(&random, 24) / 8.0;
      problem->limit[r] = (int64_t)((double)weft_chain_least_of(problem, r) * more);
    }
    struct weft_incumbent incumbent;
    assert_int_equal(weft_incumbent_init(&incumbent, problem, weft_chain_bound(problem), NULL),
                     WEFT_OK);
    weft_construct_windows(&incumbent, &(uint64_t){12000000});
    const int64_t best = exhaustive_best(problem, problem->objective, 300000);
    assert_true(best > 0 && incumbent.bound <= best && incumbent.value >= best);
    solved += incumbent.value == best;
    proved += incumbent.value == incumbent.bound;
    weft_incumbent_finish(&incumbent);
    planning_finish(&planning);
  }
  assert_true(solved > ROUNDS * 7 / 10);
  assert_true(proved > ROUNDS * 6 / 10);
}

static void cases_are_mostly_as_good_as_the_peer(void **state) {
  (void)state;
  struct planner_cases cases = planner_cases_read();
  unsigned as_good = 0;
  for (size_t n = 0; n < CASES; n++) {
    const struct planner_case *one = &cases.list[n];
    struct weft_problem problem;
    struct weft_incumbent incumbent;
    planner_case_problem(one, &problem);
    assert_int_equal(weft_incumbent_init(&incumbent, &problem, weft_chain_bound(&problem), NULL),
                     WEFT_OK);
    weft_construct_windows(&incumbent, &(uint64_t){12000000});
    as_good += (double)incumbent.value / problem.ticks_per_unit < one->peer_span * (1 + 1e-8);
    weft_incumbent_finish(&incumbent);
    weft_problem_finish(&problem);
  }
  assert_true(as_good >= CASES * 8 / 10);
  planner_cases_destroy(&cases);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(small_problems_are_mostly_solved),
      cmocka_unit_test(cases_are_mostly_as_good_as_the_peer),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
