/* Cells narrower than can be seen, drawn together: a column of cell_min pixels of the mean
 * colour of its time, idle time included, as a pixel of the HTML timeline. So a picture of
 * thousands of actions per rank is true, and its size is bounded by the pixels, not by the
 * actions.
 *
 * Columns lie on a grid, and a cell that reaches over a line is shared out:
 * columns would differ by cells otherwise, and look jagged. */
#include "render/svg/svg_cluster.h"

#include <assert.h>

#define GAP_MIN 0.75 /* pixels of idle time that are always seen */
#define TINY 1e-6    /* pixels that are rounding errors */

static uint32_t op_order(struct weft_action action) {
  return action.op * (uint32_t)65536 + action.stage;
}

/* In the order of the ops, so that a colour is at the same height in all columns. */
static void add_share(struct weft_svg_cluster *cluster, struct weft_action action, uint32_t colour,
                      double width) {
  struct weft_svg_share *shares = cluster->shares;
  uint32_t i = 0;
  while (i < cluster->share_count && op_order(shares[i].action) < op_order(action) &&
         shares[i].colour != colour) {
    i++;
  }
  const bool found = i < cluster->share_count && shares[i].colour == colour;
  if (!found && cluster->share_count == WEFT_SVG_SHARES_MAX) {
    i = i < WEFT_SVG_SHARES_MAX ? i : i - 1; /* too many colours to distinguish: the nearest */
  } else if (!found) {
    for (uint32_t k = cluster->share_count++; k > i; k--) {
      shares[k] = shares[k - 1];
    }
    shares[i] = (struct weft_svg_share){.action = action, .colour = colour};
  }
  shares[i].width += width;
}

/* Whether the column has this colour and nothing else, so that it may go on
 * beyond its end. */
static bool is_plain(const struct weft_svg_cluster *cluster, uint32_t colour) {
  const double idle = cluster->end - cluster->begin - cluster->shares[0].width;
  return cluster->share_count == 1 && cluster->shares[0].colour == colour && idle < 0.01;
}

static void start(const struct weft_svg *svg, struct weft_svg_cluster *cluster, double begin) {
  const double column = (begin - svg->plot_left) / svg->cell_min + TINY;
  cluster->begin = cluster->end = begin;
  cluster->limit =
      svg->plot_left + ((double)(uint64_t)(column > 0 ? column : 0) + 1) * svg->cell_min;
}

void weft_svg_cluster_add(struct weft_svg *svg, struct weft_svg_cluster *cluster,
                          const struct weft_svg_cell *cell, double begin, double end, double top) {
  assert(begin <= end && cell->count > 0);
  const uint32_t colour = weft_svg_colour(svg, cell->items[0].action);
  while (end - begin > TINY) {
    const bool goes_on = cell->count == 1 && is_plain(cluster, colour);
    const bool full = begin > cluster->limit - TINY && !goes_on;
    if (cluster->share_count > 0 && (full || begin - cluster->end > GAP_MIN)) {
      weft_svg_cluster_flush(svg, cluster, begin, top);
    }
    if (cluster->share_count == 0) {
      start(svg, cluster, begin);
    }
    const double stop = goes_on || end < cluster->limit ? end : cluster->limit;
    for (uint32_t i = 0; i < cell->count; i++) {
      const struct weft_lane_item *item = &cell->items[i];
      add_share(cluster, item->action, weft_svg_colour(svg, item->action),
                (stop - begin) / item->parts);
    }
    cluster->end = begin = stop;
  }
}

/* What no share has is idle. */
static uint32_t mean_colour(const struct weft_svg *svg, const struct weft_svg_cluster *cluster,
                            double width) {
  const uint32_t ground = weft_palette_op(WEFT_OP_IDLE, svg->dark);
  uint32_t mean = 0;
  for (unsigned shift = 0; shift < 24; shift += 8) {
    double sum = 0, rest = width;
    for (uint32_t i = 0; i < cluster->share_count; i++) {
      sum += cluster->shares[i].width * (cluster->shares[i].colour >> shift & 0xff);
      rest -= cluster->shares[i].width;
    }
    sum += (rest > 0 ? rest : 0) * (ground >> shift & 0xff);
    const double value = sum / width + 0.5;
    mean |= (uint32_t)(value < 255 ? value : 255) << shift;
  }
  return mean;
}

/* Columns that touch overlap by a little, because between two edges within a
 * pixel the ground would shine through. */
void weft_svg_cluster_flush(struct weft_svg *svg, struct weft_svg_cluster *cluster, double next,
                            double top) {
  const double width = cluster->end - cluster->begin;
  const double overlap = next - cluster->end < 0.01 ? 0.4 : 0;
  if (cluster->share_count > 0 && width > 0) {
    weft_svg_rect(svg->text, cluster->begin, top, width + overlap, svg->row.lane,
                  mean_colour(svg, cluster, width));
  }
  cluster->share_count = 0;
}
