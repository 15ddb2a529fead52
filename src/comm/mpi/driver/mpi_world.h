/* The mpi transport, inside: this process's rank in a world of processes.
 *
 *   mpi_world.c      making and ending a world
 *   mpi_channel.c    open(): rings of requests, all that is ever allocated for messages
 *   mpi_transfer.c   messages
 *   mpi_envelope.c   what travels in front of a payload
 *   mpi_letterbox.c  envelopes between ranks of a host, through memory
 *   mpi_progress.c   looking at the network, waiting, the progress thread, exchanges
 *   mpi_failure.c    the agreed failure; ending the job
 *   mpi_peers.c      who the others are: hosts, processes, boards
 *   mpi_control.c    control messages: failures, questions for boards
 *   mpi_collectives.c      collectives
 *   mpi_clock.c      one time for all hosts
 *   mpi_gate.c       one thread at a time
 *   mpi_pingpong.c       MPI without a transport, to be compared with
 *   mpi_finalize.c      the end of MPI
 *   mpi_library.c    which MPI this is
 *
 * A channel is two tags on a communicator of our own, so order on a channel is MPI's. A
 * message is an envelope (header and shapes, in short; and the payload itself on channels
 * for small ones), through a buffer of ours, and then, on channels for larger payloads,
 * the payload in pieces straight from one `data` into the other. How many pieces is
 * fixed by the channel, so all receives are posted in receive(). Between ranks of a host
 * the buffer is one that both see, and MPI has nothing to do with envelopes.
 *
 * One gate is before everything; behind it no two threads are ever inside MPI. */
#ifndef MPI_MPI_WORLD_H
#define MPI_MPI_WORLD_H

#include <pthread.h>

#include <mpi.h>

#include "comm/mpi/driver/mpi_envelope.h"
#include "comm/mpi/driver/mpi_gate.h"
#include "comm/mpi/driver/mpi_letterbox.h"
#include "comm/mpi/mpi_driver.h"

enum {
  /* Payloads up to that size are copied into their envelope: the copies cost less than a
   * message of MPI. By MPI, it stays below the eager limits, of memory and of networks. */
  WEFT_MPI_INLINE_LETTER = 8192,
  WEFT_MPI_INLINE = 3072,
  WEFT_MPI_INLINE_FAR = 49152,
  WEFT_MPI_PIECE = 1 << 30,  /* bytes; MPI counts in int */
  WEFT_MPI_HOST_SIZE = 64,   /* a host's name, cut */
  WEFT_MPI_SETTLE_MS = 100,  /* failures that are said within this time are one */
  WEFT_MPI_CONTROL_US = 200, /* between two looks for control messages */
  WEFT_MPI_PEERS_MS = 5,     /* between two looks whether peers are alive */
  WEFT_MPI_NS_PER_US = 1000,
  WEFT_MPI_NS_PER_MS = 1000000,
  WEFT_MPI_NS_PER_S = 1000000000
};

/* One end of a channel. Messages are taken and given back in order; `part` of the
 * oldest is awaited: 0 its envelope, then its pieces. */
struct weft_mpi_end {
  uint32_t channel;
  uint32_t peer;
  bool sends;
  bool closed;    /* by a cancel() */
  bool broken;    /* something came that cannot be: world->trouble */
  bool listed;    /* among the world's active requests, or ends that await a letter */
  bool by_letter; /* envelopes go through memory, without a request */
  uint32_t depth;
  uint32_t mask; /* of the ring */
  uint32_t part;
  uint32_t part_count;
  uint64_t bytes_max;
  uint64_t posted;
  uint64_t done;
  size_t envelope_size;           /* at most */
  struct weft_message **messages; /* [mask + 1]; NULL: cancelled */
  MPI_Request *requests;          /* [mask + 1][part_count] */
  unsigned char *envelopes;       /* [mask + 1][envelope_size]; NULL: by letter */
  struct weft_mpi_letterbox box;
  struct weft_mpi_memory memory; /* of the last message written, or read */
};

/* Two tags for a channel: what is awaited first need not be sent first. */
static inline int weft_mpi_envelope_tag(const struct weft_mpi_end *end) {
  return (int)(2 * end->channel);
}
static inline int weft_mpi_payload_tag(const struct weft_mpi_end *end) {
  return (int)(2 * end->channel + 1);
}

struct weft_mpi_end_slot {
  uint32_t channel;
  uint32_t end; /* index + 1; 0: empty */
};

