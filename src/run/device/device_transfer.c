/* Where messages travel between ranks of one process, some of which are on devices with streams. Both
 * ends of a channel decide alike, from the devices of the two ranks:
 *
 *     sender      receiver             messages are in                  copies
 *     host        host                 memory of the host               none: handed over
 *     GPU         the same GPU         its memory                       none: handed over
 *     GPU         GPU that reaches it  memory of the sender's GPU       the receiver
 *     GPU         GPU                  pinned memory                    both
 *     host        GPU                  pinned memory                    the receiver
 *     GPU         host                 pinned memory                    the sender
 *
 * Where a rank is a process and its transport enqueues (nccl), a message is in the memory of each
 * rank's GPU, and what is a copy below is the transfer itself, from one to the other.
 *
 * A rank copies what it sends in one stream and what it receives in another, beside the stream
 * that computes. Events order them:
 *
 *     compute        outgoing                    incoming of the receiver     its compute
 *     cell, event
 *                    wait for the cell
 *                    wait for the message's
 *                      last reader
 *                    copy to the message, event
 *                                                wait for that copy
 *                                                wait for the last cell that
 *                                                  used the tensors
 *                                                copy from it, event
 *                                                                             wait for that copy
 *                                                                             cell
 *     wait for the copy
 *     another cell writes the tensors
 *
 * Messages change hands as everywhere, and carry the event of the last copy; tensors stay with
 * their rank, and have the event of their last use beside them. */
#include <assert.h>
#include <sched.h>

#include <weft/support.h>

#include "run/executor/executor.h"
#include "run/handshake.h"

/* Of a rank of this process; NULL: it is on the host. */
static struct weft_device *device_of(const struct weft_executor *executor, uint32_t rank) {
  struct weft_transport *transport = executor->transport;
  const struct weft_handshake *of = transport->ops->exchanged(transport, rank);
  return (struct weft_device *)(uintptr_t)of->device; // NOLINT(performance-no-int-to-ptr)
}

void weft_executor_await_devices(const struct weft_executor *executor, int64_t limit) {
  struct weft_transport *transport = executor->transport;
  if (executor->device != NULL || !executor->connected) {
    return;
  }
  const int64_t begin = weft_clock_ns();
  for (uint32_t r = 0; r < transport->rank_count; r++) {
    struct weft_rank_status *status = transport->ops->rank_status(transport, r);
    while ((__atomic_fetch_or(&status->flags, 0, __ATOMIC_ACQ_REL) & WEFT_RANK_IN_STEP) != 0) {
      if (limit > 0 && weft_clock_ns() - begin > limit) {
        struct weft_device *device = device_of(executor, r);
        device->ops->abandon(device);
        break;
      }
      (void)sched_yield();
    }
  }
}

