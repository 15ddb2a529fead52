/* Matrix products on a GPU by cublasLt, loaded at run time and declared in cublaslt.c, so that
 * building needs no CUDA.
 *
 *     WEFT_TRY(weft_cublaslt_open(NULL, &lt, error));           // a GPU's context is current
 *     WEFT_TRY(weft_product_create(lt, &(struct weft_product_shape){
 *                  .m = 512, .n = 1024, .k = 2048, .a = {WEFT_PRODUCT_BF16, .transposed = true},
 *                  .b = {WEFT_PRODUCT_BF16}, .d = {WEFT_PRODUCT_BF16},
 *                  .workspace_bytes = 32 << 20}, &product, error));
 *     WEFT_TRY(weft_product_run(product, &(struct weft_product_call){
 *                  .a = a, .b = b, .d = d, .alpha = 1, .workspace = w}, stream, error));
 *
 * computes D = epilogue(alpha * A * B + beta * C), with A, B transposed if asked for. Matrices are
 * stored by COLUMNS, as in BLAS: what C calls a row-major [rows][columns] array is here a matrix
 * of `columns` by `rows`. So row-major y[r][o] = sum over i of x[r][i] * w[o][i] is
 * .m = o, .n = r, .k = i, A = w transposed, B = x, D = y.
 *
 * The algorithm is chosen once, when the product is created, and never one that adds by atomics:
 * the same shape gives the same bits on every GPU of a kind. Running allocates nothing and waits
 * for nothing, so it may be captured into a graph. */
#ifndef CUBLASLT_H
#define CUBLASLT_H

#include <weft/device.h>

enum weft_product_type { WEFT_PRODUCT_F32 = 0, WEFT_PRODUCT_BF16 = 14 };

/* Sums are in fp32. TF32 rounds fp32 inputs to 10 bits of mantissa; it means nothing for bf16. */
enum weft_product_compute { WEFT_PRODUCT_COMPUTE_F32 = 68, WEFT_PRODUCT_COMPUTE_TF32 = 77 };

/* What is done to the result. `bias` has m numbers, `aux` is a matrix of D's shape. GELU is the
 * tanh approximation. */
enum weft_product_epilogue {
  WEFT_EPILOGUE_NONE = 1,
  WEFT_EPILOGUE_BIAS = 4,            /* + bias, the same for every column */
  WEFT_EPILOGUE_GELU_BIAS = 36,      /* gelu(. + bias) */
  WEFT_EPILOGUE_GELU_AUX = 160,      /* gelu(.), and aux = what gelu was given */
  WEFT_EPILOGUE_GELU_AUX_BIAS = 164, /* gelu(. + bias), likewise */
  WEFT_EPILOGUE_DGELU = 192,         /* . * gelu'(aux) */
  WEFT_EPILOGUE_DGELU_BGRAD = 208,   /* the same, and bias = the sum of its columns */
  WEFT_EPILOGUE_BIAS_GRAD_A = 256,   /* bias[m] = sum over k of A */
  WEFT_EPILOGUE_BIAS_GRAD_B = 512    /* bias[n] = sum over k of B */
};

struct weft_product_matrix {
  enum weft_product_type type;
  bool transposed;       /* as stored; not for C and D */
  uint64_t stride;       /* elements from a column to the next; 0: no gap */
  uint64_t batch_stride; /* elements from a matrix of the batch to the next; 0: the same one */
};

struct weft_product_shape {
  uint64_t m, n, k;                    /* D is m by n, the sum is over k */
  struct weft_product_matrix a, b, d;  /* C is as D */
  uint32_t batch;                      /* products in one; 0: 1 */
  enum weft_product_compute compute;   /* 0: F32 */
  enum weft_product_epilogue epilogue; /* 0: none */
  enum weft_product_type bias_type;    /* read if the epilogue has a bias or its gradient */
  uint64_t aux_stride;                 /* elements, 0: m; a multiple of 8 */
  uint32_t sm_count;                   /* that the product is to run on; 0: all of the GPU */
  uint32_t align_bytes;     /* of all pointers, at least; 0: 256, which allocations have */
  uint64_t workspace_bytes; /* that the algorithm may use */
};

struct weft_product_call {
  float alpha, beta;
  const void *a, *b, *c; /* c NULL: d */
  void *d;
  void *bias, *aux; /* if the epilogue has them */
  void *workspace;  /* weft_product_workspace() bytes; of one stream only */
};

struct weft_cublaslt;
struct weft_product;

/* The version of the library, 130101 for 13.1.1; 0: there is none. */
uint64_t weft_cublaslt_version(void);

/* For the GPU whose context is current. WEFT_ERR_UNAVAILABLE: there is no such library; the hint
 * says what to install. Any number may be open. */
enum weft_status weft_cublaslt_open(const struct weft_allocator *allocator,
                                    struct weft_cublaslt **out, struct weft_error *error);
/* NULL is fine. Its products have been destroyed. */
void weft_cublaslt_close(struct weft_cublaslt *lt);

/* WEFT_ERR_UNAVAILABLE: cublasLt has no algorithm for it. The GPU's context is current. */
enum weft_status weft_product_create(struct weft_cublaslt *lt,
                                     const struct weft_product_shape *shape,
                                     struct weft_product **out, struct weft_error *error);
/* NULL is fine. A graph that it was recorded into may outlive it. */
void weft_product_destroy(struct weft_product *product);

/* Bytes that the algorithm needs, at most shape->workspace_bytes; maybe 0. */
uint64_t weft_product_workspace(const struct weft_product *product);

/* Enqueues the product. One thread at a time per product. */
enum weft_status weft_product_run(struct weft_product *product,
                                  const struct weft_product_call *call, struct weft_stream *stream,
                                  struct weft_error *error);

#endif
