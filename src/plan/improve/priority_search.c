/* Search over the parameters of priority rules: a grid, then the neighbourhood of its best point.
 * For one stage per rank. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "plan/improve/annealing.h"

/* Nanoseconds of a typical core to schedule one op. */
enum { OP_WORK = 60 };

static struct weft_priority_rule *rules_at(struct weft_local_search *search, unsigned which) {
  return search->rules + (size_t)which * search->incumbent.problem->rank_count;
}

enum { CURRENT, TRIED };

static void copy(struct weft_local_search *search, unsigned to, unsigned from) {
  memcpy(rules_at(search, to), rules_at(search, from),
         search->incumbent.problem->rank_count * sizeof(struct weft_priority_rule));
}

/* ---- Limits of the parameters ---- */

static const struct weft_problem_stage *stage_of(const struct weft_problem *problem,
                                                 uint32_t rank) {
  return &problem->stages[problem->stage_of[rank]];
}

static uint32_t most_in_flight(const struct weft_problem *problem, uint32_t rank) {
  const struct weft_problem_stage *stage = stage_of(problem, rank);
  const int64_t fit = stage->held > 0 ? problem->limit[rank] / stage->held : INT64_MAX;
  return fit < 1 ? 1 : fit < problem->microbatch_count ? (uint32_t)fit : problem->microbatch_count;
}

/* The earliest arrival of a rank's first gradient after the end of its first forward. */
static int64_t echo_of(const struct weft_problem *problem, uint32_t rank) {
  const unsigned back = weft_problem_backward(problem);
  int64_t echo = 0;
  for (uint32_t r = rank + 1; r < problem->rank_count; r++) {
    echo += stage_of(problem, r)->time[WEFT_KIND_F] + stage_of(problem, r)->time[back];
  }
  return echo +
         2 * (int64_t)(problem->rank_count - 1 - rank) * (problem->latency + problem->occupancy);
}

static uint32_t within(uint32_t count, uint32_t most) {
  return count < 1 ? 1 : count > most ? most : count;
}

static void clamp(const struct weft_problem *problem, struct weft_priority_rule *rules) {
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const uint32_t most = most_in_flight(problem, r);
    rules[r].cap = within(rules[r].cap, most);
    rules[r].warmup = within(rules[r].warmup, most);
    rules[r].whole_to = rules[r].whole_to < problem->microbatch_count ? rules[r].whole_to
                                                                      : problem->microbatch_count;
    rules[r].whole_from =
        rules[r].whole_from < rules[r].whole_to ? rules[r].whole_from : rules[r].whole_to;
  }
}

/* ---- Trying rules ---- */

/* Schedules by the rules in TRIED; the value, WEFT_NEVER above the cutoff. */
static int64_t schedule(struct weft_local_search *search, int64_t cutoff) {
  struct weft_incumbent *incumbent = &search->incumbent;
  int64_t value;
  incumbent->evaluated++;
  search->work += OP_WORK * weft_priority_schedule(&search->scheduler, rules_at(search, TRIED),
                                                   cutoff, &incumbent->draft, &value);
  if (value < incumbent->value) { /* without the sum of spans: any tie replaces it */
    weft_incumbent_replace(incumbent, &incumbent->draft, value, WEFT_NEVER, NULL);
  }
  return value;
}

/* ---- Warm-ups ---- */

/* Sets the forwards of each rank before its first backward such that no rank idles for longer
 * than `idle` until then: a rank that would idle longer runs one forward more, which delays its
 * gradient for all ranks before it. Goes from the last rank to the first; false when a rank's
 * memory does not suffice. */
