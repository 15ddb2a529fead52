/* The list of matrix products. It repeats what model/layer_*.c and the kernels do;
 * trainer/tests/test_gpt_flops.c compares it with the calls of a training step. */
#include "trainer/bench/flops.h"

#include <assert.h>
#include <cblas.h>

#include <weft/support.h>

#include "trainer/kernels/gemm_tile.h"
#include "trainer/model/aligned_memory.h"

struct listing {
  uint32_t sequences, tokens, rows, channels, heads, width;
  weft_bench_gemm_visit *visit;
  void *context;
};

/* ---- Linear layers: y[R, out] = x[R, in] w[out, in]^T ---- */

static void list_forward(const struct listing *to, uint32_t in, uint32_t out, bool adds) {
  to->visit(to->context, &(struct weft_bench_gemm_shape){.transposed_b = true,
                                                         .adds = adds,
                                                         .m = to->rows,
                                                         .n = out,
                                                         .k = in,
                                                         .a_stride = in,
                                                         .b_stride = in,
                                                         .c_stride = out});
}

static void list_backward_input(const struct listing *to, uint32_t in, uint32_t out) {
  to->visit(to->context,
            &(struct weft_bench_gemm_shape){
                .m = to->rows, .n = in, .k = out, .a_stride = out, .b_stride = in, .c_stride = in});
}

static void list_backward_weight(const struct listing *to, uint32_t in, uint32_t out) {
  to->visit(to->context, &(struct weft_bench_gemm_shape){.transposed_a = true,
                                                         .adds = true,
                                                         .m = out,
                                                         .n = in,
                                                         .k = to->rows,
                                                         .a_stride = out,
                                                         .b_stride = in,
                                                         .c_stride = in});
}

/* ---- Attention: tiles on and below the diagonal ---- */

enum { TILE = WEFT_GPT_TILE, GROUP = WEFT_GPT_TILE_GROUP };

static uint32_t tile_size(const struct listing *to, uint32_t first) {
  return to->tokens - first < TILE ? to->tokens - first : TILE;
}

/* Rows from `first` on that are taken together. */
static uint32_t group_size(bool diagonal, uint32_t rows, uint32_t first) {
  return diagonal && rows - first > GROUP ? GROUP : rows - first;
}

/* Queries or gradients of y, times keys or values. */
static void list_scores(const struct listing *to, uint32_t row, uint32_t column,
                        uint32_t a_stride) {
  const uint32_t rows = tile_size(to, row);
  for (uint32_t r = 0, n; r < rows; r += n) {
    n = group_size(row == column, rows, r);
    to->visit(to->context,
              &(struct weft_bench_gemm_shape){.small = true,
                                              .m = n,
                                              .n = row == column ? r + n : tile_size(to, column),
                                              .k = to->width,
                                              .a_stride = a_stride,
                                              .b_stride = TILE,
                                              .c_stride = TILE});
  }
}

/* Scores times rows of width D. */
static void list_matmul(const struct listing *to, uint32_t row, uint32_t column,
                        uint32_t c_stride) {
  const uint32_t rows = tile_size(to, row);
  for (uint32_t r = 0, n; r < rows; r += n) {
    n = group_size(row == column, rows, r);
    to->visit(to->context,
              &(struct weft_bench_gemm_shape){.small = true,
                                              .adds = column > 0,
                                              .m = n,
                                              .n = to->width,
                                              .k = row == column ? r + n : tile_size(to, column),
                                              .a_stride = TILE,
                                              .b_stride = to->width,
                                              .c_stride = c_stride});
  }
}

