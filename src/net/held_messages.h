/* Messages that a wrapper has given to the transport inside and not yet to its
 * user: found by their address, and listed by channel in the order of their
 * posting. Every message goes through
 *
 *     added ──▶ delivered by the transport inside ──▶ released to the user
 *
 * and each channel's list is a run of delivered ones, then of the others; release
 * times never decrease along it. All memory is taken when it is made. */
#ifndef NET_HELD_MESSAGES_H
#define NET_HELD_MESSAGES_H

#include <weft/transport.h>

#define WEFT_HELD_NONE UINT32_MAX

struct weft_held_message {
  struct weft_message *message;
  uint32_t end;    /* index of its channel end */
  uint32_t before; /* in the list, WEFT_HELD_NONE: none */
  uint32_t after;  /* likewise; also of the list of free ones */
  bool delivered;  /* by the transport inside */
  bool damage;     /* to be damaged then */
  int64_t delay;   /* between its delivery and its release, at least */
  int64_t release; /* once delivered */
};

struct weft_held_end {
  uint32_t channel;
  uint32_t depth;
  bool sends;
  uint32_t count;       /* in the list */
  uint32_t first, last; /* of the list */
  uint32_t undelivered; /* first one that is not delivered */
  uint32_t due;         /* first one whose release no one has been told of */
  int64_t released;     /* latest release so far */
  uint64_t sequence;    /* messages so far */
};

struct weft_held_messages {
  const struct weft_allocator *allocator;
  uint32_t end_count;
  struct weft_held_end *ends; /* by channel, then sends */
  uint32_t room;
  struct weft_held_message *messages; /* [room] */
  uint32_t free;
  uint32_t table_room; /* a power of two */
  uint32_t *table;     /* by hash of the address: index of a message, or none */
};

/* WEFT_ERR_MEMORY. */
enum weft_status weft_held_init(struct weft_held_messages *held,
                                const struct weft_allocator *allocator,
                                const struct weft_channel_end *ends, uint32_t count,
                                struct weft_error *error);
/* Zero-initialised is fine. */
void weft_held_finish(struct weft_held_messages *held);

/* NULL: this rank has no such end. */
struct weft_held_end *weft_held_find_end(struct weft_held_messages *held, uint32_t channel,
                                         bool sends);
/* To the end of the list; `end` has room: count < depth. */
struct weft_held_message *weft_held_add(struct weft_held_messages *held, struct weft_held_end *end,
                                        struct weft_message *message);
/* NULL: not held. */
struct weft_held_message *weft_held_find(struct weft_held_messages *held,
                                         const struct weft_message *message);
void weft_held_remove(struct weft_held_messages *held, struct weft_held_message *message);

/* The first of the list that is not delivered has been, at `now`: sets its release. */
void weft_held_deliver(struct weft_held_messages *held, struct weft_held_end *end, int64_t now);

/* The user knows the time to be `now`: forget releases up to then. */
void weft_held_pass(struct weft_held_messages *held, int64_t now);
/* The next release after that; WEFT_TIME_NEVER: none. */
int64_t weft_held_next_release(const struct weft_held_messages *held);

#endif
