/* A simulation's events as timelines need them: from when to when, what a rank
 * does in order of the row, its memory over time, and round numbers for an axis. */
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

enum { WEFT_LANE_PARTS_MAX = 8 };

/* What a rank does at a time: one action, or an overlap with its parts (further ones are not
 * shown). */
struct weft_lane_cell {
  enum weft_op op; /* of the action, or OVERLAP_F_B */
  int64_t begin;
  int64_t end; /* >= begin */
  struct weft_action actions[WEFT_LANE_PARTS_MAX];
  uint32_t parts; /* of the overlap; else 1 */
};

/* Iterates over the cells of a rank in program order. Begin with weft_lane_begin(). */
struct weft_lane {
  const struct weft_simulation *simulation;
  uint64_t next, end; /* into the events */
};

struct weft_lane weft_lane_begin(const struct weft_simulation *simulation, uint32_t rank);
bool weft_lane_next(struct weft_lane *lane, struct weft_lane_cell *cell);

/* ---- Memory over time ---- */

/* The curve of one rank after the other. Zero-initialise, set the allocator, and finish. */
struct weft_rank_curve {
  const struct weft_allocator *allocator;
  struct weft_memory_point *points; /* [count], of the rank last read */
  uint64_t count, capacity;
};

/* Fills `points`; none where the picture has no costs. Reading a rank again needs no memory. */
enum weft_status weft_rank_curve_read(struct weft_rank_curve *curve,
                                      const struct weft_picture *picture, uint32_t rank,
                                      struct weft_error *error);
void weft_rank_curve_finish(struct weft_rank_curve *curve);

/* The same in columns, for strips under a timeline. Zero-initialise, set the first four, and
 * finish. */
struct weft_memory_columns {
  const struct weft_allocator *allocator;
  const struct weft_picture *picture;
  struct weft_extent extent;
  uint32_t column_count;
  double *sizes; /* [column_count]: the most that the rank last read holds in each */
  struct weft_rank_curve curve;
};

/* Fills `sizes`; all zero where the picture has no costs. */
enum weft_status weft_memory_columns_read(struct weft_memory_columns *columns, uint32_t rank,
                                          struct weft_error *error);
/* A size as a share of the largest, 0 to 1, whatever numbers these are. */
double weft_memory_share(double size, double peak);
void weft_memory_columns_finish(struct weft_memory_columns *columns);

/* ---- Pictures ---- */

/* How wide a kind of picture may be; `what` and `unit` are words: "a timeline", "columns". */
struct weft_width_limits {
  uint32_t standard, least, most;
  const char *what, *unit;
};

/* What all pictures begin with: WEFT_ERR_USAGE unless what they need is there and the width is
 * within the limits (NULL: it does not matter). *chosen are the options, or the defaults, with the
 * width to draw. */
enum weft_status weft_picture_begin(const struct weft_picture *picture,
                                    const struct weft_render_options *options,
                                    const struct weft_width_limits *limits,
                                    struct weft_render_options *chosen, struct weft_error *error);

/* Whether it says over which edges transfers go: where stages form a graph, the other end of one is
 * not simply the neighbour. */
bool weft_picture_names_edges(const struct weft_picture *picture);

/* ---- Words and numbers ---- */

/* 1, 2 or 5 times a power of ten: the smallest step that cuts `length` into at
 * most `steps_max` parts. */
double weft_axis_step(double length, double steps_max);

/* "12", "0.25", "1.5e+12": at most 15 characters. */
void weft_add_number(struct weft_text *text, double number);

/* A measure for people: four digits, but never less than a whole number below 1e9: 38.71. */
void weft_add_rounded(struct weft_text *text, double number);

/* A time with its unit, if the picture has one: "38.71 ms". */
void weft_add_time(struct weft_text *text, const struct weft_picture *picture, double time);

/* The picture's note, or a description of its costs, for which the caller gives room; "": none. */
enum { WEFT_NOTE_SIZE = 96 };
const char *weft_picture_note(const struct weft_picture *picture, char buffer[WEFT_NOTE_SIZE]);

/* "edges 0>1, 0>2F and 7 more"; an F where no gradient comes back. Nothing of a chain. */
void weft_add_edges(struct weft_text *text, const struct weft_graph *graph);

/* "stages 0 'down', 1 'up' and 7 more". Nothing of a chain, nor where no stage has a name. */
void weft_add_stage_names(struct weft_text *text, const struct weft_graph *graph);

/* Outside text in one line of at most `width` characters, made safe for a
 * terminal, cut with an ellipsis. */
void weft_add_line_text(struct weft_text *text, const char *outside, size_t width);

/* Outside text as a JSON string. Control bytes and invalid UTF-8 are written out as \xNN,
 * as on a terminal, and nothing in it can end the HTML element that the JSON is in. */
void weft_add_json_string(struct weft_text *text, const char *string);

#endif
