/* A simulation's events as timelines need them. */
#include "render/timeline.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "ir/action.h"
#include "sim/event_waits.h"

#define SNAP 1e-6

struct weft_extent weft_extent_of(const struct weft_simulation *simulation) {
  struct weft_extent extent = {0, 1};
  assert(simulation != NULL);
  for (uint64_t i = 0; i < simulation->event_count; i++) {
    const struct weft_event *event = &simulation->events[i];
    extent.begin = i == 0 || event->begin < extent.begin ? event->begin : extent.begin;
    extent.end = i == 0 || event->end > extent.end ? event->end : extent.end;
  }
  if (extent.end <= extent.begin) {
    extent.begin -= extent.begin == INT64_MAX;
    extent.end = extent.begin + 1;
  }
  return extent;
}

double weft_extent_column(const struct weft_extent *extent, double tick, uint32_t columns) {
  assert(extent->begin < extent->end);
  const double length = (double)extent->end - (double)extent->begin;
  const double column = (tick - (double)extent->begin) * columns / length;
  if (!(column > 0)) {
    return 0;
  }
  if (column >= columns) {
    return columns;
  }
  const double nearest = (double)(uint32_t)(column + 0.5);
  const double distance = column > nearest ? column - nearest : nearest - column;
  return distance < SNAP ? nearest : column;
}

/* ---- Lanes ---- */

struct weft_lane weft_lane_begin(const struct weft_simulation *simulation, uint32_t rank) {
  assert(rank < simulation->program->rank_count);
  return (struct weft_lane){.simulation = simulation,
                            .next = simulation->event_begin[rank],
                            .end = simulation->event_begin[rank + 1]};
}

/* The parts of an overlap have events of their own, with the overlap's times. */
bool weft_lane_next(struct weft_lane *lane, struct weft_lane_cell *cell) {
  if (lane->next >= lane->end) {
    return false;
  }
  const struct weft_event *event = &lane->simulation->events[lane->next];
  const struct weft_action *action = &lane->simulation->program->actions[event->record];
  const uint64_t record_end = (uint64_t)event->record + weft_cell_records(action);
  *cell = (struct weft_lane_cell){.op = action->op,
                                  .begin = event->begin,
                                  .end = event->end > event->begin ? event->end : event->begin,
                                  .actions = {*action},
                                  .parts = 1};
  if (action->op == WEFT_OP_OVERLAP_F_B) {
    const uint32_t shown =
        action->parts < WEFT_LANE_PARTS_MAX ? action->parts : WEFT_LANE_PARTS_MAX;
    cell->parts = action->parts;
    memcpy(cell->actions, action + 1, shown * sizeof *action);
  }
  while (lane->next < lane->end && lane->simulation->events[lane->next].record < record_end) {
    lane->next++;
  }
  return true;
}

/* ---- Memory over time ---- */

/* The points are as many as there is room for at first try, or fewer: those of
 * one time become one. */
enum weft_status weft_rank_curve_read(struct weft_rank_curve *curve,
                                      const struct weft_picture *picture, uint32_t rank,
                                      struct weft_error *error) {
  assert(rank < picture->simulation->program->rank_count);
  curve->count = 0;
  if (picture->costs == NULL) {
    return WEFT_OK;
  }
  weft_memory_curve(picture->simulation, picture->costs, rank, curve->points, curve->capacity,
                    &curve->count);
  if (curve->count <= curve->capacity) {
    return WEFT_OK;
  }
  const uint64_t wanted = curve->count;
  weft_rank_curve_finish(curve);
  curve->points = weft_array_allocate(curve->allocator, wanted, sizeof *curve->points);
  if (curve->points == NULL) {
    return weft_fail_memory(error, wanted * sizeof *curve->points);
  }
  curve->capacity = wanted;
  weft_memory_curve(picture->simulation, picture->costs, rank, curve->points, wanted,
                    &curve->count);
  return WEFT_OK;
}

void weft_rank_curve_finish(struct weft_rank_curve *curve) {
  weft_array_free(curve->allocator, curve->points, curve->capacity, sizeof *curve->points);
  *curve = (struct weft_rank_curve){.allocator = curve->allocator};
}

