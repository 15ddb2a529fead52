/* The planner against an exhaustive search, over everything that the costs can express: whole and
 * split backwards mixed, parameters and gradients, actions that take no time, hops with latency and
 * bandwidth, loop and V, one to three stages per rank, ranks of different speeds, and memory down to
 * less than the least. No
 * bound exceeds the optimum, "optimal" is never wrong, and what is refused does not fit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_exhaustive.h"
#include "support_planning.h"
#include "support_seeds.h"

#if defined(__SANITIZE_THREAD__)
enum { CASES = 10 };
#elif defined(__SANITIZE_ADDRESS__)
enum { CASES = 60 };
#else
enum { CASES = 200 }; /* 600 in `make test-long` */
#endif
enum { MOST = 60000 };

/* ---- Cases ---- */

static struct weft_shape draw_shape(struct weft_random *random) {
  static const struct weft_shape shapes[] = {
      {.ranks = 1, .stages_per_rank = 1, .microbatches = 4},
      {.ranks = 2, .stages_per_rank = 1, .microbatches = 3},
      {.ranks = 2, .stages_per_rank = 1, .microbatches = 4},
      {.ranks = 3, .stages_per_rank = 1, .microbatches = 2},
      {.ranks = 3, .stages_per_rank = 1, .microbatches = 3},
      {.ranks = 2, .stages_per_rank = 2, .microbatches = 1},
      {.ranks = 2, .stages_per_rank = 2, .microbatches = 2},
      {.ranks = 2, .stages_per_rank = 2, .microbatches = 2, .placement = WEFT_PLACEMENT_V},
      {.ranks = 2, .stages_per_rank = 2, .microbatches = 3, .placement = WEFT_PLACEMENT_V},
      {.ranks = 1, .stages_per_rank = 3, .microbatches = 3},
      {.ranks = 2, .stages_per_rank = 3, .microbatches = 2},
  };
  return shapes[weft_random_below(random, WEFT_ARRAY_LENGTH(shapes))];
}

static double size(struct weft_random *random, uint32_t to) {
  return (double)weft_random_below(random, to + 1);
}

/* Sizes are whole numbers. */
static void draw_stage(struct weft_stage_costs *stage, struct weft_random *random, uint32_t kind) {
  const double whole = stage->i + stage->w;
  stage->b = kind % 3 == 0 ? whole : 0.25 * floor(4 * whole * (0.55 + size(random, 45) / 100));
  stage->activation = 1 + size(random, 3);
  stage->activation_after_i =
      kind % 5 == 0 ? size(random, 5) : size(random, 2) / 2 * stage->activation;
  stage->parameters = kind % 2 == 0 ? size(random, 4) : 0;
  stage->gradients = kind % 4 < 3 ? size(random, 6) : 0;
  stage->gradients_sharded = kind % 7 == 0 ? size(random, 2) : 0;
}

static void draw_costs(struct weft_costs *costs, struct weft_random *random) {
  const uint32_t kind = weft_random_below(random, 60), without_time = weft_random_below(random, 8);
  for (uint32_t s = 0; s < costs->stage_count; s++) {
    struct weft_stage_costs *stage = &costs->stages[s];
    if (without_time == 0 && s == 0) { /* as PyTorch: the first stage needs no input gradient */
      stage->i = 0;
    } else if (without_time == 1) {
      *(double *[]){&stage->f, &stage->i, &stage->w}[weft_random_below(random, 3)] = 0;
    } else if (without_time == 2) {
      stage->w = 0;
    }
    draw_stage(stage, random, kind);
  }
}

/* From less than the least memory to more than can be used. */
static double draw_limit(const struct planning *planning, struct weft_random *random) {
  const double least = planning_least(planning);
  switch (weft_random_below(random, 6)) {
    case 0: return INFINITY;
    case 1: return fmax(0.5, least - 0.5);
    case 2: return least;
    default: return least + 1 + size(random, 4 * planning->shape.microbatches);
  }
}

/* Every third case has ranks of different speeds. Returns whether this one has. */
static bool draw_factors(double *factors, uint64_t seed) {
  static const double choices[] = {1, 1, 0.5, 1.25, 2};
  struct weft_random random = {.state = 70000 + seed};
  bool unequal = false;
  for (uint32_t r = 0; r < EXHAUSTIVE_STAGES; r++) {
    factors[r] = choices[weft_random_below(&random, WEFT_ARRAY_LENGTH(choices))];
    unequal = unequal || factors[r] != 1;
  }
  return seed % 3 == 0 && unequal;
}

/* ---- One case ---- */

