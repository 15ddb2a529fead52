/* The loss over the steps, as a picture. */
#include "cli/loss_curve.h"

#include <math.h>
#include <string.h>

/* ---- Points ---- */

static void thin_out(struct weft_cli_series *series) {
  uint32_t kept = 0;
  for (uint32_t k = 0; k < series->count; k += 2) {
    series->points[kept++] = series->points[k];
  }
  series->count = kept;
  series->every *= 2;
}

void weft_cli_series_add(struct weft_cli_series *series, double step, double loss) {
  if (!isfinite(loss)) {
    return;
  }
  series->every = series->every > 0 ? series->every : 1;
  if (series->seen++ % series->every != 0) {
    return;
  }
  if (series->count == WEFT_CLI_SERIES_MAX) {
    thin_out(series);
    if ((series->seen - 1) % series->every != 0) {
      return;
    }
  }
  series->points[series->count++] = (struct weft_cli_series_point){step, loss};
}

/* ---- The frame ---- */

enum { WIDTH = 800, HEIGHT = 420, LEFT = 64, RIGHT = 24, TOP = 56, BOTTOM = 48, TICKS = 6 };

/* Seen on white and on black. */
#define INK "#7f8790"
#define TRAINING "#3b82d6"
#define VALIDATION "#e2762b"
#define UNIGRAM "#2f9e6a"

/* What part of the plane is drawn. */
struct frame {
  double first, last; /* steps */
  double low, high;   /* losses */
  double step_tick, loss_tick;
};

static void stretch(const struct weft_cli_series *series, struct frame *frame) {
  for (uint32_t k = 0; k < series->count; k++) {
    const struct weft_cli_series_point *point = &series->points[k];
    frame->first = fmin(frame->first, point->step);
    frame->last = fmax(frame->last, point->step);
    frame->low = fmin(frame->low, point->loss);
    frame->high = fmax(frame->high, point->loss);
  }
}

/* 1, 2 or 5 times a power of ten, so that there are at most TICKS of them. */
static double tick_of(double range, double least) {
  const double rough = fmax(range / TICKS, least);
  const double power = pow(10, floor(log10(rough)));
  const double digit = rough / power;
  return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}

static struct frame frame_of(const struct weft_cli_loss_curve *curve) {
  struct frame frame = {INFINITY, -INFINITY, INFINITY, -INFINITY, 1, 1};
  stretch(curve->training, &frame);
  stretch(curve->validation, &frame);
  if (!(frame.last >= frame.first)) { /* nothing was trained */
    frame.first = frame.last = frame.low = frame.high = 0;
  }
  if (isfinite(curve->unigram)) {
    frame.low = fmin(frame.low, curve->unigram);
    frame.high = fmax(frame.high, curve->unigram);
  }
  frame.last = fmax(frame.last, frame.first + 1);
  frame.step_tick = tick_of(frame.last - frame.first, 1);
  frame.loss_tick = tick_of(frame.high - frame.low, 1e-6);
  frame.low = floor(frame.low / frame.loss_tick) * frame.loss_tick;
  frame.high = ceil(frame.high / frame.loss_tick) * frame.loss_tick;
  frame.high = fmax(frame.high, frame.low + frame.loss_tick);
  return frame;
}

static double x_of(const struct frame *frame, double step) {
  return LEFT + (step - frame->first) / (frame->last - frame->first) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct frame *frame, double loss) {
  return TOP + (frame->high - loss) / (frame->high - frame->low) * (HEIGHT - TOP - BOTTOM);
}

/* ---- Drawing ---- */

/* Lines across, each with its loss. */
static void add_losses(struct weft_text *text, const struct frame *frame) {
  const int last = (int)lround((frame->high - frame->low) / frame->loss_tick);
  for (int k = 0; k <= last; k++) {
    const double loss = frame->low + k * frame->loss_tick, y = y_of(frame, loss);
    weft_text_addf(text,
                   "<line x1=\"%d\" y1=\"%.2f\" x2=\"%d\" y2=\"%.2f\" stroke=\"" INK
                   "\" stroke-width=\"0.5\" stroke-opacity=\"0.45\"/>"
                   "<text x=\"%d\" y=\"%.2f\" text-anchor=\"end\" fill=\"" INK "\">%.4g</text>\n",
                   LEFT, y, WIDTH - RIGHT, y, LEFT - 8, y + 4, loss);
  }
}

static void add_steps(struct weft_text *text, const struct frame *frame) {
  const long first = lround(ceil(frame->first / frame->step_tick));
  const long last = lround(floor(frame->last / frame->step_tick));
  weft_text_add(text, "<g fill=\"" INK "\" text-anchor=\"middle\">\n");
  for (long k = first; k <= last; k++) {
    const double step = (double)k * frame->step_tick;
    weft_text_addf(text, "<text x=\"%.2f\" y=\"%d\">%.0f</text>\n", x_of(frame, step),
                   HEIGHT - BOTTOM + 18, step);
  }
  weft_text_addf(text, "<text x=\"%d\" y=\"%d\">step</text>\n</g>\n", (LEFT + WIDTH - RIGHT) / 2,
                 HEIGHT - 10);
}

