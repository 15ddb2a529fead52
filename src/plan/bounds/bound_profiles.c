/* Profiles, enumerated op by op as long as they fit into the memory. */
#include "plan/bounds/bound_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "plan/bounds/chain_bound.h"

/* A row tells its comparison how many gaps it has. */
enum { ROW_WIDTH, ROW_ORDER, ROW_GAPS };

struct enumeration {
  struct weft_line_profiles *profiles;
  bool flow;                   /* WEFT_LINE_FLOW */
  uint32_t width;              /* ops that profiles distinguish */
  uint32_t longest;            /* most microbatches that an op can be behind */
  uint32_t microbatches;       /* most that can await W of a stage */
  int64_t size[WEFT_LINE_MAX]; /* [n] memory of a microbatch that is behind at op n */
  int64_t after;               /* memory of a microbatch that awaits a W that is only counted */
  int64_t limit;
  uint32_t most_weights;       /* most counted W that can be pending, regardless of memory */
  uint32_t gap[WEFT_LINE_MAX]; /* [n] between op n - 1 and n, 0 for the first; for a W: pending */
  uint32_t *rows;              /* [count * (ROW_GAPS + width)] */
  struct weft_arena *arena;
  uint64_t most;
};

/* ---- Memory ---- */

/* Microbatches between two ops of the line hold the stages whose F is done and whose I is not. */
static void weigh(struct enumeration *enumeration, const struct weft_problem *problem,
                  uint32_t rank, enum weft_line_detail detail) {
  const uint32_t v = problem->stages_per_rank, m = problem->microbatch_count;
  const uint32_t counted = detail == WEFT_LINE_WEIGHTS ? 1 : v; /* stages whose W is only counted */
  int64_t least = INT64_MAX;
  enumeration->after = INT64_MAX;
  for (uint32_t k = 0; k < v; k++) {
    const struct weft_problem_stage *stage = &problem->stages[problem->stage_of[rank * v + k]];
    const int64_t after = weft_least_after(problem, problem->stage_of[rank * v + k]);
    least = weft_min(least, stage->held);
    enumeration->after = k < counted ? weft_min(enumeration->after, after) : enumeration->after;
    if (k >= counted) {
      enumeration->size[2 * v + k - 1] = after;
    }
    for (uint32_t n = k + 1; detail != WEFT_LINE_RANK && n < 2 * v - k; n++) {
      enumeration->size[n] += stage->held;
    }
  }
  if (detail == WEFT_LINE_RANK) {
    enumeration->size[1] = least;
  }
  enumeration->limit = problem->limit[rank];
  enumeration->longest = m * (detail == WEFT_LINE_RANK ? v : 1);
  enumeration->microbatches = !problem->may_split ? 0 : m;
  enumeration->most_weights = !problem->may_split ? 0 : m * counted;
}

static uint32_t weights_within(const struct enumeration *enumeration, int64_t room) {
  const uint32_t most = enumeration->most_weights;
  return enumeration->after == 0 || room / enumeration->after > most
             ? most
             : (uint32_t)(room / enumeration->after);
}

/* ---- Enumeration ---- */

/* A measure of what ops other than the first have to do until all are level: each op of the line
 * reduces it by 2 and adds at most 1 for a W, which reduces it by 1. */
static uint32_t order_of(const struct enumeration *enumeration) {
  const uint32_t line = enumeration->profiles->line;
  uint32_t sum = 0;
  for (uint32_t n = 1; n < enumeration->width; n++) {
    sum += enumeration->gap[n] * (n < line ? 2 * (line - n) : 1);
  }
  return sum;
}

static void write_row(const struct enumeration *enumeration, uint32_t *row) {
  row[ROW_WIDTH] = enumeration->width;
  row[ROW_ORDER] = order_of(enumeration);
  memcpy(row + ROW_GAPS, enumeration->gap, enumeration->width * sizeof *row);
}

/* Enumerates all gaps from op n on; counts them, and writes them if there are rows. False when
 * there are too many. */
static bool enumerate(struct enumeration *enumeration, uint32_t n, uint32_t left, int64_t room,
                      uint64_t *entries) {
  struct weft_line_profiles *profiles = enumeration->profiles;
  if (n == enumeration->width) {
    *entries += 1 + (uint64_t)(enumeration->flow ? 0 : weights_within(enumeration, room));
    if (*entries > enumeration->most) {
      return false;
    }
    if (enumeration->rows != NULL) {
      write_row(enumeration,
                enumeration->rows + (size_t)profiles->count * (ROW_GAPS + enumeration->width));
    }
    profiles->count++;
    return true;
  }
  const bool on_line = n < profiles->line;
  const uint32_t most = on_line ? left : enumeration->microbatches;
  for (uint32_t gap = 0; gap <= most && room >= 0; gap++, room -= enumeration->size[n]) {
    enumeration->gap[n] = gap;
    if (!enumerate(enumeration, n + 1, on_line ? left - gap : left, room, entries)) {
      return false;
    }
  }
  enumeration->gap[n] = 0;
  return true;
}

/* Rows are sorted by order, the largest first, then by gaps. */
static int compare_rows(const void *a, const void *b) {
  const uint32_t *one = a, *other = b;
  if (one[ROW_ORDER] != other[ROW_ORDER]) {
    return one[ROW_ORDER] > other[ROW_ORDER] ? -1 : 1;
  }
  for (uint32_t n = 0; n < one[ROW_WIDTH]; n++) {
    if (one[ROW_GAPS + n] != other[ROW_GAPS + n]) {
      return one[ROW_GAPS + n] < other[ROW_GAPS + n] ? -1 : 1;
    }
  }
  return 0;
}

