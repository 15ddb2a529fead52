/* The evaluator of local search: after every move that is made, undone or rejected, all times must be
 * those of a full evaluation of the order. And list scheduling by rules: it says how long its orders
 * take. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "plan/construct/rule_scheduler.h"
#include "plan/improve/evaluator.h"
#include "support_planning.h"

enum { ROUNDS = 300, MOVES = 60 };

static const int64_t far_away = INT64_MAX / 2;

/* A random order in an evaluator. */
struct trial {
  struct planning planning;
  struct planning_room room;
  uint32_t *done; /* scratch */
  struct weft_arena arena;
  struct weft_evaluator evaluator;
};

static size_t flag_count(const struct weft_problem *problem) {
  return (size_t)problem->stage_count * problem->microbatch_count;
}

static void trial_begin(struct trial *trial, struct weft_random *random) {
  const struct weft_problem *problem = &trial->planning.problem;
  planning_room_init(&trial->room, problem);
  trial->arena = (struct weft_arena){0};
  trial->done = malloc(problem->stage_count * WEFT_ORDER_KINDS * sizeof *trial->done);
  assert_int_equal(weft_evaluator_init(&trial->evaluator, problem, &trial->arena, NULL), WEFT_OK);
  planning_random_order(&trial->planning, random, &trial->room.order);
  assert_true(weft_evaluator_set(&trial->evaluator, &trial->room.order));
  assert_true(weft_order_evaluate(problem, &trial->room.clock, &trial->room.order, WEFT_NEVER) ==
              trial->evaluator.value);
  assert_true(trial->room.clock.span_sum == trial->evaluator.span_sum);
}

static void trial_end(struct trial *trial) {
  weft_arena_finish(&trial->arena);
  free(trial->done);
  planning_room_finish(&trial->room);
  planning_finish(&trial->planning);
}

/* Times, microbatches and memory equal those of a full evaluation. */
static void expect_consistent(struct trial *trial) {
  const struct weft_evaluator *evaluator = &trial->evaluator;
  const size_t ops = weft_problem_op_count(&trial->planning.problem);
  struct weft_evaluator fresh;
  assert_true(weft_order_evaluate(&trial->planning.problem, &trial->room.clock, &evaluator->order,
                                  WEFT_NEVER) == evaluator->value);
  WEFT_SCOPED_ARENA arena = {0};
  assert_int_equal(weft_evaluator_init(&fresh, &trial->planning.problem, &arena, NULL), WEFT_OK);
  assert_true(weft_evaluator_set(&fresh, &evaluator->order));
  assert_memory_equal(fresh.end, evaluator->end, ops * sizeof *fresh.end);
  assert_memory_equal(fresh.index, evaluator->index, ops * sizeof *fresh.index);
  assert_memory_equal(fresh.held, evaluator->held, ops * sizeof *fresh.held);
  assert_true(fresh.span_sum == evaluator->span_sum);
}

static bool draw_move(const struct weft_problem *problem, struct weft_random *random,
                      struct weft_move *move) {
  const uint32_t rank = weft_random_below(random, problem->rank_count);
  const uint32_t size = problem->begin[rank + 1] - problem->begin[rank];
  move->from = problem->begin[rank] + weft_random_below(random, size);
  move->to = problem->begin[rank] + weft_random_below(random, size);
  const uint32_t far = move->from < move->to ? move->to - move->from : move->from - move->to;
  return far < WEFT_MOVE_MAX && (far > 0 || (problem->may_split && problem->may_join));
}

/* Makes the move in `room`. */
static void make_move(struct trial *trial, const struct weft_move *move) {
  const struct weft_evaluator *evaluator = &trial->evaluator;
  uint32_t *ops = trial->room.order.ops;
  memcpy(ops, evaluator->order.ops, weft_problem_op_count(&trial->planning.problem) * sizeof *ops);
  memcpy(trial->room.order.whole, evaluator->order.whole, flag_count(&trial->planning.problem));
  const uint32_t op = ops[move->from];
  if (move->from == move->to) {
    uint8_t *whole =
        &trial->room.order.whole[op / WEFT_ORDER_KINDS * trial->planning.problem.microbatch_count +
                                 evaluator->index[move->from]];
    *whole = !*whole;
    return;
  }
  for (uint32_t n = move->from; n != move->to;) {
    const uint32_t next = move->from < move->to ? n + 1 : n - 1;
    ops[n] = ops[next];
    n = next;
  }
  ops[move->to] = op;
}

static void try_moves(struct trial *trial, struct weft_random *random) {
  struct weft_evaluator *evaluator = &trial->evaluator;
  for (int n = 0; n < MOVES; n++) {
    struct weft_move move;
    if (!draw_move(&trial->planning.problem, random, &move)) {
      continue;
    }
    make_move(trial, &move);
    const int64_t value = weft_order_fits(&trial->planning.problem, &trial->room.order, trial->done)
                              ? weft_order_evaluate(&trial->planning.problem, &trial->room.clock,
                                                    &trial->room.order, WEFT_NEVER)
                              : WEFT_NEVER;
    const bool possible = value != WEFT_NEVER;
    assert_int_equal(weft_evaluator_try(evaluator, &move, far_away), possible);
    if (possible) {
      assert_true(evaluator->value == value);
      if (weft_random_below(random, 3) == 0) {
        weft_evaluator_undo(evaluator, &move);
      }
    }
    expect_consistent(trial);
  }
}

