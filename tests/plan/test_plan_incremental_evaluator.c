/* The incremental evaluator: after every move that is made, undone or rejected, all times must be
 * those of a full evaluation of the order. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "plan/improve/incremental_evaluator.h"
#include "plan/improve/priority_rule.h"
#include "support_planning.h"

enum { ROUNDS = 300, MOVES = 60 };

static const int64_t far_away = INT64_MAX / 2;

static struct weft_shape draw_shape(struct weft_random *random) {
  return planning_draw_shape(
      random, (struct weft_shape){.ranks = 1, .stages_per_rank = 1, .microbatches = 2},
      (struct weft_shape){.ranks = 4, .stages_per_rank = 3, .microbatches = 6});
}

static bool draw_move(const struct weft_problem *problem, struct weft_random *random,
                      struct weft_move *move) {
  const uint32_t last = problem->length - 1;
  move->rank = weft_random_below(random, problem->rank_count);
  move->from = 1 + weft_random_below(random, last);
  move->to = 1 + weft_random_below(random, last);
  const uint32_t far = move->from < move->to ? move->to - move->from : move->from - move->to;
  return far > 0 && far < WEFT_MOVE_MAX;
}

static size_t op_count(const struct weft_problem *problem) {
  return (size_t)problem->rank_count * problem->length;
}

static void shift(uint8_t *sequence, const struct weft_move *move) {
  const uint8_t op = sequence[move->from];
  if (move->from < move->to) {
    memmove(sequence + move->from, sequence + move->from + 1, move->to - move->from);
  } else {
    memmove(sequence + move->to + 1, sequence + move->to, move->from - move->to);
  }
  sequence[move->to] = op;
}

/* Times, microbatches and memory equal those of a full evaluation. */
static void expect_consistent(const struct weft_evaluator *evaluator,
                              struct weft_evaluation *evaluation) {
  const struct weft_problem *problem = evaluator->problem;
  struct weft_evaluator fresh;
  assert_true(weft_evaluate(evaluation, &evaluator->order, WEFT_NEVER) == evaluator->value);
  assert_int_equal(weft_evaluator_init(&fresh, problem, NULL), WEFT_OK);
  weft_evaluator_set(&fresh, &evaluator->order, evaluation);
  const size_t ops = op_count(problem);
  assert_memory_equal(fresh.end, evaluator->end, ops * sizeof *fresh.end);
  assert_memory_equal(fresh.index, evaluator->index, ops * sizeof *fresh.index);
  assert_memory_equal(fresh.held, evaluator->held, ops * sizeof *fresh.held);
  assert_true(fresh.span_sum == evaluator->span_sum);
  weft_evaluator_finish(&fresh);
}

/* Whether a move leads to a valid order. */
static bool is_possible(const struct weft_evaluator *evaluator, const struct weft_move *move,
                        struct weft_evaluation *evaluation, struct weft_order *room) {
  const struct weft_problem *problem = evaluator->problem;
  memcpy(room->ops, evaluator->order.ops, op_count(problem));
  uint8_t *sequence = weft_order_sequence(problem, room, move->rank);
  shift(sequence, move);
  const int64_t peak = weft_sequence_peak(problem, move->rank, sequence);
  return peak >= 0 && peak <= problem->limit[move->rank] &&
         weft_evaluate(evaluation, room, WEFT_NEVER) < WEFT_NEVER;
}

static void try_moves(struct weft_evaluator *evaluator, struct weft_evaluation *evaluation,
                      struct weft_random *random, struct weft_order *room) {
  for (int n = 0; n < MOVES; n++) {
    struct weft_move move;
    if (!draw_move(evaluator->problem, random, &move)) {
      continue;
    }
    const bool possible = is_possible(evaluator, &move, evaluation, room);
    const int64_t value = possible ? weft_evaluate(evaluation, room, WEFT_NEVER) : WEFT_NEVER;
    assert_int_equal(weft_evaluator_try(evaluator, &move, far_away), possible);
    if (possible) {
      assert_true(evaluator->value == value);
      if (weft_random_below(random, 3) == 0) {
        weft_evaluator_undo(evaluator, &move);
      }
    }
    expect_consistent(evaluator, evaluation);
  }
}

/* A random order in an evaluator. */
struct trial {
  struct weft_order order;
  struct weft_evaluation evaluation;
  struct weft_evaluator evaluator;
};

static void trial_begin(struct trial *trial, const struct planning *planning,
                        struct weft_random *random) {
  const struct weft_problem *problem = &planning->problem;
  trial->order = (struct weft_order){.ops = malloc(op_count(problem))};
  assert_int_equal(weft_evaluation_init(&trial->evaluation, problem, NULL), WEFT_OK);
  assert_int_equal(weft_evaluator_init(&trial->evaluator, problem, NULL), WEFT_OK);
  planning_random_order(planning, random, &trial->order);
  assert_true(weft_evaluate(&trial->evaluation, &trial->order, WEFT_NEVER) < WEFT_NEVER);
  weft_evaluator_set(&trial->evaluator, &trial->order, &trial->evaluation);
}

