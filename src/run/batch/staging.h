/* A block of memory that grows and never shrinks, for what a step copies; so the next step
 * allocates nothing. */
#ifndef RUN_STAGING_H
#define RUN_STAGING_H

#include <weft/device.h>

/* Zero-initialise. */
struct weft_staging {
  unsigned char *data; /* aligned to WEFT_DEVICE_ALIGN; NULL before the first reserve */
  uint64_t capacity;   /* bytes at `data` */
  struct weft_device *device;
};

/* Room for that many bytes at `data`, on a device (NULL: host). The content is lost when it
 * grows or moves. On WEFT_ERR_MEMORY it is empty. */
enum weft_status weft_staging_reserve(struct weft_staging *staging,
                                      const struct weft_allocator *allocator,
                                      struct weft_device *device, uint64_t bytes,
                                      struct weft_error *error);
void weft_staging_finish(struct weft_staging *staging, const struct weft_allocator *allocator);

/* `size`, rounded up to the alignment, is added to *total; false on overflow. */
bool weft_staging_add(uint64_t *total, uint64_t size);

#endif
