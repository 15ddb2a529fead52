/* As test_plan_bound.c, with many more small problems and shapes: no order is below a bound. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_exhaustive.h"
#include "support_planning.h"

enum { ROUNDS = 4000, MOST = 1000000, WORK = 4000000 };
#define STATES (&(uint64_t){WORK})

static struct weft_shape draw_shape(struct weft_random *random) {
  struct weft_shape shape = {.ranks = 2 + weft_random_below(random, 3),
                             .stages_per_rank = 1 + weft_random_below(random, 3)};
  if (shape.ranks * shape.stages_per_rank > EXHAUSTIVE_STAGES) {
    shape.stages_per_rank = 1;
  }
  const uint32_t stages = shape.ranks * shape.stages_per_rank;
  shape.microbatches = 2 + weft_random_below(random, stages > 6   ? 1
                                                     : stages > 4 ? 2
                                                     : stages > 3 ? 3
                                                                  : 4);
  if (shape.stages_per_rank == 2 && weft_random_below(random, 2) == 0) {
    shape.placement = WEFT_PLACEMENT_V;
  }
  return shape;
}

static void expect_bounds(struct weft_problem *problem, uint64_t seed) {
  for (unsigned objective = 0; objective < 2; objective++) {
    const int64_t best = exhaustive_best(problem, objective, MOST);
    problem->objective = objective;
    const int64_t bound = weft_chain_bound(problem);
    const int64_t sharp = weft_chain_sharpen(problem, bound, best + best / 4, STATES);
    if (best <= 0 || bound > best || sharp > best || sharp < bound) {
      fail_msg("seed %d, objective %u: best %ld, bound %ld, sharpened %ld", (int)seed, objective,
               (long)best, (long)bound, (long)sharp);
    }
  }
}

static void no_order_beats_a_bound(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    struct weft_random random = {.state = seed * 7919 + 1};
    const struct weft_shape shape = draw_shape(&random);
    struct planning planning;
    planning_init(&planning, &random, &shape, weft_random_below(&random, 4) == 0);
    for (uint32_t r = 0; r < shape.ranks; r++) {
      const double least = (double)weft_chain_least_of(&planning.problem, r);
      const double more = 1 + weft_random_below(&random, 24) / 8.0;
      if (weft_random_below(&random, 4) > 0) {
        planning.problem.limit[r] = (int64_t)(least * more);
      }
    }
    expect_bounds(&planning.problem, seed);
    planning_finish(&planning);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_order_beats_a_bound),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
