/* The mpi transport, inside: this process's rank in a world of processes.
 *
 * A channel is two tags on a communicator of our own, so order on a channel is MPI's. A small
 * message is one MPI message with header and payload, through a buffer of ours. On channels for
 * larger payloads the header is a message by itself, and the payload goes in pieces straight
 * from one `data` into the other; the channel fixes how many, so post() of a receive posts all of them.
 *
 * One mutex serializes all calls of MPI. */
#ifndef COMM_MPI_WORLD_H
#define COMM_MPI_WORLD_H

#include <pthread.h>

#include <mpi.h>

#include <weft/support.h>

#include "comm/channel_ends.h"
#include "comm/core_yield.h"
#include "comm/mpi/mpi_driver.h"

enum {
  /* Channels for payloads up to that size send header and payload in one message. With the
   * header it stays below the eager limits of MPI's shared memory and networks. */
  WEFT_MPI_EAGER = 3072,
  WEFT_MPI_HEADER_MAX =
      16 + sizeof(struct weft_message_header) + WEFT_TENSORS_MAX * sizeof(struct weft_tensor_shape),
  WEFT_MPI_PIECE = 1 << 30,  /* bytes; MPI counts in int */
  WEFT_MPI_HOST_SIZE = 64,   /* a host's name, cut */
  WEFT_MPI_CONTROL_US = 200, /* between two probes for control messages */
  WEFT_MPI_PEERS_MS = 5,     /* between two checks whether peers are alive */
  WEFT_MPI_NS_PER_US = 1000,
  WEFT_MPI_NS_PER_MS = 1000000,
  WEFT_MPI_NS_PER_S = 1000000000
};

/* One end of a channel. Messages start and complete in order; `part` of the oldest is awaited:
 * 0 its header, then its pieces. */
struct weft_mpi_end {
  struct weft_end base; /* first */
  bool broken;          /* something arrived that cannot be right: world->trouble */
  bool listed;          /* among the world's active requests */
  bool near;            /* the peer is on this host */
  bool rendezvous;
  uint32_t part;
  uint32_t part_count;
  size_t header_size;     /* at most; with the payload, if the channel is eager */
  MPI_Request *requests;  /* [mask + 1][part_count] */
  unsigned char *headers; /* [mask + 1][header_size] */
};

/* Two tags for a channel: the payload need not be received first because it is sent first. */
static inline int weft_mpi_header_tag(uint32_t channel) { return (int)(2 * channel); }
static inline int weft_mpi_payload_tag(uint32_t channel) { return (int)(2 * channel + 1); }

/* What every rank sends to all others when a world is opened. */
struct weft_mpi_peer_info {
  char version[16];
  char host[WEFT_MPI_HOST_SIZE];
  char machine[40]; /* the boot's id: one clock, one /proc */
  uint64_t piece;
  uint64_t pid_space; /* processes see each other by number */
  uint64_t started;   /* start time of the process, so that a reused number is noticed */
  int32_t pid;
  int32_t status_file; /* file descriptor of its shared status; -1: none */
  int32_t status;
};

/* A rank's status, in memory that other ranks of the host map. */
struct weft_mpi_shared_status {
  struct weft_rank_status status;
  uint32_t finalizing; /* atomic: the world ended well, and its process may end */
};

/* Messages on the control communicator; the kind is the tag. */
enum weft_mpi_control {
  WEFT_MPI_FAILURE,
  WEFT_MPI_QUESTION,
  WEFT_MPI_STATUS,
  WEFT_MPI_CONTROL_KINDS
};

struct weft_mpi_peer {
  struct weft_mpi_peer_info info;
  struct weft_mpi_shared_status *shared; /* its own memory, or our copy where it is not visible */
  bool visible;                          /* its process can be seen from here */
  bool mapped;
  bool gone;
  bool asked;                               /* for its status, and has not answered yet */
  bool heard;                               /* it has reported which failure it knows */
  MPI_Request sent[WEFT_MPI_CONTROL_KINDS]; /* the last message of each kind to it */
};

/* A failure, as it travels on the control communicator. */
struct weft_mpi_report {
  int64_t time;
  uint32_t rank; /* that reported it */
  uint32_t reserved;
  struct weft_failure failure;
};

struct weft_mpi_group;

