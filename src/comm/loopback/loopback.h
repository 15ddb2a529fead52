/* The loopback transport, inside: a world in virtual time, of which one rank runs at a time.
 * Either the caller steps the ranks (weft_comm_next), or each has a thread and they pass
 * the turn on (loopback_run.c). */
#ifndef COMM_LOOPBACK_H
#define COMM_LOOPBACK_H

#include <assert.h>

#include <weft/support.h>

#include "comm/comm_registry.h"
#include "comm/world.h"

struct weft_loopback_endpoint;
struct weft_loopback_wake;
struct weft_loopback_run;

/* Touched by the rank whose turn it is and by nobody else, except `shared` and `now`. */
struct weft_loopback {
  struct weft_comm comm; /* first */
  struct weft_world shared;
  struct weft_comm_options options;
  struct weft_random random;
  int64_t now;                              /* atomic: any thread may read it */
  bool failure_spread;                      /* all ranks have been woken for the world's failure */
  struct weft_loopback_endpoint *endpoints; /* [rank]; as the next two in the arena of `shared` */
  struct weft_loopback_wake *wakes;         /* [rank] */
  uint32_t *heap;                           /* [rank_count] ranks, the next one first */
  struct weft_loopback_run *run;            /* while ranks have threads; else NULL */
};

static inline struct weft_loopback *weft_loopback_of(struct weft_comm *comm) {
  assert(comm->kind == &weft_loopback_kind);
  return (struct weft_loopback *)comm;
}

/* As of weft_comm_kind. */
enum weft_status weft_loopback_next(struct weft_comm *comm, uint32_t *rank,
                                    struct weft_error *error);
enum weft_status weft_loopback_run(struct weft_comm *comm, struct weft_transport *const *endpoints,
                                   weft_rank_main *rank_main, void *context,
                                   struct weft_error *error);
/* The rank waits; its next event is known. Returns when it is its turn again. */
enum weft_status weft_loopback_yield(struct weft_loopback *world, uint32_t rank,
                                     struct weft_error *error);

#endif
