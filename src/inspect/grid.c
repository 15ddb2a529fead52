/* The step x rank text grid, in the layout of PyTorch's _format_pipeline_order:
 *
 *             Rank 0 Rank 1
 *     Step 0: 0F0
 *     Step 1: 0F1    1F0
 *
 * PyTorch widens each column to the step label as well as to its cells; and it
 * fails on a grid with fewer steps than ranks, where ours widens to the rank
 * label too. The grid is scanned twice, step by step: once to measure, once to
 * write. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/inspect.h>
#include <weft/support.h>

#include "base/plain_text.h"
#include "ir/action.h"
#include "ir/program.h"

/* Every step costs every column a cell, also the columns of ranks that are done;
 * so a table of one long row and many empty ones asks for far more text than it
 * has actions. */
#define GRID_BYTES_MAX (UINT64_C(1) << 30)

enum { HEAD_SIZE = 24 }; /* ">Rank 4294967295<" */

#define ROW_MARK " <-- ERROR HERE"

struct column {
  uint32_t rank;
  size_t width;
  uint64_t next;  /* record of the cell at the step being visited */
  size_t mark;    /* first mark of the rank at or after that step */
  bool is_marked; /* the rank as a whole is marked */
};

struct cell_mark {
  uint64_t step;
  uint32_t rank;
};

struct grid {
  const struct weft_program *program;
  struct weft_arena *arena; /* columns, marks */
  struct column *columns;
  uint32_t column_count;
  uint64_t step_first, step_end; /* the window */
  uint32_t step_digits;
  struct cell_mark *marks; /* by rank, then step */
  size_t mark_count;
  struct weft_text *cell; /* one cell's text */
};

static int compare_marks(const void *a, const void *b) {
  const struct cell_mark *x = a, *y = b;
  return x->rank != y->rank ? (x->rank > y->rank) - (x->rank < y->rank)
                            : (x->step > y->step) - (x->step < y->step);
}

static enum weft_status choose_columns(struct grid *grid, const struct weft_grid_options *options,
                                       struct weft_error *error) {
  const uint32_t rank_count = grid->program->rank_count;
  const uint32_t *ranks = options->ranks;
  grid->column_count = ranks != NULL ? options->rank_count : rank_count;
  grid->columns = weft_arena_allocate(grid->arena, grid->column_count, sizeof *grid->columns);
  WEFT_TRY(weft_arena_status(grid->arena, error));
  for (uint32_t i = 0; i < grid->column_count; i++) {
    grid->columns[i].rank = ranks != NULL ? ranks[i] : i;
    if (grid->columns[i].rank >= rank_count) {
      return weft_fail(error, WEFT_ERR_USAGE, "",
                       "rank %" PRIu32 " is not among the %" PRIu32 " ranks, which count from 0",
                       grid->columns[i].rank, rank_count);
    }
  }
  return WEFT_OK;
}

static void choose_steps(struct grid *grid, const struct weft_grid_options *options) {
  uint64_t steps = 0;
  for (uint32_t i = 0; i < grid->column_count; i++) {
    const uint64_t row_steps = weft_program_row_steps(grid->program, grid->columns[i].rank);
    steps = row_steps > steps ? row_steps : steps;
  }
  grid->step_digits = weft_count_digits(steps);
  grid->step_first = options->step_first < steps ? options->step_first : steps;
  const uint64_t left = steps - grid->step_first;
  const bool all = options->step_count == 0 || options->step_count > left;
  grid->step_end = grid->step_first + (all ? left : options->step_count);
}

/* A sorted copy, so that each column meets its marks in order. */
static enum weft_status choose_marks(struct grid *grid, const struct weft_grid_options *options,
                                     struct weft_error *error) {
  grid->marks = weft_arena_allocate(grid->arena, options->mark_count, sizeof *grid->marks);
  WEFT_TRY(weft_arena_status(grid->arena, error));
  for (size_t i = 0; i < options->mark_count; i++) {
    const struct weft_location *mark = &options->marks[i];
    for (uint32_t c = 0; c < grid->column_count && mark->action == NULL; c++) {
      grid->columns[c].is_marked |= grid->columns[c].rank == mark->rank;
    }
    if (mark->action != NULL) { /* else it is about the whole row */
      grid->marks[grid->mark_count++] = (struct cell_mark){mark->step, mark->rank};
    }
  }
  qsort(grid->marks, grid->mark_count, sizeof *grid->marks, compare_marks);
  return WEFT_OK;
}

/* Widths. */

static const char *head_text(const struct column *column, char *buffer, size_t size) {
  (void)snprintf(buffer, size, "%sRank %" PRIu32 "%s", column->is_marked ? ">" : "", column->rank,
                 column->is_marked ? "<" : "");
  return buffer;
}

static void widen(struct column *column, size_t width) {
  if (column->width < width) {
    column->width = width;
  }
}

static void measure_heads(struct grid *grid) {
  char head[HEAD_SIZE];
  for (uint32_t i = 0; i < grid->column_count; i++) {
    struct column *column = &grid->columns[i];
    widen(column, strlen("Step ") + grid->step_digits);
    widen(column, strlen(head_text(column, head, sizeof head)));
  }
}

static enum weft_status check_size(const struct grid *grid, struct weft_error *error) {
  const uint64_t rows = grid->step_end - grid->step_first + 1;
  uint64_t row_bytes = strlen("Step : \n") + grid->step_digits;
  for (uint32_t i = 0; i < grid->column_count; i++) {
    row_bytes += grid->columns[i].width + 1;
  }
  uint64_t bytes;
  if (!weft_multiply(rows, row_bytes, &bytes) || bytes > GRID_BYTES_MAX) {
    return weft_fail(error, WEFT_ERR_LIMIT, "show fewer ranks or a window of steps",
                     "a grid of %" PRIu64 " steps by %" PRIu32
                     " ranks takes more than the limit of %" PRIu64 " bytes",
                     rows - 1, grid->column_count, GRID_BYTES_MAX);
  }
  return WEFT_OK;
}

