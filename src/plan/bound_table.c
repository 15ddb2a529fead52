/* Shortest ways through what a rank has done.
 *
 * An entry stands for numbers of letters done: of the first of the line, of the others by
 * the shape, and of W by how many await it. What fits into memory and what may follow
 * depends on nothing else. Only the earliest time of an entry matters: whatever follows in
 * time after a later one does so after that. */
#include "plan/bound_table.h"

#include "base/memory.h"
#include "plan/bound.h"

#define UNREACHED INT64_MAX
#define HOPELESS INT64_MIN

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- Room ---- */

static uint32_t weight_count(const struct weft_problem *problem) {
  return problem->stages_per_rank * problem->microbatch_count;
}

static size_t list_count(const struct weft_table *table) {
  return 5 * (size_t)table->line * (table->count + 1) + weight_count(table->problem) + 1;
}

static void hand_out(struct weft_table *table) {
  int64_t *at = table->lists;
  for (uint32_t n = 0; n < table->line; n++) {
    struct weft_table_letter *letter = &table->letters[n];
    int64_t **const lists[] = {&letter->sums, &letter->head, &letter->tail, &letter->start,
                               &letter->stop};
    for (unsigned k = 0; k < sizeof lists / sizeof lists[0]; k++, at += table->count + 1) {
      *lists[k] = at;
    }
  }
  table->weight_sums = at;
}

uint64_t weft_table_size(const struct weft_table *table, uint32_t rank) {
  const struct weft_line_shapes *shapes = &table->shapes[rank];
  return ((uint64_t)table->count + 1) * shapes->offset[shapes->count];
}

static bool make_shapes(struct weft_table *table, uint64_t most) {
  const struct weft_problem *problem = table->problem;
  table->shapes =
      weft_array_allocate_zero(problem->allocator, problem->rank_count, sizeof *table->shapes);
  if (table->shapes == NULL) {
    return false;
  }
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    struct weft_line_shapes *shapes = &table->shapes[r];
    if (!weft_line_shapes_init(shapes, problem, r, table->merged, most / (table->count + 1))) {
      return false;
    }
    const size_t size = (size_t)weft_table_size(table, r);
    const size_t cells = ((size_t)table->count + 1) * shapes->count;
    table->size = size > table->size ? size : table->size;
    table->cells = cells > table->cells ? cells : table->cells;
  }
  return true;
}

bool weft_table_init(struct weft_table *table, const struct weft_problem *problem, bool merged,
                     uint64_t most) {
  const uint32_t v = problem->stages_per_rank;
  *table = (struct weft_table){.problem = problem,
                               .merged = merged,
                               .count = problem->microbatch_count * (merged ? v : 1),
                               .line = merged ? 2 : 2 * v};
  if (!make_shapes(table, most)) {
    return false;
  }
  const struct weft_allocator *allocator = problem->allocator;
  table->lists = weft_array_allocate_zero(allocator, list_count(table), sizeof(int64_t));
  table->earliest = weft_array_allocate(allocator, table->size, sizeof(int64_t));
  table->latest = weft_array_allocate(allocator, table->size, sizeof(int64_t));
  table->low = weft_array_allocate(allocator, table->cells, sizeof *table->low);
  table->high = weft_array_allocate(allocator, table->cells, sizeof *table->high);
  if (table->lists == NULL || table->earliest == NULL || table->latest == NULL ||
      table->low == NULL || table->high == NULL) {
    return false;
  }
  hand_out(table);
  return true;
}

void weft_table_finish(struct weft_table *table) {
  const struct weft_allocator *allocator = table->problem->allocator;
  for (uint32_t r = 0; table->shapes != NULL && r < table->problem->rank_count; r++) {
    weft_line_shapes_finish(&table->shapes[r], allocator);
  }
  weft_array_free(allocator, table->shapes, table->problem->rank_count, sizeof *table->shapes);
  weft_array_free(allocator, table->lists, list_count(table), sizeof(int64_t));
  weft_array_free(allocator, table->earliest, table->size, sizeof(int64_t));
  weft_array_free(allocator, table->latest, table->size, sizeof(int64_t));
  weft_array_free(allocator, table->low, table->cells, sizeof *table->low);
  weft_array_free(allocator, table->high, table->cells, sizeof *table->high);
}

/* ---- Times ---- */

/* Sums of the n smallest of times that come m times each; `times` is sorted on the way. */
static void add_up(int64_t *times, uint32_t count, uint32_t m, int64_t *sums) {
  sums[0] = 0;
  for (uint32_t n = 0; n < count; n++) {
    for (uint32_t k = n + 1; k < count; k++) {
      if (times[k] < times[n]) {
        const int64_t swap = times[n];
        times[n] = times[k];
        times[k] = swap;
      }
    }
    for (uint32_t k = 0; k < m; k++) {
      sums[n * m + k + 1] = sums[n * m + k] + times[n];
    }
  }
}

