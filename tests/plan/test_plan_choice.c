/* The choice of ranks and replicas against all possibilities: on small models every candidate, every
 * partition and every order. And what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>
#include <weft/weft.h>

#include "plan/layout/layout.h"
#include "plan/layout/partition.h"
#include "support_exhaustive.h"
#include "support_seeds.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { CASES = 15 };
#else
enum { CASES = 40 }; /* 120 in `make test-long` */
#endif
enum { PARTS_MAX = 6, RANKS_MAX = 4, MOST = 30000 };

struct model {
  struct weft_costs *costs;
  struct weft_choice_request request;
  double factors[RANKS_MAX];
};

static void model_init(struct model *model, uint32_t parts, uint32_t ranks, uint64_t batch) {
  *model = (struct model){.request = {.search = weft_search_request_default()}};
  assert_int_equal(weft_costs_create(NULL, 1, &model->costs, NULL), WEFT_OK);
  assert_int_equal(weft_costs_add_parts(model->costs, parts, NULL), WEFT_OK);
  for (uint32_t k = 0; k < parts; k++) {
    model->costs->parts[k] = (struct weft_part_costs){.f = 1,
                                                      .i = 1,
                                                      .w = 1,
                                                      .activation = 1,
                                                      .activation_after_i = 1,
                                                      .parameters = 1,
                                                      .gradients = 1};
  }
  model->request.search.ranks = ranks;
  model->request.search.costs = model->costs;
  model->request.search.effort = 0.05;
  model->request.search.threads = 1;
  model->request.global_batch = batch;
}

static void model_draw(struct model *model, uint64_t seed) {
  struct weft_random random = {.state = 3000 + seed};
  const uint32_t ranks = 2 + weft_random_below(&random, 3);
  const uint32_t parts = ranks + weft_random_below(&random, PARTS_MAX - ranks + 1);
  const uint32_t size = 1 + weft_random_below(&random, 2);
  model_init(model, parts, ranks, (uint64_t)ranks * size * (ranks == 2 ? 2 : 1));
  model->costs->microbatch_size = size;
  for (uint32_t k = 0; k < parts; k++) {
    struct weft_part_costs *part = &model->costs->parts[k];
    part->f = 1 + weft_random_below(&random, 6);
    part->i = k > 0 ? 1 + weft_random_below(&random, 6) : 0;
    part->w = weft_random_below(&random, 5);
    part->activation = part->activation_after_i = 1 + weft_random_below(&random, 3);
    part->gradients = weft_random_below(&random, 4);
  }
  model->costs->stages[0].b = seed % 4 == 0 ? 1.5 : 2;
  model->costs->hop.latency = weft_random_below(&random, 2);
  model->costs->all_reduce =
      (struct weft_all_reduce_costs){.latency = 0.5, .size_per_unit = 1 << seed % 3};
  if (seed % 3 == 0) {
    for (uint32_t r = 0; r < ranks; r++) {
      model->factors[r] = 1 + 0.5 * weft_random_below(&random, 3);
    }
    model->request.search.rank_factors = model->factors;
  }
  if (seed % 2 == 0) {
    model->request.search.memory_limit = 8 + weft_random_below(&random, 12);
  }
  model->request.search.objective = seed % 5 == 0 ? WEFT_OBJECTIVE_SPAN : WEFT_OBJECTIVE_MAKESPAN;
}

static void model_finish(struct model *model) { weft_costs_destroy(model->costs); }

/* ---- The optimum ---- */

enum { TOO_LARGE = -2 };

/* Of one replica with these parts of each stage; INFINITY: it does not fit. */
static double best_order(const struct model *model, const struct weft_search_request *request,
                         const struct weft_shape *shape, const uint32_t *first) {
  struct weft_plan_layout layout = {.shape = *shape, .whole_backward = request->whole_backward};
  struct weft_problem problem;
  assert_int_equal(weft_partition_costs(NULL, request, shape, first, &layout.costs, NULL), WEFT_OK);
  layout.costs->hop = model->costs->hop;
  assert_int_equal(weft_plan_layout_problem(&problem, NULL, request, &layout, NULL), WEFT_OK);
  const int64_t best = exhaustive_best(&problem, request->objective, MOST);
  const double value = best == EXHAUSTIVE_NONE        ? INFINITY
                       : best == EXHAUSTIVE_TOO_LARGE ? (double)TOO_LARGE
                                                      : (double)best / problem.ticks_per_unit;
  weft_problem_finish(&problem);
  weft_costs_destroy(layout.costs);
  return value;
}

/* 2 (d - 1) messages of 1/d of the largest gradients. */
static double all_reduce_of(const struct model *model, const struct weft_shape *shape, uint32_t d,
                            const uint32_t *first) {
  double sums[RANKS_MAX] = {0}, most = 0, all = 0;
  for (uint32_t k = 0; k < model->costs->part_count; k++) {
    all += model->costs->parts[k].gradients;
  }
  for (uint32_t s = 0; s < shape->ranks * shape->stages_per_rank; s++) {
    const uint32_t rank = weft_shape_rank_of(shape, s);
    for (uint32_t k = first[s]; k < first[s + 1]; k++) {
      const struct weft_part_costs *part = &model->costs->parts[k];
      sums[rank] += all > 0 ? part->gradients : part->parameters;
    }
    most = fmax(most, sums[rank]);
  }
  return 2 * (d - 1) *
         (model->costs->all_reduce.latency + most / d / model->costs->all_reduce.size_per_unit);
}

