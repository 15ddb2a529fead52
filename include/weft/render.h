/* Weft render: timelines as text, SVG, HTML and Chrome trace, from events alone. */
#ifndef WEFT_RENDER_H
#define WEFT_RENDER_H

#include <weft/inspect.h>
#include <weft/sim.h>

#ifdef __cplusplus
extern "C" {
#endif

enum weft_colour_by { WEFT_COLOUR_BY_OP, WEFT_COLOUR_BY_STAGE };

/* One timeline to draw. `name` (a file's or schedule's) and `note` (a sentence about its times) are
 * escaped wherever they are shown; either may be NULL. A NULL note is what weft_costs_describe() says
 * of the costs; "" for times that were measured. */
struct weft_picture {
  const char *name;
  const struct weft_simulation *simulation;
  const struct weft_costs *costs;
  const char *note;
};

struct weft_render_options {
  uint32_t width;                /* text: columns, 0: 80. svg: pixels, 0: 1200 */
  bool colour;                   /* text: ANSI colour */
  bool dark;                     /* svg: dark background */
  enum weft_colour_by colour_by; /* svg, html */
  bool bare;                     /* svg: no title and no numbers above the rows */
  bool all_ranks;                /* text: every rank, also of more than 32 */
};

WEFT_API struct weft_render_options weft_render_options_default(void);

/* For a terminal: a line per rank, a memory line under it, and a summary. */
WEFT_API enum weft_status weft_render_text(const struct weft_picture *picture,
                                           const struct weft_render_options *options,
                                           struct weft_text *text, struct weft_error *error);

/* One SVG document. */
WEFT_API enum weft_status weft_render_svg(const struct weft_picture *picture,
                                          const struct weft_render_options *options,
                                          struct weft_text *text, struct weft_error *error);

/* One self-contained page with one or more timelines on one time axis. */
WEFT_API enum weft_status weft_render_html(const struct weft_picture *pictures,
                                           size_t picture_count,
                                           const struct weft_render_options *options,
                                           struct weft_text *text, struct weft_error *error);

/* Chrome trace JSON: a process per rank, compute and communication on separate
 * tracks, flows from SEND to RECV, memory as counters, events named PP:2F0. */
WEFT_API enum weft_status weft_render_trace(const struct weft_picture *picture,
                                            const struct weft_render_options *options,
                                            struct weft_text *text, struct weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
