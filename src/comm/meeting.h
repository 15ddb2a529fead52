/* A place where all ranks of a process meet, and one of their threads works for all of them: the
 * last one to come. For transports on which one thread drives every rank, but for those that are
 * apart: they work by themselves meanwhile, and a round is over when they have come as well. */
#ifndef COMM_MEETING_H
#define COMM_MEETING_H

#include <pthread.h>

#include "comm/world.h"

struct weft_meeting {
  struct weft_world *world;
  bool spins;
  uint32_t state;       /* atomic: how far the round is; see meeting.c */
  void **items;         /* [rank_count]; NULL: that rank has not come, or is apart */
  void **present;       /* [rank_count]: those that are not NULL, for drive() */
  uint64_t rounds;      /* that are over; atomic, */
  int64_t ended_ns;     /* as are the end of the last one */
  int64_t period;       /* and the time from the end of the one before */
  uint32_t apart_count; /* atomic */

  pthread_mutex_t lock; /* over all that follows */
  pthread_cond_t changed;
  uint32_t sleepers;
  bool *apart;            /* [rank_count] */
  uint32_t apart_arrived; /* in this round */
  bool driver_left;       /* it is stuck, and the others do not wait for it */
};

/* `spins`: every rank has a core. */
bool weft_meeting_init(struct weft_meeting *meeting, struct weft_world *world, bool spins);
void weft_meeting_finish(struct weft_meeting *meeting);

/* As weft_transport_ops.together. */
enum weft_status weft_meeting_join(struct weft_meeting *meeting, uint32_t rank, void *item,
                                   void (*drive)(void *const *items, uint32_t count), int64_t until,
                                   struct weft_error *error);
/* As weft_transport_ops.apart; and what together() is for such a rank. */
void weft_meeting_set_apart(struct weft_meeting *meeting, uint32_t rank);
enum weft_status weft_meeting_join_apart(struct weft_meeting *meeting, uint32_t rank,
                                         struct weft_error *error);
/* The world has failed: those who wait look. */
void weft_meeting_wake(struct weft_meeting *meeting);
/* A rank's function does not return: the rank in whose thread it runs, which is not waited for any
 * more. */
uint32_t weft_meeting_leave_driver(struct weft_meeting *meeting, uint32_t stuck);

#endif
