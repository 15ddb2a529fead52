/* The memory strip under a rank: one outline, a pixel wide at the finest. */
#include "render/svg/svg_document.h"

#include <assert.h>

static void step_to(struct weft_text *text, char direction, double value) {
  weft_text_append(text, &direction, 1);
  weft_svg_coordinate(text, value);
}

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
