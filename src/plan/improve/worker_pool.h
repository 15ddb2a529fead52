/* Threads that improve the best order of a pool together. Inside the module.
 *
 * They work in rounds of a fixed amount of work; after each the best of all is everybody's
 * start. So the result depends on the seed, the work and the number of threads, and on
 * nothing else. */
#ifndef PLAN_CREW_H
#define PLAN_CREW_H

#include "plan/incumbent.h"
#include "plan/search_progress.h"

struct weft_crew_task {
  uint32_t threads;
  uint64_t seed;
  uint64_t work; /* for each thread; about nanoseconds */
};

/* Improves pool->best, for which there is one already. Ends early when it is optimal or the
 * watch says so. Memory comes from the calling thread alone; so does the work of members
 * that no thread can be started for. WEFT_ERR_MEMORY. */
enum weft_status weft_crew_improve(struct weft_pool *pool, const struct weft_crew_task *task,
                                   struct weft_watch *watch, struct weft_error *error);

/* As many as the process may use. */
uint32_t weft_crew_size(uint32_t asked);

#endif
