/* Warm-up, then a cosine. */
#include "gpt/train/learning_rate.h"

#include <math.h>

double weft_gpt_learning_rate(uint64_t step, double rate, double rate_min, uint64_t warmup,
                              uint64_t total) {
  static const double pi = 3.14159265358979323846;
  if (step < warmup) {
    return rate * (double)(step + 1) / (double)warmup;
  }
  if (step >= total) {
    return rate_min;
  }
  const double along = (double)(step - warmup) / (double)(total - warmup);
  return rate_min + 0.5 * (rate - rate_min) * (1 + cos(pi * along));
}