static void set_times(struct weft_table *table, uint32_t rank) {
  const struct weft_problem *problem = table->problem;
  const uint32_t v = problem->stages_per_rank, m = problem->microbatch_count;
  int64_t forward[WEFT_PLACES_MAX], back[WEFT_PLACES_MAX], weight[WEFT_PLACES_MAX];
  for (uint32_t k = 0; k < v; k++) {
    const uint32_t s = problem->stage_of[rank * v + k];
    forward[k] = problem->stages[s].time[WEFT_LETTER_F];
    back[k] = weft_paths_back(problem, s);
    weight[k] = weft_paths_weight(problem, s);
  }
  const uint32_t own = table->merged ? v : 1; /* stages of a letter */
  for (uint32_t n = 0; n < table->line / 2; n++) {
    add_up(forward + n, own, m, table->letters[n].sums);
    table->letters[n].time = forward[n];
    struct weft_table_letter *mirror = &table->letters[table->line - 1 - n];
    add_up(back + n, own, m, mirror->sums);
    mirror->time = back[n];
  }
  add_up(weight, v, m, table->weight_sums);
  table->weight_time = weight[0];
  table->exact = weight[0] == weight[v - 1] && !table->merged;
}

/* ---- Entries ---- */

struct done {
  uint32_t first; /* of the first letter */
  uint32_t shape;
  uint32_t weights; /* that await W */
};

static size_t cell(const struct weft_table *table, uint32_t first, uint32_t shape) {
  return (size_t)first * table->now->count + shape;
}

static size_t entry(const struct weft_table *table, struct done at) {
  const struct weft_line_shapes *shapes = table->now;
  return (size_t)at.first * shapes->offset[shapes->count] + shapes->offset[at.shape] + at.weights;
}

/* How often letter n is done. */
static uint32_t done_of(const struct weft_table *table, struct done at, uint32_t n) {
  return at.first - table->now->behind[(size_t)at.shape * table->line + n];
}

/* The least that what is done took, and that the rest takes. */
static void weigh(const struct weft_table *table, struct done at, int64_t *done, int64_t *left) {
  uint32_t backs = 0;
  *done = *left = 0;
  for (uint32_t n = 0; n < table->line; n++) {
    const uint32_t count = done_of(table, at, n);
    *done += table->letters[n].sums[count];
    *left += table->letters[n].sums[table->count - count];
    backs += n >= table->line / 2 ? count : 0;
  }
  if (!table->problem->whole_backward) {
    *done += table->weight_sums[backs - at.weights];
    *left += table->weight_sums[weight_count(table->problem) - backs + at.weights];
  }
}

/* A letter that may follow. */
struct following {
  struct done to;
  int64_t head, tail, time;
  uint32_t n, k; /* letter of the line and which of them; n = line for W */
};

static bool make_following(const struct weft_table *table, struct done at, uint32_t n,
                           struct following *out) {
  const struct weft_line_shapes *shapes = table->now;
  if (n == table->line) {
    *out = (struct following){.to = {at.first, at.shape, at.weights - 1},
                              .head = table->from,
                              .tail = table->end,
                              .time = table->weight_time,
                              .n = n};
    return at.weights > 0;
  }
  const uint32_t shape = shapes->next[(size_t)at.shape * table->line + n];
  const bool adds_weight = n >= table->line / 2 && !table->problem->whole_backward;
  const uint32_t k = done_of(table, at, n);
  if (shape == WEFT_SHAPE_NONE || k == table->count ||
      at.weights + adds_weight > shapes->most[shape]) {
    return false;
  }
  const struct weft_table_letter *letter = &table->letters[n];
  *out = (struct following){.to = {at.first + (n == 0), shape, at.weights + adds_weight},
                            .head = letter->head[k],
                            .tail = letter->tail[k],
                            .time = letter->time,
                            .n = n,
                            .k = k};
  return true;
}

/* ---- There ---- */

static void note(const struct weft_table *table, struct done at, int64_t time) {
  const size_t where = cell(table, at.first, at.shape);
  int64_t *earliest = &table->earliest[entry(table, at)];
  if (table->low[where] > table->high[where]) {
    table->low[where] = table->high[where] = at.weights;
    *earliest = time;
    return;
  }
  for (; table->high[where] < at.weights; table->high[where]++) {
    table->earliest[entry(table, (struct done){at.first, at.shape, table->high[where] + 1})] =
        UNREACHED;
  }
  for (; table->low[where] > at.weights; table->low[where]--) {
    table->earliest[entry(table, (struct done){at.first, at.shape, table->low[where] - 1})] =
        UNREACHED;
  }
  *earliest = smaller(*earliest, time);
}

