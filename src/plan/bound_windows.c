/* Whether an objective can be reached at all: the windows of all letters, given that everything
 * ends in time, made smaller until one of them closes.
 *
 * With one stage a rank. Every rank starts with its first F, which arrives at a time that no
 * order can change; so a target for a span or a makespan gives each rank the time at which it
 * ends. A letter cannot start before its input arrives (its head), nor end so late
 * that what waits for it could not end in time (its tail). For one rank by itself, a
 * table over the numbers of F, I and W done has the earliest time at which they can be
 * done, and the latest from which the rest still can, within memory, heads and tails.
 * A letter that cannot follow anywhere in the table, in time, does not follow in any order
 * that reaches the target; the earliest and latest of those that can are the new windows,
 * and the heads and tails of the ranks beside. A rank whose table has no way through
 * proves that no order reaches the target. */
#include <string.h>

#include "base/memory.h"
#include "plan/bound.h"

enum { OUT, BACK, WAYS }; /* F and I (or B) of a stage */

/* Windows of a rank's letters, by microbatch. */
struct rank_windows {
  int64_t *head[WAYS]; /* [m] it starts no earlier */
  int64_t *tail[WAYS]; /* [m] it ends no later */
  int64_t end;         /* of the rank */
  int64_t f, i, w;
  int64_t held, after, limit;
  uint32_t most;         /* microbatches that await I at once */
  uint32_t most_weights; /* and W */
  bool changed;          /* since the table was made */
};

struct windows {
  const struct weft_problem *problem;
  const struct weft_paths *paths;
  struct rank_windows *ranks;
  int64_t *times;     /* [rank_count * 2 * WAYS * m]: heads and tails */
  int64_t *earliest;  /* the table: [(a * (most + 1) + x) * (most_weights + 1) + y] */
  int64_t *latest;    /* the same */
  size_t table_size;  /* of the largest rank */
  int64_t *found[4];  /* [m] of the rank at hand: earliest end, latest start of F, of I */
  uint64_t work_left; /* entries that may still be looked at */
};

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- Room ---- */

static uint32_t room_for(const struct weft_problem *problem, int64_t limit, int64_t size) {
  const int64_t m = problem->microbatch_count;
  return (uint32_t)(size == 0 ? m : smaller(m, larger(0, limit) / size));
}

static size_t table_size(const struct weft_problem *problem, const struct rank_windows *rank) {
  return ((size_t)problem->microbatch_count + 1) * (rank->most + 1) * (rank->most_weights + 1);
}

static void describe_rank(struct windows *windows, uint32_t r) {
  const struct weft_problem *problem = windows->problem;
  const struct weft_problem_stage *stage = &problem->stages[r];
  struct rank_windows *rank = &windows->ranks[r];
  *rank = (struct rank_windows){.f = stage->time[WEFT_LETTER_F],
                                .i = weft_paths_back(problem, r),
                                .w = weft_paths_weight(problem, r),
                                .held = stage->held,
                                .after = problem->whole_backward ? 0 : stage->held_after,
                                .limit = problem->limit[r]};
  rank->most = room_for(problem, rank->limit, rank->held);
  rank->most_weights = problem->whole_backward ? 0 : room_for(problem, rank->limit, rank->after);
  const size_t m = problem->microbatch_count;
  for (unsigned way = 0; way < WAYS; way++) {
    rank->head[way] = windows->times + ((size_t)r * 2 * WAYS + way) * m;
    rank->tail[way] = windows->times + ((size_t)r * 2 * WAYS + WAYS + way) * m;
  }
  const size_t size = table_size(problem, rank);
  windows->table_size = size > windows->table_size ? size : windows->table_size;
}

static size_t time_count(const struct weft_problem *problem) {
  return (size_t)problem->rank_count * 2 * WAYS * problem->microbatch_count;
}

static void windows_finish(struct windows *windows) {
  const struct weft_allocator *allocator = windows->problem->allocator;
  const size_t m = windows->problem->microbatch_count;
  weft_array_free(allocator, windows->ranks, windows->problem->rank_count, sizeof *windows->ranks);
  weft_array_free(allocator, windows->times, time_count(windows->problem), sizeof(int64_t));
  weft_array_free(allocator, windows->earliest, windows->table_size, sizeof(int64_t));
  weft_array_free(allocator, windows->latest, windows->table_size, sizeof(int64_t));
  weft_array_free(allocator, windows->found[0], 4 * m, sizeof(int64_t));
}

