/* Where two programs differ: per rank a shortest edit script between the two
 * rows, cell by cell, after E. Myers, "An O(ND) Difference Algorithm and Its
 * Variations" (1986), section 4 (greedy). Rows are trimmed of what they share
 * at both ends first.
 *
 * Coordinates: x counts cells of row a, y of row b, and a diagonal is k = x - y.
 * The trace holds, for each number of edits d and each diagonal, the largest x
 * that d edits lead to; the script is read off it backwards. d stops at
 * EDITS_MAX, where the trace is half a megabyte; from the point furthest along
 * then, the rest of the rows is compared cell by cell. */
#include <assert.h>
#include <string.h>

#include <weft/inspect.h>
#include <weft/support.h>

#include "ir/action.h"
#include "ir/program.h"

enum { EDITS_MAX = 512 };

/* A row as cells: cell i begins at actions[begin[i]]. */
struct row {
  const struct weft_action *actions;
  uint32_t *begin;
  uint32_t count;
};

/* A run of cells that both rows have. */
struct run {
  uint32_t x, y, length;
};

struct differ {
  struct row a, b;
  uint32_t rank;

  struct weft_arena *scratch; /* row cells, trace, runs */
  int32_t *trace;             /* for d = 0 ... edits_max, diagonals -d, -d + 2 ... d */
  struct run *runs;           /* [edits_max + 1] */
  int32_t edits_max;

  struct owned_diff *owned;
  struct weft_difference *found; /* [found_capacity], of which the diff has its count */
  size_t found_capacity, found_max;
};

/* What the caller sees, and the arena that owns it, and all it points at. */
struct owned_diff {
  struct weft_diff diff; /* first */
  struct weft_arena arena;
};

static const struct weft_action *cell_of(const struct row *row, uint32_t cell) {
  return &row->actions[row->begin[cell]];
}

static bool same_cell(const struct differ *differ, uint32_t x, uint32_t y) {
  const struct weft_action *a = cell_of(&differ->a, x);
  const struct weft_action *b = cell_of(&differ->b, y);
  return weft_action_equal(*a, *b) &&
         (a->parts == 0 || memcmp(a, b, weft_cell_records(a) * sizeof *a) == 0);
}

/* Collecting. */

/* The old block stays in the arena, which is given back at once. */
static bool grow_found(struct differ *differ) {
  const size_t capacity = differ->found_capacity * 2;
  struct weft_difference *found =
      weft_arena_allocate(&differ->owned->arena, capacity, sizeof *found);
  if (found == NULL) {
    return false;
  }
  memcpy(found, differ->found, differ->found_capacity * sizeof *found);
  differ->found = found;
  differ->found_capacity = capacity;
  return true;
}

static void add_difference(struct differ *differ, struct weft_difference difference) {
  struct weft_diff *diff = &differ->owned->diff;
  difference.rank = differ->rank;
  if (diff->difference_count == differ->found_max) {
    diff->left_out++;
  } else if (diff->difference_count < differ->found_capacity || grow_found(differ)) {
    differ->found[diff->difference_count++] = difference;
  }
}

/* Cells x .. x_end of a became cells y .. y_end of b: pairs are changes, what is
 * left over on one side is removed or new. */
static void add_gap(struct differ *differ, uint32_t x, uint32_t x_end, uint32_t y, uint32_t y_end) {
  assert(x <= x_end && y <= y_end);
  while (x < x_end || y < y_end) {
    struct weft_difference difference = {.step_a = UINT64_MAX, .step_b = UINT64_MAX};
    if (x < x_end) {
      difference.step_a = x;
      difference.a = cell_of(&differ->a, x++);
    }
    if (y < y_end) {
      difference.step_b = y;
      difference.b = cell_of(&differ->b, y++);
    }
    add_difference(differ, difference);
  }
}

static void add_cell_by_cell(struct differ *differ, uint32_t x, uint32_t x_end, uint32_t y,
                             uint32_t y_end) {
  for (; x < x_end && y < y_end; x++, y++) {
    if (!same_cell(differ, x, y)) {
      add_gap(differ, x, x + 1, y, y + 1);
    }
  }
  add_gap(differ, x, x_end, y, y_end);
}

/* The edit script. */

/* What is left of two rows after trimming; x and y below count from its corner. */
struct section {
  uint32_t x, x_end, y, y_end;
};

static int32_t *trace_of(const struct differ *differ, int32_t d, int32_t k) {
  assert(k >= -d && k <= d && (k + d) % 2 == 0 && d <= differ->edits_max);
  return &differ->trace[d * (d + 1) / 2 + (k + d) / 2];
}

