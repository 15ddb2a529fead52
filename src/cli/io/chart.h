/* A chart with two axes as SVG: its frame, and the place of points in it. It has no background,
 * and colours that are visible on white and on black. */
#ifndef CLI_CHART_H
#define CLI_CHART_H

#include <weft/base.h>

/* The picture's width, and the frame's left edge in it. */
enum { WEFT_CLI_CHART_WIDTH = 800, WEFT_CLI_CHART_LEFT = 64 };

/* Of axes and words: 4.5 to 1 against white and against black. */
#define WEFT_CLI_CHART_INK "#767676"

struct weft_cli_chart {
  const char *title;
  const char *label;  /* of what goes to the right */
  double left, right; /* the part of the plane that is drawn */
  double low, high;
  double tick_x, tick_y;
};

/* An empty chart. */
struct weft_cli_chart weft_cli_chart_empty(const char *title, const char *label);
void weft_cli_chart_include(struct weft_cli_chart *chart, double x, double y);
/* After all points: chooses ticks, none finer than these, and widens the chart to the next
 * ones above and below. */
void weft_cli_chart_fit(struct weft_cli_chart *chart, double finest_x, double finest_y);

double weft_cli_chart_x(const struct weft_cli_chart *chart, double x);
double weft_cli_chart_y(const struct weft_cli_chart *chart, double y);

/* The beginning of an SVG of that height with a title, which is escaped, at `left`. */
void weft_cli_picture_begin(struct weft_text *text, int height, int left, const char *title);
/* The same with the chart's title and axes; and the end of both. */
void weft_cli_chart_begin(struct weft_text *text, const struct weft_cli_chart *chart);
void weft_cli_chart_end(struct weft_text *text);

/* One entry of the legend at x; returns where the next one begins. `dash` is an attribute of
 * its line, or "". */
int weft_cli_chart_add_entry(struct weft_text *text, int x, const char *colour, const char *dash,
                             const char *words);

/* A page with a picture, and from "<pre>" on its table. */
void weft_cli_page_begin(struct weft_text *text, const char *title);
void weft_cli_page_end(struct weft_text *text);

#endif
