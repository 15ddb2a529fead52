/* Orders that repeat: every microbatch takes the same path, one period after the one before it; or
 * groups of some microbatches do, as many periods after the group before.
 *
 * The periods of a group are a circle for each rank, on which each of its ops has a slot, and no
 * two overlap. The ops of a microbatch get their slots in the order of its path: forwards from the
 * first stage to the last, then backwards; one microbatch of the group after the other. An op takes
 * one of the free slots from the arrival of its input on; the longer it waits, the longer all
 * stages before it hold their activations. Among many such choices a beam search keeps the ones
 * that hold the least. A slot that leaves gaps which nothing fits into is only taken if the rank
 * has that much time left. W run where nothing else does.
 *
 * The slots are targets for the list scheduler, which takes care of the start, the end and the
 * memory limit; the microbatches in flight at a stage may be limited to those of the pattern. The
 * period is at least the work of the busiest rank; with little memory a longer one is better. It,
 * waits at some ops, and the rule of the list scheduler are found by a local search. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

#include "plan/construct/constructors.h"
#include "plan/construct/list_scheduler.h"

/* What the local search varies. */
struct wait {
  uint32_t step;
  double periods;
};

enum { GROUP_MAX = 4, WAITS_MAX = 6, SPARES = 4, ANY_NUMBER = -100 };

struct setting {
  uint32_t group; /* microbatches */
  double pace;    /* periods from the start of one of a group to that of the next */
  double stretch; /* of the period */
  struct wait waits[WAITS_MAX];
  uint32_t wait_count;
  /* Microbatches in flight beyond those of the pattern, by local stage; ANY_NUMBER. */
  int32_t spare[SPARES];
  double lead; /* of the list scheduler, in periods; WEFT_LEAD_ANY */
  double fill; /* of the list scheduler */
};

/* A slot on the circle of a rank. */
struct slot {
  int64_t at; /* less than the period */
  int64_t time;
};

/* The slots of the first ops of a microbatch's path. */
struct pattern {
  double cost;        /* memory times waiting time */
  int64_t *start;     /* [GROUP_MAX * 2 * stage_count] along the path, by microbatch */
  struct slot *slots; /* [rank * 2v * group + n], ascending */
  uint32_t *counts;   /* [rank] */
  int64_t *lost;      /* [rank] time in gaps that nothing fits into */
};

struct choice {
  double cost;
  int64_t start, lost;
  uint32_t pattern;
};

enum { WIDTH = 8, CHOICES = 4 /* of a pattern for its next op */, SUMS_MAX = 1 << 12 };

struct periodic {
  struct weft_incumbent *incumbent;
  const struct weft_problem *problem;
  struct weft_list_scheduler scheduler;
  struct weft_arena *arena;
  struct weft_random random;
  struct pattern *now, *next; /* [WIDTH] */
  uint32_t count;             /* in now */
  struct choice *choices;     /* [WIDTH * CHOICES] */
  /* [rank] times that some of its ops of a group take together, ascending; by the group's size. */
  int64_t **sums_of[GROUP_MAX + 1], **sums;
  uint32_t *sum_counts_of[GROUP_MAX + 1], *sum_counts;
  double *open; /* [stage] memory of it and all stages before, in shares of limits */
  const struct setting *setting; /* of the patterns */
  int64_t period, circle;
  uint64_t work_left;
};

/* ---- Times that ops take together ---- */

/* Adds to the sums all of them plus `time`. */
static uint32_t add_time(int64_t *sums, uint32_t count, int64_t time) {
  if (time == 0 || 2 * count > SUMS_MAX) {
    return count;
  }
  for (uint32_t n = 0; n < count; n++) {
    sums[count + n] = sums[n] + time;
  }
  qsort(sums, (size_t)2 * count, sizeof *sums, weft_by_time);
  uint32_t kept = 1;
  for (uint32_t n = 1; n < 2 * count; n++) {
    if (sums[n] != sums[kept - 1]) {
      sums[kept++] = sums[n];
    }
  }
  return kept;
}

static void collect_sums(const struct periodic *periodic, uint32_t rank, uint32_t group) {
  const struct weft_problem *problem = periodic->problem;
  const uint32_t v = problem->stages_per_rank;
  int64_t *sums = periodic->sums_of[group][rank];
  uint32_t count = 1;
  sums[0] = 0;
  for (uint32_t n = 0; n < v * group; n++) {
    const uint32_t s = problem->stage_of[rank * v + n % v];
    count = add_time(sums, count, problem->stages[s].f);
    count = add_time(sums, count, weft_problem_backward(problem, s));
    count = add_time(sums, count, problem->may_split ? problem->stages[s].w : 0);
  }
  periodic->sum_counts_of[group][rank] = count;
}

