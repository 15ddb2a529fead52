/* Weft comm: worlds of ranks, and the transports that carry their messages.
 *
 *   loopback   all ranks in this process, one at a time, in virtual time, the same for a seed
 *   threads    all ranks in this process, a thread per rank
 *   cuda       all ranks in this process, on its GPUs; one thread drives the steps of all of them
 *   mpi        a process per rank, on one host or many
 *   nccl       as mpi, with a GPU per rank, whose payloads travel by NCCL
 *
 *     struct weft_comm_options options = weft_comm_options_default();
 *     options.rank_count = 4;
 *     weft_comm_open(NULL, "threads", &options, &comm, &error);
 *     weft_comm_run(comm, rank_main, context, &error);   // rank_main on every rank
 *     weft_comm_close(comm);
 *
 * rank_main gets this rank's endpoint, a struct weft_transport, gives it to a pipeline
 * (weft/run.h), and may call weft_allgather() and weft_barrier() between steps. */
#ifndef WEFT_COMM_H
#define WEFT_COMM_H

#include <weft/transport.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The transports: one table ---- */

/* All of them, and what help says of each. A new one is a line here and a folder src/comm/NAME, which
 * defines weft_NAME_kind (src/comm/comm_registry.h). */
#define WEFT_TRANSPORTS(X)                                \
  X(loopback, "all ranks in one thread, in virtual time") \
  X(threads, "a thread per rank")                         \
  X(cuda, "GPUs of this process")                         \
  X(mpi, "a process per rank")                            \
  X(nccl, "a process per rank, messages between GPUs")    \
  /* one in each line */

/* What a caller needs to know about a transport, instead of its name. */
struct weft_comm_info {
  const char *name;
  bool virtual_time;     /* now() counts ticks, and a run depends on the seed alone */
  bool process_per_rank; /* a launcher starts the ranks; else all are in this process */
  bool progress_thread;  /* options.progress has an effect */
  bool own_sums;         /* options.sums has an effect */
  bool gpus;             /* the command's stages may be on GPUs with it, */
  bool gpus_only;        /* and must be */
  const char *library;   /* "NCCL", loaded when it is needed; NULL: none */
  const char *base; /* the transport that connects its ranks, also without the library; or NULL */
};

/* The k-th transport, from 0; NULL after the last. */
WEFT_API const struct weft_comm_info *weft_comm_transport(uint32_t k);
/* The transport of that name, or NULL. */
WEFT_API const struct weft_comm_info *weft_comm_find(const char *name);

/* ---- A world of ranks, as this process sees it ---- */

struct weft_comm;

/* What makes messages progress while a rank computes. */
enum weft_comm_progress {
  WEFT_COMM_PROGRESS_CALLS = 0, /* the rank: in transport calls, and when a stage calls progress */
  WEFT_COMM_PROGRESS_THREAD     /* a thread per rank */
};

/* Sums of groups whose memory is on a GPU. All ranks say the same. */
enum weft_comm_sums {
  WEFT_COMM_SUMS_IN_ORDER = 0, /* of members: the same bits as on every other transport */
  WEFT_COMM_SUMS_OF_NCCL       /* NCCL's own: faster, in an order that depends on sizes and GPUs */
};

struct weft_comm_options {
  /* Ranks of the world. Where a launcher starts them: 0, or the number it must have started. */
  uint32_t rank_count;

  /* loopback */
  uint64_t seed;          /* order of ranks that could run at the same time, and delays */
  int64_t latency_ticks;  /* of every message */
  int64_t occupied_ticks; /* a message occupies its channel this long, before the latency */
  const int64_t
      *channel_ticks; /* [channel_count] the same of channels 0, 1, ... in its place, where
                                   messages have sizes; borrowed until the world is closed */
  uint32_t channel_count;
  int64_t delay_ticks_max; /* random extra latency, 0 ... max; order on a channel is kept */
  int64_t stage_limit_ns;  /* real time in one call of a stage's function, in which virtual time
                              stands still; default 30 s; 0: no limit (see weft_comm_run) */

