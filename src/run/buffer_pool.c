/* Buffers and pools; see buffer_pool.h. */
#include "run/buffer_pool.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "base/memory.h"

enum { ALIGNMENT = 64 };

/* ---- Layout ---- */

static bool place_tensor(struct weft_layout *layout, const struct weft_boundary_tensor *tensor,
                         uint32_t source) {
  const uint32_t k = layout->tensor_count;
  uint64_t bytes, end;
  if (!weft_shape_bytes(&tensor->largest, &bytes) || !weft_add(layout->capacity, bytes, &end) ||
      !weft_add(end, ALIGNMENT - 1, &end)) {
    return false;
  }
  layout->sources[k] = source;
  layout->names[k] = tensor->name;
  layout->largest[k] = tensor->largest;
  layout->offsets[k] = layout->capacity;
  layout->largest_bytes[k] = bytes;
  layout->capacity = end & ~(uint64_t)(ALIGNMENT - 1);
  layout->tensor_count++;
  return true;
}

enum weft_status weft_layout_init(struct weft_layout *layout, const struct weft_boundary *boundary,
                                  bool gradients, uint32_t stage, struct weft_error *error) {
  *layout = (struct weft_layout){.tensor_count = 0};
  if (boundary->tensor_count > WEFT_TENSORS_MAX) {
    return weft_fail(error, WEFT_ERR_LIMIT, "put several into one tensor",
                     "the boundary behind stage %" PRIu32 " has %" PRIu32
                     " tensors, at most %d are possible",
                     stage, boundary->tensor_count, WEFT_TENSORS_MAX);
  }
  for (uint32_t k = 0; k < boundary->tensor_count; k++) {
    const struct weft_boundary_tensor *tensor = &boundary->tensors[k];
    if ((!gradients || tensor->needs_grad) && !place_tensor(layout, tensor, k)) {
      return weft_fail(error, WEFT_ERR_USAGE, "see enum weft_dtype and WEFT_DIMS_MAX",
                       "tensor %" PRIu32 " of the boundary behind stage %" PRIu32
                       " has a shape that cannot be: dtype %u, %u dimensions",
                       k, stage, tensor->largest.dtype, tensor->largest.dim_count);
    }
  }
  return WEFT_OK;
}

/* ---- Memory: aligned, with the block's own address kept in front of it ---- */

static size_t block_size(uint64_t capacity) {
  return (size_t)capacity + ALIGNMENT + sizeof(void *);
}

static void *allocate_aligned(const struct weft_allocator *allocator, uint64_t capacity) {
  if (capacity > SIZE_MAX / 2) {
    return NULL;
  }
  unsigned char *block = weft_array_allocate_zero(allocator, 1, block_size(capacity));
  if (block == NULL) {
    return NULL;
  }
  const uintptr_t start = (uintptr_t)block + sizeof(void *);
  unsigned char *aligned = block + sizeof(void *) + (ALIGNMENT - start % ALIGNMENT) % ALIGNMENT;
  memcpy(aligned - sizeof(void *), &block, sizeof(void *));
  return aligned;
}

static void free_aligned(const struct weft_allocator *allocator, void *aligned, uint64_t capacity) {
  unsigned char *block;
  memcpy(&block, (unsigned char *)aligned - sizeof(void *), sizeof(void *));
  weft_array_free(allocator, block, 1, block_size(capacity));
}

/* ---- Pools ---- */

void weft_buffer_pool_init(struct weft_buffer_pool *pool, const struct weft_allocator *allocator) {
  *pool = (struct weft_buffer_pool){.allocator = allocator};
  pool->sends_end = &pool->sends;
}

void weft_buffer_pool_finish(struct weft_buffer_pool *pool) {
  while (pool->all != NULL) {
    struct weft_buffer *buffer = pool->all;
    assert(!buffer->under_way);
    pool->all = buffer->older;
    free_aligned(pool->allocator, buffer->message.data, pool->layout.capacity);
    weft_array_free(pool->allocator, buffer, 1, sizeof *buffer);
  }
  weft_buffer_pool_init(pool, pool->allocator);
}

