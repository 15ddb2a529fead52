/* Policies: a grid of them, then the neighbourhood of the best. One stage per rank. */
#include <math.h>
#include <string.h>

#include "plan/improve/annealing.h"

/* Nanoseconds of a usual core for one letter of a list. */
enum { LETTER_WORK = 60 };

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

static uint32_t within(uint32_t count, uint32_t most) {
  return count < 1 ? 1 : count > most ? most : count;
}

static void clamp(const struct weft_problem *problem, struct weft_policy *policies) {
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const uint32_t most = most_in_flight(problem, r);
    policies[r].cap = within(policies[r].cap, most);
    policies[r].warmup = within(policies[r].warmup, most);
  }
}

/* ---- Trying ---- */

/* Lists what is in TRIED; its value, WEFT_NEVER above the cutoff. */
static int64_t list(struct weft_improver *improver, int64_t cutoff) {
  struct weft_pool *pool = &improver->pool;
  int64_t value;
  const size_t letters = (size_t)pool->problem->rank_count * pool->problem->word_size;
  pool->evaluated++;
  improver->work += LETTER_WORK * weft_list_order(&improver->lister, policies_at(improver, TRIED),
                                                  cutoff, &pool->draft, &value);
  if (value < pool->value) {
    memcpy(pool->best.letters, pool->draft.letters, letters);
    pool->value = value;
    pool->span_sum = WEFT_NEVER;
    pool->name = NULL;
    copy(improver, BEST, TRIED);
  }
  return value;
}

/* ---- Warm-ups ---- */

/* How many forwards each rank does before its first backward, when none may idle in that
 * time for longer than `idle`: a rank that may not waits with a forward more, and its
 * gradient leaves later, for all ranks before it. Writes warmups from the last rank to the
 * first; false when a rank's memory does not do for it. */
static bool cascade(const struct weft_problem *problem, int64_t idle,
                    struct weft_policy *policies) {
  const unsigned back = problem->whole_backward ? WEFT_LETTER_B : WEFT_LETTER_I;
  const int64_t hop = problem->latency + problem->occupancy;
  int64_t arrives = 0; /* the first gradient, after the rank's first start */
  bool fits = true;
  for (uint32_t r = problem->rank_count; r-- > 0;) {
    const int64_t *time = stage_of(problem, r)->time;
    const int64_t f = time[WEFT_LETTER_F];
    const int64_t more = arrives - f - idle;
    const int64_t count = 1 + (more > 0 && f > 0 ? (more + f - 1) / f : 0);
    const uint32_t most = most_in_flight(problem, r);
    fits = fits && count <= most;
    policies[r].warmup = count < most ? (uint32_t)count : most;
    const int64_t done = policies[r].warmup * f > arrives ? policies[r].warmup * f : arrives;
    if (r > 0) {
      arrives = done + time[back] + 2 * hop + stage_of(problem, r - 1)->time[WEFT_LETTER_F];
    }
  }
  return fits;
}

/* With the least idle time that memory allows. */
static void set_warmups(const struct weft_problem *problem, struct weft_policy *policies) {
  int64_t low = 0, high = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    high += stage_of(problem, r)->time[WEFT_LETTER_F];
  }
  if (!cascade(problem, high, policies)) {
    return;
  }
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (cascade(problem, middle, policies)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  (void)cascade(problem, low, policies);
}

/* ---- The grid ---- */

enum {
  CAP_CASCADE,
  CAP_ECHO,
  CAP_SLOPE,
  CAP_MEMORY,
  CAP_CLASSIC,
  CAP_ECHO_LESS,
  CAP_CASCADE_MEMORY,
  CAP_ECHO_MORE,
  CAPS
};

enum { GRID = CAPS * 9 };

/* How long W and F may keep others waiting, in halves of their own time. What is best most
 * often comes first: large problems do not get to the end of the grid. */
static const uint8_t delays[9][2] = {{2, 2}, {0, 0}, {1, 1}, {1, 2}, {0, 1},
                                     {0, 2}, {1, 0}, {2, 1}, {2, 0}};