static enum weft_status connect_pool(struct weft_executor *executor, struct weft_buffer_pool *pool,
                                     uint32_t peer, bool sends, struct weft_error *error) {
  const uint32_t rank = executor->transport->rank;
  if (pool == NULL || peer == UINT32_MAX || peer == rank) {
    return WEFT_OK;
  }
  if (weft_executor_is_enqueued(executor)) {
    /* The transport moves what these pools hold, in the streams for copies. Buffers are used in
     * turn: the one that was sent last is the last to be free. */
    pool->streamed = true;
    weft_buffer_pool_take_turns(pool);
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
  if (executor->connected ||
      (executor->transport->ops->step_barrier == NULL && !weft_executor_is_enqueued(executor))) {
    return WEFT_OK;
  }
  for (uint32_t k = 0; k < executor->own_count; k++) {
    const struct weft_executor_stage *stage = &executor->stages[k];
    for (uint32_t n = 0; n < stage->port_count; n++) {
      const struct weft_port *port = &stage->ports[n];
      const bool in = n < stage->in_count;
      if (port->near == NULL) {
        WEFT_TRY(connect_pool(executor, port->activations, port->rank, !in, error));
        WEFT_TRY(connect_pool(executor, port->gradients, port->rank, in, error));
      }
    }
  }
  executor->connected = true;
  return weft_executor_fit_copies(executor, error);
}

/* ---- Copies ---- */

static bool has_copies(const struct weft_executor *executor) {
  for (uint32_t n = 0; n < 2 * executor->port_count; n++) {
    if (executor->pools[n].streamed) {
      return true;
    }
  }
  return false;
}

void weft_executor_free_copies(struct weft_executor *executor) {
  struct weft_device_work *work = executor->device;
  const struct weft_device_ops *ops = work->device->ops;
  for (uint32_t k = 0; k < work->copy_room; k++) {
    ops->event_destroy(work->device, work->copies[k]);
  }
  ops->free_host(work->device, work->moved);
  ops->free_host(work->device, work->move_clocks);
  weft_arena_finish(&work->copy_memory);
  work->copies = NULL;
  work->transfers = NULL;
  work->moved = NULL;
  work->move_clocks = NULL;
  work->copy_room = 0;
}

enum weft_status weft_executor_fit_copies(struct weft_executor *executor,
                                          struct weft_error *error) {
  struct weft_device_work *work = executor->device;
  if (work == NULL || !executor->connected || !has_copies(executor)) {
    return WEFT_OK;
  }
  const struct weft_device_ops *ops = work->device->ops;
  const struct weft_allocator *allocator = executor->allocator;
  const uint32_t count = work->transfer_count;
  if (work->incoming == NULL) {
    WEFT_TRY(ops->stream_create(work->device, &work->incoming, error));
  }
  if (work->outgoing == NULL) {
    WEFT_TRY(ops->stream_create(work->device, &work->outgoing, error));
  }
  if (count <= work->copy_room) {
    return WEFT_OK;
  }
  weft_executor_free_copies(executor); /* their events are of steps before */
  work->copy_memory.allocator = allocator;
  work->copies = weft_arena_allocate(&work->copy_memory, count, sizeof(void *));
  if (weft_executor_is_enqueued(executor)) { /* tell how far the transfers of a row are */
    work->transfers = weft_arena_allocate(&work->copy_memory, count, sizeof *work->transfers);
    work->moved = ops->allocate_host(work->device, sizeof *work->moved);
    work->move_clocks = ops->allocate_host(work->device, count * sizeof *work->move_clocks);
    if (work->moved == NULL || work->move_clocks == NULL) {
      return weft_device_fail_allocation(work->device, count * sizeof *work->move_clocks, error);
    }
  }
  WEFT_TRY(weft_arena_status(&work->copy_memory, error));
  work->copy_room = count;
  for (uint32_t k = 0; k < count; k++) {
    WEFT_TRY(ops->event_create(work->device, false, &work->copies[k], error));
  }
  return WEFT_OK;
}

/* One of the two streams waits for the last work of the rank's cells on the tensors, unless it
 * does so already. */
static enum weft_status await_cell(const struct weft_executor *executor,
                                   const struct weft_buffer *buffer, bool outgoing,
                                   struct weft_error *error) {
  struct weft_device_work *work = executor->device;
  const uint64_t number = buffer->last_use_number;
  if (buffer->last_use == NULL || number >> 32 != executor->round ||
      number < work->cell_before[outgoing]) {
    return WEFT_OK;
  }
  assert((number & WEFT_EVENT_COPY) == 0);
  work->cell_before[outgoing] = number + 1;
  return work->device->ops->event_wait(work->device, buffer->last_use,
                                       outgoing ? work->outgoing : work->incoming, error);
}

/* It waits for the last work of another rank on the message. */
static enum weft_status await_other(const struct weft_executor *executor,
                                    const struct weft_buffer *buffer, struct weft_stream *stream,
                                    struct weft_error *error) {
  const struct weft_message *message = &buffer->message;
  const struct weft_device_work *work = executor->device;
  return message->event == NULL || message->event_rank == executor->transport->rank ||
                 message->event_number >> 32 != executor->round
             ? WEFT_OK
             : work->device->ops->event_wait(work->device, message->event, stream, error);
}

/* Copies in the stream of its direction, between the waits and the event. The message then carries
 * the event, for `cell`. Where payloads are checked the host reads them, so the copy is complete. */
static enum weft_status enqueue_copy(struct weft_executor *executor, struct weft_buffer *buffer,
                                     const struct weft_buffer_pool *pool, bool outgoing,
                                     uint64_t cell, struct weft_error *error) {
  struct weft_device_work *work = executor->device;
  struct weft_stream *stream = outgoing ? work->outgoing : work->incoming;
  assert(work->copy_count < work->copy_room);
  struct weft_device_event *event = work->copies[work->copy_count++];
  WEFT_TRY(await_cell(executor, buffer, outgoing, error));
  WEFT_TRY(await_other(executor, buffer, stream, error));
  WEFT_TRY(weft_buffer_copy(buffer, pool, outgoing,
                            executor->options->check_payloads ? NULL : stream, error));
  WEFT_TRY(work->device->ops->event_record(work->device, event, stream, error));
  buffer->message.event = event;
  buffer->message.event_number = (executor->round << 32) | WEFT_EVENT_COPY | cell;
  buffer->message.event_rank = executor->transport->rank;
  return WEFT_OK;
}

enum weft_status weft_executor_transfer_out(struct weft_executor *executor,
                                            struct weft_buffer *buffer,
                                            const struct weft_buffer_pool *pool,
                                            struct weft_error *error) {
  if (!pool->streamed) {
    return weft_buffer_copy(buffer, pool, true, NULL, error);
  }
  assert(executor->device != NULL);
  if ((buffer->last_use_number & WEFT_EVENT_COPY) != 0 ||
      weft_executor_recording_failed(executor)) {
    return WEFT_OK; /* it is written; the transport did not take it at once */
  }
  const uint32_t cell = (uint32_t)buffer->last_use_number;
  WEFT_TRY(weft_executor_record_error(
      executor, enqueue_copy(executor, buffer, pool, true, cell, error), error));
  buffer->last_use = executor->device->departed = buffer->message.event;
  buffer->last_use_number = buffer->message.event_number;
  return WEFT_OK;
}

/* ---- Transfers that the transport enqueues ---- */

/* In a CUDA graph only edges make an order. So all transfers of the rank are in one stream there, and each
 * comes after the one before it in the row: then every order in which a device may take the recording's
 * nodes is one in which the program was proven to end (docs/gpu.md, NCCL's order). */
enum weft_status weft_executor_begin_transfer(struct weft_executor *executor,
                                              struct weft_buffer *buffer, bool outgoing,
                                              struct weft_error *error) {
  struct weft_device_work *work = executor->device;
  struct weft_message *message = &buffer->message;
  message->recorded = work->recording != NULL;
  message->stream = outgoing && !message->recorded ? work->outgoing : work->incoming;
  const enum weft_status status = WEFT_ENQUEUE(
      executor, await_cell(executor, buffer, outgoing && !message->recorded, error), error);
  message->header_only = weft_executor_recording_failed(executor);
  return status;
}

/* The transfer's event, and in a recording a note of it, beside the transfers. */
static enum weft_status enqueue_event(const struct weft_device_work *work, uint32_t number,
                                      struct weft_stream *stream, struct weft_error *error) {
  const struct weft_device_ops *ops = work->device->ops;
  struct weft_device_event *event = work->copies[number];
  WEFT_TRY(ops->event_record(work->device, event, stream, error));
  if (work->recording == NULL) {
    return WEFT_OK;
  }
  WEFT_TRY(ops->event_wait(work->device, event, work->outgoing, error));
  return ops->note(work->device, work->moved, number + 1, &work->move_clocks[number],
                   work->outgoing, error);
}

enum weft_status weft_executor_end_transfer(struct weft_executor *executor,
                                            struct weft_buffer *buffer, uint32_t peer,
                                            bool outgoing, struct weft_error *error) {
  struct weft_device_work *work = executor->device;
  assert(work->copy_count < work->copy_room);
  const uint32_t number = work->copy_count++;
  struct weft_device_event *event = work->copies[number];
  work->transfers[number] =
      (struct weft_device_transfer){.record = (uint32_t)executor->at, .peer = peer};
  buffer->transfer = number;
  buffer->last_use = buffer->message.event = event;
  buffer->last_use_number = (executor->round << 32) | WEFT_EVENT_COPY | work->enqueued;
  buffer->message.event_number = buffer->last_use_number;
  buffer->message.event_rank = peer;
  if (outgoing) {
    work->departed = event;
  }
  return WEFT_ENQUEUE(executor, enqueue_event(work, number, buffer->message.stream, error), error);
}

enum weft_status weft_executor_await_transfer(struct weft_executor *executor,
                                              struct weft_buffer *buffer,
                                              struct weft_error *error) {
  struct weft_device_work *work = executor->device;
  struct weft_device_event *event = buffer->message.event;
  assert(event != NULL && buffer->message.event_number >> 32 == executor->round);
  buffer->message.event = NULL;
  weft_executor_record_wait(work, buffer->message.event_rank, 0);
  if (work->wait_count > 0) {
    work->waits[work->wait_count - 1].transfer = event;
    work->waits[work->wait_count - 1].number = buffer->transfer;
  }
  return WEFT_ENQUEUE(
      executor, work->device->ops->event_wait(work->device, event, work->stream, error), error);
}

enum weft_status weft_executor_await_copy(struct weft_executor *executor,
                                          const struct weft_buffer *buffer,
                                          struct weft_error *error) {
  struct weft_device_work *work = executor->device;
  if (buffer->last_use == NULL || buffer->last_use_number >> 32 != executor->round ||
      weft_executor_recording_failed(executor)) {
    return WEFT_OK;
  }
  assert((buffer->last_use_number & WEFT_EVENT_COPY) != 0);
  work->departed = work->departed == buffer->last_use ? NULL : work->departed;
  return weft_executor_record_error(
      executor, work->device->ops->event_wait(work->device, buffer->last_use, work->stream, error),
      error);
}

enum weft_status weft_executor_join_copies(struct weft_executor *executor,
                                           struct weft_error *error) {
  struct weft_device_work *work = executor->device;
  if (work->departed == NULL) {
    return WEFT_OK;
  }
  work->trails = true; /* behind the last cell */
  return WEFT_ENQUEUE(
      executor, work->device->ops->event_wait(work->device, work->departed, work->stream, error),
      error);
}

/* The copy, and the wait of the next cell for it. */
static enum weft_status enqueue_receive(struct weft_executor *executor, struct weft_buffer *buffer,
                                        const struct weft_buffer_pool *pool,
                                        struct weft_error *error) {
  struct weft_device_work *work = executor->device;
  if (buffer->message.event != NULL && buffer->message.event_number >> 32 == executor->round) {
    weft_executor_record_wait(work, buffer->message.event_rank, buffer->message.event_number);
  }
  WEFT_TRY(enqueue_copy(executor, buffer, pool, false, work->enqueued, error));
  return work->device->ops->event_wait(work->device, buffer->message.event, work->stream, error);
}

enum weft_status weft_executor_transfer_in(struct weft_executor *executor,
                                           struct weft_buffer *buffer,
                                           const struct weft_buffer_pool *pool,
                                           struct weft_error *error) {
  if (!pool->streamed) {
    return weft_buffer_copy(buffer, pool, false, NULL, error);
  }
  assert(executor->device != NULL);
  return WEFT_ENQUEUE(executor, enqueue_receive(executor, buffer, pool, error), error);
}
