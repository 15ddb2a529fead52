/* The ends of channels that a rank has opened, and the messages in flight on each. A transport's own
 * ends begin with struct weft_end. Messages of an end are numbered from 0 in the order in which they
 * were started; both ends of a channel count alike, so messages match by order. */
#ifndef COMM_CHANNEL_ENDS_H
#define COMM_CHANNEL_ENDS_H

#include <assert.h>

#include <weft/support.h>
#include <weft/transport.h>

struct weft_end {
  uint32_t channel;
  uint32_t peer;
  uint32_t index; /* among the rank's ends */
  uint32_t depth;
  uint32_t mask; /* of rings with room for `depth` messages: mask + 1 is a power of two */
  bool sends;
  bool closed; /* by a cancel() */
  uint64_t bytes_max;
  uint64_t posted;                /* messages started so far */
  uint64_t done;                  /* of these: all before are the caller's again */
  struct weft_message **messages; /* [mask + 1]; NULL: the caller's again */
};

/* All zero: not opened. */
struct weft_ends {
  bool opened;
  uint32_t rank;           /* whose they are */
  struct weft_arena arena; /* of all of it, and of what a transport's ends need */
  uint32_t *table;         /* [mask + 1] index + 1 by channel, open addressing; 0: empty */
  uint32_t mask;
  unsigned char *items; /* [count][item_size], those that receive first */
  size_t item_size;
  uint32_t count;
  uint32_t receiver_count;
};

/* The smallest power of two that is not less than `count`; `count` is at most 2^31. */
uint32_t weft_channel_round_up(uint32_t count);
/* Where to begin looking for a channel in a table of mask + 1 slots, a power of two. */
static inline uint32_t weft_channel_hash(uint32_t channel, uint32_t mask) {
  return ((channel * UINT32_C(0x9e3779b1)) >> 8) & mask;
}

/* Opens a rank's ends; what is the transport's own in each item is zero. WEFT_ERR_MEMORY.
 * WEFT_ERR_USAGE: they have been opened before; a channel twice; a peer that does not exist or is
 * this rank; a depth that is 0 or too large. After an error none is open. */
enum weft_status weft_ends_open(struct weft_ends *ends, const struct weft_allocator *allocator,
                                const struct weft_transport *transport,
                                const struct weft_channel_end *from, uint32_t count,
                                size_t item_size, struct weft_error *error);
void weft_ends_close(struct weft_ends *ends);

static inline struct weft_end *weft_ends_at(const struct weft_ends *ends, uint32_t index) {
  return (struct weft_end *)(void *)(ends->items + index * ends->item_size);
}
/* The end of a channel; NULL: it is not open. */
struct weft_end *weft_ends_find(const struct weft_ends *ends, uint32_t channel);

/* Bytes of the shapes that follow a header. */
static inline size_t weft_shapes_size(const struct weft_message_header *header) {
  const size_t count =
      header->tensor_count <= WEFT_TENSORS_MAX ? header->tensor_count : WEFT_TENSORS_MAX;
  return count * sizeof(struct weft_tensor_shape);
}

/* The end to which a message may go. WEFT_ERR_USAGE: why not. Whether it is full is the
 * transport's to ask. */
enum weft_status weft_ends_choose(const struct weft_ends *ends, uint32_t channel, bool sends,
                                  const struct weft_message *message, struct weft_end **out,
                                  struct weft_error *error);
static inline bool weft_end_is_full(const struct weft_end *end) {
  return end->posted - end->done >= end->depth;
}
/* The message is the transport's; returns its number. */
static inline uint64_t weft_end_accept(struct weft_end *end, struct weft_message *message) {
  assert(!weft_end_is_full(end));
  const uint64_t number = end->posted++;
  message->state[0] = (uint64_t)end->index + 1;
  message->state[1] = number;
  end->messages[number & end->mask] = message;
  return number;
}
/* The end of a message; NULL: it is the caller's already. */
static inline struct weft_end *weft_ends_of(const struct weft_ends *ends,
                                            const struct weft_message *message) {
  const uint64_t index = __atomic_load_n(&message->state[0], __ATOMIC_ACQUIRE);
  assert(index <= ends->count);
  return index != 0 ? weft_ends_at(ends, (uint32_t)index - 1) : NULL;
}
static inline struct weft_message *weft_end_oldest(const struct weft_end *end) {
  return end->messages[end->done & end->mask];
}
/* The message is done, and the caller's again; in any order. */
static inline void weft_end_give_back(struct weft_end *end, struct weft_message *message) {
  assert(end->done < end->posted && end->messages[message->state[1] & end->mask] == message);
  end->messages[message->state[1] & end->mask] = NULL;
  while (end->done < end->posted && weft_end_oldest(end) == NULL) {
    end->done++;
  }
  __atomic_store_n(&message->state[0], 0, __ATOMIC_RELEASE); /* test() may see it now */
}
/* The message is the caller's again, and the end is closed. */
void weft_end_cancel(struct weft_end *end, struct weft_message *message);

#endif
