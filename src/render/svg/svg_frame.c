/* What is drawn around the cells: title, lanes, grid lines, names of ranks, axis. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "render/svg/svg_document.h"

#define TITLE_SIZE 16.0
#define SMALL_SIZE 11.0
#define TICK_PIXELS 90.0

enum fact {
  FACT_MAKESPAN,
  FACT_BUBBLE,
  FACT_PEAK,
  FACT_RANKS,
  FACT_STAGES,
  FACT_MICROBATCHES,
  FACT_EDGES,
  FACT_NAMES,
  FACT_NOTE,
  FACTS
};

static void add_count(struct weft_text *words, uint32_t count, const char *noun) {
  const char *plural = count == 1 ? "" : noun[strlen(noun) - 1] == 'h' ? "es" : "s";
  weft_text_addf(words, "%" PRIu32 " %s%s", count, noun, plural);
}

/* Nothing where there is nothing to say. */
static void add_fact(const struct weft_svg *svg, enum fact fact, struct weft_text *words) {
  const struct weft_simulation *simulation = svg->picture->simulation;
  const struct weft_program *program = simulation->program;
  char room[WEFT_NOTE_SIZE];
  switch (fact) {
    case FACT_MAKESPAN:
      weft_text_add(words, "makespan ");
      weft_add_time(words, svg->picture, simulation->makespan);
      break;
    case FACT_BUBBLE:
      weft_text_addf(words, "bubble %.1f %%", 100 * simulation->bubble_ratio);
      break;
    case FACT_PEAK:
      if (svg->row.memory > 0) {
        weft_text_add(words, "peak memory ");
        weft_add_rounded(words, simulation->peak_activation);
      }
      break;
    case FACT_RANKS: add_count(words, program->rank_count, "rank"); break;
    case FACT_STAGES: add_count(words, program->stage_count, "stage"); break;
    case FACT_MICROBATCHES: add_count(words, program->microbatch_count, "microbatch"); break;
    case FACT_EDGES: weft_add_edges(words, program->graph); break;
    case FACT_NAMES: weft_add_stage_names(words, program->graph); break;
    default:
      weft_add_line_text(words, weft_picture_note(svg->picture, room), WEFT_NOTE_SIZE);
      break;
  }
}

/* As many as fit in a line; the first in any case. Returns how many. */
static unsigned add_facts(struct weft_svg *svg, struct weft_text *text) {
  const size_t begin = text->size;
  const double room = (svg->width - svg->plot_left) / (SMALL_SIZE * 0.58);
  WEFT_SCOPED_TEXT words = {.allocator = text->allocator};
  for (unsigned fact = 0; fact < FACTS && !text->failed; fact++) {
    const bool is_apart = fact <= FACT_RANKS || fact == FACT_NOTE;
    const size_t size_before = text->size;
    words.size = 0;
    add_fact(svg, fact, &words);
    text->failed |= words.failed;
    if (words.size == 0 || words.failed) {
      continue;
    }
    weft_text_add(text, fact == FACT_MAKESPAN ? "" : is_apart ? " · " : ", ");
    weft_svg_outside(text, words.data, words.size);
    if (fact > 0 && !text->failed &&
        (double)weft_count_characters(text->data + begin, text->size - begin) > room) {
      text->size = size_before;
      return fact;
    }
  }
  return FACTS;
}

/* The note in lines of its own. Returns how many. */
static unsigned add_note(struct weft_svg *svg, double y, bool draw) {
  char room[WEFT_NOTE_SIZE];
  return weft_svg_add_words(svg->text, svg->plot_left, y, svg->width - svg->plot_left - 8,
                            SMALL_SIZE, svg->palette->ink_faint,
                            weft_picture_note(svg->picture, room), draw);
}

