/* wasi-libc's, and a clock that it has no longer: a WebAssembly module runs in one thread, and
 * nobody tells it how much of the processor it had. */
#ifndef PLAYGROUND_TIME_H
#define PLAYGROUND_TIME_H

#include_next <time.h>

#undef CLOCK_THREAD_CPUTIME_ID
#define CLOCK_THREAD_CPUTIME_ID CLOCK_MONOTONIC

#endif
