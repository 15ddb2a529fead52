/* The built-in kernels: sums, notes and waiting, written once and run on every device. The source is
 * cuda/kernels.cu: a GPU compiles it when it is first used, the host compiles it as C, where a
 * loop takes the place of the grid. Sums have one order, so they have the same bits everywhere. */
#ifndef DEVICE_KERNEL_H
#define DEVICE_KERNEL_H

#include <weft/device.h>

enum { WEFT_KERNEL_BLOCK = 128 };

struct weft_kernel {
  const char *name; /* in kernels.cu */
  /* All its threads, one after the other; parameters[k] points to the k-th one. */
  void (*host)(void *const *parameters, uint64_t threads);
};

/* What each computes, and its parameters in order; numbers are u64. */
enum weft_kernel_id {
  /* x[k] += y[k], in f32 and f64, and in f16 and bf16, which are added in f32 and rounded to
   * nearest even. x, y, count. */
  WEFT_KERNEL_ADD,
  WEFT_KERNEL_ADD_F64,
  WEFT_KERNEL_ADD_F16,
  WEFT_KERNEL_ADD_BF16,
  /* to[k] = ((x0[k] + x1[k]) + x2[k]) + ..., x of `member` being `own`, and that of the n-th of the
   * other members others[n * stride ...]. `to` may be `own`. to, own, others, count, stride,
   * members, member. */
  WEFT_KERNEL_ADD_MEMBERS,
  /* Writes the device's clock, then a number; one thread. number (u32), value, clock (u64). */
  WEFT_KERNEL_NOTE,
  /* Takes `ns` nanoseconds; one thread. ns. */
  WEFT_KERNEL_SPIN,
  WEFT_KERNELS
};

/* NULL after the last. */
const struct weft_kernel *weft_kernel_at(uint32_t k);

/* Runs a kernel with that many threads, at least 1: on a stream, or complete at return (NULL).
 * WEFT_ERR_UNAVAILABLE: the device has no kernels. */
enum weft_status weft_kernel_launch(struct weft_device *device, enum weft_kernel_id kernel,
                                    uint64_t threads, void *const *parameters,
                                    struct weft_stream *stream, struct weft_error *error);

#endif
