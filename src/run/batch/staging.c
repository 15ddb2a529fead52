/* Memory for what a step copies; see staging.h. */
#include "run/batch/staging.h"

#include <assert.h>

#include <weft/support.h>

void weft_staging_finish(struct weft_staging *staging, const struct weft_allocator *allocator) {
  weft_device_free(staging->device, allocator, staging->data, staging->capacity);
  *staging = (struct weft_staging){0};
}

enum weft_status weft_staging_reserve(struct weft_staging *staging,
                                      const struct weft_allocator *allocator,
                                      struct weft_device *device, uint64_t bytes,
                                      struct weft_error *error) {
  if (staging->data != NULL && bytes <= staging->capacity && staging->device == device) {
    return WEFT_OK;
  }
  weft_staging_finish(staging, allocator); /* first: both at once may be too much */
  staging->data = weft_device_allocate(device, allocator, bytes);
  if (staging->data == NULL) {
    return weft_device_fail_allocation(device, bytes, error);
  }
  staging->capacity = bytes;
  staging->device = device;
  return WEFT_OK;
}

bool weft_staging_add(uint64_t *total, uint64_t size) {
  uint64_t sum;
  assert(*total % WEFT_DEVICE_ALIGN == 0);
  if (!weft_add(size, WEFT_DEVICE_ALIGN - 1, &size) ||
      !weft_add(*total, size / WEFT_DEVICE_ALIGN * WEFT_DEVICE_ALIGN, &sum)) {
    return false;
  }
  *total = sum;
  return true;
}
