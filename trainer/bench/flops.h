/* The matrix products of training, as a list: to count their floating-point operations, and to
 * run them bare, by sgemm, with nothing in between: the baseline for a training step on the same
 * machine. */
#ifndef BENCH_FLOPS_H
#define BENCH_FLOPS_H

#include "trainer/model/model.h"

/* c[m, n] = a b, or added to c, with strides as cblas_sgemm takes them, row after row.
 * A small one is attention's, and done by weft_gpt_gemm_tile_run(). */
struct weft_bench_gemm_shape {
  bool small, transposed_a, transposed_b, adds;
  uint32_t m, n, k;
  uint32_t a_stride, b_stride, c_stride;
};

/* Calls `visit` with every product of the forward and the backward of one microbatch
 * through all layers, in the order in which one rank does them. */
typedef void weft_bench_gemm_visit(void *context, const struct weft_bench_gemm_shape *product);
void weft_bench_list_gemms(const struct weft_gpt_config *config, uint64_t sequences,
                           uint64_t tokens, weft_bench_gemm_visit *visit, void *context);

/* Of all of them: two for each multiplication with its addition. */
double weft_bench_flops(const struct weft_gpt_config *config, uint64_t sequences, uint64_t tokens);

/* Operands for all of them, and nothing else: every product reads the same two arrays
 * and writes the same third, so they are in the caches as well as can be. */
struct weft_bench_bare;
enum weft_status weft_bench_bare_create(const struct weft_allocator *allocator,
                                        const struct weft_gpt_config *config, uint64_t sequences,
                                        uint64_t tokens, struct weft_bench_bare **out,
                                        struct weft_error *error);
/* All products of one microbatch, on the calling thread. */
void weft_bench_bare_run(struct weft_bench_bare *bare);
void weft_bench_bare_destroy(struct weft_bench_bare *bare);

#endif
