/* Weft transport: what carries messages between ranks. This is the header for implementers of a
 * transport; its users need weft/comm.h only.
 *
 * A transport is one rank's endpoint in a world of ranks. It carries messages in order over
 * channels, one channel per directed stage boundary. Nothing here blocks except wait(), which
 * returns by its deadline. One thread at a time calls it, the rank's own, except where it says
 * "any thread".
 *
 *     rank 0                                   rank 1
 *     post(channel 0, sends, m) ───────────▶   post(channel 0, receives, n)
 *     test(m): WEFT_OK                         test(n): WEFT_OK, n holds it
 *
 * Sends and receives are matched by their order on the channel. A message belongs to the
 * transport from post() until test() returns WEFT_OK or cancel() returns. Within one
 * process the payload is handed over: the receiver gets the sender's buffer and the sender the
 * receiver's, so after test() `data` may be another buffer of the same capacity, and `device` and
 * `event` are that one's. So both must be from allocators that can free each other's blocks.
 *
 * A payload may be memory that the host cannot read (weft/device.h). A transport with
 * ops->device_memory hands it over or copies it by its device's functions; to any other
 * the executor gives a copy in host memory.
 *
 * Every transport passes tests/comm/support_conformance.c. */
#ifndef WEFT_TRANSPORT_H
#define WEFT_TRANSPORT_H

#include <weft/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_MESSAGE_MAGIC UINT32_C(0x54464557) /* "WEFT" */
#define WEFT_PROTOCOL 1

/* The direction of a message. A channel's number is 2 x sending stage + kind. */
enum weft_message_kind {
  WEFT_MESSAGE_ACTIVATION = 0, /* stage s to s+1 */
  WEFT_MESSAGE_GRADIENT = 1    /* stage s to s-1 */
};

/* Precedes every payload; 64 bytes, no padding. Both ends check it: not every network reports a
 * message that is shorter than its receive. */
struct weft_message_header {
  uint32_t magic;
  uint16_t protocol;
  uint8_t kind;         /* enum weft_message_kind */
  uint8_t tensor_count; /* shapes that follow */
  uint32_t stage;       /* that sends */
  uint32_t microbatch;
  uint64_t step;
  uint64_t sequence;         /* of the channel, from 0 */
  uint64_t bytes;            /* of payload */
  uint32_t program;          /* low half of the program's hash */
  uint32_t reserved;         /* 0 */
  uint64_t payload_checksum; /* 0: not taken */
  uint64_t checksum;         /* of header and shapes; last, weft_message_seal() writes it */
};

/* In `event_number`: the event of a copy, in a stream of its own. */
#define WEFT_EVENT_COPY (UINT64_C(1) << 31)

struct weft_message {
  struct weft_message_header header;
  struct weft_tensor_shape shapes[WEFT_TENSORS_MAX]; /* [header.tensor_count] */
  void *data;                                        /* payload */
  struct weft_device *device;                        /* where it is; NULL: host */
  uint64_t capacity;                                 /* bytes at `data` */
  /* On a device with streams, the last work that was enqueued on `data`, handed over with it:
   * whoever enqueues more in another stream has that stream wait for the event. */
  struct weft_device_event *event; /* NULL: there is none to wait for */
  uint64_t event_number;           /* round x 2^32 + the compute cell of that rank's row whose
                                      event it is, or for which WEFT_EVENT_COPY was made */
  uint32_t event_rank;             /* whose work it is */
  /* Where a transport that enqueues (ops->enqueues) puts the transfer: after all that is in it,
   * and before what comes later. NULL: a stream of its own, and test() waits for the transfer. */
  struct weft_stream *stream;
  bool recorded;     /* the stream is being recorded into a graph, that of the receiver as well; */
  bool header_only;  /* and this end's recording has failed: only the header travels */
  int64_t begin;     /* when the transfer began and ended, in now()'s time; */
  int64_t end;       /* written by the transport before test() says WEFT_OK */
  uint64_t state[2]; /* the transport's own while the message is */
};

/* Writes the checksum over header and shapes. */
WEFT_API void weft_message_seal(struct weft_message *message);
/* WEFT_ERR_PROTOCOL when magic, protocol, checksum, counts, dtypes or sizes of
 * a received message cannot be right, naming the field; nothing else is looked
 * at. Reads nothing beyond `capacity`. */
WEFT_API enum weft_status weft_message_check(const struct weft_message *message,
                                             struct weft_error *error);

