/* Local search by one thread: annealing over orders, and a search over the parameters of
 * priority rules. Internal to the module. */
#ifndef PLAN_ANNEALING_H
#define PLAN_ANNEALING_H

#include <weft/support.h>

#include "plan/improve/incremental_evaluator.h"
#include "plan/improve/priority_rule.h"
#include "plan/incumbent.h"
#include "plan/search_control.h"

struct weft_local_search {
  struct weft_incumbent incumbent; /* of this thread */
  struct weft_priority_scheduler scheduler;
  struct weft_evaluator evaluator;
  struct weft_priority_rule *rules; /* [2 * rank_count]: current, tried */
  uint32_t *critical;               /* [CRITICAL_MAX] positions on the critical path */
  uint32_t critical_count;
  struct weft_random random;
  struct weft_search_control *control;
  bool has_evaluator;      /* false: no annealing */
  bool may_miss_deadlocks; /* some ops take no time */
  uint64_t work;           /* done, in nanoseconds of a typical core */
};

/* WEFT_ERR_MEMORY. */
enum weft_status weft_local_search_init(struct weft_local_search *search,
                                        const struct weft_problem *problem, uint64_t seed,
                                        struct weft_search_control *control, int64_t bound,
                                        struct weft_error *error);
void weft_local_search_finish(struct weft_local_search *search);

/* Optimal, or cancelled. */
static inline bool weft_local_search_is_done(const struct weft_local_search *search) {
  return weft_incumbent_is_optimal(&search->incumbent) ||
         weft_search_control_is_cancelled(search->control);
}

/* Searches the parameters of priority rules: first a grid, of which this thread tries every
 * `stride`-th point from `number` on for at most `grid_work`, then the neighbourhood of the best
 * point until `work` is done. For one stage per rank. */
void weft_priority_search(struct weft_local_search *search, uint64_t work, uint64_t grid_work,
                          uint32_t number, uint32_t stride);

/* Allocates what annealing needs, unless the problem is too large for it: then weft_anneal() does
 * nothing. WEFT_ERR_MEMORY. */
enum weft_status weft_local_search_prepare(struct weft_local_search *search,
                                           struct weft_error *error);

/* Simulated annealing from the incumbent, for the given work. The temperature is a share of the
 * bound and falls to 0. At a temperature of 0 it is hill climbing: only ops on the critical path
 * move, and moves that do not increase the objective are accepted. */
void weft_anneal(struct weft_local_search *search, uint64_t work, double temperature);

#endif