static struct weft_shape draw_shape(struct weft_random *random) {
  return planning_draw_shape(
      random, (struct weft_shape){.ranks = 1, .stages_per_rank = 1, .microbatches = 2},
      (struct weft_shape){.ranks = 4, .stages_per_rank = 3, .microbatches = 6});
}

static void times_follow_every_move(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    struct weft_random random = {.state = seed};
    const struct weft_shape shape = draw_shape(&random);
    struct trial trial;
    planning_init(&trial.planning, &random, &shape, weft_random_below(&random, 4) == 0);
    if (weft_random_below(&random, 2) == 0) {
      planning_limit(&trial.planning, 2.0 * shape.stages_per_rank + weft_random_below(&random, 8));
    }
    trial_begin(&trial, &random);
    try_moves(&trial, &random);
    trial_end(&trial);
  }
}

/* Tails: for ops on the critical path, end plus tail is the objective; for no op is it more. */
static void expect_tails(const struct weft_evaluator *evaluator) {
  uint32_t places[1024];
  const uint32_t count = weft_evaluator_critical(evaluator, places, 1024);
  assert_true(count > 0);
  for (uint32_t n = 0; n < count; n++) {
    assert_true(evaluator->end[places[n]] + evaluator->tail[places[n]] == evaluator->value);
  }
  for (size_t n = 0; n < weft_problem_op_count(evaluator->problem); n++) {
    assert_true(evaluator->end[n] + evaluator->tail[n] <= evaluator->value);
  }
}

static enum weft_objective draw_objective(struct weft_random *random) {
  return weft_random_below(random, 2) == 0 ? WEFT_OBJECTIVE_SPAN : WEFT_OBJECTIVE_MAKESPAN;
}

static void tails_end_at_the_value(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    struct weft_random random = {.state = seed};
    const struct weft_shape shape = draw_shape(&random);
    struct trial trial;
    planning_init(&trial.planning, &random, &shape, weft_random_below(&random, 4) == 0);
    trial.planning.costs->hop.bytes = 0;
    trial.planning.request.objective = draw_objective(&random);
    planning_limit(&trial.planning, INFINITY);
    trial_begin(&trial, &random);
    expect_tails(&trial.evaluator);
    trial_end(&trial);
  }
}

/* ---- Rules ---- */

static void draw_rules(const struct weft_problem *problem, struct weft_random *random,
                       struct weft_list_rule *rules) {
  const uint32_t m = problem->microbatch_count;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    rules[s] = (struct weft_list_rule){
        .warmup = 1 + weft_random_below(random, m),
        .cap = 1 + weft_random_below(random, m),
        .eager = weft_random_below(random, 3),
        .f_delay = problem->stages[s].f * weft_random_below(random, 3) / 2,
        .w_overrun = problem->stages[s].f * weft_random_below(random, 3) / 2};
    if (!problem->may_split) {
      rules[s].whole_to = m;
    } else if (problem->may_join) {
      rules[s].whole_from = weft_random_below(random, m);
      rules[s].whole_to = weft_random_below(random, m + 1);
    }
  }
}

/* For any rules, the schedule is an order within the memory that takes as long as reported, and no
 * cutoff of that time or more abandons it. Returns whether there is one. */
static bool expect_list(struct trial *trial, struct weft_random *random) {
  const struct weft_problem *problem = &trial->planning.problem;
  struct weft_list_rule rules[12];
  struct weft_rule_scheduler scheduler;
  uint64_t work = 0;
  assert_true(problem->stage_count <= WEFT_ARRAY_LENGTH(rules));
  assert_int_equal(
      weft_rule_scheduler_init(&scheduler, problem, &trial->room.clock, &trial->room.arena, NULL),
      WEFT_OK);
  draw_rules(problem, random, rules);
  const int64_t value =
      weft_rule_schedule(problem, &scheduler, rules, far_away, &trial->room.order, &work);
  if (value == WEFT_NEVER) {
    return false;
  }
  assert_true(weft_order_evaluate(problem, &trial->room.clock, &trial->room.order, WEFT_NEVER) ==
              value);
  assert_true(weft_order_fits(problem, &trial->room.order, trial->done));
  assert_true(weft_rule_schedule(problem, &scheduler, rules, value, &trial->room.order, &work) ==
              value);
  assert_true(weft_rule_schedule(problem, &scheduler, rules, value - 1, &trial->room.order,
                                 &work) == WEFT_NEVER);
  return true;
}

static void lists_take_as_long_as_they_say(void **state) {
  (void)state;
  unsigned scheduled = 0;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    struct weft_random random = {.state = seed};
    const struct weft_shape shape = draw_shape(&random);
    struct trial trial;
    struct weft_search_control control;
    planning_init(&trial.planning, &random, &shape, weft_random_below(&random, 4) == 0);
    trial.planning.request.objective = draw_objective(&random);
    planning_limit(&trial.planning, 2.0 * shape.stages_per_rank + weft_random_below(&random, 6));
    weft_search_control_start(&control, &trial.planning.request);
    trial.planning.problem.control = &control;
    trial_begin(&trial, &random);
    const bool is_scheduled = expect_list(&trial, &random);
    assert_true(is_scheduled || shape.stages_per_rank > 1);
    scheduled += is_scheduled;
    trial_end(&trial);
  }
  assert_true(scheduled * 10 >= ROUNDS * 9);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(times_follow_every_move),
      cmocka_unit_test(tails_end_at_the_value),
      cmocka_unit_test(lists_take_as_long_as_they_say),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