static uint32_t cap_of(const struct weft_problem *problem, uint32_t rank, unsigned how,
                       uint32_t warmup) {
  const uint32_t most = most_in_flight(problem, rank);
  const int64_t f = stage_of(problem, rank)->time[WEFT_LETTER_F];
  const int64_t echo = f > 0 ? 1 + (echo_of(problem, rank) + f - 1) / f : most;
  const uint32_t near = (uint32_t)(echo < most ? echo : most);
  switch (how) {
    case CAP_CASCADE: return warmup;
    case CAP_ECHO: return near;
    case CAP_ECHO_LESS: return near - 1;
    case CAP_ECHO_MORE: return near + 1;
    case CAP_SLOPE: /* from all that fits on the first rank down to one on the last */
      return (uint32_t)(((uint64_t)most * (problem->rank_count - rank) + problem->rank_count - 1) /
                        problem->rank_count);
    case CAP_CLASSIC: return problem->rank_count - rank;
    default: return most;
  }
}

static void set_grid(const struct weft_problem *problem, unsigned n, struct weft_policy *policies) {
  const unsigned how = n % CAPS;
  const uint8_t *delay = delays[n / CAPS];
  set_warmups(problem, policies);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t *time = stage_of(problem, r)->time;
    const uint32_t warmup = policies[r].warmup;
    const uint32_t cap = cap_of(problem, r, how, warmup);
    policies[r] = (struct weft_policy){.warmup = how == CAP_CASCADE_MEMORY ? warmup : cap,
                                       .cap = cap,
                                       .w_overrun = time[WEFT_LETTER_W] * delay[0] / 2,
                                       .f_delay = time[WEFT_LETTER_F] * delay[1] / 2};
  }
  clamp(problem, policies);
}

static void try_grid(struct weft_improver *improver, uint64_t work, uint32_t number,
                     uint32_t stride) {
  const uint64_t from = improver->work;
  int64_t best = WEFT_NEVER;
  for (unsigned n = number; n < GRID && !weft_improver_is_done(improver); n += stride) {
    if (n > number && improver->work - from >= work) {
      return;
    }
    set_grid(improver->pool.problem, n, policies_at(improver, TRIED));
    const int64_t value = list(improver, best);
    if (value < best) {
      best = value;
      copy(improver, CURRENT, TRIED);
    }
  }
}

/* ---- The neighbourhood ---- */

static void change_one(struct weft_improver *improver, struct weft_policy *policies) {
  const struct weft_problem *problem = improver->pool.problem;
  struct weft_random *random = &improver->random;
  const uint32_t r = weft_random_below(random, problem->rank_count);
  const int64_t *time = stage_of(problem, r)->time;
  const uint32_t step = weft_random_below(random, 2) == 0 ? 1U : UINT32_MAX;
  switch (weft_random_below(random, 5)) {
    case 0: policies[r].cap += step; break;
    case 1: policies[r].warmup += step; break;
    case 2:
      policies[r].w_overrun = (int64_t)((double)time[WEFT_LETTER_W] * weft_random_share(random));
      break;
    case 3:
      policies[r].f_delay = (int64_t)((double)time[WEFT_LETTER_F] * weft_random_share(random));
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
  const uint32_t how = weft_random_below(random, 4);
  const uint32_t from = weft_random_below(random, problem->rank_count);
  const bool more = weft_random_below(random, 2) == 0;
  const double share = weft_random_share(random);
  for (uint32_t r = how % 3 == 0 ? from : 0; r < problem->rank_count; r++) {
    const int64_t *time = stage_of(problem, r)->time;
    if (how == 0) {
      policies[r].cap += more ? 1U : UINT32_MAX;
    } else if (how == 3) {
      policies[r].warmup += more ? 1U : UINT32_MAX;
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

void weft_improve_policies(struct weft_improver *improver, uint64_t work, uint64_t grid_work,
                           uint32_t number, uint32_t stride) {
  struct weft_pool *pool = &improver->pool;
  const uint64_t from = improver->work;
  try_grid(improver, grid_work, number % GRID, stride);
  copy(improver, TRIED, CURRENT);
  int64_t value = weft_improver_is_done(improver) ? WEFT_NEVER : list(improver, WEFT_NEVER);
  while (improver->work - from < work && !weft_improver_is_done(improver)) {
    const double left = 1 - (double)(improver->work - from) / (double)work;
    const double u = weft_random_share(&improver->random);
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
