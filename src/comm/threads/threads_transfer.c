/* Channels and messages of the threads transport: from the sender's ring to the receiver, and the
 * receiver's buffer back (threads.h has the picture). Messages are lock-free; one thread uses each
 * end; nothing but open() allocates. The two ends open a channel independently, in any order. The
 * ring belongs to the sending end and has its depth, so a send need not wait for the receiver to
 * open its end. */
#include <assert.h>
#include <string.h>

#include "comm/threads/threads.h"

_Static_assert(sizeof(struct weft_entry) % WEFT_CACHE_LINE == 0, "entries share no cache line");

/* ---- opening ---- */

/* Whole cache lines, on their boundaries. */
static enum weft_status make_ring(struct weft_world *world, struct weft_threads_channel *channel,
                                  uint32_t count, struct weft_error *error) {
  assert(channel->entries == NULL && count > 0);
  const size_t size = (size_t)count * sizeof(struct weft_entry) + WEFT_CACHE_LINE;
  unsigned char *block = weft_arena_allocate(&world->arena, size, 1);
  WEFT_TRY(weft_arena_status(&world->arena, error));
  const size_t skip = WEFT_CACHE_LINE - (uintptr_t)block % WEFT_CACHE_LINE;
  channel->entry_mask = count - 1;
  __atomic_store_n(&channel->entries, (struct weft_entry *)(void *)(block + skip),
                   __ATOMIC_RELEASE);
  return WEFT_OK;
}

static enum weft_status attach_end(struct weft_endpoint *endpoint,
                                   const struct weft_channel_end *from, struct weft_error *error) {
  struct weft_world *world = endpoint->base.world;
  struct weft_threads_end *end =
      (struct weft_threads_end *)weft_ends_find(&endpoint->ends, from->channel);
  struct weft_world_channel *channel = NULL;
  WEFT_TRY(weft_world_channel(world, from, endpoint->base.transport.rank, sizeof *end->channel,
                              &channel, error));
  end->channel = (struct weft_threads_channel *)channel;
  end->peer = &endpoint->threads->endpoints[from->peer];
  return from->sends ? make_ring(world, end->channel, end->base.mask + 1, error) : WEFT_OK;
}

enum weft_status weft_endpoint_open(struct weft_transport *transport,
                                    const struct weft_channel_end *ends, uint32_t count,
                                    struct weft_error *error) {
  struct weft_endpoint *endpoint = (struct weft_endpoint *)transport;
  struct weft_world *world = endpoint->base.world;
  enum weft_status status = WEFT_OK;
  WEFT_TRY(weft_ends_open(&endpoint->ends, world->allocator, transport, ends, count,
                          sizeof(struct weft_threads_end), error));
  pthread_mutex_lock(&world->lock);
  for (uint32_t k = 0; k < count && status == WEFT_OK; k++) {
    status = attach_end(endpoint, &ends[k], error);
  }
  pthread_mutex_unlock(&world->lock);
  if (status != WEFT_OK) {
    weft_ends_close(&endpoint->ends); /* no channel is open then */
  }
  return status;
}

/* ---- hand-over ---- */

static void copy_header(struct weft_message_header *header_out,
                        struct weft_tensor_shape *shapes_out,
                        const struct weft_message_header *header,
                        const struct weft_tensor_shape *shapes) {
  *header_out = *header;
  memcpy(shapes_out, shapes, weft_shapes_size(header));
}

static struct weft_handover handover_of(const struct weft_message *message) {
  return (struct weft_handover){message->data, message->device, message->event,
                                message->event_number, message->event_rank};
}

static void set_buffer(struct weft_message *message, struct weft_handover buffer) {
  message->data = buffer.data;
  message->device = buffer.device;
  message->event = buffer.event;
  message->event_number = buffer.event_number;
  message->event_rank = buffer.event_rank;
}

/* The entry is TAKING: its content is ours. */
static void take_entry(struct weft_entry *entry, struct weft_message *message, int64_t now) {
  const struct weft_handover sent = entry->buffer;
  copy_header(&message->header, message->shapes, &entry->header, entry->shapes);
  entry->buffer = handover_of(message);
  entry->end = now;
  set_buffer(message, sent);
  message->begin = entry->begin;
  message->end = now;
}