/* Whether the d-th edit onto diagonal k is an insertion (down, from k + 1) or a
 * deletion (right, from k - 1), whichever leads further. */
static bool comes_down(const struct differ *differ, int32_t d, int32_t k) {
  return k == -d || (k != d && *trace_of(differ, d - 1, k - 1) < *trace_of(differ, d - 1, k + 1));
}

/* The x on diagonal k directly after the d-th edit. */
static int32_t enter_diagonal(const struct differ *differ, int32_t d, int32_t k) {
  if (d == 0) {
    return 0;
  }
  return comes_down(differ, d, k) ? *trace_of(differ, d - 1, k + 1)
                                  : *trace_of(differ, d - 1, k - 1) + 1;
}

/* From there along equal cells. x and y may lie beyond the section: such points
 * lead nowhere, and never reach its far corner with fewest edits. */
static int32_t slide(const struct differ *differ, struct section s, int32_t x, int32_t k) {
  const int32_t width = (int32_t)(s.x_end - s.x);
  const int32_t height = (int32_t)(s.y_end - s.y);
  while (x < width && x - k < height &&
         same_cell(differ, s.x + (uint32_t)x, s.y + (uint32_t)(x - k))) {
    x++;
  }
  return x;
}

/* One round of the greedy algorithm; true when it reaches the far corner. */
static bool extend(const struct differ *differ, struct section s, int32_t d) {
  const int32_t width = (int32_t)(s.x_end - s.x);
  const int32_t corner = width - (int32_t)(s.y_end - s.y);
  bool reached = false;
  for (int32_t k = -d; k <= d; k += 2) {
    const int32_t x = slide(differ, s, enter_diagonal(differ, d, k), k);
    *trace_of(differ, d, k) = x;
    reached |= k == corner && x == width;
  }
  return reached;
}

/* The diagonal on which d edits have come furthest inside the section. The
 * shortest script's own point is inside, so there is one. */
static int32_t find_furthest(const struct differ *differ, struct section s, int32_t d) {
  const int32_t width = (int32_t)(s.x_end - s.x);
  const int32_t height = (int32_t)(s.y_end - s.y);
  int32_t best_k = -d;
  int32_t best = -1;
  for (int32_t k = -d; k <= d; k += 2) {
    const int32_t x = *trace_of(differ, d, k);
    const int32_t y = x - k;
    if (x <= width && y <= height && x + y > best) {
      best = x + y;
      best_k = k;
    }
  }
  assert(best >= 0);
  return best_k;
}

/* The runs of equal cells on the way to diagonal k with d edits, last first. */
static size_t read_runs(const struct differ *differ, struct section s, int32_t d, int32_t k) {
  size_t count = 0;
  for (;; d--) {
    const int32_t begin = enter_diagonal(differ, d, k);
    const int32_t end = *trace_of(differ, d, k);
    if (end > begin) {
      differ->runs[count++] = (struct run){.x = s.x + (uint32_t)begin,
                                           .y = s.y + (uint32_t)(begin - k),
                                           .length = (uint32_t)(end - begin)};
    }
    if (d == 0) {
      return count;
    }
    k += comes_down(differ, d, k) ? 1 : -1;
  }
}

/* Reports what lies between the runs up to the point of d edits on diagonal k;
 * gives the section beyond it. */
static struct section add_script(struct differ *differ, struct section s, int32_t d, int32_t k) {
  const int32_t x = *trace_of(differ, d, k);
  const struct section rest = {s.x + (uint32_t)x, s.x_end, s.y + (uint32_t)(x - k), s.y_end};
  for (size_t i = read_runs(differ, s, d, k); i-- > 0;) {
    const struct run run = differ->runs[i];
    add_gap(differ, s.x, run.x, s.y, run.y);
    s.x = run.x + run.length;
    s.y = run.y + run.length;
  }
  add_gap(differ, s.x, rest.x, s.y, rest.y);
  return rest;
}

static void compare_section(struct differ *differ, struct section s) {
  if (s.x == s.x_end || s.y == s.y_end) {
    add_gap(differ, s.x, s.x_end, s.y, s.y_end);
    return;
  }
  int32_t d = 0;
  while (!extend(differ, s, d)) {
    if (d == differ->edits_max) {
      s = add_script(differ, s, d, find_furthest(differ, s, d));
      add_cell_by_cell(differ, s.x, s.x_end, s.y, s.y_end);
      return;
    }
    d++;
  }
  (void)add_script(differ, s, d, (int32_t)(s.x_end - s.x) - (int32_t)(s.y_end - s.y));
}

/* Rows. */