/* False when there is no room, or not within the work. */
static bool windows_init(struct windows *windows, const struct weft_paths *paths, uint64_t work) {
  const struct weft_problem *problem = paths->problem;
  const struct weft_allocator *allocator = problem->allocator;
  const size_t m = problem->microbatch_count;
  *windows = (struct windows){.problem = problem, .paths = paths, .work_left = work};
  windows->ranks = weft_array_allocate(allocator, problem->rank_count, sizeof *windows->ranks);
  windows->times = weft_array_allocate(allocator, time_count(problem), sizeof(int64_t));
  windows->found[0] = weft_array_allocate(allocator, 4 * m, sizeof(int64_t));
  if (windows->ranks == NULL || windows->times == NULL || windows->found[0] == NULL) {
    return false;
  }
  for (unsigned n = 1; n < 4; n++) {
    windows->found[n] = windows->found[0] + n * m;
  }
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    describe_rank(windows, r);
  }
  if (windows->table_size > work / problem->rank_count) {
    windows->table_size = 0;
    return false;
  }
  windows->earliest = weft_array_allocate(allocator, windows->table_size, sizeof(int64_t));
  windows->latest = weft_array_allocate(allocator, windows->table_size, sizeof(int64_t));
  return windows->earliest != NULL && windows->latest != NULL;
}

/* ---- The table of a rank ---- */

/* What is done: a F, of which x await I, and y await W. */
struct done {
  uint32_t a, x, y;
};

static size_t entry(const struct rank_windows *rank, struct done at) {
  return ((size_t)at.a * (rank->most + 1) + at.x) * (rank->most_weights + 1) + at.y;
}

static bool fits(const struct rank_windows *rank, uint32_t x, uint32_t y) {
  return x <= rank->most && y <= rank->most_weights &&
         x * rank->held + y * rank->after <= rank->limit;
}

#define UNREACHED INT64_MAX
#define HOPELESS INT64_MIN

/* A letter that may follow. */
struct following {
  struct done to;
  int64_t head, tail, time;
};

enum { MOST_FOLLOWING = 3 };

/* The letters that may follow, F first, then I; *count of them. kinds[] says which. */
static unsigned list_following(const struct windows *windows, const struct rank_windows *rank,
                               struct done at, struct following *list, unsigned *kinds) {
  const uint32_t m = windows->problem->microbatch_count;
  const bool whole = windows->problem->whole_backward;
  unsigned count = 0;
  if (at.a < m && fits(rank, at.x + 1, at.y)) {
    kinds[count] = OUT;
    list[count++] = (struct following){.to = {at.a + 1, at.x + 1, at.y},
                                       .head = rank->head[OUT][at.a],
                                       .tail = rank->tail[OUT][at.a],
                                       .time = rank->f};
  }
  if (at.x > 0 && fits(rank, at.x - 1, whole ? 0 : at.y + 1)) {
    kinds[count] = BACK;
    list[count++] = (struct following){.to = {at.a, at.x - 1, whole ? 0 : at.y + 1},
                                       .head = rank->head[BACK][at.a - at.x],
                                       .tail = rank->tail[BACK][at.a - at.x],
                                       .time = rank->i};
  }
  if (at.y > 0) {
    kinds[count] = WAYS;
    list[count++] = (struct following){
        .to = {at.a, at.x, at.y - 1}, .head = 0, .tail = rank->end, .time = rank->w};
  }
  return count;
}

static int64_t rest_of(const struct windows *windows, const struct rank_windows *rank,
                       struct done at) {
  const int64_t m = windows->problem->microbatch_count;
  const int64_t backs = m - at.a + at.x;
  return (m - at.a) * rank->f + backs * rank->i + (backs + at.y) * rank->w;
}