/* Cells, step by step. */

static void advance(const struct grid *grid, struct column *column) {
  const struct weft_program *program = grid->program;
  if (column->next < program->row_begin[column->rank + 1]) {
    column->next += weft_cell_records(&program->actions[column->next]);
  }
}

/* To the first step of the window, from anywhere. */
static void rewind_columns(struct grid *grid) {
  for (uint32_t i = 0; i < grid->column_count; i++) {
    struct column *column = &grid->columns[i];
    const uint32_t rank = column->rank;
    column->next = grid->program->row_begin[rank];
    for (uint64_t step = 0;
         step < grid->step_first && column->next < grid->program->row_begin[rank + 1]; step++) {
      advance(grid, column);
    }
    column->mark = 0;
    while (column->mark < grid->mark_count &&
           (grid->marks[column->mark].rank < rank ||
            (grid->marks[column->mark].rank == rank &&
             grid->marks[column->mark].step < grid->step_first))) {
      column->mark++;
    }
  }
}

/* The text of the column's cell, with its mark, into grid->cell; then on to the
 * next step. Returns whether it is marked. */
static bool take_cell(struct grid *grid, struct column *column, uint64_t step) {
  const struct weft_program *program = grid->program;
  bool marked = false;
  for (; column->mark < grid->mark_count && grid->marks[column->mark].rank == column->rank &&
         grid->marks[column->mark].step == step;
       column->mark++) {
    marked = true;
  }
  grid->cell->size = 0;
  weft_text_add(grid->cell, marked ? ">" : "");
  if (column->next < program->row_begin[column->rank + 1]) {
    weft_action_print(&program->actions[column->next], grid->cell);
  }
  weft_text_add(grid->cell, marked ? "<" : "");
  advance(grid, column);
  return marked;
}

static void measure_cells(struct grid *grid) {
  rewind_columns(grid);
  for (uint64_t step = grid->step_first; step < grid->step_end; step++) {
    for (uint32_t i = 0; i < grid->column_count; i++) {
      (void)take_cell(grid, &grid->columns[i], step);
      widen(&grid->columns[i], grid->cell->size);
    }
  }
}

/* Writing. */

static void add_spaces(struct weft_text *text, size_t count) {
  static const char spaces[] = "                                ";
  while (count > 0) {
    const size_t some = count < sizeof spaces - 1 ? count : sizeof spaces - 1;
    weft_text_append(text, spaces, some);
    count -= some;
  }
}

static void add_padded(struct weft_text *text, const char *data, size_t size, size_t width,
                       bool first) {
  assert(size <= width);
  add_spaces(text, first ? 0 : 1);
  weft_text_append(text, data, size);
  add_spaces(text, width - size);
}

static void write_heads(const struct grid *grid, struct weft_text *text) {
  char head[HEAD_SIZE];
  add_spaces(text, strlen("Step : ") + grid->step_digits);
  for (uint32_t i = 0; i < grid->column_count; i++) {
    const struct column *column = &grid->columns[i];
    (void)head_text(column, head, sizeof head);
    add_padded(text, head, strlen(head), column->width, i == 0);
  }
  weft_text_add(text, "\n");
}

static void write_step(struct grid *grid, uint64_t step, struct weft_text *text) {
  bool row_marked = false;
  weft_text_addf(text, "Step %0*" PRIu64 ": ", (int)grid->step_digits, step);
  for (uint32_t i = 0; i < grid->column_count; i++) {
    struct column *column = &grid->columns[i];
    row_marked |= take_cell(grid, column, step);
    add_padded(text, grid->cell->data, grid->cell->size, column->width, i == 0);
  }
  weft_text_add(text, row_marked ? ROW_MARK "\n" : "\n");
}

static enum weft_status write_grid(struct grid *grid, struct weft_text *text,
                                   struct weft_error *error) {
  assert(grid->step_first <= grid->step_end);
  const size_t size_before = text->size;
  rewind_columns(grid);
  write_heads(grid, text);
  for (uint64_t step = grid->step_first; step < grid->step_end && !text->failed; step++) {
    write_step(grid, step, text);
  }
  if (text->failed && text->data != NULL) {
    text->size = size_before;
    text->data[size_before] = '\0';
  }
  return weft_text_status(text, error);
}

static enum weft_status layout(struct grid *grid, const struct weft_grid_options *options,
                               struct weft_error *error) {
  WEFT_TRY(choose_columns(grid, options, error));
  choose_steps(grid, options);
  WEFT_TRY(choose_marks(grid, options, error));
  measure_heads(grid);
  WEFT_TRY(check_size(grid, error)); /* before time is spent on measuring */
  measure_cells(grid);
  WEFT_TRY(weft_text_status(grid->cell, error));
  return check_size(grid, error);
}

enum weft_status weft_grid_print(const struct weft_program *program,
                                 const struct weft_grid_options *options, struct weft_text *text,
                                 struct weft_error *error) {
  WEFT_NEED(program, error);
  WEFT_NEED(text, error);
  assert(weft_program_is_sound(program));
  static const struct weft_grid_options everything = {.ranks = NULL};
  WEFT_SCOPED_ARENA arena = {.allocator = program->allocator};
  WEFT_SCOPED_TEXT cell = {.allocator = program->allocator};
  struct grid grid = {.program = program, .arena = &arena, .cell = &cell};
  WEFT_TRY(layout(&grid, options != NULL ? options : &everything, error));
  return write_grid(&grid, text, error);
}
