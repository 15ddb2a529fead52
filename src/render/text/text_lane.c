/* One rank's timeline as a line of text. Each column is a slice of time and shows
 * what takes most of it. A cell that is wide enough shows its microbatch, F12,
 * and blanks up to its end; where the cells of an op are too narrow for that, its
 * letter fills them, and of two next to each other the second has small letters. */
#include "render/text/text_lane.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LABEL_SIZE = 32 };

#define FULL (1 - 1e-6) /* of a column, but for rounding */

/* The ops with a letter. Where two have the same share of a column, compute comes
 * before collectives, and idle time last. */
static void choose_shown(struct weft_text_lanes *lanes) {
  static const enum weft_op_kind kinds[] = {WEFT_KIND_COMPUTE, WEFT_KIND_GROUP, WEFT_KIND_SHARD,
                                            WEFT_KIND_IDLE};
  lanes->shown_count = 0;
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    for (unsigned op = 0; op < WEFT_OP_COUNT; op++) {
      if (weft_op_info(op)->kind == kinds[i] && weft_op_info(op)->letter != '\0') {
        lanes->shown[lanes->shown_count++] = op;
      }
    }
  }
}

/* The next cell that takes time and has a letter. */
static bool next_shown(struct weft_lane *lane, struct weft_lane_cell *cell) {
  while (weft_lane_next(lane, cell)) {
    if (weft_op_info(cell->op)->letter != '\0' && cell->end > cell->begin) {
      return true;
    }
  }
  return false;
}

static size_t format_label(enum weft_op op, const struct weft_action actions[2],
                           char label[LABEL_SIZE]) {
  size_t size = 0;
  for (unsigned i = 0; i < (op == WEFT_OP_OVERLAP_F_B ? 2u : 1u); i++) {
    size += (size_t)snprintf(label + size, LABEL_SIZE - size, "%s%" PRIu32,
                             weft_op_info(actions[i].op)->text, actions[i].microbatch);
  }
  return size;
}

/* ---- Which ops get labels ---- */

void weft_text_lanes_measure(struct weft_text_lanes *lanes) {
  assert(lanes->column_count > 0);
  choose_shown(lanes);
  double widths[WEFT_OP_COUNT] = {0}, counts[WEFT_OP_COUNT] = {0};
  const uint32_t microbatch_count = lanes->simulation->program->microbatch_count;
  const double ticks = (double)lanes->extent.end - (double)lanes->extent.begin;
  for (uint32_t rank = 0; rank < lanes->simulation->program->rank_count; rank++) {
    struct weft_lane lane = weft_lane_begin(lanes->simulation, rank);
    struct weft_lane_cell cell;
    while (next_shown(&lane, &cell)) {
      widths[cell.op] += ((double)cell.end - (double)cell.begin) * lanes->column_count / ticks;
      counts[cell.op]++;
    }
  }
  const struct weft_action widest = {.op = WEFT_OP_F,
                                     .microbatch = microbatch_count > 0 ? microbatch_count - 1 : 0};
  for (unsigned op = 0; op < WEFT_OP_COUNT; op++) {
    const enum weft_op_kind kind = weft_op_info(op)->kind;
    char label[LABEL_SIZE];
    const size_t size = format_label(op, (const struct weft_action[2]){widest, widest}, label);
    lanes->seen[op] = counts[op] > 0;
    lanes->labelled[op] = (kind == WEFT_KIND_COMPUTE || kind == WEFT_KIND_GROUP) &&
                          counts[op] > 0 && widths[op] / counts[op] >= (double)size;
    lanes->counted[op] = !lanes->labelled[op] && counts[op] > 0 && widths[op] / counts[op] >= 1;
  }
}

/* ---- Sharing out the time of a rank ---- */

