/* The clock, the request's callbacks, and the flag that cancels a search. */
#include "plan/search_control.h"

#include <assert.h>

#include <weft/support.h>

static double seconds(void) { return (double)weft_clock_ns() * 1e-9; }

void weft_search_control_start(struct weft_search_control *control,
                               const struct weft_search_request *request) {
  assert(control != NULL && request != NULL);
  control->request = request;
  control->started = seconds();
  atomic_init(&control->cancelled, false);
  control->done = 0;
  control->share = 0;
}

void weft_search_control_report(struct weft_search_control *control, double value, double bound,
                                double done, uint64_t evaluated) {
  assert(control->request != NULL && done >= 0);
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
}