/* Whether the stages of a rank take as long as those of the rank before it. */
static bool is_like_previous(const struct weft_problem *problem, uint32_t rank) {
  const uint32_t v = problem->stages_per_rank;
  for (uint32_t k = 0; k < v && rank > 0; k++) {
    const uint32_t *stage = &problem->stage_of[rank * v + k];
    if (memcmp(problem->stages[*stage].time, problem->stages[stage[-(int)v]].time,
               sizeof problem->stages[0].time) != 0) {
      return false;
    }
  }
  return rank > 0;
}

/* False when out of memory. */
static bool prepare_sums(struct periodic *periodic, uint32_t group) {
  const uint32_t ranks = periodic->problem->rank_count;
  struct weft_arena *arena = periodic->arena;
  if (periodic->sums_of[group] == NULL) {
    if (!WEFT_ALLOCATE(arena, periodic->sums_of[group], ranks) ||
        !WEFT_ALLOCATE(arena, periodic->sum_counts_of[group], ranks)) {
      periodic->sums_of[group] = NULL;
      return false;
    }
    for (uint32_t r = 0; r < ranks; r++) {
      int64_t **sums = &periodic->sums_of[group][r];
      uint32_t *count = &periodic->sum_counts_of[group][r];
      if (is_like_previous(periodic->problem, r)) {
        sums[0] = sums[-1];
        count[0] = count[-1];
      } else if (WEFT_ALLOCATE(arena, *sums, SUMS_MAX)) {
        collect_sums(periodic, r, group);
      } else {
        periodic->sums_of[group] = NULL;
        return false;
      }
    }
  }
  periodic->sums = periodic->sums_of[group];
  periodic->sum_counts = periodic->sum_counts_of[group];
  return true;
}

/* The number of sums that are at most `time`; at least 1. */
static uint32_t sums_within(const struct periodic *periodic, uint32_t rank, int64_t time) {
  const int64_t *sums = periodic->sums[rank];
  assert(periodic->sum_counts[rank] > 0 && sums[0] == 0);
  uint32_t from = 1, to = periodic->sum_counts[rank];
  while (from < to) {
    const uint32_t middle = from + (to - from) / 2;
    if (sums[middle] <= time) {
      from = middle + 1;
    } else {
      to = middle;
    }
  }
  return from;
}

/* Where there are too many sums for all to be listed, the largest are not. */
static int64_t lost_in(const struct periodic *periodic, uint32_t rank, int64_t gap) {
  const uint32_t within = sums_within(periodic, rank, gap);
  return within == periodic->sum_counts[rank] ? 0 : gap - periodic->sums[rank][within - 1];
}

/* ---- Slots ---- */

struct step {
  uint32_t number, stage, rank;
  int64_t time;
};

static struct step step_of(const struct weft_problem *problem, uint32_t number) {
  const uint32_t n = number % (2 * problem->stage_count);
  const bool forward = n < problem->stage_count;
  const uint32_t s = forward ? n : 2 * problem->stage_count - 1 - n;
  const struct weft_problem_stage *stage = &problem->stages[s];
  return (struct step){.number = number,
                       .stage = s,
                       .rank = stage->rank,
                       .time = forward ? stage->f : weft_problem_backward(problem, s)};
}

static int64_t wait_at(const struct periodic *periodic, uint32_t step) {
  double sum = 0;
  for (uint32_t n = 0; n < periodic->setting->wait_count; n++) {
    const struct wait *wait = &periodic->setting->waits[n];
    sum += wait->step == step ? wait->periods : 0;
  }
  return (int64_t)(sum * (double)periodic->period);
}

/* When a step may start: when its input arrives, or later if the setting says so. */
static int64_t ready_at(const struct periodic *periodic, const struct pattern *pattern,
                        const struct step *step) {
  const struct weft_problem *problem = periodic->problem;
  const uint32_t steps = 2 * problem->stage_count;
  if (step->number % steps == 0) {
    const uint32_t microbatch = step->number / steps;
    const double start = microbatch * periodic->setting->pace * (double)periodic->period;
    return (int64_t)start + wait_at(periodic, step->number);
  }
  const struct step before = step_of(problem, step->number - 1);
  const uint32_t lower = before.stage < step->stage ? before.stage : step->stage;
  const int64_t hop = before.stage == step->stage ? 0 : weft_problem_hop(problem, 2 * lower);
  return pattern->start[step->number - 1] + before.time + hop + wait_at(periodic, step->number);
}

