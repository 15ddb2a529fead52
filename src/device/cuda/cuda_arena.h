/* The memory of one rank on its GPU: a few large blocks of the driver's, cut into pieces. A piece
 * is cut off the end of a block; a block whose pieces have all been freed is used anew. */
#ifndef CUDA_ARENA_H
#define CUDA_ARENA_H

#include <pthread.h>

#include "device/cuda/cuda_api.h"

struct weft_cuda_block {
  struct weft_cuda_block *next;
  CUdeviceptr data;
  uint64_t bytes, used;
  uint64_t pieces; /* not freed */
};

struct weft_cuda_arena {
  const struct weft_cuda_api *cuda;
  const struct weft_allocator *allocator;
  struct weft_cuda_block *blocks;
  uint64_t bytes;       /* of all blocks */
  uint64_t allocations; /* from the driver, so far */
  pthread_mutex_t lock;
};

/* The GPU's context is current in all of these. */
bool weft_cuda_arena_init(struct weft_cuda_arena *arena, const struct weft_cuda_api *cuda,
                          const struct weft_allocator *allocator);
void weft_cuda_arena_finish(struct weft_cuda_arena *arena, bool keep_memory);
/* Aligned to 256; the content is unspecified. The driver's error, of which the usual one is
 * CUDA_ERROR_OUT_OF_MEMORY. */
CUresult weft_cuda_arena_allocate(struct weft_cuda_arena *arena, uint64_t bytes, CUdeviceptr *out);
void weft_cuda_arena_free(struct weft_cuda_arena *arena, CUdeviceptr data);

#endif
