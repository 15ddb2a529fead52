/* The host as a device: memory of the allocator, operations that are complete at return. */
#include <assert.h>
#include <string.h>

#include <weft/device.h>
#include <weft/support.h>

/* A block begins with the address that the allocator returned; data follows, aligned. */
static bool block_size(uint64_t bytes, size_t *size) {
  uint64_t total;
  if (!weft_add(bytes, WEFT_DEVICE_ALIGN - 1 + sizeof(void *), &total) || total > PTRDIFF_MAX) {
    return false;
  }
  *size = (size_t)total;
  return true;
}

static void *host_allocate(struct weft_device *device, const struct weft_allocator *allocator,
                           uint64_t bytes) {
  size_t size;
  (void)device;
  if (!block_size(bytes, &size)) {
    return NULL;
  }
  unsigned char *block = weft_array_allocate_zero(allocator, 1, size);
  if (block == NULL) {
    return NULL;
  }
  const uintptr_t first = (uintptr_t)block + sizeof(void *);
  unsigned char *data =
      block + sizeof(void *) + (WEFT_DEVICE_ALIGN - first % WEFT_DEVICE_ALIGN) % WEFT_DEVICE_ALIGN;
  memcpy(data - sizeof(void *), (const void *)&block, sizeof(void *));
  return data;
}

static void host_free(struct weft_device *device, const struct weft_allocator *allocator,
                      void *data, uint64_t bytes) {
  size_t size = 0;
  (void)device;
  if (data == NULL) {
    return;
  }
  unsigned char *block;
  memcpy((void *)&block, (unsigned char *)data - sizeof(void *), sizeof(void *));
  const bool valid = block_size(bytes, &size);
  assert(valid);
  (void)valid;
  weft_array_free(allocator, block, 1, size);
}

static enum weft_status host_copy(struct weft_device *device, const struct weft_copy *copy,
                                  struct weft_stream *stream, struct weft_error *error) {
  assert(weft_device_is_host(copy->to_device) && weft_device_is_host(copy->from_device));
  (void)device;
  (void)stream;
  (void)error;
  for (uint64_t k = 0; k < copy->rows; k++) {
    memcpy((unsigned char *)copy->to + k * copy->to_stride,
           (const unsigned char *)copy->from + k * copy->from_stride, (size_t)copy->row_bytes);
  }
  return WEFT_OK;
}

static enum weft_status host_fill(struct weft_device *device, void *data, unsigned char value,
                                  uint64_t bytes, struct weft_stream *stream,
                                  struct weft_error *error) {
  assert(data != NULL || bytes == 0);
  (void)device;
  (void)stream;
  (void)error;
  if (bytes > 0) {
    memset(data, value, (size_t)bytes);
  }
  return WEFT_OK;
}

static enum weft_status host_checksum(struct weft_device *device, const void *data, uint64_t bytes,
                                      uint64_t *sum, struct weft_error *error) {
  (void)device;
  (void)error;
  *sum = weft_checksum(data, bytes);
  return WEFT_OK;
}

struct weft_device *weft_host_device(void) {
  static const struct weft_device_ops ops = {
      .name = "host",
      .memory = WEFT_MEMORY_HOST,
      .allocate = host_allocate,
      .free = host_free,
      .copy = host_copy,
      .fill = host_fill,
      .checksum = host_checksum,
  };
  static struct weft_device host = {.ops = &ops}; /* never written */
  return &host;
}