double weft_svg_place_note(struct weft_svg *svg) {
  assert(svg->width > svg->plot_left);
  WEFT_SCOPED_TEXT facts = {.allocator = svg->text->allocator};
  svg->note_below = !svg->options.bare && add_facts(svg, &facts) <= FACT_NOTE;
  svg->text->failed |= facts.failed;
  return svg->note_below ? add_note(svg, 0, false) * WEFT_SVG_LINE : 0;
}

void weft_svg_add_title(struct weft_svg *svg) {
  const unsigned lines = svg->note_below ? add_note(svg, 0, false) : 0;
  const double y = svg->rows_top - 15 - lines * WEFT_SVG_LINE;
  if (weft_svg_has_name(svg)) {
    weft_svg_text_begin(svg->text, svg->plot_left, y - 19, TITLE_SIZE, "start", svg->palette->ink);
    weft_svg_outside(svg->text, svg->picture->name,
                     (size_t)((svg->width - svg->plot_left) / (TITLE_SIZE * 0.6)));
    weft_svg_text_end(svg->text);
  }
  weft_svg_text_begin(svg->text, svg->plot_left, y, SMALL_SIZE, "start", svg->palette->ink_faint);
  (void)add_facts(svg, svg->text);
  weft_svg_text_end(svg->text);
  if (svg->note_below) {
    (void)add_note(svg, y + WEFT_SVG_LINE, true);
  }
}

/* ---- The axis ---- */

struct axis {
  double length; /* in the costs' unit */
  double step;
};

static struct axis axis_of(const struct weft_svg *svg) {
  struct axis axis;
  axis.length = ((double)svg->extent.end - (double)svg->extent.begin) /
                svg->picture->simulation->ticks_per_unit;
  axis.step = weft_axis_step(axis.length, svg->plot_width / TICK_PIXELS);
  return axis;
}

static double axis_x(const struct weft_svg *svg, const struct axis *axis, double time) {
  return svg->plot_left + time * svg->plot_width / axis->length;
}

static void add_line(struct weft_svg *svg, double x1, double y1, double x2, double y2) {
  weft_text_add(svg->text, "<path d=\"M");
  weft_svg_coordinate(svg->text, x1);
  weft_text_add(svg->text, " ");
  weft_svg_coordinate(svg->text, y1);
  weft_text_add(svg->text, "L");
  weft_svg_coordinate(svg->text, x2);
  weft_text_add(svg->text, " ");
  weft_svg_coordinate(svg->text, y2);
  weft_text_addf(svg->text, "\" stroke=\"#%06" PRIx32 "\"/>\n", svg->palette->rule);
}

static double rows_bottom(const struct weft_svg *svg) {
  return weft_svg_row_top(svg, svg->picture->simulation->program->rank_count);
}

void weft_svg_add_ground(struct weft_svg *svg) {
  const uint32_t rank_count = svg->picture->simulation->program->rank_count;
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    weft_svg_rect(svg->text, svg->plot_left, weft_svg_row_top(svg, rank), svg->plot_width,
                  svg->row.lane, weft_palette_op(WEFT_OP_IDLE, svg->options.dark));
  }
  const struct axis axis = axis_of(svg);
  for (uint32_t i = 0; i * axis.step <= axis.length * (1 + 1e-9); i++) {
    const double x = axis_x(svg, &axis, i * axis.step);
    add_line(svg, x, svg->rows_top, x, rows_bottom(svg));
  }
}

static void add_axis_word(const struct weft_svg *svg, struct weft_text *text) {
  const struct weft_costs *costs = svg->picture->costs;
  const bool has_unit = costs != NULL && costs->unit[0] != '\0';
  weft_text_add(text, has_unit ? "time, " : "time");
  weft_svg_outside(text, has_unit ? costs->unit : "", sizeof costs->unit);
}

