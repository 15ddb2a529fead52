/* Policies: a grid of them, then the neighbourhood of the best. One stage per rank. */
#include <math.h>
#include <string.h>

#include "plan/improver.h"

/* Nanoseconds of a usual core for one letter of a list. */
enum { LETTER_WORK = 30 };

static struct weft_policy *policies_at(struct weft_improver *improver, unsigned which) {
  return improver->policies + (size_t)which * improver->pool.problem->rank_count;
}

enum { BEST, CURRENT, TRIED };

static void copy(struct weft_improver *improver, unsigned to, unsigned from) {
  memcpy(policies_at(improver, to), policies_at(improver, from),
         improver->pool.problem->rank_count * sizeof(struct weft_policy));
}

/* ---- What can be ---- */

static const struct weft_problem_stage *stage_of(const struct weft_problem *problem,
                                                 uint32_t rank) {
  return &problem->stages[problem->stage_of[rank]];
}

static uint32_t most_in_flight(const struct weft_problem *problem, uint32_t rank) {
  const struct weft_problem_stage *stage = stage_of(problem, rank);
  const int64_t fit = stage->held > 0 ? problem->limit[rank] / stage->held : INT64_MAX;
  return fit < 1 ? 1 : fit < problem->microbatch_count ? (uint32_t)fit : problem->microbatch_count;
}

/* How long after its first forward a rank's first gradient can be there. */
static int64_t echo_of(const struct weft_problem *problem, uint32_t rank) {
  const unsigned back = problem->whole_backward ? WEFT_LETTER_B : WEFT_LETTER_I;
  int64_t echo = 0;
  for (uint32_t r = rank + 1; r < problem->rank_count; r++) {
    echo += stage_of(problem, r)->time[WEFT_LETTER_F] + stage_of(problem, r)->time[back];
  }
  return echo +
         2 * (int64_t)(problem->rank_count - 1 - rank) * (problem->latency + problem->occupancy);
}

static void clamp(const struct weft_problem *problem, struct weft_policy *policies) {
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const uint32_t most = most_in_flight(problem, r);
    policies[r].cap = policies[r].cap < 1 ? 1 : policies[r].cap > most ? most : policies[r].cap;
  }
}

/* ---- Trying ---- */

/* Lists what is in TRIED; its value, WEFT_NEVER above the cutoff. */
static int64_t list(struct weft_improver *improver, int64_t cutoff) {
  struct weft_pool *pool = &improver->pool;
  int64_t value;
  const size_t letters = (size_t)pool->problem->rank_count * pool->problem->word_size;
  improver->work += letters * LETTER_WORK;
  pool->evaluated++;
  if (!weft_list_order(&improver->lister, policies_at(improver, TRIED), cutoff, &pool->draft,
                       &value)) {
    return WEFT_NEVER;
  }
  if (value < pool->value) {
    memcpy(pool->best.letters, pool->draft.letters, letters);
    pool->value = value;
    pool->span_sum = WEFT_NEVER;
    pool->name = NULL;
    copy(improver, BEST, TRIED);
  }
  return value;
}

/* ---- The grid ---- */

enum { CAP_MEMORY, CAP_ECHO_LESS, CAP_ECHO, CAP_ECHO_MORE, CAP_CLASSIC, CAPS };

static uint32_t cap_of(const struct weft_problem *problem, uint32_t rank, unsigned how) {
  const uint32_t most = most_in_flight(problem, rank);
  const int64_t f = stage_of(problem, rank)->time[WEFT_LETTER_F];
  const int64_t echo = f > 0 ? 1 + (echo_of(problem, rank) + f - 1) / f : most;
  switch (how) {
    case CAP_MEMORY: return most;
    case CAP_CLASSIC: return problem->rank_count - rank;
    default: return (uint32_t)(echo < most ? echo : most) + how - CAP_ECHO;
  }
}

