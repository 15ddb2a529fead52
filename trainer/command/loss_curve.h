/* The loss over the steps of a training, as points and as a picture (SVG). */
#ifndef GPT_LOSS_CURVE_H
#define GPT_LOSS_CURVE_H

#include <weft/base.h>

/* A few thousand points at most, however long the training: when the array is full, every second
 * point is dropped, and from then on fewer are recorded. Zero-initialise. */
enum { WEFT_TRAIN_LOSS_SERIES_MAX = 2048 };
struct weft_train_loss_series {
  struct weft_train_loss_series_point {
    double step, loss;
  } points[WEFT_TRAIN_LOSS_SERIES_MAX];
  uint32_t count;
  uint64_t every; /* n-th point is taken */
  uint64_t seen;
};

/* Points come in the order of steps; points that are not finite are ignored. */
void weft_train_loss_series_add(struct weft_train_loss_series *series, double step, double loss);

struct weft_train_loss_curve {
  const char *title;
  const struct weft_train_loss_series *training, *validation;
  double unigram; /* a line to compare with; NAN: none */
};

/* Appends the SVG. It has no background, and colours that are visible on white and on black. */
void weft_train_loss_curve_add(struct weft_text *text, const struct weft_train_loss_curve *curve);

#endif
