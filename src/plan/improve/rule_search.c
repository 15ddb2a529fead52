/* Search over the parameters of rules for list scheduling: a grid, then the neighbourhood of its
 * best point. */
#include <assert.h>
#include <string.h>

#include "plan/improve/worker.h"

/* ---- The worker ---- */

enum weft_status weft_worker_init(struct weft_worker *worker, const struct weft_problem *problem,
                                  uint64_t seed, int64_t bound, struct weft_search_control *control,
                                  struct weft_error *error) {
  assert(worker != NULL && control != NULL);
  struct weft_arena *arena = &worker->incumbent.arena; /* all live as long */
  *worker = (struct weft_worker){.control = control, .random = {.state = seed}};
  WEFT_TRY(weft_incumbent_init(&worker->incumbent, problem, bound, error));
  worker->rules = weft_arena_allocate(arena, problem->stage_count, sizeof *worker->rules);
  worker->tried = weft_arena_allocate(arena, problem->stage_count, sizeof *worker->tried);
  return weft_rule_scheduler_init(&worker->scheduler, problem, &worker->incumbent.clock, arena,
                                  error);
}

/* ---- Limits of the parameters ---- */

static uint32_t most_in_flight(const struct weft_problem *problem, uint32_t s) {
  return (uint32_t)weft_problem_most_held(problem, s);
}

static uint32_t within(uint32_t count, uint32_t most) {
  return count == UINT32_MAX || count < 1 ? 1 : count > most ? most : count;
}

static void clamp(const struct weft_problem *problem, struct weft_list_rule *rules) {
  const uint32_t m = problem->microbatch_count;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    struct weft_list_rule *rule = &rules[s];
    const uint32_t most = most_in_flight(problem, s);
    rule->cap = within(rule->cap, most);
    rule->warmup = within(rule->warmup, most);
    rule->whole_to = rule->whole_to < m ? rule->whole_to : m;
    rule->whole_from = rule->whole_from < rule->whole_to ? rule->whole_from : rule->whole_to;
  }
}

/* ---- Trying rules ---- */

/* Schedules by the tried rules; the value, WEFT_NEVER above the cutoff. */
static int64_t schedule(struct weft_worker *worker, int64_t cutoff) {
  struct weft_incumbent *incumbent = &worker->incumbent;
  incumbent->evaluated++;
  const int64_t value = weft_rule_schedule(incumbent->problem, &worker->scheduler, worker->tried,
                                           cutoff, &worker->incumbent.draft, &worker->work);
  if (value < incumbent->value) {
    if (!weft_order_fits(incumbent->problem, &worker->incumbent.draft, incumbent->clock.done)) {
      return WEFT_NEVER; /* the check of the answer must not be the first to notice */
    }
    /* Without the sum of spans: any tie replaces it. */
    weft_incumbent_offer(incumbent, &worker->incumbent.draft, value, WEFT_NEVER);
  }
  return value;
}

static void copy(const struct weft_worker *worker, struct weft_list_rule *to,
                 const struct weft_list_rule *from) {
  memcpy(to, from, worker->incumbent.problem->stage_count * sizeof *to);
}

/* ---- Warm-ups of a chain with one stage on each rank ---- */

/* Sets the forwards of each stage before its first backward such that no rank idles for longer than
 * `idle` until then: a rank that would idle longer runs one forward more, which delays its gradient
 * for all stages before it. Goes from the last stage to the first; false when a rank's memory does
 * not suffice. */
static bool cascade(const struct weft_problem *problem, int64_t idle,
                    struct weft_list_rule *rules) {
  int64_t arrives = 0; /* of the first gradient, after the rank's first start */
  bool fits = true;
  for (uint32_t s = problem->stage_count; s-- > 0;) {
    const int64_t f = problem->stages[s].f;
    const int64_t more = arrives - f - idle;
    const int64_t count = 1 + (more > 0 && f > 0 ? (more + f - 1) / f : 0);
    const uint32_t most = most_in_flight(problem, s);
    fits = fits && count <= most;
    rules[s].warmup = count < most ? (uint32_t)count : most;
    const int64_t done = rules[s].warmup * f > arrives ? rules[s].warmup * f : arrives;
    if (s > 0) { /* the edge from the stage before has the number of that stage */
      arrives = done + weft_problem_backward(problem, s) + weft_problem_hop(problem, 2 * (s - 1)) +
                weft_problem_hop(problem, 2 * (s - 1) + 1) + problem->stages[s - 1].f;
    }
  }
  return fits;
}

