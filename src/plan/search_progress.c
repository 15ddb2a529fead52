/* The clock, the request's callbacks, and the flag that ends a search. */
#include "plan/search_progress.h"

#include <time.h>

static double seconds(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void weft_watch_start(struct weft_watch *watch, const struct weft_search_request *request) {
  watch->request = request;
  watch->started = seconds();
  atomic_init(&watch->halted, false);
  watch->done = 0;
  watch->share = 0;
}

bool weft_watch_tick(struct weft_watch *watch, double value, double bound, double done,
                     uint64_t evaluated) {
  const struct weft_search_request *request = watch->request;
  if (request->report != NULL) {
    const struct weft_search_progress progress = {.value = value,
                                                  .bound = bound,
                                                  .done = watch->done + watch->share * done,
                                                  .evaluated = evaluated};
    request->report(request->context, &progress);
  }
  if ((request->stop != NULL && request->stop(request->context)) ||
      (request->time_limit > 0 && seconds() - watch->started >= request->time_limit)) {
    atomic_store_explicit(&watch->halted, true, memory_order_relaxed);
  }
  return !weft_watch_halted(watch);
}
