/* One rank's timeline as a line of text. Each column is a slice of time and shows
 * what takes most of it. A cell that is wide enough shows its microbatch, F12,
 * and blanks up to its end; where the cells of an op are too narrow for that, its
 * letter fills them. */
#include "render/text/text_lane.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LABEL_SIZE = 32 };

#define FULL (1 - 1e-6) /* of a column, but for rounding */

/* Colours of the 256-colour set that are near those of the other pictures. */
static const struct weft_text_mark_info marks[WEFT_TEXT_MARKS] = {
    [WEFT_TEXT_F] = {'F', "48;5;74;38;5;16", "forward"},
    [WEFT_TEXT_B] = {'B', "48;5;166;38;5;231", "backward"},
    [WEFT_TEXT_I] = {'I', "48;5;221;38;5;16", "input gradient"},
    [WEFT_TEXT_W] = {'W', "48;5;23;38;5;231", "weight gradient"},
    [WEFT_TEXT_OVERLAP] = {'X', "48;5;175;38;5;16", "overlap of F, B"},
    [WEFT_TEXT_UNSHARD] = {'U', "48;5;182;38;5;16", "unshard"},
    [WEFT_TEXT_REDUCE] = {'R', "48;5;97;38;5;231", "reduce gradients"},
    [WEFT_TEXT_TIE] = {'T', "48;5;53;38;5;231", "tie gradients"},
    [WEFT_TEXT_IDLE] = {'.', "2", "idle"},
};

const struct weft_text_mark_info *weft_text_mark_info(enum weft_text_mark mark) {
  return &marks[mark];
}

/* A cell of the lane: an event, or an overlap as a whole. */
struct cell {
  enum weft_text_mark mark;
  int64_t begin, end;
  struct weft_action actions[2]; /* the second is of an overlap */
};

static enum weft_text_mark mark_of(const struct weft_lane_item *item) {
  if (item->parts > 1) {
    return WEFT_TEXT_OVERLAP;
  }
  switch (item->action.op) {
    case WEFT_OP_F: return WEFT_TEXT_F;
    case WEFT_OP_B: return WEFT_TEXT_B;
    case WEFT_OP_I: return WEFT_TEXT_I;
    case WEFT_OP_W: return WEFT_TEXT_W;
    case WEFT_OP_UNSHARD: return WEFT_TEXT_UNSHARD;
    case WEFT_OP_REDUCE_GRAD: return WEFT_TEXT_REDUCE;
    case WEFT_OP_TIE_GRAD: return WEFT_TEXT_TIE;
    default: return WEFT_TEXT_IDLE; /* transfers are not the rank's work */
  }
}

/* The next cell that takes time. Parts of an overlap beyond two are within its
 * time, and not named. */
static bool next_cell(struct weft_lane_walk *walk, struct cell *cell) {
  struct weft_lane_item item;
  while (weft_lane_next(walk, &item)) {
    cell->mark = mark_of(&item);
    cell->begin = item.begin;
    cell->end = item.end;
    cell->actions[0] = cell->actions[1] = item.action;
    for (uint32_t part = item.part + 1; part < item.parts && weft_lane_next(walk, &item); part++) {
      cell->actions[1] = part == 1 ? item.action : cell->actions[1];
    }
    if (cell->mark != WEFT_TEXT_IDLE && cell->end > cell->begin) {
      return true;
    }
  }
  return false;
}

static size_t format_label(enum weft_text_mark mark, const struct weft_action actions[2],
                           char label[LABEL_SIZE]) {
  size_t size = 0;
  for (unsigned i = 0; i < (mark == WEFT_TEXT_OVERLAP ? 2u : 1u); i++) {
    size += (size_t)snprintf(label + size, LABEL_SIZE - size, "%s%" PRIu32,
                             weft_op_info(actions[i].op)->text, actions[i].microbatch);
  }
  return size;
}

/* ---- Which ops get labels ---- */

void weft_text_lanes_measure(struct weft_text_lanes *lanes) {
  double widths[WEFT_TEXT_MARKS] = {0}, counts[WEFT_TEXT_MARKS] = {0};
  const uint32_t microbatch_count = lanes->simulation->program->microbatch_count;
  const double ticks = (double)lanes->extent.end - (double)lanes->extent.begin;
  for (uint32_t rank = 0; rank < lanes->simulation->program->rank_count; rank++) {
    struct weft_lane_walk walk = weft_lane_begin(lanes->simulation, rank);
    struct cell cell;
    while (next_cell(&walk, &cell)) {
      widths[cell.mark] += ((double)cell.end - (double)cell.begin) * lanes->column_count / ticks;
      counts[cell.mark]++;
    }
  }
  const struct weft_action widest = {.op = WEFT_OP_F,
                                     .microbatch = microbatch_count > 0 ? microbatch_count - 1 : 0};
  for (unsigned mark = 0; mark < WEFT_TEXT_MARKS; mark++) {
    char label[LABEL_SIZE];
    const size_t size = format_label(mark, (const struct weft_action[2]){widest, widest}, label);
    lanes->seen[mark] = counts[mark] > 0;
    lanes->labelled[mark] = mark <= WEFT_TEXT_OVERLAP && counts[mark] > 0 &&
                            widths[mark] / counts[mark] >= (double)size;
  }
}