void weft_svg_add_axis(struct weft_svg *svg) {
  assert(svg->extent.begin < svg->extent.end);
  const struct axis axis = axis_of(svg);
  const double y = rows_bottom(svg);
  const uint32_t ink = svg->palette->ink_faint;
  double right = svg->plot_left + svg->plot_width; /* of what stands there */
  add_line(svg, svg->plot_left, y, right, y);
  for (uint32_t i = 0; i * axis.step <= axis.length * (1 + 1e-9); i++) {
    const double x = axis_x(svg, &axis, i * axis.step);
    add_line(svg, x, y, x, y + 4);
    weft_svg_text_begin(svg->text, x, y + 16, SMALL_SIZE, "middle", ink);
    const size_t begin = svg->text->size;
    weft_add_number(svg->text, i * axis.step);
    if (!svg->text->failed) {
      const double width =
          weft_svg_text_width(svg->text->data + begin, svg->text->size - begin, SMALL_SIZE);
      right = x + width / 2 > right ? x + width / 2 : right;
    }
    weft_svg_text_end(svg->text);
  }
  weft_svg_text_begin(svg->text, right + 8, y + 16, SMALL_SIZE, "start", ink);
  add_axis_word(svg, svg->text);
  weft_svg_text_end(svg->text);
}

/* ---- Ranks ---- */

static double label_size(const struct weft_svg *svg) {
  return svg->row.lane >= 18 ? SMALL_SIZE : 9;
}

static void add_peak(struct weft_text *text, const struct weft_svg *svg, uint32_t rank) {
  weft_text_add(text, "peak ");
  weft_add_rounded(text, svg->picture->simulation->ranks[rank].peak_activation);
}

double weft_svg_words_right(const struct weft_svg *svg) {
  assert(svg->row.lane > 0);
  const uint32_t rank_count = svg->picture->simulation->program->rank_count;
  const double beside = 8, overhang = 18; /* of the axis's last number */
  WEFT_SCOPED_TEXT words = {.allocator = svg->text->allocator};
  add_axis_word(svg, &words);
  double most = overhang + weft_svg_text_width(words.data, words.size, SMALL_SIZE);
  for (uint32_t rank = 0; rank < rank_count && svg->row.memory > 0; rank++) {
    words.size = 0;
    add_peak(&words, svg, rank);
    const double width = weft_svg_text_width(words.data, words.size, label_size(svg) - 1);
    most = width > most ? width : most;
  }
  svg->text->failed |= words.failed;
  return most + 2 * beside;
}

static void add_rank_facts(struct weft_svg *svg, uint32_t rank, double size) {
  const struct weft_simulation *simulation = svg->picture->simulation;
  const double x = svg->plot_left + svg->plot_width + 8, top = weft_svg_row_top(svg, rank);
  const uint32_t ink = svg->palette->ink_faint;
  if (simulation->makespan > 0) {
    weft_svg_text_begin(svg->text, x, top + svg->row.lane / 2 + size * 0.36, size, "start", ink);
    weft_text_addf(svg->text, "%.0f %% idle",
                   100 * simulation->ranks[rank].idle / simulation->makespan);
    weft_svg_text_end(svg->text);
  }
  const double base = top + svg->row.lane + svg->row.transfers + svg->row.memory;
  if (svg->row.memory > 0 && weft_svg_row_height(svg) >= 2 * size) {
    weft_svg_text_begin(svg->text, x, base, size, "start", ink);
    add_peak(svg->text, svg, rank);
    weft_svg_text_end(svg->text);
  }
}

void weft_svg_add_row_labels(struct weft_svg *svg) {
  assert(svg->row.lane > 0);
  const uint32_t rank_count = svg->picture->simulation->program->rank_count;
  const double size = label_size(svg);
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    const double middle = weft_svg_row_top(svg, rank) + svg->row.lane / 2;
    weft_svg_text_begin(svg->text, svg->plot_left - 8, middle + size * 0.36, size, "end",
                        svg->palette->ink);
    weft_text_addf(svg->text, "rank %" PRIu32, rank);
    weft_svg_text_end(svg->text);
    add_rank_facts(svg, rank, size - 1);
  }
}