static bool cascade(const struct weft_problem *problem, int64_t idle,
                    struct weft_priority_rule *rules) {
  const unsigned back = weft_problem_backward(problem);
  const int64_t hop = problem->latency + problem->occupancy;
  int64_t arrives = 0; /* of the first gradient, after the rank's first start */
  bool fits = true;
  for (uint32_t r = problem->rank_count; r-- > 0;) {
    const int64_t *time = stage_of(problem, r)->time;
    const int64_t f = time[WEFT_KIND_F];
    const int64_t more = arrives - f - idle;
    const int64_t count = 1 + (more > 0 && f > 0 ? (more + f - 1) / f : 0);
    const uint32_t most = most_in_flight(problem, r);
    fits = fits && count <= most;
    rules[r].warmup = count < most ? (uint32_t)count : most;
    const int64_t done = rules[r].warmup * f > arrives ? rules[r].warmup * f : arrives;
    if (r > 0) {
      arrives = done + time[back] + 2 * hop + stage_of(problem, r - 1)->time[WEFT_KIND_F];
    }
  }
  return fits;
}

/* Warm-ups with the least idle time that the memory allows. */
static void set_warmups(const struct weft_problem *problem, struct weft_priority_rule *rules) {
  int64_t low = 0, high = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    high += stage_of(problem, r)->time[WEFT_KIND_F];
  }
  if (!cascade(problem, high, rules)) {
    return;
  }
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (cascade(problem, middle, rules)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  (void)cascade(problem, low, rules);
}

/* ---- The grid ---- */

/* Ways to choose the cap: as the warm-up, from the round trip of a gradient (echo), linearly from
 * the first rank to the last, by memory, or as 1F1B. */
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

/* Ways to mix backwards: all split, all whole, or whole ones between the first and the last few,
 * when all ranks are busy. */
enum { MIX_SPLIT, MIX_WHOLE, MIX_BOTH_ENDS, MIX_LAST, MIXES };

static void set_mix(const struct weft_problem *problem, unsigned how,
                    struct weft_priority_rule *rules) {
  const uint32_t m = problem->microbatch_count;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const uint32_t ends = rules[r].warmup < m ? rules[r].warmup : m;
    rules[r].whole_from = how == MIX_SPLIT ? m : how == MIX_BOTH_ENDS ? ends : 0;
    rules[r].whole_to = how == MIX_SPLIT || how == MIX_WHOLE ? m : m - ends;
  }
}

/* How long W and F may delay other ops, in halves of their own time. The best choices come first,
 * as large problems do not reach the end of the grid. */
static const uint8_t delays[9][2] = {{2, 2}, {0, 0}, {1, 1}, {1, 2}, {0, 1},
                                     {0, 2}, {1, 0}, {2, 1}, {2, 0}};

static uint32_t cap_of(const struct weft_problem *problem, uint32_t rank, unsigned how,
                       uint32_t warmup) {
  const uint32_t most = most_in_flight(problem, rank);
  const int64_t f = stage_of(problem, rank)->time[WEFT_KIND_F];
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

static void set_grid(const struct weft_problem *problem, unsigned n,
                     struct weft_priority_rule *rules) {
  const unsigned how = n % CAPS;
  const uint8_t *delay = delays[n % GRID / CAPS];
  set_warmups(problem, rules);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t *time = stage_of(problem, r)->time;
    const uint32_t warmup = rules[r].warmup;
    const uint32_t cap = cap_of(problem, r, how, warmup);
    rules[r] = (struct weft_priority_rule){.warmup = how == CAP_CASCADE_MEMORY ? warmup : cap,
                                           .cap = cap,
                                           .w_overrun = time[WEFT_KIND_W] * delay[0] / 2,
                                           .f_delay = time[WEFT_KIND_F] * delay[1] / 2};
  }
  if (problem->backward == WEFT_BACKWARD_MIXED) {
    set_mix(problem, n / GRID % MIXES, rules);
  }
  clamp(problem, rules);
}

static uint32_t grid_size(const struct weft_problem *problem) {
  return problem->backward == WEFT_BACKWARD_MIXED ? GRID * MIXES : GRID;
}

static void try_grid(struct weft_local_search *search, uint64_t work, uint32_t number,
                     uint32_t stride) {
  const uint64_t from = search->work;
  int64_t best = WEFT_NEVER;
  const uint32_t size = grid_size(search->incumbent.problem);
  for (unsigned n = number; n < size && !weft_local_search_is_done(search); n += stride) {
    if (n > number && search->work - from >= work) {
      return;
    }
    set_grid(search->incumbent.problem, n, rules_at(search, TRIED));
    const int64_t value = schedule(search, best);
    if (value < best) {
      best = value;
      copy(search, CURRENT, TRIED);
    }
  }
}

