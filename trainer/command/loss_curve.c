/* The loss over the steps, as a picture. */
#include "trainer/command/loss_curve.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "cli/io/chart.h"

/* ---- Points ---- */

static void thin_out(struct weft_train_loss_series *series) {
  uint32_t kept = 0;
  for (uint32_t k = 0; k < series->count; k += 2) {
    series->points[kept++] = series->points[k];
  }
  series->count = kept;
  series->every *= 2;
}

void weft_train_loss_series_add(struct weft_train_loss_series *series, double step, double loss) {
  assert(series != NULL);
  if (!isfinite(loss)) {
    return;
  }
  series->every = series->every > 0 ? series->every : 1;
  if (series->seen++ % series->every != 0) {
    return;
  }
  if (series->count == WEFT_TRAIN_LOSS_SERIES_MAX) {
    thin_out(series);
    if ((series->seen - 1) % series->every != 0) {
      return;
    }
  }
  series->points[series->count++] = (struct weft_train_loss_series_point){step, loss};
}

/* ---- Drawing ---- */

#define TRAINING "#3b82d6"
#define VALIDATION "#e2762b"
#define UNIGRAM "#2f9e6a"

static void stretch(const struct weft_train_loss_series *series, struct weft_cli_chart *chart) {
  for (uint32_t k = 0; k < series->count; k++) {
    const struct weft_train_loss_series_point *point = &series->points[k];
    weft_cli_chart_include(chart, point->step, point->loss);
  }
}

static struct weft_cli_chart chart_of(const struct weft_train_loss_curve *curve) {
  struct weft_cli_chart chart = weft_cli_chart_empty(curve->title, "step");
  stretch(curve->training, &chart);
  stretch(curve->validation, &chart);
  if (isfinite(curve->unigram)) {
    const double step = isfinite(chart.left) ? chart.left : 0;
    weft_cli_chart_include(&chart, step, curve->unigram);
  }
  weft_cli_chart_fit(&chart, 1, 1e-6);
  return chart;
}

/* The mean of as many points on either side, at most `side`; fewer towards both ends. */
static double centred_mean(const struct weft_train_loss_series *series, uint32_t at,
                           uint32_t side) {
  const uint32_t after = series->count - 1 - at;
  const uint32_t before = at < after ? at : after;
  const uint32_t wide = side < before ? side : before;
  double sum = 0;
  for (uint32_t k = at - wide; k <= at + wide; k++) {
    sum += series->points[k].loss;
  }
  return sum / (2 * wide + 1);
}

/* `side` 0: the points as they are. */
static void add_line(struct weft_text *text, const struct weft_cli_chart *chart,
                     const struct weft_train_loss_series *series, uint32_t side,
                     const char *style) {
  if (series->count == 0) {
    return;
  }
  weft_text_addf(text, "<path fill=\"none\" stroke-linejoin=\"round\" %s d=\"", style);
  for (uint32_t k = 0; k < series->count; k++) {
    weft_text_addf(text, "%s%.2f %.2f", k == 0 ? "M" : "L",
                   weft_cli_chart_x(chart, series->points[k].step),
                   weft_cli_chart_y(chart, centred_mean(series, k, side)));
  }
  weft_text_add(text, "\"/>\n");
}

static void add_dots(struct weft_text *text, const struct weft_cli_chart *chart,
                     const struct weft_train_loss_series *series) {
  weft_text_add(text, "<g fill=\"" VALIDATION "\">\n");
  for (uint32_t k = 0; k < series->count && series->count <= 64; k++) {
    weft_text_addf(text, "<circle cx=\"%.2f\" cy=\"%.2f\" r=\"2.6\"/>\n",
                   weft_cli_chart_x(chart, series->points[k].step),
                   weft_cli_chart_y(chart, series->points[k].loss));
  }
  weft_text_add(text, "</g>\n");
}

static void add_unigram(struct weft_text *text, const struct weft_cli_chart *chart,
                        double unigram) {
  if (!isfinite(unigram)) {
    return;
  }
  const double y = weft_cli_chart_y(chart, unigram);
  weft_text_addf(text,
                 "<line x1=\"%d\" y1=\"%.2f\" x2=\"%d\" y2=\"%.2f\" stroke=\"" UNIGRAM
                 "\" stroke-dasharray=\"6 4\"/>\n",
                 WEFT_CLI_CHART_LEFT, y, WEFT_CLI_CHART_RIGHT, y);
}

/* Points on either side of a mean; 0: too few points for means. */
static uint32_t side_of_mean(const struct weft_train_loss_series *series) {
  return series->count > 40 ? series->count / 40 : 0;
}

static void add_legend(struct weft_text *text, const struct weft_train_loss_curve *curve) {
  const uint32_t side = side_of_mean(curve->training);
  const uint64_t every = curve->training->every;
  char words[64];
  (void)snprintf(words, sizeof words, every > 1 ? "training, every %" PRIu64 " steps" : "training",
                 every);
  int x = weft_cli_chart_add_entry(text, WEFT_CLI_CHART_LEFT, TRAINING,
                                   side > 0 ? " stroke-opacity=\"0.4\"" : "", words);
  if (side > 0) {
    (void)snprintf(words, sizeof words, "centred mean of %" PRIu64 " steps",
                   (2 * side + 1) * (every > 1 ? every : 1));
    x = weft_cli_chart_add_entry(text, x, TRAINING, "", words);
  }
  if (curve->validation->count > 0) {
    x = weft_cli_chart_add_entry(text, x, VALIDATION, "", "validation");
  }
  if (isfinite(curve->unigram)) {
    (void)weft_cli_chart_add_entry(text, x, UNIGRAM, " stroke-dasharray=\"6 4\"",
                                   "unigram baseline");
  }
}

void weft_train_loss_curve_add(struct weft_text *text, const struct weft_train_loss_curve *curve) {
  assert(text != NULL && curve != NULL);
  const struct weft_cli_chart chart = chart_of(curve);
  weft_cli_chart_begin(text, &chart);
  add_unigram(text, &chart, curve->unigram);
  const uint32_t side = side_of_mean(curve->training);
  if (side > 0) {
    add_line(text, &chart, curve->training, 0,
             "stroke=\"" TRAINING "\" stroke-width=\"1\" stroke-opacity=\"0.4\"");
  }
  add_line(text, &chart, curve->training, side, "stroke=\"" TRAINING "\" stroke-width=\"1.8\"");
  add_line(text, &chart, curve->validation, 0, "stroke=\"" VALIDATION "\" stroke-width=\"1.8\"");
  add_dots(text, &chart, curve->validation);
  add_legend(text, curve);
  weft_cli_chart_end(text);
}
