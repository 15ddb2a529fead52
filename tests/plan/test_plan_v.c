/* Constructors for several stages per rank: every feasible limit has an order, orders respect the
 * memory, and those for the V placement are as good as the literature's. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "plan/construct/constructors.h"
#include "plan/construct/list_scheduler.h"
#include "support_planning.h"
#include "support_v_rows.h"

enum { ROUNDS = 100 };

static struct weft_shape draw_shape(struct weft_random *random) {
  struct weft_shape shape = {.ranks = 1 + weft_random_below(random, 5),
                             .stages_per_rank = 2 + weft_random_below(random, 2),
                             .microbatches = 1 + weft_random_below(random, 8)};
  if (shape.stages_per_rank == 2 && weft_random_below(random, 4) > 0) {
    shape.placement = WEFT_PLACEMENT_V;
  }
  return shape;
}

/* Some with an I that increases memory, so that the least limit needs every W at once. */
static void let_some_grow(struct planning *planning, struct weft_random *random) {
  if (weft_random_below(random, 4) == 0) {
    for (uint32_t s = 0; s < planning->costs->stage_count; s++) {
      planning->costs->stages[s].activation_after_i = (double)weft_random_below(random, 20) / 10;
    }
  }
}

/* A feasible limit: the least one, a little more, or much more. */
static void draw_limit(struct planning *planning, struct weft_random *random) {
  planning_limit(planning, INFINITY);
  const double least = planning_least(planning);
  static const double more[] = {0, 0.3, 1, 3};
  planning_limit(planning, least * (1 + more[weft_random_below(random, 4)] *
                                            (double)weft_random_below(random, 101) / 100));
}

static void expect_within_memory(const struct weft_problem *problem, const struct weft_order *order,
                                 uint32_t *done) {
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t peak = weft_order_peak(problem, order, r, done);
    assert_true(peak >= 0 && peak <= problem->limit[r]);
  }
}

/* ---- Every feasible limit has an order ---- */

typedef enum weft_status constructor(struct weft_incumbent *incumbent, struct weft_error *error);

static int64_t construct(const struct weft_problem *problem, constructor *make) {
  struct weft_incumbent incumbent;
  assert_int_equal(weft_incumbent_init(&incumbent, problem, weft_chain_bound(problem), NULL),
                   WEFT_OK);
  assert_int_equal(make(&incumbent, NULL), WEFT_OK);
  const int64_t value = incumbent.value;
  if (value < WEFT_NEVER) {
    assert_true(value >= incumbent.bound);
    assert_true(weft_order_evaluate(problem, &incumbent.clock, &incumbent.best, WEFT_NEVER) ==
                value);
    expect_within_memory(problem, &incumbent.best, incumbent.clock.done);
  }
  weft_incumbent_finish(&incumbent);
  return value;
}

static enum weft_status construct_serial(struct weft_incumbent *incumbent,
                                         struct weft_error *error) {
  (void)error;
  weft_construct_serial(incumbent);
  return WEFT_OK;
}

static enum weft_status construct_periodic(struct weft_incumbent *incumbent,
                                           struct weft_error *error) {
  (void)error;
  (void)weft_construct_periodic(incumbent, 7000000, 0);
  return WEFT_OK;
}

static enum weft_status construct_scaled(struct weft_incumbent *incumbent,
                                         struct weft_error *error) {
  (void)error;
  (void)weft_construct_scaled(incumbent, 60000000, 0);
  return WEFT_OK;
}

static bool grows(const struct planning *planning) {
  for (uint32_t s = 0; s < planning->costs->stage_count; s++) {
    if (planning->costs->stages[s].activation_after_i > planning->costs->stages[s].activation) {
      return !planning->request.whole_backward;
    }
  }
  return false;
}

static void whatever_fits_has_an_order(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    struct weft_random random = {.state = seed};
    const struct weft_shape shape = draw_shape(&random);
    struct planning planning;
    planning_init(&planning, &random, &shape, weft_random_below(&random, 4) == 0);
    let_some_grow(&planning, &random);
    draw_limit(&planning, &random);
    const struct weft_problem *problem = &planning.problem;
    const int64_t plain = construct(problem, construct_serial);
    const int64_t blocks = construct(problem, weft_construct_v_blocks);
    const int64_t greedy = construct(problem, weft_construct_chain_greedy);
    (void)construct(problem, construct_periodic); /* stays within the memory, if it has any order */
    assert_true(plain < WEFT_NEVER);
    if (!grows(&planning)) {
      assert_true(greedy < WEFT_NEVER);
      assert_int_equal(blocks < WEFT_NEVER, shape.placement == WEFT_PLACEMENT_V);
    }
    planning_finish(&planning);
  }
}

/* ---- The list scheduler ---- */

