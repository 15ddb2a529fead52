/* Layouts and partitions: small models, against all possible partitions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>
#include <weft/weft.h>

#include "plan/layout/layout.h"
#include "plan/layout/partition.h"
#include "support_seeds.h"

enum { PARTS_MAX = 11, STAGES_MAX = 8 };
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { ROUNDS = 30, SEARCHES = 4, BOUNDS = 6 };
#else
enum { ROUNDS = 150, SEARCHES = 20, BOUNDS = 30 }; /* 90 in `make test-long` */
#endif

struct model {
  struct weft_costs *costs;
  struct weft_search_request request;
  struct weft_shape shape;
};

static double work_of(const struct weft_part_costs *part) { return part->f + part->i + part->w; }

static void model_init(struct model *model, uint32_t parts, const struct weft_shape *shape) {
  assert_int_equal(weft_costs_create(NULL, 1, &model->costs, NULL), WEFT_OK);
  assert_int_equal(weft_costs_add_parts(model->costs, parts, NULL), WEFT_OK);
  for (uint32_t k = 0; k < parts; k++) {
    model->costs->parts[k].f = model->costs->parts[k].i = model->costs->parts[k].w = 1;
  }
  model->shape = *shape;
  model->request = weft_search_request_default();
  model->request.costs = model->costs;
  model->request.ranks = shape->ranks;
  model->request.microbatches = shape->microbatches;
}

static void model_draw(struct model *model, uint64_t seed, uint32_t v,
                       enum weft_placement_kind placement) {
  struct weft_random random = {.state = seed};
  struct weft_shape shape = {
      .ranks = 2 + weft_random_below(&random, v == 1 ? 4 : STAGES_MAX / v - 1),
      .stages_per_rank = v,
      .microbatches = 8,
      .placement = placement};
  const uint32_t stages = shape.ranks * v;
  model_init(model, stages + weft_random_below(&random, PARTS_MAX - stages + 1), &shape);
  for (uint32_t k = 0; k < model->costs->part_count; k++) {
    struct weft_part_costs *part = &model->costs->parts[k];
    part->f = 1 + weft_random_below(&random, 6);
    part->i = part->f;
    part->w = weft_random_below(&random, 5);
    part->activation = part->activation_after_i = 1 + weft_random_below(&random, 4);
    part->parameters = weft_random_below(&random, 3);
  }
}

static void model_finish(struct model *model) { weft_costs_destroy(model->costs); }

/* ---- Measures of a partition ---- */

static double heaviest(const struct model *model, const uint32_t *first) {
  double load[STAGES_MAX] = {0}, most = 0;
  for (uint32_t s = 0; s < model->shape.ranks * model->shape.stages_per_rank; s++) {
    const uint32_t rank = weft_shape_rank_of(&model->shape, s);
    for (uint32_t k = first[s]; k < first[s + 1]; k++) {
      load[rank] += work_of(&model->costs->parts[k]);
    }
    most = fmax(most, load[rank]);
  }
  return most;
}

/* With one microbatch in flight. */
static double largest(const struct model *model, const uint32_t *first) {
  double memory[STAGES_MAX] = {0}, most = 0;
  for (uint32_t s = 0; s < model->shape.ranks * model->shape.stages_per_rank; s++) {
    const uint32_t rank = weft_shape_rank_of(&model->shape, s);
    for (uint32_t k = first[s]; k < first[s + 1]; k++) {
      memory[rank] += model->costs->parts[k].activation + model->costs->parts[k].parameters;
    }
    most = fmax(most, memory[rank]);
  }
  return most;
}

static void expect_partition(const struct model *model, const uint32_t *first) {
  const uint32_t stages = model->shape.ranks * model->shape.stages_per_rank;
  assert_int_equal(first[0], 0);
  assert_int_equal(first[stages], model->costs->part_count);
  for (uint32_t s = 0; s < stages; s++) {
    assert_true(first[s] < first[s + 1]);
  }
}

/* The minimum of a measure over all partitions, from stage s on. */
typedef double measure(const struct model *model, const uint32_t *first);