struct weft_mpi_world {
  struct weft_comm comm; /* first */
  struct weft_transport transport;
  struct weft_transport_ops ops;
  const struct weft_allocator *allocator;
  pthread_mutex_t lock; /* around every call of MPI */
  bool owns_mpi;        /* initialised here */
  bool spins;           /* every rank of this host can have a core */
  int64_t clock_offset;
  uint64_t piece;
  const char *host; /* of the options, while the world is made */

  MPI_Comm messages; /* a communicator for each purpose */
  MPI_Comm control;
  MPI_Comm exchanges;
  MPI_Comm collectives;

  struct weft_ends ends; /* struct weft_mpi_end */

  /* The oldest request of each end with a message in flight; all in the arena of the ends. */
  MPI_Request *active;  /* [active_count] of at most as many as there are ends */
  uint32_t *active_end; /* whose it is */
  int *ready;           /* for MPI_Testsome */
  MPI_Status *statuses; /* likewise */
  uint32_t active_count;
  uint64_t events;               /* things that happened for this rank */
  uint64_t seen;                 /* of these, at the last progress() */
  uint64_t found;                /* of these, by wait() */
  uint32_t tests;                /* in vain, since then */
  uint32_t polls;                /* of the network */
  uint32_t has_failed;           /* atomic: a failure is known */
  struct weft_core_yield yield;  /* in wait() */
  int64_t poll_ns;               /* what a poll costs at least; 0: not known */
  int64_t next_progress;         /* before this time, progress_from_compute() does nothing */
  struct weft_mpi_group *groups; /* of this rank */
  uint32_t collective_count;     /* in flight */

  MPI_Request exchange; /* MPI_REQUEST_NULL: it is done, */
  bool exchanging;      /* or there is none */
  unsigned char exchange_mine[WEFT_EXCHANGE_MAX];
  unsigned char *exchange_all; /* [rank_count][WEFT_EXCHANGE_MAX] */

  struct weft_arena table_arena; /* of what has rank_count items */
  struct weft_mpi_peer *peers;   /* [rank_count] */
  struct pollfd *processes;      /* [rank_count]; fd -1: not on this host, or ended */
  int status_file;
  uint32_t asked_count; /* peers that are to send their status */
  int64_t next_control;
  int64_t next_peers;

  bool agreed; /* a failure is known, and agreed */
  int64_t failed_at;
  uint32_t heard_count; /* ranks that have reported which failure they know, without this one */
  struct weft_mpi_report report; /* the earliest so far */
  struct weft_mpi_report own;    /* as it was sent */
  struct weft_error trouble;     /* why an end is broken */
  int64_t cancel_until;          /* cancel() waits no longer; 0: has not waited */
  int cancelled;                 /* 1: a message was; it may still come */
  int any_cancelled;             /* by any rank; written when the world ends */

  bool has_thread;
  pthread_t thread;
  uint32_t thread_ends;  /* atomic */
  uint32_t rank_waits;   /* atomic: the rank itself makes progress */
  uint32_t thread_idles; /* atomic: it sleeps until something is in flight */

  char library[256];
  char binding[256];
  const char *threading;
  uint64_t tag_max;
  uint32_t rank_on_host;
  uint32_t ranks_on_host;
};

/* The transport, or the one of nccl around it, which has some of its ops. */
static inline struct weft_mpi_world *weft_mpi_world_of(struct weft_transport *transport) {
  transport = transport->inner != NULL ? transport->inner : transport;
  return (struct weft_mpi_world *)(void *)((char *)transport -
                                           offsetof(struct weft_mpi_world, transport));
}

static inline void weft_mpi_lock(struct weft_mpi_world *world) {
  (void)pthread_mutex_lock(&world->lock);
}
static inline void weft_mpi_unlock(struct weft_mpi_world *world) {
  (void)pthread_mutex_unlock(&world->lock);
}

/* All of these are called with the lock held, except where it says otherwise; the ops of the
 * transport take it themselves. */

/* mpi_world.c: as MPI_Wait, but sleeps in between: in MPI's own waiting, ranks that outnumber the
 * cores would spin against each other. Without the lock. */
int weft_mpi_await(MPI_Request *request);
/* What an error of MPI is, in one line. */
void weft_mpi_error_text(int result, char text[MPI_MAX_ERROR_STRING + 1]);

