/* What the ranks of one process share: their boards, the agreed failure, and
 * exchanges. Used by the transports that live in one process. Thread-safe. */
#ifndef COMM_WORLD_H
#define COMM_WORLD_H

#include <pthread.h>

#include <weft/transport.h>

/* One rank's part of an exchange. Two of them, taken in turns: a rank can write
 * its next one only after all have written the one before, and so have read the
 * one before that. */
struct weft_world_blob {
  uint64_t round; /* this is for exchange number `round`, from 1; 0: none yet */
  unsigned char bytes[WEFT_EXCHANGE_MAX];
};

struct weft_world_rank {
  struct weft_rank_status board;
  struct weft_world_blob blobs[2];
  uint64_t rounds_done; /* the rank's own */
};

/* How many ranks have come to an exchange. */
struct weft_world_round {
  uint64_t round;
  uint32_t come;
};

struct weft_meeting; /* of a group's members: collectives.c */
enum { WEFT_WORLD_MEETINGS = 64 };

struct weft_world {
  const struct weft_allocator *allocator;
  uint32_t rank_count;
  struct weft_world_rank *ranks;
  struct weft_world_round rounds[2];
  struct weft_meeting *meetings[WEFT_WORLD_MEETINGS]; /* lists, by id */
  pthread_mutex_t lock; /* over failure, rounds, blobs and who is in which meeting */
  uint32_t has_failed;  /* atomic; set after failure is written */
  struct weft_failure failure;
};

enum weft_status weft_world_init(struct weft_world *world, const struct weft_allocator *allocator,
                                 uint32_t rank_count, struct weft_error *error);
void weft_world_finish(struct weft_world *world);

/* True for the first to say so. */
bool weft_world_fail(struct weft_world *world, const struct weft_failure *failure);
bool weft_world_failed(struct weft_world *world, struct weft_failure *failure);
/* WEFT_OK, or the agreed error. One atomic load when all is well. */
enum weft_status weft_world_check(struct weft_world *world, struct weft_error *error);

/* As ops->exchange. `*first_call` is set when this call put the rank's bytes
 * there: then others may be waiting for them. */
enum weft_status weft_world_exchange(struct weft_world *world, uint32_t rank, const void *mine,
                                     void *all, size_t size, bool *first_call);

#endif
