/* Kernels for a GPU, the built-in ones and a program's own: compiled by NVRTC, CUDA's compiler as a library, when they are
 * first needed, and kept in a file of the user's cache. */
#ifndef CUDA_COMPILE_H
#define CUDA_COMPILE_H

#include <weft/base.h>

/* Of kernels.cu. */
extern const char weft_cuda_kernels_text[];

/* 13000 for 13.0; 0: there is no NVRTC. */
int weft_cuda_compiler_version(void);

/* Code of kernels for GPUs of a capability (90 for 9.0). `exact`: without fused multiply-add. The
 * caller frees *code, which has *size bytes. WEFT_ERR_UNAVAILABLE without NVRTC; the hint names
 * the package. */
enum weft_status weft_cuda_compile(const struct weft_allocator *allocator, const char *source,
                                   bool exact, uint32_t capability, char **code, size_t *size,
                                   struct weft_error *error);

#endif
