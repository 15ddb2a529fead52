/* Buffers and pools; see buffer_pool.h. */
#include "run/executor/buffer_pool.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

/* ---- Layout ---- */

static bool place_tensor(struct weft_buffer_layout *layout,
                         const struct weft_boundary_tensor *tensor, uint32_t source) {
  const uint32_t k = layout->tensor_count;
  uint64_t bytes, end;
  if (!weft_shape_bytes(&tensor->largest, &bytes) || !weft_add(layout->capacity, bytes, &end) ||
      !weft_add(end, WEFT_DEVICE_ALIGN - 1, &end)) {
    return false;
  }
  layout->sources[k] = source;
  layout->names[k] = tensor->name;
  layout->largest[k] = tensor->largest;
  layout->offsets[k] = layout->capacity;
  layout->largest_bytes[k] = bytes;
  layout->capacity = end & ~(uint64_t)(WEFT_DEVICE_ALIGN - 1);
  layout->tensor_count++;
  return true;
}

enum weft_status weft_boundary_check(const struct weft_boundary *boundary, uint32_t number,
                                     struct weft_error *error) {
  if (boundary->tensor_count > WEFT_TENSORS_MAX) {
    return weft_fail(error, WEFT_ERR_LIMIT, "put several into one tensor",
                     "boundaries[%" PRIu32 "] has %" PRIu32 " tensors, at most %d are possible",
                     number, boundary->tensor_count, WEFT_TENSORS_MAX);
  }
  for (uint32_t k = 0; k < boundary->tensor_count; k++) {
    uint64_t bytes;
    if (!weft_shape_bytes(&boundary->tensors[k].largest, &bytes)) {
      return weft_fail(error, WEFT_ERR_USAGE, "see enum weft_dtype and WEFT_DIMS_MAX",
                       "tensor %" PRIu32 " of boundaries[%" PRIu32
                       "] has a shape that cannot be: dtype %u, %u dimensions",
                       k, number, boundary->tensors[k].largest.dtype,
                       boundary->tensors[k].largest.dim_count);
    }
  }
  return WEFT_OK;
}

enum weft_status weft_buffer_layout_init(struct weft_buffer_layout *layout,
                                         const struct weft_boundary *boundary, bool gradients,
                                         uint32_t number, struct weft_error *error) {
  *layout = (struct weft_buffer_layout){.tensor_count = 0};
  for (uint32_t k = 0; k < boundary->tensor_count; k++) {
    const struct weft_boundary_tensor *tensor = &boundary->tensors[k];
    if ((!gradients || tensor->needs_grad) && !place_tensor(layout, tensor, k)) {
      return weft_fail(error, WEFT_ERR_USAGE, "look at their dimensions",
                       "the tensors of boundaries[%" PRIu32 "] have more bytes than can be counted",
                       number);
    }
  }
  return WEFT_OK;
}

/* ---- Pools ---- */

void weft_buffer_pool_init(struct weft_buffer_pool *pool, const struct weft_allocator *allocator,
                           struct weft_device *device) {
  *pool = (struct weft_buffer_pool){.allocator = allocator, .device = device};
  pool->sends_end = &pool->sends;
}

static void free_buffer(const struct weft_buffer_pool *pool, struct weft_buffer *buffer) {
  const uint64_t capacity = pool->layout.capacity;
  weft_device_free(pool->device, pool->allocator, buffer->resident, capacity);
  weft_device_free(buffer->message.device, pool->allocator, buffer->message.data, capacity);
  weft_device_free(NULL, pool->allocator, buffer, sizeof *buffer);
}

void weft_buffer_pool_finish(struct weft_buffer_pool *pool) {
  while (pool->all != NULL) {
    struct weft_buffer *buffer = pool->all;
    assert(!buffer->under_way);
    pool->all = buffer->older;
    free_buffer(pool, buffer);
  }
  weft_buffer_pool_init(pool, pool->allocator, pool->device);
}

