/* The ends of channels that a rank has opened, found by the channel's number; what an end must
 * be, and why a send or receive on one is refused. For transports with their own arrays of ends:
 * the table maps a channel to an index. */
#ifndef COMM_CHANNEL_ENDS_H
#define COMM_CHANNEL_ENDS_H

#include <weft/transport.h>

struct weft_channel_slot {
  uint32_t channel;
  uint32_t end; /* index + 1; 0: empty */
};

/* Open addressing; all zero: no channel is open. */
struct weft_channel_ends {
  struct weft_channel_slot *slots; /* [mask + 1] */
  uint32_t mask;
};

/* The smallest power of two that is not less than `count`; `count` is at most 2^31. */
uint32_t weft_channel_round_up(uint32_t count);
/* Where to begin looking for a channel in a table of mask + 1 slots, a power of two. */
static inline uint32_t weft_channel_hash(uint32_t channel, uint32_t mask) {
  return ((channel * UINT32_C(0x9e3779b1)) >> 8) & mask;
}

/* Room for `count` ends. WEFT_ERR_MEMORY; WEFT_ERR_USAGE when there are too many. */
enum weft_status weft_channel_ends_init(struct weft_channel_ends *ends,
                                        const struct weft_allocator *allocator,
                                        const struct weft_transport *transport, uint32_t count,
                                        struct weft_error *error);
void weft_channel_ends_finish(struct weft_channel_ends *ends,
                              const struct weft_allocator *allocator);

/* WEFT_ERR_USAGE when open() has been called before. */
enum weft_status weft_channel_check_open(const struct weft_transport *transport, bool is_open,
                                         struct weft_error *error);

/* Keeps an end's content [WEFT_CONTENT_MAX], and compares that of the second end to open a channel
 * with the first one's: WEFT_ERR_USAGE names both. */
void weft_channel_copy_content(const struct weft_channel_end *end, char *content);
enum weft_status weft_channel_compare_content(const struct weft_channel_end *end, uint32_t rank,
                                              uint64_t bytes_max, const char *content,
                                              struct weft_error *error);

/* Adds an end as number `index`. WEFT_ERR_USAGE for a peer that does not exist or is this rank,
 * a depth that is 0 or too large, and a channel that is open already. */
enum weft_status weft_channel_ends_add(struct weft_channel_ends *ends,
                                       const struct weft_transport *transport,
                                       const struct weft_channel_end *end, uint32_t index,
                                       struct weft_error *error);
/* The index of a channel's end; UINT32_MAX: not open. */
uint32_t weft_channel_ends_find(const struct weft_channel_ends *ends, uint32_t channel);

/* What the two functions below must know about an end; NULL: it is not open. */
struct weft_channel_end_state {
  bool sends;
  bool closed; /* by a cancel() */
  uint64_t bytes_max;
};

/* WEFT_OK when the message may go there, else why not. */
enum weft_status weft_channel_check_message(const struct weft_transport *transport,
                                            uint32_t channel,
                                            const struct weft_channel_end_state *end, bool sends,
                                            const struct weft_message *message,
                                            struct weft_error *error);

#endif
