/* Refutes targets by time windows: assuming that all ranks end in time, the windows of all ops are
 * narrowed until nothing changes or one of them is empty.
 *
 * Every rank starts with its first F, whose arrival no order can change; so a target for a span or
 * a makespan gives each rank its end. An op cannot start before its input arrives (its head), nor
 * end so late that its consumers could not end in time (its tail). For one rank by itself, a table
 * over the numbers of F, I and W done (bound_table.c) has the earliest time of each state, and the
 * latest from which the rest still fits. An op that cannot follow anywhere in the table does not
 * do so in any order that reaches the target; the earliest and latest of those that can are the
 * new windows, which narrow the heads and tails of neighbouring stages. A rank whose table has no
 * feasible path proves that no order reaches the target.
 *
 * Where that table would be too large, it does not distinguish the stages of a rank: the n-th F of
 * the rank starts no earlier than the n-th smallest head of all its F, since n of them have
 * started by then; and ends no later than the n-th smallest tail, since all but n-1 have not ended
 * before. Times and sizes are then the smallest of the stages', and any number of ops takes at
 * least the sum of as many smallest times.
 *
 * Tables without W are smaller, and distinguish the stages of larger problems: W may then run at
 * any time after their I, but those that the memory has no room for must have run, and those
 * whose I is to come have not. */
#include <assert.h>
#include <string.h>

#include "plan/bounds/bound_windows.h"

static size_t time_count(const struct weft_problem *problem) {
  return (size_t)problem->stage_count * 2 * WEFT_DIRECTIONS * problem->microbatch_count;
}

static void describe_stages(struct weft_windows *windows) {
  const struct weft_problem *problem = windows->problem;
  const size_t m = problem->microbatch_count;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    struct weft_stage_windows *stage = &windows->stages[s];
    stage->time[WEFT_DIRECTION_FORWARD] = problem->stages[s].time[WEFT_KIND_F];
    stage->time[WEFT_DIRECTION_BACKWARD] = weft_least_gradient(problem, s);
    for (unsigned direction = 0; direction < WEFT_DIRECTIONS; direction++) {
      stage->head[direction] = windows->times + ((size_t)s * 2 * WEFT_DIRECTIONS + direction) * m;
      stage->tail[direction] = stage->head[direction] + WEFT_DIRECTIONS * m;
    }
  }
}

/* Whether the W of each rank's stages are identical, so that nothing distinguishes them. */
static bool weights_are_equal(const struct weft_problem *problem) {
  const uint32_t v = problem->stages_per_rank;
  for (uint32_t n = 0; n < problem->stage_count; n++) {
    const uint32_t s = problem->stage_of[n], first = problem->stage_of[n - n % v];
    if (weft_least_weight(problem, s) != weft_least_weight(problem, first) ||
        weft_least_after(problem, s) != weft_least_after(problem, first)) {
      return false;
    }
  }
  return true;
}

/* In as much detail as fits into `most` entries. The arena has nothing else yet. */
static bool make_table(struct weft_windows *windows, enum weft_line_detail detail, uint64_t most,
                       struct weft_arena *arena) {
  const struct weft_problem *problem = windows->problem;
  if (detail != WEFT_LINE_FLOW) {
    detail = problem->stages_per_rank == 1 ? WEFT_LINE_RANK
             : weights_are_equal(problem)
                 ? (enum weft_line_detail)weft_min(detail, WEFT_LINE_STAGES)
                 : detail;
  }
  while (!weft_state_table_init(&windows->table, problem, detail, most, arena)) {
    if (detail <= WEFT_LINE_FLOW) {
      return false;
    }
    weft_arena_finish(arena);
    detail = detail == WEFT_LINE_STAGES ? WEFT_LINE_RANK : detail - 1;
  }
  return true;
}

/* In this detail, or less when the tables would be too large for the work; WEFT_LINE_FLOW: in this
 * one. They live in the arena, which is empty before. False when out of memory, or when the tables are
 * still too large. */
static bool init_windows(struct weft_windows *windows, const struct weft_problem *problem,
                         enum weft_line_detail detail, uint64_t work, struct weft_arena *arena) {
  assert(windows != NULL && problem != NULL);
  *windows = (struct weft_windows){.problem = problem, .work_left = work};
  if (!make_table(windows, detail, work / problem->rank_count / 4, arena) ||
      !weft_paths_init(&windows->paths, problem, arena) ||
      !WEFT_ALLOCATE(arena, windows->stages, problem->stage_count) ||
      !WEFT_ALLOCATE(arena, windows->times, time_count(problem)) ||
      !WEFT_ALLOCATE(arena, windows->changed, problem->rank_count) ||
      !WEFT_ALLOCATE(arena, windows->end, problem->rank_count)) {
    return false;
  }
  describe_stages(windows);
  return true;
}

