/* Orders for many ranks from orders for few. A pipeline of p ranks and m microbatches behaves much
 * like one of p / g ranks and m / g microbatches in 1 / g of the memory, which takes 1 / g of the
 * time: there a stage stands for g neighbouring ones, and a microbatch for g in a row. A small
 * pipeline is searched quickly. The times of its actions, interpolated and g times as large, are the
 * targets of the large one, from which the list scheduler makes an order. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include <weft/support.h>

#include "plan/bounds/chain_bound.h"
#include "plan/construct/constructors.h"
#include "plan/construct/list_scheduler.h"
#include "plan/improve/worker.h"

/* Ranks of the small pipelines; of those with up to half as many ranks as the large one. */
static const uint32_t sizes[] = {4, 6, 8, 12, 16, 24, 32};

/* Nanoseconds of a typical core that list scheduling takes for each op. */
enum { OP_WORK = 120 };

/* A value less than this above the bound, as a share of it, needs other means. */
#define CLOSE 0.01

/* Work that is worth a small pipeline, in runs of the list scheduler for the large one. */
enum { RUNS_MIN = 8 };

/* How the times of a small order become targets. */
struct setting {
  double burst;      /* 1: all that a small action stands for runs at once; 0: evenly spread out */
  double lead;       /* of the list scheduler, in periods; WEFT_LEAD_ANY */
  double fill;       /* of the list scheduler */
  bool weights_last; /* W run whenever there is time */
};

struct scaled {
  struct weft_incumbent *incumbent;
  const struct weft_problem *problem;
  struct weft_list_scheduler scheduler;
  struct weft_random random;
  uint64_t seed;
  /* Of one size: */
  struct weft_problem small;
  struct weft_incumbent found; /* for the small problem */
  double ratio;                /* of the numbers of ranks */
  double *middle; /* [(kind * stage count + stage) * m + microbatch] of small actions */
  uint32_t *done; /* [op] scratch */
};

/* ---- The small problem ---- */

/* A stage takes as long as the longest of those that it stands for; sizes likewise. */
static void merge_stage(const struct scaled *scaled, const struct weft_problem_stage *from,
                        struct weft_problem_stage *to) {
  for (unsigned kind = 0; kind < WEFT_KINDS; kind++) {
    to->time[kind] = weft_max(to->time[kind], from->time[kind]);
  }
  to->held = weft_max(to->held, from->held);
  to->held_after = weft_max(to->held_after, from->held_after);
  to->gradients = weft_max(to->gradients, (int64_t)((double)from->gradients / scaled->ratio));
}

static uint32_t small_rank(const struct scaled *scaled, uint32_t rank) {
  return (uint32_t)((uint64_t)rank * scaled->small.rank_count / scaled->problem->rank_count);
}

/* The share of the limit, as a whole number of the largest activations: less than one is lost. */
static int64_t small_limit(const struct scaled *scaled, uint32_t rank) {
  const struct weft_problem *problem = scaled->problem;
  int64_t held = 1;
  for (uint32_t k = 0; k < problem->stages_per_rank; k++) {
    held = weft_max(held,
                    problem->stages[problem->stage_of[rank * problem->stages_per_rank + k]].held);
  }
  const double share = (double)problem->limit[rank] / scaled->ratio;
  return (int64_t)(round(share / (double)held) * (double)held);
}

static void fill_small(struct scaled *scaled) {
  const struct weft_problem *problem = scaled->problem;
  struct weft_problem *small = &scaled->small;
  const uint32_t v = problem->stages_per_rank;
  for (uint32_t r = 0; r < small->rank_count; r++) {
    small->limit[r] = INT64_MAX;
  }
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const uint32_t to = small_rank(scaled, r);
    small->limit[to] = weft_min(small->limit[to], small_limit(scaled, r));
    for (uint32_t k = 0; k < v; k++) {
      merge_stage(scaled, &problem->stages[problem->stage_of[r * v + k]],
                  &small->stages[small->stage_of[to * v + k]]);
    }
  }
  for (uint32_t c = 0; c < 2 * small->graph->edge_count; c++) {
    small->occupancy[c] = problem->chain_occupancy;
  }
  weft_problem_look_for_chain(small);
}

