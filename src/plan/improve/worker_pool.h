/* Threads that improve the best order of a incumbent together. Inside the module.
 *
 * They work in rounds of a fixed amount of work; after each the best of all is everybody's
 * start. So the result depends on the seed, the work and the number of threads, and on
 * nothing else. */
#ifndef PLAN_WORKER_POOL_H
#define PLAN_WORKER_POOL_H

#include "plan/incumbent.h"
#include "plan/search_control.h"

struct weft_worker_task {
  uint32_t threads;
  uint64_t seed;
  uint64_t work; /* for each thread; about nanoseconds */
};

/* Improves incumbent->best, for which there is one already. Ends early when it is optimal or the
 * control says so. Memory comes from the calling thread alone; so does the work of members
 * that no thread can be started for. WEFT_ERR_MEMORY. */
enum weft_status weft_workers_improve(struct weft_incumbent *incumbent,
                                      const struct weft_worker_task *task,
                                      struct weft_search_control *control,
                                      struct weft_error *error);

/* As many as the process may use. */
uint32_t weft_worker_count(uint32_t asked);

#endif
