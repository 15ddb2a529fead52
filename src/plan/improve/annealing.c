/* What an improver needs, and annealing over orders: single letters move, mostly those
 * on the path that decides the value. */
#include "plan/improve/annealing.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include <weft/support.h>

#include "base/memory.h"

enum { CRITICAL_ROOM = 4096 };

/* Letters of a problem that annealing can still do something for; a tableau takes two
 * hundred bytes for each. */
enum { TABLEAU_MAX = 1 << 22 };

enum weft_status weft_improver_init(struct weft_improver *improver,
                                    const struct weft_problem *problem, uint64_t seed,
                                    struct weft_watch *watch, int64_t bound,
                                    struct weft_error *error) {
  *improver = (struct weft_improver){
      .random = {.state = seed}, .critical_room = CRITICAL_ROOM, .watch = watch};
  improver->pool.problem = problem;
  improver->pool.evaluation.problem = problem;
  improver->lister.problem = problem;
  improver->tableau.problem = problem;
  improver->policies = weft_array_allocate_zero(problem->allocator, 3 * (size_t)problem->rank_count,
                                                sizeof *improver->policies);
  improver->critical =
      weft_array_allocate(problem->allocator, CRITICAL_ROOM, sizeof *improver->critical);
  enum weft_status status = improver->policies == NULL || improver->critical == NULL
                                ? weft_fail_memory(error, CRITICAL_ROOM)
                                : weft_pool_init_bound(&improver->pool, problem, bound, error);
  if (status == WEFT_OK) {
    status = weft_lister_init(&improver->lister, problem, error);
  }
  if (status != WEFT_OK) {
    weft_improver_finish(improver);
  }
  return status;
}

/* A tableau notices that ranks wait for each other by times that grow without end. */
static bool takes_time(const struct weft_problem *problem) {
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const int64_t *time = problem->stages[s].time;
    const bool back = problem->whole_backward ? time[WEFT_LETTER_B] > 0
                                              : time[WEFT_LETTER_I] > 0 && time[WEFT_LETTER_W] > 0;
    if (time[WEFT_LETTER_F] == 0 || !back) {
      return false;
    }
  }
  return true;
}

enum weft_status weft_improver_prepare(struct weft_improver *improver, struct weft_error *error) {
  const struct weft_problem *problem = improver->pool.problem;
  if (improver->has_tableau || (uint64_t)problem->rank_count * problem->word_size > TABLEAU_MAX ||
      !takes_time(problem)) {
    return WEFT_OK;
  }
  WEFT_TRY(weft_tableau_init(&improver->tableau, problem, error));
  improver->has_tableau = true;
  return WEFT_OK;
}

void weft_improver_finish(struct weft_improver *improver) {
  const struct weft_problem *problem = improver->pool.problem;
  if (improver->has_tableau) {
    weft_tableau_finish(&improver->tableau);
  }
  weft_lister_finish(&improver->lister);
  weft_array_free(problem->allocator, improver->policies, 3 * (size_t)problem->rank_count,
                  sizeof *improver->policies);
  weft_array_free(problem->allocator, improver->critical, CRITICAL_ROOM,
                  sizeof *improver->critical);
  weft_pool_finish(&improver->pool);
}

/* ---- Moves ---- */

