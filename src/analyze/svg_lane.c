/* The cells of a rank: a rectangle per action, with its microbatch where that
 * fits. The parts of an overlap share the height of the lane.
 *
 * Actions narrower than can be seen are drawn together, as a column in which each
 * colour has the height of its share of the time, and idle time is left open: so
 * a picture of thousands of actions per rank is true in its areas, and its size
 * is bounded by the pixels, not by the actions. */
#include <inttypes.h>

#include "analyze/svg_document.h"

enum { SHARES_MAX = 8 };

#define GAP_MIN 0.75        /* pixels of idle time that are always seen */
#define MARK_MIN 0.25       /* pixels of a transfer that are drawn */
#define CHARACTER_WIDTH 0.6 /* of a digit, in font sizes */

struct share {
  struct weft_action action; /* one of those with this colour */
  uint32_t colour;
  double width; /* pixels of time, all together */
};

/* Narrow cells that follow each other. */
struct cluster {
  double begin, end; /* pixels */
  struct share shares[SHARES_MAX];
  uint32_t share_count;
};

static uint32_t op_order(struct weft_action action) {
  return action.op * (uint32_t)65536 + action.stage;
}

/* In the order of the ops, so that a colour is at the same height in all columns. */
static void add_share(struct cluster *cluster, struct weft_action action, uint32_t colour,
                      double width) {
  uint32_t i = 0;
  while (i < cluster->share_count && op_order(cluster->shares[i].action) < op_order(action) &&
         cluster->shares[i].colour != colour) {
    i++;
  }
  const bool found = i < cluster->share_count && cluster->shares[i].colour == colour;
  if (!found && cluster->share_count == SHARES_MAX) {
    i = i < SHARES_MAX ? i : SHARES_MAX - 1; /* more colours than can be told apart: the nearest */
  } else if (!found) {
    for (uint32_t k = cluster->share_count++; k > i; k--) {
      cluster->shares[k] = cluster->shares[k - 1];
    }
    cluster->shares[i] = (struct share){.action = action, .colour = colour};
  }
  cluster->shares[i].width += width;
}

/* `next` is where the next cell begins. Columns that touch overlap by a little,
 * because between two edges within a pixel the ground would shine through. */
static void flush(struct weft_svg *svg, struct cluster *cluster, double top, double next) {
  const double width = cluster->end - cluster->begin;
  const double overlap = next - cluster->end < 0.01 ? 0.4 : 0;
  double y = top;
  for (uint32_t i = 0; i < cluster->share_count && width > 0; i++) {
    const double height = svg->row.lane * cluster->shares[i].width / width;
    weft_svg_rect(svg->text, cluster->begin, y, width + overlap, height, cluster->shares[i].colour);
    y += height;
  }
  cluster->share_count = 0;
}

/* The font for a cell, or 0 when there is no room. It is the room for the widest
 * number that counts, so that of equal cells all have numbers or none. */
static double label_size(const struct weft_svg *svg, double width, double height) {
  const double largest = 12, smallest = 6, margin = 2;
  const double by_height = height * 0.62;
  const double by_width = (width - margin) / (svg->label_digits * CHARACTER_WIDTH);
  double size = by_height < largest ? by_height : largest;
  size = by_width < size ? by_width : size;
  return size < smallest ? 0 : size;
}

static void add_label(struct weft_svg *svg, struct weft_action action, double x, double y,
                      double width, double height, uint32_t colour) {
  const double size = label_size(svg, width, height);
  if (size > 0) {
    weft_svg_text_begin(&svg->labels, x + width / 2, y + height / 2 + size * 0.36, size, "middle",
                        weft_palette_ink_on(colour));
    weft_text_add_number(&svg->labels, action.microbatch);
    weft_svg_text_end(&svg->labels);
  }
}

/* A line of background between neighbours, as far as there is room for it. */
static double seam(double width) { return width >= 6 ? 0.8 : width >= 3 ? 0.4 : 0; }

static void add_cell(struct weft_svg *svg, const struct weft_lane_item *item, double begin,
                     double end, double top) {
  const uint32_t colour = weft_svg_colour(svg, item->action);
  const double height = svg->row.lane / item->parts;
  const double y = top + item->part * height;
  const double width = end - begin - seam(end - begin);
  weft_svg_rect(svg->text, begin, y, width, height, colour);
  add_label(svg, item->action, begin, y, width, height, colour);
}

static bool is_compute(struct weft_action action) {
  return weft_op_info(action.op)->kind == WEFT_KIND_COMPUTE;
}

void weft_svg_add_lane(struct weft_svg *svg, uint32_t rank) {
  const double top = weft_svg_row_top(svg, rank);
  struct cluster cluster = {.share_count = 0};
  struct weft_lane_walk walk = weft_lane_begin(svg->picture->simulation, rank);
  for (struct weft_lane_item item; weft_lane_next(&walk, &item);) {
    if (!is_compute(item.action) || item.end == item.begin) {
      continue;
    }
    const double begin = weft_svg_x(svg, item.begin), end = weft_svg_x(svg, item.end);
    const bool narrow = end - begin < svg->cell_min;
    if (cluster.share_count > 0 && (!narrow || begin - cluster.end > GAP_MIN ||
                                    (begin - cluster.begin >= svg->cell_min && item.part == 0))) {
      flush(svg, &cluster, top, begin);
    }
    if (!narrow) {
      add_cell(svg, &item, begin, end, top);
      continue;
    }
    cluster.begin = cluster.share_count == 0 ? begin : cluster.begin;
    cluster.end = cluster.share_count > 0 && cluster.end > end ? cluster.end : end;
    add_share(&cluster, item.action, weft_svg_colour(svg, item.action), (end - begin) / item.parts);
  }
  flush(svg, &cluster, top, svg->width);
}

/* What arrives, and what is done to parameters and gradients: thin marks under
 * the lane, as far as they can be seen. */
void weft_svg_add_transfers(struct weft_svg *svg, uint32_t rank) {
  const double y = weft_svg_row_top(svg, rank) + svg->row.lane + 1;
  double drawn = svg->plot_left; /* up to here */
  struct weft_lane_walk walk = weft_lane_begin(svg->picture->simulation, rank);
  for (struct weft_lane_item item; weft_lane_next(&walk, &item);) {
    const double begin = weft_svg_x(svg, item.begin), end = weft_svg_x(svg, item.end);
    const bool covered = begin >= drawn - MARK_MIN && end <= drawn + MARK_MIN;
    if (!weft_svg_is_transfer(item.action.op) || end - begin < MARK_MIN || covered) {
      continue;
    }
    drawn = end > drawn ? end : drawn;
    weft_svg_rect(svg->text, begin, y, end - begin, svg->row.transfers - 1.5,
                  svg->palette->ops[item.action.op]);
  }
}
