/* Arenas: many blocks, one release. Arrays are in weft/support.h. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <weft/support.h>

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

#endif