static enum weft_status clear_sizes(struct weft_memory_columns *columns, struct weft_error *error) {
  if (columns->sizes == NULL) {
    columns->sizes =
        weft_array_allocate(columns->allocator, columns->column_count, sizeof *columns->sizes);
    if (columns->sizes == NULL) {
      return weft_fail_memory(error, columns->column_count * sizeof *columns->sizes);
    }
  }
  memset(columns->sizes, 0, columns->column_count * sizeof *columns->sizes);
  return WEFT_OK;
}

/* A size that holds from column coordinate `from` to `to`; one that holds for no
 * time does not count. */
static void raise_sizes(struct weft_memory_columns *columns, double from, double to, double size) {
  for (uint32_t i = (uint32_t)from; i < to && from < to; i++) {
    columns->sizes[i] = size > columns->sizes[i] ? size : columns->sizes[i];
  }
}

enum weft_status weft_memory_columns_read(struct weft_memory_columns *columns, uint32_t rank,
                                          struct weft_error *error) {
  const struct weft_picture *picture = columns->picture;
  columns->curve.allocator = columns->allocator;
  WEFT_TRY(clear_sizes(columns, error));
  WEFT_TRY(weft_rank_curve_read(&columns->curve, picture, rank, error));
  const struct weft_rank_curve *curve = &columns->curve;
  const double ticks = picture->simulation->ticks_per_unit;
  double to = columns->column_count;
  for (uint64_t i = curve->count; i > 0; i--) {
    const double from = weft_extent_column(&columns->extent, curve->points[i - 1].at * ticks,
                                           columns->column_count);
    raise_sizes(columns, from, to, curve->points[i - 1].size);
    to = from;
  }
  return WEFT_OK;
}

double weft_memory_share(double size, double peak) {
  if (!(size > 0)) {
    return 0;
  }
  /* Sizes below the normal range have no reciprocal, and infinite ones no quotient. */
  const double share = size / peak;
  return share < 1 ? share : 1;
}

void weft_memory_columns_finish(struct weft_memory_columns *columns) {
  weft_array_free(columns->allocator, columns->sizes, columns->column_count,
                  sizeof *columns->sizes);
  weft_rank_curve_finish(&columns->curve);
  columns->sizes = NULL;
}

/* ---- Numbers ---- */

/* The largest power of ten that is not above `number`. By steps, and not by
 * log10(): the library does without libm. */
static double power_of_ten_below(double number) {
  double power = 1;
  while (power > number) {
    power /= 10;
  }
  while (power * 10 <= number) {
    power *= 10;
  }
  return power;
}

double weft_axis_step(double length, double steps_max) {
  assert(steps_max > 0);
  const double least = length / (steps_max > 1 ? steps_max : 1) * (1 - SNAP);
  if (!(least > 1e-15) || !(least < 1e30)) {
    return 1;
  }
  static const double multiples[] = {1, 2, 5};
  const double power = power_of_ten_below(least);
  for (size_t i = 0; i < sizeof multiples / sizeof multiples[0]; i++) {
    if (multiples[i] * power >= least) {
      return multiples[i] * power;
    }
  }
  return 10 * power;
}

void weft_add_number(struct weft_text *text, double number) {
  weft_text_addf(text, "%.9g", number == 0 ? 0 : number); /* no "-0" */
}

void weft_add_rounded(struct weft_text *text, double number) {
  const double size = number < 0 ? -number : number;
  int digits = 4;
  for (double rest = size; rest >= 10000 && digits < 9; rest /= 10) {
    digits++;
  }
  weft_text_addf(text, "%.*g", digits, number == 0 ? 0 : number);
}

void weft_add_time(struct weft_text *text, const struct weft_picture *picture, double time) {
  assert(picture != NULL);
  weft_add_rounded(text, time);
  if (picture->costs != NULL && picture->costs->unit[0] != '\0') {
    const char *unit = picture->costs->unit;
    weft_text_add(text, " ");
    weft_text_add_escaped(text, unit, strnlen(unit, sizeof picture->costs->unit));
  }
}

/* ---- Words ---- */

enum { LISTED_MAX = 12 };

static void add_rest(struct weft_text *text, uint32_t count) {
  if (count > LISTED_MAX) {
    weft_text_addf(text, " and %" PRIu32 " more", count - LISTED_MAX);
  }
}

void weft_add_edges(struct weft_text *text, const struct weft_graph *graph) {
  assert(text != NULL);
  const uint32_t count = weft_graph_told_edges(graph);
  weft_text_add(text, count > 0 ? "edges" : "");
  for (uint32_t e = 0; e < count && e < LISTED_MAX; e++) {
    const struct weft_edge edge = weft_graph_edge(graph, e);
    weft_text_addf(text, "%s %u>%u%s", e > 0 ? "," : "", edge.from, edge.to,
                   edge.gradient ? "" : "F");
  }
  add_rest(text, count);
}

