/* What an search needs, and annealing over orders: single ops move, mostly those
 * on the path that decides the value. */
#include "plan/improve/annealing.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include <weft/support.h>

#include "base/memory.h"

enum { CRITICAL_ROOM = 4096 };

/* Ops of a problem that annealing can still do something for; a evaluator takes two
 * hundred bytes for each. */
enum { EVALUATOR_OPS_MAX = 1 << 22 };

enum weft_status weft_local_search_init(struct weft_local_search *search,
                                        const struct weft_problem *problem, uint64_t seed,
                                        struct weft_search_control *control, int64_t bound,
                                        struct weft_error *error) {
  *search = (struct weft_local_search){
      .random = {.state = seed}, .critical_room = CRITICAL_ROOM, .control = control};
  search->incumbent.problem = problem;
  search->incumbent.evaluation.problem = problem;
  search->scheduler.problem = problem;
  search->evaluator.problem = problem;
  search->rules = weft_array_allocate_zero(problem->allocator, 3 * (size_t)problem->rank_count,
                                           sizeof *search->rules);
  search->critical =
      weft_array_allocate(problem->allocator, CRITICAL_ROOM, sizeof *search->critical);
  enum weft_status status =
      search->rules == NULL || search->critical == NULL
          ? weft_fail_memory(error, CRITICAL_ROOM)
          : weft_incumbent_init_bound(&search->incumbent, problem, bound, error);
  if (status == WEFT_OK) {
    status = weft_priority_scheduler_init(&search->scheduler, problem, error);
  }
  if (status != WEFT_OK) {
    weft_local_search_finish(search);
  }
  return status;
}

/* A evaluator notices that ranks wait for each other by times that grow without end. */
static bool takes_time(const struct weft_problem *problem) {
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const int64_t *time = problem->stages[s].time;
    const bool back = problem->whole_backward ? time[WEFT_KIND_B] > 0
                                              : time[WEFT_KIND_I] > 0 && time[WEFT_KIND_W] > 0;
    if (time[WEFT_KIND_F] == 0 || !back) {
      return false;
    }
  }
  return true;
}

enum weft_status weft_local_search_prepare(struct weft_local_search *search,
                                           struct weft_error *error) {
  const struct weft_problem *problem = search->incumbent.problem;
  if (search->has_evaluator ||
      (uint64_t)problem->rank_count * problem->length > EVALUATOR_OPS_MAX || !takes_time(problem)) {
    return WEFT_OK;
  }
  WEFT_TRY(weft_evaluator_init(&search->evaluator, problem, error));
  search->has_evaluator = true;
  return WEFT_OK;
}

void weft_local_search_finish(struct weft_local_search *search) {
  const struct weft_problem *problem = search->incumbent.problem;
  if (search->has_evaluator) {
    weft_evaluator_finish(&search->evaluator);
  }
  weft_priority_scheduler_finish(&search->scheduler);
  weft_array_free(problem->allocator, search->rules, 3 * (size_t)problem->rank_count,
                  sizeof *search->rules);
  weft_array_free(problem->allocator, search->critical, CRITICAL_ROOM, sizeof *search->critical);
  weft_incumbent_finish(&search->incumbent);
}

/* ---- Moves ---- */

static bool make_move(const struct weft_problem *problem, uint32_t rank, uint32_t n, uint32_t far,
                      uint32_t how, struct weft_move *move) {
  const uint32_t other = how & 1 ? n + far : n - far;
  if (other >= problem->length || other == 0 || n == 0) { /* the first op is what it is */
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
  const uint32_t far = draw_distance(random);
  const uint32_t how =
      weft_random_below(random, 4) | (hill_climbing ? 2 : 0); /* the op itself goes */
  return make_move(problem, rank, n, far, how, move);
}

/* ---- Annealing ---- */

/* The value counts this many times as much as the mean span of the ranks, which shows the
 * way where the value is flat. */
enum { VALUE_WEIGHT = 64 };

/* Moves kept between two looks at the critical path, and at tails, which cost more. */
#ifndef REFRESH_INTERVAL
enum { CRITICAL_INTERVAL = 4, REFRESH_INTERVAL = 64 };
#else
enum { CRITICAL_INTERVAL = 4 };
#endif

/* Nanoseconds of a usual core: for one op of a evaluator, and for drawing a move. */
enum { OP_WORK = 15, MOVE_WORK = 200 };

static double cost_of(const struct weft_evaluator *evaluator, bool hill_climbing) {
  const double mean = (double)evaluator->span_sum / evaluator->problem->rank_count;
  return (double)evaluator->value + (hill_climbing ? 0 : mean / VALUE_WEIGHT);
}

static void look_again(struct weft_local_search *search, bool refresh) {
  if (refresh) {
    weft_evaluator_refresh(&search->evaluator);
  }
  search->critical_count =
      weft_evaluator_critical(&search->evaluator, search->critical, search->critical_room);
}

static void keep_best(struct weft_local_search *search) {
  struct weft_incumbent *incumbent = &search->incumbent;
  const struct weft_evaluator *evaluator = &search->evaluator;
  if (evaluator->value < incumbent->value ||
      (evaluator->value == incumbent->value && evaluator->span_sum < incumbent->span_sum)) {
    memcpy(incumbent->best.ops, evaluator->order.ops,
           (size_t)incumbent->problem->rank_count * incumbent->problem->length);
    incumbent->value = evaluator->value;
    incumbent->span_sum = evaluator->span_sum;
    incumbent->name = NULL;
  }
}

/* What annealing has done and where it stands. */
struct anneal {
  uint64_t from;  /* steps of the evaluator before */
  uint64_t moves; /* drawn */
  uint32_t kept;
  double cost;
  double start_temperature, temperature; /* at the start, and now */
  bool hill_climbing; /* without any: only the critical path, and what is no worse */
};

/* About nanoseconds. */
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
  keep_best(search);
  if (++anneal->kept % (anneal->hill_climbing ? 1 : CRITICAL_INTERVAL) == 0) {
    look_again(search, anneal->kept % REFRESH_INTERVAL == 0);
  }
}

static uint64_t thread_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

void weft_anneal(struct weft_local_search *search, uint64_t work, double temperature) {
  struct weft_incumbent *incumbent = &search->incumbent;
  struct weft_evaluator *evaluator = &search->evaluator;
  if (!search->has_evaluator || weft_local_search_is_done(search)) {
    return;
  }
  (void)weft_evaluate(&incumbent->evaluation, &incumbent->best, WEFT_NEVER);
  weft_evaluator_set(evaluator, &incumbent->best, &incumbent->evaluation);
  look_again(search, false);
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
  search->moves += anneal.moves;
  search->move_ns += thread_ns() - begin;
}