static int64_t slack_of(const struct periodic *periodic, uint32_t rank) {
  return periodic->circle - periodic->setting->group * (periodic->scheduler.work[rank] /
                                                        periodic->problem->microbatch_count);
}

static void offer(const struct periodic *periodic, const struct choice *choice, uint32_t rank,
                  struct choice *list, uint32_t *count) {
  if (choice->lost > slack_of(periodic, rank)) {
    return;
  }
  uint32_t n = *count < CHOICES ? (*count)++ : CHOICES;
  for (; n > 0 && choice->cost < list[n - 1].cost; n--) {
    if (n < CHOICES) {
      list[n] = list[n - 1];
    }
  }
  if (n < CHOICES) {
    list[n] = *choice;
  }
}

/* The slots of a step in a gap of the circle: as early as possible; after a time that other ops
 * fill; or right before the end. */
static void look_into(const struct periodic *periodic, const struct step *step,
                      const struct choice *from, int64_t gap_at, int64_t gap, struct choice *list,
                      uint32_t *count) {
  const int64_t circle = periodic->circle, rest = gap - step->time;
  const int64_t into = ((from->start - gap_at) % circle + circle) % circle;
  const int64_t earliest = into <= rest ? into : 0, wait = into <= rest ? 0 : circle - into;
  const uint32_t next = sums_within(periodic, step->rank, earliest - 1);
  const int64_t filled =
      next < periodic->sum_counts[step->rank] ? periodic->sums[step->rank][next] : -1;
  const int64_t offsets[] = {earliest, earliest == 0 ? -1 : filled, rest};
  for (unsigned n = 0; n < 3; n++) {
    if (offsets[n] < earliest || offsets[n] > rest || (n > 0 && offsets[n] == offsets[n - 1])) {
      continue;
    }
    struct choice one = *from;
    const int64_t waits = wait + offsets[n] - earliest;
    one.start += waits;
    one.cost += (double)waits * periodic->open[step->stage];
    one.lost += lost_in(periodic, step->rank, offsets[n]) +
                lost_in(periodic, step->rank, rest - offsets[n]) -
                lost_in(periodic, step->rank, gap);
    offer(periodic, &one, step->rank, list, count);
  }
}

static uint32_t list_choices(const struct periodic *periodic, uint32_t which,
                             const struct step *step, struct choice *list) {
  const struct pattern *pattern = &periodic->now[which];
  const struct slot *slots = pattern->slots + (size_t)step->rank * 2 *
                                                  periodic->problem->stages_per_rank *
                                                  periodic->setting->group;
  const uint32_t slot_count = pattern->counts[step->rank];
  const struct choice from = {.cost = pattern->cost,
                              .start = ready_at(periodic, pattern, step),
                              .lost = pattern->lost[step->rank],
                              .pattern = which};
  uint32_t count = 0;
  if (slot_count == 0) {
    list[0] = from;
    list[0].lost = lost_in(periodic, step->rank, periodic->circle - step->time);
    return 1;
  }
  for (uint32_t n = 0; n < slot_count; n++) {
    const int64_t at = slots[n].at + slots[n].time;
    const int64_t end = n + 1 < slot_count ? slots[n + 1].at : slots[0].at + periodic->circle;
    if (end - at >= step->time) {
      look_into(periodic, step, &from, at, end - at, list, &count);
    }
  }
  return count;
}

static void copy_pattern(const struct periodic *periodic, const struct pattern *from,
                         struct pattern *to) {
  const struct weft_problem *problem = periodic->problem;
  const size_t all = (size_t)periodic->setting->group * 2 * problem->stage_count;
  memcpy(to->start, from->start, all * sizeof *to->start);
  memcpy(to->slots, from->slots, all * sizeof *to->slots);
  memcpy(to->counts, from->counts, problem->rank_count * sizeof *to->counts);
  memcpy(to->lost, from->lost, problem->rank_count * sizeof *to->lost);
}

