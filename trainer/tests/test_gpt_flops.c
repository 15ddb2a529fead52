/* The list of products against the calls that a training step really makes: this
 * program has a cblas_sgemm(), a weft_gpt_gemm_avx512() and a weft_gpt_gemm_tile_run() of
 * its own, which write them down. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <cblas.h>

#include <weft/weft.h>

#include "trainer/bench/flops.h"
#include "trainer/kernels/gemm_avx512.h"
#include "trainer/kernels/gemm_tile.h"
#include "trainer/train/trainer.h"

enum { CALLS_MAX = 100000 };

struct calls {
  struct weft_bench_gemm_shape list[CALLS_MAX];
  size_t count;
};

static struct calls made, listed;

/* Instead of OpenBLAS's. Results do not matter here. */
void cblas_sgemm(OPENBLAS_CONST enum CBLAS_ORDER Order, OPENBLAS_CONST enum CBLAS_TRANSPOSE TransA,
                 OPENBLAS_CONST enum CBLAS_TRANSPOSE TransB, OPENBLAS_CONST blasint M,
                 OPENBLAS_CONST blasint N, OPENBLAS_CONST blasint K, OPENBLAS_CONST float alpha,
                 OPENBLAS_CONST float *A, OPENBLAS_CONST blasint lda, OPENBLAS_CONST float *B,
                 OPENBLAS_CONST blasint ldb, OPENBLAS_CONST float beta, float *C,
                 OPENBLAS_CONST blasint ldc) {
  (void)Order, (void)alpha, (void)A, (void)B;
  struct weft_bench_gemm_shape product;
  memset(&product, 0, sizeof product); /* the gaps are compared too */
  product.transposed_a = TransA == CblasTrans;
  product.transposed_b = TransB == CblasTrans;
  product.adds = beta != 0.0f;
  product.m = (uint32_t)M, product.n = (uint32_t)N, product.k = (uint32_t)K;
  product.a_stride = (uint32_t)lda, product.b_stride = (uint32_t)ldb;
  product.c_stride = (uint32_t)ldc;
  for (blasint r = 0; r < M && beta == 0.0f; r++) {
    memset(C + r * ldc, 0, (size_t)N * sizeof *C);
  }
  assert_true(made.count < CALLS_MAX);
  made.list[made.count++] = product;
}

/* As the sgemm that it replaces. */
bool weft_gpt_gemm_avx512(const struct weft_gpt_gemm *wide) {
  struct weft_bench_gemm_shape product;
  memset(&product, 0, sizeof product);
  product.transposed_a = wide->a_transposed;
  product.transposed_b = wide->b_transposed;
  product.adds = wide->from != NULL || wide->bias != NULL;
  product.m = (uint32_t)wide->m, product.n = (uint32_t)wide->n, product.k = (uint32_t)wide->k;
  product.a_stride = (uint32_t)wide->a_stride, product.b_stride = (uint32_t)wide->b_stride;
  product.c_stride = (uint32_t)wide->n;
  memset(wide->c, 0, wide->m * wide->n * sizeof *wide->c);
  assert_true(made.count < CALLS_MAX);
  made.list[made.count++] = product;
  return true;
}

void weft_gpt_gemm_tile_run(const struct weft_gpt_gemm_tile *tile, uint64_t rows, uint64_t columns,
                            uint64_t depth, bool add) {
  struct weft_bench_gemm_shape product;
  memset(&product, 0, sizeof product);
  product.small = true;
  product.transposed_a = tile->a_step != 1;
  product.adds = add;
  product.m = (uint32_t)rows, product.n = (uint32_t)columns, product.k = (uint32_t)depth;
  product.a_stride = (uint32_t)(product.transposed_a ? tile->a_step : tile->a_row);
  product.b_stride = (uint32_t)tile->b_step, product.c_stride = (uint32_t)tile->c_row;
  for (uint64_t r = 0; r < rows && !add; r++) {
    memset(tile->c + r * tile->c_row, 0, columns * sizeof *tile->c);
  }
  assert_true(made.count < CALLS_MAX);
  made.list[made.count++] = product;
}

