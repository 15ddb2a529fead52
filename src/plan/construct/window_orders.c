/* Orders from the windows that a bound leaves: ops are put one after the other, in order of
 * their starts, and a rank takes only ops after which it can still end in time, as far
 * as it knows by itself. The target is a little above the bound, then more and more; rules
 * differ in which of the ops that are left to a rank goes first, and how long one
 * waits for F or I rather than start W. */
#include <weft/support.h>

#include "plan/construct/window_orders.h"

#include "base/memory.h"
#include "plan/bounds/bound_windows.h"

struct rule {
  uint8_t priority[WEFT_KINDS]; /* smaller goes first */
  bool by_slack;                /* the op that can wait least instead; W waits */
  uint8_t patience;             /* quarters of W */
};

static const struct rule rules[] = {
    {{1, 0, 2, 0}, false, 0}, {{0, 1, 2, 1}, false, 0}, {{2, 0, 1, 0}, false, 0},
    {{1, 0, 2, 0}, false, 1}, {{1, 0, 2, 0}, false, 2}, {{1, 0, 2, 0}, false, 3},
    {{1, 0, 2, 0}, false, 4}, {{1, 0, 2, 0}, true, 0},  {{1, 0, 2, 0}, true, 1},
    {{1, 0, 2, 0}, true, 2},  {{1, 0, 2, 0}, true, 3},  {{1, 0, 2, 0}, true, 4},
};

/* Targets above the bound, in 1/10,000 of it. */
static const int64_t excesses[] = {0, 5, 10, 20, 40, 60, 100, 150, 200, 300, 500};

/* A op that may go next on a rank. */
struct candidate {
  bool is_there;
  bool in_time; /* the rank can still end in time */
  uint32_t stage;
  enum weft_plan_op_kind kind;
  int64_t start, slack;
  struct weft_state_table_at to;
};

struct drafting {
  const struct weft_problem *problem;
  struct weft_windows windows;
  struct weft_state_table_kept *kept; /* [rank] */
  struct weft_state_table_at *at;     /* [rank] */
  int64_t *clock, *held;              /* [rank] */
  uint32_t *size;                     /* [rank] ops put */
  uint32_t *done;                     /* [stage * WEFT_KINDS + kind] */
  int64_t *arrivals;                  /* [direction * stage_count * m + stage * m + k] */
  struct candidate *next;             /* [rank] what it would put */
  const struct rule *rule;
  uint32_t kept_count;
};

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- Room ---- */

static size_t arrival_count(const struct weft_problem *problem) {
  return (size_t)WEFT_DIRECTIONS * problem->stage_count * problem->microbatch_count;
}

static bool allocate(struct drafting *drafting) {
  const struct weft_problem *problem = drafting->problem;
  const struct weft_allocator *allocator = problem->allocator;
  const size_t ranks = problem->rank_count;
#define ROOM(field, count) \
  ((drafting->field = weft_array_allocate_zero(allocator, count, sizeof *drafting->field)))
  if (!(ROOM(kept, ranks) && ROOM(at, ranks) && ROOM(clock, ranks) && ROOM(held, ranks) &&
        ROOM(size, ranks) && ROOM(done, (size_t)problem->stage_count * WEFT_KINDS) &&
        ROOM(arrivals, arrival_count(problem)) && ROOM(next, ranks))) {
    return false;
  }
#undef ROOM
  for (; drafting->kept_count < ranks; drafting->kept_count++) {
    struct weft_state_table_kept *kept = &drafting->kept[drafting->kept_count];
    if (!weft_state_table_keep_init(kept, &drafting->windows.table, drafting->kept_count)) {
      weft_state_table_keep_finish(kept, &drafting->windows.table, drafting->kept_count);
      return false;
    }
  }
  return true;
}

