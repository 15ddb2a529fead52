/* Kernels for a GPU, the built-in ones and a program's own: compiled by NVRTC, CUDA's compiler as a library, when they are
 * first needed, and kept in a file of the user's cache. */
#ifndef CUDA_COMPILE_H
#define CUDA_COMPILE_H

#include <weft/base.h>

#include "device/cuda/cuda_api.h"

/* Of kernels.cu. */
extern const char weft_cuda_kernels_text[];

/* 13000 for 13.0; 0: there is no NVRTC. Of several, one whose code the driver loads. */
int weft_cuda_compiler_version(void);

/* Kernels of a source and where they go. */
struct weft_cuda_kernel_set {
  const char *source;
  const char *const *names; /* [count] */
  CUfunction *functions;    /* [count] */
  uint32_t count;
};

/* Compiles kernels for GPUs of a capability (90 for 9.0), loads them into the current context and
 * looks them up. *library is to be unloaded, also after a failure, unless it is NULL.
 * WEFT_ERR_UNAVAILABLE without NVRTC, whose package the hint names, or with one that is newer than
 * the driver. */
enum weft_status weft_cuda_load_kernels(const struct weft_cuda_api *cuda,
                                        const struct weft_allocator *allocator,
                                        const struct weft_cuda_kernel_set *kernels,
                                        uint32_t capability, CUlibrary *library,
                                        struct weft_error *error);

#endif
