/* Causal self-attention without a T x T matrix: queries and keys are taken in tiles,
 * forward with a running softmax, backward with the probabilities computed again from
 * the forward's log_sums (Dao et al., FlashAttention, 2022). Products of tiles are
 * sgemm's. Tiles above the diagonal are skipped.
 *
 * A head's q, k and v lie with stride 3 C in qkv, its y with stride C. */
#include <cblas.h>
#include <math.h>

#include "gpt/kernels.h"
#include "gpt/lanes.h"

#define TILE 64

/* One head of one sequence. */
struct head {
  uint64_t tokens, width;        /* T, D */
  uint64_t qkv_stride, y_stride; /* 3 C, C */
  const float *q, *k, *v;
  const float *y, *dy;
  const float *log_sums; /* [T] */
  float scale;
};

static uint64_t tile_size(uint64_t tokens, uint64_t first) {
  return tokens - first < TILE ? tokens - first : TILE;
}

/* Scores of `rows` queries from `row` on against `columns` keys from `column` on. */
static void scores(const struct head *head, uint64_t row, uint64_t rows, uint64_t column,
                   uint64_t columns, float *s) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)rows, (blasint)columns,
              (blasint)head->width, head->scale, head->q + row * head->qkv_stride,
              (blasint)head->qkv_stride, head->k + column * head->qkv_stride,
              (blasint)head->qkv_stride, 0.0f, s, TILE);
}

/* Keys of a tile that a query sees: all, or those up to itself on the diagonal. */
static uint64_t visible(uint64_t query, uint64_t column, uint64_t columns) {
  const uint64_t seen = query + 1 - column;
  return seen < columns ? seen : columns;
}

/* ---- Forward ---- */

/* The state of a tile's rows: largest score and sum of exponentials so far. */
struct running {
  float max[TILE], sum[TILE];
};

/* One row of scores becomes exponentials, 0 where nothing is seen; y so far shrinks when
 * the largest score grows. */
WEFT_GPT_INLINE void soften_body(bool fused, uint64_t seen, uint64_t columns, uint64_t width,
                                 float *restrict s, float *restrict max, float *restrict sum,
                                 float *restrict y) {
  const float top = weft_gpt_array_max(seen, s, *max);
  for (uint64_t i = 0; i < seen; i++) {
    s[i] = weft_gpt_exp(fused, s[i] - top);
  }
  for (uint64_t i = seen; i < columns; i++) {
    s[i] = 0.0f;
  }
  const float shrink = weft_gpt_exp(fused, *max - top);
  *sum = *sum * shrink + weft_gpt_array_sum(columns, s);
  *max = top;
  for (uint64_t i = 0; i < width; i++) {
    y[i] *= shrink;
  }
}
WEFT_GPT_VARIANTS(soften,
                  (uint64_t seen, uint64_t columns, uint64_t width, float *s, float *max,
                   float *sum, float *y),
                  seen, columns, width, s, max, sum, y)

static void forward_tile(const struct head *head, uint64_t row, float *y, float *log_sums,
                         float *s) {
  const uint64_t rows = tile_size(head->tokens, row);
  struct running running;
  for (uint64_t r = 0; r < rows; r++) {
    running.max[r] = -3.0e38f;
    running.sum[r] = 0.0f;
    memset(y + r * head->y_stride, 0, head->width * sizeof *y);
  }
  for (uint64_t column = 0; column <= row; column += TILE) {
    const uint64_t columns = tile_size(head->tokens, column);
    scores(head, row, rows, column, columns, s);
    for (uint64_t r = 0; r < rows; r++) {
      soften(visible(row + r, column, columns), columns, head->width, s + r * TILE, &running.max[r],
             &running.sum[r], y + r * head->y_stride);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)rows, (blasint)head->width,
                (blasint)columns, 1.0f, s, TILE, head->v + column * head->qkv_stride,
                (blasint)head->qkv_stride, 1.0f, y, (blasint)head->y_stride);
  }
  for (uint64_t r = 0; r < rows; r++) {
    weft_gpt_scale(head->width, 1.0f / running.sum[r], y + r * head->y_stride);
    log_sums[r] = running.max[r] + logf(running.sum[r]);
  }
}

void weft_gpt_attention(uint64_t sequences, uint64_t tokens, uint64_t channels, uint64_t heads,
                        const float *qkv, float *y, float *log_sums, float *scratch) {
  const uint64_t width = channels / heads;
  for (uint64_t i = 0; i < sequences * heads; i++) {
    const uint64_t first = i / heads * tokens, place = i % heads * width;
    const float *q = qkv + first * 3 * channels + place;
    const struct head head = {.tokens = tokens,
                              .width = width,
                              .qkv_stride = 3 * channels,
                              .y_stride = channels,
                              .q = q,
                              .k = q + channels,
                              .v = q + 2 * channels,
                              .scale = 1.0f / sqrtf((float)width)};
    for (uint64_t row = 0; row < tokens; row += TILE) {
      forward_tile(&head, row, y + (first + row) * channels + place, log_sums + i * tokens + row,
                   scratch);
    }
  }
}

/* ---- Backward ---- */

/* delta[t] = dy[t] . y[t]: what the softmax's gradient subtracts. */
WEFT_GPT_INLINE void deltas_body(bool fused, const struct head *head, float *delta) {
  (void)fused;
  for (uint64_t t = 0; t < head->tokens; t++) {
    const float *a = head->y + t * head->y_stride, *b = head->dy + t * head->y_stride;
    weft_gpt_lanes sum = {0}, u, v;
    uint64_t i = 0;
    for (; i + WEFT_GPT_LANES <= head->width; i += WEFT_GPT_LANES) {
      weft_gpt_lanes_load(&u, a + i);
      weft_gpt_lanes_load(&v, b + i);
      sum += u * v;
    }
    delta[t] = weft_gpt_lanes_sum(&sum);
    for (; i < head->width; i++) {
      delta[t] += a[i] * b[i];
    }
  }
}
WEFT_GPT_VARIANTS(deltas, (const struct head *head, float *delta), head, delta)