static double least(const struct model *model, measure *of, uint32_t *first, uint32_t s) {
  const uint32_t stages = model->shape.ranks * model->shape.stages_per_rank;
  const uint32_t parts = model->costs->part_count;
  double best = INFINITY;
  if (s == stages) {
    first[s] = parts;
    return of(model, first);
  }
  const uint32_t from = s == 0 ? 0 : first[s - 1] + 1, to = s == 0 ? 0 : parts - (stages - s);
  for (first[s] = from; first[s] <= to; first[s]++) {
    const uint32_t begin = first[s];
    best = fmin(best, least(model, of, first, s + 1));
    first[s] = begin;
  }
  return best;
}

static void make(const struct model *model, enum weft_partition_kind kind, uint32_t *first) {
  assert_int_equal(
      weft_partition_make(NULL, &model->request, &model->shape, kind, NULL, first, NULL), WEFT_OK);
  expect_partition(model, first);
}

/* ---- Tests ---- */

static void one_stage_a_rank_is_cut_as_well_as_can_be(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    struct model model;
    uint32_t first[STAGES_MAX + 1], other[STAGES_MAX + 1];
    model_draw(&model, seed, 1, WEFT_PLACEMENT_LOOP);
    const double best = least(&model, heaviest, other, 0);
    for (unsigned kind = 0; kind <= WEFT_PARTITION_LIGHT_FIRST; kind++) {
      make(&model, (enum weft_partition_kind)kind, first);
      assert_true(heaviest(&model, first) <= best * (1 + 1e-9));
    }
    model_finish(&model);
  }
}

/* It is a heuristic: nearly always optimal, and never much heavier. */
static void several_stages_a_rank_are_cut_nearly_as_well(void **state) {
  unsigned equal = 0, all = 0;
  double worst = 1;
  (void)state;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    struct model model;
    uint32_t first[STAGES_MAX + 1], other[STAGES_MAX + 1];
    model_draw(&model, seed, 2, seed % 2 == 0 ? WEFT_PLACEMENT_V : WEFT_PLACEMENT_LOOP);
    const double best = least(&model, heaviest, other, 0);
    make(&model, WEFT_PARTITION_EVEN, first);
    equal += heaviest(&model, first) <= best * (1 + 1e-9);
    all++;
    worst = fmax(worst, heaviest(&model, first) / best);
    model_finish(&model);
  }
  printf("%u of %u as light as can be; worst %g\n", equal, all, worst);
  assert_true(equal * 10 >= all * 9 && worst <= 1.25);
}

static void memory_comes_before_time(void **state) {
  unsigned fitting = 0;
  (void)state;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    struct model model;
    uint32_t first[STAGES_MAX + 1], other[STAGES_MAX + 1];
    model_draw(&model, seed, 1 + seed % 2, WEFT_PLACEMENT_LOOP);
    model.request.memory_limit = least(&model, largest, other, 0);
    make(&model, WEFT_PARTITION_SINGLE, first);
    fitting += largest(&model, first) <= model.request.memory_limit;
    model_finish(&model);
  }
  printf("%u of %d fit into the least memory\n", fitting, ROUNDS);
  assert_true(fitting * 10 >= ROUNDS * 8);
}

static bool stop_at_once(void *context) {
  (void)context;
  return true;
}

/* Out of time, a partition is what it starts from: moving parts of a large model takes seconds. */
static void a_cancelled_search_moves_no_parts(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    struct model model;
    struct weft_search_control control;
    uint32_t first[STAGES_MAX + 1], even[STAGES_MAX + 1];
    model_draw(&model, seed, 1, WEFT_PLACEMENT_LOOP);
    model.request.memory_limit = 1;
    make(&model, WEFT_PARTITION_EVEN, even);
    model.request.stop = stop_at_once;
    weft_search_control_start(&control, &model.request);
    weft_search_control_report(&control, 1, 1, 0, 0);
    assert_int_equal(weft_partition_make(NULL, &model.request, &model.shape, WEFT_PARTITION_FULL,
                                         &control, first, NULL),
                     WEFT_OK);
    assert_memory_equal(first, even,
                        (model.shape.ranks * model.shape.stages_per_rank + 1) * sizeof *first);
    model_finish(&model);
  }
}