/* mpi_transfer.c */
enum weft_status weft_mpi_open(struct weft_transport *transport,
                               const struct weft_channel_end *ends, uint32_t count,
                               struct weft_error *error);
enum weft_status weft_mpi_post(struct weft_transport *transport, uint32_t channel, bool sends,
                               struct weft_message *message, struct weft_error *error);
enum weft_status weft_mpi_test(struct weft_transport *transport, struct weft_message *message,
                               struct weft_error *error);
void weft_mpi_cancel(struct weft_transport *transport, struct weft_message *message);
/* A part of the oldest message is done, with that result of MPI. */
void weft_mpi_end_part(struct weft_mpi_world *world, struct weft_mpi_end *end, int result,
                       MPI_Status *status);
/* Continues with what comes after it, and lists the end when it has to wait. */
void weft_mpi_end_advance(struct weft_mpi_world *world, struct weft_mpi_end *end);

/* mpi_progress.c */
void weft_mpi_advance(struct weft_mpi_world *world);
enum weft_status weft_mpi_progress(struct weft_transport *transport, struct weft_error *error);
void weft_mpi_progress_from_compute(struct weft_transport *transport);
enum weft_status weft_mpi_wait(struct weft_transport *transport, int64_t until,
                               struct weft_error *error);
enum weft_status weft_mpi_exchange(struct weft_transport *transport, const void *mine, void *all,
                                   size_t size, struct weft_error *error);
/* Without the lock. */
enum weft_status weft_mpi_start_thread(struct weft_mpi_world *world, struct weft_error *error);
void weft_mpi_stop_thread(struct weft_mpi_world *world);
/* Something is in flight again. */
void weft_mpi_wake_thread(struct weft_mpi_world *world);

/* mpi_control.c */
void weft_mpi_control_poll(struct weft_mpi_world *world);
void weft_mpi_refresh_status(struct weft_transport *transport, int64_t until);
void weft_mpi_fail(struct weft_transport *transport, const struct weft_failure *failure);
bool weft_mpi_get_failure(struct weft_transport *transport, struct weft_failure *failure);
/* This rank reports a failure to all. */
void weft_mpi_failure_report(struct weft_mpi_world *world, const struct weft_failure *failure);
/* Nothing more is to be expected from that rank: it has reported what it knows, or is dead. */
void weft_mpi_failure_heard(struct weft_mpi_world *world, uint32_t rank);
/* WEFT_OK, or the agreed error, for which it waits. */
enum weft_status weft_mpi_failure_check(struct weft_mpi_world *world, struct weft_error *error);
/* A call of MPI went wrong. */
void weft_mpi_failure_of_mpi(struct weft_mpi_world *world, int result, const char *what);
/* As of weft_comm_kind. */
void weft_mpi_abandon(struct weft_comm *comm, int exit_status);

/* mpi_peers.c */
enum weft_status weft_mpi_peers_create(struct weft_mpi_world *world, struct weft_error *error);
void weft_mpi_peers_finish(struct weft_mpi_world *world);
/* Reports a failure when the process of a peer has ended. */
void weft_mpi_peers_check(struct weft_mpi_world *world);
/* Marks in their statuses which of the visible processes are stopped. */
void weft_mpi_peers_mark_stopped(struct weft_mpi_world *world);
/* As the op; peer infos do not change, so it needs no lock. */
void weft_mpi_location(struct weft_transport *transport, uint32_t rank, char *buffer, size_t size);
bool weft_mpi_same_machine(const struct weft_mpi_world *world, uint32_t a, uint32_t b);

/* mpi_clock.c. Without the lock. */
int64_t weft_mpi_time(const struct weft_mpi_world *world);
int64_t weft_mpi_now(struct weft_transport *transport);
void weft_mpi_sleep(int64_t ns);
/* All ranks call it; it waits for them. */
enum weft_status weft_mpi_clock_agree(struct weft_mpi_world *world, struct weft_error *error);

/* mpi_finalize.c: the end, when all ranks are through and the world is gone. Without the lock. */
void weft_mpi_finalize(bool several_hosts);

/* mpi_collectives.c */
enum weft_status weft_mpi_group_create(struct weft_transport *transport, uint32_t id,
                                       const uint32_t *ranks, uint32_t count,
                                       struct weft_device *device, struct weft_group **out,
                                       struct weft_error *error);
void weft_mpi_groups_advance(struct weft_mpi_world *world);

#endif
