/* Arrays aligned to cache lines, allocated through the allocator hook. */
#ifndef GPT_ALIGNED_MEMORY_H
#define GPT_ALIGNED_MEMORY_H

#include <weft/base.h>

#define WEFT_GPT_ALIGNMENT 64

/* count x size bytes, 64-byte aligned, cleared; NULL when out of memory or on overflow.
 * A count of 0 gives a pointer that may be freed. allocator NULL: the default. */
void *weft_gpt_allocate(const struct weft_allocator *allocator, uint64_t count, uint64_t size);
/* NULL is fine; the same allocator. */
void weft_gpt_free(const struct weft_allocator *allocator, void *array);

#endif
