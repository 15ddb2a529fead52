/* Memory: arrays through the allocator hook with checked sizes, and arenas:
 * many blocks, one release. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <weft/base.h>

/* count × size bytes, not cleared; NULL when out of memory or on overflow.
 * A count of 0 gives a pointer that may be freed. */
void *weft_array_allocate(const struct weft_allocator *allocator, size_t count, size_t size);
/* The same, cleared. */
void *weft_array_allocate_zero(const struct weft_allocator *allocator, size_t count, size_t size);
/* NULL is fine; count and size as given at allocation. */
void weft_array_free(const struct weft_allocator *allocator, void *array, size_t count,
                     size_t size);

/* Blocks that live and die together. Zero-initialise and set `allocator`. */
struct weft_arena {
  const struct weft_allocator *allocator;
  struct weft_arena_chunk *chunks; /* newest first */
  size_t allocated_bytes;          /* from the allocator */
};

/* Aligned for any type, cleared; NULL when out of memory or on overflow. */
void *weft_arena_allocate(struct weft_arena *arena, size_t count, size_t size);
/* A NUL-terminated copy; NULL when out of memory. */
char *weft_arena_copy_text(struct weft_arena *arena, const char *data, size_t size);
/* All of it; the arena may be used again. */
void weft_arena_finish(struct weft_arena *arena);

/* *result = a × b or a + b; false (and *result untouched) on overflow. */
bool weft_multiply(uint64_t a, uint64_t b, uint64_t *result);
bool weft_add(uint64_t a, uint64_t b, uint64_t *result);

#endif
