/* List scheduling by priority rules, for one stage per rank: each rank chooses its next op by a
 * few parameters, from what has arrived and what is certain to arrive. Internal to the module. */
#ifndef PLAN_PRIORITY_RULE_H
#define PLAN_PRIORITY_RULE_H

#include "plan/problem.h"

/* The rule of a rank. A backward whose gradient has arrived goes first, unless fewer than `eager`
 * microbatches are in flight and a forward is ready too. */
struct weft_priority_rule {
  uint32_t warmup;   /* most forwards before the first backward; at least 1 */
  uint32_t cap;      /* most microbatches in flight (F done, I not) after that; at least 1 */
  uint32_t eager;    /* forwards that precede a ready backward */
  int64_t f_delay;   /* longest time that a forward may delay a backward that will arrive */
  int64_t w_overrun; /* longest time that a W may delay an op whose input will arrive */
  /* Where backwards are mixed: those of these microbatches are whole, the others are split. */
  uint32_t whole_from, whole_to;
};

/* Scratch memory of the scheduler; one per thread. */
struct weft_priority_scheduler {
  const struct weft_problem *problem;
  struct weft_arena arena;
  struct weft_priority_scheduler_rank *ranks; /* [rank_count] */
  int64_t *when;                              /* [leaves] start of each rank's next op */
  uint32_t *winner; /* [leaves] tournament tree: of two ranks the one that starts first */
  uint32_t leaves;  /* a power of two, at least rank_count */
  int64_t *forward, *gradient; /* [rank * m + microbatch] arrivals */
  uint8_t back;                /* the op of backwards: I or B */
};

enum weft_status weft_priority_scheduler_init(struct weft_priority_scheduler *scheduler,
                                              const struct weft_problem *problem,
                                              struct weft_error *error);
void weft_priority_scheduler_finish(struct weft_priority_scheduler *scheduler);

/* Builds the order of rules[rank_count], within the memory limit. *value is its objective, or
 * WEFT_NEVER when that is certain to exceed `cutoff`, or when the rules lead to no order, which
 * only limits below one microbatch can cause. Returns the number of ops scheduled. */
uint64_t weft_priority_schedule(struct weft_priority_scheduler *scheduler,
                                const struct weft_priority_rule *rules, int64_t cutoff,
                                struct weft_order *order, int64_t *value);

#endif
