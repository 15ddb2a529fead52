/* The clock that times are measured with. */
#include <time.h>

#include <weft/support.h>

int64_t weft_clock_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
