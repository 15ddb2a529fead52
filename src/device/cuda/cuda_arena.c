/* See cuda_arena.h. */
#include "device/cuda/cuda_arena.h"

#include <assert.h>

#include <weft/support.h>

/* Two MiB are the GPU's large page: smaller requests of the driver waste the rest of one. */
#define BLOCK_BYTES (UINT64_C(2) << 20)
#define ALIGN UINT64_C(256)

bool weft_cuda_arena_init(struct weft_cuda_arena *arena, const struct weft_cuda_api *cuda,
                          const struct weft_allocator *allocator) {
  assert(cuda != NULL);
  *arena = (struct weft_cuda_arena){.cuda = cuda, .allocator = allocator};
  return pthread_mutex_init(&arena->lock, NULL) == 0;
}

void weft_cuda_arena_finish(struct weft_cuda_arena *arena, bool keep_memory) {
  while (arena->blocks != NULL) {
    struct weft_cuda_block *block = arena->blocks;
    arena->blocks = block->next;
    if (!keep_memory) {
      (void)arena->cuda->cuMemFree(block->data);
    }
    weft_array_free(arena->allocator, block, 1, sizeof *block);
  }
  pthread_mutex_destroy(&arena->lock);
}

static CUresult add_block(struct weft_cuda_arena *arena, uint64_t bytes,
                          struct weft_cuda_block **out) {
  struct weft_cuda_block *block = weft_array_allocate_zero(arena->allocator, 1, sizeof *block);
  if (block == NULL) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  block->bytes = (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
  const CUresult result = arena->cuda->cuMemAlloc(&block->data, (size_t)block->bytes);
  if (result != CUDA_SUCCESS) {
    weft_array_free(arena->allocator, block, 1, sizeof *block);
    return result;
  }
  block->next = arena->blocks;
  arena->blocks = block;
  arena->bytes += block->bytes;
  arena->allocations++;
  *out = block;
  return CUDA_SUCCESS;
}

CUresult weft_cuda_arena_allocate(struct weft_cuda_arena *arena, uint64_t bytes, CUdeviceptr *out) {
  assert(out != NULL);
  CUresult result = CUDA_SUCCESS;
  if (bytes > UINT64_MAX / 2) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const uint64_t needed = bytes == 0 ? ALIGN : (bytes + ALIGN - 1) / ALIGN * ALIGN;
  pthread_mutex_lock(&arena->lock);
  struct weft_cuda_block *block = arena->blocks;
  while (block != NULL && block->bytes - block->used < needed) {
    block = block->next;
  }
  if (block == NULL) {
    result = add_block(arena, needed, &block);
  }
  if (result == CUDA_SUCCESS) {
    *out = block->data + block->used;
    block->used += needed;
    block->pieces++;
  }
  pthread_mutex_unlock(&arena->lock);
  return result;
}

void weft_cuda_arena_free(struct weft_cuda_arena *arena, CUdeviceptr data) {
  pthread_mutex_lock(&arena->lock);
  struct weft_cuda_block *block = arena->blocks;
  while (block != NULL && !(data >= block->data && data < block->data + block->bytes)) {
    block = block->next;
  }
  assert(block != NULL && block->pieces > 0); /* it is of this arena */
  block->pieces--;
  block->used = block->pieces == 0 ? 0 : block->used;
  pthread_mutex_unlock(&arena->lock);
}