static void write_down(void *context, const struct weft_bench_gemm_shape *product) {
  struct calls *calls = context;
  struct weft_bench_gemm_shape *to = &calls->list[calls->count++];
  assert_true(calls->count < CALLS_MAX);
  memset(to, 0, sizeof *to);
  to->small = product->small;
  to->transposed_a = product->transposed_a;
  to->transposed_b = product->transposed_b;
  to->adds = product->adds;
  to->m = product->m, to->n = product->n, to->k = product->k;
  to->a_stride = product->a_stride, to->b_stride = product->b_stride;
  to->c_stride = product->c_stride;
}

static int compare(const void *a, const void *b) {
  return memcmp(a, b, sizeof(struct weft_bench_gemm_shape));
}

static void train_step(const struct weft_gpt_config *config, uint32_t microbatches,
                       uint64_t sequences) {
  static uint8_t text[4096];
  const struct weft_gpt_dataset dataset = {.bytes = text, .size = sizeof text, .train_size = 3600};
  struct weft_gpt_trainer_options options = {.training = {.config = *config,
                                                          .batch = sequences * microbatches,
                                                          .microbatches = microbatches,
                                                          .rate = 1e-3,
                                                          .beta1 = 0.9,
                                                          .beta2 = 0.95,
                                                          .epsilon = 1e-8,
                                                          .total_steps = 1},
                                             .dataset = &dataset,
                                             .ranks = 1,
                                             .schedule = "1F1B",
                                             .transport = "loopback"};
  struct weft_gpt_trainer *trainer;
  struct weft_error error;
  assert_int_equal(weft_gpt_trainer_create(&options, &trainer, &error), WEFT_OK);
  assert_int_equal(weft_gpt_trainer_run(trainer, &error), WEFT_OK);
  weft_gpt_trainer_destroy(trainer);
}

static void check(struct weft_gpt_config config, uint64_t sequences) {
  enum { MICROBATCHES = 2 };
  config.vocabulary = WEFT_GPT_VOCABULARY;
  made.count = listed.count = 0;
  train_step(&config, MICROBATCHES, sequences);
  for (int k = 0; k < MICROBATCHES; k++) {
    weft_bench_list_gemms(&config, sequences, config.context, write_down, &listed);
  }
  assert_int_equal(made.count, listed.count);
  qsort(made.list, made.count, sizeof made.list[0], compare);
  qsort(listed.list, listed.count, sizeof listed.list[0], compare);
  for (size_t k = 0; k < made.count; k++) {
    assert_memory_equal(&made.list[k], &listed.list[k], sizeof made.list[0]);
  }
}

static void test_every_call_is_listed(void **state) {
  (void)state;
  check((struct weft_gpt_config){.blocks = 3, .dim = 32, .heads = 4, .context = 16}, 1);
  check((struct weft_gpt_config){.blocks = 2, .dim = 24, .heads = 3, .context = 64}, 2);
  check((struct weft_gpt_config){.blocks = 1, .dim = 16, .heads = 2, .context = 200}, 3);
}

/* By hand, for one tile: 6 operations per weight and token, and seven products of the
 * attention's tile, of which four groups see 1, 2, 3 and 4 quarters. */
static void test_operations(void **state) {
  (void)state;
  const struct weft_gpt_config config = {
      .blocks = 2, .dim = 32, .heads = 4, .context = 64, .vocabulary = WEFT_GPT_VOCABULARY};
  const double weights = 2.0 * 12 * 32 * 32 + 256 * 32;
  const double tokens = 3 * 64, attention = 2.0 * 3 * 4 * 7 * 2 * 64 * 64 * 8 * 10 / 16;
  assert_true(weft_bench_flops(&config, 3, 64) == 6 * weights * tokens + attention);
}

/* Under AddressSanitizer: no operand is too small. (Here with the counting product.) */
static void test_bare(void **state) {
  (void)state;
  const struct weft_gpt_config config = {
      .blocks = 2, .dim = 32, .heads = 4, .context = 100, .vocabulary = WEFT_GPT_VOCABULARY};
  struct weft_bench_bare *bare;
  struct weft_error error;
  assert_int_equal(weft_bench_bare_create(NULL, &config, 2, 100, &bare, &error), WEFT_OK);
  made.count = listed.count = 0;
  weft_bench_bare_run(bare);
  weft_bench_list_gemms(&config, 2, 100, write_down, &listed);
  assert_int_equal(made.count, listed.count);
  assert_memory_equal(made.list, listed.list, made.count * sizeof made.list[0]);
  weft_bench_bare_destroy(bare);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_call_is_listed),
                                     cmocka_unit_test(test_operations),
                                     cmocka_unit_test(test_bare)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
