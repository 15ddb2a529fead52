/* Shapes, enumerated letter by letter, as long as they fit. */
#include "plan/bounds/bound_shapes.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

struct shaping {
  struct weft_line_shapes *shapes;
  const struct weft_allocator *allocator;
  uint32_t width;              /* letters that shapes know */
  uint32_t longest;            /* microbatches a letter can be behind */
  uint32_t microbatches;       /* that can await W of a stage */
  int64_t size[WEFT_LINE_MAX]; /* [n] memory of a microbatch that is behind at letter n */
  int64_t after, limit;        /* memory of one that awaits a W that is only counted */
  uint32_t most_weights;       /* of those at once, whatever the memory */
  uint32_t gap[WEFT_LINE_MAX]; /* [n] between letter n - 1 and n, 0 for the first; or at W */
  uint32_t *rows;              /* [count * (width + 1)]: order, then gaps */
  uint64_t most;
};

/* ---- Memory ---- */

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Those between two letters hold the places whose F they have had, and whose I not. */
static void weigh(struct shaping *shaping, const struct weft_problem *problem, uint32_t rank,
                  enum weft_line_detail detail) {
  const uint32_t v = problem->stages_per_rank, m = problem->microbatch_count;
  const uint32_t counted = detail == WEFT_LINE_WEIGHTS ? 1 : v; /* stages whose W is */
  int64_t least = INT64_MAX;
  shaping->after = INT64_MAX;
  for (uint32_t k = 0; k < v; k++) {
    const struct weft_problem_stage *stage = &problem->stages[problem->stage_of[rank * v + k]];
    const int64_t after = problem->whole_backward ? 0 : stage->held_after;
    least = smaller(least, stage->held);
    shaping->after = k < counted ? smaller(shaping->after, after) : shaping->after;
    if (k >= counted) {
      shaping->size[2 * v + k - 1] = after;
    }
    for (uint32_t n = k + 1; detail != WEFT_LINE_RANK && n < 2 * v - k; n++) {
      shaping->size[n] += stage->held;
    }
  }
  if (detail == WEFT_LINE_RANK) {
    shaping->size[1] = least;
  }
  shaping->limit = problem->limit[rank];
  shaping->longest = m * (detail == WEFT_LINE_RANK ? v : 1);
  shaping->microbatches = problem->whole_backward ? 0 : m;
  shaping->most_weights = problem->whole_backward ? 0 : m * counted;
}

static uint32_t weights_within(const struct shaping *shaping, int64_t room) {
  const uint32_t most = shaping->most_weights;
  return shaping->after == 0 || room / shaping->after > most ? most
                                                             : (uint32_t)(room / shaping->after);
}

/* ---- Enumeration ---- */

/* What letters other than the first still have to do until all are level: each of the line
 * takes 2 of it, and gives 1 to a W at most, which takes 1. */
static uint32_t order_of(const struct shaping *shaping) {
  const uint32_t line = shaping->shapes->line;
  uint32_t sum = 0;
  for (uint32_t n = 1; n < shaping->width; n++) {
    sum += shaping->gap[n] * (n < line ? 2 * (line - n) : 1);
  }
  return sum;
}

static void write_row(const struct shaping *shaping, uint32_t *row) {
  row[0] = order_of(shaping);
  memcpy(row + 1, shaping->gap, shaping->width * sizeof *row);
}

/* Goes through all gaps from letter n on; counts them, and writes them if there are rows. False
 * when there are too many. */
static bool enumerate(struct shaping *shaping, uint32_t n, uint32_t left, int64_t room,
                      uint64_t *entries) {
  struct weft_line_shapes *shapes = shaping->shapes;
  if (n == shaping->width) {
    *entries += 1 + (uint64_t)weights_within(shaping, room);
    if (*entries > shaping->most) {
      return false;
    }
    if (shaping->rows != NULL) {
      write_row(shaping, shaping->rows + (size_t)shapes->count * (shaping->width + 1));
    }
    shapes->count++;
    return true;
  }
  const bool on_line = n < shapes->line;
  const uint32_t most = on_line ? left : shaping->microbatches;
  for (uint32_t gap = 0; gap <= most && room >= 0; gap++, room -= shaping->size[n]) {
    shaping->gap[n] = gap;
    if (!enumerate(shaping, n + 1, on_line ? left - gap : left, room, entries)) {
      return false;
    }
  }
  shaping->gap[n] = 0;
  return true;
}

static int compare_gaps(const uint32_t *a, const uint32_t *b, uint32_t letters) {
  for (uint32_t n = 0; n < letters; n++) {
    if (a[n] != b[n]) {
      return a[n] < b[n] ? -1 : 1;
    }
  }
  return 0;
}

/* Rows are sorted by order, the largest first, then by gaps. */
static int compare_rows(const uint32_t *a, const uint32_t *b, uint32_t letters) {
  return a[0] != b[0] ? (a[0] > b[0] ? -1 : 1) : compare_gaps(a + 1, b + 1, letters);
}

/* A heap sort, since the rows' length is not known to a comparison of the C library. */
static void sift(uint32_t *rows, uint32_t from, uint32_t count, uint32_t letters) {
  const size_t length = letters + 1;
  for (uint32_t child; (child = 2 * from + 1) < count; from = child) {
    if (child + 1 < count &&
        compare_rows(rows + child * length, rows + (child + 1) * length, letters) < 0) {
      child++;
    }
    uint32_t *a = rows + from * length, *b = rows + child * length;
    if (compare_rows(a, b, letters) >= 0) {
      return;
    }
    for (size_t n = 0; n < length; n++) {
      const uint32_t swap = a[n];
      a[n] = b[n];
      b[n] = swap;
    }
  }
}