static bool make_small(struct scaled *scaled, uint32_t ranks) {
  const struct weft_problem *problem = scaled->problem;
  struct weft_problem *small = &scaled->small;
  scaled->ratio = (double)problem->rank_count / ranks;
  *small =
      weft_problem_chain_like(problem, (struct weft_arena){.allocator = problem->allocator}, ranks,
                              ranks * problem->stages_per_rank,
                              (uint32_t)fmax(1, round(problem->microbatch_count / scaled->ratio)));
  small->limit_max = problem->limit_max;
  if (!weft_problem_make(small, NULL) ||
      !WEFT_ALLOCATE(&small->arena, scaled->done, (size_t)small->stage_count * WEFT_ORDER_KINDS) ||
      !WEFT_ALLOCATE(&small->arena, scaled->middle,
                     (size_t)WEFT_ORDER_KINDS * small->stage_count * small->microbatch_count)) {
    return false;
  }
  fill_small(scaled);
  return true;
}

static void anneal_small(struct scaled *scaled, uint64_t work) {
  static const double temperatures[] = {1e-3, 6e-4, 3e-4, 0};
  struct weft_incumbent *found = &scaled->found;
  struct weft_worker worker;
  struct weft_error error;
  if (weft_worker_init(&worker, &scaled->small, scaled->seed, found->bound, scaled->small.control,
                       &error) == WEFT_OK &&
      weft_worker_prepare(&worker, &error) == WEFT_OK) {
    weft_incumbent_offer(&worker.incumbent, &found->best, found->value, found->span_sum);
    for (size_t n = 0; n < WEFT_ARRAY_LENGTH(temperatures); n++) {
      weft_anneal(&worker, work / WEFT_ARRAY_LENGTH(temperatures), temperatures[n]);
    }
    weft_incumbent_collect(found, &worker.incumbent);
  }
  weft_worker_finish(&worker);
}

/* False when nothing was found. */
static bool search_small(struct scaled *scaled, uint64_t work) {
  struct weft_incumbent *found = &scaled->found;
  struct weft_error error;
  weft_construct_serial(found);
  if (found->value == WEFT_NEVER || weft_construct_chain_greedy(found, &error) != WEFT_OK) {
    return false;
  }
  uint64_t done = weft_construct_beam(found, work / 4);
  done += weft_construct_periodic(found, work / 4, scaled->seed);
  done += weft_construct_scaled(found, work / 4, scaled->seed);
  /* Periodic orders differ more by luck than by the work for one of them. */
  for (uint64_t n = 1; n <= 2 && done <= work / 2; n++) {
    done += weft_construct_periodic(found, work / 4, scaled->seed + n);
  }
  if (!weft_incumbent_is_done(found) && scaled->small.control != NULL) {
    anneal_small(scaled, work / 4);
  }
  return true;
}

/* ---- The times of its order ---- */

static double *middle_of(const struct scaled *scaled, enum weft_plan_op_kind kind, uint32_t stage) {
  assert(stage < scaled->small.stage_count && kind < WEFT_ORDER_KINDS);
  return scaled->middle +
         ((size_t)kind * scaled->small.stage_count + stage) * scaled->small.microbatch_count;
}

