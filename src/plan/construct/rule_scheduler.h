/* Orders of any problem by list scheduling: each stage has rules. Internal to the module. */
#ifndef PLAN_RULE_SCHEDULER_H
#define PLAN_RULE_SCHEDULER_H

#include "plan/construct/rank_queue.h"

/* How a stage takes part in list scheduling. A backward that is ready goes first, unless fewer than
 * `eager` microbatches are in flight and a forward is ready too. */
struct weft_list_rule {
  uint32_t warmup;   /* most forwards before the first backward; at least 1 */
  uint32_t cap;      /* most microbatches in flight after that; at least 1 */
  uint32_t eager;    /* forwards that precede a ready backward */
  int64_t f_delay;   /* longest time that a forward may delay a backward that will arrive */
  int64_t w_overrun; /* longest time that a W may delay an op whose input will arrive */
  uint32_t whole_from, whole_to; /* the backwards of these microbatches are whole */
};

/* Scratch memory of list scheduling; one per thread. */
struct weft_rule_scheduler {
  struct weft_plan_clock *clock; /* borrowed */
  int64_t *arrives; /* [stage * 2] when all is there that its next F, then its next D, waits for;
                        WEFT_NEVER: not known */
  uint32_t *slot;   /* [stage] rank after rank, of each the last stage first: members of */
  struct weft_bits ready;       /* the stages whose next F or D has a known arrival, */
  struct weft_bits pending;     /* and those with a W to do */
  struct weft_rank_queue queue; /* by the start of the next op, */
  uint32_t *next;               /* [rank] that op */
  int64_t *held;                /* [rank] memory */
  int64_t *owed;                /* [stage] the part of it that W will free */
  int64_t *reserve;  /* [rank] room for one microbatch of each stage that has none in flight */
  int64_t *idle;     /* [rank] so far */
  int64_t *idle_max; /* [rank] */
};

/* WEFT_ERR_MEMORY. */
enum weft_status weft_rule_scheduler_init(struct weft_rule_scheduler *scheduler,
                                          const struct weft_problem *problem,
                                          struct weft_plan_clock *clock, struct weft_arena *arena,
                                          struct weft_error *error);

/* List scheduling by rules[stage_count] within the limits. The objective; WEFT_NEVER: it does
 * not fit, or a rank is certain to exceed the cutoff, or the search is cancelled. Adds the work to
 * *work, in nanoseconds of a typical core. */
int64_t weft_rule_schedule(const struct weft_problem *problem,
                           struct weft_rule_scheduler *scheduler,
                           const struct weft_list_rule *rules, int64_t cutoff,
                           struct weft_order *order, uint64_t *work);

/* In flight as 1F1B at the stage's height; W and F may delay other ops by their own time. */
struct weft_list_rule weft_list_rule_classic(const struct weft_problem *problem, uint32_t stage);

#endif
