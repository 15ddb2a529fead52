/* The row of a rank: its cells, a rectangle per action, with its microbatch where that fits, and at
 * its foot the lines of its stage; what it transfers; and its memory. The parts of an overlap share
 * the height of the lane.
 *
 * Cells narrower than can be seen are drawn together: a column of cell_min pixels of the mean
 * colour of its time, idle time included, as a pixel of the HTML timeline. So a picture of
 * thousands of actions per rank is true, and its size is bounded by the pixels, not by the
 * actions. Columns lie on a grid, and a cell that reaches over a line is shared out: columns would
 * differ by cells otherwise, and look jagged. */
#include <assert.h>

#include "render/svg/svg_document.h"

#define MARK_MIN 0.25 /* pixels of a transfer that are drawn */
#define LINED_MIN 3.0 /* pixels of a cell whose lines are drawn */
#define GAP_MIN 0.75  /* pixels of idle time that are always seen */
#define TINY 1e-6     /* pixels that are rounding errors */

static uint32_t shown_parts(const struct weft_lane_cell *cell) {
  return cell->parts < WEFT_LANE_PARTS_MAX ? cell->parts : WEFT_LANE_PARTS_MAX;
}

/* ---- Cells drawn together ---- */

enum { SHARES_MAX = 8 };

struct share {
  struct weft_action action; /* one of those with this colour */
  uint32_t colour;
  double width; /* pixels of time, all together */
};

/* What is in the column being filled. Zero-initialise. */
struct cluster {
  double begin, end; /* pixels */
  double limit;      /* where the column ends */
  struct share shares[SHARES_MAX];
  uint32_t share_count;
};

static uint32_t op_order(struct weft_action action) {
  return action.op * (uint32_t)65536 + action.stage;
}

/* In the order of the ops, so that a colour is at the same height in all columns. */
static void add_share(struct cluster *cluster, struct weft_action action, uint32_t colour,
                      double width) {
  struct share *shares = cluster->shares;
  uint32_t i = 0;
  while (i < cluster->share_count && op_order(shares[i].action) < op_order(action) &&
         shares[i].colour != colour) {
    i++;
  }
  const bool found = i < cluster->share_count && shares[i].colour == colour;
  if (!found && cluster->share_count == SHARES_MAX) {
    i = i < SHARES_MAX ? i : i - 1; /* too many colours to distinguish: the nearest */
  } else if (!found) {
    for (uint32_t k = cluster->share_count++; k > i; k--) {
      shares[k] = shares[k - 1];
    }
    shares[i] = (struct share){.action = action, .colour = colour};
  }
  shares[i].width += width;
}

/* Whether the column has this colour and nothing else, so that it may go on
 * beyond its end. */
static bool is_plain(const struct cluster *cluster, uint32_t colour) {
  const double idle = cluster->end - cluster->begin - cluster->shares[0].width;
  return cluster->share_count == 1 && cluster->shares[0].colour == colour && idle < 0.01;
}

static void begin_column(const struct weft_svg *svg, struct cluster *cluster, double begin) {
  const double column = (begin - svg->plot_left) / svg->cell_min + TINY;
  cluster->begin = cluster->end = begin;
  cluster->limit =
      svg->plot_left + ((double)(uint64_t)(column > 0 ? column : 0) + 1) * svg->cell_min;
}

