/* Improvement of orders by one thread. Inside the module. */
#ifndef PLAN_ANNEALING_H
#define PLAN_ANNEALING_H

#include <weft/support.h>

#include "plan/improve/incremental_evaluator.h"
#include "plan/improve/priority_rule.h"
#include "plan/incumbent.h"
#include "plan/search_control.h"

struct weft_local_search {
  struct weft_incumbent incumbent; /* its best so far */
  struct weft_priority_scheduler scheduler;
  struct weft_evaluator evaluator;
  struct weft_priority_rule *rules; /* [3 * rank_count]: best, current, tried */
  uint32_t *critical;               /* [critical_room] */
  uint32_t critical_count, critical_room;
  struct weft_random random;
  struct weft_search_control *control; /* NULL: nobody */
  bool has_evaluator;                  /* else there is no annealing */
  uint64_t work;                       /* done; about nanoseconds of a usual core */
  uint64_t moves;                      /* tried */
  uint64_t move_ns;                    /* the processor's time for them */
};

enum weft_status weft_local_search_init(struct weft_local_search *search,
                                        const struct weft_problem *problem, uint64_t seed,
                                        struct weft_search_control *control, int64_t bound,
                                        struct weft_error *error);
void weft_local_search_finish(struct weft_local_search *search);

static inline bool weft_local_search_is_done(const struct weft_local_search *search) {
  return weft_incumbent_is_optimal(&search->incumbent) ||
         (search->control != NULL && weft_search_control_is_cancelled(search->control));
}

/* A grid of rules, of which every `stride`-th is this search's, for `grid_work`; then
 * better ones near the best, until `work` is done. One stage per rank only. */
void weft_priority_search(struct weft_local_search *search, uint64_t work, uint64_t grid_work,
                          uint32_t number, uint32_t stride);

/* Room for annealing; from then on there is some, unless the problem is too large, or has
 * actions that take no time. */
enum weft_status weft_local_search_prepare(struct weft_local_search *search,
                                           struct weft_error *error);

/* Annealing over orders, from the incumbent's best, for as much work; from a temperature of
 * `temperature` times the bound. Without temperature: only ops on the critical path move, to wherever
 * the value is no larger; how long the other ranks take does not count. */
void weft_anneal(struct weft_local_search *search, uint64_t work, double temperature);

#endif