/* What every rank tells the others about itself when a world is made. */
struct weft_mpi_card {
  char version[16];
  char host[WEFT_MPI_HOST_SIZE];
  char machine[40]; /* the boot's id: one clock, one /proc */
  uint64_t piece;
  uint64_t pid_space; /* processes see each other by number */
  uint64_t net_space; /* of the network: a host to others */
  uint64_t started;   /* of the process, so that a number used again is noticed */
  int32_t pid;
  int32_t page;    /* file descriptor of its board; -1: none */
  int32_t letters; /* 1: it would have envelopes go through memory */
  int32_t status;
};

/* A rank's board, in memory that others on the host map. */
struct weft_mpi_page {
  struct weft_rank_status board;
  uint32_t leaving;      /* atomic: it ended well, its process may go */
  uint64_t letters_size; /* atomic: bytes of the file, with letterboxes; 0: not made yet */
};

struct weft_mpi_peer {
  struct weft_mpi_card card;
  struct weft_mpi_page *page; /* its own memory, or where it cannot be seen our copy */
  bool visible;               /* its process can be seen from here */
  bool mapped;
  bool gone;
  bool asked;             /* for its board, and has not answered yet */
  bool heard;             /* it has said which failure it knows */
  bool writes;            /* its envelopes to us are letters */
  bool reads;             /* ours to it are */
  int file;               /* with its letterboxes; -1: not needed */
  unsigned char *letters; /* the file, mapped; NULL: not yet */
  size_t letters_size;
  MPI_Request failure_request;
  MPI_Request board_request; /* of our board to it */
  MPI_Request question_request;
};

/* What travels on the control communicator. */
enum weft_mpi_control_kind { WEFT_MPI_FAILURE = 1, WEFT_MPI_QUESTION, WEFT_MPI_BOARD };

struct weft_mpi_failure_note {
  int64_t time;
  uint32_t rank; /* that said so */
  uint32_t reserved;
  struct weft_failure failure;
};

/* For times of messages (mpi_clock.c). */
struct weft_mpi_stamps {
  bool has_counter;
  int64_t clock;       /* a reading of the clock, */
  uint64_t count;      /* the counter then, */
  uint64_t counts;     /* and by how much it may go on until the next; 0: none yet */
  double ns_per_count; /* 0: not known yet */
  int64_t rate_from;
  uint64_t rate_count;
};

struct weft_mpi_group;

struct weft_mpi_world {
  struct weft_mpi base; /* first */
  struct weft_transport transport;
  struct weft_transport_ops ops;
  const struct weft_allocator *allocator;
  struct weft_mpi_gate gate;
  bool owns_mpi; /* initialised here */
  bool spins;    /* every rank of this host can have a core */
  int64_t clock_offset;
  struct weft_mpi_stamps stamps;
  uint64_t piece;

  MPI_Comm messages; /* a communicator for each purpose */
  MPI_Comm control;
  MPI_Comm exchanges;
  MPI_Comm collectives;

  bool opened;
  struct weft_mpi_end *ends;
  uint32_t end_count;
  struct weft_mpi_end_slot *slots;
  uint32_t slot_mask;

  /* The request that each end with something under way awaits; and the exchange's. */
  MPI_Request *active;    /* [active_room] */
  uint32_t *active_owner; /* index of an end; UINT32_MAX: the exchange */
  int *ready;             /* [active_room], for MPI_Testsome */
  MPI_Status *statuses;
  uint32_t active_count;
  uint32_t *awaiting; /* [end_count] ends whose next step is a letter */
  uint32_t awaiting_count;
  uint32_t active_room;
  uint64_t events;   /* things that happened for this rank */
  uint64_t seen;     /* of these, at the last progress() */
  uint32_t tests;    /* in vain, since then */
  uint32_t looks;    /* at the network */
  int64_t look_ns;   /* what a look costs at least; 0: not known */
  int64_t next_poke; /* before this time, one does nothing */
  int64_t instant;   /* the time, while a send is being started; else 0 */

  bool exchanging;
  bool exchanged;
  unsigned char exchange_mine[WEFT_EXCHANGE_MAX];
  unsigned char *exchange_all; /* [rank_count][WEFT_EXCHANGE_MAX] */

  struct weft_mpi_peer *peers; /* [rank_count] */
  struct pollfd *processes;    /* [process_count] of peers on this host that live */
  uint32_t *process_rank;
  uint32_t process_count;
  int page_file;
  unsigned char *letters; /* the file, once it has letterboxes */
  size_t letters_size;
  int64_t next_control;
  int64_t next_peers;

