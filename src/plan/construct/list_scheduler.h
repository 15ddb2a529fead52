/* List scheduling by targets: every action has a number, about when it would like to
 * run, and a rank that is free takes the smallest of what it could run now. Inside the
 * module; the constructors that make targets are v_blocks.c and chain_greedy.c.
 *
 * A rank decides by what has arrived and by what is certain to arrive. A W is run when
 * its target comes up, when memory is short, or instead of waiting.
 *
 * Memory never leads into a dead end: a forward begins only if its rank, once everything
 * that has turned around at the last stage is back, still has room to take a microbatch
 * through each of its later stages. So the oldest microbatch can always go on. */
#ifndef PLAN_TARGET_LIST_H
#define PLAN_TARGET_LIST_H

#include "plan/problem.h"

struct weft_target_rule {
  int64_t lead; /* how far, in targets, an action may overtake one that has not arrived */
  double fill;  /* share of a W, 0 to 1, that may be in the way of the next arrival */
};

/* Room for runs; one per thread. */
struct weft_list_scheduler {
  const struct weft_problem *problem;
  struct weft_evaluation *times; /* borrowed: a run leaves its results there */
  int64_t *targets;      /* [(rank * v * WEFT_KINDS + op) * m + microbatch], to be written */
  int64_t *held;         /* [rank] memory */
  int64_t *held_for_w;   /* [rank] the part of it that waits for W */
  int64_t *work;         /* [rank] time of all its ops */
  int64_t *rest;         /* [rank] of those that are left */
  int64_t *growth;       /* [rank] what an I may add before its W takes it away */
  int64_t *when;         /* [rank] its next decision; INT64_MAX: none */
  uint32_t *heap;        /* ranks by when */
  uint32_t *heap_at;     /* [rank] its place in the heap; UINT32_MAX: not in it */
  const uint32_t *turns; /* forwards that have begun at the last stage */
  uint32_t heap_size;
};

enum weft_status weft_list_scheduler_init(struct weft_list_scheduler *scheduler,
                                          const struct weft_problem *problem,
                                          struct weft_evaluation *times, struct weft_error *error);
void weft_list_scheduler_finish(struct weft_list_scheduler *scheduler);

static inline int64_t *weft_target_row(const struct weft_list_scheduler *scheduler, uint32_t stage,
                                       enum weft_plan_op_kind kind) {
  const struct weft_problem_stage *at = &scheduler->problem->stages[stage];
  const size_t place = (size_t)at->rank * scheduler->problem->stages_per_rank + at->local_stage;
  return scheduler->targets + (place * WEFT_KINDS + kind) * scheduler->problem->microbatch_count;
}

/* A target for a W that only fills waits and makes room. */
#define WEFT_TARGET_LAST (INT64_MAX / 2)

/* The order that the targets give, within the memory; its objective. WEFT_NEVER when that
 * is above `cutoff`, or when there is no end, which only limits near the least can cause. */
int64_t weft_list_scheduler_run(struct weft_list_scheduler *scheduler,
                                const struct weft_target_rule *rule, int64_t cutoff,
                                struct weft_order *order);

#endif
