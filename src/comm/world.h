/* What the ranks of one process share: their statuses, the agreed failure, exchanges, groups and
 * channels; and the ops of their endpoints for these. For the transports whose ranks are all in one
 * process. Thread-safe. */
#ifndef COMM_WORLD_H
#define COMM_WORLD_H

#include <pthread.h>

#include <weft/comm.h>
#include <weft/support.h>

/* What one rank contributes to an exchange. Two of them alternate: a rank writes its next one only
 * after all ranks have written the one before, and so have read the one before that. */
struct weft_world_blob {
  uint64_t round; /* number of the exchange, from 1; 0: none yet */
  unsigned char bytes[WEFT_EXCHANGE_MAX];
};

struct weft_world_rank {
  struct weft_rank_status status;
  struct weft_world_blob blobs[2];
  uint64_t rounds_done; /* the rank's own */
};

struct weft_shared_group; /* collectives.c */
enum { WEFT_WORLD_GROUP_LISTS = 64 };

struct weft_world {
  const struct weft_allocator *allocator;
  uint32_t rank_count;
  struct weft_world_rank *ranks;
  struct weft_comm *comm;
  /* Something has happened for a rank: its wait() must return. Any thread that may call it. */
  void (*wake)(struct weft_comm *comm, uint32_t rank);
  uint64_t arrived; /* atomic: contributions to exchanges, all together */
  struct weft_shared_group *groups[WEFT_WORLD_GROUP_LISTS]; /* lists, by id */
  pthread_mutex_t lock; /* of failure, the members of groups, and channels */
  uint32_t has_failed;  /* atomic; set after failure is written */
  struct weft_failure failure;
  struct weft_arena arena;              /* of channels: either rank may end before the other */
  struct weft_world_channel **channels; /* open addressing by number; [channel_room] */
  uint32_t channel_room;
  uint32_t channel_count;
};

/* A channel, as both of its ends know it; a transport's own begin with it. */
struct weft_world_channel {
  uint32_t number;
  uint32_t sender, receiver; /* ranks */
  uint64_t bytes_max;
  char content[WEFT_CONTENT_MAX];
};

/* Base of the endpoints: put it first. */
struct weft_world_endpoint {
  struct weft_transport transport; /* first */
  struct weft_world *world;
};

enum weft_status weft_world_init(struct weft_world *world, const struct weft_allocator *allocator,
                                 uint32_t rank_count, struct weft_comm *comm,
                                 void (*wake)(struct weft_comm *comm, uint32_t rank),
                                 struct weft_error *error);
void weft_world_finish(struct weft_world *world);

void weft_world_wake_all(struct weft_world *world);

/* True for the first failure. */
bool weft_world_fail(struct weft_world *world, const struct weft_failure *failure);
/* WEFT_OK, or the agreed error. One atomic load when there is none. */
enum weft_status weft_world_check(struct weft_world *world, struct weft_error *error);

/* With the lock: the channel of a rank's end, made with `size` bytes if it is the first end to be
 * opened. WEFT_ERR_USAGE: the other end describes it differently. */
enum weft_status weft_world_channel(struct weft_world *world, const struct weft_channel_end *end,
                                    uint32_t rank, size_t size, struct weft_world_channel **out,
                                    struct weft_error *error);

/* ---- As the ops ---- */

enum weft_status weft_world_exchange(struct weft_transport *transport, const void *mine, void *all,
                                     size_t size, struct weft_error *error);
const void *weft_world_exchanged(struct weft_transport *transport, uint32_t of);
bool weft_world_get_failure(struct weft_transport *transport, struct weft_failure *failure);
struct weft_rank_status *weft_world_rank_status(struct weft_transport *transport, uint32_t rank);
/* collectives.c */
enum weft_status weft_world_group(struct weft_transport *transport, uint32_t id,
                                  const uint32_t *ranks, uint32_t count, struct weft_device *device,
                                  struct weft_group **out, struct weft_error *error);

#endif
