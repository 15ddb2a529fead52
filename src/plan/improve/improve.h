/* Improves the best order of a problem on several threads. Internal to the module.
 *
 * Workers work in rounds of a fixed amount of work, first with rules for list scheduling, then by
 * simulated annealing; the constructors and bounds of a chain work between them. After each round all
 * continue from the best order of all. So the result depends only on the seed, the work and the
 * number of threads. */
#ifndef PLAN_IMPROVE_H
#define PLAN_IMPROVE_H

#include "plan/problem/incumbent.h"
#include "plan/search_control.h"

struct weft_worker_task {
  uint32_t threads;
  uint64_t seed;
  uint64_t work; /* of each thread, in nanoseconds of a typical core */
};

/* The least work that is worth it, in nanoseconds of a typical core. */
double weft_improve_least_work(const struct weft_problem *problem);

/* The incumbent must have an order. Ends early when it is optimal, the search is cancelled, or a round
 * does not fit into the control's budget. Only the calling thread allocates memory, and it does the
 * work of workers whose thread cannot be started. WEFT_ERR_MEMORY. */
enum weft_status weft_improve(struct weft_incumbent *incumbent, const struct weft_worker_task *task,
                              struct weft_search_control *control, struct weft_error *error);

#endif
