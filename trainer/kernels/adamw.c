/* The optimizer: the norm of gradients, clipping, and AdamW as PyTorch computes it. */
#include <assert.h>
#include <math.h>

#include "trainer/kernels/kernels.h"
#include "trainer/kernels/simd.h"

typedef double double_lanes __attribute__((vector_size(8 * sizeof(double))));

WEFT_GPT_INLINE void square_sum_body(bool fused, uint64_t count, const float *x, double *out) {
  (void)fused;
  double sums[8] = {0};
  uint64_t i = 0;
  double_lanes sum = {0};
  for (; i + 8 <= count; i += 8) {
    double_lanes part;
    for (int k = 0; k < 8; k++) {
      part[k] = (double)x[i + (uint64_t)k];
    }
    sum += part * part;
  }
  memcpy(sums, &sum, sizeof sums);
  for (int k = 0; i < count; i++, k++) {
    sums[k] += (double)x[i] * (double)x[i];
  }
  *out = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}
WEFT_GPT_VARIANTS(square_sum, (uint64_t count, const float *x, double *out), count, x, out)

double weft_gpt_square_sum(uint64_t count, const float *x) {
  double sum;
  square_sum(count, x, &sum);
  return sum;
}

WEFT_GPT_INLINE void scale_body(bool fused, uint64_t count, float factor, float *x) {
  (void)fused;
  for (uint64_t i = 0; i < count; i++) {
    x[i] *= factor;
  }
}
WEFT_GPT_VARIANTS(scale, (uint64_t count, float factor, float *x), count, factor, x)

void weft_gpt_scale(uint64_t count, float factor, float *x) { scale(count, factor, x); }

/* The two corrections go into the step and into the root, as PyTorch does it. */
WEFT_GPT_INLINE void adamw_body(bool fused, const struct weft_gpt_adamw *a, uint64_t count,
                                const float *restrict gradient, float *restrict w,
                                float *restrict m, float *restrict v) {
  const float keep = 1.0f - a->rate * a->decay, step = a->rate / a->correction1;
  const float root = 1.0f / sqrtf(a->correction2), epsilon = a->epsilon;
  const float beta1 = a->beta1, beta2 = a->beta2, scaled = a->grad_scale;
  for (uint64_t i = 0; i < count; i++) {
    const float g = gradient[i] * scaled;
    m[i] = weft_gpt_multiply_add(fused, 1.0f - beta1, g - m[i], m[i]);
    v[i] = weft_gpt_multiply_add(fused, beta2, v[i], (1.0f - beta2) * (g * g));
    w[i] = w[i] * keep - step * m[i] / weft_gpt_multiply_add(fused, sqrtf(v[i]), root, epsilon);
  }
}
WEFT_GPT_VARIANTS(adamw,
                  (const struct weft_gpt_adamw *a, uint64_t count, const float *gradient, float *w,
                   float *m, float *v),
                  a, count, gradient, w, m, v)

void weft_gpt_adamw_update(const struct weft_gpt_adamw *adamw_, uint64_t count,
                           const float *gradient, float *w, float *m, float *v) {
  assert(adamw_->correction1 > 0 && adamw_->correction2 > 0);
  adamw(adamw_, count, gradient, w, m, v);
}
