/* Weft comm: the transports.
 *
 *   loopback   all ranks in one thread, in virtual time, the same for a seed
 *   threads    a thread per rank
 *   mpi        a process per rank, on one machine or many
 *
 * A world belongs to who created it; its endpoints belong to the world. */
#ifndef WEFT_COMM_H
#define WEFT_COMM_H

#include <weft/transport.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- loopback ----
 *
 *     while (ranks_running > 0) {
 *       weft_loopback_next(world, &rank, &error);
 *       if (weft_pipeline_advance(pipelines[rank], &error) == WEFT_IN_PROGRESS) {
 *         weft_pipeline_wait(pipelines[rank], &error);
 *       } else ...
 *     }
 *
 * Time stands still while ranks run, and jumps to the next arrival or deadline
 * when none can. */
struct weft_loopback;

struct weft_loopback_options {
  uint32_t rank_count;
  uint64_t seed;           /* order of ranks that could run at the same time, and delays */
  int64_t latency_ticks;   /* of every transfer */
  int64_t occupied_ticks;  /* a transfer keeps its channel this long, before the latency */
  int64_t delay_ticks_max; /* random extra latency, 0 ... max; order on a channel is kept */
};

WEFT_API enum weft_status weft_loopback_create(const struct weft_allocator *allocator,
                                               const struct weft_loopback_options *options,
                                               struct weft_loopback **out,
                                               struct weft_error *error);
WEFT_API void weft_loopback_destroy(struct weft_loopback *world);
WEFT_API struct weft_transport *weft_loopback_endpoint(struct weft_loopback *world, uint32_t rank);

/* The rank to advance next; virtual time has moved to when it can. Every rank is
 * named at least once in the beginning. WEFT_ERR_STALLED when no rank waits for a
 * time and no message is under way: nothing will ever happen. */
WEFT_API enum weft_status weft_loopback_next(struct weft_loopback *world, uint32_t *rank,
                                             struct weft_error *error);
/* Has a rank named once more, at the present time: after something from outside
 * gave it work. */
WEFT_API void weft_loopback_wake(struct weft_loopback *world, uint32_t rank);
WEFT_API int64_t weft_loopback_now(const struct weft_loopback *world);

/* ---- threads ---- */
struct weft_threads;

WEFT_API enum weft_status weft_threads_create(const struct weft_allocator *allocator,
                                              uint32_t rank_count, struct weft_threads **out,
                                              struct weft_error *error);
WEFT_API void weft_threads_destroy(struct weft_threads *world);
WEFT_API struct weft_transport *weft_threads_endpoint(struct weft_threads *world, uint32_t rank);

/* Runs rank_main once per rank, each in a thread of its own (rank 0 in the
 * caller's), and returns when all have returned. A rank_main that fails, or whose
 * thread ends without returning, fails the world, so that the others end too.
 * Returns the agreed error, else WEFT_OK. `endpoints` (or NULL: the world's own)
 * are what the ranks are given: chaos around them. */
WEFT_API enum weft_status weft_threads_run(
    struct weft_threads *world, struct weft_transport *const *endpoints,
    enum weft_status (*rank_main)(void *context, struct weft_transport *transport,
                                  struct weft_error *error),
    void *context, struct weft_error *error);

/* ---- mpi ----
 *
 * libweft-run links no MPI. The driver for the MPI that started this process, or else
 * for one that is installed, is loaded when a world is made: weft-mpi-openmpi.so or
 * weft-mpi-mpich.so, beside the library (docs/mpi.md). */
struct weft_mpi;

/* Who sees to messages while a rank computes. */
enum weft_mpi_progress {
  WEFT_MPI_CALLS = 0, /* the rank: in transport calls, and when its stages poke */
  WEFT_MPI_THREAD     /* a thread of its own */
};

struct weft_mpi_options {
  const char *implementation; /* "openmpi", "mpich"; NULL: the one that started this process, else
                                 the first that is there */
  enum weft_mpi_progress progress;
  const void *communicator; /* an MPI_Comm to be duplicated, of a program that has initialised MPI
                               itself with MPI_THREAD_MULTIPLE; NULL: all processes, and MPI is
                               initialised here and finalised by destroy */
};

/* This process's rank in a new world; all processes of the communicator call it, and
 * it waits for them. Also without a launcher: then it is a world of one rank.
 * WEFT_ERR_UNAVAILABLE when there is no MPI or no driver for it, naming the package to
 * install; WEFT_ERR_USAGE for an unknown implementation. */
WEFT_API enum weft_status weft_mpi_create(const struct weft_allocator *allocator,
                                          const struct weft_mpi_options *options,
                                          struct weft_mpi **out, struct weft_error *error);
/* NULL is fine. Waits for the other processes, unless the world has failed: then it
 * returns at once and the process should end (weft_mpi_abandon). */
WEFT_API void weft_mpi_destroy(struct weft_mpi *world);
WEFT_API struct weft_transport *weft_mpi_endpoint(struct weft_mpi *world);

/* Ends this process, and with it the whole job, with `exit_status`: for a failed world,
 * after the diagnosis has been printed. Others get a moment to print theirs; the first rank
 * that is not to blame, or which got a signal, has a second, for a dump. Does not return. */
WEFT_API void weft_mpi_abandon(struct weft_mpi *world, int exit_status);

/* What started this process, as the launcher's variables say: "openmpi", "mpich", or
 * NULL when it was no launcher. */
WEFT_API const char *weft_mpi_launcher(void);

/* For 'weft doctor' and reports; strings are valid until destroy. */
struct weft_mpi_facts {
  const char *implementation; /* "openmpi" */
  const char *library;        /* its own words, one line */
  const char *threading;      /* "multiple", ... */
  uint32_t rank, rank_count;
  uint32_t rank_on_host, ranks_on_host;
  const char *host;
  uint64_t tag_max;
  const char *binding; /* cores that this process may run on: "0-3" */
};
WEFT_API void weft_mpi_facts(const struct weft_mpi *world, struct weft_mpi_facts *facts);

/* For benchmarks: messages there and back between ranks 0 and 1 by MPI alone, which is what
 * a transport can come near to. */
struct weft_mpi_bare {
  const void *out;
  void *in;
  uint64_t bytes; /* of each; at most INT_MAX */
  uint32_t rounds;
  bool starts;        /* by MPI_Isend, MPI_Irecv and MPI_Test; else by MPI_Send and MPI_Recv */
  uint64_t *round_ns; /* [rounds], written */
};
/* Ranks 0 and 1 call it, with nothing of theirs under way; it returns when all rounds are
 * over. */
WEFT_API enum weft_status weft_mpi_bare(struct weft_mpi *world, const struct weft_mpi_bare *game,
                                        struct weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
