/* The search: against the optimum of small problems and against the named schedules; the same seed
 * gives the same table, a cancelled search returns the best so far, and a limit that is too small
 * is explained.
 * Also under ThreadSanitizer. */
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
#include "support_planning.h"
#include "support_seeds.h"

#if defined(__SANITIZE_THREAD__)
enum { SMALL_CASES = 5, NAMED_CASES = 10, NO_TIME_CASES = 5 };
#elif defined(__SANITIZE_ADDRESS__)
enum { SMALL_CASES = 40, NAMED_CASES = 60, NO_TIME_CASES = 20 };
#else
enum { SMALL_CASES = 260, NAMED_CASES = 250, NO_TIME_CASES = 40 }; /* 1000 in `make test-long` */
#endif
enum { MOST = 300000 };

/* ---- Small problems ---- */

static struct weft_shape draw_small(struct weft_random *random) {
  static const struct weft_shape shapes[] = {
      {.ranks = 2, .stages_per_rank = 1, .microbatches = 3},
      {.ranks = 2, .stages_per_rank = 1, .microbatches = 4},
      {.ranks = 3, .stages_per_rank = 1, .microbatches = 3},
      {.ranks = 2, .stages_per_rank = 2, .microbatches = 2, .placement = WEFT_PLACEMENT_V},
      {.ranks = 2, .stages_per_rank = 2, .microbatches = 2},
  };
  return shapes[weft_random_below(random, sizeof shapes / sizeof shapes[0])];
}

/* A limit between what one microbatch needs and what all need. */
static void draw_limit(struct planning *planning, struct weft_random *random) {
  const double least = planning_least(planning);
  const uint32_t share = weft_random_below(random, 8);
  planning_limit(planning,
                 share == 7 ? INFINITY : least * (1 + share * planning->shape.microbatches / 7.0));
}