static void sort_rows(uint32_t *rows, uint32_t count, uint32_t letters) {
  const size_t length = letters + 1;
  for (uint32_t n = count / 2; n-- > 0;) {
    sift(rows, n, count, letters);
  }
  for (uint32_t last = count; last-- > 1;) {
    for (size_t n = 0; n < length; n++) {
      const uint32_t swap = rows[n];
      rows[n] = rows[last * length + n];
      rows[last * length + n] = swap;
    }
    sift(rows, 0, last, letters);
  }
}

/* ---- What follows what ---- */

static uint32_t find(const struct shaping *shaping, const uint32_t *row) {
  const size_t length = shaping->width + 1;
  uint32_t from = 0, to = shaping->shapes->count;
  while (from < to) {
    const uint32_t middle = from + (to - from) / 2;
    const int order = compare_rows(shaping->rows + middle * length, row, shaping->width);
    if (order == 0) {
      return middle;
    }
    *(order < 0 ? &from : &to) = order < 0 ? middle + 1 : middle;
  }
  return WEFT_SHAPE_NONE;
}

/* The shape after letter n: one fewer before it, one more after, and at its W. */
static uint32_t follow(struct shaping *shaping, const uint32_t *gaps, uint32_t n) {
  const uint32_t line = shaping->shapes->line;
  uint32_t row[WEFT_LINE_MAX + 1];
  if (n > 0 && gaps[n] == 0) {
    return WEFT_SHAPE_NONE;
  }
  memcpy(shaping->gap, gaps, shaping->width * sizeof *gaps);
  shaping->gap[n] -= n > 0;
  if (n + 1 < line) {
    shaping->gap[n + 1]++;
  }
  const uint32_t weight = 2 * line - 2 - n; /* of the I of the second stage: line, and so on */
  if (n >= line / 2 && n < line && weight >= line && weight < shaping->width &&
      shaping->microbatches > 0) {
    shaping->gap[weight]++;
  }
  write_row(shaping, row);
  return find(shaping, row);
}

static void describe(struct shaping *shaping, uint32_t index) {
  struct weft_line_shapes *shapes = shaping->shapes;
  const uint32_t *gaps = shaping->rows + (size_t)index * (shaping->width + 1) + 1;
  int64_t room = shaping->limit;
  uint32_t behind = 0, sum = 0;
  for (uint32_t n = 0; n < shaping->width; n++) {
    room -= gaps[n] * shaping->size[n];
    sum += gaps[n];
    if (n < shapes->line) {
      behind += gaps[n];
      shapes->behind[(size_t)index * shapes->line + n] = behind;
    } else {
      shapes->waiting[(size_t)index * shapes->extra + n - shapes->line] = gaps[n];
    }
    shapes->next[(size_t)index * shaping->width + n] = follow(shaping, gaps, n);
  }
  shapes->most[index] = weights_within(shaping, room);
  shapes->offset[index + 1] = shapes->offset[index] + shapes->most[index] + 1;
  shapes->start = sum == 0 ? index : shapes->start;
}

static bool allocate(struct weft_line_shapes *shapes, const struct weft_allocator *allocator) {
  const size_t count = shapes->count;
#define ROOM(field, cells) \
  ((shapes->field = weft_array_allocate_zero(allocator, cells, sizeof *shapes->field)))
  return ROOM(behind, count * shapes->line) && ROOM(waiting, count * shapes->extra) &&
         ROOM(next, count * (shapes->line + shapes->extra)) && ROOM(most, count) &&
         ROOM(offset, count + 1);
#undef ROOM
}

static bool fill(struct shaping *shaping) {
  struct weft_line_shapes *shapes = shaping->shapes;
  const uint32_t count = shapes->count;
  if (!allocate(shapes, shaping->allocator)) {
    return false;
  }
  uint64_t entries = 0;
  shapes->count = 0;
  (void)enumerate(shaping, 1, shaping->longest, shaping->limit, &entries);
  sort_rows(shaping->rows, count, shaping->width);
  for (uint32_t n = 0; n < count; n++) {
    describe(shaping, n);
  }
  return true;
}

bool weft_line_shapes_init(struct weft_line_shapes *shapes, const struct weft_problem *problem,
                           uint32_t rank, enum weft_line_detail detail, uint64_t most) {
  const uint32_t v = problem->stages_per_rank;
  struct shaping shaping = {.shapes = shapes, .allocator = problem->allocator, .most = most};
  *shapes = (struct weft_line_shapes){.line = detail == WEFT_LINE_RANK ? 2 : 2 * v,
                                      .extra = detail == WEFT_LINE_WEIGHTS ? v - 1 : 0};
  shaping.width = shapes->line + shapes->extra;
  weigh(&shaping, problem, rank, detail);
  uint64_t entries = 0;
  if (shaping.limit < 0 || !enumerate(&shaping, 1, shaping.longest, shaping.limit, &entries)) {
    shapes->count = 0;
    return false;
  }
  const size_t cells = (size_t)shapes->count * (shaping.width + 1);
  shaping.rows = weft_array_allocate(problem->allocator, cells, sizeof *shaping.rows);
  const bool done = shaping.rows != NULL && fill(&shaping);
  weft_array_free(problem->allocator, shaping.rows, cells, sizeof *shaping.rows);
  return done;
}

void weft_line_shapes_finish(struct weft_line_shapes *shapes,
                             const struct weft_allocator *allocator) {
  const size_t count = shapes->count;
#define FREE(field, cells) weft_array_free(allocator, shapes->field, cells, sizeof *shapes->field)
  FREE(behind, count * shapes->line);
  FREE(waiting, count * shapes->extra);
  FREE(next, count * (shapes->line + shapes->extra));
  FREE(most, count);
  FREE(offset, count + 1);
#undef FREE
  *shapes = (struct weft_line_shapes){0};
}
