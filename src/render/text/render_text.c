/* A timeline for a terminal: a line per rank, its memory under it, an axis, a
 * legend and a summary, none wider than asked for. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "base/plain_text.h"
#include "render/text/text_lane.h"
#include "sim/event_waits.h"

enum {
  WIDTH_WORDS = 60, /* from here on there is room for words next to the lines */
  WIDTH_RIGHT = 30, /* and from here on for numbers */
  NUMBER_WIDTH = 8,
  RANKS_MAX = 32,  /* more than these are shown in part, unless all are asked for: */
  RANKS_SHOWN = 16 /* about so many */
};

static const char *const levels[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
enum { LEVELS = sizeof levels / sizeof levels[0] - 1 };

#define MEMORY_COLOUR "38;5;244"

struct layout {
  const struct weft_picture *picture;
  const struct weft_render_options *options;
  uint32_t step; /* every step-th rank is shown, and the last */
  size_t left;   /* columns before the timeline */
  size_t right;  /* and behind it */
  struct weft_text_lanes lanes;
  struct weft_memory_columns memory;
};

/* No blanks at the end of a line. */
static void end_line(struct weft_text *text, size_t begin) {
  while (!text->failed && text->size > begin && text->data[text->size - 1] == ' ') {
    text->size--;
  }
  weft_text_add(text, "\n");
}

static bool has_memory(const struct layout *layout) {
  return layout->picture->costs != NULL && layout->picture->simulation->peak_activation > 0;
}

static enum weft_status prepare_layout(struct layout *layout, struct weft_error *error) {
  const struct weft_simulation *simulation = layout->picture->simulation;
  const uint32_t rank_count = simulation->program->rank_count;
  const bool words = layout->options->width >= WIDTH_WORDS;
  layout->left = (words ? strlen("rank ") : 0) + weft_count_digits(rank_count) + 1;
  layout->right = words                                   ? 1 + strlen("peak ") + NUMBER_WIDTH
                  : layout->options->width >= WIDTH_RIGHT ? 1 + NUMBER_WIDTH
                                                          : 0;
  const uint32_t columns = layout->options->width - (uint32_t)(layout->left + layout->right);
  layout->lanes = (struct weft_text_lanes){.simulation = simulation,
                                           .extent = weft_extent_of(simulation),
                                           .column_count = columns,
                                           .colour = layout->options->colour};
  layout->memory.picture = layout->picture;
  layout->memory.extent = layout->lanes.extent;
  layout->memory.column_count = columns;
  layout->lanes.columns =
      weft_array_allocate(layout->memory.allocator, columns, sizeof *layout->lanes.columns);
  if (layout->lanes.columns == NULL) {
    return weft_fail_memory(error, columns * sizeof *layout->lanes.columns);
  }
  weft_text_lanes_measure(&layout->lanes);
  return WEFT_OK;
}

/* ---- Ranks ---- */

static void add_rank(struct layout *layout, uint32_t rank, struct weft_text *text) {
  const struct weft_simulation *simulation = layout->picture->simulation;
  const bool words = layout->options->width >= WIDTH_WORDS;
  const size_t begin = text->size;
  weft_text_addf(text, "%s%*" PRIu32 " ", words ? "rank " : "",
                 (int)(layout->left - (words ? strlen("rank ") : 0) - 1), rank);
  weft_text_lane_add(&layout->lanes, rank, text);
  if (layout->right > 0 && simulation->makespan > 0) {
    weft_text_addf(text, " %3.0f%%%s", 100 * simulation->ranks[rank].idle / simulation->makespan,
                   words ? " idle" : "");
  }
  end_line(text, begin);
}

/* The smallest level that is not below the size: a little memory is not none. */
static unsigned level_of(double size, double peak) {
  const double level = weft_memory_share(size, peak) * (double)LEVELS;
  unsigned steps = (unsigned)level;
  steps += level > steps + 1e-9;
  return steps > LEVELS ? LEVELS : steps;
}

static void add_memory(struct layout *layout, uint32_t rank, struct weft_text *text) {
  const struct weft_simulation *simulation = layout->picture->simulation;
  const size_t begin = text->size;
  weft_text_addf(text, "%*s%s", (int)layout->left, "",
                 layout->options->colour ? "\x1b[" MEMORY_COLOUR "m" : "");
  for (uint32_t i = 0; i < layout->memory.column_count; i++) {
    weft_text_add(text, levels[level_of(layout->memory.sizes[i], simulation->peak_activation)]);
  }
  weft_text_add(text, layout->options->colour ? "\x1b[0m" : "");
  if (layout->right > 0) {
    weft_text_add(text, layout->options->width >= WIDTH_WORDS ? " peak " : " ");
    weft_text_addf(text, "%.*g", simulation->ranks[rank].peak_activation < 1e6 ? 6 : 2,
                   simulation->ranks[rank].peak_activation);
  }
  end_line(text, begin);
}

static enum weft_status add_ranks(struct layout *layout, struct weft_text *text,
                                  struct weft_error *error) {
  const struct weft_simulation *simulation = layout->picture->simulation;
  const uint32_t rank_count = simulation->program->rank_count;
  for (uint32_t rank = 0; rank < rank_count && !text->failed; rank++) {
    if (rank % layout->step != 0 && rank + 1 != rank_count) {
      continue;
    }
    add_rank(layout, rank, text);
    if (has_memory(layout)) {
      WEFT_TRY(weft_memory_columns_read(&layout->memory, rank, error));
      add_memory(layout, rank, text);
    }
  }
  return WEFT_OK;
}

/* ---- The axis ---- */

enum { TICK_COLUMNS = 10, NUMBER_SIZE = 32 };

/* Puts `word` at column `at` of the line that is `*column` wide, if it fits. */
static bool add_at(struct weft_text *text, const char *word, size_t at, size_t width,
                   size_t *column) {
  const size_t size = weft_count_characters(word, strlen(word));
  if (at < *column || at + size > width) {
    return false;
  }
  weft_text_addf(text, "%*s%s", (int)(at - *column), "", word);
  *column = at + size;
  return true;
}

static void add_unit(const struct layout *layout, struct weft_text *text, size_t *column) {
  const struct weft_costs *costs = layout->picture->costs;
  WEFT_SCOPED_TEXT unit = {.allocator = text->allocator};
  if (costs != NULL && costs->unit[0] != '\0') {
    weft_add_line_text(&unit, costs->unit, sizeof costs->unit);
    text->failed |= unit.failed;
    if (!unit.failed) {
      (void)add_at(text, unit.data, *column + 1, layout->options->width, column);
    }
  }
}

/* Numbers begin where their time is; the unit follows the last. */
static void add_axis(const struct layout *layout, struct weft_text *text) {
  const struct weft_extent *extent = &layout->lanes.extent;
  const uint32_t columns = layout->lanes.column_count;
  const double ticks = layout->picture->simulation->ticks_per_unit;
  const double length = ((double)extent->end - (double)extent->begin) / ticks;
  const double step = weft_axis_step(length, columns / (double)TICK_COLUMNS);
  size_t column = 0;
  for (uint32_t i = 0; i * step <= length * (1 + 1e-9); i++) {
    char number[NUMBER_SIZE];
    (void)snprintf(number, sizeof number, "%.9g", i * step);
    const double at = weft_extent_column(extent, (double)extent->begin + i * step * ticks, columns);
    if (!add_at(text, number, layout->left + (size_t)at, layout->options->width, &column)) {
      break;
    }
  }
  add_unit(layout, text, &column);
  weft_text_add(text, "\n");
}

/* ---- Words ---- */

/* Appends `words`, breaking lines at blanks before they get wider than `width`. A
 * word that is itself wider is cut. */
static void add_wrapped(struct weft_text *text, const char *words, size_t width) {
  size_t column = 0;
  while (*words != '\0') {
    const size_t size = strcspn(words, " \n");
    const size_t count = weft_count_characters(words, size);
    if (column > 0 && column + 1 + count > width) {
      weft_text_add(text, "\n");
      column = 0;
    }
    weft_text_add(text, column > 0 ? " " : "");
    column += (column > 0) + count;
    weft_text_append(text, words, size);
    words += size;
    if (*words == '\n') {
      weft_text_add(text, "\n");
      column = 0;
    }
    words += *words != '\0';
  }
}

/* ---- The summary ---- */

static void add_peak(struct weft_text *text, const struct weft_simulation *simulation) {
  uint32_t rank = 0;
  for (uint32_t i = 0; i < simulation->program->rank_count; i++) {
    if (simulation->ranks[i].peak_activation > simulation->ranks[rank].peak_activation) {
      rank = i;
    }
  }
  weft_text_add(text, ", peak memory ");
  weft_add_rounded(text, simulation->peak_activation);
  weft_text_addf(text, " on rank %" PRIu32 "\n", rank);
}

/* The cause with most of the idle time of the ranks first ... last-1. */
static enum weft_idle_cause main_cause(const struct weft_simulation *simulation, uint32_t first,
                                       uint32_t end, double *time) {
  enum weft_idle_cause best = WEFT_IDLE_START;
  *time = -1;
  for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES; cause++) {
    double sum = 0;
    for (uint32_t rank = first; rank < end; rank++) {
      sum += simulation->ranks[rank].idle_by_cause[cause];
    }
    if (sum > *time) {
      *time = sum;
      best = cause;
    }
  }
  return best;
}

