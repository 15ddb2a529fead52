/* The Pareto front as a picture: the plans as a staircase, the bounds below. A page has the same
 * picture with the table. */
#include <math.h>
#include <stdio.h>

#include "cli/cmd/pareto.h"
#include "cli/io/chart.h"
#include "cli/io/picture_file.h"

#define PLANS "#3b82d6"
#define BOUNDS "#2f9e6a"

static double bound_of(const struct weft_cli_pareto_point *point) { return point->bound; }
static double value_of(const struct weft_cli_pareto_point *point) { return point->value; }

static void add_stairs(struct weft_text *text, const struct weft_cli_chart *chart,
                       const struct weft_cli_pareto *pareto,
                       double (*of)(const struct weft_cli_pareto_point *), const char *style) {
  weft_text_addf(text, "<path fill=\"none\" %s d=\"", style);
  for (uint32_t k = 0; k < pareto->count; k++) {
    const struct weft_cli_pareto_point *point = &pareto->points[k];
    const double end = k + 1 < pareto->count ? pareto->points[k + 1].memory : chart->right;
    weft_text_addf(text, "%s%.2f %.2fH%.2f", k == 0 ? "M" : "L",
                   weft_cli_chart_x(chart, point->memory), weft_cli_chart_y(chart, of(point)),
                   weft_cli_chart_x(chart, end));
  }
  weft_text_add(text, "\"/>\n");
}

static void add_dots(struct weft_text *text, const struct weft_cli_chart *chart,
                     const struct weft_cli_pareto *pareto) {
  weft_text_add(text, "<g fill=\"" PLANS "\">\n");
  for (uint32_t k = 0; k < pareto->count; k++) {
    const struct weft_cli_pareto_point *point = &pareto->points[k];
    weft_text_addf(
        text, "<circle cx=\"%.2f\" cy=\"%.2f\" r=\"3\"><title>%.6g in %.6g: %s</title></circle>\n",
        weft_cli_chart_x(chart, point->memory), weft_cli_chart_y(chart, point->value), point->value,
        point->memory, point->schedule);
  }
  weft_text_add(text, "</g>\n");
}

static struct weft_cli_chart chart_of(const struct weft_cli_pareto *pareto, const char *title) {
  struct weft_cli_chart chart = weft_cli_chart_empty(title, "memory of a rank");
  for (uint32_t k = 0; k < pareto->count; k++) {
    const struct weft_cli_pareto_point *point = &pareto->points[k];
    weft_cli_chart_include(&chart, point->memory, point->value);
    weft_cli_chart_include(&chart, point->memory, point->bound);
  }
  const double size = isfinite(chart.right) ? chart.right : 1;
  const double time = isfinite(chart.high) ? chart.high : 1;
  weft_cli_chart_fit(&chart, fmax(1e-9, 1e-3 * size), fmax(1e-9, 1e-6 * time));
  return chart;
}

static void add_svg(struct weft_text *text, const struct weft_cli_pareto *pareto) {
  const struct weft_search_request *request = pareto->request;
  char title[160];
  (void)snprintf(title, sizeof title, "%s%s%s by memory: %u ranks, %u microbatches",
                 weft_objective_name(request->objective),
                 request->costs->unit[0] != '\0' ? " in " : "", request->costs->unit,
                 (unsigned)request->ranks, (unsigned)request->microbatches);
  const struct weft_cli_chart chart = chart_of(pareto, title);
  weft_cli_chart_begin(text, &chart);
  add_stairs(text, &chart, pareto, bound_of,
             "stroke=\"" BOUNDS "\" stroke-width=\"1.4\" stroke-dasharray=\"6 4\"");
  add_stairs(text, &chart, pareto, value_of, "stroke=\"" PLANS "\" stroke-width=\"2\"");
  add_dots(text, &chart, pareto);
  const int x = weft_cli_chart_add_entry(text, WEFT_CLI_CHART_LEFT, PLANS, "", "best plan");
  (void)weft_cli_chart_add_entry(text, x, BOUNDS, " stroke-dasharray=\"6 4\"",
                                 "bound on its placement");
  weft_cli_chart_end(text);
}

void weft_cli_pareto_add_picture(struct weft_text *text, const struct weft_cli_pareto *pareto,
                                 const char *path) {
  const bool is_page = weft_cli_picture_of(path) == WEFT_CLI_HTML;
  if (is_page) {
    weft_cli_page_begin(text, "weft plan --pareto");
  }
  add_svg(text, pareto);
  if (is_page) {
    weft_text_add(text, "<pre>\n");
    weft_cli_pareto_add(text, pareto, 0);
    weft_cli_page_end(text);
  }
}
