/* Products of tiles: a strip of rows and two vectors of columns stay in registers while
 * the sums over k run. The ends of rows are masked. Written with intrinsics, because no
 * C that gcc and clang both take, without -ffast-math, becomes fused multiply-adds here;
 * without AVX2 it is sgemm again. */
#include "trainer/kernels/gemm_tile.h"

#include <assert.h>
#include <cblas.h>

#include "trainer/kernels/simd.h"

#ifdef __x86_64__
#include <immintrin.h>

/* A strip of `rows` (a constant), columns [j, j + 2 widths) as far as the masks go. */
#define DEFINE_STRIP(isa, features, vector, mask, width, load, store, zero, fill, fuse)    \
  __attribute__((target(features))) WEFT_GPT_INLINE void isa##_strip(                      \
      const uint64_t rows, const struct weft_gpt_gemm_tile *t, uint64_t i, uint64_t j,     \
      uint64_t depth, mask left, mask right, bool add) {                                   \
    vector sums[8][2];                                                                     \
    const float *a = t->a + i * t->a_row, *b = t->b + j;                                   \
    float *c = t->c + i * t->c_row + j;                                                    \
    _Pragma("GCC unroll 8") for (uint64_t r = 0; r < rows; r++) {                          \
      sums[r][0] = add ? load(left, c + r * t->c_row) : zero();                            \
      sums[r][1] = add ? load(right, c + r * t->c_row + width) : zero();                   \
    }                                                                                      \
    for (uint64_t k = 0; k < depth; k++, a += t->a_step, b += t->b_step) {                 \
      const vector b0 = load(left, b), b1 = load(right, b + width);                        \
      _Pragma("GCC unroll 8") for (uint64_t r = 0; r < rows; r++) {                        \
        const vector value = fill(a[r * t->a_row]);                                        \
        sums[r][0] = fuse(value, b0, sums[r][0]);                                          \
        sums[r][1] = fuse(value, b1, sums[r][1]);                                          \
      }                                                                                    \
    }                                                                                      \
    _Pragma("GCC unroll 8") for (uint64_t r = 0; r < rows; r++) {                          \
      store(c + r * t->c_row, left, sums[r][0]);                                           \
      store(c + r * t->c_row + width, right, sums[r][1]);                                  \
    }                                                                                      \
  }                                                                                        \
  __attribute__((target(features))) static void isa##_product(                             \
      const struct weft_gpt_gemm_tile *t, uint64_t rows, uint64_t columns, uint64_t depth, \
      uint64_t strip, bool add) {                                                          \
    for (uint64_t j = 0; j < columns; j += 2 * width) {                                    \
      const mask left = isa##_mask(columns - j);                                           \
      const mask right = isa##_mask(columns - j > width ? columns - j - width : 0);        \
      uint64_t i = 0;                                                                      \
      for (; strip == 8 && i + 8 <= rows; i += 8) {                                        \
        isa##_strip(8, t, i, j, depth, left, right, add);                                  \
      }                                                                                    \
      for (; i + 4 <= rows; i += 4) {                                                      \
        isa##_strip(4, t, i, j, depth, left, right, add);                                  \
      }                                                                                    \
      for (; i < rows; i++) {                                                              \
        isa##_strip(1, t, i, j, depth, left, right, add);                                  \
      }                                                                                    \
    }                                                                                      \
  }

__attribute__((target("avx512f"))) WEFT_GPT_INLINE __mmask16 avx512_mask(uint64_t lanes) {
  return (__mmask16)(lanes < 16 ? (1u << lanes) - 1u : 0xffffu);
}
#define LOAD_512(mask, from) _mm512_maskz_loadu_ps(mask, from)
#define STORE_512(to, mask, value) _mm512_mask_storeu_ps(to, mask, value)
DEFINE_STRIP(avx512, "avx512f", __m512, __mmask16, 16, LOAD_512, STORE_512, _mm512_setzero_ps,
             _mm512_set1_ps, _mm512_fmadd_ps)

__attribute__((target("avx2,fma"))) WEFT_GPT_INLINE __m256i avx2_mask(uint64_t lanes) {
  static const int32_t window[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return _mm256_loadu_si256((const __m256i *)(const void *)(window + 8 - (lanes < 8 ? lanes : 8)));
}
#define LOAD_256(mask, from) _mm256_maskload_ps(from, mask)
#define STORE_256(to, mask, value) _mm256_maskstore_ps(to, mask, value)
DEFINE_STRIP(avx2, "avx2,fma", __m256, __m256i, 8, LOAD_256, STORE_256, _mm256_setzero_ps,
             _mm256_set1_ps, _mm256_fmadd_ps)
#endif

static void sgemm_product(const struct weft_gpt_gemm_tile *t, uint64_t rows, uint64_t columns,
                          uint64_t depth, bool add) {
  const bool by_rows = t->a_step == 1;
  cblas_sgemm(CblasRowMajor, by_rows ? CblasNoTrans : CblasTrans, CblasNoTrans, (blasint)rows,
              (blasint)columns, (blasint)depth, 1.0f, t->a,
              (blasint)(by_rows ? t->a_row : t->a_step), t->b, (blasint)t->b_step,
              add ? 1.0f : 0.0f, t->c, (blasint)t->c_row);
}

void weft_gpt_gemm_tile_run(const struct weft_gpt_gemm_tile *tile, uint64_t rows, uint64_t columns,
                            uint64_t depth, bool add) {
  assert(tile->a_row == 1 || tile->a_step == 1);
#ifdef __x86_64__
  if (weft_gpt_has_avx512()) { /* 32 registers: 16 sums */
    avx512_product(tile, rows, columns, depth, 8, add);
    return;
  }
  if (weft_gpt_has_avx2()) { /* 16 registers: 8 sums */
    avx2_product(tile, rows, columns, depth, 4, add);
    return;
  }
#endif
  sgemm_product(tile, rows, columns, depth, add);
}