/* ---- Between stages and tables ---- */

static bool is_merged(const struct weft_windows *windows) {
  return windows->table.detail == WEFT_LINE_RANK;
}

/* The n-th smallest of the heads or tails of a rank's stages, each of which ascends. */
static void merge(const struct weft_windows *windows, uint32_t rank, unsigned direction, bool heads,
                  int64_t *out) {
  const struct weft_problem *problem = windows->problem;
  const uint32_t v = problem->stages_per_rank, m = problem->microbatch_count;
  uint32_t taken[WEFT_LOCAL_STAGES_MAX] = {0};
  for (uint32_t n = 0; n < v * m; n++) {
    uint32_t from = v;
    int64_t least = INT64_MAX;
    for (uint32_t k = 0; k < v; k++) {
      const struct weft_stage_windows *stage = &windows->stages[problem->stage_of[rank * v + k]];
      const int64_t *list = heads ? stage->head[direction] : stage->tail[direction];
      if (taken[k] < m && (from == v || list[taken[k]] < least)) {
        least = list[taken[k]];
        from = k;
      }
    }
    taken[from]++;
    out[n] = least;
  }
}

/* The op of a local stage on the line. */
static uint32_t op_of(const struct weft_state_table *table, uint32_t local_stage,
                      unsigned direction) {
  const uint32_t n = table->detail == WEFT_LINE_RANK ? 0 : local_stage;
  return direction == WEFT_DIRECTION_FORWARD ? n : table->line - 1 - n;
}

/* Fills the table of a rank from its windows. False when it has no feasible path. */
static bool fill_table(struct weft_windows *windows, uint32_t rank) {
  assert(rank < windows->problem->rank_count);
  const struct weft_problem *problem = windows->problem;
  struct weft_state_table *table = &windows->table;
  for (uint32_t k = 0; k < table->line / 2; k++) {
    const struct weft_stage_windows *stage =
        &windows->stages[problem->stage_of[rank * problem->stages_per_rank + k]];
    for (unsigned direction = 0; direction < WEFT_DIRECTIONS; direction++) {
      struct weft_state_table_op *op = &table->ops[op_of(table, k, direction)];
      if (is_merged(windows)) {
        merge(windows, rank, direction, true, op->head);
        merge(windows, rank, direction, false, op->tail);
      } else {
        memcpy(op->head, stage->head[direction], table->count * sizeof *op->head);
        memcpy(op->tail, stage->tail[direction], table->count * sizeof *op->tail);
      }
    }
  }
  return weft_state_table_fill(table, rank, windows->paths.forward[rank], windows->end[rank]);
}

/* Ops of the same kind in the table that precede microbatch k of a local stage: those of the
 * stage; if stages are merged, also those of the stages that the microbatch comes from. */
static uint32_t come_before(const struct weft_windows *windows, uint32_t local_stage,
                            unsigned direction, uint32_t k) {
  const uint32_t last = windows->problem->stages_per_rank - 1;
  const uint32_t from = direction == WEFT_DIRECTION_FORWARD ? local_stage : last - local_stage;
  return is_merged(windows) ? k + from * (k + 1) : k;
}

/* Likewise those that come after. */
static uint32_t come_after(const struct weft_windows *windows, uint32_t local_stage,
                           unsigned direction, uint32_t k) {
  const uint32_t last = windows->problem->stages_per_rank - 1;
  const uint32_t left = windows->problem->microbatch_count - 1 - k;
  const uint32_t to = direction == WEFT_DIRECTION_FORWARD ? last - local_stage : local_stage;
  return is_merged(windows) ? left + to * (left + 1) : left;
}

/* ---- Propagation ---- */

static void pass_head(struct weft_windows *windows, uint32_t s, unsigned direction) {
  const struct weft_problem *problem = windows->problem;
  const uint32_t next = direction == WEFT_DIRECTION_FORWARD ? s + 1 : s - 1;
  if (next >= problem->stage_count) {
    return;
  }
  const bool crosses = problem->stages[s].rank != problem->stages[next].rank;
  const struct weft_stage_windows *from = &windows->stages[s], *to = &windows->stages[next];
  int64_t before = INT64_MIN / 2;
  for (uint32_t k = 0; k < problem->microbatch_count; k++) {
    int64_t arrival = from->head[direction][k] + from->time[direction];
    if (crosses) {
      arrival = weft_max(arrival + problem->latency, before) + problem->chain_occupancy;
      before = arrival;
    }
    if (arrival > to->head[direction][k]) {
      to->head[direction][k] = arrival;
      windows->changed[problem->stages[next].rank] = true;
    }
  }
}