static void reach(const struct weft_table *table, struct done at) {
  const int64_t clock = table->earliest[entry(table, at)];
  int64_t done = 0, left;
  weigh(table, at, &done, &left);
  const int64_t rest = left;
  for (uint32_t n = 0; n <= table->line; n++) {
    struct following next;
    if (!make_following(table, at, n, &next)) {
      continue;
    }
    int64_t end = larger(clock, next.head) + next.time;
    left = rest - next.time;
    if (!table->exact) {
      weigh(table, next.to, &done, &left);
      end = larger(end, table->from + done);
    }
    if (end <= next.tail && end + left <= table->end) {
      note(table, next.to, end);
    }
  }
}

/* From nothing done on. Letters other than the first lead to shapes that come later, and W to
 * fewer that await it. */
static void go_forward(struct weft_table *table) {
  const size_t cells = cell(table, table->count + 1, 0);
  for (size_t n = 0; n < cells; n++) {
    table->low[n] = 1;
    table->high[n] = 0;
  }
  note(table, (struct done){0, table->now->start, 0}, table->from);
  for (uint32_t first = 0; first <= table->count; first++) {
    for (uint32_t shape = 0; shape < table->now->count; shape++) {
      const size_t where = cell(table, first, shape);
      if (table->low[where] > table->high[where]) {
        continue;
      }
      /* W may go below what was the lowest. */
      for (uint32_t y = table->high[where] + 1; y-- > table->low[where];) {
        const struct done at = {first, shape, y};
        if (table->earliest[entry(table, at)] != UNREACHED) {
          table->visited++;
          reach(table, at);
        }
      }
    }
  }
}

/* ---- And back ---- */

/* The latest from which the rest can be done; HOPELESS also where it was not come to. */
static int64_t latest_of(const struct weft_table *table, struct done at) {
  const size_t where = cell(table, at.first, at.shape);
  return at.weights < table->low[where] || at.weights > table->high[where]
             ? HOPELESS
             : table->latest[entry(table, at)];
}

/* The same, from what may follow; and what that says of it. */
static int64_t look_back(const struct weft_table *table, struct done at) {
  const int64_t clock = table->earliest[entry(table, at)];
  int64_t latest = HOPELESS;
  for (uint32_t n = 0; n <= table->line; n++) {
    struct following next;
    if (!make_following(table, at, n, &next)) {
      continue;
    }
    const int64_t then = latest_of(table, next.to);
    const int64_t stop = smaller(then, next.tail);
    const int64_t first = larger(clock, next.head);
    if (then == HOPELESS || stop - next.time < first) {
      continue;
    }
    latest = larger(latest, stop - next.time);
    if (n < table->line) {
      const struct weft_table_letter *letter = &table->letters[n];
      letter->start[next.k] = smaller(letter->start[next.k], first);
      letter->stop[next.k] = larger(letter->stop[next.k], stop);
    }
  }
  if (latest == HOPELESS || table->exact) {
    return latest;
  }
  int64_t done, left;
  weigh(table, at, &done, &left);
  return smaller(latest, table->end - left);
}

static void forget(const struct weft_table *table) {
  for (uint32_t n = 0; n < table->line; n++) {
    for (uint32_t k = 0; k < table->count; k++) {
      table->letters[n].start[k] = INT64_MAX;
      table->letters[n].stop[k] = INT64_MIN;
    }
  }
}

static void go_backward(const struct weft_table *table) {
  forget(table);
  for (uint32_t first = table->count + 1; first-- > 0;) {
    for (uint32_t shape = table->now->count; shape-- > 0;) {
      const size_t where = cell(table, first, shape);
      const bool is_last = first == table->count && shape == table->now->start;
      for (uint32_t y = table->low[where]; y <= table->high[where]; y++) {
        const struct done at = {first, shape, y};
        const size_t n = entry(table, at);
        table->latest[n] = table->earliest[n] == UNREACHED ? HOPELESS
                           : is_last && y == 0             ? table->end
                                                           : look_back(table, at);
      }
    }
  }
}

bool weft_table_fill(struct weft_table *table, uint32_t rank, int64_t from, int64_t end) {
  table->now = &table->shapes[rank];
  table->from = from;
  table->end = end;
  table->visited = 0;
  set_times(table, rank);
  go_forward(table);
  const struct done all = {table->count, table->now->start, 0};
  const size_t where = cell(table, all.first, all.shape);
  if (table->low[where] != 0 || table->high[where] < table->low[where] ||
      table->earliest[entry(table, all)] == UNREACHED) {
    return false;
  }
  go_backward(table);
  return latest_of(table, (struct done){0, table->now->start, 0}) != HOPELESS;
}
