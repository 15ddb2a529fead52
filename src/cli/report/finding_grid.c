/* The part of the grid round a finding: few enough rows and columns to be read. */
#include "cli/report/finding_grid.h"

#include <assert.h>

enum { COLUMNS_MAX = 12, ROWS_MAX = 28, MARGIN = 3, WINDOWS_MAX = 4 };

struct excerpt {
  const struct weft_program *program;
  const struct weft_location *marks;
  size_t mark_count;
  uint32_t ranks[COLUMNS_MAX]; /* ascending */
  uint32_t rank_count;
};

/* ---- Columns ---- */

static void add_rank(struct excerpt *excerpt, uint32_t rank) {
  uint32_t at = 0;
  while (at < excerpt->rank_count && excerpt->ranks[at] < rank) {
    at++;
  }
  const bool known = at < excerpt->rank_count && excerpt->ranks[at] == rank;
  if (known || excerpt->rank_count == COLUMNS_MAX || rank >= excerpt->program->rank_count) {
    return;
  }
  for (uint32_t i = excerpt->rank_count; i > at; i--) {
    excerpt->ranks[i] = excerpt->ranks[i - 1];
  }
  excerpt->ranks[at] = rank;
  excerpt->rank_count++;
}

/* The marked ranks first, then their neighbours, nearest first. */
static void choose_ranks(struct excerpt *excerpt) {
  for (uint32_t distance = 0; distance <= COLUMNS_MAX; distance++) {
    for (size_t i = 0; i < excerpt->mark_count && excerpt->rank_count < COLUMNS_MAX; i++) {
      const uint32_t rank = excerpt->marks[i].rank;
      if (rank >= distance) {
        add_rank(excerpt, rank - distance);
      }
      add_rank(excerpt, rank + distance);
    }
  }
}

/* ---- Rows ---- */

static enum weft_status print_window(const struct excerpt *excerpt, uint64_t first, uint64_t last,
                                     struct weft_text *text, struct weft_error *error) {
  const struct weft_grid_options options = {
      .step_first = first > MARGIN ? first - MARGIN : 0,
      .step_count = last - first + 1 + (first > MARGIN ? MARGIN : first) + MARGIN,
      .ranks = excerpt->ranks,
      .rank_count = excerpt->rank_count,
      .marks = excerpt->marks,
      .mark_count = excerpt->mark_count};
  return weft_grid_print(excerpt->program, &options, text, error);
}

/* One window over all marks, or, where they lie far apart, one for each of the
 * first few. */
static enum weft_status print_windows(const struct excerpt *excerpt, struct weft_text *text,
                                      struct weft_error *error) {
  uint64_t first = UINT64_MAX, last = 0;
  for (size_t i = 0; i < excerpt->mark_count; i++) {
    const uint64_t step = excerpt->marks[i].step;
    first = step < first ? step : first;
    last = step > last ? step : last;
  }
  if (last - first < ROWS_MAX - 2 * MARGIN) {
    return print_window(excerpt, first, last, text, error);
  }
  enum weft_status status = WEFT_OK;
  for (size_t i = 0; i < excerpt->mark_count && i < WINDOWS_MAX && status == WEFT_OK; i++) {
    const uint64_t step = excerpt->marks[i].step;
    weft_text_add(text, i > 0 ? "...\n" : "");
    status = print_window(excerpt, step, step, text, error);
  }
  return status;
}

enum weft_status weft_cli_finding_grid_add(struct weft_text *text,
                                           const struct weft_program *program,
                                           const struct weft_finding *finding,
                                           struct weft_error *error) {
  assert(text != NULL && program != NULL);
  const bool cycle = finding->cycle_length > 0;
  struct excerpt excerpt = {.program = program,
                            .marks = cycle ? finding->cycle : &finding->location,
                            .mark_count = cycle ? finding->cycle_length : 1};
  if (!cycle &&
      (finding->location.action == NULL || finding->location.rank >= program->rank_count)) {
    return WEFT_OK;
  }
  choose_ranks(&excerpt);
  return print_windows(&excerpt, text, error);
}
