/* Messages whose payload is on a GPU. post() enqueues the transfer at once, in the
 * order of the calls: the same order on both ranks, for each communicator, is what the caller
 * guarantees by communicators (weft/transport.h). A payload always has the channel's largest size, so a
 * receive needs no header to be enqueued. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "comm/nccl/nccl_world.h"

/* ---- Starting ---- */

struct weft_device_event *weft_nccl_mark_ahead(const struct weft_nccl_communicator *communicator,
                                               bool recorded) {
  const uint64_t mark = communicator->issued / WEFT_NCCL_AHEAD;
  return recorded || communicator->issued % WEFT_NCCL_AHEAD != 0 || mark < WEFT_NCCL_MARKS
             ? NULL
             : communicator->marks[mark % WEFT_NCCL_MARKS];
}

enum weft_status weft_nccl_count_issued(const struct weft_nccl_world *world,
                                        struct weft_nccl_communicator *communicator, bool recorded,
                                        struct weft_stream *stream, struct weft_error *error) {
  assert(stream != NULL && (recorded || world->device != NULL));
  if (recorded || ++communicator->issued % WEFT_NCCL_AHEAD != 0) {
    return WEFT_OK;
  }
  const uint64_t mark = communicator->issued / WEFT_NCCL_AHEAD - 1;
  return world->device->ops->event_record(
      world->device, communicator->marks[mark % WEFT_NCCL_MARKS], stream, error);
}

enum weft_status weft_nccl_own_stream(const struct weft_nccl_world *world,
                                      struct weft_nccl_communicator *communicator,
                                      struct weft_error *error) {
  assert(world->device != NULL);
  struct weft_device *device = world->device;
  WEFT_TRY(device->ops->make_current(device, error));
  return communicator->stream != NULL
             ? WEFT_OK
             : device->ops->stream_create(device, &communicator->stream, error);
}

enum weft_status weft_nccl_transfer(struct weft_nccl_world *world,
                                    const struct weft_nccl_communicator *communicator, bool sends,
                                    void *data, uint64_t bytes, struct weft_stream *stream,
                                    int64_t until, struct weft_error *error) {
  assert(communicator->size == 0 && bytes > 0);
  const struct weft_nccl_api *nccl = world->nccl;
  const ncclResult_t result =
      sends ? nccl->ncclSend(data, (size_t)bytes, ncclInt8, 1, communicator->comm, stream)
            : nccl->ncclRecv(data, (size_t)bytes, ncclInt8, 0, communicator->comm, stream);
  return weft_nccl_await(world, communicator->comm, result, sends ? "ncclSend" : "ncclRecv", until,
                         error);
}

static enum weft_status enqueue_transfer(struct weft_nccl_world *world,
                                         const struct weft_nccl_end *end,
                                         struct weft_nccl_communicator *communicator,
                                         const struct weft_message *message,
                                         struct weft_stream *stream, struct weft_error *error) {
  if (message->header_only) {
    return WEFT_OK;
  }
  if (message->recorded) {
    __atomic_store_n(&world->recorded, true, __ATOMIC_RELAXED);
  }
  if (end->base.bytes_max > 0) {
    const enum weft_status status =
        weft_nccl_transfer(world, communicator, end->base.sends, message->data, end->base.bytes_max,
                           stream, WEFT_TIME_NEVER, error);
    if (status < 0 && message->recorded) { /* NCCL takes nothing more, eager or not */
      return weft_fail(error, status,
                       "eager steps record nothing; NCCL_DEBUG=INFO has NCCL say more",
                       "while the step was recorded as a CUDA graph: %s", error->message);
    }
    WEFT_TRY(status);
  }
  return weft_nccl_count_issued(world, communicator, message->recorded, stream, error);
}

/* Without a stream of the caller's, test() asks for an event. */
static enum weft_status record_event(struct weft_nccl_world *world, struct weft_nccl_slot *slot,
                                     struct weft_stream *stream, struct weft_error *error) {
  struct weft_device *device = world->device;
  if (slot->event == NULL) {
    WEFT_TRY(device->ops->event_create(device, false, &slot->event, error));
  }
  WEFT_TRY(device->ops->event_record(device, slot->event, stream, error));
  slot->waits_for_event = true;
  world->polled++;
  return WEFT_OK;
}