static void put_step(const struct periodic *periodic, struct pattern *pattern,
                     const struct step *step, const struct choice *choice) {
  struct slot *slots = pattern->slots + (size_t)step->rank * 2 *
                                            periodic->problem->stages_per_rank *
                                            periodic->setting->group;
  uint32_t n = pattern->counts[step->rank]++;
  assert(n < 2 * periodic->problem->stages_per_rank * periodic->setting->group);
  const struct slot slot = {.at = choice->start % periodic->circle, .time = step->time};
  for (; n > 0 && slots[n - 1].at > slot.at; n--) {
    slots[n] = slots[n - 1];
  }
  slots[n] = slot;
  pattern->start[step->number] = choice->start;
  pattern->lost[step->rank] = choice->lost;
  pattern->cost = choice->cost;
}

static int by_cost(const void *a, const void *b) {
  const struct choice *x = a, *y = b;
  return x->cost != y->cost         ? (x->cost > y->cost) - (x->cost < y->cost)
         : x->pattern != y->pattern ? (x->pattern > y->pattern) - (x->pattern < y->pattern)
                                    : (x->start > y->start) - (x->start < y->start);
}

/* Nanoseconds of a typical core: to list the choices of a pattern, and to schedule an op. */
enum { CHOICES_WORK = 400, OP_WORK = 70 };

static void spend(struct periodic *periodic, uint64_t work) {
  periodic->work_left -= work < periodic->work_left ? work : periodic->work_left;
}

/* False when no pattern has a slot for some op. */
static bool find_patterns(struct periodic *periodic) {
  const struct weft_problem *problem = periodic->problem;
  const uint32_t steps = 2 * problem->stage_count * periodic->setting->group;
  struct pattern *first = &periodic->now[0];
  periodic->count = 1;
  first->cost = 0;
  memset(first->counts, 0, problem->rank_count * sizeof *first->counts);
  memset(first->lost, 0, problem->rank_count * sizeof *first->lost);
  for (uint32_t n = 0; n < steps; n++) {
    const struct step step = step_of(problem, n);
    uint32_t count = 0;
    for (uint32_t k = 0; k < periodic->count; k++) {
      count += list_choices(periodic, k, &step, periodic->choices + count);
    }
    assert(count <= periodic->count * CHOICES);
    spend(periodic, (uint64_t)periodic->count * CHOICES_WORK);
    if (count == 0) {
      return false;
    }
    qsort(periodic->choices, count, sizeof *periodic->choices, by_cost);
    periodic->count = count < WIDTH ? count : WIDTH;
    for (uint32_t k = 0; k < periodic->count; k++) {
      const struct choice *choice = &periodic->choices[k];
      copy_pattern(periodic, &periodic->now[choice->pattern], &periodic->next[k]);
      put_step(periodic, &periodic->next[k], &step, choice);
    }
    struct pattern *swap = periodic->now;
    periodic->now = periodic->next;
    periodic->next = swap;
  }
  return true;
}

/* ---- Orders ---- */

/* The targets of an op, whose first of the path of a microbatch is `step`. */
static void set_row(const struct periodic *periodic, uint32_t stage, enum weft_plan_op_kind kind,
                    uint32_t step) {
  const struct weft_problem *problem = periodic->problem;
  const uint32_t group = periodic->setting->group, steps = 2 * problem->stage_count;
  int64_t *row = weft_target_row(&periodic->scheduler, stage, kind);
  for (uint32_t k = 0; k < problem->microbatch_count; k++) {
    row[k] = periodic->now[0].start[k % group * steps + step] + k / group * periodic->circle;
  }
}

/* The time that microbatches of a group spend between the starts of two ops of their paths. */
static int64_t time_between(const struct periodic *periodic, uint32_t step, uint32_t other) {
  const uint32_t steps = 2 * periodic->problem->stage_count;
  const int64_t *start = periodic->now[0].start;
  int64_t sum = 0;
  for (uint32_t n = 0; n < periodic->setting->group; n++) {
    sum += start[n * steps + other] - start[n * steps + step];
  }
  return sum;
}

static void set_targets(const struct periodic *periodic) {
  const struct weft_problem *problem = periodic->problem;
  const struct setting *setting = periodic->setting;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const uint32_t turn = 2 * problem->stage_count - 1 - s;
    const int32_t spare = setting->spare[problem->stages[s].local_stage % SPARES];
    const int64_t held =
        time_between(periodic, s, turn) + setting->group * weft_problem_backward(problem, s);
    const int64_t most = (held + periodic->circle - 1) / periodic->circle + spare;
    int64_t *weights = weft_target_row(&periodic->scheduler, s, WEFT_KIND_W);
    set_row(periodic, s, WEFT_KIND_F, s);
    set_row(periodic, s, WEFT_KIND_I, turn);
    for (uint32_t k = 0; k < problem->microbatch_count; k++) {
      weights[k] = WEFT_TARGET_LAST - s;
    }
    periodic->scheduler.in_flight[s] =
        spare == ANY_NUMBER ? UINT32_MAX : (uint32_t)weft_max(1, most);
  }
}

