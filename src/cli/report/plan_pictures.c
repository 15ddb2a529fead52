/* Pictures of `weft plan` as SVG: the Pareto front as a staircase with the bounds below it, and the
 * candidates of a choice as bars. A page has the same picture with the table. They have no
 * background, and colours that are visible on white and on black. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/cmd/plan_command.h"
#include "cli/io/picture_file.h"
#include "cli/io/text_columns.h"

#define INK "#767676" /* of axes and words: 4.5 to 1 against white and against black */
#define PLANS "#3b82d6"
#define IDLE "#c9ced6"
#define ALL_REDUCE "#d9822b"
#define BOUNDS "#2f9e6a"

enum { WIDTH = 800 };

/* ---- Frames ---- */

/* The beginning of a page, if `path` is one. */
static bool begin_page(struct weft_text *text, const char *path, const char *title) {
  assert(text != NULL && path != NULL);
  if (weft_cli_picture_of(path) != WEFT_CLI_HTML) {
    return false;
  }
  weft_text_addf(text,
                 "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                 "<title>%s</title>\n<style>body{font-family:sans-serif;"
                 "color-scheme:light dark;margin:1em}svg{max-width:100%%;height:auto}</style>"
                 "</head><body>\n",
                 title);
  return true;
}

static void end_page(struct weft_text *text) { weft_text_add(text, "</pre>\n</body></html>\n"); }

static void begin_svg(struct weft_text *text, int height, int left, const char *title) {
  weft_text_addf(text,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                 "height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n",
                 WIDTH, height, WIDTH, height);
  weft_text_addf(text, "<text x=\"%d\" y=\"22\" fill=\"" INK "\" font-size=\"15\">", left);
  for (; *title != '\0'; title++) {
    const char *entity = *title == '<' ? "&lt;" : *title == '&' ? "&amp;" : NULL;
    if (entity != NULL) {
      weft_text_add(text, entity);
    } else if ((unsigned char)*title >= ' ') {
      weft_text_append(text, title, 1);
    }
  }
  weft_text_add(text, "</text>\n");
}

/* One entry of the legend at x; returns where the next one begins. `dash` is an attribute of its
 * line, or "". */
static int add_entry(struct weft_text *text, int x, const char *colour, const char *dash,
                     const char *words) {
  weft_text_addf(
      text,
      "<line x1=\"%d\" y1=\"40\" x2=\"%d\" y2=\"40\" stroke=\"%s\" stroke-width=\"2\"%s/>"
      "<text x=\"%d\" y=\"44\" fill=\"" INK "\">%s</text>\n",
      x, x + 22, colour, dash, x + 28, words);
  return x + 28 + 7 * (int)strlen(words) + 20;
}

/* What the times are of, at the right end of the legend's line. */
static void add_scope(struct weft_text *text, const char *words) {
  weft_text_addf(text, "<text x=\"%d\" y=\"44\" text-anchor=\"end\" fill=\"" INK "\">%s</text>\n",
                 WIDTH - 24, words);
}

/* ---- The Pareto front ---- */

enum { HEIGHT = 420, LEFT = 64, RIGHT = 776, TOP = 56, BOTTOM = 372, TICKS = 6 };

/* The part of the plane that is drawn: memory to the right, time up. */
struct chart {
  double left, right, low, high;
  double tick_x, tick_y;
};

/* 1, 2 or 5 times a power of ten, so that there are at most TICKS of them. */
static double tick_of(double range, double finest) {
  const double rough = fmax(range / (double)TICKS, finest);
  const double power = pow(10, floor(log10(rough)));
  const double digit = rough / power;
  return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}

/* All points and bounds, and then to the next ticks below and above. */
static struct chart chart_of(const struct weft_cli_pareto *pareto) {
  struct chart chart = {INFINITY, -INFINITY, INFINITY, -INFINITY, 1, 1};
  for (uint32_t k = 0; k < pareto->count; k++) {
    const struct weft_search_answer *answer = pareto->points[k].answer;
    const double value = weft_cli_plan_value(answer);
    chart.left = fmin(chart.left, answer->peak_memory);
    chart.right = fmax(chart.right, answer->peak_memory);
    chart.low = fmin(chart.low, fmin(value, answer->bound));
    chart.high = fmax(chart.high, fmax(value, answer->bound));
  }
  const double size = isfinite(chart.right) ? chart.right : 1;
  const double finest_x = fmax(1e-9, 1e-3 * size);
  const double finest_y = fmax(1e-9, 1e-6 * (isfinite(chart.high) ? chart.high : 1));
  if (pareto->count == 0) {
    chart.left = chart.right = chart.low = chart.high = 0;
  }
  chart.right = fmax(chart.right, chart.left + finest_x);
  chart.tick_x = tick_of(chart.right - chart.left, finest_x);
  chart.tick_y = tick_of(chart.high - chart.low, finest_y);
  chart.low = floor(chart.low / chart.tick_y) * chart.tick_y;
  chart.high = ceil(chart.high / chart.tick_y) * chart.tick_y;
  chart.high = fmax(chart.high, chart.low + chart.tick_y);
  return chart;
}

static double x_of(const struct chart *chart, double memory) {
  return (double)LEFT +
         (memory - chart->left) / (chart->right - chart->left) * (double)(RIGHT - LEFT);
}

static double y_of(const struct chart *chart, double value) {
  return (double)TOP + (chart->high - value) / (chart->high - chart->low) * (double)(BOTTOM - TOP);
}

/* Lines across and numbers below, and the two axes. */
static void add_axes(struct weft_text *text, const struct chart *chart) {
  const int lines = (int)lround((chart->high - chart->low) / chart->tick_y);
  for (int k = 0; k <= lines; k++) {
    const double value = chart->low + k * chart->tick_y, y = y_of(chart, value);
    weft_text_addf(text,
                   "<line x1=\"%d\" y1=\"%.2f\" x2=\"%d\" y2=\"%.2f\" stroke=\"" INK
                   "\" stroke-width=\"0.5\" stroke-opacity=\"0.45\"/>"
                   "<text x=\"%d\" y=\"%.2f\" text-anchor=\"end\" fill=\"" INK "\">%.6g</text>\n",
                   LEFT, y, RIGHT, y, LEFT - 8, y + 4, value);
  }
  weft_text_add(text, "<g fill=\"" INK "\" text-anchor=\"middle\">\n");
  const long last = lround(floor(chart->right / chart->tick_x));
  for (long k = lround(ceil(chart->left / chart->tick_x)); k <= last; k++) {
    const double memory = (double)k * chart->tick_x;
    weft_text_addf(text, "<text x=\"%.2f\" y=\"%d\">%.10g</text>\n", x_of(chart, memory),
                   BOTTOM + 18, memory);
  }
  weft_text_addf(text,
                 "<text x=\"%d\" y=\"%d\">memory of a rank</text>\n</g>\n"
                 "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"" INK "\"/>\n",
                 (LEFT + RIGHT) / 2, HEIGHT - 10, LEFT, TOP, BOTTOM, RIGHT);
}

static void add_stairs(struct weft_text *text, const struct chart *chart,
                       const struct weft_cli_pareto *pareto, bool of_bounds, const char *style) {
  weft_text_addf(text, "<path fill=\"none\" %s d=\"", style);
  for (uint32_t k = 0; k < pareto->count; k++) {
    const struct weft_search_answer *answer = pareto->points[k].answer;
    const double end =
        k + 1 < pareto->count ? pareto->points[k + 1].answer->peak_memory : chart->right;
    weft_text_addf(text, "%s%.2f %.2fH%.2f", k == 0 ? "M" : "L", x_of(chart, answer->peak_memory),
                   y_of(chart, of_bounds ? answer->bound : weft_cli_plan_value(answer)),
                   x_of(chart, end));
  }
  weft_text_add(text, "\"/>\n");
}

static void add_dots(struct weft_text *text, const struct chart *chart,
                     const struct weft_cli_pareto *pareto) {
  weft_text_add(text, "<g fill=\"" PLANS "\">\n");
  for (uint32_t k = 0; k < pareto->count; k++) {
    const struct weft_search_answer *answer = pareto->points[k].answer;
    const double memory = answer->peak_memory, value = weft_cli_plan_value(answer);
    weft_text_addf(
        text, "<circle cx=\"%.2f\" cy=\"%.2f\" r=\"3\"><title>%.6g in %.6g: %s</title></circle>\n",
        x_of(chart, memory), y_of(chart, value), value, memory, answer->schedule);
  }
  weft_text_add(text, "</g>\n");
}

void weft_cli_pareto_add_picture(struct weft_text *text, const struct weft_cli_pareto *pareto,
                                 const char *path) {
  const struct weft_search_request *request = pareto->request;
  const struct chart chart = chart_of(pareto);
  const bool is_page = begin_page(text, path, "weft plan --pareto");
  const struct weft_costs *costs = request->costs;
  const uint32_t stages = weft_graph_stage_count(request->graph);
  char title[640], scope[96];
  (void)snprintf(title, sizeof title, "%s%s%s by memory: %s, %s",
                 weft_objective_name(request->objective), costs->unit[0] != '\0' ? " in " : "",
                 costs->unit, weft_cli_count(request->ranks, "rank").text,
                 weft_cli_count(request->microbatches, "microbatch").text);
  begin_svg(text, HEIGHT, LEFT, title);
  add_axes(text, &chart);
  add_stairs(text, &chart, pareto, true,
             "stroke=\"" BOUNDS "\" stroke-width=\"1.4\" stroke-dasharray=\"6 4\"");
  add_stairs(text, &chart, pareto, false, "stroke=\"" PLANS "\" stroke-width=\"2\"");
  add_dots(text, &chart, pareto);
  const int x = add_entry(text, LEFT, PLANS, "", "best plan");
  (void)add_entry(text, x, BOUNDS, " stroke-dasharray=\"6 4\"", "bound on its placement");
  add_scope(text, weft_cli_plan_cuts(request) ? "times are of each stage"
                  : stages == 0 && costs->stage_count == 1 && costs->of == WEFT_COSTS_OF_RANK
                      ? "times are of a rank's share of the model"
                      : weft_costs_describe(costs, request->ranks, stages > 0 ? stages : 1, scope,
                                            sizeof scope));
  weft_text_add(text, "</svg>\n");
  if (is_page) {
    weft_text_add(text, "<pre>\n");
    weft_cli_pareto_add(text, pareto, 0);
    end_page(text);
  }
}

/* ---- The choice ---- */

enum { BARS_LEFT = 190, BARS_RIGHT = 640, BARS_TOP = 64, BAR_PITCH = 30, BAR_HEIGHT = 18 };

/* A box from *x on; moves *x to its end. */
static void add_box(struct weft_text *text, double *x, double width, int y, const char *colour) {
  if (width > 0) {
    weft_text_addf(text, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"/>", *x,
                   y, width, BAR_HEIGHT, colour);
  }
  *x += width;
}

static void add_bar(struct weft_text *text, const struct weft_choice_candidate *candidate, int y,
                    double scale) {
  const struct weft_cli_choice_bar bar = weft_cli_choice_bar_of(candidate);
  const double bound = isfinite(bar.bound) ? bar.bound : 0;
  double end = BARS_LEFT;
  weft_text_addf(text, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" fill=\"" INK "\">%s</text>",
                 BARS_LEFT - 8, y + BAR_HEIGHT - 5, bar.label);
  add_box(text, &end, bar.work * scale, y, PLANS);
  add_box(text, &end, bar.idle * scale, y, IDLE);
  add_box(text, &end, bar.all_reduce * scale, y, ALL_REDUCE);
  if (bound > 0) {
    weft_text_addf(text, "<path d=\"M%.2f %dv%d\" stroke=\"" BOUNDS "\" stroke-width=\"2\"/>",
                   (double)BARS_LEFT + bound * scale, y - 3, BAR_HEIGHT + 6);
  }
  end = candidate->answer != NULL ? end : (double)BARS_LEFT + bound * scale;
  weft_text_addf(text, "<text x=\"%.2f\" y=\"%d\" fill=\"" INK "\">", end + 8, y + BAR_HEIGHT - 5);
  if (candidate->answer != NULL) {
    weft_text_addf(text, "%s, memory %s", weft_cli_amount(candidate->value).text,
                   weft_cli_amount(candidate->answer->peak_memory).text);
  } else if (bound > 0) {
    weft_text_addf(text, "at least %s", weft_cli_amount(bound).text);
  } else {
    weft_text_add(text, "does not fit into the memory");
  }
  weft_text_add(text, "</text>\n");
}

void weft_cli_choice_add_picture(struct weft_text *text, const struct weft_cli_choice *report,
                                 const char *path) {
  assert(report->choice->count > 0);
  const struct weft_choice *choice = report->choice;
  const uint32_t rows = weft_cli_choice_rows(choice);
  const double scale = (BARS_RIGHT - BARS_LEFT) / fmax(1e-300, weft_cli_choice_longest(choice));
  const bool is_page = begin_page(text, path, "weft plan --global-batch");
  const struct weft_search_request *search = &report->request->search;
  const char *unit = search->costs->unit;
  char title[384];
  (void)snprintf(title, sizeof title, "time of a step%s%s: %s, a global batch of %llu",
                 unit[0] != '\0' ? " in " : "", unit, weft_cli_count(search->ranks, "rank").text,
                 (unsigned long long)report->request->global_batch);
  begin_svg(text, BARS_TOP + (int)rows * BAR_PITCH + 8, 12, title);
  int x = add_entry(text, 12, PLANS, "", "work");
  x = add_entry(text, x, IDLE, "", "idle");
  x = add_entry(text, x, ALL_REDUCE, "", "all-reduce");
  (void)add_entry(text, x, BOUNDS, "", "lower bound");
  add_scope(text, weft_cli_plan_cuts(search) || search->costs->stage_count > 1
                      ? "times are of each stage"
                      : "times are of a stage");
  for (uint32_t k = 0; k < rows; k++) {
    add_bar(text, &choice->candidates[k], BARS_TOP + (int)k * BAR_PITCH, scale);
  }
  weft_text_add(text, "</svg>\n");
  if (is_page) {
    weft_text_add(text, "<pre>\n");
    weft_cli_choice_add(text, report, 0);
    end_page(text);
  }
}