/* Warm-ups with the least idle time that the memory allows. */
static void set_warmups(const struct weft_problem *problem, struct weft_list_rule *rules) {
  int64_t low = 0, high = 0;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    high += problem->stages[s].f;
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

/* Ways to choose how many microbatches a stage has in flight: as 1F1B at its height, from the round
 * trip of a gradient with the stage's own backward (trip) or without it (echo), as many as fit, in
 * proportion to its height from all that fit, or as the warm-up of the cascade. */
enum cap {
  CAP_CLASSIC,
  CAP_CLASSIC_MORE,
  CAP_TRIP,
  CAP_TRIP_LESS,
  CAP_ECHO,
  CAP_ECHO_LESS,
  CAP_ECHO_MORE,
  CAP_MEMORY,
  CAP_SLOPE,
  CAP_CASCADE,
  CAP_CASCADE_MEMORY
};

static const uint8_t caps_single[] = {CAP_CASCADE,        CAP_ECHO,     CAP_SLOPE,
                                      CAP_MEMORY,         CAP_CLASSIC,  CAP_ECHO_LESS,
                                      CAP_CASCADE_MEMORY, CAP_ECHO_MORE};
static const uint8_t caps_any[] = {CAP_CLASSIC, CAP_TRIP,         CAP_MEMORY,
                                   CAP_SLOPE,   CAP_CLASSIC_MORE, CAP_TRIP_LESS};

/* How long W and F may delay other ops, in halves of their own time. The best choices come first, as
 * large problems do not reach the end of the grid. */
static const uint8_t delays[][2] = {{2, 2}, {0, 0}, {1, 1}, {1, 2}, {0, 1},
                                    {0, 2}, {1, 0}, {2, 1}, {2, 0}};

/* Ways to mix backwards: all split, all whole, or whole ones between the first and the last few,
 * when all ranks are busy. */
enum { MIX_SPLIT, MIX_WHOLE, MIX_BOTH_ENDS, MIX_LAST, MIXES };

static bool is_single(const struct weft_worker *worker) {
  return worker->incumbent.problem->stages_per_rank == 1;
}

static uint32_t cap_count(const struct weft_worker *worker) {
  return is_single(worker) ? WEFT_ARRAY_LENGTH(caps_single) : WEFT_ARRAY_LENGTH(caps_any);
}

static uint32_t grid_size(const struct weft_worker *worker) {
  return cap_count(worker) * (uint32_t)WEFT_ARRAY_LENGTH(delays) *
         (weft_problem_mixes(worker->incumbent.problem) ? MIXES : 1);
}

static uint32_t cap_of(const struct weft_problem *problem, uint32_t s, enum cap how,
                       uint32_t warmup) {
  const struct weft_problem_stage *stage = &problem->stages[s];
  const uint32_t most = most_in_flight(problem, s), height = problem->height[s];
  const bool echo = how == CAP_ECHO || how == CAP_ECHO_LESS || how == CAP_ECHO_MORE;
  const int64_t way = problem->round_trip[s] - (echo ? weft_problem_backward(problem, s) : 0);
  const int64_t trips = stage->f > 0 ? (way + stage->f - 1) / stage->f : most;
  const uint32_t near = trips < most ? (uint32_t)trips : most;
  switch (how) {
    case CAP_CLASSIC: return height + 1;
    case CAP_CLASSIC_MORE: return height + 2;
    case CAP_ECHO:
    case CAP_TRIP: return near;
    case CAP_TRIP_LESS: return near - near / 4;
    case CAP_ECHO_LESS: return near - 1;
    case CAP_ECHO_MORE: return near + 1;
    case CAP_SLOPE: /* from all that fits at the greatest height down to one */
      return (uint32_t)(((uint64_t)most * (height + 1) + problem->height_max) /
                        ((uint64_t)problem->height_max + 1));
    case CAP_CASCADE: return warmup;
    default: return most;
  }
}

static void set_mix(const struct weft_problem *problem, unsigned how, struct weft_list_rule *rule) {
  const uint32_t m = problem->microbatch_count, ends = rule->warmup < m ? rule->warmup : m;
  rule->whole_from = how == MIX_SPLIT ? m : how == MIX_BOTH_ENDS ? ends : 0;
  rule->whole_to = how == MIX_SPLIT || how == MIX_WHOLE ? m : m - ends;
}

static void set_grid(struct weft_worker *worker, uint32_t n) {
  assert(n < grid_size(worker));
  const struct weft_problem *problem = worker->incumbent.problem;
  const uint32_t caps = cap_count(worker), size = caps * (uint32_t)WEFT_ARRAY_LENGTH(delays);
  const enum cap how = is_single(worker) ? caps_single[n % caps] : caps_any[n % caps];
  const uint8_t *delay = delays[n % size / caps];
  const unsigned mix = weft_problem_mixes(problem) ? n / size % MIXES
                       : problem->may_split        ? MIX_SPLIT
                                                   : MIX_WHOLE;
  if (is_single(worker)) {
    set_warmups(problem, worker->tried);
  }
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_problem_stage *stage = &problem->stages[s];
    const uint32_t warmup = is_single(worker) ? worker->tried[s].warmup : 1;
    const uint32_t cap = cap_of(problem, s, how, warmup);
    worker->tried[s] = (struct weft_list_rule){.warmup = how == CAP_CASCADE_MEMORY ? warmup : cap,
                                               .cap = cap,
                                               .w_overrun = stage->w * delay[0] / 2,
                                               .f_delay = stage->f * delay[1] / 2};
    set_mix(problem, mix, &worker->tried[s]);
  }
  clamp(problem, worker->tried);
}