/* The rank with most idle time; *all when every rank has as much. */
static uint32_t most_idle(const struct weft_simulation *simulation, bool *all) {
  const uint32_t count = simulation->program->rank_count;
  const double small = simulation->makespan * 1e-9;
  uint32_t most = 0;
  double least = simulation->ranks[0].idle;
  for (uint32_t rank = 1; rank < count; rank++) {
    const double idle = simulation->ranks[rank].idle;
    most = idle > simulation->ranks[most].idle + small ? rank : most;
    least = idle < least ? idle : least;
  }
  *all = count > 1 && simulation->ranks[most].idle - least <= small;
  return most;
}

static void add_idle(struct weft_text *text, const struct weft_picture *picture) {
  const struct weft_simulation *simulation = picture->simulation;
  bool all;
  const uint32_t rank = most_idle(simulation, &all);
  const double idle = simulation->ranks[rank].idle;
  if (!(idle > 0)) {
    weft_text_add(text, "no rank is ever idle\n");
    return;
  }
  if (all) {
    weft_text_add(text, "every rank idles ");
  } else {
    weft_text_addf(text, "rank %" PRIu32 " idles most, ", rank);
  }
  weft_add_time(text, picture, idle);
  weft_text_addf(text, " (%.1f %%)",
                 simulation->makespan > 0 ? 100 * idle / simulation->makespan : 0);
  double time;
  const uint32_t end = all ? simulation->program->rank_count : rank + 1;
  const enum weft_idle_cause cause = main_cause(simulation, all ? 0 : rank, end, &time);
  const double total = all ? idle * simulation->program->rank_count : idle;
  weft_text_addf(text, "%s %s\n", time < total * (1 - 1e-9) ? ", mostly" : ",",
                 weft_idle_cause_words(cause));
}