static void release(struct drafting *drafting) {
  const struct weft_problem *problem = drafting->problem;
  const struct weft_allocator *allocator = problem->allocator;
  const size_t ranks = problem->rank_count;
  for (uint32_t r = 0; r < drafting->kept_count; r++) {
    weft_state_table_keep_finish(&drafting->kept[r], &drafting->windows.table, r);
  }
#define FREE(field, count) \
  weft_array_free(allocator, drafting->field, count, sizeof *drafting->field)
  FREE(kept, ranks);
  FREE(at, ranks);
  FREE(clock, ranks);
  FREE(held, ranks);
  FREE(size, ranks);
  FREE(done, (size_t)problem->stage_count * WEFT_KINDS);
  FREE(arrivals, arrival_count(problem));
  FREE(next, ranks);
#undef FREE
}

/* ---- What may go next ---- */

static unsigned direction_of(enum weft_plan_op_kind kind) {
  return kind == WEFT_KIND_F ? WEFT_DIRECTION_FORWARD : WEFT_DIRECTION_BACKWARD;
}

static int64_t *arrival_at(const struct drafting *drafting, uint32_t stage, unsigned direction,
                           uint32_t k) {
  const struct weft_problem *problem = drafting->problem;
  return &drafting->arrivals[((size_t)direction * problem->stage_count + stage) *
                                 problem->microbatch_count +
                             k];
}

/* When the input of the next op is there; -1 when that is not known, or it has no next. */
static int64_t input_of(const struct drafting *drafting, uint32_t stage,
                        enum weft_plan_op_kind kind) {
  const struct weft_problem *problem = drafting->problem;
  const uint32_t *done = drafting->done + (size_t)stage * WEFT_KINDS;
  const uint32_t k = done[kind];
  if (kind == WEFT_KIND_F) {
    return k == problem->microbatch_count ? -1
           : stage == 0                   ? 0
           : k < done[(int)kind - WEFT_KINDS]
               ? *arrival_at(drafting, stage, WEFT_DIRECTION_FORWARD, k)
               : -1;
  }
  if (kind == WEFT_KIND_W) {
    return k < done[WEFT_KIND_I] ? 0 : -1;
  }
  if (k == done[WEFT_KIND_F]) {
    return -1;
  }
  return stage + 1 == problem->stage_count ? 0
         : k < done[kind + WEFT_KINDS] ? *arrival_at(drafting, stage, WEFT_DIRECTION_BACKWARD, k)
                                       : -1;
}

static int64_t change_of(const struct weft_problem_stage *stage, enum weft_plan_op_kind kind) {
  switch (kind) {
    case WEFT_KIND_F: return stage->held;
    case WEFT_KIND_I: return stage->held_after - stage->held;
    case WEFT_KIND_W: return -stage->held_after;
    default: return -stage->held;
  }
}

static struct candidate look_at(const struct drafting *drafting, uint32_t s,
                                enum weft_plan_op_kind kind) {
  const struct weft_problem *problem = drafting->problem;
  const struct weft_problem_stage *stage = &problem->stages[s];
  const uint32_t rank = stage->rank;
  const struct weft_state_table *table = &drafting->windows.table;
  struct candidate one = {.stage = s, .kind = kind, .to = drafting->at[rank]};
  const int64_t input = input_of(drafting, s, kind);
  if (input < 0 || drafting->held[rank] + change_of(stage, kind) > problem->limit[rank] ||
      !weft_state_table_follow(table, rank, stage->local_stage, kind, &one.to)) {
    return one;
  }
  const uint32_t k = drafting->done[(size_t)s * WEFT_KINDS + kind];
  const int64_t tail = kind == WEFT_KIND_W
                           ? drafting->windows.end[rank]
                           : drafting->windows.stages[s].tail[direction_of(kind)][k];
  const int64_t latest = weft_state_table_latest(table, &drafting->kept[rank], rank, one.to);
  one.is_there = true;
  one.start = larger(input, drafting->clock[rank]);
  one.slack = larger(smaller(latest, tail), INT64_MIN / 4) - one.start - stage->time[kind];
  one.in_time = one.slack >= 0;
  return one;
}