/* The first point comes whatever the work. */
static int64_t try_grid(struct weft_worker *worker, uint64_t work, uint32_t number,
                        uint32_t stride) {
  const uint64_t from = worker->work;
  const uint32_t size = grid_size(worker), first = number % size;
  int64_t best = WEFT_NEVER;
  for (uint32_t n = first; n < size && !weft_worker_is_done(worker); n += stride) {
    if (n > first && worker->work - from >= work) {
      break;
    }
    set_grid(worker, n);
    const int64_t value = schedule(worker, best);
    if (value < best || n == first) {
      best = value;
      copy(worker, worker->rules, worker->tried);
    }
  }
  return best;
}

/* ---- The neighbourhood ---- */

static void step_by(uint32_t *count, uint32_t step) {
  *count += *count + step == UINT32_MAX ? 0 : step;
}

static void change_one(struct weft_worker *worker) {
  const struct weft_problem *problem = worker->incumbent.problem;
  struct weft_random *random = &worker->random;
  const uint32_t s = weft_random_below(random, problem->stage_count);
  const struct weft_problem_stage *stage = &problem->stages[s];
  struct weft_list_rule *rule = &worker->tried[s];
  const uint32_t step = weft_random_below(random, 2) == 0 ? 1U : UINT32_MAX;
  switch (weft_random_below(random, weft_problem_mixes(problem) ? 7 : 5)) {
    case 6: step_by(&rule->whole_from, step); break;
    case 5: step_by(&rule->whole_to, step); break;
    case 0: rule->cap += step; break;
    case 1: rule->warmup += step; break;
    case 2: rule->w_overrun = (int64_t)((double)stage->w * weft_random_share(random)); break;
    case 3: rule->f_delay = (int64_t)((double)stage->f * weft_random_share(random)); break;
    default:
      rule->eager = weft_random_below(random, 2) == 0
                        ? 0
                        : 1 + weft_random_below(random, most_in_flight(problem, s));
  }
}

/* All stages, or those up to a height, in the same way. */
static void change_all(struct weft_worker *worker) {
  const struct weft_problem *problem = worker->incumbent.problem;
  struct weft_random *random = &worker->random;
  const uint32_t how = weft_random_below(random, 4);
  const uint32_t height = weft_random_below(random, problem->height_max + 1);
  const uint32_t step = weft_random_below(random, 2) == 0 ? 1U : UINT32_MAX;
  const double share = weft_random_share(random);
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_problem_stage *stage = &problem->stages[s];
    struct weft_list_rule *rule = &worker->tried[s];
    switch (how) {
      case 0: rule->cap += problem->height[s] <= height ? step : 0; break;
      case 1: rule->warmup += problem->height[s] <= height ? step : 0; break;
      case 2: rule->w_overrun = (int64_t)((double)stage->w * share); break;
      default: rule->f_delay = (int64_t)((double)stage->f * share);
    }
  }
}

static void change(struct weft_worker *worker) {
  for (uint32_t k = weft_random_below(&worker->random, 3) + 1; k > 0; k--) {
    if (weft_random_below(&worker->random, 8) < 5) {
      change_one(worker);
    } else {
      change_all(worker);
    }
    clamp(worker->incumbent.problem, worker->tried);
  }
}

void weft_rule_search(struct weft_worker *worker, uint64_t work, uint64_t grid_work,
                      uint32_t number, uint32_t stride) {
  assert(stride > 0);
  const uint64_t from = worker->work;
  int64_t value = try_grid(worker, grid_work, number, stride);
  while (worker->work - from < work && !weft_worker_is_done(worker)) {
    const double left = 1 - (double)(worker->work - from) / (double)work;
    const double u = weft_random_share(&worker->random);
    const int64_t worse = (int64_t)(0.004 * (double)worker->incumbent.bound * left * left * u * u);
    const int64_t cutoff = value < WEFT_NEVER ? value + worse : WEFT_NEVER;
    copy(worker, worker->tried, worker->rules);
    change(worker);
    const int64_t tried = schedule(worker, cutoff);
    worker->work += worker->incumbent.problem->stage_count; /* however soon it was abandoned */
    if (tried < WEFT_NEVER && tried <= cutoff) {
      value = tried;
      copy(worker, worker->rules, worker->tried);
    }
  }
}