static enum weft_status start_header(struct weft_nccl_world *world, const struct weft_nccl_end *end,
                                     struct weft_nccl_slot *slot,
                                     const struct weft_message *message, struct weft_error *error) {
  struct weft_transport *inner = world->inner;
  slot->header.data = &slot->own;
  slot->header.capacity = sizeof slot->room;
  slot->header.device = NULL;
  if (end->base.sends) {
    slot->header.header = message->header;
    slot->header.header.bytes = sizeof slot->own;
    memcpy(slot->header.shapes, message->shapes, weft_shapes_size(&message->header));
    slot->own = (struct weft_nccl_header){
        .bytes = message->header.bytes, .bytes_max = end->base.bytes_max, .number = slot->number};
  }
  return inner->ops->post(inner, end->base.channel, end->base.sends, &slot->header, error);
}

void weft_nccl_drain_stream(struct weft_nccl_world *world, struct weft_device_event *mark,
                            struct weft_stream *stream) {
  struct weft_device *device = world->device;
  struct weft_error error;
  if (stream != NULL && mark != NULL && device->ops->make_current(device, &error) == WEFT_OK &&
      device->ops->event_record(device, mark, stream, &error) == WEFT_OK) {
    while (device->ops->event_query(device, mark, &error) == WEFT_IN_PROGRESS) {
    }
  }
}

/* The transport's own transfers use no memory of the caller's any more. */
void weft_nccl_drain(struct weft_nccl_world *world,
                     const struct weft_nccl_communicator *communicator) {
  if (weft_nccl_abort(world)) {
    weft_nccl_drain_stream(world, communicator->marks[0], communicator->stream);
  }
}

static enum weft_status start_transfer(struct weft_nccl_world *world, struct weft_nccl_end *end,
                                       struct weft_nccl_slot *slot, struct weft_message *message,
                                       struct weft_stream *stream, struct weft_error *error) {
  WEFT_TRY(enqueue_transfer(world, end, &world->communicators[end->communicator], message, stream,
                            error));
  if (message->stream == NULL) {
    WEFT_TRY(record_event(world, slot, stream, error));
  }
  return start_header(world, end, slot, message, error);
}

/* Those of a channel whose payloads are in memory of the host are MPI's. */
enum weft_status weft_nccl_post(struct weft_transport *transport, uint32_t channel, bool sends,
                                struct weft_message *message, struct weft_error *error) {
  struct weft_nccl_world *world = weft_nccl_world_of(transport);
  struct weft_transport *inner = world->inner;
  struct weft_nccl_end *end = (struct weft_nccl_end *)weft_ends_find(&world->ends, channel);
  if (end == NULL || end->device == NULL) {
    return inner->ops->post(inner, channel, sends, message, error);
  }
  struct weft_end *same;
  WEFT_TRY(weft_ends_choose(&world->ends, channel, sends, message, &same, error));
  if (message->device != end->device) {
    return weft_fail(error, WEFT_ERR_USAGE, "open the channel for the device of its payloads",
                     "rank %" PRIu32 " opened channel %" PRIu32
                     " for payloads on its GPU, and this one is on another device (%s)",
                     transport->rank, channel, weft_device_name(message->device));
  }
  WEFT_TRY(weft_nccl_check_alive(world, error));
  struct weft_nccl_communicator *communicator = &world->communicators[end->communicator];
  struct weft_nccl_slot *slot = &end->slots[end->base.posted & end->base.mask];
  struct weft_device *device = world->device;
  if (weft_end_is_full(&end->base)) {
    return WEFT_IN_PROGRESS;
  }
  if (message->stream == NULL) {
    WEFT_TRY(weft_nccl_own_stream(world, communicator, error));
  }
  struct weft_stream *stream = message->stream != NULL ? message->stream : communicator->stream;
  struct weft_device_event *mark = weft_nccl_mark_ahead(communicator, message->recorded);
  const enum weft_status status =
      mark != NULL ? device->ops->event_query(device, mark, error) : WEFT_OK;
  if (status != WEFT_OK) {
    return status;
  }
  slot->number = communicator->messages;
  slot->waits_for_event = false;
  message->begin = message->end = inner->ops->now(inner);
  if (start_transfer(world, end, slot, message, stream, error) < 0) {
    weft_nccl_drain(world, communicator); /* what was enqueued of it */
    return error->status;
  }
  communicator->messages++;
  (void)weft_end_accept(&end->base, message);
  return WEFT_OK;
}

