/* Orders and their evaluation, against the simulator, which shares only the ticks with it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "plan/construct/chain_incumbent.h"
#include "support_planning.h"

enum { ROUNDS = 400 };

static struct weft_chain_order make_room(const struct weft_chain *problem) {
  return (struct weft_chain_order){.ops = malloc((size_t)problem->rank_count * problem->length)};
}

static void expect_simulated(const struct planning *planning, struct weft_chain_times *evaluation,
                             const struct weft_chain_order *order) {
  const struct weft_chain *problem = &planning->problem;
  struct weft_program *table = NULL;
  struct weft_simulation *simulation = NULL;
  assert_int_equal(weft_chain_order_table(problem, order, &table, NULL), WEFT_OK);
  assert_int_equal(weft_simulate(NULL, table, planning->costs, NULL, &simulation, NULL), WEFT_OK);
  assert_true(weft_chain_evaluate(evaluation, order, WEFT_NEVER) < WEFT_NEVER);
  assert_true((double)evaluation->makespan / problem->ticks_per_unit == simulation->makespan);
  assert_true((double)evaluation->span / problem->ticks_per_unit == simulation->span);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const double peak =
        (double)weft_chain_order_peak(problem, r, weft_chain_order_sequence(problem, order, r));
    assert_true(peak >= 0);
    assert_true(fabs(peak / problem->sizes_per_unit - simulation->ranks[r].peak_activation) < 1e-6);
  }
  weft_simulation_destroy(simulation);
  weft_program_destroy(table);
}

/* A table read back is the same order. */
static void expect_read_back(const struct planning *planning,
                             const struct weft_chain_order *order) {
  const struct weft_chain *problem = &planning->problem;
  struct weft_chain_order again = make_room(problem);
  struct weft_program *table = NULL;
  assert_int_equal(weft_chain_order_table(problem, order, &table, NULL), WEFT_OK);
  assert_int_equal(weft_chain_order_read(problem, table, &again, NULL), WEFT_OK);
  assert_memory_equal(again.ops, order->ops, (size_t)problem->rank_count * problem->length);
  weft_program_destroy(table);
  free(again.ops);
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
    struct weft_chain_order order = make_room(&planning.problem);
    struct weft_chain_times evaluation;
    assert_int_equal(weft_chain_times_init(&evaluation, &planning.problem, NULL), WEFT_OK);
    for (int k = 0; k < 4; k++) {
      planning_random_order(&planning, &random, &order);
      expect_simulated(&planning, &evaluation, &order);
      expect_read_back(&planning, &order);
    }
    weft_chain_times_finish(&evaluation);
    free(order.ops);
    planning_finish(&planning);
  }
}

static void ranks_that_wait_for_each_other_never_end(void **state) {
  (void)state;
  struct weft_random random = {.state = 1};
  const struct weft_shape shape = {.ranks = 2, .stages_per_rank = 2, .microbatches = 1};
  struct planning planning;
  planning_init(&planning, &random, &shape, true);
  /* rank 0: 0F0 2F0 2B0 0B0, rank 1: 1F0 3F0 3B0 1B0; and with 2F0 before 0F0 */
  uint8_t ops[] = {0, WEFT_KINDS, WEFT_KINDS + WEFT_KIND_B, WEFT_KIND_B,
                   0, WEFT_KINDS, WEFT_KINDS + WEFT_KIND_B, WEFT_KIND_B};
  const struct weft_chain_order order = {.ops = ops};
  struct weft_chain_times evaluation;
  assert_int_equal(weft_chain_times_init(&evaluation, &planning.problem, NULL), WEFT_OK);
  const int64_t value = weft_chain_evaluate(&evaluation, &order, WEFT_NEVER);
  assert_true(value < WEFT_NEVER);
  assert_true(weft_chain_evaluate(&evaluation, &order, value) == value);
  assert_true(weft_chain_evaluate(&evaluation, &order, value - 1) == WEFT_NEVER);
  ops[0] = WEFT_KINDS, ops[1] = 0;
  assert_true(weft_chain_evaluate(&evaluation, &order, WEFT_NEVER) == WEFT_NEVER);
  weft_chain_times_finish(&evaluation);
  planning_finish(&planning);
}

static void words_that_are_none_have_no_peak(void **state) {
  (void)state;
  struct weft_random random = {.state = 1};
  const struct weft_shape shape = {.ranks = 1, .stages_per_rank = 1, .microbatches = 2};
  struct planning planning;
  planning_init(&planning, &random, &shape, false);
  static const uint8_t sequences[][6] = {{0, 1, 2, 0, 1, 2}, {1, 0, 2, 0, 1, 2},
                                         {0, 2, 1, 0, 1, 2}, {0, 0, 0, 1, 1, 2},
                                         {0, 1, 2, 0, 1, 3}, {0, 1, 2, 0, 1, 9}};
  for (size_t n = 0; n < sizeof sequences / sizeof sequences[0]; n++) {
    assert_int_equal(weft_chain_order_peak(&planning.problem, 0, sequences[n]) >= 0, n == 0);
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