static void trial_end(struct trial *trial) {
  weft_evaluator_finish(&trial->evaluator);
  weft_evaluation_finish(&trial->evaluation);
  free(trial->order.ops);
}

static void times_follow_every_move(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    struct weft_random random = {.state = seed};
    const struct weft_shape shape = draw_shape(&random);
    struct planning planning;
    planning_init(&planning, &random, &shape, weft_random_below(&random, 4) == 0);
    if (weft_random_below(&random, 2) == 0) {
      planning_limit(&planning, 2.0 * shape.stages_per_rank + weft_random_below(&random, 8));
    }
    struct trial trial;
    trial_begin(&trial, &planning, &random);
    try_moves(&trial.evaluator, &trial.evaluation, &random, &trial.order);
    trial_end(&trial);
    planning_finish(&planning);
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
  for (size_t n = 0; n < op_count(evaluator->problem); n++) {
    assert_true(evaluator->end[n] + evaluator->tail[n] <= evaluator->value);
  }
}

static void tails_end_at_the_value(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    struct weft_random random = {.state = seed};
    const struct weft_shape shape = draw_shape(&random);
    struct planning planning;
    planning_init(&planning, &random, &shape, weft_random_below(&random, 4) == 0);
    planning.costs->hop.bytes = 0;
    planning.request.objective =
        weft_random_below(&random, 2) == 0 ? WEFT_OBJECTIVE_SPAN : WEFT_OBJECTIVE_MAKESPAN;
    planning_limit(&planning, INFINITY);
    struct trial trial;
    trial_begin(&trial, &planning, &random);
    expect_tails(&trial.evaluator);
    trial_end(&trial);
    planning_finish(&planning);
  }
}

/* ---- Priority rules ---- */

static void draw_rules(const struct weft_problem *problem, struct weft_random *random,
                       struct weft_priority_rule *rules) {
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    rules[r] = (struct weft_priority_rule){
        .warmup = 1 + weft_random_below(random, problem->microbatch_count),
        .cap = 1 + weft_random_below(random, problem->microbatch_count),
        .eager = weft_random_below(random, 3),
        .f_delay = problem->stages[r].time[WEFT_KIND_F] * weft_random_below(random, 3) / 2,
        .w_overrun = problem->stages[r].time[WEFT_KIND_F] * weft_random_below(random, 3) / 2};
  }
}

/* For any rule, the schedule is an order within the memory that takes as long as reported, and no
 * cutoff of that time or more abandons it. */
static void expect_list(const struct weft_problem *problem, struct weft_random *random) {
  struct weft_priority_rule rules[4];
  struct weft_order order = {.ops = malloc(op_count(problem))};
  struct weft_evaluation evaluation;
  struct weft_priority_scheduler scheduler;
  int64_t value, again;
  assert_int_equal(weft_evaluation_init(&evaluation, problem, NULL), WEFT_OK);
  assert_int_equal(weft_priority_scheduler_init(&scheduler, problem, NULL), WEFT_OK);
  draw_rules(problem, random, rules);
  assert_int_equal(weft_priority_schedule(&scheduler, rules, far_away, &order, &value),
                   op_count(problem));
  assert_true(weft_evaluate(&evaluation, &order, WEFT_NEVER) == value);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t peak = weft_sequence_peak(problem, r, weft_order_sequence(problem, &order, r));
    assert_true(peak >= 0 && peak <= problem->limit[r]);
  }
  (void)weft_priority_schedule(&scheduler, rules, value, &order, &again);
  assert_true(again == value);
  (void)weft_priority_schedule(&scheduler, rules, value - 1, &order, &again);
  assert_true(again == WEFT_NEVER);
  weft_priority_scheduler_finish(&scheduler);
  weft_evaluation_finish(&evaluation);
  free(order.ops);
}

static void lists_take_as_long_as_they_say(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    struct weft_random random = {.state = seed};
    const struct weft_shape shape = {.ranks = 1 + weft_random_below(&random, 4),
                                     .stages_per_rank = 1,
                                     .microbatches = 1 + weft_random_below(&random, 8)};
    struct planning planning;
    planning_init(&planning, &random, &shape, weft_random_below(&random, 4) == 0);
    planning.request.objective =
        weft_random_below(&random, 2) == 0 ? WEFT_OBJECTIVE_SPAN : WEFT_OBJECTIVE_MAKESPAN;
    planning_limit(&planning, 2 + weft_random_below(&random, 6));
    expect_list(&planning.problem, &random);
    planning_finish(&planning);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(times_follow_every_move),
      cmocka_unit_test(tails_end_at_the_value),
      cmocka_unit_test(lists_take_as_long_as_they_say),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
