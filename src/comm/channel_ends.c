/* The ends of channels that a rank has opened; see channel_ends.h. Also linked into the MPI
 * drivers. */
#include "comm/channel_ends.h"

#include <assert.h>
#include <inttypes.h>

enum { DEPTH_MAX = 1 << 20, CHANNELS_MAX = 1 << 24 };

uint32_t weft_channel_round_up(uint32_t count) {
  assert(count <= UINT32_C(1) << 31);
  uint32_t power = 1;
  while (power < count) {
    power *= 2;
  }
  return power;
}

static enum weft_status check_end(const struct weft_transport *transport,
                                  const struct weft_channel_end *end, struct weft_error *error) {
  if (end->peer >= transport->rank_count || end->peer == transport->rank) {
    return weft_fail(error, WEFT_ERR_USAGE, "a channel connects two ranks of the world",
                     "rank %" PRIu32 " opens channel %" PRIu32 " to rank %" PRIu32
                     "; there are %" PRIu32 " ranks",
                     transport->rank, end->channel, end->peer, transport->rank_count);
  }
  if (end->depth == 0 || end->depth > DEPTH_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "the depth is how many messages are in flight at once",
                     "rank %" PRIu32 " opens channel %" PRIu32 " with depth %" PRIu32
                     "; from 1 to %d are possible",
                     transport->rank, end->channel, end->depth, DEPTH_MAX);
  }
  return WEFT_OK;
}

/* Where a channel is in the table, or would be. */
static inline uint32_t *find_slot(const struct weft_ends *ends, uint32_t channel) {
  uint32_t k = weft_channel_hash(channel, ends->mask);
  while (ends->table[k] != 0 && weft_ends_at(ends, ends->table[k] - 1)->channel != channel) {
    k = (k + 1) & ends->mask;
  }
  return &ends->table[k];
}

/* Every message looks for its end: without a function between. */
static inline struct weft_end *find_end(const struct weft_ends *ends, uint32_t channel) {
  const uint32_t found = ends->table != NULL ? *find_slot(ends, channel) : 0;
  return found != 0 ? weft_ends_at(ends, found - 1) : NULL;
}

struct weft_end *weft_ends_find(const struct weft_ends *ends, uint32_t channel) {
  return find_end(ends, channel);
}

static enum weft_status add_end(struct weft_ends *ends, const struct weft_transport *transport,
                                const struct weft_channel_end *from, uint32_t index,
                                struct weft_error *error) {
  WEFT_TRY(check_end(transport, from, error));
  uint32_t *slot = find_slot(ends, from->channel);
  if (*slot != 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "a rank has one end of a channel",
                     "rank %" PRIu32 " opens channel %" PRIu32 " twice", transport->rank,
                     from->channel);
  }
  *slot = index + 1;
  struct weft_end *end = weft_ends_at(ends, index);
  const uint32_t room = weft_channel_round_up(from->depth);
  *end = (struct weft_end){
      .channel = from->channel,
      .peer = from->peer,
      .index = index,
      .depth = from->depth,
      .mask = room - 1,
      .sends = from->sends,
      .bytes_max = from->bytes_max,
      .messages = weft_arena_allocate(&ends->arena, room, sizeof(struct weft_message *))};
  return weft_arena_status(&ends->arena, error);
}

static enum weft_status open_ends(struct weft_ends *ends, const struct weft_allocator *allocator,
                                  const struct weft_transport *transport,
                                  const struct weft_channel_end *from, uint32_t count,
                                  size_t item_size, struct weft_error *error) {
  const uint32_t room = weft_channel_round_up(2 * count + 1);
  *ends = (struct weft_ends){.opened = true,
                             .rank = transport->rank,
                             .arena.allocator = allocator,
                             .mask = room - 1,
                             .item_size = item_size};
  ends->table = weft_arena_allocate(&ends->arena, room, sizeof *ends->table);
  ends->items = weft_arena_allocate(&ends->arena, count, item_size);
  WEFT_TRY(weft_arena_status(&ends->arena, error));
  ends->count = count;
  for (uint32_t k = 0; k < count; k++) {
    ends->receiver_count += !from[k].sends;
  }
  uint32_t receivers = 0, senders = ends->receiver_count;
  for (uint32_t k = 0; k < count; k++) {
    WEFT_TRY(add_end(ends, transport, &from[k], from[k].sends ? senders++ : receivers++, error));
  }
  return WEFT_OK;
}