/* A row of scores becomes probabilities p; a row of dy v^T becomes the gradient of the
 * scores, with the scale in it. */
WEFT_GPT_INLINE void harden_body(bool fused, uint64_t seen, uint64_t columns, float log_sum,
                                 float delta, float scale, float *restrict p, float *restrict ds) {
  for (uint64_t i = 0; i < seen; i++) {
    p[i] = weft_gpt_exp(fused, p[i] - log_sum);
    ds[i] = p[i] * ((ds[i] - delta) * scale);
  }
  for (uint64_t i = seen; i < columns; i++) {
    p[i] = 0.0f;
    ds[i] = 0.0f;
  }
}
WEFT_GPT_VARIANTS(harden,
                  (uint64_t seen, uint64_t columns, float log_sum, float delta, float scale,
                   float *p, float *ds),
                  seen, columns, log_sum, delta, scale, p, ds)

/* What one head's backward works in. dk and dv are those of one tile of keys. */
struct workspace {
  float *p, *ds;  /* [TILE, TILE] */
  float *dk, *dv; /* [TILE, D] */
  float *dq;      /* [T, D] */
  float *delta;   /* [T] */
};

/* Queries [row, row + rows) with keys [column, column + columns). */
static void backward_tile(const struct head *head, const struct workspace *work, uint64_t row,
                          uint64_t column, uint64_t columns) {
  const uint64_t rows = tile_size(head->tokens, row);
  const blasint n = (blasint)rows, m = (blasint)columns, d = (blasint)head->width;
  const blasint qkv_stride = (blasint)head->qkv_stride, y_stride = (blasint)head->y_stride;
  const float *dy = head->dy + row * head->y_stride;
  scores(head, row, rows, column, columns, work->p);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, m, d, 1.0f, dy, y_stride,
              head->v + column * head->qkv_stride, qkv_stride, 0.0f, work->ds, TILE);
  for (uint64_t r = 0; r < rows; r++) {
    harden(visible(row + r, column, columns), columns, head->log_sums[row + r],
           work->delta[row + r], head->scale, work->p + r * TILE, work->ds + r * TILE);
  }
  const float keep = row == column ? 0.0f : 1.0f;
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, m, d, n, 1.0f, work->p, TILE, dy, y_stride,
              keep, work->dv, d);
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, m, d, n, 1.0f, work->ds, TILE,
              head->q + row * head->qkv_stride, qkv_stride, keep, work->dk, d);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, d, m, 1.0f, work->ds, TILE,
              head->k + column * head->qkv_stride, qkv_stride, column == 0 ? 0.0f : 1.0f,
              work->dq + row * head->width, d);
}

static void put_rows(uint64_t rows, uint64_t width, const float *from, uint64_t stride, float *to) {
  for (uint64_t r = 0; r < rows; r++) {
    memcpy(to + r * stride, from + r * width, width * sizeof *to);
  }
}

/* A tile's k and v are not looked at again once their gradients are complete, nor any q
 * at the end: so dqkv may be qkv. */
static void backward_head(const struct head *head, const struct workspace *work, float *dq,
                          float *dk, float *dv) {
  deltas(head, work->delta);
  for (uint64_t column = 0; column < head->tokens; column += TILE) {
    const uint64_t columns = tile_size(head->tokens, column);
    for (uint64_t row = column; row < head->tokens; row += TILE) {
      backward_tile(head, work, row, column, columns);
    }
    put_rows(columns, head->width, work->dk, head->qkv_stride, dk + column * head->qkv_stride);
    put_rows(columns, head->width, work->dv, head->qkv_stride, dv + column * head->qkv_stride);
  }
  put_rows(head->tokens, head->width, work->dq, head->qkv_stride, dq);
}

static struct workspace carve(float *scratch, uint64_t tokens, uint64_t width) {
  struct workspace work = {.p = scratch};
  work.ds = work.p + TILE * TILE;
  work.dk = work.ds + TILE * TILE;
  work.dv = work.dk + TILE * width;
  work.dq = work.dv + TILE * width;
  work.delta = work.dq + tokens * width;
  return work;
}

uint64_t weft_gpt_attention_scratch(uint64_t tokens, uint64_t channels, uint64_t heads) {
  const uint64_t width = channels / heads;
  return 2 * TILE * TILE + 2 * TILE * width + tokens * width + tokens;
}

void weft_gpt_attention_input(uint64_t sequences, uint64_t tokens, uint64_t channels,
                              uint64_t heads, const float *qkv, const float *y,
                              const float *log_sums, const float *dy, float *dqkv, float *scratch) {
  const uint64_t width = channels / heads;
  const struct workspace work = carve(scratch, tokens, width);
  for (uint64_t i = 0; i < sequences * heads; i++) {
    const uint64_t first = i / heads * tokens, place = i % heads * width;
    const float *q = qkv + first * 3 * channels + place;
    float *dq = dqkv + first * 3 * channels + place;
    const struct head head = {.tokens = tokens,
                              .width = width,
                              .qkv_stride = 3 * channels,
                              .y_stride = channels,
                              .q = q,
                              .k = q + channels,
                              .v = q + 2 * channels,
                              .y = y + first * channels + place,
                              .dy = dy + first * channels + place,
                              .log_sums = log_sums + i * tokens,
                              .scale = 1.0f / sqrtf((float)width)};
    backward_head(&head, &work, dq, dq + channels, dq + 2 * channels);
  }
}
