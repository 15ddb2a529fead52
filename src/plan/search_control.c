/* The clock, the request's callbacks, and the flag that ends a search. */
#include "plan/search_control.h"

#include <time.h>

static double seconds(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void weft_search_control_start(struct weft_search_control *control,
                               const struct weft_search_request *request) {
  control->request = request;
  control->started = seconds();
  atomic_init(&control->cancelled, false);
  control->done = 0;
  control->share = 0;
}

bool weft_search_control_report(struct weft_search_control *control, double value, double bound,
                                double done, uint64_t evaluated) {
  const struct weft_search_request *request = control->request;
  if (request->report != NULL) {
    const struct weft_search_progress progress = {.value = value,
                                                  .bound = bound,
                                                  .done = control->done + control->share * done,
                                                  .evaluated = evaluated};
    request->report(request->context, &progress);
  }
  if ((request->stop != NULL && request->stop(request->context)) ||
      (request->time_limit > 0 && seconds() - control->started >= request->time_limit)) {
    atomic_store_explicit(&control->cancelled, true, memory_order_relaxed);
  }
  return !weft_search_control_is_cancelled(control);
}
