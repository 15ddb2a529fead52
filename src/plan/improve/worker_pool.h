/* A pool of threads that improve an incumbent together. Internal to the module.
 *
 * They work in rounds of a fixed amount of work; after each round all continue from the best order
 * of all. So the result depends only on the seed, the work and the number of threads. */
#ifndef PLAN_WORKER_POOL_H
#define PLAN_WORKER_POOL_H

#include "plan/incumbent.h"
#include "plan/search_control.h"

struct weft_worker_task {
  uint32_t threads;
  uint64_t seed;
  uint64_t work; /* of each thread, in nanoseconds of a typical core */
};

/* Improves the best order of the incumbent, which must have one. Ends early when it is optimal or
 * the search is cancelled. Only the calling thread allocates memory, and it does the work of
 * workers whose thread cannot be started. WEFT_ERR_MEMORY. */
enum weft_status weft_workers_improve(struct weft_incumbent *incumbent,
                                      const struct weft_worker_task *task,
                                      struct weft_search_control *control,
                                      struct weft_error *error);

#endif