  /* mpi */
  const char *implementation; /* "openmpi", "mpich"; NULL: the one that started this process,
                                 else the first that is installed */
  enum weft_comm_progress progress;
  const void *communicator; /* an MPI_Comm to duplicate, of a program that has initialised MPI
                               with MPI_THREAD_MULTIPLE; NULL: all processes, and MPI is
                               initialised here and finalised by weft_comm_close() */
  const char *host; /* this rank counts as on a machine of that name; NULL: on the one it is on */

  /* nccl */
  enum weft_comm_sums sums;

  /* mpi and nccl, the same on all ranks: bytes that a larger payload, or a larger sum, is made of;
   * 0: 1 GiB of a payload, which is the most, and 4 MiB of a sum on GPUs */
  uint64_t piece_bytes;
};

WEFT_API struct weft_comm_options weft_comm_options_default(void);

/* Opens a world. On mpi all processes of the communicator call it, and it waits for them;
 * without a launcher that is a world of one rank. `options` NULL: the default.
 * WEFT_ERR_USAGE: no such transport, implementation or number of ranks.
 * WEFT_ERR_UNAVAILABLE: no MPI, or no driver for it; the hint names the package. */
WEFT_API enum weft_status weft_comm_open(const struct weft_allocator *allocator, const char *name,
                                         const struct weft_comm_options *options,
                                         struct weft_comm **out, struct weft_error *error);
/* NULL is fine. Pipelines and groups of its endpoints must be destroyed before. On mpi it waits
 * for the other processes, unless the world has failed: then it returns at once, and the process
 * should end (weft_comm_abandon). */
WEFT_API void weft_comm_close(struct weft_comm *comm);

/* Ends its ranks' channels, and with them what they use of devices (nccl): before these are closed.
 * Waits for the other processes, unless the world has failed. NULL is fine; weft_comm_close() does
 * it, too. */
WEFT_API void weft_comm_disconnect(struct weft_comm *comm);

WEFT_API const struct weft_comm_info *weft_comm_info(const struct weft_comm *comm);
/* The endpoint of a rank; NULL when it is in another process, or does not exist. The world owns
 * it. */
WEFT_API struct weft_transport *weft_comm_endpoint(struct weft_comm *comm, uint32_t rank);
/* The endpoint of the first rank of this process. */
WEFT_API struct weft_transport *weft_comm_local(struct weft_comm *comm);

/* Runs rank_main once on every rank of this process and returns when all have returned. It may
 * block in weft_pipeline_step(), weft_allgather() or weft_transport_ops.wait():
 *
 *   threads    a thread per rank
 *   cuda       a thread per rank; in weft_pipeline_step() the last one to call it does the step of
 *              all ranks
 *   mpi, nccl  this process's rank, in the caller's thread
 *   loopback   a thread per rank, of which one runs at a time; it runs until it waits, and then
 *              the rank with the next event in virtual time does
 *
 * A rank_main that fails, or whose thread ends without returning, fails the world, so that the
 * other ranks return too. Returns the error that all ranks agree on, else WEFT_OK. On loopback
 * WEFT_ERR_STALLED when every rank waits and nothing is in flight. No rank_main is called when the
 * system cannot start all threads (WEFT_ERR_SYSTEM).
 *
 * A stage's function that never returns cannot be stopped. On threads, when a rank has been in
 * one call for the stall limit of its pipeline, the world fails, the other ranks return, and so
 * does weft_comm_run(): with WEFT_ERR_STALLED, which names the rank and the action, and without
 * that rank. On loopback likewise after options.stage_limit_ns; the other ranks are then left
 * waiting for their turn. See weft_comm_stuck_ranks(). */
WEFT_API enum weft_status weft_comm_run(
    struct weft_comm *comm,
    enum weft_status (*rank_main)(void *context, struct weft_transport *transport,
                                  struct weft_error *error),
    void *context, struct weft_error *error);