/* One end of a channel. */
struct weft_channel_end {
  uint32_t channel;
  uint32_t peer;       /* rank at the other end */
  bool sends;          /* this end sends */
  uint32_t depth;      /* messages in flight at once, at least; >= 1 */
  uint64_t bytes_max;  /* largest payload */
  bool rendezvous;     /* a send is done only when its receive is posted, whatever its size; both
                         ends say the same */
  const char *content; /* what it carries, for messages; NULL: not known. Read by open() only */
  struct weft_device *device; /* where payloads are, for a transport that enqueues; NULL: host */
  /* Channels with the same peer, direction and communicator are sent and received in one order: the k-th
   * send of all of them is for the k-th receive. So they can share a connection, which is the
   * first in, first out of all of them. 0: no other channel has it. Both ends say the same. */
  uint32_t communicator;
};

#define WEFT_CONTENT_MAX 96 /* bytes of it that are kept */

/* What a rank is doing. The rank writes it, and any rank may read it at any time: each field by
 * an atomic access of its own (__atomic_load_n and __atomic_store_n, relaxed). So a reader may
 * see a mix of two moments, which is good enough for a wait graph. */
enum weft_rank_phase {
  WEFT_PHASE_IDLE = 0,  /* between steps, or before the first */
  WEFT_PHASE_HANDSHAKE, /* in the handshake */
  WEFT_PHASE_COMPUTE,   /* in a stage's function */
  WEFT_PHASE_RECEIVE,   /* waits for a message */
  WEFT_PHASE_SEND,      /* waits for a send to be received */
  WEFT_PHASE_DONE,      /* its row of the step is done */
  WEFT_PHASE_FAILED,    /* has failed */
  WEFT_PHASE_COUNT
};

#define WEFT_STATUS_RECENT 16

/* What other ranks have found out about a rank, and what they must know; bits of `flags`. */
#define WEFT_RANK_STOPPED 1u /* its process is stopped: SIGSTOP, or a debugger */
#define WEFT_RANK_SILENT 2u  /* it does not answer: its status is old, or empty */
/* weft_comm_run() has returned without it: its thread must stop when its function returns. */
#define WEFT_RANK_LEFT_BEHIND 4u
#define WEFT_RANK_DEAD 8u /* its process has ended too early: its status is the last one */
/* Set by the rank itself: it asks for an event of another one, which must not destroy it now. */
#define WEFT_RANK_ASKS_EVENT 16u
/* Likewise: its status shows what its device is doing, whose work has been enqueued. */
#define WEFT_RANK_ON_DEVICE 32u
/* Likewise: a device may be using memory of ranks on the host, as messages to and from them. */
#define WEFT_RANK_IN_STEP 64u
/* Likewise: its stages are on the GPU with the number `gpu`. */
#define WEFT_RANK_HAS_GPU 128u

struct weft_recent_action {
  uint64_t action; /* struct weft_action, its 8 bytes */
  int64_t begin;
  int64_t end;
};

struct weft_rank_status {
  uint32_t phase;  /* enum weft_rank_phase */
  uint32_t peer;   /* the rank it waits for; UINT32_MAX: none */
  uint64_t step;   /* of training, from 1; 0: none yet */
  uint64_t cell;   /* in its row, from 0 */
  uint64_t action; /* the present one: struct weft_action, its 8 bytes */
  uint64_t wants;  /* action of the peer that would end the wait, likewise; 0: unknown. In
                      WEFT_PHASE_COMPUTE: the collective that is waited for */
  int64_t since;   /* in this phase at this action, now()'s time */
  uint64_t flags;  /* WEFT_RANK_...; atomic: also written by refresh_status() and weft_comm_run() */
  uint64_t calls;  /* of stages' functions, and returns from them: odd while it is in one */
  uint64_t gpu;    /* its number, as the rank counts; with WEFT_RANK_HAS_GPU */
  int64_t stall_limit; /* of its pipeline, now()'s time; 0: none */
  uint64_t recent_count;
  struct weft_recent_action recent[WEFT_STATUS_RECENT]; /* a ring: the newest is recent_count - 1 */
};

/* Why a world failed: the one error that all ranks agree on. */
struct weft_failure {
  uint32_t rank;           /* the culprit, as far as is known; UINT32_MAX: none */
  struct weft_error error; /* its message names rank, action and peer */
};

#define WEFT_TIME_NEVER INT64_MAX

/* ---- Groups: collectives over some of the ranks ----
 *
 * Sums are f32 and are taken in order of members, ((x0 + x1) + x2) + ..., so that
 * they have the same bits on every transport (unless the world was opened for another order:
 * weft/comm.h). Shares are of equal size. */