static void add_axes(struct weft_text *text, const struct frame *frame) {
  add_losses(text, frame);
  add_steps(text, frame);
  weft_text_addf(text, "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"" INK "\"/>\n", LEFT, TOP,
                 HEIGHT - BOTTOM, WIDTH - RIGHT);
}

/* `smooth` 0: the points as they are; towards 1: a running mean over more of them. */
static void add_line(struct weft_text *text, const struct frame *frame,
                     const struct weft_cli_series *series, double smooth, const char *style) {
  double mean = 0, weight = 0;
  if (series->count == 0) {
    return;
  }
  weft_text_addf(text, "<path fill=\"none\" stroke-linejoin=\"round\" %s d=\"", style);
  for (uint32_t k = 0; k < series->count; k++) {
    mean = smooth * mean + (1 - smooth) * series->points[k].loss;
    weight = smooth * weight + (1 - smooth);
    weft_text_addf(text, "%s%.2f %.2f", k == 0 ? "M" : "L", x_of(frame, series->points[k].step),
                   y_of(frame, mean / weight));
  }
  weft_text_add(text, "\"/>\n");
}

static void add_dots(struct weft_text *text, const struct frame *frame,
                     const struct weft_cli_series *series) {
  weft_text_add(text, "<g fill=\"" VALIDATION "\">\n");
  for (uint32_t k = 0; k < series->count && series->count <= 64; k++) {
    weft_text_addf(text, "<circle cx=\"%.2f\" cy=\"%.2f\" r=\"2.6\"/>\n",
                   x_of(frame, series->points[k].step), y_of(frame, series->points[k].loss));
  }
  weft_text_add(text, "</g>\n");
}

static void add_unigram(struct weft_text *text, const struct frame *frame, double unigram) {
  if (!isfinite(unigram)) {
    return;
  }
  const double y = y_of(frame, unigram);
  weft_text_addf(text,
                 "<line x1=\"%d\" y1=\"%.2f\" x2=\"%d\" y2=\"%.2f\" stroke=\"" UNIGRAM
                 "\" stroke-dasharray=\"6 4\"/>\n",
                 LEFT, y, WIDTH - RIGHT, y);
}

/* One entry of the legend; returns where the next one begins. */
static int add_entry(struct weft_text *text, int x, const char *colour, const char *dash,
                     const char *words) {
  weft_text_addf(
      text,
      "<line x1=\"%d\" y1=\"40\" x2=\"%d\" y2=\"40\" stroke=\"%s\" stroke-width=\"2\"%s/>"
      "<text x=\"%d\" y=\"44\" fill=\"" INK "\">%s</text>\n",
      x, x + 22, colour, dash, x + 28, words);
  return x + 28 + 7 * (int)strlen(words) + 20;
}

static void add_legend(struct weft_text *text, const struct weft_cli_loss_curve *curve) {
  int x = add_entry(text, LEFT, TRAINING, "", "training");
  if (curve->validation->count > 0) {
    x = add_entry(text, x, VALIDATION, "", "validation");
  }
  if (isfinite(curve->unigram)) {
    (void)add_entry(text, x, UNIGRAM, " stroke-dasharray=\"6 4\"", "frequencies of bytes alone");
  }
}

static void add_title(struct weft_text *text, const char *title) {
  weft_text_addf(text, "<text x=\"%d\" y=\"22\" fill=\"" INK "\" font-size=\"15\">", LEFT);
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

void weft_cli_loss_curve_add(struct weft_text *text, const struct weft_cli_loss_curve *curve) {
  const struct frame frame = frame_of(curve);
  weft_text_addf(text,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                 "height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n",
                 WIDTH, HEIGHT, WIDTH, HEIGHT);
  add_title(text, curve->title);
  add_axes(text, &frame);
  add_unigram(text, &frame, curve->unigram);
  add_line(text, &frame, curve->training, 0,
           "stroke=\"" TRAINING "\" stroke-width=\"1\" stroke-opacity=\"0.4\"");
  add_line(text, &frame, curve->training, curve->training->count > 40 ? 0.9 : 0,
           "stroke=\"" TRAINING "\" stroke-width=\"1.8\"");
  add_line(text, &frame, curve->validation, 0, "stroke=\"" VALIDATION "\" stroke-width=\"1.8\"");
  add_dots(text, &frame, curve->validation);
  add_legend(text, curve);
  weft_text_add(text, "</svg>\n");
}