static void reach(const struct windows *windows, const struct rank_windows *rank, struct done at) {
  const int64_t clock = windows->earliest[entry(rank, at)];
  struct following list[MOST_FOLLOWING];
  unsigned kinds[MOST_FOLLOWING];
  const unsigned count = list_following(windows, rank, at, list, kinds);
  for (unsigned n = 0; n < count; n++) {
    const int64_t end = larger(clock, list[n].head) + list[n].time;
    int64_t *to = &windows->earliest[entry(rank, list[n].to)];
    if (end <= list[n].tail && end < *to && end + rest_of(windows, rank, list[n].to) <= rank->end) {
      *to = end;
    }
  }
}

/* Earliest times, from nothing done on: a ascending, then x and y descending, since F only
 * adds to a, and I and W take from x and y. */
static void go_forward(const struct windows *windows, const struct rank_windows *rank,
                       int64_t start) {
  const size_t size = table_size(windows->problem, rank);
  for (size_t n = 0; n < size; n++) {
    windows->earliest[n] = UNREACHED;
  }
  windows->earliest[0] = start;
  for (uint32_t a = 0; a <= windows->problem->microbatch_count; a++) {
    for (uint32_t x = (a < rank->most ? a : rank->most) + 1; x-- > 0;) {
      const uint32_t done = a - x;
      for (uint32_t y = (done < rank->most_weights ? done : rank->most_weights) + 1; y-- > 0;) {
        if (windows->earliest[entry(rank, (struct done){a, x, y})] != UNREACHED) {
          reach(windows, rank, (struct done){a, x, y});
        }
      }
    }
  }
}

/* The latest time at which the rest can begin; and what that says of the letters that
 * follow here. */
static void look_back(const struct windows *windows, const struct rank_windows *rank,
                      struct done at) {
  const int64_t clock = windows->earliest[entry(rank, at)];
  struct following list[MOST_FOLLOWING];
  unsigned kinds[MOST_FOLLOWING];
  const unsigned count = list_following(windows, rank, at, list, kinds);
  int64_t latest = HOPELESS;
  for (unsigned n = 0; n < count; n++) {
    const int64_t then = windows->latest[entry(rank, list[n].to)];
    if (then == HOPELESS) {
      continue;
    }
    const int64_t start = smaller(then, list[n].tail) - list[n].time;
    if (start < larger(clock, list[n].head)) {
      continue;
    }
    latest = larger(latest, start);
    if (kinds[n] < WAYS) {
      const uint32_t k = kinds[n] == OUT ? at.a : at.a - at.x;
      int64_t *end = &windows->found[(size_t)kinds[n] * 2][k];
      int64_t *begin = &windows->found[(size_t)kinds[n] * 2 + 1][k];
      *end = smaller(*end, larger(clock, list[n].head) + list[n].time);
      *begin = larger(*begin, start);
    }
  }
  windows->latest[entry(rank, at)] = latest;
}

static void go_backward(const struct windows *windows, const struct rank_windows *rank) {
  const uint32_t m = windows->problem->microbatch_count;
  for (uint32_t k = 0; k < m; k++) {
    windows->found[0][k] = windows->found[2][k] = INT64_MAX;
    windows->found[1][k] = windows->found[3][k] = INT64_MIN;
  }
  for (uint32_t a = m + 1; a-- > 0;) {
    for (uint32_t x = 0; x <= rank->most && x <= a; x++) {
      for (uint32_t y = 0; y <= rank->most_weights && y <= a - x; y++) {
        const struct done at = {a, x, y};
        const size_t n = entry(rank, at);
        if (windows->earliest[n] == UNREACHED) {
          windows->latest[n] = HOPELESS;
        } else if (a == m && x == 0 && y == 0) {
          windows->latest[n] = rank->end;
        } else {
          look_back(windows, rank, at);
        }
      }
    }
  }
}

/* ---- From rank to rank ---- */

/* What arrives at `to` from ends at the rank beside, in order, through a channel. */
static void pass_heads(const struct windows *windows, const int64_t *ends, struct rank_windows *to,
                       unsigned way) {
  const struct weft_problem *problem = windows->problem;
  int64_t before = INT64_MIN / 2;
  for (uint32_t k = 0; k < problem->microbatch_count; k++) {
    const int64_t arrival = larger(ends[k] + problem->latency, before) + problem->occupancy;
    before = arrival;
    if (arrival > to->head[way][k]) {
      to->head[way][k] = arrival;
      to->changed = true;
    }
  }
}