static enum weft_status make_buffer(const struct weft_buffer_pool *pool, struct weft_buffer **out,
                                    struct weft_error *error) {
  const uint64_t capacity = pool->layout.capacity;
  /* As memory of the host, which is aligned to cache lines: messages touch several of these. */
  struct weft_buffer *buffer = weft_device_allocate(NULL, pool->allocator, sizeof *buffer);
  if (buffer == NULL) {
    return weft_fail_memory(error, sizeof *buffer);
  }
  buffer->message.device = pool->staged ? pool->message_device : pool->device;
  buffer->message.capacity = capacity;
  buffer->message.data = weft_device_allocate(buffer->message.device, pool->allocator, capacity);
  buffer->resident =
      pool->staged ? weft_device_allocate(pool->device, pool->allocator, capacity) : NULL;
  if (buffer->message.data == NULL || (pool->staged && buffer->resident == NULL)) {
    struct weft_device *device =
        buffer->message.data == NULL ? buffer->message.device : pool->device;
    const enum weft_status status = weft_device_fail_allocation(device, capacity, error);
    free_buffer(pool, buffer);
    return status;
  }
  *out = buffer;
  return WEFT_OK;
}

enum weft_status weft_buffer_pool_grow(struct weft_buffer_pool *pool, uint32_t count,
                                       struct weft_error *error) {
  while (pool->count < count) {
    struct weft_buffer *buffer = NULL;
    WEFT_TRY(make_buffer(pool, &buffer, error));
    assert(buffer != NULL);
    buffer->older = pool->all;
    pool->all = buffer;
    weft_buffer_pool_free(pool, buffer);
    pool->count++;
  }
  return WEFT_OK;
}

enum weft_status weft_buffer_pool_move(struct weft_buffer_pool *pool, struct weft_device *device,
                                       bool staged, struct weft_error *error) {
  const uint64_t capacity = pool->layout.capacity;
  assert(pool->taken == 0 && pool->sends == NULL && !pool->staged);
  for (struct weft_buffer *buffer = pool->all; buffer != NULL; buffer = buffer->older) {
    void *data = weft_device_allocate(device, pool->allocator, capacity);
    if (data == NULL) {
      return weft_device_fail_allocation(device, capacity, error);
    }
    if (staged) {
      buffer->resident = buffer->message.data;
    } else {
      weft_device_free(buffer->message.device, pool->allocator, buffer->message.data, capacity);
    }
    buffer->message.data = data;
    buffer->message.device = device;
  }
  pool->staged = staged;
  *(staged ? &pool->message_device : &pool->device) = device;
  return WEFT_OK;
}

void weft_buffer_pool_take_turns(struct weft_buffer_pool *pool) {
  pool->in_turn = true;
  pool->free_end = &pool->free;
  while (*pool->free_end != NULL) {
    pool->free_end = &(*pool->free_end)->next;
  }
}

void weft_buffer_pool_record_send(struct weft_buffer_pool *pool, struct weft_buffer *buffer) {
  assert(pool->taken > 0 && !buffer->under_way);
  buffer->under_way = true;
  buffer->next = NULL;
  *pool->sends_end = buffer;
  pool->sends_end = &buffer->next;
  pool->taken--;
}

void weft_buffer_pool_end_send(struct weft_buffer_pool *pool) {
  struct weft_buffer *buffer = pool->sends;
  assert(buffer->under_way);
  buffer->under_way = false;
  pool->sends = buffer->next;
  if (pool->sends == NULL) {
    pool->sends_end = &pool->sends;
  }
  weft_buffer_pool_free(pool, buffer);
}

/* ---- Tensors in a buffer ---- */

static void set_views(struct weft_buffer *buffer, const struct weft_buffer_pool *pool,
                      const struct weft_tensor_shape *shapes) {
  const struct weft_buffer_layout *layout = &pool->layout;
  assert(!buffer->under_way && (buffer->resident != NULL) == pool->staged);
  unsigned char *data = buffer->resident != NULL ? buffer->resident : buffer->message.data;
  struct weft_device *device = buffer->resident != NULL ? pool->device : buffer->message.device;
  buffer->tensors.count = layout->tensor_count;
  for (uint32_t k = 0; k < layout->tensor_count; k++) {
    buffer->tensors.items[k] = (struct weft_tensor){.name = layout->names[k],
                                                    .data = data + layout->offsets[k],
                                                    .device = device,
                                                    .shape = shapes[k]};
  }
}

void weft_buffer_offer(struct weft_buffer *buffer, const struct weft_buffer_pool *pool) {
  set_views(buffer, pool, pool->layout.largest);
}

void weft_buffer_match(struct weft_buffer *buffer, const struct weft_buffer_pool *pool,
                       const struct weft_tensors *of) {
  const struct weft_buffer_layout *layout = &pool->layout;
  for (uint32_t k = 0; k < layout->tensor_count; k++) {
    if (layout->sources[k] < of->count) {
      buffer->tensors.items[k].shape = of->items[layout->sources[k]].shape;
    }
  }
}

