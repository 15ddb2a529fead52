/* The SVG picture, shared by the files that draw its parts:
 *
 *     title                                        svg_frame.c
 *     rank 0  [cells                         ]     svg_lane.c
 *             [transfers                     ]
 *             [memory                        ]
 *     axis, legend                                 svg_frame.c, svg_legend.c
 *
 * Everything is in presentation attributes of plain elements, without style
 * sheets or scripts, so that any program that reads SVG shows the same. */
#ifndef RENDER_SVG_DOCUMENT_H
#define RENDER_SVG_DOCUMENT_H

#include <assert.h>

#include <weft/support.h>
#include "render/palette.h"
#include "render/timeline.h"

/* Heights of the parts of a rank's row, in pixels; they shrink with the number
 * of ranks. */
struct weft_svg_row {
  double lane;
  double transfers; /* 0: the picture shows none */
  double memory;    /* 0: likewise */
  double gap;
};

struct weft_svg {
  const struct weft_picture *picture;
  const struct weft_palette *palette;
  struct weft_render_options options;
  struct weft_text *text;
  struct weft_text labels; /* of the row being drawn; they go on top */
  struct weft_arena arena;
  struct weft_extent extent;
  uint32_t *chunk_of;       /* [stage_count]: which of its rank's stages it is */
  uint32_t chunk_count;     /* the most stages of a rank */
  bool seen[WEFT_OP_COUNT]; /* ops with an event that takes time */
  uint32_t parts_max;       /* actions that share the height of a lane; 1 without overlaps */
  int64_t cell_ticks_min;   /* the shortest compute action */
  int64_t cell_ticks_usual; /* nine in ten take as long or longer */
  double width, height;
  double plot_left, plot_width;
  double rows_top;
  bool note_below; /* the note has lines of its own under the facts */
  struct weft_svg_row row;
  double label_size;          /* the font of all numbers in cells; 0: there is no room for them */
  double label_width;         /* of the widest of them */
  bool mixes;                 /* some cells are narrower than cell_min */
  int64_t transfer_ticks_max; /* the longest transfer or shard action */
  double cell_min;            /* narrower cells are drawn together */
  struct weft_memory_columns memory;
};

/* ---- svg_writer.c ---- */

/* Two digits behind the point, whatever the locale. */
void weft_svg_coordinate(struct weft_text *text, double value);
/* " fill=\"#56b4e9\"" */
void weft_svg_fill(struct weft_text *text, uint32_t colour);
/* " name=\"12.34\"" */
void weft_svg_attribute(struct weft_text *text, const char *name, double value);
void weft_svg_rect(struct weft_text *text, double x, double y, double width, double height,
                   uint32_t colour);
/* Outside text as XML character data, in at most `width` characters. */
void weft_svg_outside(struct weft_text *text, const char *outside, size_t width);
/* "<text ...>" with what callers add up to "</text>". `anchor`: start, middle, end. */
void weft_svg_text_begin(struct weft_text *text, double x, double y, double size,
                         const char *anchor, uint32_t colour);
void weft_svg_text_end(struct weft_text *text);
/* About how wide well-formed UTF-8 is in the document's font, in pixels. */
double weft_svg_text_width(const char *data, size_t size, double font_size);
/* One line of text, broken at its blanks into lines of `width` pixels, WEFT_SVG_LINE apart, the
 * first at y; a word that is wider is cut. Returns how many lines; with `draw` false only that. */
#define WEFT_SVG_LINE 14.0
unsigned weft_svg_add_words(struct weft_text *text, double x, double y, double width, double size,
                            uint32_t colour, const char *words, bool draw);

/* ---- Layout ---- */

static inline double weft_svg_x(const struct weft_svg *svg, int64_t tick) {
  assert(svg->extent.begin < svg->extent.end);
  return svg->plot_left + ((double)tick - (double)svg->extent.begin) * svg->plot_width /
                              ((double)svg->extent.end - (double)svg->extent.begin);
}

static inline double weft_svg_row_height(const struct weft_svg *svg) {
  return svg->row.lane + svg->row.transfers + svg->row.memory + svg->row.gap;
}

static inline double weft_svg_row_top(const struct weft_svg *svg, uint32_t rank) {
  return svg->rows_top + rank * weft_svg_row_height(svg);
}

static inline bool weft_svg_has_name(const struct weft_svg *svg) {
  return !svg->options.bare && svg->picture->name != NULL && svg->picture->name[0] != '\0';
}

/* What the marks under a lane show. */
bool weft_svg_is_transfer(enum weft_op op);

uint32_t weft_svg_colour(const struct weft_svg *svg, struct weft_action action);

/* Lines at the foot of a cell that say which of its rank's stages it is (palette.h). */
uint32_t weft_svg_line_count(const struct weft_svg *svg, uint32_t stage);
void weft_svg_add_lines(struct weft_svg *svg, uint32_t count, double x, double y, double width,
                        double height, uint32_t colour);

/* ---- Parts ---- */

/* Decides where the note stands; returns the height of its own lines, or 0. */
double weft_svg_place_note(struct weft_svg *svg);
void weft_svg_add_title(struct weft_svg *svg);
/* Lanes and grid lines: what lies under the cells. */
void weft_svg_add_ground(struct weft_svg *svg);
void weft_svg_add_row_labels(struct weft_svg *svg);
/* What the words beside the rows and the axis take, right of the rows. */
double weft_svg_words_right(const struct weft_svg *svg);
void weft_svg_add_axis(struct weft_svg *svg);
void weft_svg_add_lane(struct weft_svg *svg, uint32_t rank);
void weft_svg_add_transfers(struct weft_svg *svg, uint32_t rank);
/* The strip of the rank that svg->memory holds. */
void weft_svg_add_memory(struct weft_svg *svg, uint32_t rank);

/* Draws the legend, or with `draw` false only measures; returns its height. */
double weft_svg_add_legend(struct weft_svg *svg, double top, bool draw);

#endif