static bool make_move(const struct weft_problem *problem, uint32_t rank, uint32_t n, uint32_t far,
                      uint32_t how, struct weft_move *move) {
  const uint32_t other = how & 1 ? n + far : n - far;
  if (other >= problem->word_size || other == 0 || n == 0) { /* the first letter is what it is */
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

static bool draw_move(struct weft_improver *improver, bool cold, struct weft_move *move) {
  const struct weft_problem *problem = improver->pool.problem;
  struct weft_random *random = &improver->random;
  uint32_t rank, n;
  if (cold || weft_random_below(random, 4) > 0) {
    const uint32_t place = improver->critical[weft_random_below(random, improver->critical_count)];
    rank = place / problem->word_size;
    n = place % problem->word_size;
  } else {
    rank = weft_random_below(random, problem->rank_count);
    n = weft_random_below(random, problem->word_size);
  }
  const uint32_t far = draw_distance(random);
  const uint32_t how = weft_random_below(random, 4) | (cold ? 2 : 0); /* the letter itself goes */
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

/* Nanoseconds of a usual core: for one letter of a tableau, and for drawing a move. */
enum { STEP_WORK = 15, MOVE_WORK = 200 };

static double cost_of(const struct weft_tableau *tableau, bool cold) {
  const double mean = (double)tableau->span_sum / tableau->problem->rank_count;
  return (double)tableau->value + (cold ? 0 : mean / VALUE_WEIGHT);
}

static void look_again(struct weft_improver *improver, bool refresh) {
  if (refresh) {
    weft_tableau_refresh(&improver->tableau);
  }
  improver->critical_count =
      weft_tableau_critical(&improver->tableau, improver->critical, improver->critical_room);
}

static void keep_best(struct weft_improver *improver) {
  struct weft_pool *pool = &improver->pool;
  const struct weft_tableau *tableau = &improver->tableau;
  if (tableau->value < pool->value ||
      (tableau->value == pool->value && tableau->span_sum < pool->span_sum)) {
    memcpy(pool->best.letters, tableau->order.letters,
           (size_t)pool->problem->rank_count * pool->problem->word_size);
    pool->value = tableau->value;
    pool->span_sum = tableau->span_sum;
    pool->name = NULL;
  }
}

/* What annealing has done and where it stands. */
struct anneal {
  uint64_t from;  /* steps of the tableau before */
  uint64_t moves; /* drawn */
  uint32_t kept;
  double cost;
  double heat, temperature; /* at the start, and now */
  bool cold;                /* without any: only the critical path, and what is no worse */
};

/* About nanoseconds. */
static uint64_t work_done(const struct weft_improver *improver, const struct anneal *anneal) {
  return (improver->tableau.steps - anneal->from) * STEP_WORK + anneal->moves * MOVE_WORK;
}

static void cool(struct weft_improver *improver, struct anneal *anneal, uint64_t work) {
  const double left = 1 - (double)work_done(improver, anneal) / (double)work;
  anneal->temperature = anneal->heat * (double)improver->pool.bound * left * left;
}

static void try_move(struct weft_improver *improver, struct anneal *anneal) {
  struct weft_tableau *tableau = &improver->tableau;
  struct weft_move move;
  anneal->moves++;
  if (!draw_move(improver, anneal->cold, &move)) {
    return;
  }
  const double allowance =
      -anneal->temperature * log(weft_random_share(&improver->random) + 1e-300);
  if (!weft_tableau_try(tableau, &move, tableau->value + (int64_t)allowance)) {
    return;
  }
  improver->pool.evaluated++;
  const double cost = cost_of(tableau, anneal->cold);
  if (cost > anneal->cost + allowance) {
    weft_tableau_undo(tableau, &move);
    return;
  }
  anneal->cost = cost;
  keep_best(improver);
  if (++anneal->kept % (anneal->cold ? 1 : CRITICAL_INTERVAL) == 0) {
    look_again(improver, anneal->kept % REFRESH_INTERVAL == 0);
  }
}

static uint64_t thread_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

void weft_improve_order(struct weft_improver *improver, uint64_t work, double heat) {
  struct weft_pool *pool = &improver->pool;
  struct weft_tableau *tableau = &improver->tableau;
  if (!improver->has_tableau || weft_improver_is_done(improver)) {
    return;
  }
  (void)weft_evaluate(&pool->evaluation, &pool->best, WEFT_NEVER);
  weft_tableau_set(tableau, &pool->best, &pool->evaluation);
  look_again(improver, false);
  const bool cold = heat == 0;
  const uint64_t begin = thread_ns();
  struct anneal anneal = {
      .from = tableau->steps, .cost = cost_of(tableau, cold), .heat = heat, .cold = cold};
  while (work_done(improver, &anneal) < work && !weft_improver_is_done(improver)) {
    cool(improver, &anneal, work);
    for (unsigned n = 0; n < 64; n++) {
      try_move(improver, &anneal);
    }
  }
  improver->work += work_done(improver, &anneal);
  improver->moves += anneal.moves;
  improver->move_ns += thread_ns() - begin;
}