enum weft_status weft_buffer_pool_grow(struct weft_buffer_pool *pool, uint32_t count,
                                       struct weft_error *error) {
  while (pool->count < count) {
    struct weft_buffer *buffer = weft_array_allocate_zero(pool->allocator, 1, sizeof *buffer);
    void *data = buffer != NULL ? allocate_aligned(pool->allocator, pool->layout.capacity) : NULL;
    if (data == NULL) {
      weft_array_free(pool->allocator, buffer, 1, sizeof *buffer);
      return weft_fail_memory(error, sizeof *buffer + block_size(pool->layout.capacity));
    }
    buffer->message.data = data;
    buffer->message.capacity = pool->layout.capacity;
    buffer->older = pool->all;
    pool->all = buffer;
    buffer->next = pool->free;
    pool->free = buffer;
    pool->count++;
  }
  return WEFT_OK;
}

void weft_buffer_pool_note_send(struct weft_buffer_pool *pool, struct weft_buffer *buffer) {
  buffer->under_way = true;
  buffer->next = NULL;
  *pool->sends_end = buffer;
  pool->sends_end = &buffer->next;
  pool->taken--;
}

void weft_buffer_pool_end_send(struct weft_buffer_pool *pool, struct weft_buffer **link) {
  struct weft_buffer *buffer = *link;
  buffer->under_way = false;
  *link = buffer->next;
  if (pool->sends_end == &buffer->next) {
    pool->sends_end = link;
  }
  buffer->next = pool->free;
  pool->free = buffer;
}

/* ---- Tensors in a buffer ---- */

void weft_buffer_offer(struct weft_buffer *buffer, const struct weft_layout *layout) {
  unsigned char *data = buffer->message.data;
  buffer->tensors.count = layout->tensor_count;
  for (uint32_t k = 0; k < layout->tensor_count; k++) {
    buffer->tensors.items[k] = (struct weft_tensor){
        .name = layout->names[k], .data = data + layout->offsets[k], .shape = layout->largest[k]};
  }
}

void weft_buffer_match(struct weft_buffer *buffer, const struct weft_layout *layout,
                       const struct weft_tensors *of) {
  for (uint32_t k = 0; k < layout->tensor_count; k++) {
    if (layout->sources[k] < of->count) {
      buffer->tensors.items[k].shape = of->items[layout->sources[k]].shape;
    }
  }
}

static bool is_allowed(const struct weft_tensor_shape *shape, const struct weft_layout *layout,
                       uint32_t k, uint64_t *bytes) {
  if (memcmp(shape, &layout->largest[k], sizeof *shape) == 0) { /* as it mostly is */
    *bytes = layout->largest_bytes[k];
    return true;
  }
  return shape->dtype == layout->largest[k].dtype && weft_shape_bytes(shape, bytes) &&
         *bytes <= layout->largest_bytes[k];
}

enum weft_status weft_buffer_pack(struct weft_buffer *buffer, const struct weft_layout *layout,
                                  struct weft_error *error) {
  struct weft_message *message = &buffer->message;
  uint64_t bytes = 0;
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

enum weft_status weft_buffer_unpack(struct weft_buffer *buffer, const struct weft_layout *layout,
                                    struct weft_error *error) {
  const struct weft_message *message = &buffer->message;
  if (message->header.tensor_count != layout->tensor_count) {
    return weft_fail(error, WEFT_ERR_PROTOCOL, "all ranks must describe the same boundaries",
                     "a message has %u tensors where %" PRIu32 " are expected",
                     message->header.tensor_count, layout->tensor_count);
  }
  weft_buffer_offer(buffer, layout);
  for (uint32_t k = 0; k < layout->tensor_count; k++) {
    uint64_t bytes;
    if (!is_allowed(&message->shapes[k], layout, k, &bytes) ||
        (bytes > 0 && layout->offsets[k] + bytes > message->header.bytes)) {
      return weft_fail(error, WEFT_ERR_PROTOCOL, "all ranks must describe the same boundaries",
                       "tensor %" PRIu32 " of a message does not fit its boundary", k);
    }
    buffer->tensors.items[k].shape = message->shapes[k];
  }
  return WEFT_OK;
}
