/* The nccl transport, inside: this process's rank, whose payloads on a GPU travel by NCCL.
 *
 *   nccl_api.c       libnccl
 *   nccl_world.c     opening and closing a world; the entry in the registry
 *   nccl_channel.c   open(): communicators, made and warmed up in one order
 *   nccl_transfer.c  messages
 *   nccl_failure.c   errors of NCCL, and the end of communicators that no longer answer
 *   nccl_group.c     groups
 *
 * An mpi world does all the rest: it starts the job, and carries ids, exchanges, statuses and
 * failures, and messages whose payload is in memory of the host. A message on a GPU is two: its
 * header goes by MPI, its payload by NCCL, on a communicator of two ranks. Header and payload are
 * in the same order on a channel, so the k-th header belongs to the k-th payload.
 *
 *     rank 0, the host    send(): header by MPI ──────────────────▶ test(): header is here
 *     rank 0, a stream    ncclSend ═══════════════════════════════▶ ncclRecv, from receive()
 *
 * ncclSend waits on the GPU for ncclRecv, and the other way round. So the host never waits. */
#ifndef COMM_NCCL_WORLD_H
#define COMM_NCCL_WORLD_H

#include <pthread.h>

#include <weft/comm.h>
#include <weft/support.h>

#include "comm/channel_ends.h"
#include "comm/comm_registry.h"
#include "comm/nccl/nccl_api.h"

enum {
  WEFT_NCCL_CTAS = 4,        /* blocks of a communicator, at most; a power of two */
  WEFT_NCCL_AHEAD = 64,      /* transfers of a communicator from one mark to the next, */
  WEFT_NCCL_MARKS = 4,       /* and marks that may not have happened yet */
  WEFT_NCCL_POLL_MS = 5,     /* between two looks for errors */
  WEFT_NCCL_SETTLE_MS = 100, /* an error of NCCL is reported after this: a rank that died is the
                                 reason, and will be noticed */
  WEFT_NCCL_ABORT_MS = 1000, /* aborting communicators may take so long */
  WEFT_NCCL_NS_PER_MS = 1000000
};

/* A communicator of two ranks, one of which sends. */
struct weft_nccl_lane {
  ncclComm_t comm;
  uint32_t from, to; /* ranks */
  uint32_t channel;  /* the first that it carries: its number among those of the two ranks */
  uint32_t end;      /* that channel's */
  uint64_t issued;   /* transfers so far */
  struct weft_stream *stream; /* of messages without one; NULL: there was none yet */
  struct weft_device_event *marks[WEFT_NCCL_MARKS];
  char name[48]; /* "weft 0>1" */
  bool gone;     /* destroyed or aborted */
};

/* What goes by MPI with each payload. */
struct weft_nccl_note {
  uint64_t bytes;     /* of the payload */
  uint64_t bytes_max; /* of the channel, as the sender opened it */
  uint64_t number;    /* of the transfer on its communicator */
};

/* A message that is under way. */
struct weft_nccl_slot {
  struct weft_message header; /* travels by MPI, with the note as payload */
  union {
    struct weft_nccl_note note;
    ncclUniqueId room; /* the channel also carries these, once */
  };
  struct weft_device_event *event; /* after the transfer, where the caller gave no stream */
  uint64_t number;                 /* of the transfer, as this rank counts */
  bool waits_for_event;
  bool done;
};

struct weft_nccl_end {
  struct weft_channel_end_state state;
  struct weft_device *device; /* where payloads are; NULL: in memory of the host, and MPI's */
  uint32_t channel;
  uint32_t peer;
  uint32_t depth;
  uint32_t lane;
  uint64_t posted, done;
  struct weft_nccl_slot *slots; /* [depth] */
};

/* What ranks tell each other before communicators are made; at most WEFT_EXCHANGE_MAX bytes. */
struct weft_nccl_rank {
  unsigned char gpu[16]; /* the GPU's identity: the same for all processes that use it */
  uint32_t has_device;
  uint32_t blocks;   /* of its transfers, at most */
  uint32_t sm_count; /* of its GPU */
  uint32_t version;  /* of NCCL */
  uint32_t number;   /* of its GPU, as it counts */
  uint32_t lanes;
};

struct weft_nccl_world {
  struct weft_comm comm; /* first */
  struct weft_comm *mpi;
  struct weft_transport transport;
  struct weft_transport *inner; /* of the mpi world */
  struct weft_transport_ops ops;
  const struct weft_allocator *allocator;
  const struct weft_nccl_api *nccl;

  bool opened;
  struct weft_device *device; /* of all ends that are on a GPU; NULL: none is */
  struct weft_stream *stream; /* of first transfers */
  void *scratch;              /* on the device, for warming up */
  struct weft_arena arena;
  struct weft_nccl_end *ends;
  uint32_t end_count;
  struct weft_nccl_lane *lanes;
  uint32_t lane_count;
  bool any_lanes; /* of any rank */
  struct weft_channel_ends by_channel;
  uint64_t polled;              /* messages in flight whose event must be asked for */
  bool cancelled;               /* a message was */
  bool stuck;                   /* a communicator has not ended: nothing is freed */
  struct weft_nccl_rank *ranks; /* [rank_count] */

  int64_t next_poll;
  int64_t trouble_at; /* 0: none */
  struct weft_failure trouble;
  pthread_mutex_t lock; /* over the next three */
  pthread_cond_t ended;
  bool aborting;
  uint32_t aborts_left;
};

static inline struct weft_nccl_world *weft_nccl_world_of(struct weft_transport *transport) {
  return (struct weft_nccl_world *)(void *)((char *)transport -
                                            offsetof(struct weft_nccl_world, transport));
}

/* nccl_channel.c */
enum weft_status weft_nccl_open(struct weft_transport *transport,
                                const struct weft_channel_end *ends, uint32_t count,
                                struct weft_error *error);
/* Frees all but communicators. */
void weft_nccl_close_ends(struct weft_nccl_world *world);
/* Until NCCL has taken what this communicator was given, or the world has failed, or `until`. */
enum weft_status weft_nccl_await(struct weft_nccl_world *world, ncclComm_t comm,
                                 ncclResult_t result, const char *call, int64_t until,
                                 struct weft_error *error);

/* nccl_transfer.c */
enum weft_status weft_nccl_send(struct weft_transport *transport, uint32_t channel,
                                struct weft_message *message, struct weft_error *error);
enum weft_status weft_nccl_receive(struct weft_transport *transport, uint32_t channel,
                                   struct weft_message *message, struct weft_error *error);
enum weft_status weft_nccl_test(struct weft_transport *transport, struct weft_message *message,
                                struct weft_error *error);
void weft_nccl_cancel(struct weft_transport *transport, struct weft_message *message);

/* nccl_failure.c */
/* Looks for errors of the communicators, now and then. */
void weft_nccl_poll(struct weft_nccl_world *world);
/* Ends all communicators, so that no transfer spins on the GPU any more. Waits for it, but not
 * for long: false when a communicator does not end. Any thread; the first call does it. */
bool weft_nccl_abort(struct weft_nccl_world *world);
/* Ends them after a good run: all ranks are through. */
void weft_nccl_finalize(struct weft_nccl_world *world);

/* nccl_group.c: as the op. */
enum weft_status weft_nccl_group(struct weft_transport *transport, uint32_t id,
                                 const uint32_t *ranks, uint32_t count, struct weft_group **out,
                                 struct weft_error *error);

#endif