/* Whether one goes before another. */
static bool goes_before(const struct drafting *drafting, const struct candidate *a,
                        const struct candidate *b) {
  const struct rule *rule = drafting->rule;
  const int64_t wait = drafting->windows.end[drafting->problem->stages[a->stage].rank] / 50;
  if (rule->by_slack) {
    return a->slack + (a->kind == WEFT_KIND_W ? wait : 0) <
           b->slack + (b->kind == WEFT_KIND_W ? wait : 0);
  }
  return rule->priority[a->kind] != rule->priority[b->kind]
             ? rule->priority[a->kind] < rule->priority[b->kind]
             : a->slack < b->slack;
}

/* What a rank would put next; of ops in time if there are, else of all. */
static void choose(const struct drafting *drafting, uint32_t rank) {
  const struct weft_problem *problem = drafting->problem;
  const uint32_t v = problem->stages_per_rank;
  struct candidate list[WEFT_LOCAL_STAGES_MAX * WEFT_KINDS];
  uint32_t count = 0;
  bool in_time = false;
  for (uint32_t n = 0; n < v * WEFT_KINDS; n++) {
    list[count] = look_at(drafting, problem->stage_of[rank * v + n / WEFT_KINDS], n % WEFT_KINDS);
    const bool is_used = problem->whole_backward
                             ? n % WEFT_KINDS == WEFT_KIND_B || n % WEFT_KINDS == WEFT_KIND_F
                             : n % WEFT_KINDS != WEFT_KIND_B;
    if (is_used && list[count].is_there) {
      in_time = in_time || list[count].in_time;
      count++;
    }
  }
  int64_t first = INT64_MAX;
  for (uint32_t n = 0; n < count; n++) {
    first = list[n].in_time == in_time ? smaller(first, list[n].start) : first;
  }
  struct candidate *best = &drafting->next[rank];
  *best = (struct candidate){.start = INT64_MAX};
  for (uint32_t n = 0; n < count; n++) {
    const int64_t w = problem->stages[list[n].stage].time[WEFT_KIND_W];
    const int64_t patience = list[n].kind == WEFT_KIND_W ? 0 : w * drafting->rule->patience / 4;
    if (list[n].in_time == in_time && list[n].start <= first + patience &&
        (!best->is_there || goes_before(drafting, &list[n], best))) {
      *best = list[n];
    }
  }
}

/* ---- Putting ops ---- */

static void send(const struct drafting *drafting, uint32_t from, uint32_t to, unsigned direction,
                 uint32_t k, int64_t end) {
  const struct weft_problem *problem = drafting->problem;
  int64_t *arrival = arrival_at(drafting, to, direction, k);
  if (problem->stages[from].rank != problem->stages[to].rank) {
    const int64_t free_at = k > 0 ? arrival[-1] - problem->latency : 0;
    end = larger(end, free_at) + problem->occupancy + problem->latency;
  }
  *arrival = end;
}

/* Puts what a rank would; others may now know more. */
static void put(struct drafting *drafting, uint32_t rank, struct weft_order *order) {
  const struct weft_problem *problem = drafting->problem;
  const struct candidate one = drafting->next[rank];
  const struct weft_problem_stage *stage = &problem->stages[one.stage];
  const uint32_t k = drafting->done[(size_t)one.stage * WEFT_KINDS + one.kind]++;
  const int64_t end = one.start + stage->time[one.kind];
  weft_order_sequence(problem, order, rank)[drafting->size[rank]++] =
      (uint8_t)(stage->local_stage * WEFT_KINDS + one.kind);
  drafting->clock[rank] = end;
  drafting->held[rank] += change_of(stage, one.kind);
  drafting->at[rank] = one.to;
  uint32_t to = one.stage;
  if (one.kind == WEFT_KIND_F && one.stage + 1 < problem->stage_count) {
    to = one.stage + 1;
  } else if (one.kind != WEFT_KIND_F && one.kind != WEFT_KIND_W && one.stage > 0) {
    to = one.stage - 1;
  }
  if (to != one.stage) {
    send(drafting, one.stage, to, direction_of(one.kind), k, end);
    if (problem->stages[to].rank != rank) {
      choose(drafting, problem->stages[to].rank);
    }
  }
  choose(drafting, rank);
}

