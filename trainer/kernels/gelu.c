/* GELU in its tanh form. With u = sqrt(2 / pi) (x + 0.044715 x^3),
 *
 *   0.5 x (1 + tanh u) = x s,   s = 1 / (1 + e),   e = exp(-2 u),
 *
 * which needs no tanh, and loses nothing where tanh u is near -1. The derivative is
 * s + x s (1 - s) 2 u', and s (1 - s) = (e s) s, exact to rounding on both sides. Beyond
 * |x| = 10, s is 0 or 1 as far as floats go, so x is cut off there before its cube. */
#include "trainer/kernels/kernels.h"
#include "trainer/kernels/simd.h"

static const float gelu_slope = 1.5957691216057308f;  /* 2 sqrt(2 / pi) */
static const float gelu_cubic = 0.07135481627260025f; /* that, times 0.044715 */

WEFT_GPT_INLINE float near_zero(float x) {
  const float high = x > 10.0f ? 10.0f : x;
  return high < -10.0f ? -10.0f : high;
}

/* e, for |x| <= 10: 2 |u| is below 87.32 there. */
WEFT_GPT_INLINE float gelu_exp(bool fused, float x) {
  return weft_gpt_exp_within(fused,
                             -x * weft_gpt_multiply_add(fused, gelu_cubic, x * x, gelu_slope));
}

WEFT_GPT_INLINE void gelu_body(bool fused, uint64_t count, const float *x, float *restrict y) {
  for (uint64_t i = 0; i < count; i++) {
    y[i] = x[i] / (1.0f + gelu_exp(fused, near_zero(x[i])));
  }
}
WEFT_GPT_VARIANTS(gelu, (uint64_t count, const float *x, float *y), count, x, y)

void weft_gpt_gelu(uint64_t count, const float *x, float *y) { gelu(count, x, y); }

WEFT_GPT_INLINE float gelu_gradient(bool fused, float far, float dy) {
  const float x = near_zero(far);
  const float e = gelu_exp(fused, x);
  const float s = 1.0f / (1.0f + e);
  const float inner = weft_gpt_multiply_add(fused, 3.0f * gelu_cubic, x * x, gelu_slope); /* 2 u' */
  return dy * weft_gpt_multiply_add(fused, x * inner, (e * s) * s, s);
}

/* Two bodies, because dx may be x or dy and the compiler should know which. */
WEFT_GPT_INLINE void gelu_over_x_body(bool fused, uint64_t count, float *restrict x,
                                      const float *restrict dy) {
  for (uint64_t i = 0; i < count; i++) {
    x[i] = gelu_gradient(fused, x[i], dy[i]);
  }
}
WEFT_GPT_VARIANTS(gelu_over_x, (uint64_t count, float *x, const float *dy), count, x, dy)

WEFT_GPT_INLINE void gelu_over_dy_body(bool fused, uint64_t count, const float *restrict x,
                                       float *restrict dy) {
  for (uint64_t i = 0; i < count; i++) {
    dy[i] = gelu_gradient(fused, x[i], dy[i]);
  }
}
WEFT_GPT_VARIANTS(gelu_over_dy, (uint64_t count, const float *x, float *dy), count, x, dy)

void weft_gpt_gelu_backward(uint64_t count, const float *x, const float *dy, float *dx) {
  if (dx == x) {
    gelu_over_x(count, dx, dy);
    return;
  }
  if (dx != dy) {
    memcpy(dx, dy, count * sizeof *dx);
  }
  gelu_over_dy(count, x, dx);
}
