/* The nccl transport, inside: this process's rank, whose payloads on a GPU travel by NCCL.
 *
 * An mpi world does all the rest: it starts the job, and carries ids, exchanges, statuses and
 * failures, and messages whose payload is in memory of the host. A message on a GPU is two: its
 * header goes by MPI, its payload by NCCL, on a communicator of two ranks. Header and payload are
 * in the same order on a channel, so the k-th header belongs to the k-th payload.
 *
 *     rank 0, the host    post(): header by MPI ──────────────────▶ test(): header is here
 *     rank 0, a stream    ncclSend ═══════════════════════════════▶ ncclRecv, from post()
 *
 * ncclSend waits on the GPU for ncclRecv, and the other way round. So the host never waits.
 *
 * What these files rely on, read in the source of NCCL 2.28.9; tests/device/fake_cuda/fake_nccl.c
 * behaves so:
 *   - On a non-blocking communicator, every call outside a group starts a thread that connects and
 *     launches. Another call before ncclCommGetAsyncError says "success" is refused. So a transfer
 *     outside a CUDA graph costs the host a thread.
 *   - ncclCommFinalize waits, in a thread, for the communicator's work and the graphs that contain
 *     it. ncclCommDestroy and ncclCommAbort block and free the communicator: none is used after its
 *     abort has begun.
 *   - One communicator is one queue of sends and receives, whatever the streams, captured or not.
 *   - A send or receive uses at most as many blocks as the communicator has channels, rounded up to
 *     a power of two. The first transfer with a peer connects all its channels, whatever its size.
 *   - In a CUDA graph, a transfer over a network has two nodes: a host call, which hands it to NCCL's
 *     thread, and the kernel.
 *   - Ranks with different NCCL_HOSTID are on different hosts: sockets, neither peer access nor
 *     shared memory. The variable is read once per process. */
#ifndef COMM_NCCL_WORLD_H
#define COMM_NCCL_WORLD_H

#include <assert.h>
#include <pthread.h>

#include <weft/comm.h>
#include <weft/support.h>

#include "comm/channel_ends.h"
#include "comm/comm_registry.h"
#include "comm/nccl/nccl_api.h"

enum {
  WEFT_NCCL_CTAS = 4,         /* blocks of a communicator, at most; a power of two */
  WEFT_NCCL_AHEAD = 64,       /* transfers of a communicator from one mark to the next, */
  WEFT_NCCL_MARKS = 4,        /* and marks that may not have happened yet */
  WEFT_NCCL_POLL_MS = 5,      /* between two polls for errors */
  WEFT_NCCL_REPORT_MS = 1000, /* an error of NCCL is reported after this: a rank that died is the
                                 reason, and will be noticed */
  WEFT_NCCL_ABORT_MS = 1000,  /* aborting communicators may take so long */
  WEFT_NCCL_PIECE = 4 << 20,  /* bytes of each member's share that are summed at once */
  WEFT_NCCL_NS_PER_MS = 1000000
};

/* A communicator of two ranks, one of which sends; or of the members of a group. */
struct weft_nccl_communicator {
  struct weft_nccl_world *world;
  ncclComm_t comm;
  struct weft_nccl_group *group; /* NULL: of two ranks; and after its group has been destroyed */
  uint32_t group_id, size;       /* of a group, and its members; 0: of two ranks */
  uint32_t member;               /* this rank */
  void *others;                  /* [size - 1][piece] on the device: what is summed */
  uint64_t others_bytes;
  uint32_t from, to; /* of two ranks */
  uint32_t channel;  /* the first that it carries: its number among those of the two ranks */
  uint64_t messages; /* so far; recorded ones once */
  uint64_t issued;   /* transfers that were enqueued to run, so far */
  struct weft_stream *stream; /* of messages without one; NULL: there was none yet */
  struct weft_device_event *marks[WEFT_NCCL_MARKS];
  char name[48]; /* "weft 0>1" */
  bool gone;     /* destroyed or aborted */
};

/* What goes by MPI with each payload. */
struct weft_nccl_header {
  uint64_t bytes;     /* of the payload */
  uint64_t bytes_max; /* of the channel, as the sender opened it */
  uint64_t number;    /* of the transfer on its communicator */
};