/* What no share has is idle. */
static uint32_t mean_colour(const struct weft_svg *svg, const struct cluster *cluster,
                            double width) {
  const uint32_t ground = weft_palette_op(WEFT_OP_IDLE, svg->options.dark);
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

/* Draws what is left; `next` is where the next cell begins. Columns that touch overlap by a little, because between two edges within a
 * pixel the ground would shine through. */
static void cluster_flush(struct weft_svg *svg, struct cluster *cluster, double next, double top) {
  const double width = cluster->end - cluster->begin;
  const double overlap = next - cluster->end < 0.01 ? 0.4 : 0;
  if (cluster->share_count > 0 && width > 0) {
    weft_svg_rect(svg->text, cluster->begin, top, width + overlap, svg->row.lane,
                  mean_colour(svg, cluster, width));
  }
  cluster->share_count = 0;
}

/* Adds a cell from pixel `begin` to `end` in a lane at `top`; draws columns that get full. */
static void cluster_add(struct weft_svg *svg, struct cluster *cluster,
                        const struct weft_lane_cell *cell, double begin, double end, double top) {
  assert(begin <= end);
  const uint32_t shown = shown_parts(cell);
  const uint32_t colour = weft_svg_colour(svg, cell->actions[0]);
  while (end - begin > TINY) {
    const bool goes_on = shown == 1 && is_plain(cluster, colour);
    const bool full = begin > cluster->limit - TINY && !goes_on;
    if (cluster->share_count > 0 && (full || begin - cluster->end > GAP_MIN)) {
      cluster_flush(svg, cluster, begin, top);
    }
    if (cluster->share_count == 0) {
      begin_column(svg, cluster, begin);
    }
    const double stop = goes_on || end < cluster->limit ? end : cluster->limit;
    for (uint32_t i = 0; i < shown; i++) {
      add_share(cluster, cell->actions[i], weft_svg_colour(svg, cell->actions[i]),
                (stop - begin) / cell->parts);
    }
    cluster->end = begin = stop;
  }
}

/* ---- Cells ---- */

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

static void add_part(struct weft_svg *svg, const struct weft_lane_cell *cell, uint32_t part,
                     double begin, double end, double top) {
  const struct weft_action action = cell->actions[part];
  const uint32_t colour = weft_svg_colour(svg, action);
  const double height = svg->row.lane / cell->parts;
  const double y = top + part * height;
  const double width = end - begin - seam(end - begin);
  const uint32_t lines = weft_svg_line_count(svg, action.stage);
  weft_svg_rect(svg->text, begin, y, width, height, colour);
  weft_svg_add_lines(svg, lines, begin, y, width, height, colour);
  add_label(svg, action, begin, y, width, height - lines * lines_pitch(height), colour);
}

static bool is_drawn(const struct weft_lane_cell *cell) {
  const enum weft_op_kind kind = weft_op_info(cell->op)->kind;
  return (kind == WEFT_KIND_COMPUTE || kind == WEFT_KIND_GROUP) && cell->end > cell->begin;
}

void weft_svg_add_lane(struct weft_svg *svg, uint32_t rank) {
  assert(rank < svg->picture->simulation->program->rank_count);
  const double top = weft_svg_row_top(svg, rank);
  struct cluster cluster = {.share_count = 0};
  struct weft_lane lane = weft_lane_begin(svg->picture->simulation, rank);
  for (struct weft_lane_cell cell; weft_lane_next(&lane, &cell);) {
    const double begin = weft_svg_x(svg, cell.begin), end = weft_svg_x(svg, cell.end);
    if (!is_drawn(&cell)) {
      continue;
    }
    if (end - begin < svg->cell_min) {
      cluster_add(svg, &cluster, &cell, begin, end, top);
      continue;
    }
    cluster_flush(svg, &cluster, begin, top);
    for (uint32_t part = 0; part < shown_parts(&cell); part++) {
      add_part(svg, &cell, part, begin, end, top);
    }
  }
  cluster_flush(svg, &cluster, svg->width, top);
}

/* What arrives, and what is done to parameters and gradients: thin marks under
 * the lane, as far as they can be seen. */
void weft_svg_add_transfers(struct weft_svg *svg, uint32_t rank) {
  assert(svg->row.transfers > 0);
  const double y = weft_svg_row_top(svg, rank) + svg->row.lane + 1;
  double drawn = svg->plot_left; /* up to here */
  struct weft_lane lane = weft_lane_begin(svg->picture->simulation, rank);
  for (struct weft_lane_cell cell; weft_lane_next(&lane, &cell);) {
    const double begin = weft_svg_x(svg, cell.begin), end = weft_svg_x(svg, cell.end);
    const bool covered = begin >= drawn - MARK_MIN && end <= drawn + MARK_MIN;
    if (!weft_svg_is_transfer(cell.op) || end - begin < MARK_MIN || covered) {
      continue;
    }
    drawn = end > drawn ? end : drawn;
    weft_svg_rect(svg->text, begin, y, end - begin, svg->row.transfers - 1.5,
                  weft_palette_op(cell.op, svg->options.dark));
  }
}

/* ---- Memory ---- */

static void step_to(struct weft_text *text, char direction, double value) {
  weft_text_append(text, &direction, 1);
  weft_svg_coordinate(text, value);
}

/* One outline, a pixel wide at the finest. */
void weft_svg_add_memory(struct weft_svg *svg, uint32_t rank) {
  assert(svg->row.memory > 0);
  const struct weft_memory_columns *memory = &svg->memory;
  const double row_top = weft_svg_row_top(svg, rank);
  const double base = row_top + svg->row.lane + svg->row.transfers + svg->row.memory;
  const double peak = svg->picture->simulation->peak_activation;
  const double column = svg->plot_width / memory->column_count;
  weft_text_add(svg->text, "<path d=\"");
  step_to(svg->text, 'M', svg->plot_left);
  step_to(svg->text, ' ', base);
  double size = 0;
  for (uint32_t i = 0; i < memory->column_count; i++) {
    if (memory->sizes[i] != size) {
      size = memory->sizes[i];
      step_to(svg->text, 'H', svg->plot_left + i * column);
      step_to(svg->text, 'V', base - weft_memory_share(size, peak) * (svg->row.memory - 2));
    }
  }
  step_to(svg->text, 'H', svg->plot_left + svg->plot_width);
  step_to(svg->text, 'V', base);
  weft_text_add(svg->text, "z\"");
  weft_svg_fill(svg->text, svg->palette->memory);
  weft_text_add(svg->text, "/>\n");
}
