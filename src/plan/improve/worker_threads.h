/* Threads of a round of work. Internal to the module. */
#ifndef PLAN_WORKER_THREADS_H
#define PLAN_WORKER_THREADS_H

#include <stdint.h>

/* The number of threads for a request: 0 asks for as many as the process has cores. */
uint32_t weft_worker_count(uint32_t asked);

/* Calls run(context, n) for every n < count <= weft_worker_count(count), each on a thread of its
 * own, and returns when all have ended. Meanwhile the calling thread calls tick(context) now and
 * then; it does the work whose thread cannot be started. */
void weft_worker_threads_run(uint32_t count, void (*run)(void *context, uint32_t n),
                             void (*tick)(void *context), void *context);

#endif
