/* List scheduling by targets: every action has a target, about the time when it should run, and a
 * free rank runs the ready action with the smallest target. Internal to the module; v_blocks.c,
 * chain_greedy.c, periodic_orders.c and scaled_orders.c set the targets. Backwards are all whole where
 * the problem does not split them, else all split.
 *
 * A rank decides by what has arrived and what is certain to arrive. It runs a W when the target of
 * the W is the smallest, when memory is short, or instead of idling.
 *
 * Memory never causes a deadlock: a forward starts only if its rank, after the backwards of all
 * microbatches that have reached the last stage, still has room to take a microbatch through each
 * of its later stages. So the oldest microbatch can always continue. */
#ifndef PLAN_LIST_SCHEDULER_H
#define PLAN_LIST_SCHEDULER_H

#include "plan/construct/rank_queue.h"
#include "plan/problem/incumbent.h"

struct weft_target_rule {
  int64_t lead; /* how much smaller the target of an action that has not arrived may be than that
                   of the ready one that overtakes it */
  double fill;  /* share of a W, 0 to 1, that may delay the next arrival */
};

/* Scratch memory of the scheduler; one per thread. */
struct weft_list_scheduler {
  const struct weft_problem *problem; /* a chain */
  struct weft_plan_clock *clock;      /* borrowed: receives the times of a run */
  int64_t *targets;                   /* [op * m + microbatch], set by the caller */
  uint32_t *in_flight; /* [stage] most microbatches between F and I; set by the caller, at
                          first any number */
  int64_t *arrives;    /* [op] of the next F or I of a stage; WEFT_NEVER: not known, or none left */
  int64_t *held;       /* [rank] memory */
  int64_t *held_for_w; /* [rank] the part of it that W will free */
  int64_t *work;       /* [rank] time of all its ops */
  int64_t period;      /* of a microbatch on the busiest rank */
  int64_t *rest;       /* [rank] time of its remaining ops */
  int64_t *limit;      /* [rank] for activations, with all gradients, and without what an I may add
                          until its W */
  struct weft_rank_queue queue; /* by the time of the next decision */
  bool runs_to_end;             /* set by the caller: a run ends even if the search is cancelled */
};

/* Its arrays live in the arena. WEFT_ERR_MEMORY. */
enum weft_status weft_list_scheduler_init(struct weft_list_scheduler *scheduler,
                                          const struct weft_problem *problem,
                                          struct weft_plan_clock *clock, struct weft_arena *arena,
                                          struct weft_error *error);

static inline int64_t *weft_target_row(const struct weft_list_scheduler *scheduler, uint32_t stage,
                                       enum weft_plan_op_kind kind) {
  return scheduler->targets +
         ((size_t)stage * WEFT_ORDER_KINDS + kind) * scheduler->problem->microbatch_count;
}

/* Target of a W that only runs instead of idling, or to free memory. */
#define WEFT_TARGET_LAST (INT64_MAX / 2)

/* Builds the order of the targets, within the memory limit, and returns its objective; WEFT_NEVER
 * when that exceeds `cutoff`, on a deadlock, which only limits near the least can cause, or when the
 * search is cancelled and the run is not patient. */
int64_t weft_list_scheduler_run(struct weft_list_scheduler *scheduler,
                                const struct weft_target_rule *rule, int64_t cutoff,
                                struct weft_order *order);

/* The same into the incumbent's draft, which is then tried. */
int64_t weft_list_scheduler_try(struct weft_list_scheduler *scheduler,
                                const struct weft_target_rule *rule, int64_t cutoff,
                                struct weft_incumbent *incumbent);

/* A lead in periods that is any. */
#define WEFT_LEAD_ANY 1e6

static inline struct weft_target_rule weft_target_rule_make(double lead, double period,
                                                            double fill) {
  return (struct weft_target_rule){
      .lead = lead < WEFT_LEAD_ANY ? (int64_t)(lead * period) : INT64_MAX, .fill = fill};
}

#endif
