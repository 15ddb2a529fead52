/* See core_yield.h. */
#include "comm/core_yield.h"

#include <sched.h>

#include <weft/support.h>

enum {
  SLOW_NS = 100 * 1000, /* several ranks in turn, and none of them computes for long */
  CALLS_MIN = 256       /* without a yield: one slow yield among so many sleeps is little */
};

bool weft_core_yield(struct weft_core_yield *yield) {
  if (yield->calls < CALLS_MIN) {
    yield->calls++;
    return false;
  }
  const int64_t before = weft_clock_ns();
  (void)sched_yield();
  if (weft_clock_ns() - before > SLOW_NS) {
    yield->calls = 0;
  }
  return true;
}
