/* Buffers for the tensors that cross a boundary. A pool belongs to one side of one boundary
 * and direction; all its buffers have the boundary's capacity. A hand-over swaps the memory
 * of two ranks' buffers, so each rank keeps as many as it had. */
#ifndef RUN_BUFFER_POOL_H
#define RUN_BUFFER_POOL_H

#include <weft/run.h>

/* Where the tensors of a boundary are in a buffer: each at a fixed offset with room for its
 * largest shape, so their addresses never depend on sizes. */
struct weft_buffer_layout {
  uint32_t tensor_count;
  const char *names[WEFT_TENSORS_MAX];
  struct weft_tensor_shape largest[WEFT_TENSORS_MAX];
  uint64_t offsets[WEFT_TENSORS_MAX];
  uint64_t largest_bytes[WEFT_TENSORS_MAX];
  uint32_t sources[WEFT_TENSORS_MAX]; /* index in the boundary */
  uint64_t capacity;                  /* of a buffer */
};

/* Whether counts and shapes of a boundary are possible, before anything else reads it. `number`
 * in options.boundaries is for messages. */
enum weft_status weft_boundary_check(const struct weft_boundary *boundary, uint32_t number,
                                     struct weft_error *error);

/* The activations of a boundary, or the gradients of those tensors that need one. `number` as
 * above. */
enum weft_status weft_buffer_layout_init(struct weft_buffer_layout *layout,
                                         const struct weft_boundary *boundary, bool gradients,
                                         uint32_t number, struct weft_error *error);

/* The small fields lie beside message.data, so that an action touches few cache lines. */
struct weft_buffer {
  struct weft_message message; /* message.data is the memory, on message.device */
  void *resident;              /* on the pool's device, with message.data a copy of it for the
                                transport; NULL: there is only message.data */
  /* In a streamed pool, the last work on `resident`, which is this rank's, as message.event is that
   * on message.data. */
  struct weft_device_event *last_use; /* NULL: there is none to wait for */
  uint64_t last_use_number;
  struct weft_buffer *next;    /* in the pool's list of free buffers or of sends */
  struct weft_buffer *older;   /* in the list of all buffers */
  uint64_t sequence;           /* on its channel, as a receive expects it */
  uint32_t record;             /* the SEND or RECV it is under way for, */
  uint32_t transfer;           /* which has this number in its row, where the transport enqueues */
  bool under_way;              /* the transport has it */
  struct weft_tensors tensors; /* views into the one on the device */
};

struct weft_buffer_pool {
  const struct weft_allocator *allocator;
  struct weft_device *device;         /* where the tensors are; NULL: host */
  bool staged;                        /* messages are in other memory than the tensors: */
  struct weft_device *message_device; /* there; NULL: host */
  bool streamed; /* copies between both are enqueued; else complete at return */
  struct weft_buffer_layout layout;
  uint32_t count;                /* buffers in all */
  uint32_t taken;                /* not in `free`, not under way as sends */
  struct weft_buffer *all;       /* every buffer, newest first */
  struct weft_buffer *free;      /* last in, first out: likely in the cache; */
  bool in_turn;                  /* or first in, first out, */
  struct weft_buffer **free_end; /* where then the next one goes */
  struct weft_buffer *sends;     /* under way, oldest first */
  struct weft_buffer **sends_end;
};

void weft_buffer_pool_init(struct weft_buffer_pool *pool, const struct weft_allocator *allocator,
                           struct weft_device *device);
/* Frees all buffers; none may be under way. */
void weft_buffer_pool_finish(struct weft_buffer_pool *pool);
/* From here on messages are in the memory of that device, and the tensors too, unless they are
 * `staged`: these stay where they are. No buffer is in use. WEFT_ERR_MEMORY. */
enum weft_status weft_buffer_pool_move(struct weft_buffer_pool *pool, struct weft_device *device,
                                       bool staged, struct weft_error *error);
/* At least `count` buffers. */
enum weft_status weft_buffer_pool_grow(struct weft_buffer_pool *pool, uint32_t count,
                                       struct weft_error *error);

/* From here on the buffer that has been free for longest is taken. */
void weft_buffer_pool_take_turns(struct weft_buffer_pool *pool);

/* NULL when all are in use. */
static inline struct weft_buffer *weft_buffer_pool_take(struct weft_buffer_pool *pool) {
  struct weft_buffer *buffer = pool->free;
  if (buffer != NULL) {
    pool->free = buffer->next;
    pool->taken++;
  }
  return buffer;
}

/* Puts a buffer among the free ones. */
static inline void weft_buffer_pool_free(struct weft_buffer_pool *pool,
                                         struct weft_buffer *buffer) {
  if (pool->in_turn) {
    struct weft_buffer **end = pool->free != NULL ? pool->free_end : &pool->free;
    buffer->next = NULL;
    *end = buffer;
    pool->free_end = &buffer->next;
    return;
  }
  buffer->next = pool->free;
  pool->free = buffer;
}

static inline void weft_buffer_pool_give(struct weft_buffer_pool *pool,
                                         struct weft_buffer *buffer) {
  weft_buffer_pool_free(pool, buffer);
  pool->taken--;
}

/* Moves a buffer from taken to the list of sends; and the oldest from there to free. */
void weft_buffer_pool_record_send(struct weft_buffer_pool *pool, struct weft_buffer *buffer);
void weft_buffer_pool_end_send(struct weft_buffer_pool *pool);

/* Views with the largest shapes, for a stage to fill. */
void weft_buffer_offer(struct weft_buffer *buffer, const struct weft_buffer_pool *pool);
/* Gives a gradient buffer's views the shapes of the tensors that they are gradients of. */
void weft_buffer_match(struct weft_buffer *buffer, const struct weft_buffer_pool *pool,
                       const struct weft_tensors *of);
/* Writes shapes and bytes of the views to the message. WEFT_ERR_STAGE when a stage made a
 * tensor larger than its boundary allows, or of another dtype. */
enum weft_status weft_buffer_pack(struct weft_buffer *buffer, const struct weft_buffer_pool *pool,
                                  struct weft_error *error);
/* Sets the views from a received message. WEFT_ERR_PROTOCOL when a tensor does not fit the
 * boundary, or the buffer came from a device of another kind. */
enum weft_status weft_buffer_unpack(struct weft_buffer *buffer, const struct weft_buffer_pool *pool,
                                    struct weft_error *error);

/* In a staged pool: copies the payload to the message, before a send; or from it, after a
 * receive. NULL stream: complete at return. */
enum weft_status weft_buffer_copy(const struct weft_buffer *buffer,
                                  const struct weft_buffer_pool *pool, bool to_message,
                                  struct weft_stream *stream, struct weft_error *error);

#endif
