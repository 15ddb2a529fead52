/* The machine with the times of costs, which simulation, makespan and period share; and what is
 * recorded of its run. */
#ifndef SIM_RUN_H
#define SIM_RUN_H

#include <weft/support.h>

#include "ir/timed_machine.h"
#include "sim/rank_record.h"
#include "sim/sim_ticks.h"

struct weft_sim_run {
  const struct weft_program *program;
  const struct weft_costs *costs; /* of stages: the caller's, or in `view` */
  struct weft_costs_view view;
  struct weft_sim_options options;
  bool keeps_messages; /* of a graph: what they take, and of tables when they arrive */
  struct weft_ticks ticks;
  struct weft_timing timing;
  struct weft_arena arena;
  uint32_t *rank_of; /* [stage] */
  struct weft_timed_machine machine;
};

/* NULL options: the default. `keeps_waits`: causes will be asked for. The run stays where it is: the machine points to it. */
enum weft_status weft_sim_run_init(struct weft_sim_run *run, const struct weft_allocator *allocator,
                                   const struct weft_program *program,
                                   const struct weft_costs *costs,
                                   const struct weft_sim_options *options, bool keeps_waits,
                                   struct weft_error *error);
void weft_sim_run_finish(struct weft_sim_run *run);

/* Runs all ranks from the given start times (NULL: all 0). WEFT_ERR_INVALID when some rank cannot
 * finish. */
enum weft_status weft_sim_run_all(struct weft_sim_run *run, const int64_t *starts,
                                  struct weft_error *error);

struct weft_sim_recorder {
  struct weft_sim_run *run;         /* that all ranks have finished, from 0 */
  struct weft_rank_record *records; /* [rank] */
  struct weft_memory_model memory;
  int64_t *taken;                     /* [buffer] of one rank: when they are taken, ascending, */
  int64_t *freed;                     /* and given back */
  size_t buffers_max;                 /* of any rank */
  struct weft_bytes_change *messages; /* [2 x messages_max] where messages have sizes; else NULL */
  size_t messages_max;                /* of any rank, those within it included */
  struct weft_event *events;          /* NULL: not to be written */
  const uint64_t *event_begin;        /* [rank + 1] into events */
};

/* Memory for everything but events. */
enum weft_status weft_sim_recorder_init(struct weft_sim_recorder *recorder,
                                        struct weft_sim_run *run, struct weft_error *error);
void weft_sim_recorder_finish(struct weft_sim_recorder *recorder);

/* Fills the records, and writes the events where there is room for them. */
void weft_sim_record_all(struct weft_sim_recorder *recorder);

#endif
