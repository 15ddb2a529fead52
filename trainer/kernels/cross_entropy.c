/* Softmax and cross entropy, by rows. The largest logit is subtracted first, so no
 * exponential overflows, however large the logits are. */
#include <assert.h>
#include <math.h>
#include <stddef.h>

#include "trainer/kernels/kernels.h"
#include "trainer/kernels/simd.h"

#define PIECE 256

/* y = exp(x - shift), and its sum, a piece at a time: y may be x, or the same piece again
 * when there is no gradient to write. */
WEFT_GPT_INLINE float row_exp(bool fused, uint64_t count, const float *x, float shift, float *y) {
  for (uint64_t i = 0; i < count; i++) {
    y[i] = weft_gpt_exp_below(fused, x[i] - shift);
  }
  return weft_gpt_array_sum(count, y);
}

/* dx may be NULL. */
WEFT_GPT_INLINE void row_loss_body(bool fused, uint64_t count, const float *x, uint64_t target,
                                   float scale, float *dx, double *loss) {
  float piece[PIECE], sum = 0.0f;
  const float max = weft_gpt_array_max(count, x, x[0]), wanted = x[target];
  for (uint64_t i = 0; i < count; i += PIECE) {
    const uint64_t size = count - i < PIECE ? count - i : PIECE;
    sum += row_exp(fused, size, x + i, max, dx != NULL ? dx + i : piece);
  }
  *loss += log((double)sum) - ((double)wanted - (double)max);
  if (dx != NULL) {
    const float factor = scale / sum;
    for (uint64_t i = 0; i < count; i++) {
      dx[i] *= factor;
    }
    dx[target] -= scale;
  }
}
WEFT_GPT_VARIANTS(row_loss,
                  (uint64_t count, const float *x, uint64_t target, float scale, float *dx,
                   double *loss),
                  count, x, target, scale, dx, loss)

double weft_gpt_cross_entropy(uint64_t rows, uint64_t vocabulary, const float *logits,
                              const void *targets, float scale, float *dlogits) {
  assert(vocabulary > 0 && targets != NULL);
  const uint64_t token_bytes = weft_gpt_token_bytes(vocabulary);
  double loss = 0.0;
  for (uint64_t r = 0; r < rows; r++) {
    row_loss(vocabulary, logits + r * vocabulary, weft_gpt_token_at(targets, token_bytes, r), scale,
             dlogits != NULL ? dlogits + r * vocabulary : NULL, &loss);
  }
  return loss;
}
