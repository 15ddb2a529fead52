/* What a simulation says about a rank besides when it ends. */
#ifndef SIM_RECORD_H
#define SIM_RECORD_H

#include "sim/rank_record.h"
#include "sim/sim_run.h"

struct weft_sim_recorder {
  struct weft_sim_run *run;           /* that all ranks have finished, from 0 */
  struct weft_rank_record *records;   /* [rank] */
  bool *has_gradients;                /* [stage] its first backward has begun */
  int64_t *taken;                     /* [buffer] of one rank: when they are taken, ascending, */
  int64_t *freed;                     /* and given back */
  size_t buffers_max;                 /* of any rank */
  struct weft_memory_change *changes; /* of one rank's memory; NULL: only activations count */
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