/* A message that is under way. */
struct weft_nccl_slot {
  struct weft_message header; /* travels by MPI, with `own` as payload */
  union {
    struct weft_nccl_header own;
    ncclUniqueId room; /* the channel also carries these, once */
  };
  struct weft_device_event *event; /* after the transfer, where the caller gave no stream */
  uint64_t number;                 /* of the transfer, as this rank counts */
  bool waits_for_event;
};

/* A group, as its rank sees it. */
struct weft_nccl_group {
  struct weft_group base; /* first */
  struct weft_nccl_world *world;
  struct weft_group *inner;   /* of the mpi world: collectives on the host, and ids */
  struct weft_device *device; /* NULL: all collectives are on the host */
  struct weft_nccl_communicator
      *communicator; /* NULL: of one member, on the host, or not connected */
  uint32_t id;
  struct weft_nccl_pending *pending; /* for collectives that test() waits for */
  struct weft_nccl_group *next;      /* of those that open() connects */
};

struct weft_nccl_end {
  struct weft_end base;       /* first */
  struct weft_device *device; /* where payloads are; NULL: in memory of the host, and MPI's */
  uint32_t shares;            /* struct weft_channel_end.communicator */
  uint32_t communicator;
  struct weft_nccl_slot *slots; /* [mask + 1] */
};

/* What ranks tell each other before communicators are made; at most WEFT_EXCHANGE_MAX bytes. */
struct weft_nccl_rank {
  unsigned char gpu[16]; /* the GPU's identity: the same for all processes that use it */
  uint32_t has_device;
  uint32_t blocks;   /* of its transfers, at most */
  uint32_t sm_count; /* of its GPU */
  uint32_t version;  /* of NCCL */
  uint32_t number;   /* of its GPU, as it counts */
  uint32_t communicators;
  uint32_t own_order; /* as the world's */
};

struct weft_nccl_world {
  struct weft_comm comm; /* first */
  struct weft_comm *mpi;
  struct weft_transport transport;
  struct weft_transport *inner; /* of the mpi world */
  struct weft_transport_ops ops;
  const struct weft_allocator *allocator;
  const struct weft_nccl_api *nccl;
  bool own_order; /* sums are NCCL's, in whatever order it takes them */

  struct weft_ends ends;          /* struct weft_nccl_end */
  struct weft_nccl_group *groups; /* with a device, all with the same; created before open() */
  uint32_t group_count;
  uint64_t piece;             /* WEFT_NCCL_PIECE, or of the options */
  struct weft_device *device; /* of all ends that are on a GPU; NULL: none is */
  struct weft_stream *stream; /* of first transfers */
  void *scratch;              /* on the device, for first transfers */
  uint64_t scratch_bytes;
  struct weft_nccl_communicator *communicators; /* in the arena of the ends, as `ranks` */
  uint32_t communicator_count;
  bool any_communicators; /* of any rank */
  uint64_t polled;        /* messages in flight whose event must be asked for */
  bool cancelled;         /* a message was */
  bool recorded;          /* recordings have transfers: communicators end after those; atomic */
  bool stuck;             /* a communicator has not ended: nothing is freed */
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
  assert(transport != NULL && transport->inner != NULL);
  return (struct weft_nccl_world *)(void *)((char *)transport -
                                            offsetof(struct weft_nccl_world, transport));
}

/* nccl_channel.c */
enum weft_status weft_nccl_open(struct weft_transport *transport,
                                const struct weft_channel_end *ends, uint32_t count,
                                struct weft_error *error);
/* Frees all but communicators. */
void weft_nccl_close_ends(struct weft_nccl_world *world);
/* Blocks of a communicator, at most, a power of two: WEFT_NCCL_CTAS, or what variables of NCCL ask
 * for. */
uint32_t weft_nccl_blocks(void);

/* nccl_connect.c */
enum weft_status weft_nccl_connect(struct weft_nccl_world *world, struct weft_error *error);
/* When this rank's stall limit is over, from now on. */
int64_t weft_nccl_limit(struct weft_nccl_world *world);
/* Lets messages of the mpi world progress; fails when it is `until`, while `what`. `peer`:
 * UINT32_MAX, or who is waited for. */
enum weft_status weft_nccl_wait(struct weft_nccl_world *world, const char *what, uint32_t peer,
                                int64_t until, struct weft_error *error);
