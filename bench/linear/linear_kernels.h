/* The kernels of the linear stage, once as text for a GPU and once as functions of the host. */
#ifndef LINEAR_KERNELS_H
#define LINEAR_KERNELS_H

#include <stdint.h>

/* What each computes, and its parameters in order; counts are u64. */
enum weft_linear_kernel_id {
  /* y[r][o] = sum over i of x[r][i] w[o][i]; a thread per element of y. y, x, w, rows, in, out. */
  WEFT_LINEAR_FORWARD,
  /* dx[r][i] = sum over o of dy[r][o] w[o][i]. dx, dy, w, rows, in, out. */
  WEFT_LINEAR_BACKWARD_INPUT,
  /* dw[o][i] += dy[r][o] x[r][i], r ascending. dw, dy, x, rows, in, out. */
  WEFT_LINEAR_BACKWARD_WEIGHT,
  /* *loss += the sum over k of (y[k] - target[k])^2 / 2; one thread. loss (f64), y, target,
   * count. */
  WEFT_LINEAR_SQUARE_LOSS,
  /* d[k] = y[k] - target[k]. d, y, target, count. */
  WEFT_LINEAR_SUBTRACT,
  /* x[k] *= factor. x, factor (f64), count. */
  WEFT_LINEAR_SCALE,
  /* x[k] += y[k]. x, y, count. */
  WEFT_LINEAR_ADD,
  WEFT_LINEAR_KERNELS
};

/* The names in linear_kernels.cu. */
extern const char *const weft_linear_kernel_names[WEFT_LINEAR_KERNELS];
/* All threads of a kernel, one after the other; parameters[k] points to the k-th one. */
extern void (*const weft_linear_kernel_hosts[WEFT_LINEAR_KERNELS])(void *const *parameters,
                                                                   uint64_t threads);

/* Of linear_kernels.cu. */
extern const char weft_linear_kernels_text[];

#endif
