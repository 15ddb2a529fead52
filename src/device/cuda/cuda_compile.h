/* Kernels for a GPU, the built-in ones and a program's own: compiled by NVRTC, CUDA's compiler as a library, when they are
 * first needed, and kept in a file of the user's cache (kernel_cache.h). */
#ifndef CUDA_COMPILE_H
#define CUDA_COMPILE_H

#include <weft/base.h>

#include "device/cuda/cuda_api.h"

/* Of kernels.cu. */
extern const char weft_cuda_kernels_text[];

/* 13000 for 13.0; 0: there is no NVRTC. Of several, one whose code the driver loads. */
int weft_cuda_compiler_version(void);

/* Code of kernels for GPUs of a capability (90 for 9.0). `exact`: without fused multiply-add. The
 * caller frees *code, which has *size bytes. WEFT_ERR_UNAVAILABLE without NVRTC; the hint names
 * the package. */
enum weft_status weft_cuda_compile(const struct weft_allocator *allocator, const char *source,
                                   bool exact, uint32_t capability, char **code, size_t *size,
                                   struct weft_error *error);

/* Loads compiled code into the current context. WEFT_ERR_UNAVAILABLE: it was made by an NVRTC newer
 * than the driver; the hint says which one it takes. */
enum weft_status weft_cuda_load_code(const struct weft_cuda_api *cuda, const char *code,
                                     CUlibrary *out, struct weft_error *error);

#endif
