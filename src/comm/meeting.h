/* A place where all ranks of a process meet, and one of their threads works for all of them: the
 * last one to come. For transports on which one thread drives every rank. */
#ifndef COMM_MEETING_H
#define COMM_MEETING_H

#include <pthread.h>

#include "comm/world.h"

struct weft_meeting {
  struct weft_world *world;
  pthread_mutex_t lock; /* over all that follows */
  pthread_cond_t changed;
  void **items; /* [rank_count]; NULL: that rank has not come */
  uint32_t arrived;
  bool spins;
  uint64_t rounds;  /* that are over; atomic, */
  int64_t ended_ns; /* as are the end of the last one */
  int64_t period;   /* and the time from the end of the one before */
  uint32_t driver;  /* the rank whose thread works; UINT32_MAX: none */
  bool driver_left; /* it is stuck, and the others do not wait for it */
};

/* `spins`: every rank has a core. */
bool weft_meeting_init(struct weft_meeting *meeting, struct weft_world *world, bool spins);
void weft_meeting_finish(struct weft_meeting *meeting);

/* As weft_transport_ops.together. */
enum weft_status weft_meeting_join(struct weft_meeting *meeting, uint32_t rank, void *item,
                                   void (*drive)(void *const *items, uint32_t count), int64_t until,
                                   struct weft_error *error);
/* The world has failed: those who wait look. */
void weft_meeting_wake(struct weft_meeting *meeting);
/* A rank's function does not return: the rank in whose thread it runs, which is not waited for any
 * more. */
uint32_t weft_meeting_leave_driver(struct weft_meeting *meeting, uint32_t stuck);

#endif
