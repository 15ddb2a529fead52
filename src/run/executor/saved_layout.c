/* Where the stages of a rank save what they need of a microbatch for its backward.
 *
 * Lifetimes are intervals on the rank's row, from F to the last backward, so addresses are known
 * before a step: in the order of the row, each microbatch takes the lowest gap that is large enough
 * (first fit), and gives it back at its end. With equal sizes a gap is never too small, and the
 * rank needs just the most that is alive at once. With different sizes, gaps may be left. So a
 * second layout has a part for each size, and the smaller of the two is taken: a rank never
 * needs more than its stages would with memory of their own. */
#include <assert.h>
#include <string.h>

#include <weft/run.h>

#include "ir/lifetimes.h"
#include "run/executor/row.h"

#define ALIGN UINT64_C(256)
#define ALL_SIZES 0

struct gap {
  uint64_t begin, end;
};

struct layout {
  const struct weft_row *row;
  const uint64_t *bytes; /* [own stage] */
  uint64_t *at;          /* [own stage][microbatch] */
  bool *alive;           /* likewise */
  struct gap *gaps;      /* ascending; the last one has no end */
  uint64_t gap_count;
  uint64_t top; /* the end of all that was taken */
};

static uint64_t take_gap(struct layout *layout, uint64_t bytes) {
  struct gap *gap = layout->gaps;
  while (gap->end - gap->begin < bytes) {
    gap++;
  }
  const uint64_t at = gap->begin;
  gap->begin += bytes;
  layout->top = gap->begin > layout->top ? gap->begin : layout->top;
  if (gap->begin == gap->end) {
    layout->gap_count--;
    memmove(gap, gap + 1, (size_t)(layout->gaps + layout->gap_count - gap) * sizeof *gap);
  }
  return at;
}

static void give_gap(struct layout *layout, uint64_t bytes, uint64_t at) {
  uint64_t low = 0;
  for (uint64_t count = layout->gap_count; count > 0;) { /* the first gap above */
    const uint64_t half = count / 2;
    const bool below = layout->gaps[low + half].begin < at;
    low += below ? half + 1 : 0;
    count = below ? count - half - 1 : half;
  }
  struct gap *above = &layout->gaps[low];
  assert(low < layout->gap_count && at + bytes <= above->begin);
  const bool joins_below = low > 0 && above[-1].end == at;
  const bool joins_above = above->begin == at + bytes;
  if (joins_below && joins_above) {
    above[-1].end = above->end;
    layout->gap_count--;
    memmove(above, above + 1, (size_t)(layout->gap_count - low) * sizeof *above);
  } else if (joins_below) {
    above[-1].end = at + bytes;
  } else if (joins_above) {
    above->begin = at;
  } else {
    memmove(above + 1, above, (size_t)(layout->gap_count - low) * sizeof *above);
    layout->gap_count++;
    *above = (struct gap){at, at + bytes};
  }
}

/* ---- The row ---- */

/* An action that begins lifetimes, or ends them; of stages of that size, or of all. */
static void visit_action(struct layout *layout, struct weft_action action, bool begins,
                         uint64_t size) {
  const struct weft_row *row = layout->row;
  uint32_t k;
  if (!weft_op_in(action.op, WEFT_OPS_COMPUTE) || !weft_row_find_stage(row, action.stage, &k) ||
      layout->bytes[k] == 0 || (size != ALL_SIZES && layout->bytes[k] != size)) {
    return;
  }
  const uint64_t held = (uint64_t)k * row->program->microbatch_count + action.microbatch;
  if (begins && action.op == WEFT_OP_F && !layout->alive[held]) {
    layout->at[held] = take_gap(layout, layout->bytes[k]);
    layout->alive[held] = true;
  } else if (!begins && weft_ends_saved(action.op, row->stages[k].has_backward) &&
             layout->alive[held]) {
    give_gap(layout, layout->bytes[k], layout->at[held]);
    layout->alive[held] = false;
  }
}

/* First fit, from layout->top on. All sub-actions of an overlap begin before any of them ends. */
static void lay_out(struct layout *layout, uint64_t size) {
  const struct weft_row *row = layout->row;
  layout->gaps[0] = (struct gap){layout->top, UINT64_MAX};
  layout->gap_count = 1;
  memset(layout->alive, 0, row->held_count * sizeof *layout->alive);
  for (uint64_t i = row->begin; i < row->end;) {
    const uint64_t end = i + weft_cell_records(&row->program->actions[i]);
    for (uint64_t at = i; at < end; at++) {
      visit_action(layout, row->program->actions[at], true, size);
    }
    for (; i < end; i++) {
      visit_action(layout, row->program->actions[i], false, size);
    }
  }
}

/* One part after the other, of the stages of each size. */
static void lay_out_by_size(struct layout *layout) {
  for (uint32_t k = 0; k < layout->row->own_count; k++) {
    bool is_first = layout->bytes[k] > 0;
    for (uint32_t other = 0; other < k; other++) {
      is_first = is_first && layout->bytes[other] != layout->bytes[k];
    }
    if (is_first) {
      lay_out(layout, layout->bytes[k]);
    }
  }
}

/* ---- Making ---- */

/* Of each own stage, rounded up. False: all microbatches together are no number. */
static bool round_sizes(const struct weft_row *row, struct weft_stage *const *stages,
                        uint64_t *rounded, uint64_t *sum) {
  *sum = 0;
  for (uint32_t k = 0; k < row->own_count; k++) {
    const struct weft_stage *stage = stages[row->own_stages[k]];
    const uint64_t bytes = stage != NULL ? stage->saved_bytes : 0; /* checked later */
    uint64_t all;
    if (bytes > UINT64_MAX / 4) {
      return false;
    }
    rounded[k] = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (!weft_multiply(rounded[k], row->program->microbatch_count, &all) ||
        all > UINT64_MAX / 4 - *sum) {
      return false;
    }
    *sum += all;
  }
  return true;
}

enum weft_status weft_row_lay_out_saved(struct weft_row *row, struct weft_stage *const *stages,
                                        struct weft_error *error) {
  WEFT_SCOPED_ARENA arena = {.allocator = row->arena.allocator};
  uint64_t *rounded = weft_arena_allocate(&arena, row->own_count, sizeof *rounded);
  uint64_t sum = 0;
  const bool fits = rounded != NULL && round_sizes(row, stages, rounded, &sum);
  if (!fits || sum == 0) {
    return fits ? WEFT_OK : weft_fail_memory(error, SIZE_MAX);
  }
  struct layout layout = {
      .row = row,
      .bytes = rounded,
      .at = weft_arena_allocate(&row->arena, row->held_count, sizeof *layout.at),
      .alive = weft_arena_allocate(&arena, row->held_count, sizeof *layout.alive),
      .gaps = weft_arena_allocate(&arena, row->held_count + 2, sizeof *layout.gaps)};
  struct layout by_size = layout;
  by_size.at = weft_arena_allocate(&arena, row->held_count, sizeof *by_size.at);
  WEFT_TRY(weft_arena_status(&arena, error));
  WEFT_TRY(weft_arena_status(&row->arena, error));
  lay_out(&layout, ALL_SIZES);
  lay_out_by_size(&by_size);
  if (by_size.top < layout.top) {
    memcpy(layout.at, by_size.at, row->held_count * sizeof *layout.at);
  }
  row->saved_at = layout.at;
  row->saved_bytes = by_size.top < layout.top ? by_size.top : layout.top;
  return WEFT_OK;
}