static struct weft_search_answer *search(const struct weft_search_request *request) {
  struct weft_search_answer *answer = NULL;
  struct weft_error error;
  if (weft_search(NULL, request, &answer, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return answer;
}

/* The simulator computes the times of the answer, within the limit. */
static void expect_simulated(const struct weft_search_answer *answer, double limit) {
  struct weft_simulation *simulation = NULL;
  assert_int_equal(weft_simulate(NULL, answer->table, answer->costs, NULL, &simulation, NULL),
                   WEFT_OK);
  assert_true(simulation->makespan == answer->makespan);
  assert_true(simulation->span == answer->span);
  for (uint32_t r = 0; r < answer->table->rank_count; r++) {
    assert_true(simulation->ranks[r].peak_memory <= limit * (1 + 1e-8));
  }
  weft_simulation_destroy(simulation);
}

static void small_problems_are_solved(void **state) {
  (void)state;
  uint32_t solved = 0;
  for (uint64_t seed = 0; solved < SMALL_CASES; seed++) {
    struct weft_random random = {.state = 7000 + seed};
    const struct weft_shape shape = draw_small(&random);
    struct planning planning;
    planning_init(&planning, &random, &shape, weft_random_below(&random, 5) == 0);
    planning.request.objective =
        weft_random_below(&random, 2) == 0 ? WEFT_OBJECTIVE_SPAN : WEFT_OBJECTIVE_MAKESPAN;
    draw_limit(&planning, &random);
    const int64_t best = exhaustive_best(&planning.problem, planning.request.objective, MOST);
    if (best >= 0) {
      planning.request.effort = 0.01;
      planning.request.threads = 1;
      struct weft_search_answer *answer = search(&planning.request);
      const double value =
          answer->objective == WEFT_OBJECTIVE_SPAN ? answer->span : answer->makespan;
      if (value != (double)best / planning.problem.ticks_per_unit) {
        fail_msg("seed %u: %.9g found, %.9g is best", (unsigned)seed, value,
                 (double)best / planning.problem.ticks_per_unit);
      }
      assert_true(answer->bound <= value);
      assert_true(!answer->optimal || answer->bound == value);
      expect_simulated(answer, planning.request.memory_limit);
      weft_search_answer_destroy(answer);
      solved++;
    }
    planning_finish(&planning);
  }
}

/* ---- Named schedules ---- */

/* The makespan of a table; INFINITY if it does not fit into the memory. */
static double makespan_of(const struct weft_program *table, const struct planning *planning) {
  struct weft_simulation *simulation = NULL;
  assert_int_equal(weft_simulate(NULL, table, planning->costs, NULL, &simulation, NULL), WEFT_OK);
  double makespan = simulation->makespan;
  for (uint32_t r = 0; r < table->rank_count; r++) {
    if (simulation->ranks[r].peak_memory > planning->request.memory_limit * (1 + 1e-9)) {
      makespan = INFINITY;
    }
  }
  weft_simulation_destroy(simulation);
  return makespan;
}

static double best_named(const struct planning *planning) {
  double best = INFINITY;
  for (size_t n = 0; n < weft_schedule_count(); n++) {
    const struct weft_schedule_info *info = weft_schedule_at(n);
    struct weft_program *table = NULL;
    if (info->trains && !info->fixed &&
        (planning->shape.stages_per_rank == 1 || info->placement == planning->shape.placement) &&
        weft_generate(NULL, info->name, &planning->shape, &table, NULL) == WEFT_OK) {
      best = fmin(best, makespan_of(table, planning));
    }
    weft_program_destroy(table);
  }
  return best;
}

static void no_named_schedule_is_better(void **state) {
  (void)state;
  const uint32_t cases = test_seeds(NAMED_CASES);
  for (uint64_t seed = 0; seed < cases; seed++) {
    struct weft_random random = {.state = seed};
    struct weft_shape shape = {.ranks = 2 + weft_random_below(&random, 5),
                               .stages_per_rank = 1 + weft_random_below(&random, 2)};
    shape.microbatches = shape.ranks * (1 + weft_random_below(&random, 3));
    if (shape.stages_per_rank == 2 && weft_random_below(&random, 2) == 0) {
      shape.placement = WEFT_PLACEMENT_V;
      shape.microbatches *= 2;
    }
    struct planning planning;
    planning_init(&planning, &random, &shape, false);
    draw_limit(&planning, &random);
    planning.request.effort = 0.0005;
    planning.request.threads = 1;
    struct weft_search_answer *answer = search(&planning.request);
    const double named = best_named(&planning);
    if (answer->makespan > named) {
      fail_msg("seed %u: %.9g found, %.9g has a name", (unsigned)seed, answer->makespan, named);
    }
    weft_search_answer_destroy(answer);
    planning_finish(&planning);
  }
}

/* ---- Actions that take no time ---- */

static void expect_verified(const struct weft_program *table) {
  struct weft_program *program = NULL;
  struct weft_report *report = NULL;
  assert_int_equal(weft_lower(NULL, table, NULL, &program, NULL), WEFT_OK);
  assert_int_equal(weft_verify(NULL, program, NULL, &report, NULL), WEFT_OK);
  assert_true(report->ok);
  weft_report_destroy(report);
  weft_program_destroy(program);
}

/* A deadlock of actions that take no time is a deadlock too. */
static void plans_with_actions_of_no_time_can_run(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < NO_TIME_CASES; seed++) {
    struct weft_random random = {.state = 500 + seed};
    const struct weft_shape shape = {.ranks = 2 + weft_random_below(&random, 3),
                                     .stages_per_rank = 1 + weft_random_below(&random, 4),
                                     .microbatches = 2 + weft_random_below(&random, 5)};
    struct planning planning;
    planning_init(&planning, &random, &shape, weft_random_below(&random, 2) == 0);
    for (uint32_t s = 0; s < planning.costs->stage_count; s++) {
      struct weft_stage_costs *stage = &planning.costs->stages[s];
      double *const times[] = {&stage->f, &stage->i, &stage->w, &stage->b};
      *times[weft_random_below(&random, 4)] = 0;
      *times[weft_random_below(&random, 4)] = 0;
    }
    planning.request.any_placement = true;
    planning.request.effort = 0.002;
    planning.request.threads = 1;
    struct weft_search_answer *answer = search(&planning.request);
    expect_simulated(answer, INFINITY);
    expect_verified(answer->table);
    weft_search_answer_destroy(answer);
    planning_finish(&planning);
  }
}

/* Periods of no length, scaled orders of no work. */
static void plans_of_transfers_alone_can_run(void **state) {
  (void)state;
  for (uint32_t v = 1; v <= 4; v++) {
    struct weft_costs *costs = NULL;
    assert_int_equal(weft_costs_create(NULL, 1, &costs, NULL), WEFT_OK);
    costs->stages[0].f = costs->stages[0].i = costs->stages[0].w = costs->stages[0].b = 0;
    costs->hop.latency = 0.125;
    for (uint32_t split = 0; split < 2; split++) {
      struct weft_search_request request = weft_search_request_default();
      request.ranks = 5;
      request.microbatches = 4;
      request.stages_per_rank = v;
      request.any_placement = true;
      request.whole_backward = split == 0;
      request.costs = costs;
      request.effort = 0.01;
      request.threads = 1;
      struct weft_search_answer *answer = search(&request);
      expect_simulated(answer, INFINITY);
      expect_verified(answer->table);
      weft_search_answer_destroy(answer);
    }
    weft_costs_destroy(costs);
  }
}

/* ---- Seeds, cancellation, limits ---- */

static void draw_unequal(struct planning *planning, uint64_t seed) {
  struct weft_random random = {.state = seed};
  const struct weft_shape shape = {.ranks = 6, .stages_per_rank = 1, .microbatches = 18};
  planning_init(planning, &random, &shape, false);
  planning_limit(planning, 9);
  planning->request.effort = 0.02;
}

static void the_same_seed_gives_the_same_table(void **state) {
  (void)state;
  struct planning planning;
  draw_unequal(&planning, 2);
  for (uint32_t threads = 1; threads <= 3; threads += 2) {
    planning.request.threads = threads;
    struct weft_search_answer *one = search(&planning.request), *two = search(&planning.request);
    assert_true(weft_program_equal(one->table, two->table));
    assert_true(one->evaluated == two->evaluated);
    assert_false(one->stopped);
    weft_search_answer_destroy(one);
    weft_search_answer_destroy(two);
  }
  planning_finish(&planning);
}

struct stopper {
  unsigned asked, reported;
  double best;
};

static bool stop_soon(void *context) {
  struct stopper *stopper = context;
  return ++stopper->asked > 2;
}

static void remember(void *context, const struct weft_search_progress *progress) {
  struct stopper *stopper = context;
  stopper->reported++;
  assert_true(progress->bound <= progress->value);
  assert_true(progress->done >= 0 && progress->done <= 1.0000001);
  assert_true(progress->value <= stopper->best);
  stopper->best = progress->value;
}

static void a_search_that_is_stopped_has_the_best_so_far(void **state) {
  (void)state;
  struct planning planning;
  struct stopper stopper = {.best = INFINITY};
  draw_unequal(&planning, 3);
  planning.request.effort = 1000;
  planning.request.stop = stop_soon;
  planning.request.report = remember;
  planning.request.context = &stopper;
  struct weft_search_answer *answer = search(&planning.request);
  assert_true(answer->stopped || answer->optimal);
  assert_true(answer->makespan <= stopper.best);
  expect_simulated(answer, 9);
  weft_search_answer_destroy(answer);
  planning.request.stop = NULL;
  planning.request.time_limit = 0.05;
  stopper.best = INFINITY;
  answer = search(&planning.request);
  assert_true(answer->stopped || answer->optimal);
  weft_search_answer_destroy(answer);
  planning_finish(&planning);
}

/* Within 10 % and 50 ms, and never less than `least` seconds. A busy machine may stop a process for
 * longer than that, or run it faster than before, so one of some searches will do. */
enum { TRIES = 10 };

static bool is_in_time(const struct weft_search_request *request, double least) {
  const int64_t begin = weft_clock_ns();
  struct weft_search_answer *answer = search(request);
  const double seconds = (double)(weft_clock_ns() - begin) * 1e-9;
  assert_true(answer->stopped && !answer->optimal);
  assert_true(answer->least_seconds > 0 && answer->least_seconds <= seconds);
  weft_search_answer_destroy(answer);
  print_message("%.3f s with a limit of %.3f s\n", seconds, request->time_limit);
  return seconds >= least &&
         fabs(seconds - request->time_limit) <= 0.1 * request->time_limit + 0.05;
}

static void a_time_limit_is_kept_and_used_up(void **state) {
  (void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  skip(); /* a search takes several times as long to look at its clock */
#endif
  struct weft_costs *costs = NULL;
  struct weft_error error;
  assert_int_equal(weft_costs_create(NULL, 1, &costs, &error), WEFT_OK);
  costs->stages[0].w = 0.7;
  costs->hop.latency = 0.3;
  struct weft_search_request request = weft_search_request_default();
  request.ranks = 16, request.microbatches = 48, request.costs = costs;
  request.stages_per_rank = 4;
  request.memory_limit = 24;
  request.time_limit = 0.2;
  request.effort = 1000;
  request.threads = 2;
  bool in_time = false;
  for (uint32_t n = 0; n < TRIES && !in_time; n++) {
    /* The answer may take less than what was kept back for it. */
    in_time = is_in_time(&request, 0.9 * request.time_limit);
  }
  assert_true(in_time);
  weft_costs_destroy(costs);
}

/* The check of a plan with 1.1 million actions takes a quarter of the limit, however fast the machine
 * is. Half of 1F1B's memory is too little for all named schedules; without any time there is still
 * an order that is not one microbatch after the other, which would take hundreds of times as
 * long. */
static void a_time_limit_is_kept_with_many_actions(void **state) {
  (void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  skip();
#endif
  struct weft_costs *costs = NULL;
  assert_int_equal(weft_costs_create(NULL, 1, &costs, NULL), WEFT_OK);
  costs->stages[0].f = 4, costs->stages[0].i = 4.2, costs->stages[0].w = 3.5;
  costs->stages[0].b = 7.7, costs->stages[0].activation = 1;
  struct weft_search_request request = weft_search_request_default();
  request.ranks = 512, request.microbatches = 704, request.costs = costs;
  request.memory_limit = 256;
  request.effort = 1000;
  request.threads = 2;
  bool in_time = false;
  for (uint32_t n = 0; n < TRIES && !in_time; n++) {
    request.time_limit = 0.001;
    struct weft_search_answer *answer = search(&request);
    assert_true(answer->stopped && answer->least_seconds > request.time_limit);
    assert_true(answer->makespan < 1.5 * answer->bound);
    request.time_limit = 4 * answer->least_seconds;
    weft_search_answer_destroy(answer);
    in_time = is_in_time(&request, 0);
  }
  assert_true(in_time);
  weft_costs_destroy(costs);
}

static void limits_that_nothing_fits_into_are_explained(void **state) {
  (void)state;
  struct weft_costs *costs = NULL;
  struct weft_search_answer *answer = NULL;
  struct weft_error error;
  assert_int_equal(weft_costs_create(NULL, 1, &costs, NULL), WEFT_OK);
  struct weft_search_request request = weft_search_request_default();
  request.ranks = 4;
  request.microbatches = 8;
  request.stages_per_rank = 2;
  costs->of = WEFT_COSTS_OF_STAGE;
  request.costs = costs;
  request.memory_limit = 1.5;
  assert_int_equal(weft_search(NULL, &request, &answer, &error), WEFT_ERR_INVALID);
  assert_non_null(strstr(error.message, " 2 "));
  request.memory_limit = 2;
  request.effort = 0.01;
  answer = search(&request);
  expect_simulated(answer, 2);
  weft_search_answer_destroy(answer);
  weft_costs_destroy(costs);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(small_problems_are_solved),
      cmocka_unit_test(no_named_schedule_is_better),
      cmocka_unit_test(plans_with_actions_of_no_time_can_run),
      cmocka_unit_test(plans_of_transfers_alone_can_run),
      cmocka_unit_test(the_same_seed_gives_the_same_table),
      cmocka_unit_test(a_search_that_is_stopped_has_the_best_so_far),
      cmocka_unit_test(a_time_limit_is_kept_and_used_up),
      cmocka_unit_test(a_time_limit_is_kept_with_many_actions),
      cmocka_unit_test(limits_that_nothing_fits_into_are_explained),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
