/* Lower bounds: against the optimum of small problems, against published formulas, and against
 * results of other planners; and the least memory. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_cases.h"
#include "support_exhaustive.h"
#include "support_memory.h"
#include "support_planning.h"

#if defined(__SANITIZE_ADDRESS__)
enum { ROUNDS = 100 };
#else
enum { ROUNDS = 500 };
#endif
enum { MOST = 300000, WORK = 4000000, SHARPENED = 2 /* a seed */ };
#define STATES (&(uint64_t){WORK})

/* ---- All sequences ---- */

struct sequences {
  const struct weft_problem *problem;
  struct planning_room room;
  int64_t best[2]; /* by objective */
};

static void try_rank(struct sequences *sequences, uint32_t rank);

/* The n-th op of a rank, and those after it. */
static void try_op(struct sequences *sequences, uint32_t rank, uint32_t n) {
  const struct weft_problem *problem = sequences->problem;
  const struct weft_order *order = &sequences->room.order;
  uint32_t *ops = order->ops + problem->begin[rank];
  uint32_t counts[8 * WEFT_ORDER_KINDS] = {0};
  if (n == problem->begin[rank + 1] - problem->begin[rank]) {
    const int64_t peak = weft_order_peak(problem, order, rank, sequences->room.clock.done);
    if (peak >= 0 && peak <= problem->limit[rank]) {
      try_rank(sequences, rank + 1);
    }
    return;
  }
  for (uint32_t k = 0; k < n; k++) {
    counts[ops[k]]++;
  }
  for (uint32_t op = 0; op < problem->stage_count * WEFT_ORDER_KINDS; op++) {
    const uint32_t kind = op % WEFT_ORDER_KINDS;
    const uint32_t most = kind == WEFT_KIND_F ? problem->microbatch_count : counts[op - 1];
    const bool with_w = kind == WEFT_KIND_I && !problem->may_split;
    if (problem->stages[op / WEFT_ORDER_KINDS].rank == rank && counts[op] < most) {
      ops[n] = op;
      ops[n + with_w] = op + with_w;
      try_op(sequences, rank, n + 1 + with_w);
    }
  }
}

static void try_rank(struct sequences *sequences, uint32_t rank) {
  const struct weft_plan_clock *now = &sequences->room.clock;
  if (rank < sequences->problem->rank_count) {
    try_op(sequences, rank, 0);
    return;
  }
  if (weft_order_evaluate(sequences->problem, &sequences->room.clock, &sequences->room.order,
                          WEFT_NEVER) < WEFT_NEVER) {
    int64_t *best = sequences->best;
    best[WEFT_OBJECTIVE_SPAN] = weft_min(now->span, best[WEFT_OBJECTIVE_SPAN]);
    best[WEFT_OBJECTIVE_MAKESPAN] = weft_min(now->makespan, best[WEFT_OBJECTIVE_MAKESPAN]);
  }
}

static void expect_best_of_all_words(const struct weft_problem *problem) {
  struct sequences sequences = {.problem = problem, .best = {INT64_MAX, INT64_MAX}};
  planning_room_init(&sequences.room, problem);
  memset(sequences.room.order.whole, !problem->may_split,
         (size_t)problem->stage_count * problem->microbatch_count);
  try_rank(&sequences, 0);
  for (unsigned objective = 0; objective < 2; objective++) {
    assert_int_equal(exhaustive_best(problem, objective, MOST), sequences.best[objective]);
  }
  planning_room_finish(&sequences.room);
}

/* ---- Random problems ---- */

/* A limit between the least possible one and one without effect, or none. */
static void draw_limit(struct planning *planning, struct weft_random *random) {
  const double least = planning_least(planning);
  if (weft_random_below(random, 4) > 0) {
    planning_limit(planning, least * (1 + weft_random_below(random, 24) / 8.0) + 1e-6);
  }
}