/* The slowest replica, at its best: no plan for all replicas takes less. */
static double best_of_partition(const struct model *model, const struct weft_shape *shape,
                                const uint32_t *first) {
  struct weft_search_request request = model->request.search;
  const uint32_t d = request.ranks / shape->ranks;
  double value = 0;
  request.ranks = shape->ranks;
  for (uint32_t k = 0; k < (request.rank_factors != NULL ? d : 1); k++) {
    if (request.rank_factors != NULL) {
      request.rank_factors = model->factors + (size_t)k * shape->ranks;
    }
    const double own = best_order(model, &request, shape, first);
    if (own < 0) {
      return own;
    }
    value = fmax(value, own);
  }
  return value + (d > 1 ? all_reduce_of(model, shape, d, first) : 0);
}

static double best_of_shape(const struct model *model, const struct weft_shape *shape,
                            uint32_t *first, uint32_t s) {
  const uint32_t stages = shape->ranks * shape->stages_per_rank;
  const uint32_t parts = model->costs->part_count;
  double best = INFINITY;
  if (s == stages) {
    first[s] = parts;
    return best_of_partition(model, shape, first);
  }
  const uint32_t from = s == 0 ? 0 : first[s - 1] + 1, to = s == 0 ? 0 : parts - (stages - s);
  for (uint32_t begin = from; begin <= to && best >= 0; begin++) {
    first[s] = begin;
    best = fmin(best, best_of_shape(model, shape, first, s + 1));
  }
  return best;
}

/* ---- One case ---- */

struct tally {
  uint32_t cases, refused, too_large, solved, optimal;
};

static bool is_shape_of(const struct weft_shape *shape,
                        const struct weft_choice_candidate *candidate) {
  return shape->ranks == candidate->ranks && shape->stages_per_rank == candidate->stages_per_rank &&
         shape->placement == candidate->placement;
}

/* The optimum of all candidates; each bound and value is checked. */
static double expect_candidates(const struct model *model, const struct weft_choice *choice,
                                uint64_t seed) {
  const uint32_t ranks = model->request.search.ranks, parts = model->costs->part_count;
  uint32_t first[PARTS_MAX + 1], seen = 0;
  double best = INFINITY;
  for (uint32_t p = 1; p <= ranks; p++) {
    for (uint32_t kind = 0; kind < (p > 1 ? 5 : 1) && ranks % p == 0; kind++) {
      const double batch = (double)model->request.global_batch;
      const struct weft_shape shape = {
          .ranks = p,
          .stages_per_rank = (const uint32_t[]){1, 2, 2, 4, 4}[kind],
          .microbatches = (uint32_t)(batch / model->costs->microbatch_size * p / ranks),
          .placement = kind % 2 == 0 && kind > 0 ? WEFT_PLACEMENT_V : WEFT_PLACEMENT_LOOP};
      if (p * shape.stages_per_rank > parts) {
        continue;
      }
      const double own = best_of_shape(model, &shape, first, 0);
      if (own < 0) {
        return own;
      }
      best = fmin(best, own);
      seen++;
      for (uint32_t n = 0; choice != NULL && n < choice->count; n++) {
        const struct weft_choice_candidate *candidate = &choice->candidates[n];
        if (is_shape_of(&shape, candidate) && (candidate->microbatches != shape.microbatches ||
                                               candidate->bound > own || candidate->value < own)) {
          fail_msg("seed %u: %u ranks, v %u: %.9g, bound %.9g; the optimum is %.9g", (unsigned)seed,
                   p, shape.stages_per_rank, candidate->value, candidate->bound, own);
        }
      }
    }
  }
  assert_true(choice == NULL || choice->count == seen);
  return best;
}

static void try_case(uint64_t seed, struct tally *tally) {
  struct model model;
  struct weft_choice *choice = NULL;
  struct weft_error error;
  model_draw(&model, seed);
  const enum weft_status status = weft_choose(NULL, &model.request, &choice, &error);
  const double best = expect_candidates(&model, choice, seed);
  tally->cases++;
  if (best < 0) {
    tally->too_large++;
  } else if (!isfinite(best)) {
    assert_int_equal(status, WEFT_ERR_INVALID);
    tally->refused++;
  } else {
    if (status != WEFT_OK) {
      fail_msg("seed %u: %s; %.9g is possible", (unsigned)seed, error.message, best);
    }
    const double value = choice->candidates[0].value;
    if (choice->bound > best || (choice->optimal && value > best * (1 + 1e-8))) {
      fail_msg("seed %u: %.9g, bound %.9g%s; the optimum is %.9g", (unsigned)seed, value,
               choice->bound, choice->optimal ? ", optimal" : "", best);
    }
    tally->solved += value <= best * (1 + 1e-9);
    tally->optimal += choice->optimal;
  }
  weft_choice_destroy(choice);
  model_finish(&model);
}

