/* The trainer's kernels and products on a GPU, for trainer/cuda only. */
#ifndef GPT_KERNELS_CUDA_H
#define GPT_KERNELS_CUDA_H

#include <pthread.h>

#include "cublaslt/cublaslt.h"
#include "trainer/cuda/compute_cuda.h"

/* The four .cu files of this folder. */
extern const char weft_gpt_cuda_text[];

/* X(name): weft_gpt_name there. Attention has one kernel for each width of a head, and another
 * for Hopper. */
#define WEFT_GPT_CUDA_KERNELS(X)       \
  X(embed)                             \
  X(embed_backward_positions)          \
  X(embed_backward_tokens)             \
  X(norm)                              \
  X(norm_backward)                     \
  X(column_parts)                      \
  X(add_parts)                         \
  X(cross_entropy)                     \
  X(mean_loss)                         \
  X(scale)                             \
  X(tie)                               \
  X(add)                               \
  X(add_bf16)                          \
  X(to_bf16)                           \
  X(square_sums)                       \
  X(sum_parts)                         \
  X(clip)                              \
  X(adamw)                             \
  X(attention_products)                \
  X(attention_forward_16)              \
  X(attention_forward_32)              \
  X(attention_forward_64)              \
  X(attention_forward_128)             \
  X(attention_backward_queries_16)     \
  X(attention_backward_queries_32)     \
  X(attention_backward_queries_64)     \
  X(attention_backward_queries_128)    \
  X(attention_backward_keys_16)        \
  X(attention_backward_keys_32)        \
  X(attention_backward_keys_64)        \
  X(attention_backward_keys_128)       \
  X(attention_forward_hopper)          \
  X(attention_backward_queries_hopper) \
  X(attention_backward_keys_hopper)

enum weft_gpt_cuda_kernel {
#define WEFT_GPT_CUDA_NAME(name) WEFT_GPT_CUDA_##name,
  WEFT_GPT_CUDA_KERNELS(WEFT_GPT_CUDA_NAME)
#undef WEFT_GPT_CUDA_NAME
      WEFT_GPT_CUDA_KERNEL_COUNT
};

/* Rows of a block of norm_backward, and of a part of column_parts. */
enum { WEFT_GPT_CUDA_NORM_ROWS = 32, WEFT_GPT_CUDA_PART_ROWS = 256 };

/* ---- Products: y[R, N] = x[R, K] w[N, K]^T, and its gradients ---- */

enum weft_gpt_product_kind {
  WEFT_GPT_PRODUCT_FORWARD,        /* y = x w^T + bias, + residual */
  WEFT_GPT_PRODUCT_FORWARD_GELU,   /* aux = x w^T + bias, y = gelu(aux) */
  WEFT_GPT_PRODUCT_FORWARD_BARE,   /* y = x w^T */
  WEFT_GPT_PRODUCT_BACKWARD_INPUT, /* dx = dy w */
  WEFT_GPT_PRODUCT_BACKWARD_GELU,  /* dx = dy w gelu'(aux) */
  WEFT_GPT_PRODUCT_BACKWARD_WEIGHT /* dw += dy^T x, fp32 */
};

struct weft_gpt_product {
  enum weft_gpt_product_kind kind;
  uint64_t rows, in, out; /* R, K, N */
  struct weft_product *product;
};

enum { WEFT_GPT_CUDA_PRODUCTS_MAX = 64, WEFT_GPT_CUDA_WORKSPACE = 32 << 20 };

/* Those of a GPU: the ranks that are on it, or on parts of it, share descriptors and algorithms. */
struct weft_gpt_products {
  pthread_mutex_t lock; /* of all below; and a descriptor has the addresses of one call at a time */
  uint32_t users;
  struct weft_cublaslt *lt;
  struct weft_gpt_product items[WEFT_GPT_CUDA_PRODUCTS_MAX];
  uint32_t count;
};