static const struct weft_shape tiny[] = {
    {.ranks = 1, .stages_per_rank = 1, .microbatches = 3},
    {.ranks = 2, .stages_per_rank = 1, .microbatches = 2},
    {.ranks = 2, .stages_per_rank = 1, .microbatches = 3},
    {.ranks = 3, .stages_per_rank = 1, .microbatches = 2},
    {.ranks = 2, .stages_per_rank = 2, .microbatches = 1},
    {.ranks = 2, .stages_per_rank = 2, .microbatches = 1, .placement = WEFT_PLACEMENT_V},
    {.ranks = 1, .stages_per_rank = 2, .microbatches = 2},
};

static void trying_all_is_the_best_of_all_words(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < ROUNDS / 5; seed++) {
    struct weft_random random = {.state = seed};
    const struct weft_shape *shape = &tiny[seed % (sizeof tiny / sizeof tiny[0])];
    struct planning planning;
    planning_init(&planning, &random, shape, weft_random_below(&random, 3) == 0);
    draw_limit(&planning, &random);
    expect_best_of_all_words(&planning.problem);
    planning_finish(&planning);
  }
}

static struct weft_shape draw_shape(struct weft_random *random) {
  if (weft_random_below(random, 3) == 0) {
    return (struct weft_shape){
        .ranks = 2,
        .stages_per_rank = 2,
        .microbatches = 2 + weft_random_below(random, 2),
        .placement = weft_random_below(random, 2) == 0 ? WEFT_PLACEMENT_V : WEFT_PLACEMENT_LOOP};
  }
  return (struct weft_shape){.ranks = 2 + weft_random_below(random, 2),
                             .stages_per_rank = 1,
                             .microbatches = 2 + weft_random_below(random, 4)};
}

/* A bound above the optimum would be wrong; one that is rarely tight would be useless. */
static void no_order_beats_a_bound(void **state) {
  (void)state;
  unsigned count = 0, closed = 0, exact = 0;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    struct weft_random random = {.state = seed};
    const struct weft_shape shape = draw_shape(&random);
    struct planning planning;
    planning_init(&planning, &random, &shape, weft_random_below(&random, 4) == 0);
    draw_limit(&planning, &random);
    struct weft_problem *problem = &planning.problem;
    for (unsigned objective = 0; objective < 2; objective++) {
      const int64_t best = exhaustive_best(problem, objective, MOST);
      problem->objective = objective;
      const int64_t bound = weft_chain_bound(problem);
      const int64_t sharp = weft_chain_sharpen(problem, bound, best + best / 4, STATES);
      assert_true(best > 0);
      assert_in_range(bound, 1, best);
      assert_in_range(sharp, bound, best);
      count++;
      closed += bound == best;
      exact += sharp == best;
      if (sharp == best) {
        assert_int_equal(weft_chain_sharpen(problem, bound, best, STATES), best);
      }
    }
    planning_finish(&planning);
  }
  assert_true(closed > count * 6 / 10);
  assert_true(exact > count * 97 / 100);
}

static void orders_exist_from_the_least_memory_on(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < ROUNDS / 2; seed++) {
    struct weft_random random = {.state = seed};
    const struct weft_shape shape = draw_shape(&random);
    struct planning planning;
    planning_init(&planning, &random, &shape, weft_random_below(&random, 4) == 0);
    struct weft_problem *problem = &planning.problem;
    for (uint32_t r = 0; r < shape.ranks; r++) {
      problem->limit[r] = weft_chain_least_of(problem, r);
    }
    assert_true(exhaustive_best(problem, WEFT_OBJECTIVE_SPAN, MOST) > 0);
    problem->limit[weft_random_below(&random, shape.ranks)]--;
    assert_int_equal(exhaustive_best(problem, WEFT_OBJECTIVE_SPAN, MOST), EXHAUSTIVE_NONE);
    planning_finish(&planning);
  }
}

/* Gradients that come with the first backward of a stage leave less memory: the bound in closed form
 * counts them, and is still no larger than the optimum. */