/* Random targets, which may overtake freely: only memory and dependencies restrict the order. */
static void draw_targets(struct weft_list_scheduler *list, struct weft_random *random) {
  const struct weft_problem *problem = list->problem;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    for (unsigned kind = 0; kind < WEFT_ORDER_KINDS; kind++) {
      int64_t *row = weft_target_row(list, s, kind);
      for (uint32_t k = 0; k < problem->microbatch_count; k++) {
        row[k] = weft_random_below(random, 100);
      }
    }
  }
}

static void expect_list(struct weft_list_scheduler *list, struct weft_random *random,
                        struct weft_order *order, bool must_end) {
  const struct weft_target_rule rule = {
      .lead = must_end ? INT64_MAX : (int64_t)weft_random_below(random, 30),
      .fill = weft_random_below(random, 5) / 4.0};
  const int64_t value = weft_list_scheduler_run(list, &rule, WEFT_NEVER, order);
  if (value == WEFT_NEVER) {
    assert_false(must_end);
    return;
  }
  expect_within_memory(list->problem, order, list->clock->done);
  assert_true(weft_order_evaluate(list->problem, list->clock, order, WEFT_NEVER) <= value);
  assert_true(weft_list_scheduler_run(list, &rule, value, order) == value);
  assert_true(weft_list_scheduler_run(list, &rule, value - 1, order) == WEFT_NEVER);
}

static void lists_come_to_an_end_within_the_memory(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    struct weft_random random = {.state = seed};
    const struct weft_shape shape = draw_shape(&random);
    struct planning planning;
    planning_init(&planning, &random, &shape, weft_random_below(&random, 4) == 0);
    draw_limit(&planning, &random);
    struct planning_room room;
    struct weft_list_scheduler list;
    planning_room_init(&room, &planning.problem);
    WEFT_SCOPED_ARENA arena = {0};
    assert_int_equal(weft_list_scheduler_init(&list, &planning.problem, &room.clock, &arena, NULL),
                     WEFT_OK);
    for (int k = 0; k < 4; k++) {
      draw_targets(&list, &random);
      expect_list(&list, &random, &room.order, k % 2 == 0);
    }
    planning_room_finish(&room);
    planning_finish(&planning);
  }
}

/* ---- As good as published ---- */

/* Constructors alone; test_long_plan_v.c has the whole search. */
static double constructed_bubble(const struct v_row *row, double limit) {
  struct v_case planned;
  struct weft_incumbent incumbent;
  v_case_init(&planned, row, limit);
  assert_int_equal(
      weft_incumbent_init(&incumbent, &planned.problem, weft_chain_bound(&planned.problem), NULL),
      WEFT_OK);
  assert_int_equal(weft_construct_v_blocks(&incumbent, NULL), WEFT_OK);
  const double bubble = v_case_bubble(&planned, incumbent.value);
  weft_incumbent_finish(&incumbent);
  v_case_finish(&planned);
  return bubble;
}

static void blocks_make_v_min_and_v_half(void **state) {
  (void)state;
  assert_true(constructed_bubble(&v_half_row, v_half_row.limit) < 0.18);
  assert_true(constructed_bubble(&v_min_row, v_min_row.limit) < 0.25);
}

/* Here half a microbatch more of memory always helps, and is never worse. */
static void more_memory_is_not_worse(void **state) {
  (void)state;
  double last = 1;
  for (int limit = 2; limit <= 16; limit += 2) {
    const double bubble = constructed_bubble(&v_half_row, limit);
    assert_true(bubble < last);
    last = bubble;
  }
}

/* ---- Large pipelines ---- */

struct heavy_head {
  struct weft_costs *costs;
  struct weft_problem problem;
  double bound;
};

/* Equal stages, two on each rank, the last of which takes `factor` times as long. */
static void heavy_head_init_shape(struct heavy_head *head, struct weft_shape shape, double factor,
                                  double limit) {
  struct weft_search_request request = weft_search_request_default();
  assert_int_equal(weft_costs_create(NULL, 2 * shape.ranks, &head->costs, NULL), WEFT_OK);
  for (uint32_t s = 0; s < 2 * shape.ranks; s++) {
    const double scale = s + 1 == 2 * shape.ranks ? factor : 1;
    head->costs->stages[s] = (struct weft_stage_costs){.f = 4 * scale,
                                                       .i = 4.2 * scale,
                                                       .w = 3.5 * scale,
                                                       .b = 7.7 * scale,
                                                       .activation = 1,
                                                       .activation_after_i = 0.6};
  }
  head->costs->hop.latency = 0.2;
  request.ranks = shape.ranks;
  request.stages_per_rank = shape.stages_per_rank;
  request.microbatches = shape.microbatches;
  request.costs = head->costs;
  request.memory_limit = limit;
  request.placement = shape.placement;
  assert_int_equal(weft_problem_init(&head->problem, NULL, &request, NULL, NULL), WEFT_OK);
  head->bound = (double)weft_chain_bound(&head->problem);
}

