/* A program executed by all its ranks, step after step, on any transport.
 *
 *     struct weft_cli_execution execution = {.cli = cli, .program = program, ...};
 *     status = weft_cli_execute(&execution, &error);
 *     ... execution.makespans[step] ...
 *     weft_cli_execution_finish(&execution);
 */
#ifndef CLI_EXECUTION_H
#define CLI_EXECUTION_H

#include <weft/comm.h>
#include <weft/cuda.h>
#include <weft/support.h>

#include "cli/cmd/timed_stages.h"
#include "cli/job.h"

/* A rank in a step. The first three in the transport's time: from its first
 * compute to the end of its last action, and the sum of its compute. */
struct weft_cli_rank_step {
  int64_t begin, end, busy;
  uint64_t entered_ns, left_ns; /* when it began and ended the step, in real time */
};

struct weft_cli_execution {
  /* Set by the caller. */
  const struct weft_cli *cli;
  const struct weft_allocator *allocator; /* of the runtime; may be called by all ranks at once */
  const struct weft_program *program;     /* with SEND and RECV where there are several ranks */
  struct weft_cli_stages *stages;
  const struct weft_comm_info *transport;
  struct weft_cuda *cuda;   /* the ranks' GPUs; or NULL */
  bool eager;               /* on them */
  struct weft_cli_job *job; /* where a rank is a process, else NULL; it has the program's ranks */
  enum weft_send_model comm;
  uint32_t slots;                        /* of WEFT_COMM_SLOTS */
  int64_t stall_limit;                   /* in the transport's time; 0: never */
  int64_t latency_ticks, occupied_ticks; /* of transfers on loopback */
  int64_t *channel_ticks;                /* [channel_count] as in weft_comm_options */
  uint32_t channel_count;
  uint32_t step_count;
  bool keeps_events; /* of every step */
  bool says_progress;

  /* Results. */
  uint32_t steps_done; /* by all ranks */
  int64_t *makespans;  /* [steps_done] first start on any rank to last end on any, in the
                         transport's time */
  struct weft_cli_rank_step *rank_steps; /* [step][rank] */
  uint64_t *event_begin;                 /* [rank_count + 1] into the events of a step */
  struct weft_event *events;             /* [step][event_begin[rank_count]] */
  const char *eager_reason;     /* on GPUs without eager: why the last step was not replayed */
  uint64_t replayed_steps;      /* on GPUs, warm-up included */
  struct weft_transport *first; /* an endpoint, rank 0's if it is here, for
                                            weft_hang_dump() */

  /* Private. */
  struct weft_arena arena;          /* of all arrays */
  struct weft_comm *comm_world;     /* the job's, or its own */
  struct weft_program *views;       /* [rank_count]: the program, as each pipeline owns it */
  uint32_t *stage_ranks;            /* [stage_count]: weft_placement_infer()'s */
  struct weft_pipeline **pipelines; /* [rank_count] */
  uint64_t said_ns;
};

/* Runs all steps. Where a rank is a process, all ranks call it, and the results are the same on
 * all, except for the events: each rank has its own. An error is the one that all ranks agree on;
 * the transport still exists then. Ends early after a signal (weft_launch_signal) with
 * WEFT_ERR_CANCELLED. */
enum weft_status weft_cli_execute(struct weft_cli_execution *execution, struct weft_error *error);
void weft_cli_execution_finish(struct weft_cli_execution *execution);

/* From the first rank that enters the step to the last that leaves it. */
uint64_t weft_cli_execution_wall_ns(const struct weft_cli_execution *execution, uint32_t step);
/* Events of one step, rank after rank. */
struct weft_event *weft_cli_execution_events(const struct weft_cli_execution *execution,
                                             uint32_t step);

/* Where a rank is a process: gathers the events of a step on all ranks. All ranks call it. */
enum weft_status weft_cli_execution_collect(struct weft_cli_execution *execution, uint32_t step,
                                            struct weft_error *error);

#endif