static void try_grid(struct weft_improver *improver, uint64_t work, uint32_t number,
                     uint32_t stride) {
  const uint64_t from = improver->work;
  const struct weft_problem *problem = improver->pool.problem;
  struct weft_policy *policies = policies_at(improver, TRIED);
  int64_t best = WEFT_NEVER;
  for (unsigned n = number; n < CAPS * 9 && !weft_improver_is_done(improver); n += stride) {
    if (n > number && improver->work - from >= work) {
      return;
    }
    for (uint32_t r = 0; r < problem->rank_count; r++) {
      const int64_t *time = stage_of(problem, r)->time;
      policies[r] = (struct weft_policy){.cap = cap_of(problem, r, n / 9),
                                         .w_overrun = time[WEFT_LETTER_W] * (n / 3 % 3) / 2,
                                         .f_delay = time[WEFT_LETTER_F] * (n % 3) / 2};
    }
    clamp(problem, policies);
    const int64_t value = list(improver, best);
    if (value < best) {
      best = value;
      copy(improver, CURRENT, TRIED);
    }
  }
}

/* ---- The neighbourhood ---- */

static double draw_share(struct weft_random *random) {
  return (double)(weft_random_next(random) >> 11) * 0x1p-53;
}

static void change_one(struct weft_improver *improver, struct weft_policy *policies) {
  const struct weft_problem *problem = improver->pool.problem;
  struct weft_random *random = &improver->random;
  const uint32_t r = weft_random_below(random, problem->rank_count);
  const int64_t *time = stage_of(problem, r)->time;
  switch (weft_random_below(random, 5)) {
    case 0: policies[r].cap++; break;
    case 1: policies[r].cap--; break;
    case 2:
      policies[r].w_overrun = (int64_t)((double)time[WEFT_LETTER_W] * draw_share(random));
      break;
    case 3:
      policies[r].f_delay = (int64_t)((double)time[WEFT_LETTER_F] * draw_share(random));
      break;
    default:
      policies[r].eager = weft_random_below(random, 2) == 0
                              ? 0
                              : 1 + weft_random_below(random, most_in_flight(problem, r));
  }
}

static void change_all(struct weft_improver *improver, struct weft_policy *policies) {
  const struct weft_problem *problem = improver->pool.problem;
  struct weft_random *random = &improver->random;
  const uint32_t how = weft_random_below(random, 3);
  const uint32_t from = weft_random_below(random, problem->rank_count);
  const bool more = weft_random_below(random, 2) == 0;
  const double share = draw_share(random);
  for (uint32_t r = how == 0 ? from : 0; r < problem->rank_count; r++) {
    const int64_t *time = stage_of(problem, r)->time;
    if (how == 0) {
      policies[r].cap += more ? 1U : UINT32_MAX;
    } else if (how == 1) {
      policies[r].w_overrun = (int64_t)((double)time[WEFT_LETTER_W] * share);
    } else {
      policies[r].f_delay = (int64_t)((double)time[WEFT_LETTER_F] * share);
    }
  }
}

static void change(struct weft_improver *improver) {
  struct weft_policy *policies = policies_at(improver, TRIED);
  for (uint32_t k = weft_random_below(&improver->random, 3) + 1; k > 0; k--) {
    if (weft_random_below(&improver->random, 8) < 5) {
      change_one(improver, policies);
    } else {
      change_all(improver, policies);
    }
    clamp(improver->pool.problem, policies);
  }
}

void weft_improve_policies(struct weft_improver *improver, uint64_t work, uint32_t number,
                           uint32_t stride) {
  struct weft_pool *pool = &improver->pool;
  const uint64_t from = improver->work;
  try_grid(improver, work, number % (CAPS * 9), stride);
  copy(improver, TRIED, CURRENT);
  int64_t value = weft_improver_is_done(improver) ? WEFT_NEVER : list(improver, WEFT_NEVER);
  while (improver->work - from < work && !weft_improver_is_done(improver)) {
    const double left = 1 - (double)(improver->work - from) / (double)work;
    const double u = draw_share(&improver->random);
    const int64_t cutoff = value + (int64_t)(0.004 * (double)pool->bound * left * left * u * u);
    copy(improver, TRIED, CURRENT);
    change(improver);
    const int64_t tried = list(improver, cutoff);
    if (tried <= cutoff) {
      value = tried;
      copy(improver, CURRENT, TRIED);
    }
  }
}