/* ---- Sharing out the time of a rank ---- */

static void share_out(struct weft_text_lanes *lanes, const struct cell *cell, uint64_t number) {
  const double from = weft_extent_column(&lanes->extent, (double)cell->begin, lanes->column_count);
  const double to = weft_extent_column(&lanes->extent, (double)cell->end, lanes->column_count);
  for (uint32_t i = (uint32_t)from; i < to; i++) {
    const double begin = from > i ? from : i;
    const double end = to < i + 1.0 ? to : i + 1.0;
    struct weft_text_share *share = &lanes->columns[i].shares[cell->mark];
    share->time += end - begin;
    if (end - begin > share->best_time) {
      share->best_time = end - begin;
      share->best = number;
      memcpy(share->actions, cell->actions, sizeof share->actions);
    }
  }
}

static void fill_columns(struct weft_text_lanes *lanes, uint32_t rank) {
  memset(lanes->columns, 0, lanes->column_count * sizeof *lanes->columns);
  struct weft_lane_walk walk = weft_lane_begin(lanes->simulation, rank);
  struct cell cell;
  for (uint64_t number = 0; next_cell(&walk, &cell); number++) {
    share_out(lanes, &cell, number);
  }
}

/* Of the marks that the column holds, the one with most time, that of the
 * columns before included; of equals the first. */
static enum weft_text_mark best_of(const struct weft_text_column *column,
                                   const double due[WEFT_TEXT_MARKS]) {
  unsigned best = WEFT_TEXT_MARKS;
  for (unsigned mark = 0; mark < WEFT_TEXT_MARKS; mark++) {
    const bool holds = column->shares[mark].time > 1 - FULL;
    if (holds && (best == WEFT_TEXT_MARKS || due[mark] > due[best])) {
      best = mark;
    }
  }
  return best;
}

/* What a column shows: what takes most of it. What it could not show of the
 * others is still due in the next, so that short actions among longer ones are
 * seen as often as their time is worth, and not never. Nothing is due after a
 * column that one thing fills, and no column shows what is not in it. */
static void choose_marks(struct weft_text_lanes *lanes) {
  double due[WEFT_TEXT_MARKS] = {0};
  for (uint32_t i = 0; i < lanes->column_count; i++) {
    struct weft_text_column *column = &lanes->columns[i];
    struct weft_text_share *shares = column->shares;
    shares[WEFT_TEXT_IDLE].time = 1;
    for (unsigned mark = 0; mark < WEFT_TEXT_IDLE; mark++) {
      shares[WEFT_TEXT_IDLE].time -= shares[mark].time;
      due[mark] += shares[mark].time;
    }
    due[WEFT_TEXT_IDLE] += shares[WEFT_TEXT_IDLE].time;
    column->mark = best_of(column, due);
    due[column->mark] -= 1;
    if (shares[column->mark].time > FULL) {
      memset(due, 0, sizeof due);
    }
  }
}

/* ---- Writing ---- */

/* Columns from `from` on that show the same cell; of idle ones, all. */
static uint32_t run_length(const struct weft_text_lanes *lanes, uint32_t from,
                           enum weft_text_mark mark) {
  const uint64_t number = lanes->columns[from].shares[mark].best;
  uint32_t end = from + 1;
  while (end < lanes->column_count && lanes->columns[end].mark == mark &&
         lanes->columns[end].shares[mark].best == number) {
    end++;
  }
  return end - from;
}

static void add_run(const struct weft_text_lanes *lanes, uint32_t from, uint32_t size,
                    enum weft_text_mark mark, struct weft_text *text) {
  char label[LABEL_SIZE];
  size_t label_size = 0;
  if (lanes->labelled[mark]) {
    label_size = format_label(mark, lanes->columns[from].shares[mark].actions, label);
    label_size = label_size > size ? 1 : label_size; /* rounding made it narrow */
    weft_text_append(text, label, label_size);
  }
  for (size_t i = label_size; i < size; i++) {
    weft_text_append(text, label_size > 0 ? " " : &marks[mark].letter, 1);
  }
}

void weft_text_lane_add(struct weft_text_lanes *lanes, uint32_t rank, struct weft_text *text) {
  fill_columns(lanes, rank);
  choose_marks(lanes);
  enum weft_text_mark before = WEFT_TEXT_MARKS;
  for (uint32_t i = 0; i < lanes->column_count;) {
    const enum weft_text_mark mark = lanes->columns[i].mark;
    const uint32_t size = run_length(lanes, i, mark);
    if (lanes->colour && mark != before) {
      weft_text_addf(text, "\x1b[0;%sm", marks[mark].colour);
    }
    add_run(lanes, i, size, mark, text);
    before = mark;
    i += size;
  }
  weft_text_add(text, lanes->colour ? "\x1b[0m" : "");
}
