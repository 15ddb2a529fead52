/* The threads transport, inside: a world of endpoints, one per rank, and the
 * channels between them.
 *
 *     sender's thread                ring of entries              receiver's thread
 *     post():    FREE → POSTED  ─────────────────────────────▶   match(): POSTED → TAKING
 *     reap():    DONE → FREE    ◀─────────────────────────────            TAKING → DONE
 *     cancel():  POSTED → REVOKED
 *
 * An entry holds a copy of what is sent, so only a rank's own thread accesses its messages. The
 * receiver takes the sender's buffer out of the entry and puts its own there; the sender owns the
 * buffer in an entry before TAKING and from DONE on. Positions on a channel count from 0 and are
 * the same at both ends: messages match by order. */
#ifndef COMM_THREADS_H
#define COMM_THREADS_H

#include <pthread.h>

#include <weft/comm.h>
#include <weft/support.h>

#include "comm/channel_ends.h"
#include "comm/comm_registry.h"
#include "comm/core_yield.h"
#include "comm/step_barrier.h"
#include "comm/world.h"

enum { WEFT_CACHE_LINE = 64 };

enum weft_entry_state {
  WEFT_ENTRY_FREE = 0,
  WEFT_ENTRY_POSTED,
  WEFT_ENTRY_TAKING,
  WEFT_ENTRY_DONE,
  WEFT_ENTRY_REVOKED /* final: nothing after it is received */
};

/* What changes hands of a message; all its buffers have the same capacity. */
struct weft_handover {
  void *data;
  struct weft_device *device;
  struct weft_device_event *event;
  uint64_t event_number;
  uint32_t event_rank;
};

/* One message in flight; whole cache lines. */
struct weft_entry {
  uint32_t state; /* atomic, enum weft_entry_state: decides who owns the rest */
  uint32_t reserved;
  struct weft_handover buffer; /* the sender's; from DONE on the receiver's */
  int64_t begin;
  int64_t end;
  struct weft_message_header header;
  struct weft_tensor_shape shapes[WEFT_TENSORS_MAX];
};

struct weft_threads_channel {
  struct weft_world_channel base; /* first */
  /* The sender's ring; atomic; NULL until the sender opens its end. */
  struct weft_entry *entries;
  uint32_t entry_mask;
};

/* One rank's end of a channel; only its thread accesses it. */
struct weft_threads_end {
  struct weft_end base; /* first */
  struct weft_threads_channel *channel;
  struct weft_endpoint *peer;
};

struct weft_endpoint {
  struct weft_world_endpoint base; /* first */
  struct weft_threads *threads;
  uint64_t seen; /* `events` at the last progress() */
  struct weft_core_yield yield;
  struct weft_ends ends; /* struct weft_threads_end */

  /* What other threads access, on its own cache lines. */
  struct {
    uint64_t before[WEFT_CACHE_LINE / 8];
    uint64_t events;   /* atomic: things that happened for this rank */
    uint32_t sleeping; /* atomic: it sleeps, or is about to */
    uint64_t after[WEFT_CACHE_LINE / 8];
  } shared;
  pthread_mutex_t lock; /* of the sleep */
  pthread_cond_t wake;
};

struct weft_threads {
  struct weft_comm comm; /* first */
  struct weft_world world;
  struct weft_transport_ops ops;   /* of the endpoints; a kind made of this world may change some,
                                    before its ranks begin */
  struct weft_endpoint *endpoints; /* [rank_count] */
  uint32_t endpoint_count;         /* whose lock and condition exist */
  bool spins;                      /* every rank can have a core: waiting may spin */
  bool has_barrier;                /* one thread drives all ranks, from here: */
  struct weft_step_barrier barrier;
};

/* Something happened for a rank: its wait() returns. Any thread. */
void weft_endpoint_signal(struct weft_endpoint *endpoint);

/* As the ops; wait() in threads.c, the others in threads_transfer.c. A transport that is made of
 * this one calls them (docs/adding-a-transport.md). */
enum weft_status weft_endpoint_wait(struct weft_transport *transport, int64_t until,
                                    struct weft_error *error);
enum weft_status weft_endpoint_open(struct weft_transport *transport,
                                    const struct weft_channel_end *ends, uint32_t count,
                                    struct weft_error *error);
enum weft_status weft_endpoint_post(struct weft_transport *transport, uint32_t channel, bool sends,
                                    struct weft_message *message, struct weft_error *error);
enum weft_status weft_endpoint_test(struct weft_transport *transport, struct weft_message *message,
                                    struct weft_error *error);
void weft_endpoint_cancel(struct weft_transport *transport, struct weft_message *message);
/* Completes posted receives whose messages have arrived. */
void weft_endpoint_match(const struct weft_endpoint *endpoint);

/* ---- The world, for kinds that are made of it ---- */

/* As the functions of struct weft_comm_kind. */
enum weft_status weft_threads_open(const struct weft_comm_kind *kind,
                                   const struct weft_allocator *allocator,
                                   const struct weft_comm_options *options, struct weft_comm **out,
                                   struct weft_error *error);
void weft_threads_close(struct weft_comm *comm);
struct weft_transport *weft_threads_endpoint(struct weft_comm *comm, uint32_t rank);
enum weft_status weft_threads_run(struct weft_comm *comm, struct weft_transport *const *endpoints,
                                  weft_rank_main *rank_main, void *context,
                                  struct weft_error *error);

#endif
