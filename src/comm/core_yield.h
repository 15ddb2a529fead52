/* Yielding the core where ranks outnumber cores, and only while that is quick.
 *
 * sched_yield() lets the other threads of the core run first. Ranks of a job soon wait as well, so
 * that takes microseconds, less than to sleep and to be woken. A thread of another program that
 * computes keeps the core for milliseconds, at each yield; but a thread that wakes up goes before
 * it. So each yield is timed, and after a slow one a rank sleeps in its next waits. It also does
 * in its first ones: a job may be over before it has found out. */
#ifndef COMM_CORE_YIELD_H
#define COMM_CORE_YIELD_H

#include <stdbool.h>
#include <stdint.h>

/* Of one thread; zero at first. */
struct weft_core_yield {
  uint32_t calls; /* since the last slow one, up to the number from which on it yields */
};

/* False: it did not yield; sleep instead. */
bool weft_core_yield(struct weft_core_yield *yield);

#endif
