/* List scheduling with a rule, for one stage per rank: every rank decides by a few
 * numbers what it does next, knowing what has arrived and what is certain to arrive.
 * Inside the module. */
#ifndef PLAN_PRIORITY_RULE_H
#define PLAN_PRIORITY_RULE_H

#include "plan/problem.h"

/* How a rank decides. A backward that is there goes first, unless fewer than `eager`
 * microbatches are in flight and a forward is there as well. */
struct weft_priority_rule {
  uint32_t warmup;   /* forwards before the first backward, at most; at least 1 */
  uint32_t cap;      /* microbatches in flight (F done, I not) from then on; at least 1 */
  uint32_t eager;    /* as many forwards come before a backward that is there */
  int64_t f_delay;   /* how long a forward may keep a backward waiting that will arrive */
  int64_t w_overrun; /* how long a weight gradient may keep what will arrive waiting */
};

/* Room for list scheduling; one per thread. */
struct weft_priority_scheduler {
  const struct weft_problem *problem;
  struct weft_priority_scheduler_rank *ranks; /* [rank_count] */
  int64_t *when;                              /* [leaves] start of what each would do next */
  uint32_t *winner;            /* [leaves] tree: of two ranks the one that begins sooner */
  uint32_t leaves;             /* a power of two, at least rank_count */
  int64_t *forward, *gradient; /* [rank * m + microbatch] arrivals */
  uint8_t back;                /* the op of backwards: I, or B where they are whole */
};

enum weft_status weft_priority_scheduler_init(struct weft_priority_scheduler *scheduler,
                                              const struct weft_problem *problem,
                                              struct weft_error *error);
void weft_priority_scheduler_finish(struct weft_priority_scheduler *scheduler);

/* The order that rules[rank_count] lead to; within the memory. *value is its objective,
 * WEFT_NEVER as soon as that is certain to be above `cutoff`, or when rules lead nowhere,
 * which only limits below one microbatch can do. Returns how many ops were listed. */
uint64_t weft_priority_schedule(struct weft_priority_scheduler *scheduler,
                                const struct weft_priority_rule *rules, int64_t cutoff,
                                struct weft_order *order, int64_t *value);

#endif