/* Makespan, bubble and peak; then which rank idles most and why. Each a sentence, ended by a
 * newline, not wrapped. */
static void add_sentences(struct weft_text *text, const struct weft_picture *picture) {
  const struct weft_simulation *simulation = picture->simulation;
  weft_text_add(text, "makespan ");
  weft_add_time(text, picture, simulation->makespan);
  weft_text_addf(text, ", bubble %.1f %%", 100 * simulation->bubble_ratio);
  if (simulation->peak_activation > 0) {
    add_peak(text, simulation);
  } else {
    weft_text_add(text, "\n");
  }
  if (simulation->program->rank_count > 0) {
    add_idle(text, picture);
  }
  char room[WEFT_NOTE_SIZE];
  const char *note = weft_picture_note(picture, room);
  if (note[0] != '\0') {
    weft_add_line_text(text, note, WEFT_NOTE_SIZE);
    weft_text_add(text, "\n");
  }
  for (unsigned k = 0; k < 2; k++) {
    const size_t begin = text->size;
    (k == 0 ? weft_add_edges : weft_add_stage_names)(text, simulation->program->graph);
    weft_text_add(text, text->size > begin ? "\n" : "");
  }
}

static void add_folding(const struct layout *layout, struct weft_text *words) {
  const uint32_t step = layout->step;
  const char *ending = step % 100 / 10 == 1 ? "th"
                       : step % 10 == 2     ? "nd"
                       : step % 10 == 3     ? "rd"
                       : step % 10 == 1     ? "st"
                                            : "th";
  weft_text_addf(words, "shown: every %" PRIu32 "%s of %" PRIu32 " ranks, and the last\n", step,
                 ending, layout->picture->simulation->program->rank_count);
}

