/* The frame of a chart. */
#include "cli/io/chart.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
  WIDTH = WEFT_CLI_CHART_WIDTH,
  HEIGHT = 420,
  LEFT = WEFT_CLI_CHART_LEFT, /* the frame's edges */
  RIGHT = 776,
  TOP = 56,
  BOTTOM = 372,
  TICKS = 6
};

#define INK WEFT_CLI_CHART_INK

/* ---- What is drawn ---- */

struct weft_cli_chart weft_cli_chart_empty(const char *title, const char *label) {
  return (struct weft_cli_chart){title, label, INFINITY, -INFINITY, INFINITY, -INFINITY, 1, 1};
}

void weft_cli_chart_include(struct weft_cli_chart *chart, double x, double y) {
  chart->left = fmin(chart->left, x);
  chart->right = fmax(chart->right, x);
  chart->low = fmin(chart->low, y);
  chart->high = fmax(chart->high, y);
}

/* 1, 2 or 5 times a power of ten, so that there are at most TICKS of them. */
static double tick_of(double range, double finest) {
  const double rough = fmax(range / (double)TICKS, finest);
  const double power = pow(10, floor(log10(rough)));
  const double digit = rough / power;
  return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}

void weft_cli_chart_fit(struct weft_cli_chart *chart, double finest_x, double finest_y) {
  if (!(chart->right >= chart->left)) {
    chart->left = chart->right = chart->low = chart->high = 0;
  }
  chart->right = fmax(chart->right, chart->left + finest_x);
  chart->tick_x = tick_of(chart->right - chart->left, finest_x);
  chart->tick_y = tick_of(chart->high - chart->low, finest_y);
  chart->low = floor(chart->low / chart->tick_y) * chart->tick_y;
  chart->high = ceil(chart->high / chart->tick_y) * chart->tick_y;
  chart->high = fmax(chart->high, chart->low + chart->tick_y);
}

double weft_cli_chart_x(const struct weft_cli_chart *chart, double x) {
  return (double)LEFT + (x - chart->left) / (chart->right - chart->left) * (double)(RIGHT - LEFT);
}

double weft_cli_chart_y(const struct weft_cli_chart *chart, double y) {
  return (double)TOP + (chart->high - y) / (chart->high - chart->low) * (double)(BOTTOM - TOP);
}

/* ---- Drawing ---- */

/* Lines across, each with its number. */
static void add_lines(struct weft_text *text, const struct weft_cli_chart *chart) {
  const int last = (int)lround((chart->high - chart->low) / chart->tick_y);
  for (int k = 0; k <= last; k++) {
    const double value = chart->low + k * chart->tick_y, y = weft_cli_chart_y(chart, value);
    weft_text_addf(text,
                   "<line x1=\"%d\" y1=\"%.2f\" x2=\"%d\" y2=\"%.2f\" stroke=\"" INK
                   "\" stroke-width=\"0.5\" stroke-opacity=\"0.45\"/>"
                   "<text x=\"%d\" y=\"%.2f\" text-anchor=\"end\" fill=\"" INK "\">%.6g</text>\n",
                   LEFT, y, RIGHT, y, LEFT - 8, y + 4, value);
  }
}

static void add_numbers(struct weft_text *text, const struct weft_cli_chart *chart) {
  const long first = lround(ceil(chart->left / chart->tick_x));
  const long last = lround(floor(chart->right / chart->tick_x));
  weft_text_add(text, "<g fill=\"" INK "\" text-anchor=\"middle\">\n");
  for (long k = first; k <= last; k++) {
    const double value = (double)k * chart->tick_x;
    weft_text_addf(text, "<text x=\"%.2f\" y=\"%d\">%.10g</text>\n", weft_cli_chart_x(chart, value),
                   BOTTOM + 18, value);
  }
  weft_text_addf(text, "<text x=\"%d\" y=\"%d\">%s</text>\n</g>\n", (LEFT + RIGHT) / 2, HEIGHT - 10,
                 chart->label);
}

void weft_cli_picture_begin(struct weft_text *text, int height, int left, const char *title) {
  assert(text != NULL);
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

void weft_cli_chart_begin(struct weft_text *text, const struct weft_cli_chart *chart) {
  weft_cli_picture_begin(text, HEIGHT, LEFT, chart->title);
  add_lines(text, chart);
  add_numbers(text, chart);
  weft_text_addf(text, "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"" INK "\"/>\n", LEFT, TOP,
                 BOTTOM, RIGHT);
}

void weft_cli_chart_end(struct weft_text *text) { weft_text_add(text, "</svg>\n"); }

int weft_cli_chart_add_entry(struct weft_text *text, int x, const char *colour, const char *dash,
                             const char *words) {
  assert(text != NULL);
  weft_text_addf(
      text,
      "<line x1=\"%d\" y1=\"40\" x2=\"%d\" y2=\"40\" stroke=\"%s\" stroke-width=\"2\"%s/>"
      "<text x=\"%d\" y=\"44\" fill=\"" INK "\">%s</text>\n",
      x, x + 22, colour, dash, x + 28, words);
  return x + 28 + 7 * (int)strlen(words) + 20;
}

/* ---- Pages ---- */

void weft_cli_page_begin(struct weft_text *text, const char *title) {
  weft_text_addf(text,
                 "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                 "<title>%s</title>\n<style>body{font-family:sans-serif;"
                 "color-scheme:light dark;margin:1em}svg{max-width:100%%;height:auto}</style>"
                 "</head><body>\n",
                 title);
}

void weft_cli_page_end(struct weft_text *text) { weft_text_add(text, "</pre>\n</body></html>\n"); }
