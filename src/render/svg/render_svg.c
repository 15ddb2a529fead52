/* The SVG picture: its layout, and the order in which it is drawn. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include <weft/support.h>

#include "base/plain_text.h"
#include "render/svg/svg_document.h"
#include "sim/rank_record.h"

enum {
  RIGHT = 84,          /* right of the rows, at least: idle, peak */
  TOP = 60,            /* above the rows: title, facts */
  TITLE = 24,          /* of that, for the title */
  TOP_BARE = 8,        /* above the rows, without these */
  AXIS = 30,           /* under the rows */
  COLUMNS_MAX = 80000, /* of all ranks: bounds the size of the document */
  MEMORY_COLUMNS_MAX = 400000
};

#define CELL_MIN 2.0 /* pixels */

/* ---- Colours ---- */

uint32_t weft_svg_colour(const struct weft_svg *svg, struct weft_action action) {
  assert(action.op < WEFT_OP_COUNT);
  if (svg->options.colour_by == WEFT_COLOUR_BY_STAGE) {
    return weft_palette_stage(action.stage, svg->picture->simulation->program->stage_count,
                              action.op, svg->options.dark);
  }
  return weft_palette_chunk(action.op, svg->chunk_of[action.stage], svg->chunk_count,
                            svg->options.dark);
}

uint32_t weft_svg_line_count(const struct weft_svg *svg, uint32_t stage) {
  assert(stage < svg->picture->simulation->program->stage_count);
  const uint32_t count = svg->options.colour_by == WEFT_COLOUR_BY_OP ? svg->chunk_of[stage] : 0;
  return count < WEFT_STAGE_LINES_MAX ? count : WEFT_STAGE_LINES_MAX;
}

bool weft_svg_is_transfer(enum weft_op op) {
  const enum weft_op_kind kind = weft_op_info(op)->kind;
  return kind == WEFT_KIND_RECV || kind == WEFT_KIND_SHARD;
}

/* Numbers the stages of each rank, and records which ops take time; and how long compute actions
 * take: what decides about numbers in cells. */
static enum weft_status scan_events(struct weft_svg *svg, struct weft_error *error) {
  const struct weft_simulation *simulation = svg->picture->simulation;
  const struct weft_program *program = simulation->program;
  WEFT_SCOPED_ARENA arena = {.allocator = svg->arena.allocator};
  int64_t *ticks = weft_arena_allocate(&arena, simulation->event_count, sizeof *ticks);
  uint32_t *owner = weft_arena_allocate(&arena, program->stage_count, sizeof *owner);
  uint32_t *next = weft_arena_allocate(&arena, program->rank_count, sizeof *next);
  WEFT_TRY(weft_arena_status(&arena, error));
  svg->chunk_of = weft_arena_allocate(&svg->arena, program->stage_count, sizeof *svg->chunk_of);
  WEFT_TRY(weft_arena_status(&svg->arena, error));
  size_t count = 0;
  for (uint64_t i = 0; i < simulation->event_count; i++) {
    const struct weft_event *event = &simulation->events[i];
    const struct weft_action *action = &program->actions[event->record];
    const int64_t taken = event->end - event->begin;
    svg->seen[action->op] |= taken > 0;
    if (weft_svg_is_transfer(action->op) && taken > svg->transfer_ticks_max) {
      svg->transfer_ticks_max = taken;
    } else if (action->op == WEFT_OP_OVERLAP_F_B && action->parts > svg->parts_max) {
      svg->parts_max = action->parts;
    } else if (weft_op_info(action->op)->kind == WEFT_KIND_COMPUTE) {
      owner[action->stage] = event->rank;
      ticks[count] = taken;
      count += taken > 0;
    }
  }
  if (count > 0) {
    qsort(ticks, count, sizeof *ticks, weft_compare_times);
    svg->cell_ticks_min = ticks[0];
    svg->cell_ticks_usual = ticks[count / 10];
  }
  svg->chunk_count = 1;
  for (uint32_t stage = 0; stage < program->stage_count; stage++) {
    svg->chunk_of[stage] = next[owner[stage]]++;
    const uint32_t stages = next[owner[stage]];
    svg->chunk_count = stages > svg->chunk_count ? stages : svg->chunk_count;
  }
  return WEFT_OK;
}