  uint32_t has_failed; /* atomic: a failure is known */
  bool settled;        /* and agreed */
  int64_t failed_at;
  uint32_t heard_count; /* ranks that have said which failure they know, without this one */
  struct weft_mpi_failure_note note; /* the best so far */
  struct weft_mpi_failure_note own;  /* as it was sent */
  struct weft_error trouble;         /* why an end is broken */
  int64_t cancel_until;              /* cancel() waits no longer; 0: has not waited */
  int cancelled;                     /* 1: a message was; it may still come */
  int any_cancelled;                 /* by any rank; written when the world ends */

  struct weft_mpi_group *groups; /* with a collective under way */

  bool has_thread;
  pthread_t thread;
  uint32_t thread_ends;  /* atomic */
  uint32_t rank_waits;   /* atomic: the rank itself sees to messages */
  uint32_t thread_idles; /* atomic: it sleeps until something is under way */

  char library[256];
  char binding[256];
  const char *threading;
  uint64_t tag_max;
  uint32_t rank_on_host;
  uint32_t ranks_on_host;
};

static inline struct weft_mpi_world *weft_mpi_world_of(struct weft_transport *transport) {
  return (struct weft_mpi_world *)(void *)((char *)transport -
                                           offsetof(struct weft_mpi_world, transport));
}

/* Within the gate, all of them, except where it says otherwise. */

/* mpi_world.c: as MPI_Wait, but gives the core away: in MPI's own waiting, ranks that
 * outnumber the cores would spin against each other. Without the gate. */
int weft_mpi_await(MPI_Request *request);

/* mpi_channel.c: as the op, passes the gate itself. */
enum weft_status weft_mpi_open(struct weft_transport *transport,
                               const struct weft_channel_end *ends, uint32_t count,
                               struct weft_error *error);
void weft_mpi_close(struct weft_mpi_world *world);
/* Room for that many active requests; keeps those there are. */
enum weft_status weft_mpi_active_create(struct weft_mpi_world *world, uint32_t room,
                                        struct weft_error *error);

/* mpi_transfer.c: as the ops, which pass the gate themselves. */
enum weft_status weft_mpi_send(struct weft_transport *transport, uint32_t channel,
                               struct weft_message *message, struct weft_error *error);
enum weft_status weft_mpi_receive(struct weft_transport *transport, uint32_t channel,
                                  struct weft_message *message, struct weft_error *error);
enum weft_status weft_mpi_test(struct weft_transport *transport, struct weft_message *message,
                               struct weft_error *error);
void weft_mpi_cancel(struct weft_transport *transport, struct weft_message *message);
/* A part of the oldest message has come, with that result of MPI. */
void weft_mpi_end_take(struct weft_mpi_world *world, struct weft_mpi_end *end, int result,
                       MPI_Status *status);
/* A letter has come, or there is room for one. */
bool weft_mpi_end_has_letter(struct weft_mpi_world *world, struct weft_mpi_end *end);
/* The payload of its oldest message moves, between ranks of a host. */
bool weft_mpi_end_flows(const struct weft_mpi_end *end);
/* Goes on with what comes after it, and lists the end when it has to wait. */
void weft_mpi_end_advance(struct weft_mpi_world *world, struct weft_mpi_end *end);
struct weft_mpi_end *weft_mpi_end_find(const struct weft_mpi_world *world, uint32_t channel);
static inline uint32_t weft_mpi_channel_hash(uint32_t channel, uint32_t mask) {
  return ((channel * UINT32_C(0x9e3779b1)) >> 8) & mask;
}

/* mpi_progress.c */
void weft_mpi_list(struct weft_mpi_world *world, MPI_Request request, uint32_t owner);
void weft_mpi_list_letter(struct weft_mpi_world *world, uint32_t owner);
void weft_mpi_advance(struct weft_mpi_world *world);
enum weft_status weft_mpi_progress(struct weft_transport *transport, struct weft_error *error);
void weft_mpi_poke(struct weft_transport *transport);
enum weft_status weft_mpi_wait(struct weft_transport *transport, int64_t until,
                               struct weft_error *error);
enum weft_status weft_mpi_exchange(struct weft_transport *transport, const void *mine, void *all,
                                   size_t size, struct weft_error *error);