static void a_choice_is_the_best_of_everything(void **state) {
  struct tally tally = {0};
  (void)state;
  const uint32_t cases = test_seeds(CASES);
  for (uint64_t seed = 0; seed < cases; seed++) {
    try_case(seed, &tally);
  }
  print_message("%u choices, %u refused, %u too large; %u solved, %u proven optimal\n", tally.cases,
                tally.refused, tally.too_large, tally.solved, tally.optimal);
  const uint32_t known = tally.cases - tally.refused - tally.too_large;
  assert_true(known >= tally.cases / 2 && tally.solved >= 0.9 * known);
}

/* ---- Refusals ---- */

static void expect(const struct model *model, enum weft_status status, const char *message) {
  struct weft_choice *choice;
  struct weft_error error;
  assert_int_equal(weft_choose(NULL, &model->request, &choice, &error), status);
  if (strstr(error.message, message) == NULL || error.hint[0] == '\0') {
    fail_msg("'%s' (%s) does not contain '%s'", error.message, error.hint, message);
  }
}

static void what_cannot_be_divided_is_refused(void **state) {
  struct model model;
  (void)state;
  model_init(&model, 2, 3, 4); /* 3 x 1: two parts make no three stages; 1 x 3: 4 is no multiple */
  expect(&model, WEFT_ERR_USAGE, "a global batch of 4");
  model.request.global_batch = 0;
  expect(&model, WEFT_ERR_USAGE, "a global batch of 0");
  model.request.global_batch = 3;
  model.request.search.ranks = WEFT_RANKS_MAX + 1;
  expect(&model, WEFT_ERR_LIMIT, "65537 ranks");
  model.request.search.ranks = 3;
  model.request.search.rank_factors = model.factors; /* all 0 */
  expect(&model, WEFT_ERR_USAGE, "the factor of rank 0 is 0");
  model.request.search.rank_factors = NULL;
  model.costs->microbatch_size = 1.5;
  expect(&model, WEFT_ERR_USAGE, "microbatch_size is 1.5");
  model.costs->microbatch_size = 1;
  model.costs->part_count = 0;
  expect(&model, WEFT_ERR_USAGE, "no parts");
  model.costs->part_count = 2;
  model_finish(&model);
}

/* Six parts, each with 1 of parameters, gradients and activations: on four ranks two of them. */
static void the_least_memory_is_named_and_suffices(void **state) {
  struct model model;
  struct weft_choice *choice;
  (void)state;
  model_init(&model, 6, 4, 8);
  model.request.search.memory_limit = 5.9;
  expect(&model, WEFT_ERR_INVALID, "the least is 6: a pipeline of 4 ranks with 1 stage");
  model.request.search.memory_limit = 6;
  assert_int_equal(weft_choose(NULL, &model.request, &choice, NULL), WEFT_OK);
  assert_int_equal(choice->candidates[0].ranks, 4);
  assert_true(choice->candidates[0].answer->peak_memory == 6);
  assert_true(isinf(choice->candidates[choice->count - 1].bound)); /* a replica per rank */
  weft_choice_destroy(choice);
  model_finish(&model);
}

/* Twenty thousand layers on a thousand ranks: there is no time for most candidates. A slow or busy
 * machine may need some tries, and more time. */
static void the_time_limit_is_kept_for_many_layers(void **state) {
  enum { TRIES = 10, PARTS = 20000 };
  (void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  skip(); /* these take several times as long to make one order */
#endif
  struct model model;
  model_init(&model, PARTS, 1024, 4096);
  for (uint32_t k = 0; k < PARTS; k++) {
    model.costs->parts[k].f += 0.1 * (k % 7);
  }
  model.request.search.memory_limit = 8000;
  model.request.search.use_time = true;
  bool in_time = false;
  for (uint32_t n = 0; n < TRIES && !in_time; n++) {
    struct weft_choice *choice;
    const double limit = 1U << n / 3;
    model.request.search.time_limit = limit;
    const int64_t begin = weft_clock_ns();
    assert_int_equal(weft_choose(NULL, &model.request, &choice, NULL), WEFT_OK);
    const double seconds = (double)(weft_clock_ns() - begin) * 1e-9;
    print_message("%.3f s with a limit of %g s\n", seconds, limit);
    in_time = seconds <= 1.1 * limit + 0.05;
    assert_true(choice->stopped && !choice->optimal);
    assert_true(choice->candidates[0].answer->peak_memory <= 8000);
    weft_choice_destroy(choice);
  }
  assert_true(in_time);
  model_finish(&model);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_choice_is_the_best_of_everything),
      cmocka_unit_test(what_cannot_be_divided_is_refused),
      cmocka_unit_test(the_least_memory_is_named_and_suffices),
      cmocka_unit_test(the_time_limit_is_kept_for_many_layers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
