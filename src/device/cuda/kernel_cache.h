/* Compiled kernels in the user's cache: a file for each source, compiler and capability, in
 * $XDG_CACHE_HOME/weft or ~/.cache/weft. Code from there runs on the GPU, so it is read only from a
 * regular file of this user in a folder of this user that nobody else may write to; any other cache
 * is left alone, and the kernels are compiled. */
#ifndef DEVICE_KERNEL_CACHE_H
#define DEVICE_KERNEL_CACHE_H

#include <weft/base.h>

enum { WEFT_KERNEL_CACHE_NAME_SIZE = 128 };

/* The code kept under a name; the caller frees *code, which has *size bytes. False: there is none
 * that is whole and can be trusted. */
bool weft_kernel_cache_read(const struct weft_allocator *allocator, const char *name, char **code,
                            size_t *size);

/* Keeps code; without a cache that can be trusted, nothing happens: the next start compiles again. */
void weft_kernel_cache_write(const char *name, const char *code, size_t size);

#endif
