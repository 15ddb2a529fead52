/* Local search by one thread: over the parameters of rules for list scheduling, and over orders.
 * Internal to the module. */
#ifndef PLAN_WORKER_H
#define PLAN_WORKER_H

#include "plan/construct/rule_scheduler.h"
#include "plan/improve/evaluator.h"
#include "plan/improve/improve.h"

struct weft_worker {
  struct weft_incumbent incumbent; /* of this thread */
  struct weft_search_control *control;
  struct weft_random random;
  struct weft_rule_scheduler scheduler;
  struct weft_list_rule *rules, *tried; /* [stage] */
  struct weft_evaluator evaluator;
  bool has_evaluator;      /* false: no annealing */
  bool may_miss_deadlocks; /* some ops with messages take no time */
  uint32_t *critical;      /* positions on the critical path */
  uint32_t critical_count;
  uint64_t work; /* done, in nanoseconds of a typical core */
};

/* Without an order. WEFT_ERR_MEMORY; weft_worker_finish() in any case. */
enum weft_status weft_worker_init(struct weft_worker *worker, const struct weft_problem *problem,
                                  uint64_t seed, int64_t bound, struct weft_search_control *control,
                                  struct weft_error *error);
static inline void weft_worker_finish(struct weft_worker *worker) {
  weft_incumbent_finish(&worker->incumbent);
}

/* Allocates what annealing needs, unless the problem is too large for it: then weft_anneal() does
 * nothing. WEFT_ERR_MEMORY. */
enum weft_status weft_worker_prepare(struct weft_worker *worker, struct weft_error *error);

/* Optimal, or cancelled. */
static inline bool weft_worker_is_done(const struct weft_worker *worker) {
  return weft_incumbent_is_optimal(&worker->incumbent) ||
         weft_search_control_is_cancelled(worker->control);
}

/* Searches the parameters of rules: first a grid, of which this thread tries every `stride`-th point
 * from `number` on for at most `grid_work`, then the neighbourhood of the best point until `work` is
 * done. */
void weft_rule_search(struct weft_worker *worker, uint64_t work, uint64_t grid_work,
                      uint32_t number, uint32_t stride);

/* Simulated annealing from the incumbent, for the given work. The temperature is a share of the
 * bound and falls to 0. At a temperature of 0 it is hill climbing: only ops on the critical path
 * move, and moves that do not increase the objective are accepted. */
void weft_anneal(struct weft_worker *worker, uint64_t work, double temperature);

#endif