static bool is_allowed(const struct weft_tensor_shape *shape,
                       const struct weft_buffer_layout *layout, uint32_t k, uint64_t *bytes) {
  if (memcmp(shape, &layout->largest[k], sizeof *shape) == 0) { /* as it mostly is */
    *bytes = layout->largest_bytes[k];
    return true;
  }
  return shape->dtype == layout->largest[k].dtype && weft_shape_bytes(shape, bytes) &&
         *bytes <= layout->largest_bytes[k];
}

enum weft_status weft_buffer_pack(struct weft_buffer *buffer, const struct weft_buffer_pool *pool,
                                  struct weft_error *error) {
  const struct weft_buffer_layout *layout = &pool->layout;
  struct weft_message *message = &buffer->message;
  uint64_t bytes = 0;
  if (buffer->tensors.count != layout->tensor_count) {
    return weft_fail(error, WEFT_ERR_STAGE, "a stage may change shapes only",
                     "it has left %" PRIu32 " tensors where its boundary has %" PRIu32,
                     buffer->tensors.count, layout->tensor_count);
  }
  for (uint32_t k = 0; k < layout->tensor_count; k++) {
    const struct weft_tensor_shape *shape = &buffer->tensors.items[k].shape;
    uint64_t size;
    if (!is_allowed(shape, layout, k, &size)) {
      return weft_fail(error, WEFT_ERR_STAGE,
                       "make the boundary's largest shape larger, or the output smaller",
                       "tensor %" PRIu32 " has become larger than its boundary allows (%" PRIu64
                       " bytes), or of another dtype",
                       k, layout->largest_bytes[k]);
    }
    message->shapes[k] = *shape;
    bytes = size > 0 ? layout->offsets[k] + size : bytes;
  }
  message->header.tensor_count = (uint8_t)layout->tensor_count;
  message->header.bytes = bytes;
  return WEFT_OK;
}

/* Whether stages that use the one can use memory of the other. */
static bool is_same_kind(const struct weft_device *device, const struct weft_device *other) {
  return device == other || (weft_device_is_host(device) && weft_device_is_host(other)) ||
         strcmp(weft_device_name(device), weft_device_name(other)) == 0;
}

enum weft_status weft_buffer_unpack(struct weft_buffer *buffer, const struct weft_buffer_pool *pool,
                                    struct weft_error *error) {
  const struct weft_buffer_layout *layout = &pool->layout;
  const struct weft_message *message = &buffer->message;
  if (!pool->staged && !is_same_kind(message->device, pool->device)) {
    return weft_fail(error, WEFT_ERR_PROTOCOL,
                     "where buffers are handed over, all ranks need the same kind of device",
                     "a message came in the memory of a %s device, and the stages here use %s",
                     weft_device_name(message->device), weft_device_name(pool->device));
  }
  if (message->header.tensor_count != layout->tensor_count) {
    return weft_fail(error, WEFT_ERR_PROTOCOL, "all ranks must describe the same boundaries",
                     "a message has %u tensors where %" PRIu32 " are expected",
                     message->header.tensor_count, layout->tensor_count);
  }
  for (uint32_t k = 0; k < layout->tensor_count; k++) {
    uint64_t bytes;
    if (!is_allowed(&message->shapes[k], layout, k, &bytes) ||
        (bytes > 0 && layout->offsets[k] + bytes > message->header.bytes)) {
      return weft_fail(error, WEFT_ERR_PROTOCOL, "all ranks must describe the same boundaries",
                       "tensor %" PRIu32 " of a message does not fit its boundary", k);
    }
  }
  set_views(buffer, pool, message->shapes);
  return WEFT_OK;
}

enum weft_status weft_buffer_copy(const struct weft_buffer *buffer,
                                  const struct weft_buffer_pool *pool, bool to_message,
                                  struct weft_stream *stream, struct weft_error *error) {
  const struct weft_message *message = &buffer->message;
  struct weft_copy copy = {.row_bytes = message->header.bytes, .rows = 1};
  assert(pool->staged && copy.row_bytes <= pool->layout.capacity);
  if (copy.row_bytes == 0) {
    return WEFT_OK;
  }
  copy.to = to_message ? message->data : buffer->resident;
  copy.to_device = to_message ? message->device : pool->device;
  copy.from = to_message ? buffer->resident : message->data;
  copy.from_device = to_message ? pool->device : message->device;
  /* By the device of this rank, whose stream it is. */
  return pool->device->ops->copy(pool->device, &copy, stream, error);
}