static void start(struct drafting *drafting) {
  const struct weft_problem *problem = drafting->problem;
  for (uint32_t n = 0; n < problem->stage_count * WEFT_KINDS; n++) {
    drafting->done[n] = 0;
  }
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    drafting->at[r] = weft_state_table_begin(&drafting->windows.table, r);
    drafting->clock[r] = drafting->held[r] = 0;
    drafting->size[r] = 0;
  }
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    choose(drafting, r);
  }
}

/* False when ranks come to wait for each other. */
static bool draft(struct drafting *drafting, struct weft_order *order) {
  const struct weft_problem *problem = drafting->problem;
  start(drafting);
  for (uint64_t left = (uint64_t)problem->rank_count * problem->length; left > 0; left--) {
    uint32_t rank = 0;
    for (uint32_t r = 1; r < problem->rank_count; r++) {
      rank = drafting->next[r].start < drafting->next[rank].start ? r : rank;
    }
    if (!drafting->next[rank].is_there) {
      return false;
    }
    put(drafting, rank, order);
  }
  return true;
}

/* ---- Targets ---- */

static void draft_all(struct drafting *drafting, struct weft_incumbent *incumbent) {
  for (uint32_t r = 0; r < incumbent->problem->rank_count; r++) {
    (void)weft_windows_fill(&drafting->windows, r);
    weft_state_table_keep(&drafting->kept[r], &drafting->windows.table, r);
  }
  for (size_t n = 0; n < sizeof rules / sizeof rules[0] && !weft_incumbent_is_optimal(incumbent);
       n++) {
    drafting->rule = &rules[n];
    if (draft(drafting, &incumbent->draft)) {
      (void)weft_incumbent_offer(incumbent, &incumbent->draft, NULL);
    }
  }
}

static void try_targets(struct drafting *drafting, struct weft_incumbent *incumbent) {
  const int64_t bound = incumbent->bound;
  for (size_t n = 0; n < sizeof excesses / sizeof excesses[0]; n++) {
    const int64_t target = bound + (int64_t)((double)bound * (double)excesses[n] * 1e-4);
    if (target >= incumbent->value) {
      return;
    }
    if (weft_windows_refute(&drafting->windows, incumbent->problem->objective, target)) {
      incumbent->bound = larger(incumbent->bound, target + 1);
    } else if (drafting->windows.work_left == 0) {
      return;
    } else {
      draft_all(drafting, incumbent);
    }
  }
}

static void sharpen(struct weft_incumbent *incumbent, uint64_t work) {
  if (weft_incumbent_is_optimal(incumbent)) {
    return;
  }
  const int64_t value = incumbent->value == WEFT_NEVER ? 2 * incumbent->bound : incumbent->value;
  incumbent->bound = weft_problem_sharpen(incumbent->problem, incumbent->problem->objective,
                                          incumbent->bound, value, work);
}

enum weft_status weft_construct_windows(struct weft_incumbent *incumbent, uint64_t work,
                                        struct weft_error *error) {
  struct weft_paths paths;
  if (!weft_paths_init(&paths, incumbent->problem)) {
    return weft_fail_memory(error, incumbent->problem->stage_count * sizeof(int64_t));
  }
  sharpen(incumbent, work / 4);
  struct drafting drafting = {.problem = incumbent->problem};
  if (weft_windows_init(&drafting.windows, &paths, work / 2) && allocate(&drafting)) {
    try_targets(&drafting, incumbent);
    sharpen(incumbent, work / 4); /* what was found is perhaps the best */
  }
  release(&drafting);
  weft_windows_finish(&drafting.windows);
  weft_paths_finish(&paths);
  return WEFT_OK;
}