/* Without the gate. */
enum weft_status weft_mpi_start_thread(struct weft_mpi_world *world, struct weft_error *error);
void weft_mpi_stop_thread(struct weft_mpi_world *world);
/* Something is under way again. */
void weft_mpi_wake_thread(struct weft_mpi_world *world);

/* mpi_control.c */
void weft_mpi_control_look(struct weft_mpi_world *world);
void weft_mpi_control_send(struct weft_mpi_world *world, uint32_t rank,
                           enum weft_mpi_control_kind kind, const void *data, size_t size,
                           MPI_Request *request);
/* No answer is under way to this rank. */
bool weft_mpi_control_is_quiet(const struct weft_mpi_world *world);
/* As the op, passes the gate itself. */
void weft_mpi_refresh_boards(struct weft_transport *transport, int64_t until);

/* mpi_failure.c */
void weft_mpi_fail(struct weft_transport *transport, const struct weft_failure *failure);
bool weft_mpi_failed(struct weft_transport *transport, struct weft_failure *failure);
/* This rank says so, or has been told. */
void weft_mpi_failure_say(struct weft_mpi_world *world, const struct weft_failure *failure);
void weft_mpi_failure_told(struct weft_mpi_world *world, uint32_t teller,
                           const struct weft_mpi_failure_note *note);
/* Nothing more is to be expected from that rank: it has said what it knows, or is dead. */
void weft_mpi_failure_heard(struct weft_mpi_world *world, uint32_t rank);
/* The agreed error, for which it waits; there is one. */
enum weft_status weft_mpi_failure_agreed(struct weft_mpi_world *world, struct weft_error *error);
/* WEFT_OK, or that. */
static inline enum weft_status weft_mpi_failure_check(struct weft_mpi_world *world,
                                                      struct weft_error *error) {
  return world->has_failed ? weft_mpi_failure_agreed(world, error) : WEFT_OK;
}
/* A call of MPI went wrong. */
void weft_mpi_failure_of_mpi(struct weft_mpi_world *world, int result, const char *what);
void weft_mpi_driver_abandon(struct weft_mpi *base, int exit_status);

/* mpi_peers.c */
enum weft_status weft_mpi_peers_create(struct weft_mpi_world *world, struct weft_error *error);
void weft_mpi_peers_finish(struct weft_mpi_world *world);
void weft_mpi_peers_look(struct weft_mpi_world *world);
/* Marks on their boards which of the visible processes are stopped. */
void weft_mpi_peers_mark_stopped(struct weft_mpi_world *world);
/* The memory that a rank of this host shows; -1: it cannot be opened. */
int weft_mpi_page_open(const struct weft_mpi_card *card);
/* As the op; cards do not change, so any thread may, without the gate. */
void weft_mpi_place(struct weft_transport *transport, uint32_t rank, char *buffer, size_t size);
bool weft_mpi_same_machine(const struct weft_mpi_world *world, uint32_t a, uint32_t b);

/* mpi_clock.c */
int64_t weft_mpi_monotonic(void);
static inline int64_t weft_mpi_time(const struct weft_mpi_world *world) {
  return weft_mpi_monotonic() + world->clock_offset;
}
void weft_mpi_stamps_create(struct weft_mpi_stamps *stamps);
/* As weft_mpi_time(), and quicker. */
int64_t weft_mpi_stamp(struct weft_mpi_world *world);
int64_t weft_mpi_now(struct weft_transport *transport);
void weft_mpi_sleep(int64_t ns);
/* All ranks call it; it waits for them. */
enum weft_status weft_mpi_clock_agree(struct weft_mpi_world *world, struct weft_error *error);

/* mpi_finalize.c. Whether the end needs the launcher's help; and the end, when all ranks are
 * through and the world is gone. Without the gate. */
bool weft_mpi_leaves_across(const struct weft_mpi_world *world);
void weft_mpi_leave(bool across);

/* mpi_collectives.c */
enum weft_status weft_mpi_group_create(struct weft_transport *transport, uint32_t id,
                                       const uint32_t *ranks, uint32_t count,
                                       struct weft_group **out, struct weft_error *error);
void weft_mpi_groups_advance(struct weft_mpi_world *world);

/* mpi_library.c: "MPICH Version: 4.0.2, device ch4:ucx". Without the gate. */
void weft_mpi_library_describe(char *out, size_t size);

/* mpi_pingpong.c: as the driver's function, passes the gate itself. */
enum weft_status weft_mpi_driver_bare(struct weft_mpi *world, const struct weft_mpi_bare *game,
                                      struct weft_error *error);

#endif
