/* What a timeline says about a rank, in ticks, and how it becomes the numbers of a
 * simulation. Simulated (sim_record.c) and measured (measured.c) timelines share it. */
#ifndef SIM_RANK_RECORD_H
#define SIM_RANK_RECORD_H

#include <weft/sim.h>

#include "sim/rank_memory.h"

/* Zero-initialise. */
struct weft_rank_record {
  int64_t busy;
  int64_t first_begin;
  int64_t clock;  /* end of its last compute */
  int64_t stream; /* end of its last collective */
  int64_t idle[WEFT_IDLE_CAUSES];
  struct weft_rank_memory memory;
  uint32_t buffers_peak; /* receive buffers */
  bool has_begun;
};

/* Memory that is in use from the beginning. `rank_of` is [stage]; `changes` has room for
 * weft_memory_changes_max(), or is NULL: only activations count. */
void weft_rank_records_init(struct weft_rank_record *records, const struct weft_program *program,
                            const struct weft_costs *costs, const uint32_t *rank_of,
                            struct weft_memory_change *changes);

/* The most buffers in use at once: each from taken[k] to its time in `freed`. Both ascend. */
uint32_t weft_buffers_peak(const int64_t *taken, const int64_t *freed, size_t count);

/* For qsort(). */
int weft_compare_times(const void *a, const void *b);

/* Writes makespan, span, bubbles, peak and ranks of the simulation of records[rank_count],
 * with times from `first` on. */
void weft_rank_records_summarize(const struct weft_rank_record *records, int64_t first,
                                 double ticks_per_unit, struct weft_simulation *simulation);

#endif
