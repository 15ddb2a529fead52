/* Which of cublasLt's algorithms the trainer's products take. cublasLt lists algorithms for a
 * product by the time that it expects of them, and its first is not always the fastest.
 *
 * A choice by times measured at every start would differ from run to run, and with it the order of
 * sums and the bits. So the choice is a file: product_algorithms (trainer/bench) measures and writes
 * it, and WEFT_PRODUCTS names it to the trainer. The same file gives the same bits, on every rank and
 * in every run; without one, all take the first. It holds for one version of the library and one
 * kind of GPU, which it names, and is refused by others:
 *
 *     weft products: cublasLt 130101, NVIDIA H200, 132 SMs
 *     forward 32768 768 2304 3        the product, its rows, inputs, outputs; the algorithm */
#ifndef GPT_PRODUCT_CHOICES_H
#define GPT_PRODUCT_CHOICES_H

#include <stdio.h>

#include <weft/cuda.h>

enum weft_gpt_product_kind {
  WEFT_GPT_PRODUCT_FORWARD,         /* y = x w^T + bias, + residual */
  WEFT_GPT_PRODUCT_FORWARD_GELU,    /* aux = x w^T + bias, y = gelu(aux) */
  WEFT_GPT_PRODUCT_FORWARD_BARE,    /* y = x w^T */
  WEFT_GPT_PRODUCT_BACKWARD_INPUT,  /* dx = dy w */
  WEFT_GPT_PRODUCT_BACKWARD_GELU,   /* dx = dy w gelu'(aux) */
  WEFT_GPT_PRODUCT_BACKWARD_WEIGHT, /* dw += dy^T x, fp32 */
  WEFT_GPT_PRODUCT_KINDS
};

struct weft_gpt_product_choice {
  enum weft_gpt_product_kind kind;
  uint64_t rows, in, out;
  uint32_t algorithm;
};

enum { WEFT_GPT_PRODUCT_CHOICES_MAX = 256, WEFT_GPT_PRODUCT_ALGORITHMS = 16 };

struct weft_gpt_product_choices {
  struct weft_gpt_product_choice items[WEFT_GPT_PRODUCT_CHOICES_MAX];
  uint32_t count;
};

/* Reads a file. WEFT_ERR_MISSING: there is none; WEFT_ERR_USAGE: it is for another library or GPU;
 * WEFT_ERR_FORMAT: something else is in it. */
enum weft_status weft_gpt_product_choices_read(struct weft_gpt_product_choices *choices,
                                               const char *path, uint64_t version,
                                               const struct weft_cuda_gpu_info *gpu,
                                               struct weft_error *error);

void weft_gpt_product_choices_write(const struct weft_gpt_product_choices *choices, FILE *file,
                                    uint64_t version, const struct weft_cuda_gpu_info *gpu);

/* The algorithm of a product; 0 where there is no choice for it. */
uint32_t weft_gpt_product_choice(const struct weft_gpt_product_choices *choices,
                                 enum weft_gpt_product_kind kind, uint64_t rows, uint64_t in,
                                 uint64_t out);

const char *weft_gpt_product_name(enum weft_gpt_product_kind kind);

#endif
