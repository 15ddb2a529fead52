/* The matrix product with AVX-512. A panel of b, 256 deep and 32 columns wide, is packed into the
 * L1 cache; strips of up to 14 rows of a are multiplied with it one after the other, with their 28
 * vectors of sums in registers, while b's next panel is prefetched.
 *
 * Why not a library: MKL does these shapes well, but is not free software. OpenBLAS, on a
 * microbatch's few hundred rows, spends a seventh of its time on packing, and needs a pass
 * before it that writes into c what it adds to. Here biases, residuals and accumulated gradients
 * are added when the sums are stored, and the sums of a's rows are computed while a is packed.
 * docs/benchmarks.md has the figures. */
#include "trainer/kernels/gemm_avx512.h"

#include <assert.h>
#include <stddef.h>

#include "trainer/kernels/simd.h"

#ifdef __x86_64__
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")))

enum {
  LANES = 16,
  STRIP = 14,                          /* rows */
  PANEL = 2 * LANES,                   /* columns */
  DEPTH = 256,                         /* of both */
  STRIPS = 19,                         /* that are copied at once */
  STRIP_FLOATS = LANES * DEPTH + LANES /* no power of two: strips map to different cache sets */
};
_Static_assert(DEPTH % 4 == 0, "sums go by four, across blocks");

/* The packed panel of b and strips of a. */
struct copies {
  _Alignas(64) float panel[DEPTH * PANEL];
  _Alignas(64) float strips[STRIPS * STRIP_FLOATS];
};

/* Where a strip's sums go: columns from j on, as far as the masks let them. */
struct corner {
  float *c;
  const float *from, *bias; /* as in weft_gpt_gemm */
  uint64_t stride;          /* of c and from */
  __mmask16 left, right;
  const float *next;    /* lines of b that are fetched meanwhile, one in eight steps ... */
  uint64_t next_stride; /* ... so far apart */
};

WEFT_GPT_INLINE __mmask16 mask_of(uint64_t lanes) {
  return (__mmask16)(lanes < LANES ? (1u << lanes) - 1u : 0xffffu);
}

/* ---- A strip by a panel ---- */

/* One instruction that multiplies by a float in memory and adds. From intrinsics compilers
 * make two, a load and a product, because the float is used twice; but when another
 * hyperthread shares the core, the number of instructions is the limit. */
#define FUSE(sum, vector, value) \
  __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(vector), "m"(value))
#define FUSE_VECTORS(sum, vector, value) \
  __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(vector), "v"(value))

/* clang-format off */
#define EACH_ROW(ROW, u)                                                                    \
  ROW(0, u) ROW(1, u) ROW(2, u) ROW(3, u) ROW(4, u) ROW(5, u) ROW(6, u) ROW(7, u) ROW(8, u) \
  ROW(9, u) ROW(10, u) ROW(11, u) ROW(12, u) ROW(13, u)
/* clang-format on */

#define FETCH(r, u)                                                               \
  if (r < rows) {                                                                 \
    _mm_prefetch((const char *)(to->from + r * to->stride), _MM_HINT_T0);         \
    _mm_prefetch((const char *)(to->from + r * to->stride + LANES), _MM_HINT_T0); \
  }