static void costs_of_stages_are_sums_over_parts(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < SEARCHES; seed++) {
    struct model model;
    struct weft_costs *costs;
    uint32_t first[STAGES_MAX + 1];
    double f = 0, activation = 0, f_parts = 0, activation_parts = 0;
    model_draw(&model, seed, 1, WEFT_PLACEMENT_LOOP);
    make(&model, WEFT_PARTITION_EVEN, first);
    assert_int_equal(weft_partition_costs(NULL, &model.request, &model.shape, first, &costs, NULL),
                     WEFT_OK);
    for (uint32_t s = 0; s < costs->stage_count; s++) {
      f += costs->stages[s].f;
      activation += costs->stages[s].activation;
      assert_true(costs->stages[s].b == costs->stages[s].i + costs->stages[s].w);
      assert_true(costs->stages[s].gradients == 0);
    }
    for (uint32_t k = 0; k < model.costs->part_count; k++) {
      f_parts += model.costs->parts[k].f;
      activation_parts += model.costs->parts[k].activation;
    }
    assert_true(f == f_parts);
    assert_true(activation == activation_parts);
    assert_int_equal(weft_costs_check(costs, costs->stage_count, NULL), WEFT_OK);
    weft_costs_destroy(costs);
    model_finish(&model);
  }
}

/* Four equal parts on two ranks; an entry is of all stages of a rank, or of a stage if v is given. */
static void what_parts_do_not_say_is_shared_out(void **state) {
  static const uint32_t first[] = {0, 1, 4};
  const struct weft_shape shape = {.ranks = 2, .stages_per_rank = 1, .microbatches = 4};
  struct model model;
  struct weft_costs *costs;
  (void)state;
  model_init(&model, 4, &shape);
  model.costs->stages[0].activation = 6;
  model.costs->stages[0].b = 1.5; /* three quarters of i + w */
  assert_int_equal(weft_partition_costs(NULL, &model.request, &shape, first, &costs, NULL),
                   WEFT_OK);
  assert_true(costs->stages[0].activation == 3 && costs->stages[1].activation == 9);
  assert_true(costs->stages[0].b == 1.5 && costs->stages[1].b == 4.5);
  assert_true(costs->stages[0].activation_after_i == 0.5);
  weft_costs_destroy(costs);
  model.costs->parts[1].activation = 5; /* the others specify none */
  assert_int_equal(weft_partition_costs(NULL, &model.request, &shape, first, &costs, NULL),
                   WEFT_OK);
  assert_true(costs->stages[0].activation == 0 && costs->stages[1].activation == 5);
  assert_true(costs->stages[1].activation_after_i == 5);
  weft_costs_destroy(costs);
  model_finish(&model);
}

static void layouts_are_all_different(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < SEARCHES; seed++) {
    struct model model;
    struct weft_plan_layouts layouts;
    model_draw(&model, seed, 1, WEFT_PLACEMENT_LOOP);
    model.request.memory_limit = 20;
    assert_int_equal(
        weft_plan_layouts_init(&layouts, NULL, &model.request, model.request.effort, NULL, NULL),
        WEFT_OK);
    assert_true(layouts.count >= 1 && layouts.count <= WEFT_PLAN_LAYOUTS_MAX);
    for (uint32_t n = 0; n < layouts.count; n++) {
      const struct weft_plan_layout *one = &layouts.list[n];
      uint32_t parts = 0;
      for (uint32_t s = 0; s < one->costs->stage_count; s++) {
        parts += one->stage_parts[s];
      }
      assert_int_equal(parts, model.costs->part_count);
      for (uint32_t k = 0; k < n; k++) {
        const struct weft_plan_layout *other = &layouts.list[k];
        assert_true(one->shape.stages_per_rank != other->shape.stages_per_rank ||
                    one->shape.placement != other->shape.placement ||
                    memcmp(one->stage_parts, other->stage_parts,
                           one->costs->stage_count * sizeof(uint32_t)) != 0);
      }
    }
    weft_plan_layouts_finish(&layouts);
    model_finish(&model);
  }
}

