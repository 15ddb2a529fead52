/* The clock that times are measured with. */
#ifndef GPT_CLOCK_H
#define GPT_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t weft_gpt_clock_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