/* The optimum, by costs that include the factors. */
static int64_t best_of(struct planning *planning, double limit) {
  const double *factors = planning->request.rank_factors;
  struct weft_stage_costs as_given[EXHAUSTIVE_STAGES];
  const size_t size = planning->costs->stage_count * sizeof *as_given;
  memcpy(as_given, planning->costs->stages, size);
  for (uint32_t s = 0; factors != NULL && s < planning->costs->stage_count; s++) {
    const double factor = factors[weft_shape_rank_of(&planning->shape, s)];
    struct weft_stage_costs *stage = &planning->costs->stages[s];
    stage->f *= factor;
    stage->i *= factor;
    stage->w *= factor;
    stage->b *= factor;
  }
  planning_limit(planning, limit);
  memcpy(planning->costs->stages, as_given, size);
  return exhaustive_best(&planning->problem, planning->request.objective, MOST);
}

struct tally {
  uint32_t cases, solved, refused, optimal, mixed, unequal;
  double worst;
};

static void expect_refused(const struct weft_search_request *request, uint64_t seed) {
  struct weft_search_answer *answer = NULL;
  struct weft_error error;
  const enum weft_status status = weft_search(NULL, request, &answer, &error);
  if (status != WEFT_ERR_INVALID) {
    fail_msg("seed %u: nothing fits into %g, and the search returns %d", (unsigned)seed,
             request->memory_limit, (int)status);
  }
}

static void expect_sound(const struct planning *planning, double best, uint64_t seed,
                         struct tally *tally) {
  struct weft_search_answer *answer = NULL;
  struct weft_error error;
  if (weft_search(NULL, &planning->request, &answer, &error) != WEFT_OK) {
    fail_msg("seed %u: %g is possible: %s", (unsigned)seed, best, error.message);
  }
  const double value = answer->objective == WEFT_OBJECTIVE_SPAN ? answer->span : answer->makespan;
  if (answer->bound > best || value < best || (answer->optimal && value != best)) {
    fail_msg("seed %u: %.9g, bound %.9g%s; the optimum is %.9g", (unsigned)seed, value,
             answer->bound, answer->optimal ? ", optimal" : "", best);
  }
  tally->solved += value == best;
  tally->optimal += answer->optimal;
  tally->worst = fmax(tally->worst, value / best - 1);
  if (value != best) {
    print_message("seed %u: %.9g, bound %.9g; the optimum is %.9g\n", (unsigned)seed, value,
                  answer->bound, best);
  }
  weft_search_answer_destroy(answer);
}

/* False when the exhaustive search is too large. */
static bool try_case(uint64_t seed, struct tally *tally) {
  struct weft_random random = {.state = 90000 + seed};
  const struct weft_shape shape = draw_shape(&random);
  struct planning planning;
  planning_init(&planning, &random, &shape, weft_random_below(&random, 8) == 0);
  draw_costs(planning.costs, &random);
  planning.request.objective =
      weft_random_below(&random, 2) == 0 ? WEFT_OBJECTIVE_SPAN : WEFT_OBJECTIVE_MAKESPAN;
  planning.request.effort = 0.02;
  planning.request.threads = 1;
  double factors[EXHAUSTIVE_STAGES];
  planning.request.rank_factors = draw_factors(factors, seed) ? factors : NULL;
  const int64_t best = best_of(&planning, draw_limit(&planning, &random));
  if (best == EXHAUSTIVE_NONE) {
    expect_refused(&planning.request, seed);
    tally->refused++;
  } else if (best >= 0) {
    expect_sound(&planning, (double)best / planning.problem.ticks_per_unit, seed, tally);
  }
  tally->cases += best != EXHAUSTIVE_TOO_LARGE;
  tally->mixed += best >= 0 && weft_problem_mixes(&planning.problem);
  tally->unequal += best >= 0 && planning.request.rank_factors != NULL;
  planning_finish(&planning);
  return best != EXHAUSTIVE_TOO_LARGE;
}

static void certificates_are_true(void **state) {
  (void)state;
  const uint32_t cases = test_seeds(CASES);
  const char *first = getenv("WEFT_SEED");
  struct tally tally = {0};
  for (uint64_t seed = first != NULL ? strtoull(first, NULL, 10) : 0; tally.cases < cases; seed++) {
    (void)try_case(seed, &tally);
  }
  print_message(
      "%u cases, %u with mixed backwards, %u with ranks of different speeds, %u refused; "
      "%u solved, %u proven optimal; worst %.2f %% above the optimum\n",
      tally.cases, tally.mixed, tally.unequal, tally.refused, tally.solved, tally.optimal,
      100 * tally.worst);
  assert_true(tally.refused > 0 || cases < 50);
  assert_true(tally.solved >= 0.99 * (tally.cases - tally.refused));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(certificates_are_true)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