/* ---- Successors ---- */

static uint32_t find(const struct enumeration *enumeration, const uint32_t *row) {
  const size_t length = ROW_GAPS + enumeration->width;
  const uint32_t *found = bsearch(row, enumeration->rows, enumeration->profiles->count,
                                  length * sizeof *row, compare_rows);
  return found == NULL ? WEFT_PROFILE_NONE
                       : (uint32_t)((size_t)(found - enumeration->rows) / length);
}

/* The profile after op n: one fewer before it, one more after it, and, if it leaves a W, one more
 * that awaits it. */
static uint32_t follow(struct enumeration *enumeration, const uint32_t *gaps, uint32_t n,
                       bool leaves_w) {
  const uint32_t line = enumeration->profiles->line;
  uint32_t row[ROW_GAPS + WEFT_LINE_MAX];
  if (n > 0 && gaps[n] == 0) {
    return WEFT_PROFILE_NONE;
  }
  memcpy(enumeration->gap, gaps, enumeration->width * sizeof *gaps);
  enumeration->gap[n] -= n > 0;
  if (n + 1 < line) {
    enumeration->gap[n + 1]++;
  }
  const uint32_t weight = 2 * line - 2 - n; /* of the I of the second stage: line, and so on */
  if (n >= line / 2 && n < line && weight >= line && weight < enumeration->width &&
      enumeration->microbatches > 0 && leaves_w) {
    enumeration->gap[weight]++;
  }
  write_row(enumeration, row);
  return find(enumeration, row);
}

static void describe_profile(struct enumeration *enumeration, uint32_t index) {
  struct weft_line_profiles *profiles = enumeration->profiles;
  const uint32_t *gaps =
      enumeration->rows + (size_t)index * (ROW_GAPS + enumeration->width) + ROW_GAPS;
  int64_t room = enumeration->limit;
  uint32_t behind = 0, sum = 0;
  for (uint32_t n = 0; n < enumeration->width; n++) {
    room -= gaps[n] * enumeration->size[n];
    sum += gaps[n];
    if (n < profiles->line) {
      behind += gaps[n];
      profiles->behind[(size_t)index * profiles->line + n] = behind;
      profiles->whole[(size_t)index * profiles->line + n] = follow(enumeration, gaps, n, false);
    } else {
      profiles->waiting[(size_t)index * profiles->extra + n - profiles->line] = gaps[n];
    }
    profiles->next[(size_t)index * enumeration->width + n] = follow(enumeration, gaps, n, true);
  }
  profiles->room[index] = room;
  profiles->most[index] = enumeration->flow ? 0 : weights_within(enumeration, room);
  profiles->pending[index] = enumeration->flow ? weights_within(enumeration, room) : 0;
  profiles->offset[index + 1] = profiles->offset[index] + profiles->most[index] + 1;
  profiles->start = sum == 0 ? index : profiles->start;
}

static bool fill(struct enumeration *enumeration) {
  struct weft_line_profiles *profiles = enumeration->profiles;
  const uint32_t count = profiles->count;
  struct weft_arena *arena = enumeration->arena;
  if (!WEFT_ALLOCATE(arena, profiles->behind, (size_t)count * profiles->line) ||
      !WEFT_ALLOCATE(arena, profiles->waiting, (size_t)count * profiles->extra) ||
      !WEFT_ALLOCATE(arena, profiles->next, (size_t)count * (profiles->line + profiles->extra)) ||
      !WEFT_ALLOCATE(arena, profiles->whole, (size_t)count * profiles->line) ||
      !WEFT_ALLOCATE(arena, profiles->most, count) ||
      !WEFT_ALLOCATE(arena, profiles->pending, count) ||
      !WEFT_ALLOCATE(arena, profiles->room, count) ||
      !WEFT_ALLOCATE(arena, profiles->offset, (size_t)count + 1)) {
    return false;
  }
  uint64_t entries = 0;
  profiles->count = 0;
  (void)enumerate(enumeration, 1, enumeration->longest, enumeration->limit, &entries);
  qsort(enumeration->rows, count, (ROW_GAPS + enumeration->width) * sizeof *enumeration->rows,
        compare_rows);
  for (uint32_t n = 0; n < count; n++) {
    describe_profile(enumeration, n);
  }
  return true;
}

bool weft_line_profiles_init(struct weft_line_profiles *profiles,
                             const struct weft_problem *problem, uint32_t rank,
                             enum weft_line_detail detail, uint64_t most,
                             struct weft_arena *arena) {
  const uint32_t v = problem->stages_per_rank;
  struct enumeration enumeration = {
      .profiles = profiles, .most = most, .flow = detail == WEFT_LINE_FLOW, .arena = arena};
  assert(rank < problem->rank_count);
  *profiles = (struct weft_line_profiles){.line = detail == WEFT_LINE_RANK ? 2 : 2 * v,
                                          .extra = detail == WEFT_LINE_WEIGHTS ? v - 1 : 0};
  enumeration.width = profiles->line + profiles->extra;
  weigh(&enumeration, problem, rank, detail);
  profiles->after = enumeration.after;
  uint64_t entries = 0;
  if (enumeration.limit < 0 ||
      !enumerate(&enumeration, 1, enumeration.longest, enumeration.limit, &entries)) {
    profiles->count = 0;
    return false;
  }
  const size_t cells = (size_t)profiles->count * (ROW_GAPS + enumeration.width);
  WEFT_SCOPED_ARENA scratch = {.allocator = problem->allocator};
  return WEFT_ALLOCATE(&scratch, enumeration.rows, cells) && fill(&enumeration);
}