/* The latest end at the previous stage such that the op here ends in time. */
static void pass_tail(struct weft_windows *windows, uint32_t s, unsigned direction) {
  const struct weft_problem *problem = windows->problem;
  const uint32_t next = direction == WEFT_DIRECTION_FORWARD ? s - 1 : s + 1;
  if (next >= problem->stage_count) {
    return;
  }
  const bool crosses = problem->stages[s].rank != problem->stages[next].rank;
  const struct weft_stage_windows *from = &windows->stages[s], *to = &windows->stages[next];
  int64_t after = INT64_MAX;
  for (uint32_t k = problem->microbatch_count; k-- > 0;) {
    int64_t left = from->tail[direction][k] - from->time[direction];
    if (crosses) {
      left = weft_min(left - problem->latency, after) - problem->chain_occupancy;
      after = left;
    }
    if (left < to->tail[direction][k]) {
      to->tail[direction][k] = left;
      windows->changed[problem->stages[next].rank] = true;
    }
  }
}

/* Narrows the windows of a stage by the table of its rank. */
static void read_table(struct weft_windows *windows, uint32_t s, unsigned direction) {
  const struct weft_problem *problem = windows->problem;
  const struct weft_state_table *table = &windows->table;
  struct weft_stage_windows *stage = &windows->stages[s];
  const uint32_t local_stage = problem->stages[s].local_stage, m = problem->microbatch_count;
  const struct weft_state_table_op *op = &table->ops[op_of(table, local_stage, direction)];
  int64_t before = INT64_MIN / 2, after = INT64_MAX;
  for (uint32_t k = 0; k < m; k++) {
    const int64_t start = op->start[come_before(windows, local_stage, direction, k)];
    int64_t *head = &stage->head[direction][k];
    *head = weft_max(*head, weft_max(start, before));
    before = *head + stage->time[direction];
  }
  for (uint32_t k = m; k-- > 0;) {
    const int64_t end = op->stop[table->count - 1 - come_after(windows, local_stage, direction, k)];
    int64_t *tail = &stage->tail[direction][k];
    *tail = weft_min(*tail, weft_min(end, after));
    after = *tail - stage->time[direction];
  }
}

/* False when the rank has no feasible path. */
static bool narrow(struct weft_windows *windows, uint32_t rank) {
  const struct weft_problem *problem = windows->problem;
  windows->changed[rank] = false;
  const bool done = fill_table(windows, rank);
  const uint64_t work = windows->table.visited + weft_state_table_size(&windows->table, rank) / 16;
  windows->work_left -= work < windows->work_left ? work : windows->work_left;
  if (windows->table.cancelled) {
    windows->work_left = 0;
    return true;
  }
  if (!done) {
    return false;
  }
  for (uint32_t k = 0; k < problem->stages_per_rank; k++) {
    const uint32_t s = problem->stage_of[rank * problem->stages_per_rank + k];
    for (unsigned direction = 0; direction < WEFT_DIRECTIONS; direction++) {
      read_table(windows, s, direction);
      pass_head(windows, s, direction);
      pass_tail(windows, s, direction);
    }
  }
  return true;
}

static void open_windows(struct weft_windows *windows, int64_t target) {
  const struct weft_problem *problem = windows->problem;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t start = windows->paths.forward[r];
    windows->end[r] = target + (problem->objective == WEFT_OBJECTIVE_SPAN ? start : 0);
    windows->changed[r] = true;
  }
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    struct weft_stage_windows *stage = &windows->stages[s];
    const int64_t start = windows->paths.forward[s];
    const int64_t back =
        start + weft_paths_trip(&windows->paths, s, s) - stage->time[WEFT_DIRECTION_BACKWARD];
    for (uint32_t k = 0; k < problem->microbatch_count; k++) {
      stage->head[WEFT_DIRECTION_FORWARD][k] = start;
      stage->head[WEFT_DIRECTION_BACKWARD][k] = back;
      stage->tail[WEFT_DIRECTION_FORWARD][k] = windows->end[problem->stages[s].rank];
      stage->tail[WEFT_DIRECTION_BACKWARD][k] = windows->end[problem->stages[s].rank];
    }
  }
}

/* Sweeps the ranks in both directions as long as windows change. True when no order has an objective
 * of `target` or less. Else the windows are as narrow as propagation makes them within the work. */