/* A loop of 32 ranks. */
static void heavy_head_init(struct heavy_head *head, uint32_t microbatches, double limit) {
  heavy_head_init_shape(
      head, (struct weft_shape){.ranks = 32, .stages_per_rank = 2, .microbatches = microbatches},
      1.6, limit);
}

static void heavy_head_finish(struct heavy_head *head) {
  weft_problem_finish(&head->problem);
  weft_costs_destroy(head->costs);
}

/* A microbatch that awaits its backward at the last stage of a V, which is on the first rank, holds
 * memory at the first stage too: without that the bound is 1209.5. */
static void bounds_count_all_stages_of_a_microbatch(void **state) {
  (void)state;
  struct heavy_head head;
  heavy_head_init_shape(
      &head,
      (struct weft_shape){
          .ranks = 16, .stages_per_rank = 2, .microbatches = 32, .placement = WEFT_PLACEMENT_V},
      2, 10.88);
  assert_true(head.bound / head.problem.ticks_per_unit > 1230);
  heavy_head_finish(&head);
}

static bool stop_at_once(void *context) {
  (void)context;
  return true;
}

/* A run of the list scheduler may take longer than the time that is left. */
static void a_list_ends_when_the_search_does(void **state) {
  (void)state;
  struct heavy_head head;
  heavy_head_init(&head, 128, 64);
  const struct weft_search_request request = {.stop = stop_at_once};
  struct weft_search_control control;
  const struct weft_target_rule rule = {.lead = INT64_MAX};
  struct weft_list_scheduler list;
  struct weft_incumbent incumbent;
  assert_int_equal(
      weft_incumbent_init(&incumbent, &head.problem, weft_chain_bound(&head.problem), NULL),
      WEFT_OK);
  WEFT_SCOPED_ARENA arena = {0};
  assert_int_equal(weft_list_scheduler_init(&list, &head.problem, &incumbent.clock, &arena, NULL),
                   WEFT_OK);
  const int64_t value = weft_list_scheduler_run(&list, &rule, WEFT_NEVER, &incumbent.draft);
  assert_true(value < WEFT_NEVER);
  weft_search_control_start(&control, &request);
  control.reported = 0; /* so that it asks at once */
  head.problem.control = &control;
  assert_true(weft_list_scheduler_run(&list, &rule, WEFT_NEVER, &incumbent.draft) == WEFT_NEVER);
  list.runs_to_end = true;
  assert_true(weft_list_scheduler_run(&list, &rule, WEFT_NEVER, &incumbent.draft) == value);
  weft_incumbent_finish(&incumbent);
  heavy_head_finish(&head);
}

/* 64 microbatches in three quarters of the memory of 1F1B. Greedy orders are 20 % above the bound. */
static void periodic_orders_are_near_the_bound(void **state) {
  (void)state;
  struct heavy_head head;
  heavy_head_init(&head, 64, 48);
  assert_true((double)construct(&head.problem, weft_construct_chain_greedy) > 1.15 * head.bound);
  assert_true((double)construct(&head.problem, construct_periodic) < 1.03 * head.bound);
  heavy_head_finish(&head);
}

/* 32 microbatches in half of the memory. Greedy and periodic orders are 26 % above the bound. */
static void scaled_orders_are_near_the_bound(void **state) {
  (void)state;
  struct heavy_head head;
  heavy_head_init(&head, 32, 32);
  assert_true((double)construct(&head.problem, weft_construct_chain_greedy) > 1.2 * head.bound);
  assert_true((double)construct(&head.problem, construct_periodic) > 1.2 * head.bound);
  assert_true((double)construct(&head.problem, construct_scaled) < 1.1 * head.bound);
  heavy_head_finish(&head);
}

/* Any number of ranks, costs and limits; also those that the small pipelines cannot have. */
static void scaled_orders_stay_within_the_memory(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 40; seed++) {
    struct weft_random random = {.state = seed};
    const struct weft_shape shape = planning_draw_shape(
        &random, (struct weft_shape){.ranks = 7, .stages_per_rank = 1, .microbatches = 1},
        (struct weft_shape){.ranks = 12, .stages_per_rank = 3, .microbatches = 9});
    struct planning planning;
    planning_init(&planning, &random, &shape, weft_random_below(&random, 4) == 0);
    let_some_grow(&planning, &random);
    draw_limit(&planning, &random);
    (void)construct(&planning.problem, construct_scaled);
    planning_finish(&planning);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(whatever_fits_has_an_order),
      cmocka_unit_test(lists_come_to_an_end_within_the_memory),
      cmocka_unit_test(bounds_count_all_stages_of_a_microbatch),
      cmocka_unit_test(a_list_ends_when_the_search_does),
      cmocka_unit_test(periodic_orders_are_near_the_bound),
      cmocka_unit_test(scaled_orders_are_near_the_bound),
      cmocka_unit_test(scaled_orders_stay_within_the_memory),
      cmocka_unit_test(blocks_make_v_min_and_v_half),
      cmocka_unit_test(more_memory_is_not_worse),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
