/* A program executed by all its ranks, step after step: in one thread and virtual time
 * (loopback), in a thread per rank, or in a process per rank, of which this is one (mpi).
 *
 *     struct weft_cli_execution execution = {.cli = cli, .program = program, ...};
 *     status = weft_cli_execute(&execution, &error);
 *     ... execution.makespans[step] ...
 *     weft_cli_execution_finish(&execution);
 */
#ifndef CLI_EXECUTION_H
#define CLI_EXECUTION_H

#include <weft/comm.h>

#include "cli/cmd/timed_stages.h"
#include "cli/job.h"

enum weft_cli_transport { /* in the order of --transport's choices */
                          WEFT_CLI_TRANSPORT_LOOPBACK,
                          WEFT_CLI_TRANSPORT_THREADS,
                          WEFT_CLI_TRANSPORT_MPI
};

/* A rank in a step. The first three in the transport's time: from its first
 * compute to the end of its last action, and the sum of its compute. */
struct weft_cli_rank_step {
  int64_t begin, end, busy;
  uint64_t entered_ns, left_ns; /* when it began and ended the step, by the clock on the wall */
};

struct weft_cli_execution {
  /* What to do; given by the caller. */
  const struct weft_cli *cli;
  const struct weft_allocator *allocator; /* of the runtime; may be called by all ranks at once */
  const struct weft_program *program;     /* with SEND and RECV where there are several ranks */
  struct weft_cli_stages *stages;
  enum weft_cli_transport transport;
  struct weft_cli_job *job; /* of mpi; its number of ranks is the program's */
  enum weft_run_comm comm;
  int64_t stall_limit; /* in the transport's time; 0: never */
  bool no_events;
  int64_t latency_ticks, occupied_ticks; /* of transfers on loopback */
  uint32_t step_count;
  bool keeps_events; /* of every step */
  bool no_notes;     /* nothing is reckoned from events: no makespans, no ranks */
  bool says_progress;
  /* Called by each rank of threads before it makes or does anything; may be NULL. */
  void (*on_rank)(void *context, uint32_t rank);
  void *on_rank_context;
  /* Called by rank 0 before each step, all others being at rest, and once after
   * the last; may be NULL. */
  void (*between)(void *context, uint32_t step);
  void *between_context;

  /* What came of it. */
  uint32_t steps_done; /* by all ranks */
  int64_t *makespans;  /* [steps_done] first start on any rank to last end on any, in the
                         transport's time; 0 without events */
  struct weft_cli_rank_step *rank_steps; /* [step][rank] */
  uint64_t *event_begin;                 /* [rank_count + 1] into the events of a step */
  struct weft_event *events;             /* [step][event_begin[rank_count]], or NULL */
  struct weft_transport *first;          /* an endpoint, rank 0's if it is here, for
                                            weft_hang_dump() */

  /* Its own. */
  struct weft_program *views; /* [rank_count]: the program, as each pipeline owns it */
  struct weft_loopback *loopback;
  struct weft_threads *threads;
  struct weft_pipeline **pipelines; /* [rank_count] */
  unsigned char *met;               /* [rank_count][rank_count] of threads */
  uint64_t said_ns;
};

/* Runs all steps; on mpi all ranks call it, and what came of it is the same on all but
 * for the events, of which each has its own. An error is the one that all ranks agree on; the transport is
 * still there to be asked then. Ends early when a signal has come
 * (weft_launch_signal): WEFT_ERR_CANCELLED. */
enum weft_status weft_cli_execute(struct weft_cli_execution *execution, struct weft_error *error);
void weft_cli_execution_finish(struct weft_cli_execution *execution);

/* From the first rank that enters the step to the last that leaves it. */
uint64_t weft_cli_execution_wall_ns(const struct weft_cli_execution *execution, uint32_t step);
/* Events of one step, rank after rank. */
const struct weft_event *weft_cli_execution_events(const struct weft_cli_execution *execution,
                                                   uint32_t step);

/* On mpi: brings the events of a step, which each rank has its own of, to all ranks. All
 * ranks call it. */
enum weft_status weft_cli_execution_collect(struct weft_cli_execution *execution, uint32_t step,
                                            struct weft_error *error);

/* ---- Between execution*.c ---- */

/* The pipeline of a rank, with everything that the execution says. */
enum weft_status weft_cli_execution_join(struct weft_cli_execution *execution,
                                         struct weft_transport *transport,
                                         struct weft_error *error);
/* Writes down what the rank did in the step that has just ended. */
void weft_cli_execution_note(struct weft_cli_execution *execution, uint32_t rank, uint32_t step,
                             uint64_t entered_ns);
/* Says how far it is, now and then, on a terminal. */
void weft_cli_execution_say(struct weft_cli_execution *execution, uint32_t step);

enum weft_status weft_cli_execute_loopback(struct weft_cli_execution *execution,
                                           struct weft_error *error);
enum weft_status weft_cli_execute_threads(struct weft_cli_execution *execution,
                                          struct weft_error *error);
enum weft_status weft_cli_execute_mpi(struct weft_cli_execution *execution,
                                      struct weft_error *error);

#endif
