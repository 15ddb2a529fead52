/* Causal self-attention without a T x T matrix: queries and keys are taken in tiles, forward with
 * a running softmax, backward with probabilities recomputed from the forward's log_sums (Dao et
 * al., FlashAttention, 2022). Tiles above the diagonal are skipped; in a tile on it, a group of
 * rows goes as far as its last row sees.
 *
 * A head's q, k and v have stride 3 C in qkv, its y has stride C: rows so far apart fall into few
 * sets of the L1 cache, so operands that are read often are copied together first, or transposed
 * where a product runs over their columns. */
#include <assert.h>
#include <math.h>

#include "trainer/kernels/gemm_tile.h"
#include "trainer/kernels/kernels.h"
#include "trainer/kernels/simd.h"

#define TILE WEFT_GPT_TILE
#define GROUP WEFT_GPT_TILE_GROUP

/* One head of one sequence. */
struct head {
  uint64_t tokens, width;        /* T, D */
  uint64_t qkv_stride, y_stride; /* 3 C, C */
  const float *q, *k, *v;
  const float *y, *dy;   /* backward */
  const float *log_sums; /* [T], backward */
  float scale;           /* of scores: 1 / sqrt(D) */
};

static struct head head_of(uint64_t sequence, uint64_t index, uint64_t tokens, uint64_t channels,
                           uint64_t heads, const float *qkv) {
  const uint64_t width = channels / heads;
  const float *q = qkv + sequence * tokens * 3 * channels + index * width;
  return (struct head){.tokens = tokens,
                       .width = width,
                       .qkv_stride = 3 * channels,
                       .y_stride = channels,
                       .q = q,
                       .k = q + channels,
                       .v = q + 2 * channels,
                       .scale = 1.0f / sqrtf((float)width)};
}

/* Queries [row, row + rows) with keys [column, column + columns). */
struct pair {
  uint64_t row, rows, column, columns;
};

static uint64_t tile_size(uint64_t tokens, uint64_t first) {
  return tokens - first < TILE ? tokens - first : TILE;
}

static struct pair pair_of(const struct head *head, uint64_t row, uint64_t column) {
  return (struct pair){row, tile_size(head->tokens, row), column, tile_size(head->tokens, column)};
}

/* Rows of a group from row r on: all, but for tiles on the diagonal. */
static uint64_t group_size(const struct pair *pair, uint64_t r) {
  const uint64_t left = pair->rows - r;
  return pair->row == pair->column && left > GROUP ? GROUP : left;
}

/* Columns that one of the first `rows` rows sees. */
static uint64_t reach(const struct pair *pair, uint64_t rows) {
  return pair->row == pair->column ? rows : pair->columns;
}

typedef float quad __attribute__((vector_size(4 * sizeof(float))));

