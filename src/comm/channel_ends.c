/* The ends of channels that a rank has opened; see channel_ends.h. Also linked into the MPI
 * drivers. */
#include "comm/channel_ends.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

enum { DEPTH_MAX = 1 << 20, CHANNELS_MAX = 1 << 24 };

uint32_t weft_channel_round_up(uint32_t count) {
  assert(count <= UINT32_C(1) << 31);
  uint32_t power = 1;
  while (power < count) {
    power *= 2;
  }
  return power;
}

enum weft_status weft_channel_ends_init(struct weft_channel_ends *ends,
                                        const struct weft_allocator *allocator,
                                        const struct weft_transport *transport, uint32_t count,
                                        struct weft_error *error) {
  assert(ends->slots == NULL);
  if (count > CHANNELS_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "a rank has a few channels for each of its stages",
                     "rank %" PRIu32 " opens %" PRIu32 " channels; at most %d", transport->rank,
                     count, CHANNELS_MAX);
  }
  const uint32_t room = weft_channel_round_up(2 * count + 1);
  ends->slots = weft_array_allocate_zero(allocator, room, sizeof *ends->slots);
  if (ends->slots == NULL) {
    return weft_fail_memory(error, room * sizeof *ends->slots);
  }
  ends->mask = room - 1;
  return WEFT_OK;
}

void weft_channel_ends_finish(struct weft_channel_ends *ends,
                              const struct weft_allocator *allocator) {
  if (ends->slots != NULL) {
    weft_array_free(allocator, ends->slots, (size_t)ends->mask + 1, sizeof *ends->slots);
  }
  *ends = (struct weft_channel_ends){.slots = NULL};
}

enum weft_status weft_channel_check_open(const struct weft_transport *transport, bool is_open,
                                         struct weft_error *error) {
  return !is_open ? WEFT_OK
                  : weft_fail(error, WEFT_ERR_USAGE,
                              "an endpoint serves one pipeline, which names all its channels at "
                              "once: open another world for another one",
                              "rank %" PRIu32 " opens its channels a second time", transport->rank);
}

void weft_channel_copy_content(const struct weft_channel_end *end, char *content) {
  (void)snprintf(content, WEFT_CONTENT_MAX, "%s", end->content != NULL ? end->content : "");
}

enum weft_status weft_channel_compare_content(const struct weft_channel_end *end, uint32_t rank,
                                              uint64_t bytes_max, const char *content,
                                              struct weft_error *error) {
  assert(content != NULL);
  char own[WEFT_CONTENT_MAX];
  weft_channel_copy_content(end, own);
  const bool is_named = own[0] != '\0' && content[0] != '\0' && strcmp(own, content) != 0;
  if (end->bytes_max == bytes_max && !is_named) {
    return WEFT_OK;
  }
  return weft_fail(error, WEFT_ERR_USAGE, "all ranks must describe the same boundaries",
                   "rank %" PRIu32 " has %s%sup to %" PRIu64 " bytes on channel %" PRIu32
                   ", where rank %" PRIu32 " has %s%sup to %" PRIu64,
                   rank, is_named ? own : "", is_named ? ", " : "", end->bytes_max, end->channel,
                   end->peer, is_named ? content : "", is_named ? ", " : "", bytes_max);
}

enum weft_status weft_channel_ends_add(struct weft_channel_ends *ends,
                                       const struct weft_transport *transport,
                                       const struct weft_channel_end *end, uint32_t index,
                                       struct weft_error *error) {
  assert(ends->slots != NULL);
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
  uint32_t k = weft_channel_hash(end->channel, ends->mask);
  for (; ends->slots[k].end != 0; k = (k + 1) & ends->mask) {
    if (ends->slots[k].channel == end->channel) {
      return weft_fail(error, WEFT_ERR_USAGE, "a rank has one end of a channel",
                       "rank %" PRIu32 " opens channel %" PRIu32 " twice", transport->rank,
                       end->channel);
    }
  }
  ends->slots[k] = (struct weft_channel_slot){.channel = end->channel, .end = index + 1};
  return WEFT_OK;
}

uint32_t weft_channel_ends_find(const struct weft_channel_ends *ends, uint32_t channel) {
  if (ends->slots == NULL) {
    return UINT32_MAX;
  }
  uint32_t k = weft_channel_hash(channel, ends->mask);
  while (ends->slots[k].end != 0 && ends->slots[k].channel != channel) {
    k = (k + 1) & ends->mask;
  }
  return ends->slots[k].end - 1; /* UINT32_MAX for an empty slot */
}

enum weft_status weft_channel_check_message(const struct weft_transport *transport,
                                            uint32_t channel,
                                            const struct weft_channel_end_state *end, bool sends,
                                            const struct weft_message *message,
                                            struct weft_error *error) {
  assert(message != NULL);
  const char *verb = sends ? "send" : "receive";
  if (end == NULL) {
    return weft_fail(error, WEFT_ERR_USAGE, "name every channel in open()",
                     "rank %" PRIu32 " wants to %s on channel %" PRIu32 ", which it has not opened",
                     transport->rank, verb, channel);
  }
  if (end->closed) {
    return weft_fail(error, WEFT_ERR_USAGE, "after a cancel, make a new world",
                     "rank %" PRIu32 " wants to %s on channel %" PRIu32
                     ", on which it has cancelled a message",
                     transport->rank, verb, channel);
  }
  if (end->sends != sends) {
    return weft_fail(error, WEFT_ERR_USAGE, "a channel goes one way: open another one",
                     "rank %" PRIu32 " wants to %s on channel %" PRIu32 ", on which it %s",
                     transport->rank, verb, channel, end->sends ? "sends" : "receives");
  }
  if (sends && message->header.bytes > end->bytes_max) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "open the channel with a larger bytes_max, at both ends",
                     "rank %" PRIu32 " sends %" PRIu64 " bytes on channel %" PRIu32
                     ", which takes at most %" PRIu64,
                     transport->rank, message->header.bytes, channel, end->bytes_max);
  }
  if (message->capacity < end->bytes_max) {
    return weft_fail(error, WEFT_ERR_USAGE, "each buffer must hold the channel's largest payload",
                     "rank %" PRIu32 " gives a buffer of %" PRIu64 " bytes to channel %" PRIu32
                     ", whose payloads have up to %" PRIu64,
                     transport->rank, message->capacity, channel, end->bytes_max);
  }
  return WEFT_OK;
}
