/* Devices that may be NULL, and copies between kinds of memory; see weft/device.h. */
#include <assert.h>

#include <weft/device.h>
#include <weft/support.h>

#include "device/checksum.h"

static struct weft_device *resolve(struct weft_device *device) {
  return device != NULL ? device : weft_host_device();
}

const char *weft_device_name(const struct weft_device *device) {
  assert(device == NULL || device->ops != NULL);
  return device != NULL ? device->ops->name : "host";
}

bool weft_device_is_host(const struct weft_device *device) {
  return device == NULL || device->ops->memory == WEFT_MEMORY_HOST;
}

void *weft_device_allocate(struct weft_device *device, const struct weft_allocator *allocator,
                           uint64_t bytes) {
  device = resolve(device);
  return device->ops->allocate(device, allocator, bytes);
}

enum weft_status weft_device_fail_allocation(struct weft_device *device, uint64_t bytes,
                                             struct weft_error *error) {
  device = resolve(device);
  return device->ops->fail_allocation != NULL
             ? device->ops->fail_allocation(device, bytes, error)
             : weft_fail_memory(error, bytes < SIZE_MAX ? (size_t)bytes : SIZE_MAX);
}

void weft_device_free(struct weft_device *device, const struct weft_allocator *allocator,
                      void *data, uint64_t bytes) {
  device = resolve(device);
  device->ops->free(device, allocator, data, bytes);
}

enum weft_status weft_device_fill(struct weft_device *device, void *data, unsigned char value,
                                  uint64_t bytes, struct weft_stream *stream,
                                  struct weft_error *error) {
  if (bytes > 0) {
    WEFT_NEED(data, error);
  }
  device = resolve(device);
  return device->ops->fill(device, data, value, bytes, stream, error);
}

enum weft_status weft_device_checksum(struct weft_device *device, const void *data, uint64_t bytes,
                                      uint64_t *sum, struct weft_error *error) {
  WEFT_NEED(sum, error);
  if (bytes > 0) {
    WEFT_NEED(data, error);
  }
  device = resolve(device);
  return device->ops->checksum(device, data, bytes, sum, error);
}

enum weft_status weft_copy(const struct weft_copy *copy, struct weft_stream *stream,
                           struct weft_error *error) {
  WEFT_NEED(copy, error);
  struct weft_device *to = resolve(copy->to_device);
  struct weft_device *from = resolve(copy->from_device);
  if (copy->row_bytes == 0 || copy->rows == 0) {
    return WEFT_OK;
  }
  WEFT_NEED(copy->to, error);
  WEFT_NEED(copy->from, error);
  if (!weft_device_is_host(to) && !weft_device_is_host(from) && to->ops != from->ops) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, "copy through host memory",
                     "nothing copies from the memory of a %s device to that of a %s device",
                     from->ops->name, to->ops->name);
  }
  struct weft_device *device = weft_device_is_host(to) ? from : to;
  return device->ops->copy(device, copy, stream, error);
}

enum weft_status weft_copy_bytes(void *to, struct weft_device *to_device, const void *from,
                                 struct weft_device *from_device, uint64_t bytes,
                                 struct weft_stream *stream, struct weft_error *error) {
  const struct weft_copy copy = {.to = to,
                                 .to_device = to_device,
                                 .from = from,
                                 .from_device = from_device,
                                 .row_bytes = bytes,
                                 .rows = 1};
  return weft_copy(&copy, stream, error);
}

uint64_t weft_checksum(const void *data, uint64_t size) {
  enum { SEED = 0x54464557 }; /* "WEFT" */
  const uint64_t sum = weft_checksum_add(weft_checksum_mix(SEED, size), data, size);
  return sum != 0 ? sum : 1;
}