static void record_times(struct scaled *scaled) {
  const struct weft_problem *small = &scaled->small;
  const struct weft_order *best = &scaled->found.best;
  struct weft_plan_clock *clock = &scaled->found.clock;
  uint32_t *done = scaled->done;
  memset(done, 0, (size_t)small->stage_count * WEFT_ORDER_KINDS * sizeof *done);
  const int64_t value = weft_order_evaluate(small, clock, best, WEFT_NEVER);
  assert(value == scaled->found.value);
  (void)value;
  for (uint32_t r = 0; r < small->rank_count; r++) {
    int64_t now = 0;
    for (uint32_t n = small->begin[r]; n < small->begin[r + 1]; n++) {
      const uint32_t s = best->ops[n] / WEFT_ORDER_KINDS, k = done[best->ops[n]]++;
      const enum weft_plan_op_kind kind = (enum weft_plan_op_kind)(best->ops[n] % WEFT_ORDER_KINDS);
      const bool is_whole = best->whole[(size_t)s * small->microbatch_count + k] != 0;
      const int64_t time = weft_problem_duration(&small->stages[s], kind, is_whole);
      now = weft_max(now, weft_plan_clock_input(small, clock, s, kind, k));
      middle_of(scaled, kind, s)[k] = (double)now + 0.5 * (double)time;
      now += time;
    }
  }
}

/* ---- Targets ---- */

/* Splits a position between the middles of `count` items into the item before it and the share of the
 * way to the next; beyond the ends, the line goes on. */
static uint32_t split(double position, uint32_t count, double *share) {
  assert(position >= 0 && position <= count);
  const double item = count < 2 ? 0 : fmin(fmax(floor(position - 0.5), 0), count - 2);
  *share = count < 2 ? 0 : position - 0.5 - item;
  return (uint32_t)item;
}

/* Between the times of the neighbouring small actions. */
static double spread(const struct scaled *scaled, enum weft_plan_op_kind kind, double stage,
                     double microbatch) {
  const struct weft_problem *small = &scaled->small;
  double across, along;
  const uint32_t s = split(stage, small->stage_count, &across);
  const uint32_t k = split(microbatch, small->microbatch_count, &along);
  const uint32_t next = small->microbatch_count > 1 ? k + 1 : k;
  const double *here = middle_of(scaled, kind, s);
  const double *there = middle_of(scaled, kind, s + 1 < small->stage_count ? s + 1 : s);
  return (1 - across) * ((1 - along) * here[k] + along * here[next]) +
         across * ((1 - along) * there[k] + along * there[next]);
}

/* One of those that run one after the other around the time of their small action. */
static double gather(const struct scaled *scaled, enum weft_plan_op_kind kind, double stage,
                     double microbatch) {
  const struct weft_problem *small = &scaled->small;
  const uint32_t s = (uint32_t)stage, k = (uint32_t)microbatch;
  const double time = (double)weft_problem_duration(&small->stages[s], kind, !small->may_split);
  const double step = time + (double)(small->latency + small->chain_occupancy);
  const double across = (stage - s - 0.5) * (kind == WEFT_KIND_F ? step : -step);
  return middle_of(scaled, kind, s)[k] + across + (microbatch - k - 0.5) * time;
}

static void set_row(struct scaled *scaled, const struct setting *setting, uint32_t stage,
                    enum weft_plan_op_kind kind) {
  const struct weft_problem *problem = scaled->problem;
  int64_t *row = weft_target_row(&scaled->scheduler, stage, kind);
  for (uint32_t n = 0; n < problem->microbatch_count; n++) {
    const double s = (stage + 0.5) / scaled->ratio;
    const double k = (n + 0.5) * scaled->small.microbatch_count / (double)problem->microbatch_count;
    const double middle = setting->burst * gather(scaled, kind, s, k) +
                          (1 - setting->burst) * spread(scaled, kind, s, k);
    row[n] = kind == WEFT_KIND_W && setting->weights_last ? WEFT_TARGET_LAST - stage
                                                          : (int64_t)(scaled->ratio * middle);
  }
}

/* The objective of a setting's order; WEFT_NEVER when it exceeds the cutoff. */
static int64_t try_setting(struct scaled *scaled, const struct setting *setting, int64_t cutoff) {
  const struct weft_target_rule rule =
      weft_target_rule_make(setting->lead, (double)scaled->scheduler.period, setting->fill);
  for (uint32_t s = 0; s < scaled->problem->stage_count; s++) {
    set_row(scaled, setting, s, WEFT_KIND_F);
    set_row(scaled, setting, s, WEFT_KIND_I);
    set_row(scaled, setting, s, WEFT_KIND_W);
  }
  return weft_list_scheduler_try(&scaled->scheduler, &rule, cutoff, scaled->incumbent);
}

