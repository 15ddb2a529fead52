/* Cells narrower than can be seen, drawn together. */
#ifndef RENDER_SVG_CLUSTER_H
#define RENDER_SVG_CLUSTER_H

#include "render/svg/svg_document.h"

enum { WEFT_SVG_PARTS_MAX = 8, WEFT_SVG_SHARES_MAX = 8 };

/* An action, or an overlap with its parts (further ones are not drawn). */
struct weft_svg_cell {
  struct weft_lane_item items[WEFT_SVG_PARTS_MAX];
  uint32_t count;
};

struct weft_svg_share {
  struct weft_action action; /* one of those with this colour */
  uint32_t colour;
  double width; /* pixels of time, all together */
};

/* What is in the column being filled. Zero-initialise. */
struct weft_svg_cluster {
  double begin, end; /* pixels */
  double limit;      /* where the column ends */
  struct weft_svg_share shares[WEFT_SVG_SHARES_MAX];
  uint32_t share_count;
};

/* Adds a cell from pixel `begin` to `end` in a lane at `top`; draws columns that
 * get full. */
void weft_svg_cluster_add(struct weft_svg *svg, struct weft_svg_cluster *cluster,
                          const struct weft_svg_cell *cell, double begin, double end, double top);

/* Draws what is left; `next` is where the next cell begins. */
void weft_svg_cluster_flush(struct weft_svg *svg, struct weft_svg_cluster *cluster, double next,
                            double top);

#endif
