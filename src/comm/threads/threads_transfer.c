/* Messages of the threads transport: from the sender's ring to the receiver, and the receiver's
 * buffer back (threads.h has the picture). Lock-free; one thread uses each end. Nothing
 * allocates. */
#include <assert.h>

#include <weft/support.h>

#include "comm/threads/threads.h"

_Static_assert(sizeof(struct weft_entry) % WEFT_CACHE_LINE == 0, "entries share no cache line");

/* ---- hand-over ---- */

static void copy_header(struct weft_message_header *header_out,
                        struct weft_tensor_shape *shapes_out,
                        const struct weft_message_header *header,
                        const struct weft_tensor_shape *shapes) {
  const size_t count =
      header->tensor_count <= WEFT_TENSORS_MAX ? header->tensor_count : WEFT_TENSORS_MAX;
  *header_out = *header;
  for (size_t k = 0; k < count; k++) {
    shapes_out[k] = shapes[k];
  }
}

/* The message is the caller's again. */
static void give_back(struct weft_end *end, struct weft_message *message) {
  message->state[0] = 0;
  end->messages[end->matched & end->mask] = NULL;
  end->matched++;
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
static void take(struct weft_entry *entry, struct weft_message *message, int64_t now) {
  const struct weft_handover sent = entry->buffer;
  copy_header(&message->header, message->shapes, &entry->header, entry->shapes);
  entry->buffer = handover_of(message);
  entry->end = now;
  set_buffer(message, sent);
  message->begin = entry->begin;
  message->end = now;
}

void weft_end_match(struct weft_end *end) {
  assert(!end->state.sends);
  struct weft_threads_channel *channel = end->channel;
  struct weft_entry *entries;
  bool any = false;
  if (end->matched == end->posted || end->state.closed ||
      (entries = __atomic_load_n(&channel->entries, __ATOMIC_ACQUIRE)) == NULL) {
    return;
  }
  while (end->matched < end->posted) {
    struct weft_entry *entry = &entries[end->matched & channel->entry_mask];
    uint32_t state = WEFT_ENTRY_POSTED;
    if (__atomic_load_n(&entry->state, __ATOMIC_RELAXED) != WEFT_ENTRY_POSTED ||
        !__atomic_compare_exchange_n(&entry->state, &state, WEFT_ENTRY_TAKING, false,
                                     __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
      break; /* not there yet, or revoked */
    }
    struct weft_message *message = end->messages[end->matched & end->mask];
    assert(message != NULL);
    take(entry, message, weft_clock_ns());
    __atomic_store_n(&entry->state, WEFT_ENTRY_DONE, __ATOMIC_RELEASE);
    give_back(end, message);
    any = true;
  }
  if (any) {
    weft_endpoint_signal(end->peer);
  }
}

/* Completes sends that were received. */
static void reap(struct weft_end *end) {
  assert(end->state.sends);
  const struct weft_threads_channel *channel = end->channel;
  while (end->matched < end->posted) {
    struct weft_entry *entry = &channel->entries[end->matched & channel->entry_mask];
    if (__atomic_load_n(&entry->state, __ATOMIC_ACQUIRE) != WEFT_ENTRY_DONE) {
      return;
    }
    struct weft_message *message = end->messages[end->matched & end->mask];
    set_buffer(message, entry->buffer);
    message->end = entry->end;
    __atomic_store_n(&entry->state, WEFT_ENTRY_FREE, __ATOMIC_RELAXED);
    give_back(end, message);
  }
}

static void update(struct weft_end *end) {
  if (end->state.sends) {
    reap(end);
  } else {
    weft_end_match(end);
  }
}

/* ---- starting ---- */

/* The end, when the message may go there now; else NULL, and why. */
static struct weft_end *choose_end(const struct weft_endpoint *endpoint, uint32_t channel,
                                   bool sends, const struct weft_message *message,
                                   enum weft_status *status, struct weft_error *error) {
  const uint32_t index = weft_channel_ends_find(&endpoint->by_channel, channel);
  struct weft_end *end = index != UINT32_MAX ? &endpoint->ends[index] : NULL;
  *status = weft_channel_check_message(&endpoint->base, channel, end != NULL ? &end->state : NULL,
                                       sends, message, error);
  if (*status < 0) {
    return NULL;
  }
  assert(end != NULL);
  if (end->posted - end->matched == end->depth) {
    update(end);
    if (end->posted - end->matched == end->depth) {
      *status = WEFT_IN_PROGRESS;
      return NULL;
    }
  }
  return end;
}

/* The message is the transport's; returns its position on the channel. */
static uint64_t accept(const struct weft_endpoint *endpoint, struct weft_end *end,
                       struct weft_message *message) {
  assert(end->posted - end->matched < end->depth);
  const uint64_t position = end->posted++;
  message->state[0] = (uint64_t)(end - endpoint->ends) + 1;
  message->state[1] = position;
  end->messages[position & end->mask] = message;
  return position;
}

enum weft_status weft_endpoint_send(struct weft_transport *transport, uint32_t channel,
                                    struct weft_message *message, struct weft_error *error) {
  const struct weft_endpoint *endpoint = (const struct weft_endpoint *)transport;
  enum weft_status status;
  struct weft_end *end = choose_end(endpoint, channel, true, message, &status, error);
  if (end == NULL) {
    return status;
  }
  const uint64_t position = accept(endpoint, end, message);
  struct weft_entry *entry = &end->channel->entries[position & end->channel->entry_mask];
  message->begin = weft_clock_ns();
  copy_header(&entry->header, entry->shapes, &message->header, message->shapes);
  entry->buffer = handover_of(message);
  entry->begin = message->begin;
  __atomic_store_n(&entry->state, WEFT_ENTRY_POSTED, __ATOMIC_RELEASE);
  weft_endpoint_signal(end->peer);
  return WEFT_OK;
}

enum weft_status weft_endpoint_receive(struct weft_transport *transport, uint32_t channel,
                                       struct weft_message *message, struct weft_error *error) {
  const struct weft_endpoint *endpoint = (const struct weft_endpoint *)transport;
  enum weft_status status;
  struct weft_end *end = choose_end(endpoint, channel, false, message, &status, error);
  if (end == NULL) {
    return status;
  }
  (void)accept(endpoint, end, message);
  weft_end_match(end); /* it may have arrived already, and no further event would follow */
  return WEFT_OK;
}

/* ---- ending ---- */

/* NULL: the message is the caller's already. */
static struct weft_end *end_of(struct weft_transport *transport,
                               const struct weft_message *message) {
  assert(message->state[0] <= ((const struct weft_endpoint *)transport)->end_count);
  const struct weft_endpoint *endpoint = (const struct weft_endpoint *)transport;
  return message->state[0] != 0 ? &endpoint->ends[message->state[0] - 1] : NULL;
}

enum weft_status weft_endpoint_test(struct weft_transport *transport, struct weft_message *message,
                                    struct weft_error *error) {
  (void)error;
  struct weft_end *end = end_of(transport, message);
  if (end != NULL) {
    update(end);
  }
  return message->state[0] == 0 ? WEFT_OK : WEFT_IN_PROGRESS;
}

/* Takes a send back; false when the receiver was faster, and the entry is DONE. */
static bool revoke(struct weft_entry *entry) {
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
  struct weft_end *end = end_of(transport, message);
  if (end == NULL) {
    return;
  }
  const uint64_t position = message->state[1];
  end->state.closed = true;
  if (end->state.sends && !revoke(&end->channel->entries[position & end->channel->entry_mask])) {
    reap(end); /* in order, so it comes to this one */
    return;
  }
  end->messages[position & end->mask] = NULL;
  message->state[0] = 0;
}
