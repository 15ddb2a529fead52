/* Simulated annealing over orders: single ops move within the sequence of their rank, mostly ops
 * on the critical path. */
#include "plan/improve/annealing.h"

#include <assert.h>
#include <math.h>
#include <time.h>

#include <weft/support.h>

enum { CRITICAL_MAX = 4096 };

/* Problems with more ops are not annealed; an evaluator takes two hundred bytes for each. */
enum { EVALUATOR_OPS_MAX = 1 << 22 };

enum weft_status weft_local_search_init(struct weft_local_search *search,
                                        const struct weft_problem *problem, uint64_t seed,
                                        struct weft_search_control *control, int64_t bound,
                                        struct weft_error *error) {
  assert(search != NULL && problem != NULL && control != NULL);
  *search = (struct weft_local_search){.random = {.state = seed}, .control = control};
  WEFT_TRY(weft_incumbent_init_bound(&search->incumbent, problem, bound, error));
  struct weft_arena *arena = &search->incumbent.evaluation.arena; /* they live as long */
  const enum weft_status status =
      WEFT_ALLOCATE(arena, search->rules, 2 * (size_t)problem->rank_count) &&
              WEFT_ALLOCATE(arena, search->critical, CRITICAL_MAX)
          ? weft_priority_scheduler_init(&search->scheduler, problem, error)
          : weft_fail_memory(error, CRITICAL_MAX);
  if (status != WEFT_OK) {
    weft_local_search_finish(search);
  }
  return status;
}

static bool has_ops_without_time(const struct weft_problem *problem) {
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const int64_t *time = problem->stages[s].time;
    const bool whole = problem->backward == WEFT_BACKWARD_WHOLE;
    if (time[WEFT_KIND_F] == 0 || time[whole ? WEFT_KIND_B : WEFT_KIND_I] == 0 ||
        (!whole && time[WEFT_KIND_W] == 0)) {
      return true;
    }
  }
  return problem->backward == WEFT_BACKWARD_MIXED; /* NO_W */
}

enum weft_status weft_local_search_prepare(struct weft_local_search *search,
                                           struct weft_error *error) {
  assert(search->control != NULL);
  const struct weft_problem *problem = search->incumbent.problem;
  if (search->has_evaluator || weft_problem_op_count(problem) > EVALUATOR_OPS_MAX) {
    return WEFT_OK;
  }
  WEFT_TRY(weft_evaluator_init(&search->evaluator, problem, error));
  search->may_miss_deadlocks = has_ops_without_time(problem);
  search->has_evaluator = true;
  return WEFT_OK;
}

void weft_local_search_finish(struct weft_local_search *search) {
  weft_evaluator_finish(&search->evaluator);
  weft_priority_scheduler_finish(&search->scheduler);
  weft_incumbent_finish(&search->incumbent);
}

/* ---- Moves ---- */

static bool make_move(const struct weft_problem *problem, uint32_t rank, uint32_t n, uint32_t far,
                      uint32_t how, struct weft_move *move) {
  const uint32_t other = how & 1 ? n + far : n - far;
  if (other >= problem->length || other == 0 || n == 0) { /* the first op never moves */
    return false;
  }
  *move = how & 2 ? (struct weft_move){.rank = rank, .from = n, .to = other}
                  : (struct weft_move){.rank = rank, .from = other, .to = n};
  return true;
}

static uint32_t draw_distance(struct weft_random *random) {
  static const uint32_t limits[] = {1, 1, 4, 4, 12, WEFT_MOVE_MAX - 1};
  return 1 + weft_random_below(random, limits[weft_random_below(random, 6)]);
}

/* One of this many moves splits or joins a backward, where both are allowed. */
enum { FLIP_INTERVAL = 4 };

static bool draw_move(struct weft_local_search *search, bool hill_climbing,
                      struct weft_move *move) {
  const struct weft_problem *problem = search->incumbent.problem;
  struct weft_random *random = &search->random;
  uint32_t rank, n;
  if (hill_climbing || weft_random_below(random, 4) > 0) {
    const uint32_t position = search->critical[weft_random_below(random, search->critical_count)];
    rank = position / problem->length;
    n = position % problem->length;
  } else {
    rank = weft_random_below(random, problem->rank_count);
    n = weft_random_below(random, problem->length);
  }
  if (problem->backward == WEFT_BACKWARD_MIXED && weft_random_below(random, FLIP_INTERVAL) == 0) {
    *move = (struct weft_move){.rank = rank, .from = n, .to = n};
    return n > 0;
  }
  const uint32_t far = draw_distance(random);
  const uint32_t how =
      weft_random_below(random, 4) | (hill_climbing ? 2 : 0); /* the critical op itself moves */
  return make_move(problem, rank, n, far, how, move);
}

/* ---- Annealing ---- */

/* Weight of the objective relative to the ranks' mean span, which guides the search on plateaus
 * of the objective. */
enum { VALUE_WEIGHT = 64 };

