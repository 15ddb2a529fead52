/* A thread per rank: runs rank_main on each, and fails the world when one fails, its thread ends
 * without returning, or it does not return from a stage's function. For the transports whose
 * ranks are all in this process. */
#ifndef COMM_RANK_THREADS_H
#define COMM_RANK_THREADS_H

#include <pthread.h>

#include "comm/comm_registry.h"
#include "comm/world.h"

struct weft_step_barrier;

struct weft_rank_threads {
  struct weft_world *world;
  struct weft_step_barrier *barrier;       /* where one thread may lead all ranks; or NULL */
  struct weft_transport *const *endpoints; /* [rank_count] that the ranks are given; NULL: the
                                              world's own */
  weft_rank_main *rank_main;
  void *context;
  /* Called in the rank's thread before and after rank_main; may be NULL. end() is also called
   * when the thread ends in rank_main, and by the caller for ranks whose thread could not be
   * started. */
  void (*begin)(struct weft_comm *comm, uint32_t rank);
  void (*end)(struct weft_comm *comm, uint32_t rank);
  /* One rank runs at a time: when it is stuck, no other can return. It is stuck after
   * stage_limit_ns (0: never) in one call; else after the stall limit of its pipeline. */
  bool takes_turns;
  int64_t stage_limit_ns;
};

/* Returns when all ranks have, but for those that are stuck in a stage's function: these are
 * counted in comm->stuck_ranks, and what they may touch is never freed. The agreed error, else
 * WEFT_OK. */
enum weft_status weft_rank_threads_run(const struct weft_rank_threads *run,
                                       struct weft_error *error);

/* A condition with deadlines of weft_clock_ns(). */
bool weft_condition_init(pthread_cond_t *condition);
/* Until the deadline, or signalled; the lock is held. False: the deadline has passed. */
bool weft_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t until);

#endif
