/* Softmax and cross entropy, by rows. The largest logit is subtracted first, so no
 * exponential overflows, however large the logits are. */
#include <math.h>
#include <stddef.h>

#include "gpt/kernels.h"
#include "gpt/lanes.h"

WEFT_GPT_INLINE void row_exp_body(bool fused, uint64_t count, const float *x, float shift,
                                  float *y) {
  for (uint64_t i = 0; i < count; i++) {
    y[i] = weft_gpt_exp(fused, x[i] - shift);
  }
}
WEFT_GPT_VARIANTS(row_exp, (uint64_t count, const float *x, float shift, float *y), count, x, shift,
                  y)

static float row_max(uint64_t count, const float *x) {
  float max = x[0];
  for (uint64_t i = 1; i < count; i++) {
    max = x[i] > max ? x[i] : max;
  }
  return max;
}

/* Adds exponentials, a piece at a time: logits stay as they are when there is no
 * gradient to write. */
static float exp_sum(uint64_t count, const float *x, float max) {
  float piece[256];
  weft_gpt_lanes sum = {0}, part;
  for (uint64_t done = 0; done < count; done += 256) {
    const uint64_t now = count - done < 256 ? count - done : 256;
    row_exp(now, x + done, max, piece);
    uint64_t i = 0;
    for (; i + WEFT_GPT_LANES <= now; i += WEFT_GPT_LANES) {
      weft_gpt_lanes_load(&part, piece + i);
      sum += part;
    }
    weft_gpt_lanes_load_some(&part, piece + i, now - i);
    sum += part;
  }
  return weft_gpt_lanes_sum(&sum);
}

double weft_gpt_cross_entropy(uint64_t rows, uint64_t vocabulary, const float *logits,
                              const uint8_t *targets, float scale, float *dlogits) {
  double loss = 0.0;
  for (uint64_t r = 0; r < rows; r++) {
    const float *x = logits + r * vocabulary;
    const float max = row_max(vocabulary, x);
    const float sum = exp_sum(vocabulary, x, max);
    loss += log((double)sum) - ((double)x[targets[r]] - (double)max);
    if (dlogits != NULL) {
      float *dx = dlogits + r * vocabulary;
      row_exp(vocabulary, x, max, dx);
      weft_gpt_scale(vocabulary, scale / sum, dx);
      dx[targets[r]] -= scale;
    }
  }
  return loss;
}
