/* Memory of microbatches that grows and never shrinks, so that equal steps allocate nothing. */
#ifndef RUN_BATCH_MEMORY_H
#define RUN_BATCH_MEMORY_H

#include <weft/device.h>
#include <weft/tensor.h>

/* Zero-initialise. */
struct weft_batch_memory {
  struct weft_tensors *items; /* [item_room], by microbatch */
  uint32_t item_room;
  unsigned char *data; /* aligned to WEFT_DEVICE_ALIGN; NULL before the first reserve */
  uint64_t capacity;   /* bytes at `data` */
  struct weft_device *device;
};

/* Room for so many items (0: they are not needed) and, at `data`, bytes on a device (NULL: host).
 * The content is lost where it grows or moves. WEFT_ERR_MEMORY. */
enum weft_status weft_batch_memory_reserve(struct weft_batch_memory *memory,
                                           const struct weft_allocator *allocator,
                                           uint32_t item_count, struct weft_device *device,
                                           uint64_t bytes, struct weft_error *error);
void weft_batch_memory_finish(struct weft_batch_memory *memory,
                              const struct weft_allocator *allocator);

/* `size`, rounded up to the alignment, is added to *total; false on overflow. */
bool weft_batch_memory_add(uint64_t *total, uint64_t size);
/* Bytes of a shape that has been checked. */
uint64_t weft_batch_shape_bytes(const struct weft_tensor_shape *shape);

#endif