/* A small random change. */
static void vary(struct weft_random *random, struct setting *setting) {
  static const double leads[] = {0.3, 0.5, 1, 1.5, 2, 3, 4, 6, 8, WEFT_LEAD_ANY};
  switch (weft_random_below(random, 4)) {
    case 0: setting->burst = weft_random_below(random, 5) / 4.0; break;
    case 1: setting->lead = leads[weft_random_below(random, WEFT_ARRAY_LENGTH(leads))]; break;
    case 2: setting->fill = weft_random_below(random, 5) / 4.0; break;
    default: setting->weights_last = !setting->weights_last; break;
  }
}

/* From usual settings to the neighbours of the best. */
static void try_settings(struct scaled *scaled, uint64_t runs) {
  static const struct setting usual[] = {
      {1, 4, 0, true}, {0, 4, 0, true}, {1, 2, 0.5, true}, {0, 8, 0, true}, {1, 8, 0.5, true},
  };
  struct setting best = usual[0];
  int64_t least = WEFT_NEVER;
  for (uint64_t n = 0; n < runs && !weft_incumbent_is_done(scaled->incumbent); n++) {
    struct setting setting = best;
    if (n < WEFT_ARRAY_LENGTH(usual)) {
      setting = usual[n];
    } else {
      do {
        vary(&scaled->random, &setting);
      } while (weft_random_below(&scaled->random, 2) == 0);
    }
    const int64_t value =
        try_setting(scaled, &setting, least == WEFT_NEVER ? WEFT_NEVER : least - 1);
    if (value < least) {
      least = value;
      best = setting;
    }
  }
}

/* ---- The constructor ---- */

static void use_size(struct scaled *scaled, uint32_t ranks, uint64_t work) {
  const uint64_t each = OP_WORK * weft_problem_timed_op_count(scaled->problem);
  struct weft_error error;
  if (make_small(scaled, ranks) &&
      weft_incumbent_init(&scaled->found, &scaled->small, weft_chain_bound(&scaled->small),
                          &error) == WEFT_OK) {
    if (search_small(scaled, work / 2)) {
      record_times(scaled);
      try_settings(scaled, work / 2 / each);
    }
    weft_incumbent_finish(&scaled->found);
  }
  weft_arena_finish(&scaled->small.arena);
}

uint64_t weft_construct_scaled(struct weft_incumbent *incumbent, uint64_t work, uint64_t seed) {
  assert(incumbent != NULL && incumbent->draft.ops != NULL);
  const struct weft_problem *problem = incumbent->problem;
  const uint64_t least = 2 * RUNS_MIN * OP_WORK * weft_problem_timed_op_count(problem);
  WEFT_SCOPED_ARENA arena = {.allocator = problem->allocator};
  struct scaled scaled = {
      .incumbent = incumbent, .problem = problem, .random = {.state = seed}, .seed = seed};
  struct weft_error error;
  uint64_t count = 0;
  while (count < WEFT_ARRAY_LENGTH(sizes) && 2 * sizes[count] <= problem->rank_count) {
    count++;
  }
  count = work / least < count ? work / least : count;
  /* Without memory for it, the search goes on without it. */
  if (count == 0 || weft_incumbent_is_done(incumbent) ||
      (double)incumbent->value < (1 + CLOSE) * (double)incumbent->bound ||
      weft_list_scheduler_init(&scaled.scheduler, problem, &incumbent->clock, &arena, &error) !=
          WEFT_OK) {
    return 0;
  }
  for (uint32_t n = 0; n < count && !weft_incumbent_is_done(incumbent); n++) {
    use_size(&scaled, sizes[n], work / count);
  }
  return work;
}