static void gradients_raise_bounds(void **state) {
  (void)state;
  unsigned raised = 0;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    struct weft_random random = {.state = seed};
    const struct weft_shape shape = {
        .ranks = 2,
        .stages_per_rank = 2,
        .microbatches = 2 + weft_random_below(&random, 2),
        .placement = weft_random_below(&random, 2) == 0 ? WEFT_PLACEMENT_V : WEFT_PLACEMENT_LOOP};
    struct planning planning;
    planning_init(&planning, &random, &shape, weft_random_below(&random, 4) == 0);
    for (uint32_t s = 0; s < 4; s++) {
      planning.costs->stages[s].gradients = weft_random_below(&random, 8);
    }
    planning_limit(&planning, INFINITY);
    planning_limit(&planning, planning_least(&planning) + weft_random_below(&random, 4));
    struct weft_problem *problem = &planning.problem;
    for (unsigned objective = 0; objective < 2; objective++) {
      const int64_t best = exhaustive_best(problem, objective, MOST);
      problem->objective = objective;
      const int64_t bound = weft_chain_bound(problem);
      assert_in_range(bound, 1, best);
      assert_in_range(weft_chain_sharpen(problem, bound, best + 1, STATES), bound, best);
      struct weft_problem_stage before[4];
      memcpy(before, problem->stages, sizeof before);
      for (uint32_t s = 0; s < 4; s++) {
        problem->stages[s].gradients = 0;
      }
      raised += weft_chain_bound(problem) < bound;
      memcpy(problem->stages, before, sizeof before);
    }
    planning_finish(&planning);
  }
  assert_true(raised > ROUNDS / 4);
}

/* Without any feasible order the bound has no meaning, but must not fail. */
static void problems_without_orders_have_bounds(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < ROUNDS / 5; seed++) {
    struct weft_random random = {.state = seed};
    const struct weft_shape shape = draw_shape(&random);
    struct planning planning;
    planning_init(&planning, &random, &shape, seed % 4 == 0);
    struct weft_problem *problem = &planning.problem;
    for (uint32_t r = 0; r < shape.ranks; r++) {
      problem->limit[r] = (int64_t)weft_random_below(&random, 3) - 1;
    }
    problem->objective = WEFT_OBJECTIVE_SPAN;
    const int64_t bound = weft_chain_bound(problem);
    assert_true(bound > 0);
    assert_true(weft_chain_sharpen(problem, bound, 2 * bound, STATES) >= bound);
    planning_finish(&planning);
  }
}

/* Out of memory, a bound is smaller, never wrong. The bound of this problem can be sharpened. */
static void bounds_do_with_little_memory(void **state) {
  (void)state;
  struct weft_random random = {.state = SHARPENED};
  const struct weft_shape shape = {
      .ranks = 2, .stages_per_rank = 2, .microbatches = 3, .placement = WEFT_PLACEMENT_V};
  struct planning planning;
  struct test_memory memory;
  planning_init(&planning, &random, &shape, false);
  draw_limit(&planning, &random);
  test_memory_init(&memory);
  struct weft_problem problem = planning.problem;
  problem.objective = WEFT_OBJECTIVE_SPAN;
  const int64_t bound = weft_chain_bound(&problem);
  const int64_t best = exhaustive_best(&problem, WEFT_OBJECTIVE_SPAN, MOST);
  assert_true(bound < best);
  problem.allocator = &memory.allocator;
  int64_t sharp = bound;
  for (memory.fail_at = 1; sharp < best; memory.fail_at++) {
    memory.calls = 0;
    assert_in_range(weft_chain_bound(&problem), 0, bound);
    memory.calls = 0;
    sharp = weft_chain_sharpen(&problem, bound, best, STATES);
    assert_in_range(sharp, bound, best);
    assert_int_equal(memory.blocks, 0);
  }
  assert_in_range(memory.fail_at, 10, 100);
  planning_finish(&planning);
}

/* ---- The published formula ---- */

static double head_of(const struct planner_case *one, uint32_t rank, double way) {
  const struct weft_stage_costs *stage = &one->costs->stages[rank];
  const double most = fmin(one->microbatches, floor(one->memory / stage->activation + 1e-9));
  return fmax(0, way - (most - 1) * stage->f);
}

