/* Kernels of the built-in stages, written once and run on every device. The source is
 * cuda/kernels.cu: a GPU compiles it when it is first used, the host compiles it as C, where a
 * loop takes the place of the grid. Their sums have one order and no fused multiply-add, so they
 * give the same bits everywhere. */
#ifndef DEVICE_KERNEL_H
#define DEVICE_KERNEL_H

#include <weft/device.h>

enum { WEFT_KERNEL_PARAMETERS_MAX = 8, WEFT_KERNEL_BLOCK = 128 };

/* One parameter of a kernel: how it travels. */
enum weft_parameter_kind {
  WEFT_PARAMETER_WRITES,  /* address of memory that it writes */
  WEFT_PARAMETER_READS,   /* address of memory that it reads */
  WEFT_PARAMETER_UPDATES, /* both */
  WEFT_PARAMETER_U64,
  WEFT_PARAMETER_F64
};

struct weft_kernel {
  const char *name; /* in kernels.cu */
  uint32_t parameter_count;
  enum weft_parameter_kind kinds[WEFT_KERNEL_PARAMETERS_MAX];
  /* All its threads, one after the other; parameters[k] points to the k-th one. */
  void (*host)(void *const *parameters, uint64_t threads);
};

/* The kernels; NULL after the last. */
const struct weft_kernel *weft_kernel_at(uint32_t k);

/* y[r][o] = sum over i of x[r][i] w[o][i]; a thread per element of y. Parameters: y, x, w, rows,
 * in, out. */
const struct weft_kernel *weft_kernel_linear_forward(void);
/* dx[r][i] = sum over o of dy[r][o] w[o][i]. Parameters: dx, dy, w, rows, in, out. */
const struct weft_kernel *weft_kernel_linear_backward_input(void);
/* dw[o][i] += dy[r][o] x[r][i], r ascending. Parameters: dw, dy, x, rows, in, out. */
const struct weft_kernel *weft_kernel_linear_backward_weight(void);
/* *loss += the sum over k of (y[k] - target[k])^2 / 2; one thread. Parameters: loss (f64), y,
 * target, count. */
const struct weft_kernel *weft_kernel_square_loss(void);
/* d[k] = y[k] - target[k]. Parameters: d, y, target, count. */
const struct weft_kernel *weft_kernel_subtract(void);
/* x[k] *= factor. Parameters: x, factor (f64), count. */
const struct weft_kernel *weft_kernel_scale(void);
/* x[k] += y[k], in f32 and f64, and in f16 and bf16, which are added in f32 and rounded to nearest
 * even. Parameters: x, y, count. */
const struct weft_kernel *weft_kernel_add(void);
const struct weft_kernel *weft_kernel_add_f64(void);
const struct weft_kernel *weft_kernel_add_f16(void);
const struct weft_kernel *weft_kernel_add_bf16(void);
/* to[k] = ((x0[k] + x1[k]) + x2[k]) + ..., x of `member` being `own`, and that of the n-th of the
 * other members others[n * stride ...]. `to` may be `own`. Parameters: to, own, others, count,
 * stride, members, member. */
const struct weft_kernel *weft_kernel_add_members(void);
/* Writes the device's clock, then a number; one thread. Parameters: number (u32), value, clock
 * (u64). */
const struct weft_kernel *weft_kernel_note(void);
/* Takes `ns` nanoseconds; one thread. Parameters: ns. */
const struct weft_kernel *weft_kernel_spin(void);

/* Runs a kernel with that many threads, at least 1: on a stream, or complete at return (NULL).
 * WEFT_ERR_UNAVAILABLE: the device has no kernels. */
enum weft_status weft_kernel_launch(struct weft_device *device, const struct weft_kernel *kernel,
                                    uint64_t threads, void *const *parameters,
                                    struct weft_stream *stream, struct weft_error *error);

#endif