/* ---- Layout ---- */

static struct weft_svg_row row_for(uint32_t rank_count) {
  static const struct {
    uint32_t rank_max;
    struct weft_svg_row row;
  } sizes[] = {
      {8, {28, 5, 14, 10}}, {16, {24, 5, 12, 8}}, {32, {18, 4, 9, 6}}, {UINT32_MAX, {14, 4, 7, 4}}};
  size_t i = 0;
  while (rank_count > sizes[i].rank_max) {
    i++;
  }
  return sizes[i].row;
}

/* Not where all of them are too short to be seen. */
static bool shows_transfers(const struct weft_svg *svg) {
  const double ticks = (double)svg->extent.end - (double)svg->extent.begin;
  return (double)svg->transfer_ticks_max / ticks * svg->plot_width >= 1;
}

static double pixels_of(const struct weft_svg *svg, int64_t ticks) {
  return (double)ticks * svg->plot_width / ((double)svg->extent.end - (double)svg->extent.begin);
}

/* One size for all numbers: what fits nine cells in ten, or the smallest that is read. A cell
 * that is too narrow for it has none. */
static void choose_labels(struct weft_svg *svg, uint32_t digits) {
  const double largest = 12, smallest = 6, margin = 3, digit_width = 0.6;
  const uint32_t lines =
      svg->chunk_count - 1 < WEFT_STAGE_LINES_MAX ? svg->chunk_count - 1 : WEFT_STAGE_LINES_MAX;
  const double height = svg->row.lane / svg->parts_max;
  const bool marked = svg->options.colour_by == WEFT_COLOUR_BY_OP && lines > 0;
  const double by_height = height * (marked ? 0.5 : 0.62);
  const double seam = 1; /* between neighbours */
  const double by_width =
      (pixels_of(svg, svg->cell_ticks_usual) - seam - margin) / (digits * digit_width);
  double size = by_height < largest ? by_height : largest;
  size = by_width < size ? by_width : size;
  size = size > smallest ? size : smallest;
  svg->label_size = size <= by_height ? size : 0;
  svg->label_width = digits * digit_width * size + margin;
}

static void lay_out(struct weft_svg *svg) {
  const struct weft_simulation *simulation = svg->picture->simulation;
  const uint32_t rank_count = simulation->program->rank_count;
  const double ranks = rank_count > 0 ? rank_count : 1;
  svg->plot_left = 46 + 7 * weft_count_digits(rank_count);
  svg->row = row_for(rank_count);
  if (svg->picture->costs == NULL || !(simulation->peak_activation > 0)) {
    svg->row.memory = 0;
  }
  const double words = weft_svg_words_right(svg), half = (svg->width - svg->plot_left) / 2;
  const double wanted = words < half ? words : half, least = RIGHT;
  svg->plot_width = svg->width - svg->plot_left - (wanted > least ? wanted : least);
  svg->rows_top = svg->options.bare ? TOP_BARE : weft_svg_has_name(svg) ? TOP : TOP - TITLE;
  svg->rows_top += weft_svg_place_note(svg);
  if (!shows_transfers(svg)) {
    svg->row.transfers = 0;
  }
  const double fair = svg->plot_width * ranks / (double)COLUMNS_MAX;
  svg->cell_min = fair > CELL_MIN ? fair : CELL_MIN;
  svg->mixes = pixels_of(svg, svg->cell_ticks_min) < svg->cell_min && svg->cell_ticks_min > 0;
  choose_labels(svg, weft_count_digits(simulation->program->microbatch_count));
  const double pixels = (double)MEMORY_COLUMNS_MAX / ranks;
  svg->memory.column_count = (uint32_t)(pixels < svg->plot_width ? pixels : svg->plot_width);
  svg->memory.column_count += svg->memory.column_count == 0;
  svg->memory.extent = svg->extent;
}

/* ---- Drawing ---- */