static double tail_of(const struct planner_case *one, uint32_t rank, double way) {
  const struct weft_stage_costs *stage = &one->costs->stages[rank];
  const double m = one->microbatches;
  double most = 0;
  for (double x = 1; x <= m && x * stage->activation <= one->memory + 1e-9; x++) {
    const double room = (one->memory - x * stage->activation) / stage->activation_after_i;
    const double y = fmin(m - x, floor(room + 1e-9));
    most = fmax(most, x * stage->i + (x + y) * stage->w);
  }
  return fmax(0, way + stage->i + stage->w - most);
}

static double chain_of(const struct planner_case *one, uint32_t rank) {
  double way = 0, most = 0;
  for (uint32_t q = rank; q < one->ranks; q++) {
    const struct weft_stage_costs *stage = &one->costs->stages[q];
    most = fmax(most, way + one->microbatches * (stage->f + stage->i));
    way += stage->f + stage->i + 2 * one->costs->hop.latency;
  }
  return most + one->costs->stages[rank].w;
}

static double published_bound(const struct planner_case *one) {
  double bound = 0, way = 0; /* round trip beyond the rank */
  for (uint32_t r = one->ranks; r-- > 0;) {
    const struct weft_stage_costs *stage = &one->costs->stages[r];
    const double head = head_of(one, r, way), tail = tail_of(one, r, way);
    const double work = one->microbatches * (stage->f + stage->i + stage->w);
    const bool both = one->microbatches > floor(one->memory / stage->activation + 1e-9);
    bound = fmax(bound, fmax(chain_of(one, r), work + (both ? head + tail : fmax(head, tail))));
    way += stage->f + stage->i + 2 * one->costs->hop.latency;
  }
  return bound;
}

/* Planners have reached the published bound, and the bound here is not below it. */
static void cases_lie_between_the_bounds(void **state) {
  (void)state;
  struct planner_cases cases = planner_cases_read();
  unsigned larger = 0;
  for (size_t n = 0; n < cases.count; n++) {
    const struct planner_case *one = &cases.list[n];
    struct weft_problem problem;
    planner_case_problem(one, &problem);
    const double bound = (double)weft_chain_bound(&problem) / problem.ticks_per_unit;
    assert_true(fabs(published_bound(one) / one->bound_span - 1) < 1e-8);
    assert_true(bound > one->bound_span * (1 - 1e-8));
    assert_true(bound < one->peer_span * (1 + 1e-8));
    larger += bound > one->bound_span * (1 + 1e-8);
    weft_problem_finish(&problem);
  }
  assert_int_equal(cases.count, 150);
  assert_in_range(larger, 13, cases.count);
  planner_cases_destroy(&cases);
}

/* Results of other planners that this bound proves optimal. */
static void some_cases_are_proved_optimal(void **state) {
  (void)state;
  static const int ids[] = {45, 46, 62, 83, 100, 122, 145};
  struct planner_cases cases = planner_cases_read();
  for (size_t n = 0; n < sizeof ids / sizeof ids[0]; n++) {
    const struct planner_case *one = &cases.list[ids[n]];
    assert_int_equal(one->id, ids[n]);
    assert_true(one->bound_span < one->peer_span * 0.999);
    struct weft_problem problem;
    planner_case_problem(one, &problem);
    const int64_t bound = weft_chain_bound(&problem);
    const int64_t sharp = weft_chain_sharpen(
        &problem, bound, (int64_t)(one->peer_span * problem.ticks_per_unit * 1.0001), STATES);
    assert_true(fabs((double)sharp / problem.ticks_per_unit / one->peer_span - 1) < 1e-6);
    weft_problem_finish(&problem);
  }
  planner_cases_destroy(&cases);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(trying_all_is_the_best_of_all_words),
      cmocka_unit_test(no_order_beats_a_bound),
      cmocka_unit_test(orders_exist_from_the_least_memory_on),
      cmocka_unit_test(gradients_raise_bounds),
      cmocka_unit_test(problems_without_orders_have_bounds),
      cmocka_unit_test(bounds_do_with_little_memory),
      cmocka_unit_test(cases_lie_between_the_bounds),
      cmocka_unit_test(some_cases_are_proved_optimal),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
