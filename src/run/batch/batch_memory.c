/* Memory for what a step copies; see batch_memory.h. */
#include "run/batch/batch_memory.h"

#include <assert.h>

#include <weft/support.h>

static void free_data(struct weft_batch_memory *memory, const struct weft_allocator *allocator) {
  weft_device_free(memory->device, allocator, memory->data, memory->capacity);
  memory->data = NULL;
  memory->capacity = 0;
}

void weft_batch_memory_finish(struct weft_batch_memory *memory,
                              const struct weft_allocator *allocator) {
  free_data(memory, allocator);
  weft_array_free(allocator, memory->items, memory->item_room, sizeof *memory->items);
  *memory = (struct weft_batch_memory){.data = NULL};
}

enum weft_status weft_batch_memory_reserve(struct weft_batch_memory *memory,
                                           const struct weft_allocator *allocator,
                                           uint32_t item_count, struct weft_device *device,
                                           uint64_t bytes, struct weft_error *error) {
  if (bytes > memory->capacity || memory->data == NULL || memory->device != device) {
    free_data(memory, allocator); /* first: both at once may be too much */
    memory->device = device;
    memory->data = weft_device_allocate(device, allocator, bytes);
    if (memory->data == NULL) {
      return weft_device_fail_allocation(device, bytes, error);
    }
    memory->capacity = bytes;
  }
  if (item_count > memory->item_room) {
    weft_array_free(allocator, memory->items, memory->item_room, sizeof *memory->items);
    memory->item_room = 0;
    memory->items = weft_array_allocate_zero(allocator, item_count, sizeof *memory->items);
    if (memory->items == NULL) {
      return weft_fail_memory(error, item_count * sizeof *memory->items);
    }
    memory->item_room = item_count;
  }
  return WEFT_OK;
}

bool weft_batch_memory_add(uint64_t *total, uint64_t size) {
  uint64_t sum;
  assert(*total % WEFT_DEVICE_ALIGN == 0);
  if (!weft_add(size, WEFT_DEVICE_ALIGN - 1, &size) ||
      !weft_add(*total, size / WEFT_DEVICE_ALIGN * WEFT_DEVICE_ALIGN, &sum)) {
    return false;
  }
  *total = sum;
  return true;
}

uint64_t weft_batch_shape_bytes(const struct weft_tensor_shape *shape) {
  uint64_t bytes = 0;
  const bool is_counted = weft_shape_bytes(shape, &bytes);
  assert(is_counted);
  (void)is_counted;
  return bytes;
}