static void add_summary(const struct layout *layout, struct weft_text *text) {
  WEFT_SCOPED_TEXT words = {.allocator = text->allocator};
  if (layout->step > 1) {
    add_folding(layout, &words);
  }
  add_sentences(&words, layout->picture);
  text->failed |= words.failed;
  if (!words.failed) {
    add_wrapped(text, words.data, layout->options->width);
  }
}

/* One item of the legend, on a new line if it does not fit on this one. */
static void add_item(const struct layout *layout, struct weft_text *text, const char *sign,
                     const char *colour, const char *meaning, size_t *column) {
  const size_t size = weft_count_characters(sign, strlen(sign)) + 1 + strlen(meaning);
  if (*column > 0 && *column + 2 + size > layout->options->width) {
    weft_text_add(text, "\n");
    *column = 0;
  }
  weft_text_add(text, *column > 0 ? "  " : "");
  *column += (*column > 0 ? 2 : 0) + size;
  if (layout->options->colour) {
    weft_text_addf(text, "\x1b[0;%sm%s\x1b[0m %s", colour, sign, meaning);
  } else {
    weft_text_addf(text, "%s %s", sign, meaning);
  }
}

static void add_legend(const struct layout *layout, struct weft_text *text) {
  size_t column = 0;
  for (unsigned k = 0; k < layout->lanes.shown_count; k++) {
    const enum weft_op op = layout->lanes.shown[k];
    if (layout->lanes.seen[op] || op == WEFT_OP_IDLE) {
      const struct weft_op_info *info = weft_op_info(op);
      const bool both = op == WEFT_OP_OVERLAP_F_B && layout->lanes.labelled[op];
      const char letter[] = {info->letter, '\0'};
      add_item(layout, text, both ? "FB" : letter, info->terminal_colour, info->legend, &column);
    }
  }
  if (layout->lanes.has_pairs) {
    add_item(layout, text, "Ff", "0", "two actions", &column);
  }
  if (has_memory(layout)) {
    add_item(layout, text, "▄", MEMORY_COLOUR, "memory", &column);
  }
  weft_text_add(text, "\n");
}

static void add_title(const struct layout *layout, struct weft_text *text) {
  if (layout->picture->name != NULL && layout->picture->name[0] != '\0') {
    weft_add_line_text(text, layout->picture->name, layout->options->width);
    weft_text_add(text, "\n");
  }
}

/* ---- All of it ---- */

static enum weft_status draw_layout(struct layout *layout, struct weft_text *text,
                                    struct weft_error *error) {
  WEFT_TRY(prepare_layout(layout, error));
  add_title(layout, text);
  WEFT_TRY(add_ranks(layout, text, error));
  add_axis(layout, text);
  add_legend(layout, text);
  add_summary(layout, text);
  return weft_text_status(text, error);
}

static uint32_t step_of(const struct weft_picture *picture) {
  const uint32_t count = picture->simulation->program->rank_count;
  return count > RANKS_MAX ? (count + RANKS_SHOWN - 1) / RANKS_SHOWN : 1;
}

enum weft_status weft_render_text(const struct weft_picture *picture,
                                  const struct weft_render_options *options, struct weft_text *text,
                                  struct weft_error *error) {
  static const struct weft_width_limits limits = {80, 20, 10000, "a timeline", "columns"};
  struct weft_render_options chosen;
  WEFT_NEED(text, error);
  WEFT_TRY(weft_picture_begin(picture, options, &limits, &chosen, error));
  struct layout layout = {.picture = picture,
                          .options = &chosen,
                          .step = chosen.all_ranks ? 1 : step_of(picture),
                          .memory = {.allocator = text->allocator}};
  const size_t size_before = text->size;
  const enum weft_status status = draw_layout(&layout, text, error);
  if (status < 0 && text->data != NULL) {
    text->size = size_before;
    text->data[size_before] = '\0';
  }
  weft_array_free(text->allocator, layout.lanes.columns, layout.lanes.column_count,
                  sizeof *layout.lanes.columns);
  weft_memory_columns_finish(&layout.memory);
  return status;
}