static bool refute(struct weft_windows *windows, int64_t target) {
  assert(windows->stages != NULL);
  const uint32_t count = windows->problem->rank_count;
  open_windows(windows, target);
  bool changed = true;
  while (changed) {
    changed = false;
    for (uint32_t n = 0; n < 2 * count; n++) {
      const uint32_t r = n < count ? count - 1 - n : n - count;
      if (!windows->changed[r]) {
        continue;
      }
      if (windows->work_left == 0) {
        return false;
      }
      changed = true;
      if (!narrow(windows, r)) {
        return true;
      }
    }
  }
  return false;
}

/* A value this close to the bound, as a share of it, may well be optimal. */
#define CLOSE 0.005

/* With half of the work that is left. */
static bool refute_in_part(struct weft_windows *windows, int64_t target) {
  const uint64_t rest = windows->work_left / 2;
  windows->work_left -= rest;
  const bool refuted = refute(windows, target);
  windows->work_left += rest;
  return refuted;
}

enum { WORK_MIN = 1000, FIRST_STEP = 8 };

/* A target is refuted if a larger one is, so bisection finds the largest, to a millionth of a
 * percent. Smaller ones take less work, so it starts near the bound, with the bound itself: if
 * that is not refuted, nothing is. The value, which would be optimal, comes first when it is
 * close, and after two targets in a row that have been refuted. */
static int64_t sharpen_with(struct weft_windows *windows, int64_t bound, int64_t value) {
  const int64_t enough = bound / 100000000;
  int64_t below = bound; /* nothing is smaller */
  int64_t above = value; /* not refuted from here on */
  int64_t target = bound;
  uint32_t refuted = (double)(value - bound) < CLOSE * (double)bound ? 2 : 0;
  while (windows->work_left > WORK_MIN) {
    const bool last = refuted >= 2 && above == value;
    target = last ? value - 1 : target;
    if (refute_in_part(windows, target)) {
      below = target + 1;
      refuted++;
    } else {
      above = target;
      refuted = last ? refuted : 0;
    }
    if (above - below <= enough || above == bound) {
      break;
    }
    target = below + (above - below) / (below == bound + 1 && above == value ? FIRST_STEP : 2);
  }
  return below;
}

/* Tables without W first, which are small and often prove as much. */
int64_t weft_chain_sharpen(const struct weft_problem *problem, int64_t bound, int64_t value,
                           uint64_t *work) {
  static const enum weft_line_detail details[] = {WEFT_LINE_FLOW, WEFT_LINE_WEIGHTS};
  assert(problem != NULL && bound >= 0 && work != NULL);
  const uint64_t part = *work / WEFT_ARRAY_LENGTH(details);
  *work = 0;
  for (size_t n = 0; n < WEFT_ARRAY_LENGTH(details) && bound < value; n++) {
    WEFT_SCOPED_ARENA arena = {.allocator = problem->allocator};
    struct weft_windows windows;
    if (init_windows(&windows, problem, details[n], part, &arena)) {
      bound = sharpen_with(&windows, bound, value);
      *work += part - windows.work_left;
    }
  }
  assert(bound <= value);
  return bound;
}

/* ---- A guide ---- */

bool weft_guide_init(struct weft_guide *guide, const struct weft_problem *problem, uint64_t work,
                     struct weft_arena *arena) {
  assert(guide != NULL && problem != NULL);
  *guide = (struct weft_guide){.problem = problem};
  if (!init_windows(&guide->windows, problem, WEFT_LINE_WEIGHTS, work, arena) ||
      !WEFT_ALLOCATE(arena, guide->kept, problem->rank_count)) {
    return false;
  }
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    if (!weft_state_table_keep_init(&guide->kept[r], &guide->windows.table, r, arena)) {
      return false;
    }
  }
  return true;
}

enum weft_guide_result weft_guide_aim(struct weft_guide *guide, int64_t target) {
  assert(guide->problem != NULL && guide->kept != NULL);
  struct weft_windows *windows = &guide->windows;
  if (refute(windows, target)) {
    return WEFT_GUIDE_REFUTED;
  }
  for (uint32_t r = 0; r < guide->problem->rank_count && windows->work_left > 0; r++) {
    const bool done = fill_table(windows, r);
    guide->filled += windows->table.visited;
    if (windows->table.cancelled) {
      windows->work_left = 0;
    } else if (!done) {
      return WEFT_GUIDE_REFUTED;
    } else {
      weft_state_table_keep(&guide->kept[r], &windows->table, r);
    }
  }
  return windows->work_left > 0 ? WEFT_GUIDE_OPEN : WEFT_GUIDE_UNKNOWN;
}
