/* Who looks after a search while it runs: asks whether to stop, looks at the clock,
 * reports. Called from the thread that called weft_search(). Inside the module. */
#ifndef PLAN_WATCH_H
#define PLAN_WATCH_H

#include <stdatomic.h>

#include <weft/search.h>

struct weft_watch {
  const struct weft_search_request *request;
  double started;     /* seconds */
  atomic_bool halted; /* workers look at it often */
  double done;        /* share of the whole search before what runs now */
  double share;       /* of what runs now */
};

void weft_watch_start(struct weft_watch *watch, const struct weft_search_request *request);

/* Value and bound are those of the best so far, in the costs' unit; `done` is the share of
 * what runs now. False when the search is to end. */
bool weft_watch_tick(struct weft_watch *watch, double value, double bound, double done,
                     uint64_t evaluated);

static inline bool weft_watch_halted(struct weft_watch *watch) {
  return atomic_load_explicit(&watch->halted, memory_order_relaxed);
}

#endif
