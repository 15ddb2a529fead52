/* Messages that a wrapper has given to the transport inside and not yet to its
 * user. Each goes through
 *
 *     added ──▶ delivered by the transport inside ──▶ let go to the user
 *
 * Those not yet delivered are found by their address and listed by channel, in
 * the order of their posting; there are at most `depth` of them, and their memory
 * is taken when this is made. Those delivered are the wrapper's own: there may be
 * any number, so they carry what is known of them: `end` is their release, and
 * `state` links those whose release has not been reported. Releases of a channel
 * never decrease. */
#ifndef NET_HELD_MESSAGES_H
#define NET_HELD_MESSAGES_H

#include <weft/transport.h>

#define WEFT_HELD_NONE UINT32_MAX

/* One that is not yet delivered. */
struct weft_delay_message {
  struct weft_message *message;
  uint32_t end;    /* index of its channel end */
  uint32_t before; /* in the list, WEFT_HELD_NONE: none */
  uint32_t after;  /* likewise; also of the list of free ones */
  bool damage;     /* the wrapper's: to be damaged when it is delivered */
  int64_t delay;   /* the wrapper's: between the end of its transfer and its release, at least */
};

struct weft_delay_end {
  uint32_t channel;
  uint32_t depth;
  bool sends;
  uint32_t count;       /* not yet delivered */
  uint32_t first, last; /* of these */
  int64_t released;     /* latest release so far */
  uint64_t sequence;    /* messages so far */
  struct weft_message
      news; /* head of a ring: delivered, release not reported; the next one first */
};

struct weft_delay_queue {
  const struct weft_allocator *allocator;
  uint32_t end_count;
  struct weft_delay_end *ends; /* by channel, then sends */
  uint32_t room;
  struct weft_delay_message *messages; /* [room] */
  uint32_t free;
  uint32_t table_room; /* a power of two */
  uint32_t *table;     /* by hash of the address: index of a message, or none */
};

/* WEFT_ERR_MEMORY. */
enum weft_status weft_delay_init(struct weft_delay_queue *held,
                                 const struct weft_allocator *allocator,
                                 const struct weft_channel_end *ends, uint32_t count,
                                 struct weft_error *error);
/* Zero-initialised is fine. */
void weft_delay_finish(struct weft_delay_queue *held);

/* NULL: this rank has no such end. */
struct weft_delay_end *weft_delay_find_end(struct weft_delay_queue *held, uint32_t channel,
                                           bool sends);
/* To the end of the list; there is room: count < depth. */
struct weft_delay_message *weft_delay_add(struct weft_delay_queue *held, struct weft_delay_end *end,
                                          struct weft_message *message);
/* NULL: it is not among those to be delivered. */
struct weft_delay_message *weft_delay_find(struct weft_delay_queue *held,
                                           const struct weft_message *message);
/* It will not be delivered. */
void weft_delay_drop(struct weft_delay_queue *held, struct weft_delay_message *message);

/* The end's first one has been delivered: its `end` becomes its release. */
void weft_delay_deliver(struct weft_delay_queue *held, struct weft_delay_end *end);
/* A delivered one is the user's from now on. */
void weft_delay_let_go(struct weft_message *message);

/* The user knows the time to be `now`: releases up to then are no news. */
void weft_delay_pass(struct weft_delay_queue *held, int64_t now);
/* The next release after that; WEFT_TIME_NEVER: none. */
int64_t weft_delay_next_release(const struct weft_delay_queue *held);

#endif
