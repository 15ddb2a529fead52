/* Orders and their evaluation, against the simulator, which shares only the ticks with it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "plan/construct/constructors.h"
#include "support_planning.h"

enum { ROUNDS = 400 };

static void expect_simulated(const struct planning *planning, struct planning_room *room) {
  const struct weft_problem *problem = &planning->problem;
  struct weft_plan_clock *clock = &room->clock;
  struct weft_program *table = NULL;
  struct weft_simulation *simulation = NULL;
  assert_int_equal(weft_order_table(problem, &room->order, &table, NULL), WEFT_OK);
  assert_int_equal(weft_simulate(NULL, table, planning->costs, NULL, &simulation, NULL), WEFT_OK);
  assert_true(weft_order_evaluate(problem, clock, &room->order, WEFT_NEVER) < WEFT_NEVER);
  assert_true((double)clock->makespan / problem->ticks_per_unit == simulation->makespan);
  assert_true((double)clock->span / problem->ticks_per_unit == simulation->span);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const double peak = (double)weft_order_peak(problem, &room->order, r, clock->done);
    assert_true(peak >= 0);
    assert_true(fabs(peak / problem->sizes_per_unit - simulation->ranks[r].peak_activation) < 1e-6);
  }
  weft_simulation_destroy(simulation);
  weft_program_destroy(table);
}

/* A table read back is the same order. */
static void expect_read_back(const struct planning *planning, const struct weft_order *order) {
  const struct weft_problem *problem = &planning->problem;
  struct planning_room again;
  struct weft_program *table = NULL;
  planning_room_init(&again, problem);
  assert_int_equal(weft_order_table(problem, order, &table, NULL), WEFT_OK);
  assert_int_equal(weft_order_read(problem, table, &again.order, NULL), WEFT_OK);
  assert_memory_equal(again.order.ops, order->ops,
                      weft_problem_op_count(problem) * sizeof *order->ops);
  assert_memory_equal(again.order.whole, order->whole,
                      (size_t)problem->stage_count * problem->microbatch_count);
  weft_program_destroy(table);
  planning_room_finish(&again);
}

static struct weft_shape draw_shape(struct weft_random *random) {
  return planning_draw_shape(
      random, (struct weft_shape){.ranks = 1, .stages_per_rank = 1, .microbatches = 1},
      (struct weft_shape){.ranks = 5, .stages_per_rank = 3, .microbatches = 6});
}

static void random_orders_take_as_long_as_simulated(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    struct weft_random random = {.state = seed};
    const struct weft_shape shape = draw_shape(&random);
    struct planning planning;
    planning_init(&planning, &random, &shape, weft_random_below(&random, 4) == 0);
    struct planning_room room;
    planning_room_init(&room, &planning.problem);
    for (int k = 0; k < 4; k++) {
      planning_random_order(&planning, &random, &room.order);
      expect_simulated(&planning, &room);
      expect_read_back(&planning, &room.order);
    }
    planning_room_finish(&room);
    planning_finish(&planning);
  }
}

enum { F = WEFT_KIND_F, B = WEFT_KIND_I, W = WEFT_KIND_W, STAGE = WEFT_ORDER_KINDS };

static void ranks_that_wait_for_each_other_never_end(void **state) {
  (void)state;
  struct weft_random random = {.state = 1};
  const struct weft_shape shape = {.ranks = 2, .stages_per_rank = 2, .microbatches = 1};
  struct planning planning;
  struct planning_room room;
  planning_init(&planning, &random, &shape, true);
  planning_room_init(&room, &planning.problem);
  /* and with 2F0 before 0F0 */
  uint32_t ops[] = {F,         2 * STAGE + F, 2 * STAGE + B, 2 * STAGE + W, B,         W,
                    STAGE + F, 3 * STAGE + F, 3 * STAGE + B, 3 * STAGE + W, STAGE + B, STAGE + W};
  uint8_t whole[] = {1, 1, 1, 1};
  const struct weft_order order = {.ops = ops, .whole = whole};
  const struct weft_problem *problem = &planning.problem;
  const int64_t value = weft_order_evaluate(problem, &room.clock, &order, WEFT_NEVER);
  assert_true(value < WEFT_NEVER);
  assert_true(weft_order_evaluate(problem, &room.clock, &order, value) == value);
  assert_true(weft_order_evaluate(problem, &room.clock, &order, value - 1) == WEFT_NEVER);
  ops[0] = 2 * STAGE + F, ops[1] = F;
  assert_true(weft_order_evaluate(problem, &room.clock, &order, WEFT_NEVER) == WEFT_NEVER);
  planning_room_finish(&room);
  planning_finish(&planning);
}

static void words_that_are_none_have_no_peak(void **state) {
  (void)state;
  struct weft_random random = {.state = 1};
  const struct weft_shape shape = {.ranks = 1, .stages_per_rank = 1, .microbatches = 2};
  struct planning planning;
  planning_init(&planning, &random, &shape, false);
  uint32_t sequences[][6] = {
      {F, B, W, F, B, W}, {B, F, W, F, B, W}, {F, W, B, F, B, W}, {F, B, W, B, F, W}};
  uint8_t whole[2] = {0};
  uint32_t done[STAGE];
  for (size_t n = 0; n < sizeof sequences / sizeof sequences[0]; n++) {
    const struct weft_order order = {.ops = sequences[n], .whole = whole};
    assert_int_equal(weft_order_peak(&planning.problem, &order, 0, done) >= 0, n == 0);
  }
  planning_finish(&planning);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_orders_take_as_long_as_simulated),
      cmocka_unit_test(ranks_that_wait_for_each_other_never_end),
      cmocka_unit_test(words_that_are_none_have_no_peak),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
