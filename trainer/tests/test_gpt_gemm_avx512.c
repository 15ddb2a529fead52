/* The product with AVX-512: an element depends on its row of a and its column of b and on
 * nothing else, and no byte beside the operands is touched. That the values are right is
 * in test_gpt_kernels.c. Without AVX-512 the product must say so and do nothing. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "support_gpt_reference.h"
#include "trainer/kernels/gemm_avx512.h"

static bool has_product(void) {
  const float one = 1.0f;
  float c = 7.0f;
  const struct weft_gpt_gemm product = {
      .m = 1, .n = 1, .k = 1, .a = &one, .a_stride = 1, .b = &one, .b_stride = 1, .c = &c};
  const bool has = weft_gpt_gemm_avx512(&product);
  assert_true(c == (has ? 1.0f : 7.0f));
  return has;
}

/* ---- Floats between two pages that nobody may touch ---- */

struct fenced {
  char *pages;
  size_t bytes;
  float *at;
};

/* They end where the second begins, or begin where the first ends. */
static struct fenced fence(uint64_t seed, uint64_t count, bool at_end) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  const size_t bytes = count * sizeof(float), inner = (bytes + page - 1) / page * page;
  struct fenced fenced = {.bytes = inner + 2 * page};
  fenced.pages =
      mmap(NULL, fenced.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(fenced.pages != MAP_FAILED);
  assert_int_equal(mprotect(fenced.pages, page, PROT_NONE), 0);
  assert_int_equal(mprotect(fenced.pages + page + inner, page, PROT_NONE), 0);
  fenced.at = (float *)(void *)(fenced.pages + page + (at_end ? inner - bytes : 0));
  reference_random(seed, 1.0, count, fenced.at);
  return fenced;
}

static void unfence(const struct fenced *fenced) {
  assert_int_equal(munmap(fenced->pages, fenced->bytes), 0);
}

struct operands {
  struct fenced a, b, c, bias, sums;
};

static struct operands make_operands(uint64_t m, uint64_t n, uint64_t k, bool at_end) {
  return (struct operands){.a = fence(1, m * k, at_end),
                           .b = fence(2, k * n, at_end),
                           .c = fence(3, m * n, at_end),
                           .bias = fence(4, n, at_end),
                           .sums = fence(5, m, at_end)};
}

static void free_operands(const struct operands *o) {
  unfence(&o->a);
  unfence(&o->b);
  unfence(&o->c);
  unfence(&o->bias);
  unfence(&o->sums);
}

static struct weft_gpt_gemm product_of(const struct operands *o, uint64_t m, uint64_t n, uint64_t k,
                                       bool a_transposed, bool b_transposed) {
  return (struct weft_gpt_gemm){.m = m,
                                .n = n,
                                .k = k,
                                .a = o->a.at,
                                .b = o->b.at,
                                .a_stride = a_transposed ? m : k,
                                .b_stride = b_transposed ? k : n,
                                .a_transposed = a_transposed,
                                .b_transposed = b_transposed,
                                .from = o->c.at,
                                .bias = o->bias.at,
                                .c = o->c.at,
                                .sums = a_transposed ? o->sums.at : NULL};
}

/* ---- The whole, and each of its elements alone ---- */

static float element(const struct weft_gpt_gemm *whole, const float *start, uint64_t i,
                     uint64_t j) {
  float c = start[i * whole->n + j];
  struct weft_gpt_gemm one = *whole;
  one.m = one.n = 1;
  one.a += whole->a_transposed ? i : i * whole->a_stride;
  one.b += whole->b_transposed ? j * whole->b_stride : j;
  one.from = one.c = &c;
  one.bias += j;
  one.sums = NULL;
  assert_true(weft_gpt_gemm_avx512(&one));
  return c;
}

/* Some of them, when there are many. */
static void check_elements(const struct weft_gpt_gemm *whole, const float *start) {
  const uint64_t count = whole->m * whole->n, step = count < 600 ? 1 : count / 599;
  for (uint64_t at = 0; at < count; at += step) {
    const float alone = element(whole, start, at / whole->n, at % whole->n);
    assert_memory_equal(&whole->c[at], &alone, sizeof alone);
  }
}

static void check_product(uint64_t m, uint64_t n, uint64_t k, bool a_transposed,
                          bool b_transposed) {
  float *start = malloc(m * n * sizeof *start);
  assert_non_null(start);
  reference_random(3, 1.0, m * n, start);
  struct operands low = make_operands(m, n, k, false), high = make_operands(m, n, k, true);
  const struct weft_gpt_gemm first = product_of(&low, m, n, k, a_transposed, b_transposed);
  const struct weft_gpt_gemm second = product_of(&high, m, n, k, a_transposed, b_transposed);
  assert_true(weft_gpt_gemm_avx512(&first) && weft_gpt_gemm_avx512(&second));
  assert_memory_equal(low.c.at, high.c.at, m * n * sizeof *start);
  assert_memory_equal(low.sums.at, high.sums.at, m * sizeof *start);
  check_elements(&first, start);
  free_operands(&low);
  free_operands(&high);
  free(start);
}

static void an_element_is_its_row_by_its_column(void **state) {
  (void)state;
  const uint64_t shapes[][3] = {{1, 1, 1},    {14, 32, 8},    {15, 33, 9},   {13, 31, 257},
                                {29, 65, 40}, {267, 48, 300}, {300, 3, 513}, {5, 600, 23}};
  for (size_t k = 0; has_product() && k < sizeof shapes / sizeof *shapes; k++) {
    for (int turned = 0; turned < 4; turned++) {
      check_product(shapes[k][0], shapes[k][1], shapes[k][2], turned & 1, turned & 2);
    }
  }
}

/* Sums of a column of dy do not depend on how many columns there are. */
static void sums_are_of_their_column(void **state) {
  (void)state;
  enum { ROWS = 271, COLUMNS = 37, N = 3 };
  static float dy[ROWS * COLUMNS], x[ROWS * N], dw[COLUMNS * N], all[COLUMNS];
  reference_random(1, 1.0, ROWS * COLUMNS, dy);
  struct weft_gpt_gemm product = {.m = COLUMNS,
                                  .n = N,
                                  .k = ROWS,
                                  .a = dy,
                                  .a_stride = COLUMNS,
                                  .a_transposed = true,
                                  .b = x,
                                  .b_stride = N,
                                  .c = dw,
                                  .sums = all};
  if (!weft_gpt_gemm_avx512(&product)) {
    return; /* has_product() checks that nothing was done */
  }
  for (uint64_t i = 0; i < COLUMNS; i++) {
    float one = 0.0f;
    product.m = 1;
    product.a = dy + i;
    product.sums = &one;
    assert_true(weft_gpt_gemm_avx512(&product));
    assert_memory_equal(&one, &all[i], sizeof one);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(an_element_is_its_row_by_its_column),
                                     cmocka_unit_test(sums_are_of_their_column)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