static void match_receives(struct weft_threads_end *end) {
  assert(!end->base.sends);
  struct weft_end *base = &end->base;
  const struct weft_threads_channel *channel = end->channel;
  struct weft_entry *entries;
  bool any = false;
  if (base->done == base->posted || base->closed ||
      (entries = __atomic_load_n(&channel->entries, __ATOMIC_ACQUIRE)) == NULL) {
    return;
  }
  while (base->done < base->posted) {
    struct weft_entry *entry = &entries[base->done & channel->entry_mask];
    uint32_t state = WEFT_ENTRY_POSTED;
    if (__atomic_load_n(&entry->state, __ATOMIC_RELAXED) != WEFT_ENTRY_POSTED ||
        !__atomic_compare_exchange_n(&entry->state, &state, WEFT_ENTRY_TAKING, false,
                                     __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
      break; /* not there yet, or revoked */
    }
    struct weft_message *message = weft_end_oldest(base);
    take_entry(entry, message, weft_clock_ns());
    __atomic_store_n(&entry->state, WEFT_ENTRY_DONE, __ATOMIC_RELEASE);
    weft_end_give_back(base, message);
    any = true;
  }
  if (any) {
    weft_endpoint_signal(end->peer);
  }
}

void weft_endpoint_match(const struct weft_endpoint *endpoint) {
  struct weft_threads_end *ends = (struct weft_threads_end *)(void *)endpoint->ends.items;
  for (uint32_t k = 0; k < endpoint->ends.receiver_count; k++) {
    match_receives(&ends[k]);
  }
}

/* Completes sends that were received. */
static void reap_sends(struct weft_threads_end *end) {
  assert(end->base.sends);
  struct weft_end *base = &end->base;
  const struct weft_threads_channel *channel = end->channel;
  while (base->done < base->posted) {
    struct weft_entry *entry = &channel->entries[base->done & channel->entry_mask];
    if (__atomic_load_n(&entry->state, __ATOMIC_ACQUIRE) != WEFT_ENTRY_DONE) {
      return;
    }
    struct weft_message *message = weft_end_oldest(base);
    set_buffer(message, entry->buffer);
    message->end = entry->end;
    __atomic_store_n(&entry->state, WEFT_ENTRY_FREE, __ATOMIC_RELAXED);
    weft_end_give_back(base, message);
  }
}

static void update_end(struct weft_threads_end *end) {
  if (end->base.sends) {
    reap_sends(end);
  } else {
    match_receives(end);
  }
}

/* ---- starting ---- */

static void post_entry(const struct weft_threads_end *end, struct weft_message *message) {
  struct weft_entry *entry = &end->channel->entries[message->state[1] & end->channel->entry_mask];
  assert(__atomic_load_n(&entry->state, __ATOMIC_RELAXED) == WEFT_ENTRY_FREE);
  message->begin = weft_clock_ns();
  copy_header(&entry->header, entry->shapes, &message->header, message->shapes);
  entry->buffer = handover_of(message);
  entry->begin = message->begin;
  __atomic_store_n(&entry->state, WEFT_ENTRY_POSTED, __ATOMIC_RELEASE);
  weft_endpoint_signal(end->peer);
}

enum weft_status weft_endpoint_post(struct weft_transport *transport, uint32_t channel, bool sends,
                                    struct weft_message *message, struct weft_error *error) {
  struct weft_end *base = NULL;
  WEFT_TRY(weft_ends_choose(&((struct weft_endpoint *)transport)->ends, channel, sends, message,
                            &base, error));
  struct weft_threads_end *end = (struct weft_threads_end *)base;
  if (weft_end_is_full(base)) {
    update_end(end);
    if (weft_end_is_full(base)) {
      return WEFT_IN_PROGRESS;
    }
  }
  (void)weft_end_accept(base, message);
  if (sends) {
    post_entry(end, message);
  } else {
    match_receives(end); /* it may have arrived already, and no further event would follow */
  }
  return WEFT_OK;
}

/* ---- ending ---- */

enum weft_status weft_endpoint_test(struct weft_transport *transport, struct weft_message *message,
                                    struct weft_error *error) {
  struct weft_end *end = weft_ends_of(&((struct weft_endpoint *)transport)->ends, message);
  (void)error;
  if (end != NULL) {
    update_end((struct weft_threads_end *)end);
  }
  return message->state[0] == 0 ? WEFT_OK : WEFT_IN_PROGRESS;
}

/* Takes a send back; false when the receiver was faster, and the entry is DONE. */
static bool revoke_entry(struct weft_entry *entry) {
  uint32_t state = WEFT_ENTRY_POSTED;
  if (__atomic_compare_exchange_n(&entry->state, &state, WEFT_ENTRY_REVOKED, false,
                                  __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    return true;
  }
  while (__atomic_load_n(&entry->state, __ATOMIC_ACQUIRE) == WEFT_ENTRY_TAKING) {
    /* for as long as the receiver copies a header */
  }
  return false;
}

void weft_endpoint_cancel(struct weft_transport *transport, struct weft_message *message) {
  struct weft_end *base = weft_ends_of(&((struct weft_endpoint *)transport)->ends, message);
  struct weft_threads_end *end = (struct weft_threads_end *)base;
  if (end == NULL) {
    return;
  }
  if (base->sends &&
      !revoke_entry(&end->channel->entries[message->state[1] & end->channel->entry_mask])) {
    reap_sends(end); /* in order, so it comes to this one */
    base->closed = true;
    return;
  }
  weft_end_cancel(base, message);
}