/* ---- Ending ---- */

/* The slot of a message in flight; NULL: the message is the caller's already. */
static struct weft_nccl_slot *slot_of(const struct weft_nccl_world *world,
                                      const struct weft_message *message,
                                      struct weft_nccl_end **end) {
  *end = (struct weft_nccl_end *)weft_ends_of(&world->ends, message);
  return *end != NULL ? &(*end)->slots[message->state[1] & (*end)->base.mask] : NULL;
}

static void end_event(struct weft_nccl_world *world, struct weft_nccl_slot *slot) {
  world->polled -= slot->waits_for_event;
  slot->waits_for_event = false;
}

static enum weft_status fail_header(const struct weft_nccl_world *world,
                                    const struct weft_nccl_end *end, const char *what,
                                    uint64_t found, uint64_t expected, struct weft_error *error) {
  return weft_fail(error, WEFT_ERR_PROTOCOL,
                   "all ranks must run the same program, and describe "
                   "the same boundaries",
                   "channel %" PRIu32 " from rank %" PRIu32 " to rank %" PRIu32
                   ": %s: found %" PRIu64 ", expected %" PRIu64,
                   end->base.channel, end->base.peer, world->transport.rank, what, found, expected);
}

/* The header has arrived: it is the message's. */
static enum weft_status read_header(const struct weft_nccl_world *world,
                                    const struct weft_nccl_end *end,
                                    const struct weft_nccl_slot *slot, struct weft_message *message,
                                    struct weft_error *error) {
  const struct weft_nccl_header *own = &slot->own;
  if (slot->header.header.bytes != sizeof *own) {
    return fail_header(world, end, "bytes that come with a header", slot->header.header.bytes,
                       sizeof *own, error);
  }
  if (own->bytes_max != end->base.bytes_max) {
    return fail_header(world, end, "largest payload that the sender and the receiver opened it for",
                       own->bytes_max, end->base.bytes_max, error);
  }
  if (own->number != slot->number) {
    return fail_header(world, end, "number of the transfer between the two ranks", own->number,
                       slot->number, error);
  }
  message->header = slot->header.header;
  message->header.bytes = own->bytes;
  memcpy(message->shapes, slot->header.shapes, weft_shapes_size(&message->header));
  message->begin = slot->header.begin;
  return WEFT_OK;
}

enum weft_status weft_nccl_test(struct weft_transport *transport, struct weft_message *message,
                                struct weft_error *error) {
  struct weft_nccl_world *world = weft_nccl_world_of(transport);
  if (weft_device_is_host(message->device)) {
    return world->inner->ops->test(world->inner, message, error);
  }
  struct weft_nccl_end *end;
  struct weft_nccl_slot *slot = slot_of(world, message, &end);
  if (slot == NULL) {
    return WEFT_OK;
  }
  enum weft_status status = world->inner->ops->test(world->inner, &slot->header, error);
  if (status != WEFT_OK) {
    return status;
  }
  if (slot->waits_for_event) {
    status = world->device->ops->event_query(world->device, slot->event, error);
    if (status != WEFT_OK) {
      return status;
    }
    end_event(world, slot);
  }
  if (!end->base.sends) {
    WEFT_TRY(read_header(world, end, slot, message, error));
  }
  message->end = world->inner->ops->now(world->inner);
  message->begin = message->begin < message->end ? message->begin : message->end;
  weft_end_give_back(&end->base, message);
  return WEFT_OK;
}

/* Transfers in a stream cannot be taken back one by one: their communicators end. */
void weft_nccl_cancel(struct weft_transport *transport, struct weft_message *message) {
  struct weft_nccl_world *world = weft_nccl_world_of(transport);
  if (weft_device_is_host(message->device)) {
    world->inner->ops->cancel(world->inner, message);
    return;
  }
  struct weft_nccl_end *end;
  struct weft_nccl_slot *slot = slot_of(world, message, &end);
  if (slot == NULL) {
    return;
  }
  world->cancelled = true;
  world->inner->ops->cancel(world->inner, &slot->header);
  weft_nccl_drain(world, &world->communicators[end->communicator]);
  end_event(world, slot);
  weft_end_cancel(&end->base, message);
}
