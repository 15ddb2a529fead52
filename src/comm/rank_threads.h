/* A thread per rank: runs rank_main on each, and fails the world when one fails or its thread
 * ends without returning. For the transports whose ranks are all in this process. */
#ifndef COMM_RANK_THREADS_H
#define COMM_RANK_THREADS_H

#include "comm/comm_registry.h"
#include "comm/world.h"

struct weft_rank_threads {
  struct weft_world *world;
  struct weft_comm *comm;                  /* whose endpoints the ranks are given, */
  struct weft_transport *const *endpoints; /* unless these: [rank_count] */
  weft_rank_main *rank_main;
  void *context;
  /* ops->fail, for the world as a whole. */
  void (*fail)(struct weft_comm *comm, const struct weft_failure *failure);
  /* Called in the rank's thread before and after rank_main; may be NULL. end() is also called
   * when the thread ends in rank_main, and by the caller for ranks whose thread could not be
   * started. */
  void (*begin)(struct weft_comm *comm, uint32_t rank);
  void (*end)(struct weft_comm *comm, uint32_t rank);
};

/* Rank 0 runs in the caller's thread. Returns when all ranks have: the agreed error, else
 * WEFT_OK. A rank that never returns from rank_main cannot be stopped, and is waited for. */
enum weft_status weft_rank_threads_run(const struct weft_rank_threads *run,
                                       struct weft_error *error);

#endif