/* When it must have ended there for what starts here. */
static void pass_tails(const struct windows *windows, const int64_t *starts,
                       struct rank_windows *to, unsigned way) {
  const struct weft_problem *problem = windows->problem;
  int64_t after = INT64_MAX;
  for (uint32_t k = problem->microbatch_count; k-- > 0;) {
    const int64_t left = smaller(starts[k] - problem->latency, after) - problem->occupancy;
    after = left;
    if (left < to->tail[way][k]) {
      to->tail[way][k] = left;
      to->changed = true;
    }
  }
}

/* False when the rank has no way through. */
static bool narrow(struct windows *windows, uint32_t r) {
  struct rank_windows *rank = &windows->ranks[r];
  rank->changed = false;
  go_forward(windows, rank, windows->paths->forward[r]);
  const struct done all = {windows->problem->microbatch_count, 0, 0};
  if (windows->earliest[entry(rank, all)] == UNREACHED) {
    return false;
  }
  go_backward(windows, rank);
  if (windows->latest[0] == HOPELESS) {
    return false;
  }
  if (r > 0) {
    pass_heads(windows, windows->found[2 * BACK], rank - 1, BACK);
    pass_tails(windows, windows->found[2 * OUT + 1], rank - 1, OUT);
  }
  if (r + 1 < windows->problem->rank_count) {
    pass_heads(windows, windows->found[2 * OUT], rank + 1, OUT);
    pass_tails(windows, windows->found[2 * BACK + 1], rank + 1, BACK);
  }
  return true;
}

static void open_windows(struct windows *windows, enum weft_objective objective, int64_t target) {
  const struct weft_problem *problem = windows->problem;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    struct rank_windows *rank = &windows->ranks[r];
    const int64_t start = windows->paths->forward[r];
    rank->end = target + (objective == WEFT_OBJECTIVE_SPAN ? start : 0);
    rank->changed = true;
    for (uint32_t k = 0; k < problem->microbatch_count; k++) {
      rank->head[OUT][k] = start;
      rank->head[BACK][k] = start + weft_paths_trip(windows->paths, r, r) - rank->i;
      rank->tail[OUT][k] = rank->tail[BACK][k] = rank->end;
    }
  }
}

/* Ranks up and down, those first whose neighbours say most. */
static bool refutes(struct windows *windows, enum weft_objective objective, int64_t target) {
  const uint32_t count = windows->problem->rank_count;
  open_windows(windows, objective, target);
  bool changed = true;
  while (changed) {
    changed = false;
    for (uint32_t n = 0; n < 2 * count; n++) {
      const uint32_t r = n < count ? count - 1 - n : n - count;
      if (!windows->ranks[r].changed) {
        continue;
      }
      const uint64_t work = table_size(windows->problem, &windows->ranks[r]);
      if (work > windows->work_left) {
        windows->work_left = 0;
        return false;
      }
      windows->work_left -= work;
      changed = true;
      if (!narrow(windows, r)) {
        return true;
      }
    }
  }
  return false;
}

static int64_t sharpen_with(struct windows *windows, enum weft_objective objective, int64_t bound,
                            int64_t value) {
  if (refutes(windows, objective, value - 1)) {
    return value;
  }
  int64_t below = bound; /* nothing is smaller than this */
  int64_t above = value;
  while (below < above - 1 && windows->work_left > 0) {
    const int64_t middle = below + (above - below) / 2;
    if (refutes(windows, objective, middle)) {
      below = middle + 1;
    } else {
      above = middle;
    }
  }
  return below;
}

int64_t weft_problem_sharpen(const struct weft_problem *problem, enum weft_objective objective,
                             int64_t bound, int64_t value, uint64_t work) {
  struct weft_paths paths;
  if (value <= bound || problem->stages_per_rank > 1 || !weft_paths_init(&paths, problem)) {
    return bound;
  }
  struct windows windows;
  if (windows_init(&windows, &paths, work)) {
    bound = sharpen_with(&windows, objective, bound, value);
  }
  windows_finish(&windows);
  weft_paths_finish(&paths);
  return bound;
}
