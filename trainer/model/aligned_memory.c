/* Aligned arrays on an allocator that guarantees no more than the alignment of malloc():
 * the block is larger, and a record in front of the array says how to free it. */
#include "trainer/model/aligned_memory.h"

#include <string.h>

struct origin {
  void *block;
  size_t bytes; /* of the block */
};

static const struct weft_allocator *or_default(const struct weft_allocator *allocator) {
  return allocator != NULL ? allocator : weft_allocator_default();
}

void *weft_gpt_allocate(const struct weft_allocator *allocator, uint64_t count, uint64_t size) {
  uint64_t bytes;
  const uint64_t extra = sizeof(struct origin) + WEFT_GPT_ALIGNMENT - 1;
  if (__builtin_mul_overflow(count, size, &bytes) || bytes > PTRDIFF_MAX - extra) {
    return NULL;
  }
  allocator = or_default(allocator);
  const struct origin origin = {
      .block = allocator->reallocate(allocator->context, NULL, 0, (size_t)(bytes + extra)),
      .bytes = (size_t)(bytes + extra)};
  if (origin.block == NULL) {
    return NULL;
  }
  const uintptr_t first = (uintptr_t)origin.block + sizeof origin;
  char *array = (char *)origin.block + sizeof origin +
                (WEFT_GPT_ALIGNMENT - first % WEFT_GPT_ALIGNMENT) % WEFT_GPT_ALIGNMENT;
  memcpy(array - sizeof origin, &origin, sizeof origin);
  return memset(array, 0, (size_t)bytes);
}

void weft_gpt_free(const struct weft_allocator *allocator, void *array) {
  struct origin origin;
  if (array == NULL) {
    return;
  }
  memcpy(&origin, (char *)array - sizeof origin, sizeof origin);
  allocator = or_default(allocator);
  (void)allocator->reallocate(allocator->context, origin.block, origin.bytes, 0);
}
