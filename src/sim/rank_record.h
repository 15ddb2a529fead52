/* What a timeline says about a rank, in ticks, and how it becomes the numbers of a
 * simulation. Simulated (sim_record.c) and measured (measured.c) timelines share it. */
#ifndef SIM_RANK_RECORD_H
#define SIM_RANK_RECORD_H

#include <weft/costs.h>
#include <weft/ir.h>
#include <weft/sim.h>
#include <weft/support.h>

#include "ir/lifetimes.h"

/* The memory of a rank over time, and its peaks. Activations come and go
 * with the rank's compute, which is in the order of the row. Parameters come when
 * an UNSHARD begins and go when a RESHARD has ended; gradients come when the
 * stage's first backward begins and go when its REDUCE_GRAD has ended. Collectives
 * run on a stream of their own, one after the other, and may be far behind the
 * compute: what they change is kept in a queue until its time. What is at
 * the same time happens in the order of the row. */

/* What is in use, and at most so far. */
struct weft_memory_level {
  double now, peak;
};

/* Of one kind. */
struct weft_memory_change {
  int64_t at;
  size_t kind; /* offset of the level in struct weft_rank_memory */
  double size;
};

struct weft_rank_memory {
  struct weft_memory_level activations, parameters, gradients, total;
  int64_t peak_at;                    /* when the activations peak first */
  int64_t next_at;                    /* of changes[first]; INT64_MAX: there is none */
  struct weft_memory_change *changes; /* by collectives, to come: [first] ... [end - 1] */
  size_t first;
  size_t end;
};

/* The first backward of a stage begins. Times never descend, here and below. */
void weft_rank_memory_first_backward(struct weft_rank_memory *memory,
                                     const struct weft_stage_costs *costs, int64_t at);

/* An asynchronous action of the row, with its times on the stream. */
void weft_rank_memory_collective(struct weft_rank_memory *memory, enum weft_op op,
                                 const struct weft_stage_costs *costs, int64_t begin, int64_t end);

/* Everything up to a time happens; at the end of a row INT64_MAX. */
void weft_rank_memory_advance(struct weft_rank_memory *memory, int64_t until);

WEFT_GRAPH_INLINE bool weft_memory_level_change(struct weft_memory_level *level, double size) {
  level->now += size;
  const bool rises = level->now > level->peak;
  level->peak = rises ? level->now : level->peak;
  return rises;
}

/* Compute takes activation memory, or gives it back. */
WEFT_GRAPH_INLINE void weft_rank_memory_activation(struct weft_rank_memory *memory, double size,
                                                   int64_t at) {
  if (memory->next_at <= at) {
    weft_rank_memory_advance(memory, at);
  }
  if (weft_memory_level_change(&memory->activations, size)) {
    memory->peak_at = at;
  }
  (void)weft_memory_level_change(&memory->total, size);
}

/* What the memory of all ranks depends on. */
struct weft_memory_model {
  const struct weft_costs *costs;
  bool *has_gradients;                /* [stage] its first backward has begun */
  struct weft_memory_change *changes; /* room for the most collectives of any rank; NULL: parameters
                                         and gradients have no sizes, so that activations alone count */
};

/* The arena owns it. */
enum weft_status weft_memory_model_init(struct weft_memory_model *model, struct weft_arena *arena,
                                        const struct weft_program *program,
                                        const struct weft_costs *costs, struct weft_error *error);

/* An action of compute begins. */
WEFT_GRAPH_INLINE void weft_rank_memory_begin(struct weft_rank_memory *memory,
                                              const struct weft_memory_model *model,
                                              const struct weft_action *action,
                                              const struct weft_saved *saved, int64_t at) {
  if (action->op == WEFT_OP_F) {
    weft_rank_memory_activation(memory, saved->from_begin, at);
  } else if (!model->has_gradients[action->stage]) {
    model->has_gradients[action->stage] = true;
    weft_rank_memory_first_backward(memory, weft_costs_of(model->costs, action->stage), at);
  }
}

/* Zero-initialise. */
struct weft_rank_record {
  int64_t busy;
  int64_t first_begin;
  int64_t clock;  /* end of its last compute */
  int64_t stream; /* end of its last collective */
  int64_t idle[WEFT_IDLE_CAUSES];
  struct weft_rank_memory memory;
  uint32_t buffers_peak; /* receive buffers */
  double message_bytes_peak;
  bool has_begun; /* with compute, or with a collective that takes time */
  bool
      has_computed; /* what its first compute waited for belongs to the start, but for parameters */
};

/* Compute begins, where the rank has had nothing to do since `clock`. Its last input was there at
 * *input_at, NULL if it needs none, and its parameters at `unsharded`. Returns how much of that time
 * the input explains; for the rest it has found the cause. */
WEFT_GRAPH_INLINE int64_t weft_rank_record_begin(struct weft_rank_record *record, int64_t clock,
                                                 int64_t begin, const int64_t *input_at,
                                                 int64_t unsharded) {
  const int64_t gap = begin - clock;
  const bool starts = !record->has_computed;
  record->has_computed = true;
  if (!record->has_begun) {
    record->has_begun = true;
    record->first_begin = begin;
    return 0; /* the start counts from the first begin of all ranks */
  }
  if (gap <= 0) {
    return 0;
  }
  if (unsharded > clock && (input_at == NULL || unsharded > *input_at)) {
    record->idle[WEFT_IDLE_UNSHARD] += gap;
    return 0;
  }
  record->idle[WEFT_IDLE_START] += starts ? gap : 0;
  return starts ? 0 : gap;
}

/* A gap that an input explains: for `queued` of it, the message waited for its channel. */
WEFT_GRAPH_INLINE void weft_rank_record_blame(struct weft_rank_record *record, int64_t gap,
                                              int64_t queued, bool forward) {
  const int64_t channel = queued < gap ? queued : gap;
  record->idle[WEFT_IDLE_CHANNEL] += channel;
  record->idle[forward ? WEFT_IDLE_FORWARD : WEFT_IDLE_GRADIENT] += gap - channel;
}

/* Memory that is in use from the beginning. `rank_of` is [stage]. */
void weft_rank_records_init(struct weft_rank_record *records, const struct weft_program *program,
                            const struct weft_memory_model *model, const uint32_t *rank_of);

/* The most buffers in use at once: each from taken[k] to its time in `freed`. Both ascend. */
uint32_t weft_buffers_peak(const int64_t *taken, const int64_t *freed, size_t count);

/* The largest sum of changes so far, in the order of time; those that subtract come first where
 * times are equal. Sorts them. */
struct weft_bytes_change {
  int64_t at;
  double bytes;
};
double weft_bytes_peak(struct weft_bytes_change *changes, size_t count);

/* For qsort(). */
int weft_compare_times(const void *a, const void *b);

/* Writes makespan, span, bubbles, peak and ranks of the simulation of records[rank_count], with times
 * from the first begin on any rank on. */
void weft_rank_records_summarize(const struct weft_rank_record *records, double ticks_per_unit,
                                 struct weft_simulation *simulation);

#endif