/* transposed[d, j] = factor x[j, d], for four of each. */
static void transpose_quads(const float *x, uint64_t stride, float factor, float *transposed) {
  quad rows[4];
  for (uint64_t j = 0; j < 4; j++) {
    memcpy(&rows[j], x + j * stride, sizeof rows[j]);
    rows[j] *= factor;
  }
  const quad low01 = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
  const quad high01 = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
  const quad low23 = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
  const quad high23 = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
  const quad columns[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                           __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                           __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                           __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
  for (uint64_t d = 0; d < 4; d++) {
    memcpy(transposed + d * TILE, &columns[d], sizeof columns[d]);
  }
}

/* The same for `rows` rows of x. */
static void transpose(uint64_t rows, uint64_t width, const float *x, uint64_t stride, float factor,
                      float *transposed) {
  const uint64_t full_rows = rows / 4 * 4, full_width = width / 4 * 4;
  for (uint64_t j = 0; j < rows; j++) {
    uint64_t d = 0;
    for (; j % 4 == 0 && j < full_rows && d < full_width; d += 4) {
      transpose_quads(x + j * stride + d, stride, factor, transposed + d * TILE + j);
    }
    for (d = j < full_rows ? full_width : 0; d < width; d++) {
      transposed[d * TILE + j] = factor * x[j * stride + d];
    }
  }
}

/* s[i, j] = x[i] . transposed[., j], rows of x being queries' (q, or dy). */
static void scores(const struct head *head, const struct pair *pair, const float *x,
                   uint64_t stride, const float *transposed, float *s) {
  for (uint64_t r = 0, n; r < pair->rows; r += n) {
    n = group_size(pair, r);
    struct weft_gpt_gemm_tile tile = {.a = x + (pair->row + r) * stride,
                                      .a_row = stride,
                                      .a_step = 1,
                                      .b = transposed,
                                      .b_step = TILE,
                                      .c_row = TILE};
    tile.c = s + r * TILE;
    weft_gpt_gemm_tile_run(&tile, n, reach(pair, r + n), head->width, false);
  }
}

/* to[i] (+)= sum over keys j of s[i, j] x[j], x being the tile's k or v, gathered. */
static void matmul(const struct head *head, const struct pair *pair, const float *s, const float *x,
                   float *to, uint64_t to_stride, bool add) {
  for (uint64_t r = 0, n; r < pair->rows; r += n) {
    n = group_size(pair, r);
    struct weft_gpt_gemm_tile tile = {.a = s + r * TILE,
                                      .a_row = TILE,
                                      .a_step = 1,
                                      .b = x,
                                      .b_step = head->width,
                                      .c_row = to_stride};
    tile.c = to + r * to_stride;
    weft_gpt_gemm_tile_run(&tile, n, head->width, reach(pair, r + n), add);
  }
}

/* to[j] (+)= sum over queries i of s[i, j] x[i], x being the head's q or dy, gathered. A
 * group of keys on the diagonal is seen by the queries from its first on. */
static void matmul_transposed(const struct head *head, const struct pair *pair, const float *s,
                              const float *x, float *to, uint64_t to_stride, bool add) {
  const bool diagonal = pair->row == pair->column;
  for (uint64_t c = 0, n; c < pair->columns; c += n) {
    n = diagonal ? group_size(pair, c) : pair->columns;
    const uint64_t r = diagonal ? c : 0;
    struct weft_gpt_gemm_tile tile = {.a = s + r * TILE + c,
                                      .a_row = 1,
                                      .a_step = TILE,
                                      .b = x + (pair->row + r) * head->width,
                                      .b_step = head->width,
                                      .c_row = to_stride};
    tile.c = to + c * to_stride;
    weft_gpt_gemm_tile_run(&tile, n, head->width, pair->rows - r, add);
  }
}

static void gather(uint64_t rows, uint64_t width, const float *from, uint64_t stride, float *to) {
  for (uint64_t r = 0; r < rows; r++) {
    memcpy(to + r * width, from + r * stride, width * sizeof *to);
  }
}

/* ---- Forward ---- */

/* The state of a tile's rows: largest score and sum of exponentials so far. */
struct running {
  float max[TILE], sum[TILE];
};

/* Row r of a tile: the columns that the query sees, and those that its group computes. */
struct visible {
  uint64_t seen, columns;
};

WEFT_GPT_INLINE struct visible visible_of(const struct pair *pair, uint64_t r) {
  const bool diagonal = pair->row == pair->column;
  const uint64_t group = (r / GROUP + 1) * GROUP;
  return (struct visible){diagonal ? r + 1 : pair->columns,
                          diagonal && group < pair->columns ? group : pair->columns};
}

/* Scores of masked columns get an exponential of 0. So loops over a group's columns run over
 * full vectors. */
WEFT_GPT_INLINE void mask(struct visible visible, float *s) {
  for (uint64_t i = visible.seen; i < visible.columns; i++) {
    s[i] = -3.0e38f;
  }
}

/* One row of scores becomes exponentials; y so far shrinks when the largest score grows. */
WEFT_GPT_INLINE void softmax_row(bool fused, uint64_t columns, uint64_t width, float *restrict s,
                                 float *restrict max, float *restrict sum, float *restrict y) {
  const float top = weft_gpt_array_max(columns, s, *max);
  for (uint64_t i = 0; i < columns; i++) {
    s[i] = weft_gpt_exp_below(fused, s[i] - top);
  }
  const float shrink = weft_gpt_exp_below(fused, *max - top);
  *sum = *sum * shrink + weft_gpt_array_sum(columns, s);
  *max = top;
  if (shrink != 1.0f) {
    for (uint64_t i = 0; i < width; i++) {
      y[i] *= shrink;
    }
  }
}

WEFT_GPT_INLINE void softmax_body(bool fused, const struct pair *pair, uint64_t width, float *s,
                                  struct running *running, float *y, uint64_t y_stride) {
  for (uint64_t r = 0; r < pair->rows; r++) {
    const struct visible visible = visible_of(pair, r);
    mask(visible, s + r * TILE);
    softmax_row(fused, visible.columns, width, s + r * TILE, &running->max[r], &running->sum[r],
                y + r * y_stride);
  }
}
WEFT_GPT_VARIANTS(softmax,
                  (const struct pair *pair, uint64_t width, float *s, struct running *running,
                   float *y, uint64_t y_stride),
                  pair, width, s, running, y, y_stride)

static void forward_tile(const struct head *head, uint64_t row, const float *transposed,
                         const float *v, float *s, float *y, float *log_sums) {
  struct running running;
  const uint64_t rows = tile_size(head->tokens, row), width = head->width;
  for (uint64_t r = 0; r < rows; r++) {
    running.max[r] = -3.0e38f;
    running.sum[r] = 0.0f;
  }
  for (uint64_t column = 0; column <= row; column += TILE) {
    const struct pair pair = pair_of(head, row, column);
    scores(head, &pair, head->q, head->qkv_stride, transposed + column * width, s);
    softmax(&pair, column == 0 ? 0 : width, s, &running, y, head->y_stride);
    matmul(head, &pair, s, v + column * width, y, head->y_stride, column != 0);
  }
  for (uint64_t r = 0; r < rows; r++) {
    weft_gpt_scale(width, 1.0f / running.sum[r], y + r * head->y_stride);
    log_sums[r] = running.max[r] + logf(running.sum[r]);
  }
}

static void forward_head(const struct head *head, float *scratch, float *y, float *log_sums) {
  float *s = scratch, *v = s + TILE * TILE, *transposed = v + head->tokens * head->width;
  gather(head->tokens, head->width, head->v, head->qkv_stride, v);
  for (uint64_t column = 0; column < head->tokens; column += TILE) {
    transpose(tile_size(head->tokens, column), head->width, head->k + column * head->qkv_stride,
              head->qkv_stride, head->scale, transposed + column * head->width);
  }
  for (uint64_t row = 0; row < head->tokens; row += TILE) {
    forward_tile(head, row, transposed, v, s, y + row * head->y_stride, log_sums + row);
  }
}

void weft_gpt_attention(uint64_t sequences, uint64_t tokens, uint64_t channels, uint64_t heads,
                        const float *qkv, float *y, float *log_sums, float *scratch) {
  assert(heads > 0 && channels % heads == 0);
  for (uint64_t b = 0; b < sequences; b++) {
    for (uint64_t h = 0; h < heads; h++) {
      const struct head head = head_of(b, h, tokens, channels, heads, qkv);
      forward_head(&head, scratch, y + b * tokens * channels + h * head.width,
                   log_sums + (b * heads + h) * tokens);
    }
  }
}

/* ---- Backward ---- */

/* Scratch of one head's backward. */
struct workspace {
  float *p, *ds;                          /* [TILE, TILE] */
  float *k_transposed, *v_transposed, *k; /* [D, TILE] twice, [TILE, D]: of one tile of keys */
  float *q, *dy;                          /* [T, D] */
  float *delta;                           /* [T] */
};

static struct workspace carve(float *scratch, uint64_t tokens, uint64_t width) {
  struct workspace work;
  work.p = scratch;
  work.ds = work.p + TILE * TILE;
  work.k_transposed = work.ds + TILE * TILE;
  work.v_transposed = work.k_transposed + TILE * width;
  work.k = work.v_transposed + TILE * width;
  work.q = work.k + TILE * width;
  work.dy = work.q + tokens * width;
  work.delta = work.dy + tokens * width;
  return work;
}

/* The backward's; the forward needs less: a tile of scores, v, and k transposed, which is
 * less than a tile longer than k. */
uint64_t weft_gpt_attention_scratch(uint64_t tokens, uint64_t channels, uint64_t heads) {
  assert(heads > 0 && channels % heads == 0);
  const uint64_t width = channels / heads;
  return 2 * TILE * TILE + 3 * TILE * width + 2 * tokens * width + tokens;
}

/* delta[t] = dy[t] . y[t]: what the softmax's gradient subtracts. */
WEFT_GPT_INLINE void deltas_body(bool fused, const struct head *head, float *delta) {
  (void)fused;
  for (uint64_t t = 0; t < head->tokens; t++) {
    const float *a = head->y + t * head->y_stride, *b = head->dy + t * head->y_stride;
    weft_gpt_simd sum = {0}, u, v;
    uint64_t i = 0;
    for (; i + WEFT_GPT_SIMD_WIDTH <= head->width; i += WEFT_GPT_SIMD_WIDTH) {
      weft_gpt_simd_load(&u, a + i);
      weft_gpt_simd_load(&v, b + i);
      sum += u * v;
    }
    delta[t] = weft_gpt_simd_sum(&sum);
    for (; i < head->width; i++) {
      delta[t] += a[i] * b[i];
    }
  }
}
WEFT_GPT_VARIANTS(deltas, (const struct head *head, float *delta), head, delta)

/* A row of scores becomes probabilities p; a row of dy v^T becomes the gradient of the
 * scores, with the scale in it. */
WEFT_GPT_INLINE void softmax_backward_row(bool fused, uint64_t columns, float log_sum, float delta,
                                          float scale, float *restrict p, float *restrict ds) {
  for (uint64_t i = 0; i < columns; i++) {
    p[i] = weft_gpt_exp_below(fused, p[i] - log_sum);
    ds[i] = p[i] * ((ds[i] - delta) * scale);
  }
}

WEFT_GPT_INLINE void softmax_backward_body(bool fused, const struct pair *pair,
                                           const float *log_sums, const float *delta, float scale,
                                           float *p, float *ds) {
  for (uint64_t r = 0; r < pair->rows; r++) {
    const struct visible visible = visible_of(pair, r);
    mask(visible, p + r * TILE);
    softmax_backward_row(fused, visible.columns, log_sums[r], delta[r], scale, p + r * TILE,
                         ds + r * TILE);
  }
}
WEFT_GPT_VARIANTS(softmax_backward,
                  (const struct pair *pair, const float *log_sums, const float *delta, float scale,
                   float *p, float *ds),
                  pair, log_sums, delta, scale, p, ds)

/* Where the gradients of one head go, with the strides of q, k and v. */
struct gradients {
  float *dq, *dk, *dv;
};

static void backward_pair(const struct head *head, const struct workspace *work,
                          const struct pair *pair, const struct gradients *to) {
  const uint64_t stride = head->qkv_stride, width = head->width;
  const bool add = pair->row != pair->column; /* a tile of keys begins on the diagonal */
  scores(head, pair, work->q, width, work->k_transposed, work->p);
  scores(head, pair, work->dy, width, work->v_transposed, work->ds);
  softmax_backward(pair, head->log_sums + pair->row, work->delta + pair->row, head->scale, work->p,
                   work->ds);
  matmul_transposed(head, pair, work->p, work->dy, to->dv + pair->column * stride, stride, add);
  matmul_transposed(head, pair, work->ds, work->q, to->dk + pair->column * stride, stride, add);
  matmul(head, pair, work->ds, work->k, to->dq + pair->row * stride, stride, pair->column != 0);
}

/* All of q, and each tile's k and v, are copied before a gradient is written: dqkv may be qkv. */
static void backward_head(const struct head *head, const struct workspace *work,
                          const struct gradients *to) {
  const uint64_t stride = head->qkv_stride, width = head->width;
  deltas(head, work->delta);
  gather(head->tokens, width, head->q, stride, work->q);
  gather(head->tokens, width, head->dy, head->y_stride, work->dy);
  for (uint64_t column = 0; column < head->tokens; column += TILE) {
    const uint64_t columns = tile_size(head->tokens, column);
    gather(columns, width, head->k + column * stride, stride, work->k);
    transpose(columns, width, head->k + column * stride, stride, head->scale, work->k_transposed);
    transpose(columns, width, head->v + column * stride, stride, 1.0f, work->v_transposed);
    for (uint64_t row = column; row < head->tokens; row += TILE) {
      const struct pair pair = pair_of(head, row, column);
      backward_pair(head, work, &pair, to);
    }
  }
}

void weft_gpt_attention_backward(uint64_t sequences, uint64_t tokens, uint64_t channels,
                                 uint64_t heads, const float *qkv, const float *y,
                                 const float *log_sums, const float *dy, float *dqkv,
                                 float *scratch) {
  assert(heads > 0 && channels % heads == 0);
  const struct workspace work = carve(scratch, tokens, channels / heads);
  for (uint64_t b = 0; b < sequences; b++) {
    for (uint64_t h = 0; h < heads; h++) {
      struct head head = head_of(b, h, tokens, channels, heads, qkv);
      const uint64_t first = b * tokens * channels + h * head.width;
      float *dq = dqkv + b * tokens * 3 * channels + h * head.width;
      head.y = y + first;
      head.dy = dy + first;
      head.log_sums = log_sums + (b * heads + h) * tokens;
      const struct gradients to = {dq, dq + channels, dq + 2 * channels};
      backward_head(&head, &work, &to);
    }
  }
}
