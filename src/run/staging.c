/* Memory for what a step copies; see staging.h. */
#include <weft/support.h>

#include "run/staging.h"

#include "base/memory.h"

/* Allocators align for any type of C, which is less. */
enum { SLACK = WEFT_STAGING_ALIGN - 1 };

void weft_staging_finish(struct weft_staging *staging, const struct weft_allocator *allocator) {
  weft_array_free(allocator, staging->block, 1, (size_t)staging->capacity + SLACK);
  *staging = (struct weft_staging){0};
}

enum weft_status weft_staging_reserve(struct weft_staging *staging,
                                      const struct weft_allocator *allocator, uint64_t bytes,
                                      struct weft_error *error) {
  if (staging->block != NULL && bytes <= staging->capacity) {
    return WEFT_OK;
  }
  if (bytes > PTRDIFF_MAX - SLACK) {
    return weft_fail_memory(error, SIZE_MAX);
  }
  weft_staging_finish(staging, allocator); /* first: both at once may be too much */
  const size_t size = (size_t)bytes + SLACK;
  staging->block = weft_array_allocate(allocator, 1, size);
  if (staging->block == NULL) {
    return weft_fail_memory(error, size);
  }
  const uint64_t past = (uintptr_t)staging->block % WEFT_STAGING_ALIGN;
  staging->data = (unsigned char *)staging->block + (past > 0 ? WEFT_STAGING_ALIGN - past : 0);
  staging->capacity = bytes;
  return WEFT_OK;
}

bool weft_staging_add(uint64_t *total, uint64_t size) {
  uint64_t sum;
  if (!weft_add(size, SLACK, &size) ||
      !weft_add(*total, size / WEFT_STAGING_ALIGN * WEFT_STAGING_ALIGN, &sum)) {
    return false;
  }
  *total = sum;
  return true;
}