static void stages_need_a_part_each(void **state) {
  const struct weft_shape shape = {.ranks = 3, .stages_per_rank = 1, .microbatches = 4};
  struct model model;
  struct weft_plan_layouts layouts;
  struct weft_error error;
  (void)state;
  model_init(&model, 5, &shape);
  assert_int_equal(
      weft_plan_layouts_init(&layouts, NULL, &model.request, model.request.effort, NULL, &error),
      WEFT_OK);
  for (uint32_t n = 0; n < layouts.count; n++) {
    assert_int_equal(layouts.list[n].shape.stages_per_rank, 1);
  }
  weft_plan_layouts_finish(&layouts);
  model.request.stages_per_rank = 2;
  assert_int_equal(
      weft_plan_layouts_init(&layouts, NULL, &model.request, model.request.effort, NULL, &error),
      WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "5 parts"));
  model.request.stages_per_rank = 0;
  model.request.ranks = 6;
  assert_int_equal(
      weft_plan_layouts_init(&layouts, NULL, &model.request, model.request.effort, NULL, &error),
      WEFT_ERR_USAGE);
  model.request.ranks = UINT32_MAX;
  assert_int_equal(
      weft_plan_layouts_init(&layouts, NULL, &model.request, model.request.effort, NULL, &error),
      WEFT_ERR_LIMIT);
  model_finish(&model);
}

/* What the best partition takes, by a short search of each. */
static double taken(const struct model *model, const uint32_t *first) {
  struct weft_search_request request = model->request;
  struct weft_search_answer *answer;
  struct weft_costs *costs;
  double value = INFINITY;
  assert_int_equal(weft_partition_costs(NULL, &request, &model->shape, first, &costs, NULL), 0);
  costs->hop = model->costs->hop;
  costs->all_reduce = model->costs->all_reduce;
  request.costs = costs;
  request.stages_per_rank = model->shape.stages_per_rank;
  request.any_placement = false;
  request.placement = model->shape.placement;
  request.rank_factors = NULL; /* the costs include them */
  request.effort = 0.0005;
  request.threads = 1;
  if (weft_search(NULL, &request, &answer, NULL) == WEFT_OK) {
    value = (answer->objective == WEFT_OBJECTIVE_SPAN ? answer->span : answer->makespan) +
            answer->all_reduce;
    weft_search_answer_destroy(answer);
  }
  weft_costs_destroy(costs);
  return value;
}

/* No partition beats the bound for all of them, which says when none fits. */
static void a_bound_holds_for_all_partitions(void **state) {
  double worst = 1, sum = 0;
  unsigned count = 0;
  (void)state;
  const uint32_t cases = test_seeds(BOUNDS);
  for (uint64_t seed = 0; seed < cases; seed++) {
    struct weft_random random = {.state = 5000 + seed};
    struct model model;
    double factors[STAGES_MAX], bound = 0;
    uint32_t first[STAGES_MAX + 1];
    const uint32_t v = 1 + (uint32_t)(seed % 2);
    model_draw(&model, seed, v, seed % 4 == 1 ? WEFT_PLACEMENT_V : WEFT_PLACEMENT_LOOP);
    while (v == 1 && model.shape.ranks > 3) {
      model.shape.ranks--;
    }
    model.request.ranks = model.shape.ranks;
    model.shape.microbatches = model.request.microbatches = 2 + weft_random_below(&random, 3);
    for (uint32_t r = 0; r < STAGES_MAX; r++) {
      factors[r] = 1 + 0.5 * weft_random_below(&random, 3);
    }
    model.request.rank_factors = seed % 3 == 0 ? factors : NULL;
    model.request.replicas = 1 + weft_random_below(&random, 3);
    model.request.whole_backward = seed % 5 == 0;
    model.request.objective = seed % 7 == 0 ? WEFT_OBJECTIVE_SPAN : WEFT_OBJECTIVE_MAKESPAN;
    model.costs->stages[0].b = seed % 4 == 0 ? 1.5 : 2;
    model.costs->all_reduce = (struct weft_all_reduce_costs){0.5, 2};
    model.costs->hop.latency = weft_random_below(&random, 2);
    model.request.memory_limit =
        seed % 6 < 2 ? INFINITY : 8.0 + weft_random_below(&random, 40 / model.shape.ranks);
    assert_int_equal(weft_partition_bound(NULL, &model.request, &model.shape, &bound, NULL),
                     WEFT_OK);
    const double best = least(&model, taken, first, 0);
    if (bound > best || (v == 1 && isfinite(best) != isfinite(bound))) {
      fail_msg("seed %u: the bound is %.9g, and a partition takes %.9g", (unsigned)seed, bound,
               best);
    }
    if (isfinite(best)) {
      worst = fmax(worst, best / bound);
      sum += best / bound - 1;
      count++;
    }
    model_finish(&model);
  }
  printf("%u cases, mean gap %.1f %%, worst %.1f %%\n", count, 100 * sum / count,
         100 * (worst - 1));
}