/* A rank's. */
struct weft_gpt_cuda {
  struct weft_gpt_compute compute; /* first */
  const struct weft_allocator *allocator;
  struct weft_cuda_kernels *kernels;
  bool hopper; /* the GPU has wgmma */
  struct weft_gpt_products *products;
  /* A forward and a backward may run at the same time (OVERLAP_F_B), two of a kind may not. */
  void *workspaces[2];

  /* At the end of a step. */
  uint64_t layer_count;
  double *parts;   /* [layers of the model][parts] of sums of squares, on the GPU */
  float *settings; /* of AdamW, on the GPU */
  double *step;    /* what the host says about them, and the norm; memory of the host */

  /* Between steps. */
  struct weft_stream *stream;
  struct weft_device_event *event;
  double *sums;             /* partial sums, on the host; the GPU writes them */
  unsigned char *decays[3]; /* of an embedding, a block and a head: 16 floats each, on the GPU */
  uint64_t decay_counts[3];
};

static inline struct weft_gpt_cuda *weft_gpt_cuda_of(struct weft_gpt_compute *compute) {
  return (struct weft_gpt_cuda *)compute;
}

/* The passes of layers (cuda_passes.c). */

/* Attention over that many tokens is gpt_attention_hopper.cu's. The shape decides, so that it is
 * the same on all ranks, whatever the schedule. */
bool weft_gpt_cuda_wide_attention(const struct weft_gpt_cuda *cuda,
                                  const struct weft_gpt_config *config, uint64_t tokens);
uint64_t weft_gpt_cuda_saved_bytes(const struct weft_gpt_config *config, uint32_t layer,
                                   uint64_t sequences, uint64_t tokens);
uint64_t weft_gpt_cuda_scratch_bytes(const struct weft_gpt_config *config, uint32_t layer,
                                     uint64_t sequences, uint64_t tokens);
enum weft_status weft_gpt_cuda_forward(struct weft_gpt_compute *compute,
                                       const struct weft_gpt_pass_call *call,
                                       struct weft_error *error);
enum weft_status weft_gpt_cuda_backward_input(struct weft_gpt_compute *compute,
                                              const struct weft_gpt_pass_call *call,
                                              struct weft_error *error);
enum weft_status weft_gpt_cuda_backward_weight(struct weft_gpt_compute *compute,
                                               const struct weft_gpt_pass_call *call,
                                               struct weft_error *error);

/* ---- Launching (compute_cuda.c) ---- */

/* Every parameter of a kernel has eight bytes. */
#define WEFT_GPT_ADDRESS(pointer) ((uint64_t)(uintptr_t)(pointer))
uint64_t weft_gpt_cuda_number(double number);

struct weft_gpt_cuda_grid {
  uint64_t blocks[3], threads[2]; /* 0: 1 */
};

/* Blocks of 256 threads for that many. */
struct weft_gpt_cuda_grid weft_gpt_cuda_threads(uint64_t threads);

/* At most 10 values. */
enum weft_status weft_gpt_cuda_launch(const struct weft_gpt_cuda *cuda,
                                      enum weft_gpt_cuda_kernel kernel,
                                      struct weft_gpt_cuda_grid grid, uint64_t *values,
                                      struct weft_stream *stream, struct weft_error *error);

/* Enqueues a product. c: what is added to it, or NULL; bias: of FORWARD. */
struct weft_gpt_product_call {
  enum weft_gpt_product_kind kind;
  uint64_t rows, in, out;
  const void *x, *w; /* the two that are read: x or dy, w or x */
  const void *bias, *c;
  void *y, *aux;
  struct weft_stream *stream;
};
struct weft_product_shape weft_gpt_cuda_product_shape(const struct weft_gpt_product_call *call);
/* Of a kind of product: what cublasLt is called with. */
struct weft_product_call weft_gpt_cuda_product_call(const struct weft_gpt_product_call *call,
                                                    void *workspace);
enum weft_status weft_gpt_cuda_multiply(struct weft_gpt_cuda *cuda,
                                        const struct weft_gpt_product_call *call,
                                        struct weft_error *error);

#endif