enum weft_collective_kind {
  WEFT_ALL_GATHER,     /* from: own share; to: all shares, in order of members */
  WEFT_REDUCE_SCATTER, /* from: all shares; to: the sum over members of the own share */
  WEFT_ALL_REDUCE      /* from, to: `bytes` in all; to: the sum over members */
};

/* One collective; its memory and that at `from` and `to` are the group's from
 * start() until test() returns WEFT_OK. It may work in place: the own share lies where it
 * belongs among all of them, or from == to. */
struct weft_collective {
  enum weft_collective_kind kind;
  const void *from;
  void *to;
  struct weft_device *device; /* where both are; NULL: host */
  uint64_t bytes;             /* of a share; of ALL_REDUCE in all */
  /* Where a transport that enqueues (ops->enqueues) puts it: after all that is in it, and before
   * what comes later. test() then says WEFT_OK when it is enqueued. All of a group that are under
   * way have the same one. NULL: a stream of its own, and test() waits for the collective; what is
   * at `from` is complete. */
  struct weft_stream *stream;
  bool recorded;     /* the stream is being recorded into a graph */
  uint64_t state[4]; /* the group's own */
};

struct weft_group;

struct weft_group_ops {
  /* No collective may be in flight, unless the world has failed: it is abandoned then, and its
   * memory belongs to the caller again. */
  void (*destroy)(struct weft_group *group);
  /* Starts a collective; it never waits for the others, except for what they have yet to do of
   * hundreds that were enqueued before. Members start the same ones in the same order; several
   * may be in flight. WEFT_ERR_USAGE for a sum of bytes that are not whole floats. */
  enum weft_status (*start)(struct weft_group *group, struct weft_collective *collective,
                            struct weft_error *error);
  /* WEFT_OK: done; WEFT_IN_PROGRESS; or an error. Makes progress with this collective and with
   * those before it. */
  enum weft_status (*test)(struct weft_group *group, struct weft_collective *collective,
                           struct weft_error *error);
};

/* Base of every group: put it first. A group belongs to one rank, whose thread calls it. */
struct weft_group {
  const struct weft_group_ops *ops;
  uint32_t member; /* this rank's index in it */
  uint32_t size;
};

struct weft_transport;

struct weft_transport_ops {
  const char *name;
  bool virtual_time;   /* now() counts ticks, not nanoseconds */
  bool async_progress; /* messages progress while a rank computes, without any call */
  bool device_memory;  /* payloads and collectives may be on any device; else only on the host */
  /* Transfers of payloads on a device go into message->stream. test() then says WEFT_OK when the
   * transfer is enqueued, and, for a receive, the header has arrived. */
  bool enqueues;

  /* Frees a transport that wraps another one. NULL: it belongs to its world. */
  void (*destroy)(struct weft_transport *transport);

  /* Opens this rank's channels. Once, before anything else but now(), rank_status() and fail().
   * WEFT_ERR_MEMORY; WEFT_ERR_USAGE (a channel twice; a peer that does not exist). */
  enum weft_status (*open)(struct weft_transport *transport, const struct weft_channel_end *ends,
                           uint32_t count, struct weft_error *error);

  /* Starts a send, or posts a receive; it never blocks. WEFT_IN_PROGRESS: `depth` messages are in
   * flight, and this one was not accepted; try again after wait(). WEFT_ERR_USAGE for a payload
   * above bytes_max and for a channel on which this rank does the other. */
  enum weft_status (*post)(struct weft_transport *transport, uint32_t channel, bool sends,
                           struct weft_message *message, struct weft_error *error);

  /* WEFT_OK: done, and the message belongs to the caller again. A send is done when the peer has
   * received it or, where the network copies and the channel is not rendezvous, when `data` may be
   * overwritten. A received message is delivered unchecked: use weft_message_check().
   * WEFT_IN_PROGRESS, or an error. */
  enum weft_status (*test)(struct weft_transport *transport, struct weft_message *message,
                           struct weft_error *error);
  /* Returns a message that is not done to the caller, for tear-down; the channel cannot be used
   * afterwards. */
  void (*cancel)(struct weft_transport *transport, struct weft_message *message);

  /* Polls the network, and delivers what has arrived to the posted receives. What arrived before
   * this call is seen by test() after it. Returns the agreed error once there is one (fail()).
   * Call it before a round of test()s that may end in wait(). */
  enum weft_status (*progress)(struct weft_transport *transport, struct weft_error *error);

  /* For a rank that is computing: polls where messages benefit from it, and not so often that
   * the computation suffers. NULL: progress() is cheap enough for this. */
  void (*progress_from_compute)(struct weft_transport *transport);

