/* A barrier whose last arriver, the leader, runs the step for all ranks of the process. Undriven
 * ranks, those without a device, run on their own threads and only join at the end of a round. */
#ifndef COMM_STEP_BARRIER_H
#define COMM_STEP_BARRIER_H

#include <pthread.h>

#include <weft/support.h>

#include "comm/world.h"

struct weft_step_barrier {
  struct weft_world *world;
  struct weft_arena arena; /* of the arrays */
  bool spins;
  uint32_t state;          /* atomic: how far the round is; see step_barrier.c */
  void **items;            /* [rank_count]; NULL: not arrived, or undriven */
  void **present;          /* [rank_count]: those that are not NULL, for drive() */
  uint64_t rounds;         /* that are over; atomic, */
  int64_t ended_ns;        /* as are the end of the last one */
  int64_t period;          /* and the time from the end of the one before */
  uint32_t undriven_count; /* atomic */

  pthread_mutex_t lock; /* over all that follows */
  pthread_cond_t changed;
  uint32_t sleepers;
  bool *undriven;            /* [rank_count] */
  uint32_t undriven_arrived; /* in this round */
  bool leader_abandoned;     /* it is stuck, and the others do not wait for it */
};

/* `spins`: every rank has a core. */
bool weft_step_barrier_init(struct weft_step_barrier *barrier, struct weft_world *world,
                            bool spins);
void weft_step_barrier_finish(struct weft_step_barrier *barrier);

/* As weft_transport_ops.step_barrier. */
enum weft_status weft_step_barrier_arrive(struct weft_step_barrier *barrier, uint32_t rank,
                                          void *item,
                                          void (*drive)(void *const *items, uint32_t count),
                                          int64_t until, struct weft_error *error);
/* As weft_transport_ops.set_undriven. */
void weft_step_barrier_set_undriven(struct weft_step_barrier *barrier, uint32_t rank);
/* The world has failed: those who wait poll it. */
void weft_step_barrier_wake(struct weft_step_barrier *barrier);
/* A rank's function does not return: the rank in whose thread it runs, which is not waited for any
 * more. */
uint32_t weft_step_barrier_abandon_leader(struct weft_step_barrier *barrier, uint32_t stuck);

#endif
