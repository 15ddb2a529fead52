/* Products with weights. All work is sgemm's; what is left, biases and residuals, is
 * laid into y first, so that the product adds to it and no pass comes after. */
#include <cblas.h>
#include <string.h>

#include "gpt/kernels.h"
#include "gpt/lanes.h"

static blasint size(uint64_t n) { return (blasint)n; }

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

static void multiply(uint64_t rows, uint64_t in, uint64_t out, const float *x, const float *w,
                     float beta, float *y) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, size(rows), size(out), size(in), 1.0f, x,
              size(in), w, size(in), beta, y, size(out));
}

void weft_gpt_linear(uint64_t rows, uint64_t in, uint64_t out, const float *x, const float *w,
                     const float *b, float *y) {
  if (b != NULL) {
    for (uint64_t r = 0; r < rows; r++) {
      memcpy(y + r * out, b, out * sizeof *y);
    }
  }
  multiply(rows, in, out, x, w, b != NULL ? 1.0f : 0.0f, y);
}

void weft_gpt_linear_residual(uint64_t rows, uint64_t in, uint64_t out, const float *x,
                              const float *w, const float *b, const float *residual, float *y) {
  fill(rows, out, residual, b, y);
  multiply(rows, in, out, x, w, 1.0f, y);
}

void weft_gpt_linear_input(uint64_t rows, uint64_t in, uint64_t out, const float *dy,
                           const float *w, float *dx, bool add) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, size(rows), size(in), size(out), 1.0f, dy,
              size(out), w, size(in), add ? 1.0f : 0.0f, dx, size(in));
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

void weft_gpt_linear_weight(uint64_t rows, uint64_t in, uint64_t out, const float *x,
                            const float *dy, float *dw, float *db) {
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, size(out), size(in), size(rows), 1.0f, dy,
              size(out), x, size(in), 1.0f, dw, size(in));
  if (db != NULL) {
    column_sums(rows, out, dy, db);
  }
}