/* Accepted moves between two updates of the critical path, and of the tails, which cost more. */
enum { CRITICAL_INTERVAL = 4, REFRESH_INTERVAL = 64 };

/* Nanoseconds of a typical core: to compute one op, and to draw a move. */
enum { OP_WORK = 15, MOVE_WORK = 200 };

static double cost_of(const struct weft_evaluator *evaluator, bool hill_climbing) {
  const double mean = (double)evaluator->span_sum / evaluator->problem->rank_count;
  return (double)evaluator->value + (hill_climbing ? 0 : mean / (double)VALUE_WEIGHT);
}

static void update_critical(struct weft_local_search *search) {
  search->critical_count =
      weft_evaluator_critical(&search->evaluator, search->critical, CRITICAL_MAX);
}

static void set_order(struct weft_local_search *search) {
  struct weft_incumbent *incumbent = &search->incumbent;
  (void)weft_evaluate(&incumbent->evaluation, &incumbent->best, WEFT_NEVER);
  weft_evaluator_set(&search->evaluator, &incumbent->best, &incumbent->evaluation);
  update_critical(search);
}

/* False when the order turns out to deadlock. */
static bool keep_best(struct weft_local_search *search) {
  const struct weft_evaluator *evaluator = &search->evaluator;
  struct weft_incumbent *incumbent = &search->incumbent;
  if (!weft_incumbent_is_beaten(incumbent, evaluator->value, evaluator->span_sum)) {
    return true;
  }
  if (search->may_miss_deadlocks &&
      weft_evaluate(&incumbent->evaluation, &evaluator->order, WEFT_NEVER) == WEFT_NEVER) {
    return false;
  }
  weft_incumbent_replace(incumbent, &evaluator->order, evaluator->value, evaluator->span_sum, NULL);
  return true;
}

/* The state of one call. */
struct anneal {
  uint64_t from;  /* evaluator->computed at the start */
  uint64_t moves; /* drawn */
  uint32_t kept;  /* accepted */
  double cost;
  double start_temperature, temperature; /* shares of the bound; ticks */
  bool hill_climbing;                    /* at temperature 0 */
};

static uint64_t work_done(const struct weft_local_search *search, const struct anneal *anneal) {
  return (search->evaluator.computed - anneal->from) * OP_WORK + anneal->moves * MOVE_WORK;
}

static void cool(struct weft_local_search *search, struct anneal *anneal, uint64_t work) {
  const double left = 1 - (double)work_done(search, anneal) / (double)work;
  anneal->temperature = anneal->start_temperature * (double)search->incumbent.bound * left * left;
}

static void try_move(struct weft_local_search *search, struct anneal *anneal) {
  struct weft_evaluator *evaluator = &search->evaluator;
  struct weft_move move;
  anneal->moves++;
  if (!draw_move(search, anneal->hill_climbing, &move)) {
    return;
  }
  const double allowance = -anneal->temperature * log(weft_random_share(&search->random) + 1e-300);
  if (!weft_evaluator_try(evaluator, &move, evaluator->value + (int64_t)allowance)) {
    return;
  }
  search->incumbent.evaluated++;
  const double cost = cost_of(evaluator, anneal->hill_climbing);
  if (cost > anneal->cost + allowance) {
    weft_evaluator_undo(evaluator, &move);
    return;
  }
  anneal->cost = cost;
  const bool refresh = ++anneal->kept % REFRESH_INTERVAL == 0;
  if (!keep_best(search) || (refresh && !weft_evaluator_refresh(evaluator))) {
    set_order(search); /* the last moves led to a deadlock */
    anneal->cost = cost_of(evaluator, anneal->hill_climbing);
  } else if (anneal->kept % (anneal->hill_climbing ? 1 : CRITICAL_INTERVAL) == 0) {
    update_critical(search);
  }
}

static uint64_t thread_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

void weft_anneal(struct weft_local_search *search, uint64_t work, double temperature) {
  assert(temperature >= 0 && search->incumbent.value != WEFT_NEVER);
  struct weft_incumbent *incumbent = &search->incumbent;
  struct weft_evaluator *evaluator = &search->evaluator;
  if (!search->has_evaluator || weft_local_search_is_done(search)) {
    return;
  }
  set_order(search);
  const bool hill_climbing = temperature == 0;
  const uint64_t begin = thread_ns();
  struct anneal anneal = {.from = evaluator->computed,
                          .cost = cost_of(evaluator, hill_climbing),
                          .start_temperature = temperature,
                          .hill_climbing = hill_climbing};
  while (work_done(search, &anneal) < work && !weft_local_search_is_done(search)) {
    cool(search, &anneal, work);
    for (unsigned n = 0; n < 64; n++) {
      try_move(search, &anneal);
    }
  }
  search->work += work_done(search, &anneal);
  incumbent->moves += anneal.moves;
  incumbent->move_ns += thread_ns() - begin;
}
