/* The legend: a swatch and a word for every colour that the picture uses. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "render/svg/svg_document.h"

#define SWATCH 12.0
#define LINE 20.0
#define WORDS 11.0
#define GAP 12.0 /* between entries */
enum { STAGES_NAMED = 16, MEANING_MAX = 60 };

/* Where the next item goes. */
struct legend {
  struct weft_svg *svg;
  double x, y;
  bool draw;
};

/* A swatch of one or more colours side by side, with a line at the foot of the second if `lined`,
 * and its meaning; on a new line when this one is full, on several where the picture is narrow. */
static void add_item(struct legend *legend, const uint32_t *colours, uint32_t colour_count,
                     bool lined, const char *meaning) {
  const struct weft_svg *svg = legend->svg;
  const double swatch = SWATCH * (double)colour_count + 5;
  const double whole = weft_svg_text_width(meaning, strlen(meaning), WORDS);
  const double most = (double)MEANING_MAX * WORDS * 0.6;
  const double words = whole < most ? whole : most;
  const double width = swatch + words + GAP;
  const double room = svg->width - svg->plot_left - swatch - 4; /* of the words, in a whole line */
  if (legend->x > svg->plot_left && legend->x + width > svg->width) {
    legend->x = svg->plot_left;
    legend->y += LINE;
  }
  if (legend->draw) {
    for (uint32_t i = 0; i < colour_count; i++) {
      weft_svg_rect(svg->text, legend->x + i * SWATCH, legend->y, SWATCH, SWATCH, colours[i]);
    }
    weft_svg_add_lines(legend->svg, lined ? 1 : 0, legend->x + SWATCH, legend->y, SWATCH, SWATCH,
                       colours[colour_count - 1]);
  }
  WEFT_SCOPED_TEXT line = {.allocator = svg->text->allocator};
  weft_add_line_text(&line, meaning, MEANING_MAX);
  svg->text->failed |= line.failed;
  const unsigned lines = weft_svg_add_words(
      svg->text, legend->x + swatch, legend->y + SWATCH - 2, words > room ? room : INFINITY, WORDS,
      svg->palette->ink, line.failed ? "" : line.data, legend->draw);
  legend->x += width;
  legend->y += lines > 1 ? (lines - 1) * WEFT_SVG_LINE : 0;
}

static bool is_compute(enum weft_op op) { return weft_op_info(op)->kind == WEFT_KIND_COMPUTE; }

/* The first compute op from `op` on that takes time in the picture; IDLE if none does. */
static enum weft_op first_seen(const struct weft_svg *svg, unsigned op) {
  while (op < WEFT_OP_COUNT && !(svg->seen[op] && is_compute(op))) {
    op++;
  }
  return op < WEFT_OP_COUNT ? op : WEFT_OP_IDLE;
}

/* "F forward", "reduce gradients": the first and the palest colour of an op, where
 * ranks have several stages. */
static void add_op(struct legend *legend, enum weft_op op) {
  const struct weft_svg *svg = legend->svg;
  const struct weft_op_info *info = weft_op_info(op);
  const uint32_t stage_count = svg->picture->simulation->program->stage_count;
  char meaning[64];
  if (!is_compute(op)) {
    const uint32_t colour = weft_palette_op(op, svg->options.dark);
    add_item(legend, &colour, 1, false, info->legend);
    return;
  }
  (void)snprintf(meaning, sizeof meaning, "%s %s", info->text, info->legend);
  if (svg->options.colour_by == WEFT_COLOUR_BY_STAGE) {
    const uint32_t colour = weft_palette_stage(0, stage_count, op, svg->options.dark);
    add_item(legend, &colour, 1, false, meaning);
    return;
  }
  const uint32_t colours[] = {
      weft_palette_chunk(op, 0, svg->chunk_count, svg->options.dark),
      weft_palette_chunk(op, svg->chunk_count - 1, svg->chunk_count, svg->options.dark)};
  add_item(legend, colours, svg->chunk_count > 1 ? 2 : 1, svg->chunk_count > 1, meaning);
}

/* Colours are the stages': the ops differ in lightness, shown on the first. */
static void add_stages(struct legend *legend) {
  const struct weft_svg *svg = legend->svg;
  const struct weft_program *program = svg->picture->simulation->program;
  const uint32_t count = program->stage_count;
  const uint32_t step = (count + STAGES_NAMED - 1) / STAGES_NAMED;
  WEFT_SCOPED_TEXT meaning = {.allocator = svg->text->allocator};
  for (uint32_t stage = 0; stage < count; stage += step) {
    const uint32_t colour = weft_palette_stage(stage, count, WEFT_OP_B, svg->options.dark);
    meaning.size = 0;
    weft_text_add(&meaning, "stage ");
    weft_graph_add_stage(program->graph, stage, &meaning);
    if (meaning.failed) {
      svg->text->failed = true;
      return;
    }
    add_item(legend, &colour, 1, false, meaning.data);
  }
}

/* What the pale, lined and mixed cells of an op are. */
static void add_shades(struct legend *legend) {
  const struct weft_svg *svg = legend->svg;
  if (svg->chunk_count > 1 && svg->options.colour_by == WEFT_COLOUR_BY_OP) {
    const enum weft_op op = first_seen(svg, 0);
    const uint32_t colours[] = {
        weft_palette_chunk(op, 0, svg->chunk_count, svg->options.dark),
        weft_palette_chunk(op, svg->chunk_count - 1, svg->chunk_count, svg->options.dark)};
    add_item(legend, colours, 2, true,
             svg->chunk_count == 2 ? "pale, underlined: the rank's second stage"
                                   : "paler, more lines: later stages of the rank");
  }
  if (svg->mixes) {
    const enum weft_op op = first_seen(svg, 0), other = first_seen(svg, op + 1);
    const uint32_t from = weft_palette_op(op, svg->options.dark),
                   to = weft_palette_op(other, svg->options.dark);
    const uint32_t mixed = weft_palette_mix(from, to, 128);
    add_item(legend, &mixed, 1, false, "mixed: actions that share a pixel, each by its time");
  }
}

static void add_ops(struct legend *legend) {
  const struct weft_svg *svg = legend->svg;
  for (unsigned op = 0; op < WEFT_OP_COUNT; op++) {
    if (svg->seen[op] && is_compute(op)) {
      add_op(legend, op);
    }
  }
  add_shades(legend);
  for (unsigned op = 0; op < WEFT_OP_COUNT && svg->row.transfers > 0; op++) {
    if (svg->seen[op] && weft_svg_is_transfer(op)) {
      add_op(legend, op);
    }
  }
  add_op(legend, WEFT_OP_IDLE);
}

double weft_svg_add_legend(struct weft_svg *svg, double top, bool draw) {
  assert(svg->picture != NULL && top >= 0);
  struct legend legend = {.svg = svg, .x = svg->plot_left, .y = top, .draw = draw};
  if (svg->options.colour_by == WEFT_COLOUR_BY_STAGE) {
    add_stages(&legend);
    legend.x = svg->plot_left;
    legend.y += LINE;
  }
  add_ops(&legend);
  if (svg->row.memory > 0) {
    add_item(&legend, &svg->palette->memory, 1, false, "memory");
  }
  return legend.y + SWATCH - top;
}
