/* Where messages travel between ranks of one process, some of which are on devices with streams. Both
 * ends of a channel decide alike, from the devices of the two ranks:
 *
 *     sender      receiver             messages are in                  copies
 *     host        host                 memory of the host               none: handed over
 *     GPU         the same GPU         its memory                       none: handed over
 *     GPU         GPU that reaches it  memory of the sender's GPU       the receiver's stream
 *     GPU         GPU                  pinned memory                    the streams of both
 *     host        GPU                  pinned memory                    the receiver's stream
 *     GPU         host                 pinned memory                    the sender's stream
 *
 * A copy to the message is part of the cell that made it, and so before its event; a copy from it
 * comes after that event in the receiver's stream. Buffers change hands as everywhere, and carry
 * the event of the last work on them: the copy, or what came after it. */
#include <assert.h>

#include <weft/support.h>

#include "run/executor.h"
#include "run/handshake.h"

/* Of a rank of this process; NULL: it is on the host. */
static struct weft_device *device_of(const struct weft_executor *executor, uint32_t rank) {
  struct weft_transport *transport = executor->transport;
  const struct weft_handshake *of = transport->ops->exchanged(transport, rank);
  return (struct weft_device *)(uintptr_t)of->device; // NOLINT(performance-no-int-to-ptr)
}

static enum weft_status connect(struct weft_executor *executor, struct weft_buffer_pool *pool,
                                uint32_t peer, bool sends, struct weft_error *error) {
  const uint32_t rank = executor->transport->rank;
  if (pool == NULL || peer == UINT32_MAX || peer == rank) {
    return WEFT_OK;
  }
  struct weft_device *mine = device_of(executor, rank), *other = device_of(executor, peer);
  if (mine == NULL) {
    return other == NULL ? WEFT_OK
                         : weft_buffer_pool_move(pool, other->ops->pinned(other), false, error);
  }
  struct weft_device *receiver = sends ? other : mine;
  const enum weft_reach reach =
      other != NULL ? receiver->ops->reach(receiver, sends ? mine : other) : WEFT_REACH_NONE;
  if (reach == WEFT_REACH_USE || (reach == WEFT_REACH_COPY && sends)) {
    return WEFT_OK;
  }
  pool->streamed = true;
  return weft_buffer_pool_move(pool, reach == WEFT_REACH_COPY ? other : mine->ops->pinned(mine),
                               true, error);
}

enum weft_status weft_executor_connect(struct weft_executor *executor, struct weft_error *error) {
  if (executor->connected || executor->transport->ops->together == NULL) {
    return WEFT_OK;
  }
  for (uint32_t k = 0; k < executor->own_count; k++) {
    const struct weft_executor_stage *stage = &executor->stages[k];
    if (stage->above == NULL) {
      WEFT_TRY(connect(executor, stage->out, stage->above_rank, true, error));
      WEFT_TRY(connect(executor, stage->grad_in, stage->above_rank, false, error));
    }
    if (stage->below == NULL) {
      WEFT_TRY(connect(executor, stage->in, stage->below_rank, false, error));
      WEFT_TRY(connect(executor, stage->grad_out, stage->below_rank, true, error));
    }
  }
  executor->connected = true;
  return WEFT_OK;
}

/* Where payloads are checked the host reads them, and so the copies must be complete. */
static struct weft_stream *stream_for(const struct weft_executor *executor,
                                      struct weft_stream *stream) {
  return executor->options->check_payloads ? NULL : stream;
}

enum weft_status weft_executor_write_wire(struct weft_executor *executor,
                                          struct weft_buffer *buffer,
                                          const struct weft_buffer_pool *pool,
                                          struct weft_stream *stream, struct weft_error *error) {
  assert(pool->streamed);
  if (weft_executor_is_muted(executor)) {
    return WEFT_OK;
  }
  return weft_executor_tolerate(
      executor, weft_buffer_copy(buffer, pool, true, stream_for(executor, stream), error), error);
}

enum weft_status weft_executor_read_wire(struct weft_executor *executor, struct weft_buffer *buffer,
                                         const struct weft_buffer_pool *pool,
                                         struct weft_error *error) {
  if (!pool->streamed) {
    return weft_buffer_copy(buffer, pool, false, NULL, error);
  }
  assert(executor->device != NULL);
  WEFT_TRY(weft_executor_order(executor, buffer, error));
  if (weft_executor_is_muted(executor)) {
    return WEFT_OK;
  }
  return weft_executor_tolerate(
      executor,
      weft_buffer_copy(buffer, pool, false, stream_for(executor, executor->device->stream), error),
      error);
}