void weft_add_stage_names(struct weft_text *text, const struct weft_graph *graph) {
  assert(text != NULL);
  const uint32_t count =
      weft_graph_told_edges(graph) > 0 && weft_graph_has_names(graph) ? graph->stage_count : 0;
  for (uint32_t s = 0; s < count && s < LISTED_MAX; s++) {
    weft_text_add(text, s > 0 ? ", " : "stages ");
    weft_graph_add_stage(graph, s, text);
  }
  add_rest(text, count);
}

/* Bytes of the first `count` characters. */
static size_t characters_size(const char *data, size_t size, size_t count) {
  size_t i = 0;
  for (; i < size; i++) {
    const bool begins = ((unsigned char)data[i] & 0xc0) != 0x80;
    if (begins && count-- == 0) {
      break;
    }
  }
  return i;
}

void weft_add_line_text(struct weft_text *text, const char *outside, size_t width) {
  assert(outside != NULL);
  /* Every byte makes at least a quarter of a character, so no more than this is
   * looked at, however long the text is. */
  const size_t begin = text->size;
  weft_text_add_escaped(text, outside, strnlen(outside, 4 * width + 4));
  if (text->failed || weft_count_characters(text->data + begin, text->size - begin) <= width) {
    return;
  }
  text->size =
      begin + characters_size(text->data + begin, text->size - begin, width > 0 ? width - 1 : 0);
  text->data[text->size] = '\0';
  weft_text_add(text, "…");
}

/* One byte of text that is escaped, as part of a JSON string that no HTML parser takes for the end
 * of anything. */
static void add_byte(struct weft_text *text, char byte) {
  if (strchr("\"\\<>&'", byte) != NULL) {
    weft_text_addf(text, "\\u%04x", (unsigned)(uint8_t)byte);
  } else {
    weft_text_append(text, &byte, 1);
  }
}

void weft_add_json_string(struct weft_text *text, const char *string) {
  WEFT_SCOPED_TEXT safe = {.allocator = text->allocator};
  weft_text_add_escaped(&safe, string, strlen(string));
  text->failed |= safe.failed;
  weft_text_add(text, "\"");
  for (size_t i = 0; i < safe.size && !safe.failed; i++) {
    add_byte(text, safe.data[i]);
  }
  weft_text_add(text, "\"");
}

/* ---- Pictures ---- */

struct weft_render_options weft_render_options_default(void) {
  return (struct weft_render_options){.width = 0, .colour_by = WEFT_COLOUR_BY_OP};
}

enum weft_status weft_picture_begin(const struct weft_picture *picture,
                                    const struct weft_render_options *options,
                                    const struct weft_width_limits *limits,
                                    struct weft_render_options *chosen, struct weft_error *error) {
  assert(chosen != NULL);
  WEFT_NEED(picture, error);
  WEFT_NEED(picture->simulation, error);
  *chosen = options != NULL ? *options : weft_render_options_default();
  if (limits != NULL) {
    char hint[64];
    chosen->width = chosen->width != 0 ? chosen->width : limits->standard;
    (void)snprintf(hint, sizeof hint, "0 stands for %" PRIu32, limits->standard);
    if (chosen->width < limits->least || chosen->width > limits->most) {
      return weft_fail(error, WEFT_ERR_USAGE, hint,
                       "%s of %" PRIu32 " %s; expected %" PRIu32 " to %" PRIu32, limits->what,
                       chosen->width, limits->unit, limits->least, limits->most);
    }
  }
  return weft_sim_require_events(picture->simulation, error);
}

bool weft_picture_names_edges(const struct weft_picture *picture) {
  return picture->simulation->program->graph != NULL;
}

const char *weft_picture_note(const struct weft_picture *picture, char buffer[WEFT_NOTE_SIZE]) {
  assert(picture->simulation != NULL && picture->simulation->program != NULL);
  const struct weft_program *program = picture->simulation->program;
  if (picture->note != NULL) {
    return picture->note;
  }
  return picture->costs == NULL ? ""
                                : weft_costs_describe(picture->costs, program->rank_count,
                                                      program->stage_count, buffer, WEFT_NOTE_SIZE);
}
