/* Who looks after a search while it runs: asks whether to stop, looks at the clock,
 * reports. Called from the thread that called weft_search(). Inside the module. */
#ifndef PLAN_SEARCH_CONTROL_H
#define PLAN_SEARCH_CONTROL_H

#include <stdatomic.h>

#include <weft/search.h>

struct weft_search_control {
  const struct weft_search_request *request;
  double started;        /* seconds */
  atomic_bool cancelled; /* workers look at it often */
  double done;           /* share of the whole search before what runs now */
  double share;          /* of what runs now */
};

void weft_search_control_start(struct weft_search_control *control,
                               const struct weft_search_request *request);

/* Value and bound are those of the best so far, in the costs' unit; `done` is the share of
 * what runs now. False when the search is to end. */
bool weft_search_control_report(struct weft_search_control *control, double value, double bound,
                                double done, uint64_t evaluated);

static inline bool weft_search_control_is_cancelled(struct weft_search_control *control) {
  return atomic_load_explicit(&control->cancelled, memory_order_relaxed);
}

#endif