static void open_document(struct weft_svg *svg) {
  weft_text_add(svg->text, "<svg xmlns=\"http://www.w3.org/2000/svg\"");
  weft_svg_attribute(svg->text, "width", svg->width);
  weft_svg_attribute(svg->text, "height", svg->height);
  weft_text_add(svg->text, " viewBox=\"0 0 ");
  weft_svg_coordinate(svg->text, svg->width);
  weft_text_add(svg->text, " ");
  weft_svg_coordinate(svg->text, svg->height);
  weft_text_add(svg->text,
                "\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" role=\"img\">\n"
                "<title>");
  weft_svg_outside(svg->text, svg->picture->name != NULL ? svg->picture->name : "timeline", 1000);
  weft_text_add(svg->text, "</title>\n");
  char room[WEFT_NOTE_SIZE];
  const char *note = weft_picture_note(svg->picture, room);
  if (note[0] != '\0') { /* in the picture it is where there is room */
    weft_text_add(svg->text, "<desc>");
    weft_svg_outside(svg->text, note, 1000);
    weft_text_add(svg->text, "</desc>\n");
  }
  weft_svg_rect(svg->text, 0, 0, svg->width, svg->height, svg->palette->background);
}

static enum weft_status add_rows(struct weft_svg *svg, struct weft_error *error) {
  const uint32_t rank_count = svg->picture->simulation->program->rank_count;
  for (uint32_t rank = 0; rank < rank_count && !svg->text->failed; rank++) {
    weft_svg_add_lane(svg, rank);
    weft_text_append(svg->text, svg->labels.data, svg->labels.size);
    svg->text->failed |= svg->labels.failed;
    svg->labels.size = 0;
    if (svg->row.transfers > 0) {
      weft_svg_add_transfers(svg, rank);
    }
    if (svg->row.memory > 0) {
      WEFT_TRY(weft_memory_columns_read(&svg->memory, rank, error));
      weft_svg_add_memory(svg, rank);
    }
  }
  return WEFT_OK;
}

static enum weft_status draw_document(struct weft_svg *svg, struct weft_error *error) {
  WEFT_TRY(scan_events(svg, error));
  lay_out(svg);
  const uint32_t rank_count = svg->picture->simulation->program->rank_count;
  const double legend_top = weft_svg_row_top(svg, rank_count) + (double)AXIS;
  svg->height = legend_top + weft_svg_add_legend(svg, legend_top, false) + 16;
  open_document(svg);
  if (!svg->options.bare) {
    weft_svg_add_title(svg);
  }
  weft_svg_add_ground(svg);
  WEFT_TRY(add_rows(svg, error));
  weft_svg_add_row_labels(svg);
  weft_svg_add_axis(svg);
  (void)weft_svg_add_legend(svg, legend_top, true);
  weft_text_add(svg->text, "</svg>\n");
  return weft_text_status(svg->text, error);
}

enum weft_status weft_render_svg(const struct weft_picture *picture,
                                 const struct weft_render_options *options, struct weft_text *text,
                                 struct weft_error *error) {
  static const struct weft_width_limits limits = {1200, 200, 100000, "a picture", "pixels"};
  struct weft_render_options chosen;
  WEFT_NEED(text, error);
  WEFT_TRY(weft_picture_begin(picture, options, &limits, &chosen, error));
  struct weft_svg svg = {.picture = picture,
                         .palette = weft_palette_of(chosen.dark),
                         .options = chosen,
                         .parts_max = 1,
                         .text = text,
                         .labels = {.allocator = text->allocator},
                         .arena = {.allocator = text->allocator},
                         .extent = weft_extent_of(picture->simulation),
                         .width = chosen.width,
                         .memory = {.allocator = text->allocator, .picture = picture}};
  const size_t size_before = text->size;
  const enum weft_status status = draw_document(&svg, error);
  if (status < 0 && text->data != NULL) {
    text->size = size_before;
    text->data[size_before] = '\0';
  }
  weft_memory_columns_finish(&svg.memory);
  weft_text_finish(&svg.labels);
  weft_arena_finish(&svg.arena);
  return status;
}
