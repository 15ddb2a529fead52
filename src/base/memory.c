/* Memory through the allocator hook: checked array sizes and arenas. Every
 * object graph in Weft is made from these, so that one hook sees it all. */
#define _DEFAULT_SOURCE /* madvise */
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <weft/support.h>

/* Blocks of half a huge page and more get huge pages: page faults of 4 KiB each
 * otherwise take a quarter of the time of a lowering, and a third of it at 50
 * million actions. */
enum { HUGE_PAGE_BYTES = 2 * 1024 * 1024 };

static void *allocate_huge(size_t size) {
  void *block = NULL;
  size = (size + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
  if (posix_memalign(&block, HUGE_PAGE_BYTES, size) != 0) {
    return NULL;
  }
#ifdef MADV_HUGEPAGE
  (void)madvise(block, size, MADV_HUGEPAGE); /* advice: fine if it is not taken */
#endif
  return block;
}

static void *default_reallocate(void *context, void *pointer, size_t old_size, size_t new_size) {
  (void)context;
  (void)old_size;
  if (new_size == 0) {
    free(pointer);
    return NULL;
  }
  if (pointer == NULL && new_size >= HUGE_PAGE_BYTES / 2) {
    return allocate_huge(new_size);
  }
  return realloc(pointer, new_size);
}

const struct weft_allocator *weft_allocator_default(void) {
  static const struct weft_allocator allocator = {.reallocate = default_reallocate};
  return &allocator;
}

bool weft_multiply(uint64_t a, uint64_t b, uint64_t *result) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product)) {
    return false;
  }
  *result = product;
  return true;
}

bool weft_add(uint64_t a, uint64_t b, uint64_t *result) {
  uint64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) {
    return false;
  }
  *result = sum;
  return true;
}

/* Bytes of an array; at least 1, so that an empty array is a block too. */
static bool array_bytes(size_t count, size_t size, size_t *bytes) {
  uint64_t product;
  if (!weft_multiply(count, size, &product) || product > PTRDIFF_MAX) {
    return false;
  }
  *bytes = product == 0 ? 1 : (size_t)product;
  return true;
}

static const struct weft_allocator *or_default(const struct weft_allocator *allocator) {
  return allocator != NULL ? allocator : weft_allocator_default();
}

void *weft_array_allocate(const struct weft_allocator *allocator, size_t count, size_t size) {
  size_t bytes;
  if (!array_bytes(count, size, &bytes)) {
    return NULL;
  }
  allocator = or_default(allocator);
  return allocator->reallocate(allocator->context, NULL, 0, bytes);
}

void *weft_array_allocate_zero(const struct weft_allocator *allocator, size_t count, size_t size) {
  void *array = weft_array_allocate(allocator, count, size);
  if (array != NULL) {
    memset(array, 0, count * size);
  }
  return array;
}

void *weft_array_resize(const struct weft_allocator *allocator, void *array, size_t old_count,
                        size_t new_count, size_t size) {
  size_t old_bytes, new_bytes;
  if (!array_bytes(old_count, size, &old_bytes) || !array_bytes(new_count, size, &new_bytes)) {
    return NULL;
  }
  allocator = or_default(allocator);
  return allocator->reallocate(allocator->context, array, array == NULL ? 0 : old_bytes, new_bytes);
}

void weft_array_free(const struct weft_allocator *allocator, void *array, size_t count,
                     size_t size) {
  size_t bytes;
  if (array == NULL || !array_bytes(count, size, &bytes)) {
    return;
  }
  allocator = or_default(allocator);
  (void)allocator->reallocate(allocator->context, array, bytes, 0);
}

/* A chunk holds many small blocks, or one large one. */
struct weft_arena_chunk {
  struct weft_arena_chunk *next;
  size_t size; /* of the whole chunk, header included */
  size_t used;
};

enum { CHUNK_BYTES = 4096, BLOCK_ALIGN = alignof(max_align_t) };

static size_t round_up(size_t bytes) {
  return (bytes + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
}

static struct weft_arena_chunk *chunk_for(struct weft_arena *arena, size_t bytes) {
  struct weft_arena_chunk *chunk = arena->chunks;
  if (chunk != NULL && chunk->size - chunk->used >= bytes) {
    return chunk;
  }
  size_t size = round_up(sizeof *chunk) + bytes;
  if (size < CHUNK_BYTES) {
    size = CHUNK_BYTES;
  }
  chunk = weft_array_allocate(arena->allocator, 1, size);
  if (chunk == NULL) {
    return NULL;
  }
  *chunk = (struct weft_arena_chunk){
      .next = arena->chunks, .size = size, .used = round_up(sizeof *chunk)};
  arena->chunks = chunk;
  return chunk;
}

void *weft_arena_allocate(struct weft_arena *arena, size_t count, size_t size) {
  size_t bytes;
  if (!array_bytes(count, size, &bytes) || bytes > PTRDIFF_MAX / 2) {
    arena->failed_bytes = SIZE_MAX;
    return NULL;
  }
  bytes = round_up(bytes);
  struct weft_arena_chunk *chunk = chunk_for(arena, bytes);
  if (chunk == NULL) {
    arena->failed_bytes = bytes;
    return NULL;
  }
  void *block = (char *)chunk + chunk->used;
  chunk->used += bytes;
  memset(block, 0, bytes);
  return block;
}

enum weft_status weft_arena_status(const struct weft_arena *arena, struct weft_error *error) {
  return arena->failed_bytes == 0 ? WEFT_OK : weft_fail_memory(error, arena->failed_bytes);
}

char *weft_arena_copy_text(struct weft_arena *arena, const char *data, size_t size) {
  char *copy = weft_arena_allocate(arena, size + 1, 1);
  if (copy != NULL) {
    memcpy(copy, data, size);
  }
  return copy;
}

void weft_arena_finish(struct weft_arena *arena) {
  struct weft_arena_chunk *chunk = arena->chunks;
  while (chunk != NULL) {
    struct weft_arena_chunk *next = chunk->next;
    weft_array_free(arena->allocator, chunk, 1, chunk->size);
    chunk = next;
  }
  *arena = (struct weft_arena){.allocator = arena->allocator};
}
