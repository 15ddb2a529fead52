/* What an improver needs, and annealing over orders: single letters move, mostly those
 * on the path that decides the value. */
#include "plan/improver.h"

#include <math.h>
#include <string.h>

#include "base/fail.h"
#include "base/memory.h"

enum { CRITICAL_ROOM = 4096 };

enum weft_status weft_improver_init(struct weft_improver *improver,
                                    const struct weft_problem *problem, uint64_t seed,
                                    struct weft_error *error) {
  *improver = (struct weft_improver){.random = {.state = seed}, .critical_room = CRITICAL_ROOM};
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
                                : weft_pool_init(&improver->pool, problem, error);
  if (status == WEFT_OK) {
    status = weft_lister_init(&improver->lister, problem, error);
  }
  if (status == WEFT_OK) {
    status = weft_tableau_init(&improver->tableau, problem, error);
  }
  if (status != WEFT_OK) {
    weft_improver_finish(improver);
  }
  return status;
}

void weft_improver_finish(struct weft_improver *improver) {
  const struct weft_problem *problem = improver->pool.problem;
  weft_tableau_finish(&improver->tableau);
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

static bool draw_move(struct weft_improver *improver, struct weft_move *move) {
  const struct weft_problem *problem = improver->pool.problem;
  struct weft_random *random = &improver->random;
  uint32_t rank, n;
  if (weft_random_below(random, 4) > 0) {
    const uint32_t place = improver->critical[weft_random_below(random, improver->critical_count)];
    rank = place / problem->word_size;
    n = place % problem->word_size;
  } else {
    rank = weft_random_below(random, problem->rank_count);
    n = weft_random_below(random, problem->word_size);
  }
  const uint32_t far = draw_distance(random);
  return make_move(problem, rank, n, far, weft_random_below(random, 4), move);
}

/* ---- Annealing ---- */

/* The value counts this many times as much as the mean span of the ranks, which shows the
 * way where the value is flat. */
enum { VALUE_WEIGHT = 64 };

#ifndef REFRESH_INTERVAL
#define REFRESH_INTERVAL 32
#endif

static double draw_share(struct weft_random *random) {
  return (double)(weft_random_next(random) >> 11) * 0x1p-53;
}

static double cost_of(const struct weft_tableau *tableau) {
  return (double)tableau->value +
         (double)tableau->span_sum / tableau->problem->rank_count / VALUE_WEIGHT;
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

void weft_improve_order(struct weft_improver *improver, uint64_t work, double heat) {
  struct weft_pool *pool = &improver->pool;
  struct weft_tableau *tableau = &improver->tableau;
  (void)weft_evaluate(&pool->evaluation, &pool->best, WEFT_NEVER);
  weft_tableau_set(tableau, &pool->best, &pool->evaluation);
  look_again(improver, false);
  double cost = cost_of(tableau);
  const uint64_t from = tableau->steps;
  uint32_t kept = 0;
  double temperature = 0;
  for (uint64_t n = 0; tableau->steps - from + n * 8 < work / 3 && !weft_pool_is_optimal(pool);
       n++) {
    if (n % 64 == 0) {
      const double left = 1 - 3 * (double)(tableau->steps - from + n * 8) / (double)work;
      temperature = heat * (double)pool->bound * left * left;
    }
    struct weft_move move;
    if (!draw_move(improver, &move)) {
      continue;
    }
    const double allowance = -temperature * log(draw_share(&improver->random) + 1e-300);
    const int64_t cutoff = tableau->value + (int64_t)allowance;
    if (!weft_tableau_try(tableau, &move, cutoff)) {
      continue;
    }
    pool->evaluated++;
    const double now = cost_of(tableau);
    if (now > cost + allowance) {
      weft_tableau_undo(tableau, &move);
      continue;
    }
    cost = now;
    keep_best(improver);
    if (++kept % 4 == 0) {
      look_again(improver, kept % REFRESH_INTERVAL == 0);
    }
  }
  improver->work += work;
}