/* Until the event has happened, or the world has failed, or `until`. */
enum weft_status weft_nccl_await_event(struct weft_nccl_world *world,
                                       struct weft_device_event *event, const char *what,
                                       uint32_t peer, int64_t until, struct weft_error *error);
/* Until NCCL has taken what this communicator was given, or the world has failed, or `until`. */
enum weft_status weft_nccl_await(struct weft_nccl_world *world, ncclComm_t comm,
                                 ncclResult_t result, const char *call, int64_t until,
                                 struct weft_error *error);

/* nccl_transfer.c */
/* Sends or receives bytes, between the two ranks of a communicator; as weft_nccl_await(). */
enum weft_status weft_nccl_transfer(struct weft_nccl_world *world,
                                    const struct weft_nccl_communicator *communicator, bool sends,
                                    void *data, uint64_t bytes, struct weft_stream *stream,
                                    int64_t until, struct weft_error *error);
enum weft_status weft_nccl_post(struct weft_transport *transport, uint32_t channel, bool sends,
                                struct weft_message *message, struct weft_error *error);
enum weft_status weft_nccl_test(struct weft_transport *transport, struct weft_message *message,
                                struct weft_error *error);
void weft_nccl_cancel(struct weft_transport *transport, struct weft_message *message);
/* A communicator whose transfers run too far ahead of the GPU waits for this event; NCCL itself
 * hangs after some thousand. NULL: it need not wait. Those of a recording are not under way yet. */
struct weft_device_event *weft_nccl_mark_ahead(const struct weft_nccl_communicator *communicator,
                                               bool recorded);
/* After a transfer was enqueued: counts it, and sets a mark now and then. */
enum weft_status weft_nccl_count_issued(const struct weft_nccl_world *world,
                                        struct weft_nccl_communicator *communicator, bool recorded,
                                        struct weft_stream *stream, struct weft_error *error);
/* Makes the device current, and the communicator's own stream if there is none yet. */
enum weft_status weft_nccl_own_stream(const struct weft_nccl_world *world,
                                      struct weft_nccl_communicator *communicator,
                                      struct weft_error *error);
/* Waits for what is in a stream, after all communicators have ended. */
void weft_nccl_drain_stream(struct weft_nccl_world *world, struct weft_device_event *mark,
                            struct weft_stream *stream);
/* Ends all communicators, and waits for what is in the own stream of one. */
void weft_nccl_drain(struct weft_nccl_world *world,
                     const struct weft_nccl_communicator *communicator);

/* nccl_failure.c */
/* Polls for errors of the communicators, now and then. */
void weft_nccl_poll(struct weft_nccl_world *world);
/* The error of a world whose communicators are being ended: a thread may have freed them, so nothing
 * may use them. */
enum weft_status weft_nccl_check_alive(struct weft_nccl_world *world, struct weft_error *error);
/* Ends all communicators, so that no transfer spins on the GPU any more. Waits for it, but not
 * for long, and not at all while recordings have transfers: their kernels end at once, but NCCL frees
 * nothing before the recordings are gone. False when a communicator does not end. Any thread; the first
 * call does it. */
bool weft_nccl_abort(struct weft_nccl_world *world);
/* Ends them after a good run: all ranks are through. */
void weft_nccl_finalize(struct weft_nccl_world *world);

/* nccl_group.c */
/* As the op. */
enum weft_status weft_nccl_group(struct weft_transport *transport, uint32_t id,
                                 const uint32_t *ranks, uint32_t count, struct weft_device *device,
                                 struct weft_group **out, struct weft_error *error);

/* nccl_sum.c */
/* Copies what a member gives to where it lies among what all give. */
enum weft_status weft_nccl_copy_own(struct weft_device *device,
                                    const struct weft_collective *collective, uint32_t member,
                                    struct weft_stream *stream, struct weft_error *error);
/* Enqueues a collective of the communicator's group. */
enum weft_status weft_nccl_collect(struct weft_nccl_world *world,
                                   struct weft_nccl_communicator *communicator,
                                   const struct weft_collective *collective,
                                   struct weft_stream *stream, struct weft_error *error);
/* One of each kind that is used, so that NCCL connects the members. `data` on the device has room
 * for a float and `size` floats. */
enum weft_status weft_nccl_collect_first(struct weft_nccl_world *world,
                                         struct weft_nccl_communicator *communicator, float *data,
                                         struct weft_error *error);

#endif