static void compare_rows(struct differ *differ) {
  struct section s = {.x_end = differ->a.count, .y_end = differ->b.count};
  while (s.x < s.x_end && s.y < s.y_end && same_cell(differ, s.x, s.y)) {
    s.x++;
    s.y++;
  }
  while (s.x < s.x_end && s.y < s.y_end && same_cell(differ, s.x_end - 1, s.y_end - 1)) {
    s.x_end--;
    s.y_end--;
  }
  compare_section(differ, s);
}

static void load_row(const struct weft_program *program, uint32_t rank, struct row *row) {
  row->count = 0;
  if (rank >= program->rank_count) {
    return;
  }
  row->actions = &program->actions[program->row_begin[rank]];
  const uint64_t records = program->row_begin[rank + 1] - program->row_begin[rank];
  for (uint64_t i = 0; i < records; i += weft_cell_records(&row->actions[i])) {
    row->begin[row->count++] = (uint32_t)i;
  }
}

static enum weft_status allocate_scratch(struct differ *differ, const struct weft_program *a,
                                         const struct weft_program *b, struct weft_error *error) {
  const size_t cells_a = (size_t)weft_program_longest_row(a);
  const size_t cells_b = (size_t)weft_program_longest_row(b);
  const size_t edits_max = cells_a + cells_b < EDITS_MAX ? cells_a + cells_b : EDITS_MAX;
  const size_t trace_size = (edits_max + 1) * (edits_max + 2) / 2;
  differ->edits_max = (int32_t)edits_max;
  differ->a.begin = weft_arena_allocate(differ->scratch, cells_a, sizeof *differ->a.begin);
  differ->b.begin = weft_arena_allocate(differ->scratch, cells_b, sizeof *differ->b.begin);
  differ->trace = weft_arena_allocate(differ->scratch, trace_size, sizeof *differ->trace);
  differ->runs = weft_arena_allocate(differ->scratch, edits_max + 1, sizeof *differ->runs);
  return weft_arena_status(differ->scratch, error);
}

static enum weft_status compare_programs(struct differ *differ, const struct weft_program *a,
                                         const struct weft_program *b, struct weft_error *error) {
  const uint32_t shared = a->rank_count < b->rank_count ? a->rank_count : b->rank_count;
  const uint32_t all = a->rank_count > b->rank_count ? a->rank_count : b->rank_count;
  WEFT_TRY(allocate_scratch(differ, a, b, error));
  differ->found_capacity = 16;
  differ->found = weft_arena_allocate(&differ->owned->arena, 16, sizeof *differ->found);
  for (uint32_t rank = 0; rank < all && differ->owned->arena.failed_bytes == 0; rank++) {
    differ->rank = rank;
    load_row(a, rank, &differ->a);
    load_row(b, rank, &differ->b);
    compare_rows(differ);
    if (rank >= shared && differ->a.count == 0 && differ->b.count == 0) {
      /* A rank without actions that one side lacks is a difference too: without
       * one, the programs would pass for equal. */
      add_difference(differ, (struct weft_difference){.step_a = UINT64_MAX, .step_b = UINT64_MAX});
    }
  }
  differ->owned->diff.differences = differ->found;
  return weft_arena_status(&differ->owned->arena, error);
}

enum weft_status weft_diff_create(const struct weft_allocator *allocator,
                                  const struct weft_program *a, const struct weft_program *b,
                                  size_t differences_max, struct weft_diff **out,
                                  struct weft_error *error) {
  WEFT_NEED(a, error);
  WEFT_NEED(b, error);
  WEFT_NEED(out, error);
  assert(weft_program_is_sound(a) && weft_program_is_sound(b));
  struct weft_arena arena = {.allocator = allocator};
  WEFT_SCOPED_ARENA scratch = {.allocator = allocator};
  struct owned_diff *owned = weft_arena_allocate(&arena, 1, sizeof *owned);
  WEFT_TRY(weft_arena_status(&arena, error));
  *owned = (struct owned_diff){.diff.graphs_differ = !weft_graph_equal(a->graph, b->graph),
                               .arena = arena};
  struct differ differ = {.scratch = &scratch, .owned = owned, .found_max = differences_max};
  const enum weft_status status = compare_programs(&differ, a, b, error);
  if (status < 0) {
    weft_diff_destroy(&owned->diff);
    return status;
  }
  *out = &owned->diff;
  return WEFT_OK;
}

void weft_diff_destroy(struct weft_diff *diff) {
  if (diff != NULL) {
    struct weft_arena arena = ((struct owned_diff *)diff)->arena; /* diff: its first member */
    weft_arena_finish(&arena);
  }
}