static int64_t schedule(struct periodic *periodic, int64_t cutoff) {
  const struct setting *setting = periodic->setting;
  const struct weft_target_rule rule =
      weft_target_rule_make(setting->lead, (double)periodic->period, setting->fill);
  set_targets(periodic);
  spend(periodic, weft_problem_timed_op_count(periodic->problem) * OP_WORK);
  return weft_list_scheduler_try(&periodic->scheduler, &rule, cutoff, periodic->incumbent);
}

/* ---- Settings ---- */

/* The objective of a setting's order; WEFT_NEVER when it exceeds the cutoff. */
static int64_t value_of(struct periodic *periodic, const struct setting *setting, int64_t cutoff) {
  assert(setting->group >= 1 && setting->group <= GROUP_MAX && setting->stretch >= 1);
  periodic->setting = setting;
  periodic->period = (int64_t)((double)periodic->scheduler.period * setting->stretch);
  periodic->circle = periodic->period * setting->group;
  const double least = (double)periodic->period * periodic->problem->microbatch_count;
  spend(periodic, CHOICES_WORK);
  const int64_t value =
      least <= (double)cutoff && prepare_sums(periodic, setting->group) && find_patterns(periodic)
          ? schedule(periodic, cutoff)
          : WEFT_NEVER;
  periodic->setting = NULL;
  return value;
}

static bool is_finished(const struct periodic *periodic) {
  return periodic->work_left == 0 || weft_incumbent_is_done(periodic->incumbent);
}

static int64_t try_usual(struct periodic *periodic, struct setting *best) {
  int64_t least = WEFT_NEVER;
  static const double stretches[] = {1, 1.02, 1.05, 1.1, 1.16, 1.24, 1.35, 1.5};
  static const struct {
    int32_t spare;
    double lead;
  } rules[] = {{ANY_NUMBER, WEFT_LEAD_ANY}, {1, WEFT_LEAD_ANY}, {ANY_NUMBER, 1},
               {0, WEFT_LEAD_ANY},          {2, WEFT_LEAD_ANY}, {ANY_NUMBER, 0.5},
               {3, WEFT_LEAD_ANY},          {ANY_NUMBER, 0.3}};
  for (size_t r = 0; r < WEFT_ARRAY_LENGTH(rules); r++) {
    for (size_t n = 0; n < WEFT_ARRAY_LENGTH(stretches) && !is_finished(periodic); n++) {
      struct setting setting = {
          .group = 1, .pace = 1, .stretch = stretches[n], .lead = rules[r].lead, .fill = 0.5};
      for (unsigned k = 0; k < SPARES; k++) {
        setting.spare[k] = rules[r].spare;
      }
      const int64_t value = value_of(periodic, &setting, least - 1);
      if (value < least) {
        least = value;
        *best = setting;
      }
    }
  }
  return least;
}

/* A small random change. */
static void vary(struct periodic *periodic, struct setting *setting) {
  static const double leads[] = {0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, WEFT_LEAD_ANY};
  struct weft_random *random = &periodic->random;
  switch (weft_random_below(random, 11)) {
    case 0:
    case 1:
      setting->stretch *= 1 + 0.04 * (weft_random_share(random) - 0.5);
      setting->stretch = setting->stretch < 1 ? 1 : setting->stretch;
      break;
    case 2:
    case 3: {
      const uint32_t which = weft_random_below(random, SPARES);
      const int32_t spare = weft_random_below(random, 6) == 0
                                ? ANY_NUMBER
                                : (int32_t)weft_random_below(random, 6) - 1;
      const bool all = weft_random_below(random, 3) == 0;
      for (unsigned k = 0; k < SPARES; k++) {
        setting->spare[k] = all || k == which ? spare : setting->spare[k];
      }
      break;
    }
    case 4: setting->lead = leads[weft_random_below(random, WEFT_ARRAY_LENGTH(leads))]; break;
    case 5: setting->fill = weft_random_below(random, 5) / 4.0; break;
    case 6:
      if (setting->wait_count > 0) {
        setting->waits[weft_random_below(random, setting->wait_count)] =
            setting->waits[setting->wait_count - 1];
        setting->wait_count--;
      }
      break;
    case 7: setting->pace = (1 + weft_random_below(random, 8)) / 8.0; break;
    default: {
      const uint32_t n = setting->wait_count < WAITS_MAX ? setting->wait_count++
                                                         : weft_random_below(random, WAITS_MAX);
      setting->waits[n].step =
          weft_random_below(random, 2 * periodic->problem->stage_count * setting->group);
      setting->waits[n].periods = 0.5 * weft_random_share(random);
    }
  }
}

