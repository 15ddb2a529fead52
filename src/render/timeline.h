/* A simulation's events as timelines need them: from when to when, what a rank
 * does in order of the row with the parts of overlaps apart, and round
 * numbers for an axis. */
#ifndef RENDER_TIMELINE_H
#define RENDER_TIMELINE_H

#include <weft/render.h>

/* First begin and last end of all events, in ticks; begin < end, also when there
 * is no event or none that takes time. */
struct weft_extent {
  int64_t begin;
  int64_t end;
};

struct weft_extent weft_extent_of(const struct weft_simulation *simulation);

/* Where a time lies on `columns` equal parts of the extent. Within a millionth of
 * a boundary it is the boundary, so that what ends where a part ends does not
 * reach into the next by a rounding error. */
double weft_extent_column(const struct weft_extent *extent, double tick, uint32_t columns);

/* One event of a rank, with what the picture says about it. */
struct weft_lane_item {
  struct weft_action action;
  int64_t begin;
  int64_t end;    /* >= begin */
  uint32_t part;  /* of an overlap: 0, 1, ...; else 0 */
  uint32_t parts; /* of the overlap; else 1 */
};

/* A walk over the events of a rank in program order, headers of overlaps left
 * out. Begin with weft_lane_begin(). */
struct weft_lane_walk {
  const struct weft_simulation *simulation;
  uint64_t next, end; /* into the events */
  uint64_t cell;      /* first record of the cell that the walk is in */
};

struct weft_lane_walk weft_lane_begin(const struct weft_simulation *simulation, uint32_t rank);
bool weft_lane_next(struct weft_lane_walk *walk, struct weft_lane_item *item);

/* 1, 2 or 5 times a power of ten: the smallest step that cuts `length` into at
 * most `steps_max` parts. */
double weft_axis_step(double length, double steps_max);

/* Digits of the largest of `count` numbers from 0. */
uint32_t weft_count_digits(uint32_t count);

/* "12", "0.25", "1.5e+12": at most 15 characters. */
void weft_add_number(struct weft_text *text, double number);

/* A measure for people: four digits, but never less than a whole number below 1e9: 38.71. */
void weft_add_rounded(struct weft_text *text, double number);

/* The picture's note, or a description of its costs, for which the caller gives room; "": none. */
enum { WEFT_NOTE_SIZE = 96 };
const char *weft_picture_note(const struct weft_picture *picture, char buffer[WEFT_NOTE_SIZE]);

/* "edges 0>1, 0>2F and 7 more"; an F where no gradient comes back. */
void weft_add_edges(struct weft_text *text, const struct weft_graph *graph);

/* "stages 0 'down', 1 'up' and 7 more"; the graph has names. */
void weft_add_stage_names(struct weft_text *text, const struct weft_graph *graph);

/* Outside text in one line of at most `width` characters, made safe for a
 * terminal, cut with an ellipsis. */
void weft_add_line_text(struct weft_text *text, const char *outside, size_t width);

/* Outside text as a JSON string. Control bytes and invalid UTF-8 are written out as \xNN,
 * as on a terminal, and nothing in it can end the HTML element that the JSON is in. */
void weft_add_json_string(struct weft_text *text, const char *string);

/* Characters of well-formed UTF-8. */
size_t weft_count_characters(const char *data, size_t size);

#endif