#define BEGIN(r, u) __m512 left##r = _mm512_setzero_ps(), right##r = _mm512_setzero_ps();
/* Loads have a limit too: every fourth row takes two instructions. */
#define MULTIPLY(r, u)                                     \
  if (r < rows && r % 4 != 3) {                            \
    FUSE(left##r, b_left, a[u * LANES + r]);               \
    FUSE(right##r, b_right, a[u * LANES + r]);             \
  } else if (r < rows) {                                   \
    const __m512 value = _mm512_set1_ps(a[u * LANES + r]); \
    FUSE_VECTORS(left##r, b_left, value);                  \
    FUSE_VECTORS(right##r, b_right, value);                \
  }
#define STEP(u)                                                   \
  {                                                               \
    const __m512 b_left = _mm512_load_ps(b + u * PANEL);          \
    const __m512 b_right = _mm512_load_ps(b + u * PANEL + LANES); \
    EACH_ROW(MULTIPLY, u)                                         \
  }
#define ADD(r, u)                                                                       \
  if (r < rows) {                                                                       \
    const float *from = to->from + r * to->stride;                                      \
    left##r = _mm512_add_ps(_mm512_maskz_loadu_ps(to->left, from), left##r);            \
    right##r = _mm512_add_ps(_mm512_maskz_loadu_ps(to->right, from + LANES), right##r); \
  }
#define FINISH(r, u)                                                                  \
  if (r < rows) {                                                                     \
    float *c = to->c + r * to->stride;                                                \
    _mm512_mask_storeu_ps(c, to->left, _mm512_add_ps(left##r, bias_left));            \
    _mm512_mask_storeu_ps(c + LANES, to->right, _mm512_add_ps(right##r, bias_right)); \
  }

/* `rows` is a constant. */
AVX512 WEFT_GPT_INLINE void strip(const uint64_t rows, const float *a, const float *b,
                                  uint64_t depth, const struct corner *to) {
  if (to->from != NULL) {
    EACH_ROW(FETCH, 0)
  }
  EACH_ROW(BEGIN, 0)
  const float *next = to->next;
  uint64_t k = 0;
  for (; k + 8 <= depth; k += 8, a += 8 * LANES, b += 8 * PANEL, next += to->next_stride) {
    _mm_prefetch((const char *)next, _MM_HINT_T1);
    STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7)
  }
  for (; k < depth; k++, a += LANES, b += PANEL) {
    STEP(0)
  }
  __m512 bias_left = _mm512_setzero_ps(), bias_right = _mm512_setzero_ps();
  if (to->bias != NULL) {
    bias_left = _mm512_maskz_loadu_ps(to->left, to->bias);
    bias_right = _mm512_maskz_loadu_ps(to->right, to->bias + LANES);
  }
  if (to->from != NULL) {
    EACH_ROW(ADD, 0)
  }
  EACH_ROW(FINISH, 0)
}

typedef void strip_product(const float *a, const float *b, uint64_t depth, const struct corner *to);

#define DEFINE_ROWS(rows)                                                         \
  AVX512 static void strip_##rows(const float *a, const float *b, uint64_t depth, \
                                  const struct corner *to) {                      \
    strip(rows, a, b, depth, to);                                                 \
  }
DEFINE_ROWS(1)
DEFINE_ROWS(2)
DEFINE_ROWS(3)
DEFINE_ROWS(4)
DEFINE_ROWS(5)
DEFINE_ROWS(6)
DEFINE_ROWS(7)
DEFINE_ROWS(8)
DEFINE_ROWS(9)
DEFINE_ROWS(10)
DEFINE_ROWS(11)
DEFINE_ROWS(12)
DEFINE_ROWS(13)
DEFINE_ROWS(14)

static strip_product *const strip_products[STRIP] = {
    strip_1, strip_2, strip_3,  strip_4,  strip_5,  strip_6,  strip_7,
    strip_8, strip_9, strip_10, strip_11, strip_12, strip_13, strip_14};

/* ---- Dividing rows into strips evenly ---- */

/* Rows [first, first + rows) of c and a, steps [depth_first, depth_first + depth) of a
 * and b. */
struct block {
  uint64_t first, rows, depth_first, depth;
  uint64_t strips, least; /* each has `least` rows, the first ones have one more, to use up all */
};

static struct block block_of(uint64_t first, uint64_t rows) {
  const uint64_t strips = (rows + STRIP - 1) / STRIP;
  return (struct block){.first = first, .rows = rows, .strips = strips, .least = rows / strips};
}

/* The first row of strip s, counted from the block's. */
static uint64_t strip_first(const struct block *block, uint64_t s) {
  const uint64_t larger = block->rows - block->strips * block->least;
  return s * block->least + (s < larger ? s : larger);
}

/* ---- Squares of 16 x 16, transposed ---- */

/* Four rows of the result, from vectors whose quarter q is of line 4 q + i. */
AVX512 WEFT_GPT_INLINE void turn_quarters(const __m512 from[4], float *to,
                                          const uint64_t to_stride) {
  const __m512 low01 = _mm512_unpacklo_ps(from[0], from[1]);
  const __m512 high01 = _mm512_unpackhi_ps(from[0], from[1]);
  const __m512 low23 = _mm512_unpacklo_ps(from[2], from[3]);
  const __m512 high23 = _mm512_unpackhi_ps(from[2], from[3]);
  _mm512_store_ps(to, _mm512_shuffle_ps(low01, low23, 0x44));
  _mm512_store_ps(to + to_stride, _mm512_shuffle_ps(low01, low23, 0xee));
  _mm512_store_ps(to + 2 * to_stride, _mm512_shuffle_ps(high01, high23, 0x44));
  _mm512_store_ps(to + 3 * to_stride, _mm512_shuffle_ps(high01, high23, 0xee));
}

#define QUARTER(i, t, q)                                                                  \
  quarters[t][i] = _mm512_mask_broadcast_f32x4(quarters[t][i], (__mmask16)(0xf << 4 * q), \
                                               _mm_loadu_ps(line + 4 * t));
#define LINE(i, q)                                                          \
  {                                                                         \
    const float *line = x + (4 * q + i < last ? 4 * q + i : last) * stride; \
    QUARTER(i, 0, q) QUARTER(i, 1, q) QUARTER(i, 2, q) QUARTER(i, 3, q)     \
  }
#define FOUR_LINES(q) LINE(0, q) LINE(1, q) LINE(2, q) LINE(3, q)

/* to[k, i] = x[i, k]; of i beyond `last`, the last one again. What a line has is read at
 * once: lines may be so far apart that they share one place in the cache. */
AVX512 WEFT_GPT_INLINE void turn_square(const float *x, uint64_t stride, uint64_t last, float *to,
                                        const uint64_t to_stride) {
  __m512 quarters[4][4];
  for (int i = 0; i < LANES; i++) {
    quarters[i / 4][i % 4] = _mm512_setzero_ps();
  }
  FOUR_LINES(0)
  FOUR_LINES(1)
  FOUR_LINES(2)
  FOUR_LINES(3)
  turn_quarters(quarters[0], to, to_stride);
  turn_quarters(quarters[1], to + 4 * to_stride, to_stride);
  turn_quarters(quarters[2], to + 8 * to_stride, to_stride);
  turn_quarters(quarters[3], to + 12 * to_stride, to_stride);
}

/* The same for `lines` <= 16 lines of any length. */
AVX512 WEFT_GPT_INLINE void turn_lines(const float *x, uint64_t stride, uint64_t lines,
                                       uint64_t length, float *to, const uint64_t to_stride) {
  uint64_t k = 0;
  for (; k + LANES <= length; k += LANES) {
    turn_square(x + k, stride, lines - 1, to + k * to_stride, to_stride);
  }
  for (; k < length; k++) {
    for (uint64_t i = 0; i < LANES; i++) {
      to[k * to_stride + i] = i < lines ? x[i * stride + k] : 0.0f;
    }
  }
}

/* ---- Packing a ---- */

AVX512 static void copy_rows(const struct weft_gpt_gemm *p, const struct block *block,
                             float *strips) {
  for (uint64_t s = 0; s < block->strips; s++) {
    const uint64_t first = strip_first(block, s), rows = strip_first(block, s + 1) - first;
    const float *from = p->a + (block->first + first) * p->a_stride + block->depth_first;
    turn_lines(from, p->a_stride, rows, block->depth, strips + s * STRIP_FLOATS, LANES);
  }
}

/* Up to four steps of one strip; the sums of a's rows on the way. */
AVX512 WEFT_GPT_INLINE void copy_steps(const uint64_t steps, const float *from, uint64_t stride,
                                       __mmask16 mask, float *to, float *sums) {
  __m512 values[4];
  for (uint64_t k = 0; k < 4; k++) {
    values[k] = k < steps ? _mm512_maskz_loadu_ps(mask, from + k * stride) : _mm512_setzero_ps();
    if (k < steps) {
      _mm512_store_ps(to + k * LANES, values[k]);
    }
  }
  if (sums != NULL) {
    const __m512 sum =
        _mm512_add_ps(_mm512_add_ps(values[0], values[1]), _mm512_add_ps(values[2], values[3]));
    _mm512_mask_storeu_ps(sums, mask, _mm512_add_ps(_mm512_maskz_loadu_ps(mask, sums), sum));
  }
}

/* By depth, in the order of a's memory. */
AVX512 static void copy_turned(const struct weft_gpt_gemm *p, const struct block *block,
                               float *strips) {
  for (uint64_t k = 0; k < block->depth; k += 4) {
    const float *from = p->a + (block->depth_first + k) * p->a_stride + block->first;
    for (uint64_t s = 0; s < block->strips; s++) {
      const uint64_t first = strip_first(block, s);
      const __mmask16 mask = mask_of(strip_first(block, s + 1) - first);
      float *to = strips + s * STRIP_FLOATS + k * LANES;
      float *sums = p->sums != NULL ? p->sums + block->first + first : NULL;
      if (k + 4 <= block->depth) {
        copy_steps(4, from + first, p->a_stride, mask, to, sums);
      } else {
        for (uint64_t i = 0; i < block->depth - k; i++) {
          copy_steps(1, from + first + i * p->a_stride, 0, mask, to + i * LANES, sums);
        }
      }
    }
  }
}

/* ---- Packing b ---- */

AVX512 static void copy_panel(const float *b, uint64_t stride, uint64_t depth, uint64_t columns,
                              float *panel) {
  const __mmask16 left = mask_of(columns), right = mask_of(columns > LANES ? columns - LANES : 0);
  for (uint64_t k = 0; k < depth; k++, b += stride, panel += PANEL) {
    _mm512_store_ps(panel, _mm512_maskz_loadu_ps(left, b));
    _mm512_store_ps(panel + LANES, _mm512_maskz_loadu_ps(right, b + LANES));
  }
}

AVX512 static void turn_panel(const float *b, uint64_t stride, uint64_t depth, uint64_t columns,
                              float *panel) {
  turn_lines(b, stride, columns < LANES ? columns : LANES, depth, panel, PANEL);
  if (columns > LANES) {
    turn_lines(b + LANES * stride, stride, columns - LANES, depth, panel + LANES, PANEL);
  }
}

/* ---- A block ---- */

/* Where block and panel begin in b. */
static const float *source_of(const struct weft_gpt_gemm *p, uint64_t depth_first,
                              uint64_t column) {
  return p->b_transposed ? p->b + column * p->b_stride + depth_first
                         : p->b + depth_first * p->b_stride + column;
}

/* The panel after this one: of this block, or of the next in depth; or this one. */
static const float *source_after(const struct weft_gpt_gemm *p, const struct block *block,
                                 uint64_t column) {
  if (column + PANEL < p->n) {
    return source_of(p, block->depth_first, column + PANEL);
  }
  return block->depth_first + DEPTH < p->k ? source_of(p, block->depth_first + DEPTH, 0)
                                           : source_of(p, block->depth_first, column);
}

/* A panel has as many lines as sixteen strips fetch; the others begin again. */
static const float *share_of(const struct weft_gpt_gemm *p, const float *source, uint64_t s) {
  s %= LANES;
  return p->b_transposed ? source + s * LANES
                         : source + s / 2 * (DEPTH / 8) * p->b_stride + s % 2 * LANES;
}

static void multiply_panel(const struct weft_gpt_gemm *p, const struct block *block,
                           const struct copies *copies, uint64_t column) {
  const uint64_t columns = p->n - column;
  const float *next = source_after(p, block, column);
  const bool first = block->depth_first == 0;
  const float *from = first ? p->from : p->c;
  for (uint64_t s = 0; s < block->strips; s++) {
    const uint64_t row = strip_first(block, s), rows = strip_first(block, s + 1) - row;
    const uint64_t at = (block->first + row) * p->n + column;
    const struct corner to = {.c = p->c + at,
                              .from = from != NULL ? from + at : NULL,
                              .bias = first && p->bias != NULL ? p->bias + column : NULL,
                              .stride = p->n,
                              .left = mask_of(columns),
                              .right = mask_of(columns > LANES ? columns - LANES : 0),
                              .next = share_of(p, next, s),
                              .next_stride = p->b_stride};
    strip_products[rows - 1](copies->strips + s * STRIP_FLOATS, copies->panel, block->depth, &to);
  }
}

static void multiply_block(const struct weft_gpt_gemm *p, const struct block *block,
                           struct copies *copies) {
  (p->a_transposed ? copy_turned : copy_rows)(p, block, copies->strips);
  for (uint64_t j = 0; j < p->n; j += PANEL) {
    const uint64_t columns = p->n - j < PANEL ? p->n - j : PANEL;
    (p->b_transposed ? turn_panel : copy_panel)(source_of(p, block->depth_first, j), p->b_stride,
                                                block->depth, columns, copies->panel);
    multiply_panel(p, block, copies, j);
  }
}

static void multiply_blocks(const struct weft_gpt_gemm *p) {
  struct copies copies;
  const uint64_t blocks = (p->m + STRIPS * STRIP - 1) / (STRIPS * STRIP);
  for (uint64_t i = 0; i < blocks; i++) {
    const uint64_t first = p->m * i / blocks;
    struct block block = block_of(first, p->m * (i + 1) / blocks - first);
    for (uint64_t k = 0; k < p->k; k += DEPTH) {
      block.depth_first = k;
      block.depth = p->k - k < DEPTH ? p->k - k : DEPTH;
      multiply_block(p, &block, &copies);
    }
  }
}

bool weft_gpt_gemm_avx512(const struct weft_gpt_gemm *product) {
  assert(product->a != NULL && product->b != NULL && product->c != NULL);
  if (!weft_gpt_has_avx512()) {
    return false;
  }
  multiply_blocks(product);
  return true;
}
#else
bool weft_gpt_gemm_avx512(const struct weft_gpt_gemm *product) {
  (void)product;
  return false;
}
#endif