static void share_out(struct weft_text_lanes *lanes, const struct weft_lane_cell *cell,
                      uint64_t number) {
  const double from = weft_extent_column(&lanes->extent, (double)cell->begin, lanes->column_count);
  const double to = weft_extent_column(&lanes->extent, (double)cell->end, lanes->column_count);
  for (uint32_t i = (uint32_t)from; i < to; i++) {
    const double begin = from > i ? from : i;
    const double end = to < i + 1.0 ? to : i + 1.0;
    struct weft_text_share *share = &lanes->columns[i].shares[cell->op];
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
  struct weft_lane lane = weft_lane_begin(lanes->simulation, rank);
  struct weft_lane_cell cell;
  for (uint64_t number = 0; next_shown(&lane, &cell); number++) {
    share_out(lanes, &cell, number);
  }
}

/* Of the ops that the column holds, the one with most time, that of the columns
 * before included; of equals the first. */
static enum weft_op best_of(const struct weft_text_lanes *lanes,
                            const struct weft_text_column *column,
                            const double due[WEFT_OP_COUNT]) {
  unsigned best = WEFT_OP_COUNT;
  for (unsigned k = 0; k < lanes->shown_count; k++) {
    const enum weft_op op = lanes->shown[k];
    const bool holds = column->shares[op].time > 1 - FULL;
    if (holds && (best == WEFT_OP_COUNT || due[op] > due[best])) {
      best = op;
    }
  }
  return best;
}

/* What a column shows: what takes most of it. What it could not show of the
 * others is still due in the next, so that short actions among longer ones are
 * seen as often as their time is worth, and not never. Nothing is due after a
 * column that one thing fills, and no column shows what is not in it. */
static void choose_ops(struct weft_text_lanes *lanes) {
  double due[WEFT_OP_COUNT] = {0};
  for (uint32_t i = 0; i < lanes->column_count; i++) {
    struct weft_text_column *column = &lanes->columns[i];
    struct weft_text_share *shares = column->shares;
    shares[WEFT_OP_IDLE].time = 1;
    for (unsigned k = 0; lanes->shown[k] != WEFT_OP_IDLE; k++) {
      shares[WEFT_OP_IDLE].time -= shares[lanes->shown[k]].time;
      due[lanes->shown[k]] += shares[lanes->shown[k]].time;
    }
    due[WEFT_OP_IDLE] += shares[WEFT_OP_IDLE].time;
    column->op = best_of(lanes, column, due);
    due[column->op] -= 1;
    if (shares[column->op].time > FULL) {
      memset(due, 0, sizeof due);
    }
  }
}

/* ---- Writing ---- */

/* Columns from `from` on that show the same cell; of idle ones, all. */
static uint32_t run_length(const struct weft_text_lanes *lanes, uint32_t from, enum weft_op op) {
  const uint64_t number = lanes->columns[from].shares[op].best;
  uint32_t end = from + 1;
  while (end < lanes->column_count && lanes->columns[end].op == op &&
         lanes->columns[end].shares[op].best == number) {
    end++;
  }
  return end - from;
}

static void add_colour(const struct weft_text_lanes *lanes, enum weft_op op,
                       struct weft_text *text) {
  if (lanes->colour) {
    weft_text_addf(text, "\x1b[0;%sm", weft_op_info(op)->terminal_colour);
  }
}

/* The columns of an overlap take turns in the colours of what overlaps. */
static void add_run(const struct weft_text_lanes *lanes, uint32_t from, uint32_t size,
                    enum weft_op op, bool small, struct weft_text *text) {
  const struct weft_action *actions = lanes->columns[from].shares[op].actions;
  const char letter = weft_op_info(op)->letter;
  const char fill = (char)(letter + (small && lanes->counted[op] ? 'a' - 'A' : 0));
  char label[LABEL_SIZE];
  size_t label_size = 0;
  if (lanes->labelled[op]) {
    label_size = format_label(op, actions, label);
    label_size = label_size > size ? 1 : label_size; /* rounding made it narrow */
  }
  for (size_t i = 0; i < size; i++) {
    if (op == WEFT_OP_OVERLAP_F_B) {
      add_colour(lanes, actions[i % 2].op, text);
    }
    weft_text_append(text, i < label_size ? &label[i] : label_size > 0 ? " " : &fill, 1);
  }
}

void weft_text_lane_add(struct weft_text_lanes *lanes, uint32_t rank, struct weft_text *text) {
  assert(rank < lanes->simulation->program->rank_count);
  assert(lanes->shown_count > 0);
  fill_columns(lanes, rank);
  choose_ops(lanes);
  enum weft_op before = WEFT_OP_COUNT;
  bool small = false;
  for (uint32_t i = 0; i < lanes->column_count;) {
    const enum weft_op op = lanes->columns[i].op;
    const uint32_t size = run_length(lanes, i, op);
    if (op != before) {
      add_colour(lanes, op, text);
    }
    small = op == before && !small;
    lanes->has_pairs |= small && lanes->counted[op];
    add_run(lanes, i, size, op, small, text);
    before = op;
    i += size;
  }
  weft_text_add(text, lanes->colour ? "\x1b[0m" : "");
}