  /* Waits until something has happened for this rank since progress(), or until now() is `until`
   * (WEFT_TIME_NEVER: no limit). May return early. In virtual time it lets other ranks run; when
   * the caller steps the ranks (weft_comm_next), it records `until` and returns at once. */
  enum weft_status (*wait)(struct weft_transport *transport, int64_t until,
                           struct weft_error *error);

  /* Time: nanoseconds of a clock that never goes back and is the same on all ranks of a host; or
   * virtual ticks. Any thread. */
  int64_t (*now)(struct weft_transport *transport);

  /* A non-blocking all-gather of `size` bytes (at most WEFT_EXCHANGE_MAX) per rank, in order of
   * rank. WEFT_IN_PROGRESS: call again with the same arguments. All ranks call the same exchanges
   * in the same order. weft_allgather() (weft/comm.h) blocks, and takes any size. */
  enum weft_status (*exchange)(struct weft_transport *transport, const void *mine, void *all,
                               size_t size, struct weft_error *error);

  /* What a rank gave to the exchange that this rank has completed last, valid until this rank's
   * next one: where it is not NULL, exchange() also takes NULL for `all`, so that the ranks of one
   * process need no memory that is quadratic in their number. */
  const void *(*exchanged)(struct weft_transport *transport, uint32_t rank);

  /* Fails the world. The first failure counts: progress() of every rank, this one too, returns
   * its error from then on. Any thread. */
  void (*fail)(struct weft_transport *transport, const struct weft_failure *failure);
  /* The agreed failure; false while there is none. Any thread. */
  bool (*get_failure)(struct weft_transport *transport, struct weft_failure *failure);

  /* The status of a rank: this rank's own, to write, or another's, to read. Valid until the world
   * is closed. Any thread. */
  struct weft_rank_status *(*rank_status)(struct weft_transport *transport, uint32_t rank);
  /* Updates the statuses of other ranks, as far as they answer before `until`. NULL where they
   * are always up to date. */
  void (*refresh_status)(struct weft_transport *transport, int64_t until);

  /* Where a rank is: "node7, process 4711". NULL where all ranks are in one process. Any
   * thread. */
  void (*location)(struct weft_transport *transport, uint32_t rank, char *buffer, size_t size);

  /* Where one thread drives all ranks of a process, else NULL. Every rank arrives with an item of
   * its own; the last one calls drive() for all of them, [rank_count], and then all calls return
   * WEFT_OK. WEFT_IN_PROGRESS: not all have arrived at `until`; call again. An agreed failure ends
   * the wait. An undriven rank arrives when it is done, with NULL twice: calls return when it has
   * arrived as well. After a failure, its own returns when nobody is in drive(). */
  enum weft_status (*step_barrier)(struct weft_transport *transport, void *item,
                                   void (*drive)(void *const *items, uint32_t count), int64_t until,
                                   struct weft_error *error);
  /* This rank is driven by its own thread from here on; it is not among the items of drive(). */
  void (*set_undriven)(struct weft_transport *transport);

  /* Creates this rank's end of a group of `ranks` [count], in that order; it is one of them. It
   * does not wait for the others. All members give the same `id`, and every group of the world
   * has its own; those from WEFT_GROUP_PIPELINES on are the pipelines'. `device`: that of its
   * collectives which are not on the host; NULL: all are. A transport that enqueues connects the
   * members of a group with a device in open(), so it is created before that. Destroy it before the
   * world is closed. NULL: this transport has no groups.
   * WEFT_ERR_MEMORY, WEFT_ERR_USAGE. */
  enum weft_status (*group)(struct weft_transport *transport, uint32_t id, const uint32_t *ranks,
                            uint32_t count, struct weft_device *device, struct weft_group **out,
                            struct weft_error *error);
};

#define WEFT_EXCHANGE_MAX 128
#define WEFT_GROUP_PIPELINES 30000u /* MPI has tags up to 32767 at least */

/* Base of every transport: put it first. */
struct weft_transport {
  const struct weft_transport_ops *ops;
  uint32_t rank;
  uint32_t rank_count;
  struct weft_transport *inner; /* nccl, which has some ops of mpi: that, on which they work; else
                                   NULL */
};

#define WEFT_RANK_NAME_SIZE 112

/* The name of a rank in an error: "rank 2 (node7, process 4711)", or "rank 2" where the transport
 * has no location. Returns the buffer. Any thread. */
WEFT_API char *weft_rank_name(struct weft_transport *transport, uint32_t rank,
                              char buffer[WEFT_RANK_NAME_SIZE]);

#ifdef __cplusplus
}
#endif
#endif