/* Ranks that weft_comm_run() has returned without, because they are stuck in a stage's function.
 * When it is not 0, their threads still run, and everything that they may touch must stay as it
 * is until the process ends: the caller frees neither the stages nor what rank_main uses, and
 * weft_comm_close() frees nothing. A thread whose function does return after all is stopped
 * there, and calls nothing any more. */
WEFT_API uint32_t weft_comm_stuck_ranks(const struct weft_comm *comm);

/* Ends this process, and with it the whole job, with `exit_status`: for a failed world whose
 * ranks are processes, after the diagnosis has been printed. Other ranks get a moment to print
 * theirs. Does not return. */
WEFT_API void weft_comm_abandon(struct weft_comm *comm, int exit_status);

/* ---- Blocking collectives over all ranks, of any size ----
 *
 * All ranks call the same ones in the same order, from rank_main. `stall_limit` is in the
 * transport's time, 0: none. When not all ranks have come by then, the world fails with
 * WEFT_ERR_STALLED, and the error names a rank that is missing. */

/* Every rank gives `size` bytes and gets those of all: all[rank][size]. */
WEFT_API enum weft_status weft_allgather(struct weft_transport *transport, const void *mine,
                                         void *all, size_t size, int64_t stall_limit,
                                         struct weft_error *error);
/* Returns when all ranks have called it. */
WEFT_API enum weft_status weft_barrier(struct weft_transport *transport, int64_t stall_limit,
                                       struct weft_error *error);

/* A rank that keeps the others waiting between steps: its process is stopped, or it is busy with an
 * action. UINT32_MAX: not known. Asks all ranks for their status, for half a second. */
WEFT_API uint32_t weft_missing_rank(struct weft_transport *transport, bool *stopped);

/* ---- Stepping ranks in one thread, in virtual time ----
 *
 * Instead of weft_comm_run(), where the transport has virtual time: the caller advances one rank
 * after the other, and wait() of an endpoint records the deadline and returns at once.
 *
 *     while (ranks_running > 0) {
 *       weft_comm_next(comm, &rank, &error);
 *       if (weft_pipeline_advance(pipelines[rank], &error) == WEFT_IN_PROGRESS) {
 *         weft_pipeline_wait(pipelines[rank], &error);
 *       } else ...
 *     }
 */

/* The rank to advance next; the virtual clock has moved to its event. Every rank is named at
 * least once in the beginning. WEFT_ERR_STALLED when no rank has a deadline and nothing is in
 * flight. */
WEFT_API enum weft_status weft_comm_next(struct weft_comm *comm, uint32_t *rank,
                                         struct weft_error *error);
/* Has a rank named once more, at the present time: after the caller gave it work. */
WEFT_API void weft_comm_wake(struct weft_comm *comm, uint32_t rank);

/* ---- For diagnosis and benchmarks ---- */

/* The version of a transport's library, 22807 for NCCL 2.28.7; 0: it has none. WEFT_ERR_UNAVAILABLE:
 * the library is not installed, or too old; the hint says what to install. */
WEFT_API enum weft_status weft_comm_library_version(const struct weft_comm_info *info, int *version,
                                                    struct weft_error *error);

/* Where this process's rank is, and what carries its messages. Strings are valid until close, and
 * "" where the transport has nothing to say. */
struct weft_comm_facts {
  const char *implementation; /* "openmpi"; else the transport's name */
  const char *library;        /* its version, one line */
  const char *threading;      /* "multiple", ... */
  const char *host;
  const char *binding; /* cores that this process may run on: "0-3" */
  uint32_t rank_on_host, ranks_on_host;
};
WEFT_API void weft_comm_facts(const struct weft_comm *comm, struct weft_comm_facts *facts);

/* A round trip of `bytes` (at most INT_MAX) between ranks 0 and 1 without the transport, by the
 * network's own calls: what the transport is compared with. Both call it, with no message in flight.
 * WEFT_ERR_UNAVAILABLE where the transport has no network. */
WEFT_API enum weft_status weft_comm_pingpong(struct weft_comm *comm, const void *out, void *in,
                                             uint64_t bytes, uint64_t *round_ns,
                                             struct weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
