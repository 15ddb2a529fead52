/* The product of matrices as large as a microbatch and a layer's weights, on one thread. */
#ifndef GPT_GEMM_AVX512_H
#define GPT_GEMM_AVX512_H

#include <stdbool.h>
#include <stdint.h>

/* c[m, n] = a[m, k] b[k, n] + from[m, n] + bias[n], all rows of c and from n apart. */
struct weft_gpt_gemm {
  uint64_t m, n, k;
  const float *a; /* element (i, k) at a[i stride + k]; transposed: at a[k stride + i] */
  const float *b; /* element (k, j) at b[k stride + j]; transposed: at b[j stride + k] */
  uint64_t a_stride, b_stride;
  bool a_transposed, b_transposed;
  const float *from; /* NULL: nothing; may be c */
  const float *bias; /* NULL: nothing */
  float *c;
  float *sums; /* of a's rows, [m], are added here; NULL: nowhere; only if a is transposed */
};

/* False, and nothing is done, on a machine without AVX-512. Every element of c is one
 * sum in ascending k, cut at fixed places: it depends on its row of a and its column of
 * b, and not on m, n, addresses or strides. */
bool weft_gpt_gemm_avx512(const struct weft_gpt_gemm *product);

#endif