enum weft_status weft_ends_open(struct weft_ends *ends, const struct weft_allocator *allocator,
                                const struct weft_transport *transport,
                                const struct weft_channel_end *from, uint32_t count,
                                size_t item_size, struct weft_error *error) {
  assert((from != NULL || count == 0) && item_size >= sizeof(struct weft_end));
  if (ends->opened) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "an endpoint serves one pipeline, which names all its channels at once: open "
                     "another world for another one",
                     "rank %" PRIu32 " opens its channels a second time", transport->rank);
  }
  if (count > CHANNELS_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "a rank has a few channels for each of its stages",
                     "rank %" PRIu32 " opens %" PRIu32 " channels; at most %d", transport->rank,
                     count, CHANNELS_MAX);
  }
  const enum weft_status status =
      open_ends(ends, allocator, transport, from, count, item_size, error);
  if (status < 0) {
    weft_ends_close(ends);
  }
  return status;
}

void weft_ends_close(struct weft_ends *ends) {
  weft_arena_finish(&ends->arena);
  *ends = (struct weft_ends){.opened = ends->opened};
}

/* ---- Messages ---- */

enum weft_status weft_ends_choose(const struct weft_ends *ends, uint32_t channel, bool sends,
                                  const struct weft_message *message, struct weft_end **out,
                                  struct weft_error *error) {
  assert(message != NULL);
  const char *verb = sends ? "send" : "receive";
  struct weft_end *end = find_end(ends, channel);
  if (end == NULL) {
    return weft_fail(error, WEFT_ERR_USAGE, "name every channel in open()",
                     "rank %" PRIu32 " wants to %s on channel %" PRIu32 ", which it has not opened",
                     ends->rank, verb, channel);
  }
  if (end->closed) {
    return weft_fail(error, WEFT_ERR_USAGE, "after a cancel, make a new world",
                     "rank %" PRIu32 " wants to %s on channel %" PRIu32
                     ", on which it has cancelled a message",
                     ends->rank, verb, channel);
  }
  if (end->sends != sends) {
    return weft_fail(error, WEFT_ERR_USAGE, "a channel goes one way: open another one",
                     "rank %" PRIu32 " wants to %s on channel %" PRIu32 ", on which it %s",
                     ends->rank, verb, channel, end->sends ? "sends" : "receives");
  }
  if (sends && message->header.bytes > end->bytes_max) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "open the channel with a larger bytes_max, at both ends",
                     "rank %" PRIu32 " sends %" PRIu64 " bytes on channel %" PRIu32
                     ", which takes at most %" PRIu64,
                     ends->rank, message->header.bytes, channel, end->bytes_max);
  }
  if (message->capacity < end->bytes_max) {
    return weft_fail(error, WEFT_ERR_USAGE, "each buffer must hold the channel's largest payload",
                     "rank %" PRIu32 " gives a buffer of %" PRIu64 " bytes to channel %" PRIu32
                     ", whose payloads have up to %" PRIu64,
                     ends->rank, message->capacity, channel, end->bytes_max);
  }
  *out = end;
  return WEFT_OK;
}

void weft_end_cancel(struct weft_end *end, struct weft_message *message) {
  assert(end->messages[message->state[1] & end->mask] == message);
  end->messages[message->state[1] & end->mask] = NULL;
  end->closed = true;
  message->state[0] = 0;
}