/* The same with the scores transposed. */
static void list_matmul_transposed(const struct listing *to, uint32_t row, uint32_t column) {
  const bool diagonal = row == column;
  const uint32_t rows = tile_size(to, row), columns = tile_size(to, column);
  for (uint32_t c = 0, n; c < columns; c += n) {
    n = group_size(diagonal, columns, c);
    to->visit(to->context, &(struct weft_bench_gemm_shape){.small = true,
                                                           .transposed_a = true,
                                                           .adds = !diagonal,
                                                           .m = n,
                                                           .n = to->width,
                                                           .k = rows - (diagonal ? c : 0),
                                                           .a_stride = TILE,
                                                           .b_stride = to->width,
                                                           .c_stride = 3 * to->channels});
  }
}

static void list_attention(const struct listing *to) {
  for (uint32_t row = 0; row < to->tokens; row += TILE) {
    for (uint32_t column = 0; column <= row; column += TILE) {
      list_scores(to, row, column, 3 * to->channels);
      list_matmul(to, row, column, to->channels);
    }
  }
}

static void list_attention_input(const struct listing *to) {
  for (uint32_t column = 0; column < to->tokens; column += TILE) {
    for (uint32_t row = column; row < to->tokens; row += TILE) {
      list_scores(to, row, column, to->width);
      list_scores(to, row, column, to->width);
      list_matmul_transposed(to, row, column);
      list_matmul_transposed(to, row, column);
      list_matmul(to, row, column, 3 * to->channels);
    }
  }
}

static void list_heads(const struct listing *to, void (*list)(const struct listing *to)) {
  for (uint32_t k = 0; k < to->sequences * to->heads; k++) {
    list(to);
  }
}

/* ---- Layers ---- */

static void list_block_forward(const struct listing *to) {
  const uint32_t c = to->channels;
  list_forward(to, c, 3 * c, true);
  list_heads(to, list_attention);
  list_forward(to, c, c, true);
  list_forward(to, c, 4 * c, true);
  list_forward(to, 4 * c, c, true);
}

static void list_block_input(const struct listing *to) {
  const uint32_t c = to->channels;
  list_backward_input(to, 4 * c, c);
  list_backward_input(to, c, 4 * c);
  list_backward_input(to, c, c);
  list_heads(to, list_attention_input);
  list_backward_input(to, c, 3 * c);
}

static void list_block_weight(const struct listing *to) {
  const uint32_t c = to->channels;
  list_backward_weight(to, 4 * c, c);
  list_backward_weight(to, c, 4 * c);
  list_backward_weight(to, c, c);
  list_backward_weight(to, c, 3 * c);
}

void weft_bench_list_gemms(const struct weft_gpt_config *config, uint64_t sequences,
                           uint64_t tokens, weft_bench_gemm_visit *visit, void *context) {
  assert(visit != NULL);
  const struct listing to = {.sequences = (uint32_t)sequences,
                             .tokens = (uint32_t)tokens,
                             .rows = (uint32_t)(sequences * tokens),
                             .channels = config->dim,
                             .heads = config->heads,
                             .width = config->dim / config->heads,
                             .visit = visit,
                             .context = context};
  for (uint32_t k = 0; k < config->blocks; k++) {
    list_block_forward(&to);
  }
  list_forward(&to, config->dim, config->vocabulary, false);
  list_backward_input(&to, config->dim, config->vocabulary);
  for (uint32_t k = 0; k < config->blocks; k++) {
    list_block_input(&to);
  }
  list_backward_weight(&to, config->dim, config->vocabulary);
  for (uint32_t k = 0; k < config->blocks; k++) {
    list_block_weight(&to);
  }
}

static void add_operations(void *context, const struct weft_bench_gemm_shape *product) {
  *(double *)context += 2.0 * product->m * product->n * product->k;
}

double weft_bench_flops(const struct weft_gpt_config *config, uint64_t sequences, uint64_t tokens) {
  double operations = 0;
  weft_bench_list_gemms(config, sequences, tokens, add_operations, &operations);
  return operations;
}

/* ---- Bare ---- */

struct weft_bench_bare {
  const struct weft_allocator *allocator;
  struct weft_gpt_config config;
  uint64_t sequences, tokens;
  uint64_t floats[3];
  float *operands[3];
};

