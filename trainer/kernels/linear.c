/* Linear layers. With AVX-512 and one BLAS thread the product is gemm_avx512.c's, which adds
 * biases and residuals itself. Otherwise it is sgemm's, and y is filled with the bias or residual
 * first, so that no pass has to follow. */
#include <assert.h>
#include <cblas.h>
#include <string.h>

#include "trainer/kernels/gemm_avx512.h"
#include "trainer/kernels/kernels.h"
#include "trainer/kernels/simd.h"

static blasint size(uint64_t n) { return (blasint)n; }

/* False: nothing was computed, and sgemm has to. */
static bool multiply_avx512(const struct weft_gpt_gemm *product) {
  return openblas_get_num_threads() == 1 && weft_gpt_gemm_avx512(product);
}

WEFT_GPT_INLINE void fill_body(bool fused, uint64_t rows, uint64_t out, const float *residual,
                               const float *b, float *y) {
  (void)fused;
  for (uint64_t r = 0; r < rows; r++) {
    const float *from = residual + r * out;
    float *to = y + r * out;
    for (uint64_t i = 0; i < out; i++) {
      to[i] = from[i] + b[i];
    }
  }
}
WEFT_GPT_VARIANTS(fill,
                  (uint64_t rows, uint64_t out, const float *residual, const float *b, float *y),
                  rows, out, residual, b, y)

/* y += x w^T, or y = if not `add`. */
static void multiply(uint64_t rows, uint64_t in, uint64_t out, const float *x, const float *w,
                     bool add, float *y) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, size(rows), size(out), size(in), 1.0f, x,
              size(in), w, size(in), add ? 1.0f : 0.0f, y, size(out));
}

static struct weft_gpt_gemm forward_of(uint64_t rows, uint64_t in, uint64_t out, const float *x,
                                       const float *w, const float *b, float *y) {
  return (struct weft_gpt_gemm){.m = rows,
                                .n = out,
                                .k = in,
                                .a = x,
                                .a_stride = in,
                                .b = w,
                                .b_stride = in,
                                .b_transposed = true,
                                .bias = b,
                                .c = y};
}

void weft_gpt_linear(uint64_t rows, uint64_t in, uint64_t out, const float *x, const float *w,
                     const float *b, float *y) {
  assert(x != y);
  const struct weft_gpt_gemm product = forward_of(rows, in, out, x, w, b, y);
  if (multiply_avx512(&product)) {
    return;
  }
  for (uint64_t r = 0; b != NULL && r < rows; r++) {
    memcpy(y + r * out, b, out * sizeof *y);
  }
  multiply(rows, in, out, x, w, b != NULL, y);
}

void weft_gpt_linear_residual(uint64_t rows, uint64_t in, uint64_t out, const float *x,
                              const float *w, const float *b, const float *residual, float *y) {
  assert(x != y && residual != NULL);
  struct weft_gpt_gemm product = forward_of(rows, in, out, x, w, b, y);
  product.from = residual;
  if (!multiply_avx512(&product)) {
    fill(rows, out, residual, b, y);
    multiply(rows, in, out, x, w, true, y);
  }
}

void weft_gpt_linear_backward_input(uint64_t rows, uint64_t in, uint64_t out, const float *dy,
                                    const float *w, float *dx, bool add) {
  assert(dy != dx);
  const struct weft_gpt_gemm product = {.m = rows,
                                        .n = in,
                                        .k = out,
                                        .a = dy,
                                        .a_stride = out,
                                        .b = w,
                                        .b_stride = in,
                                        .from = add ? dx : NULL,
                                        .c = dx};
  if (!multiply_avx512(&product)) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, size(rows), size(in), size(out), 1.0f,
                dy, size(out), w, size(in), add ? 1.0f : 0.0f, dx, size(in));
  }
}

/* Four rows at a time: sums are read and written less often. */
WEFT_GPT_INLINE void column_sums_body(bool fused, uint64_t rows, uint64_t out, const float *dy,
                                      float *db) {
  (void)fused;
  uint64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const float *a = dy + r * out;
    for (uint64_t i = 0; i < out; i++) {
      db[i] += (a[i] + a[i + out]) + (a[i + 2 * out] + a[i + 3 * out]);
    }
  }
  for (; r < rows; r++) {
    for (uint64_t i = 0; i < out; i++) {
      db[i] += dy[r * out + i];
    }
  }
}
WEFT_GPT_VARIANTS(column_sums, (uint64_t rows, uint64_t out, const float *dy, float *restrict db),
                  rows, out, dy, db)

void weft_gpt_linear_backward_weight(uint64_t rows, uint64_t in, uint64_t out, const float *x,
                                     const float *dy, float *dw, float *db) {
  assert(dw != NULL);
  const struct weft_gpt_gemm product = {.m = out,
                                        .n = in,
                                        .k = rows,
                                        .a = dy,
                                        .a_stride = out,
                                        .a_transposed = true,
                                        .b = x,
                                        .b_stride = in,
                                        .from = dw,
                                        .c = dw,
                                        .sums = db};
  if (multiply_avx512(&product)) {
    return;
  }
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, size(out), size(in), size(rows), 1.0f, dy,
              size(out), x, size(in), 1.0f, dw, size(in));
  if (db != NULL) {
    column_sums(rows, out, dy, db);
  }
}
