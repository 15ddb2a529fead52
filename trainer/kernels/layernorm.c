/* Layer norm and the sums around it: y = (x - mean) rstd weight + bias, by rows. A row
 * is in the first cache after the first pass over it, so the others are cheap. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "trainer/kernels/kernels.h"
#include "trainer/kernels/simd.h"

static const float norm_epsilon = 1e-5f;

/* Sum of (x - mean)^2. */
WEFT_GPT_INLINE float row_squares(uint64_t count, const float *x, float mean) {
  weft_gpt_simd sum = {0}, part;
  uint64_t i = 0;
  for (; i + WEFT_GPT_SIMD_WIDTH <= count; i += WEFT_GPT_SIMD_WIDTH) {
    weft_gpt_simd_load(&part, x + i);
    part -= mean;
    sum += part * part;
  }
  float total = weft_gpt_simd_sum(&sum);
  for (; i < count; i++) {
    total += (x[i] - mean) * (x[i] - mean);
  }
  return total;
}

WEFT_GPT_INLINE void norm_body(bool fused, uint64_t rows, uint64_t channels, const float *x,
                               const float *weight, const float *bias, float *y, float *mean,
                               float *rstd) {
  for (uint64_t r = 0; r < rows; r++, x += channels, y += channels) {
    const float m = weft_gpt_array_sum(channels, x) / (float)channels;
    const float variance = row_squares(channels, x, m) / (float)channels;
    const float s = 1.0f / sqrtf(variance + norm_epsilon);
    for (uint64_t i = 0; i < channels; i++) {
      y[i] = weft_gpt_multiply_add(fused, (x[i] - m) * s, weight[i], bias[i]);
    }
    mean[r] = m;
    rstd[r] = s;
  }
}
WEFT_GPT_VARIANTS(norm,
                  (uint64_t rows, uint64_t channels, const float *x, const float *weight,
                   const float *bias, float *restrict y, float *mean, float *rstd),
                  rows, channels, x, weight, bias, y, mean, rstd)

void weft_gpt_layernorm(uint64_t rows, uint64_t channels, const float *x, const float *weight,
                        const float *bias, float *y, float *mean, float *rstd) {
  assert(channels > 0);
  norm(rows, channels, x, weight, bias, y, mean, rstd);
}

/* With g = dy weight and xhat = (x - mean) rstd:
 * dx = rstd (g - mean(g) - xhat mean(g xhat)). */
struct row_means {
  float g, g_xhat;
};

WEFT_GPT_INLINE struct row_means gradient_means(uint64_t count, const float *x, const float *weight,
                                                const float *dy, float mean, float rstd) {
  weft_gpt_simd g_sum = {0}, g_xhat_sum = {0}, g, w, xhat;
  uint64_t i = 0;
  for (; i + WEFT_GPT_SIMD_WIDTH <= count; i += WEFT_GPT_SIMD_WIDTH) {
    weft_gpt_simd_load(&g, dy + i);
    weft_gpt_simd_load(&w, weight + i);
    weft_gpt_simd_load(&xhat, x + i);
    g *= w;
    g_sum += g;
    g_xhat_sum += g * ((xhat - mean) * rstd);
  }
  float sum = weft_gpt_simd_sum(&g_sum), xhat_sum = weft_gpt_simd_sum(&g_xhat_sum);
  for (; i < count; i++) {
    sum += dy[i] * weight[i];
    xhat_sum += dy[i] * weight[i] * ((x[i] - mean) * rstd);
  }
  return (struct row_means){sum / (float)count, xhat_sum / (float)count};
}

WEFT_GPT_INLINE void norm_input_body(bool fused, uint64_t rows, uint64_t channels, const float *x,
                                     const float *weight, const float *mean, const float *rstd,
                                     const float *dy, float *restrict dx,
                                     float *restrict weight_share, float *restrict bias_share) {
  for (uint64_t r = 0; r < rows; r++, x += channels, dy += channels, dx += channels) {
    const float m = mean[r], s = rstd[r];
    const struct row_means means = gradient_means(channels, x, weight, dy, m, s);
    for (uint64_t i = 0; i < channels; i++) {
      const float xhat = (x[i] - m) * s, g = dy[i];
      const float centred = weft_gpt_multiply_add(
          fused, g, weight[i], weft_gpt_multiply_add(fused, -xhat, means.g_xhat, -means.g));
      dx[i] = weft_gpt_multiply_add(fused, s, centred, dx[i]);
      weight_share[i] = weft_gpt_multiply_add(fused, g, xhat, weight_share[i]);
      bias_share[i] += g;
    }
  }
}
WEFT_GPT_VARIANTS(norm_input,
                  (uint64_t rows, uint64_t channels, const float *x, const float *weight,
                   const float *mean, const float *rstd, const float *dy, float *dx,
                   float *weight_share, float *bias_share),
                  rows, channels, x, weight, mean, rstd, dy, dx, weight_share, bias_share)

void weft_gpt_layernorm_backward_input(uint64_t rows, uint64_t channels, const float *x,
                                       const float *weight, const float *mean, const float *rstd,
                                       const float *dy, float *dx, float *share) {
  assert(channels > 0 && dx != dy);
  memset(share, 0, 2 * channels * sizeof *share);
  norm_input(rows, channels, x, weight, mean, rstd, dy, dx, share, share + channels);
}

WEFT_GPT_INLINE void add_body(bool fused, uint64_t count, const float *x, float *restrict y) {
  (void)fused;
  for (uint64_t i = 0; i < count; i++) {
    y[i] += x[i];
  }
}
WEFT_GPT_VARIANTS(add, (uint64_t count, const float *x, float *y), count, x, y)

void weft_gpt_add(uint64_t count, const float *x, float *y) { add(count, x, y); }