/* ---- The neighbourhood ---- */

static void change_one(struct weft_local_search *search, struct weft_priority_rule *rules) {
  const struct weft_problem *problem = search->incumbent.problem;
  struct weft_random *random = &search->random;
  const uint32_t r = weft_random_below(random, problem->rank_count);
  const int64_t *time = stage_of(problem, r)->time;
  const uint32_t step = weft_random_below(random, 2) == 0 ? 1U : UINT32_MAX;
  switch (weft_random_below(random, problem->backward == WEFT_BACKWARD_MIXED ? 7 : 5)) {
    case 6: rules[r].whole_from += rules[r].whole_from + step == UINT32_MAX ? 0 : step; break;
    case 5: rules[r].whole_to += rules[r].whole_to + step == UINT32_MAX ? 0 : step; break;
    case 0: rules[r].cap += step; break;
    case 1: rules[r].warmup += step; break;
    case 2:
      rules[r].w_overrun = (int64_t)((double)time[WEFT_KIND_W] * weft_random_share(random));
      break;
    case 3:
      rules[r].f_delay = (int64_t)((double)time[WEFT_KIND_F] * weft_random_share(random));
      break;
    default:
      rules[r].eager = weft_random_below(random, 2) == 0
                           ? 0
                           : 1 + weft_random_below(random, most_in_flight(problem, r));
  }
}

static void change_all(struct weft_local_search *search, struct weft_priority_rule *rules) {
  const struct weft_problem *problem = search->incumbent.problem;
  struct weft_random *random = &search->random;
  const uint32_t how = weft_random_below(random, 4);
  const uint32_t from = weft_random_below(random, problem->rank_count);
  const bool more = weft_random_below(random, 2) == 0;
  const double share = weft_random_share(random);
  for (uint32_t r = how % 3 == 0 ? from : 0; r < problem->rank_count; r++) {
    const int64_t *time = stage_of(problem, r)->time;
    if (how == 0) {
      rules[r].cap += more ? 1U : UINT32_MAX;
    } else if (how == 3) {
      rules[r].warmup += more ? 1U : UINT32_MAX;
    } else if (how == 1) {
      rules[r].w_overrun = (int64_t)((double)time[WEFT_KIND_W] * share);
    } else {
      rules[r].f_delay = (int64_t)((double)time[WEFT_KIND_F] * share);
    }
  }
}

static void change(struct weft_local_search *search) {
  struct weft_priority_rule *rules = rules_at(search, TRIED);
  for (uint32_t k = weft_random_below(&search->random, 3) + 1; k > 0; k--) {
    if (weft_random_below(&search->random, 8) < 5) {
      change_one(search, rules);
    } else {
      change_all(search, rules);
    }
    clamp(search->incumbent.problem, rules);
  }
}

void weft_priority_search(struct weft_local_search *search, uint64_t work, uint64_t grid_work,
                          uint32_t number, uint32_t stride) {
  assert(search->incumbent.problem->stages_per_rank == 1 && stride > 0);
  struct weft_incumbent *incumbent = &search->incumbent;
  const uint64_t from = search->work;
  try_grid(search, grid_work, number % GRID, stride);
  copy(search, TRIED, CURRENT);
  int64_t value = weft_local_search_is_done(search) ? WEFT_NEVER : schedule(search, WEFT_NEVER);
  while (search->work - from < work && !weft_local_search_is_done(search)) {
    const double left = 1 - (double)(search->work - from) / (double)work;
    const double u = weft_random_share(&search->random);
    const int64_t worse = (int64_t)(0.004 * (double)incumbent->bound * left * left * u * u);
    const int64_t cutoff = value < WEFT_NEVER ? value + worse : WEFT_NEVER;
    copy(search, TRIED, CURRENT);
    change(search);
    const int64_t tried = schedule(search, cutoff);
    if (tried <= cutoff) {
      value = tried;
      copy(search, CURRENT, TRIED);
    }
  }
}