/* How much worse a setting may be than the last one that was kept, at first. */
#define TOLERANCE 0.01

/* From the best usual setting; half of all searches have larger groups. */
static void search(struct periodic *periodic) {
  struct weft_random *random = &periodic->random;
  struct setting kept = {.group = 1, .stretch = 1};
  int64_t value = try_usual(periodic, &kept);
  if (periodic->problem->microbatch_count >= GROUP_MAX && weft_random_below(random, 2) == 0) {
    kept.group = 2 + weft_random_below(random, GROUP_MAX - 1);
    value = WEFT_NEVER;
  }
  const double work = (double)periodic->work_left;
  while (!is_finished(periodic)) {
    struct setting other = kept;
    do {
      vary(periodic, &other);
    } while (weft_random_below(random, 2) == 0);
    const double tolerance =
        TOLERANCE * weft_random_share(random) * (double)periodic->work_left / work;
    const int64_t cutoff =
        value == WEFT_NEVER ? WEFT_NEVER - 1 : value + (int64_t)((double)value * tolerance);
    const int64_t next = value_of(periodic, &other, cutoff);
    if (next <= cutoff) {
      value = next;
      kept = other;
    }
  }
}

/* ---- The constructor ---- */

static bool allocate_patterns(struct periodic *periodic, struct pattern *patterns) {
  const size_t stages = periodic->problem->stage_count, ranks = periodic->problem->rank_count;
  struct weft_arena *arena = periodic->arena;
  for (uint32_t n = 0; n < WIDTH; n++) {
    if (!WEFT_ALLOCATE(arena, patterns[n].start, GROUP_MAX * 2 * stages) ||
        !WEFT_ALLOCATE(arena, patterns[n].slots, GROUP_MAX * 2 * stages) ||
        !WEFT_ALLOCATE(arena, patterns[n].counts, ranks) ||
        !WEFT_ALLOCATE(arena, patterns[n].lost, ranks)) {
      return false;
    }
  }
  return true;
}

static bool allocate(struct periodic *periodic) {
  struct weft_arena *arena = periodic->arena;
  return WEFT_ALLOCATE(arena, periodic->now, WIDTH) &&
         WEFT_ALLOCATE(arena, periodic->next, WIDTH) &&
         WEFT_ALLOCATE(arena, periodic->choices, (size_t)WIDTH * CHOICES) &&
         WEFT_ALLOCATE(arena, periodic->open, periodic->problem->stage_count) &&
         allocate_patterns(periodic, periodic->now) && allocate_patterns(periodic, periodic->next);
}

static void set_open(struct periodic *periodic) {
  const struct weft_problem *problem = periodic->problem;
  double open = 0;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_problem_stage *stage = &problem->stages[s];
    open += ((double)stage->held + 1e-6) / ((double)problem->limit[stage->rank] + 1);
    periodic->open[s] = open;
  }
}

uint64_t weft_construct_periodic(struct weft_incumbent *incumbent, uint64_t work, uint64_t seed) {
  assert(incumbent != NULL && incumbent->draft.ops != NULL);
  const struct weft_problem *problem = incumbent->problem;
  struct weft_error error;
  WEFT_SCOPED_ARENA arena = {.allocator = problem->allocator};
  struct periodic periodic = {.incumbent = incumbent,
                              .problem = problem,
                              .arena = &arena,
                              .random = {.state = seed},
                              .work_left = work};
  /* Without memory for it, the search goes on without it. */
  if (!weft_incumbent_is_done(incumbent) &&
      weft_list_scheduler_init(&periodic.scheduler, problem, &incumbent->clock, &arena, &error) ==
          WEFT_OK &&
      allocate(&periodic)) {
    set_open(&periodic);
    if (periodic.scheduler.period > 0) { /* work that takes no time has no period */
      search(&periodic);
    }
  }
  return work - periodic.work_left;
}