/* The first of six parts is as heavy as the others together. */
static void a_plan_cuts_the_model(void **state) {
  const struct weft_shape shape = {.ranks = 2, .stages_per_rank = 1, .microbatches = 8};
  struct model model;
  struct weft_search_answer *answer;
  (void)state;
  model_init(&model, 6, &shape);
  model.costs->parts[0].f = model.costs->parts[0].i = model.costs->parts[0].w = 5;
  model.request.stages_per_rank = 1;
  model.request.effort = 0.01;
  assert_int_equal(weft_search(NULL, &model.request, &answer, NULL), WEFT_OK);
  assert_int_equal(answer->stage_parts[0], 1);
  assert_int_equal(answer->stage_parts[1], 5);
  assert_true(answer->costs->stages[0].f == 5 && answer->costs->stages[1].f == 5);
  weft_search_answer_destroy(answer);
  model.request.keep_partition = true; /* all stages have the costs of the one entry */
  assert_int_equal(weft_search(NULL, &model.request, &answer, NULL), WEFT_OK);
  assert_null(answer->stage_parts);
  assert_true(answer->costs->stages[0].f == 1 && answer->costs->stages[1].f == 1);
  weft_search_answer_destroy(answer);
  model_finish(&model);
}

/* The second of three equal ranks takes twice as long: it gets half as many parts. */
static void a_slow_rank_has_fewer_parts(void **state) {
  static const double factors[] = {1, 2, 1}, wrong[] = {1, 0, 1};
  const struct weft_shape shape = {.ranks = 3, .stages_per_rank = 1, .microbatches = 8};
  struct model model;
  struct weft_search_answer *answer;
  struct weft_error error;
  (void)state;
  model_init(&model, 10, &shape);
  model.request.stages_per_rank = 1;
  model.request.effort = 0.01;
  model.request.rank_factors = factors;
  assert_int_equal(weft_search(NULL, &model.request, &answer, NULL), WEFT_OK);
  assert_int_equal(answer->stage_parts[0], 4);
  assert_int_equal(answer->stage_parts[1], 2);
  assert_int_equal(answer->stage_parts[2], 4);
  assert_true(answer->costs->stages[1].f == 4 && answer->costs->stages[2].f == 4);
  weft_search_answer_destroy(answer);
  model.request.rank_factors = wrong;
  assert_int_equal(weft_search(NULL, &model.request, &answer, &error), WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "rank 1"));
  model_finish(&model);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_stage_a_rank_is_cut_as_well_as_can_be),
      cmocka_unit_test(several_stages_a_rank_are_cut_nearly_as_well),
      cmocka_unit_test(memory_comes_before_time),
      cmocka_unit_test(a_cancelled_search_moves_no_parts),
      cmocka_unit_test(costs_of_stages_are_sums_over_parts),
      cmocka_unit_test(what_parts_do_not_say_is_shared_out),
      cmocka_unit_test(layouts_are_all_different),
      cmocka_unit_test(stages_need_a_part_each),
      cmocka_unit_test(a_bound_holds_for_all_partitions),
      cmocka_unit_test(a_plan_cuts_the_model),
      cmocka_unit_test(a_slow_rank_has_fewer_parts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
