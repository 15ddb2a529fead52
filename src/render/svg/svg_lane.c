/* The cells of a rank: a rectangle per action, with its microbatch where that
 * fits, and at its foot the lines of its stage. The parts of an overlap share the height of the lane. Cells that are too
 * narrow are drawn together (svg_cluster.c). */
#include <assert.h>

#include "render/svg/svg_cluster.h"

#define MARK_MIN 0.25 /* pixels of a transfer that are drawn */
#define LINED_MIN 3.0 /* pixels of a cell whose lines are drawn */

static double lines_pitch(double height) { return height < 24 ? height / 8 : 3; }

void weft_svg_add_lines(struct weft_svg *svg, uint32_t count, double x, double y, double width,
                        double height, uint32_t colour) {
  assert(colour <= 0xffffff);
  const double pitch = lines_pitch(height);
  for (uint32_t i = 0; i < count && width >= LINED_MIN; i++) {
    weft_svg_rect(svg->text, x, y + height - (i + 1) * pitch, width, pitch / 2,
                  weft_palette_line(colour));
  }
}

/* The room that counts is that for the widest number, so that of equal cells all have numbers or
 * none. */
static void add_label(struct weft_svg *svg, struct weft_action action, double x, double y,
                      double width, double height, uint32_t colour) {
  const double size = svg->label_size;
  if (size > 0 && width >= svg->label_width) {
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
  const uint32_t lines = weft_svg_line_count(svg, item->action.stage);
  weft_svg_rect(svg->text, begin, y, width, height, colour);
  weft_svg_add_lines(svg, lines, begin, y, width, height, colour);
  add_label(svg, item->action, begin, y, width, height - lines * lines_pitch(height), colour);
}

static bool is_compute(struct weft_action action) {
  return weft_op_info(action.op)->kind == WEFT_KIND_COMPUTE;
}

/* An action or an overlap: the next one that takes time. False at the end. */
static bool next_cell(struct weft_lane_walk *walk, struct weft_svg_cell *cell) {
  struct weft_lane_item item;
  cell->count = 0;
  while (weft_lane_next(walk, &item)) {
    const bool drawn = is_compute(item.action) && item.end > item.begin;
    if (drawn && cell->count < WEFT_SVG_PARTS_MAX) {
      cell->items[cell->count++] = item;
    }
    if (cell->count > 0 && item.part + 1 == item.parts) {
      return true;
    }
  }
  return cell->count > 0;
}

void weft_svg_add_lane(struct weft_svg *svg, uint32_t rank) {
  assert(rank < svg->picture->simulation->program->rank_count);
  const double top = weft_svg_row_top(svg, rank);
  struct weft_svg_cluster cluster = {.share_count = 0};
  struct weft_lane_walk walk = weft_lane_begin(svg->picture->simulation, rank);
  for (struct weft_svg_cell cell; next_cell(&walk, &cell);) {
    const double begin = weft_svg_x(svg, cell.items[0].begin);
    const double end = weft_svg_x(svg, cell.items[0].end);
    if (end - begin < svg->cell_min) {
      weft_svg_cluster_add(svg, &cluster, &cell, begin, end, top);
      continue;
    }
    weft_svg_cluster_flush(svg, &cluster, begin, top);
    for (uint32_t i = 0; i < cell.count; i++) {
      add_cell(svg, &cell.items[i], begin, end, top);
    }
  }
  weft_svg_cluster_flush(svg, &cluster, svg->width, top);
}

/* What arrives, and what is done to parameters and gradients: thin marks under
 * the lane, as far as they can be seen. */
void weft_svg_add_transfers(struct weft_svg *svg, uint32_t rank) {
  assert(svg->row.transfers > 0);
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
                  weft_palette_op(item.action.op, svg->dark));
  }
}
