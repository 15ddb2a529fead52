/* What the ranks of one process share: their statuses, the agreed failure, and exchanges. For the
 * transports whose ranks are all in one process. Thread-safe. */
#ifndef COMM_WORLD_H
#define COMM_WORLD_H

#include <pthread.h>

#include <weft/transport.h>

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
  uint64_t arrived; /* atomic: contributions to exchanges, all together */
  struct weft_shared_group *groups[WEFT_WORLD_GROUP_LISTS]; /* lists, by id */
  pthread_mutex_t lock; /* of failure, and the members of groups */
  uint32_t has_failed;  /* atomic; set after failure is written */
  struct weft_failure failure;
};

enum weft_status weft_world_init(struct weft_world *world, const struct weft_allocator *allocator,
                                 uint32_t rank_count, struct weft_error *error);
void weft_world_finish(struct weft_world *world);

/* True for the first failure. */
bool weft_world_fail(struct weft_world *world, const struct weft_failure *failure);
bool weft_world_failed(struct weft_world *world, struct weft_failure *failure);
/* WEFT_OK, or the agreed error. One atomic load when there is none. */
enum weft_status weft_world_check(struct weft_world *world, struct weft_error *error);

/* As ops->exchanged. */
const void *weft_world_exchanged(struct weft_world *world, uint32_t rank, uint32_t of);
/* As ops->exchange. `*first_call`: this call contributed the rank's bytes, for which other ranks
 * may be waiting. */
enum weft_status weft_world_exchange(struct weft_world *world, uint32_t rank, const void *mine,
                                     void *all, size_t size, bool *first_call);

#endif
