/* A simulation's events as timelines need them. */
#include "render/timeline.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/render.h>

#include "ir/action.h"

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

struct weft_lane_walk weft_lane_begin(const struct weft_simulation *simulation, uint32_t rank) {
  assert(rank < simulation->program->rank_count);
  return (struct weft_lane_walk){.simulation = simulation,
                                 .next = simulation->event_begin[rank],
                                 .end = simulation->event_begin[rank + 1],
                                 .cell = simulation->program->row_begin[rank]};
}

bool weft_lane_next(struct weft_lane_walk *walk, struct weft_lane_item *item) {
  const struct weft_action *actions = walk->simulation->program->actions;
  while (walk->next < walk->end) {
    const struct weft_event *event = &walk->simulation->events[walk->next++];
    while (walk->cell + weft_cell_records(&actions[walk->cell]) <= event->record) {
      walk->cell += weft_cell_records(&actions[walk->cell]);
    }
    if (actions[event->record].op == WEFT_OP_OVERLAP_F_B) {
      continue;
    }
    const bool in_overlap = event->record > walk->cell;
    *item = (struct weft_lane_item){
        .action = actions[event->record],
        .begin = event->begin,
        .end = event->end > event->begin ? event->end : event->begin,
        .part = in_overlap ? (uint32_t)(event->record - walk->cell - 1) : 0,
        .parts = in_overlap ? actions[walk->cell].parts : 1,
    };
    return true;
  }
  return false;
}

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

uint32_t weft_count_digits(uint32_t count) {
  uint32_t digits = 1;
  for (uint32_t rest = count > 0 ? count - 1 : 0; rest >= 10; rest /= 10) {
    digits++;
  }
  return digits;
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

void weft_add_edges(struct weft_text *text, const struct weft_graph *graph) {
  assert(graph != NULL);
  enum { EDGES_SHOWN = 12 };
  weft_text_add(text, "edges");
  for (uint32_t e = 0; e < graph->edge_count && e < EDGES_SHOWN; e++) {
    const struct weft_edge *edge = &graph->edges[e];
    weft_text_addf(text, "%s %u>%u%s", e > 0 ? "," : "", edge->from, edge->to,
                   edge->gradient ? "" : "F");
  }
  if (graph->edge_count > EDGES_SHOWN) {
    weft_text_addf(text, " and %" PRIu32 " more", graph->edge_count - EDGES_SHOWN);
  }
}

void weft_add_stage_names(struct weft_text *text, const struct weft_graph *graph) {
  assert(weft_graph_has_names(graph));
  enum { STAGES_SHOWN = 12 };
  weft_text_add(text, "stages");
  for (uint32_t s = 0; s < graph->stage_count && s < STAGES_SHOWN; s++) {
    weft_text_add(text, s > 0 ? ", " : " ");
    weft_graph_add_stage(graph, s, text);
  }
  if (graph->stage_count > STAGES_SHOWN) {
    weft_text_addf(text, " and %" PRIu32 " more", graph->stage_count - STAGES_SHOWN);
  }
}

size_t weft_count_characters(const char *data, size_t size) {
  assert(data != NULL || size == 0);
  size_t count = 0;
  for (size_t i = 0; i < size; i++) {
    count += ((unsigned char)data[i] & 0xc0) != 0x80;
  }
  return count;
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
  struct weft_text safe = {.allocator = text->allocator};
  weft_text_add_escaped(&safe, string, strlen(string));
  text->failed |= safe.failed;
  weft_text_add(text, "\"");
  for (size_t i = 0; i < safe.size && !safe.failed; i++) {
    add_byte(text, safe.data[i]);
  }
  weft_text_add(text, "\"");
  weft_text_finish(&safe);
}

struct weft_render_options weft_render_options_default(void) {
  return (struct weft_render_options){.width = 0, .colour_by = WEFT_COLOUR_BY_OP};
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