static void enlarge(uint64_t *floats, uint64_t rows, uint64_t columns, uint64_t stride) {
  const uint64_t needed = (rows - 1) * stride + columns;
  *floats = needed > *floats ? needed : *floats;
}

static void measure_operands(void *context, const struct weft_bench_gemm_shape *product) {
  struct weft_bench_bare *bare = context;
  const bool ta = product->transposed_a, tb = product->transposed_b;
  enlarge(&bare->floats[0], ta ? product->k : product->m, ta ? product->m : product->k,
          product->a_stride);
  enlarge(&bare->floats[1], tb ? product->n : product->k, tb ? product->k : product->n,
          product->b_stride);
  enlarge(&bare->floats[2], product->m, product->n, product->c_stride);
}

enum weft_status weft_bench_bare_create(const struct weft_allocator *allocator,
                                        const struct weft_gpt_config *config, uint64_t sequences,
                                        uint64_t tokens, struct weft_bench_bare **out,
                                        struct weft_error *error) {
  assert(sequences > 0 && tokens > 0 && out != NULL);
  struct weft_bench_bare *bare = weft_gpt_allocate(allocator, 1, sizeof *bare);
  if (bare == NULL) {
    return weft_fail_memory(error, sizeof *bare);
  }
  *bare = (struct weft_bench_bare){
      .allocator = allocator, .config = *config, .sequences = sequences, .tokens = tokens};
  weft_bench_list_gemms(config, sequences, tokens, measure_operands, bare);
  for (int k = 0; k < 3; k++) {
    bare->operands[k] = weft_gpt_allocate(allocator, bare->floats[k], sizeof(float));
    if (bare->operands[k] == NULL) {
      const uint64_t floats = bare->floats[k];
      weft_bench_bare_destroy(bare);
      return weft_fail_memory(error, floats * sizeof(float));
    }
    for (uint64_t i = 0; i < bare->floats[k]; i++) { /* no sum of them is ever subnormal */
      bare->operands[k][i] = 0.001f * (float)(1 + i % 13);
    }
  }
  *out = bare;
  return WEFT_OK;
}

static void multiply_small(const struct weft_bench_bare *bare,
                           const struct weft_bench_gemm_shape *product) {
  const bool turned = product->transposed_a;
  const struct weft_gpt_gemm_tile tile = {.a = bare->operands[0],
                                          .a_row = turned ? 1 : product->a_stride,
                                          .a_step = turned ? product->a_stride : 1,
                                          .b = bare->operands[1],
                                          .b_step = product->b_stride,
                                          .c = bare->operands[2],
                                          .c_row = product->c_stride};
  weft_gpt_gemm_tile_run(&tile, product->m, product->n, product->k, product->adds);
}

static void multiply(void *context, const struct weft_bench_gemm_shape *product) {
  const struct weft_bench_bare *bare = context;
  if (product->small) {
    multiply_small(bare, product);
    return;
  }
  cblas_sgemm(CblasRowMajor, product->transposed_a ? CblasTrans : CblasNoTrans,
              product->transposed_b ? CblasTrans : CblasNoTrans, (blasint)product->m,
              (blasint)product->n, (blasint)product->k, 1.0f, bare->operands[0],
              (blasint)product->a_stride, bare->operands[1], (blasint)product->b_stride,
              product->adds ? 1.0f : 0.0f, bare->operands[2], (blasint)product->c_stride);
}

void weft_bench_bare_run(struct weft_bench_bare *bare) {
  assert(bare != NULL);
  weft_bench_list_gemms(&bare->config, bare->sequences, bare->tokens, multiply, bare);
}

void weft_bench_bare_destroy(struct weft_bench_bare *bare) {
  if (bare == NULL) {
    return;
  }
  for (int k = 0; k < 3; k++) {
    weft_gpt_free(bare->allocator, bare->operands[k]);
  }
  weft_gpt_free(bare->allocator, bare);
}
