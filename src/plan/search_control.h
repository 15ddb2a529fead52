/* Progress and cancellation of a running search: calls the request's callbacks and checks its
 * time limit, from the thread that called weft_search(). Internal to the module. */
#ifndef PLAN_SEARCH_CONTROL_H
#define PLAN_SEARCH_CONTROL_H

#include <stdatomic.h>

#include <weft/search.h>

struct weft_search_control {
  const struct weft_search_request *request;
  double started;        /* seconds */
  atomic_bool cancelled; /* polled by the workers */
  bool is_stopped;       /* by the caller */
  bool was_cut;          /* some of the search had no time */
  bool is_silent;        /* what runs is a part of the problem: its values are not the caller's */
  double done;           /* share of the search that is complete */
  double share;          /* share of the search that is running */
  double all_reduce;     /* to be added to reported values */
  double budget;         /* work that may still be done, in nanoseconds of a typical
                                       core; negative: a step did not fit, and none may follow */
  double reserve;        /* of the time limit, for what follows the search, in seconds */
  double first_order;    /* seconds from the start until there was an order; 0: none yet */
  double reported;       /* when, in seconds */
  struct weft_search_progress last; /* what was reported */
};

void weft_search_control_start(struct weft_search_control *control,
                               const struct weft_search_request *request);

/* Reports the best value and its bound, in the unit of the costs, and cancels the search if the
 * caller asks for it or time is up. `done` is a share of what is running. */
void weft_search_control_report(struct weft_search_control *control, double value, double bound,
                                double done, uint64_t evaluated);

/* Reports the same again if the last report is some time ago. Returns whether the search is
 * cancelled. For long work between reports, on the thread that called weft_search(). NULL: never
 * cancelled. */
bool weft_search_control_poll(struct weft_search_control *control);

/* Sets the part of the time limit, in seconds, that is kept for what follows the search. A search that was
 * cancelled for want of time goes on if a smaller reserve leaves some. Not while workers run. */
void weft_search_control_set_reserve(struct weft_search_control *control, double needed);

/* Whether the time limit leaves so many seconds. */
bool weft_search_control_has_time(const struct weft_search_control *control, double needed);

/* Notes when the first order was there. NULL: nothing. */
void weft_search_control_note_order(struct weft_search_control *control);

/* Takes the work of a step from the budget. False: it does not fit, so the search ends here. A step
 * does not depend on the budget: a search with a larger one does the same steps, and then more. */
bool weft_search_control_spend(struct weft_search_control *control, double work);

/* Gives back what such a step did not need. */
void weft_search_control_return(struct weft_search_control *control, double work);

/* A search goes through rounds, each with more work than the one before, and keeps the best. A round
 * does not depend on the effort. So a search with more effort does all that one with less does,
 * and then more: its answer is never worse. The last round ends at the first step that exceeds the
 * effort. One round has the default effort; those before it come on top, as WEFT_FIRST_ROUNDS. */
enum { WEFT_ROUND_DEFAULT = 3 };
#define WEFT_FIRST_ROUNDS (1 + 1.0 / 8 + 1.0 / 64 + 1.0 / 512)

/* The effort of a round. */
double weft_search_round(uint32_t round);

static inline bool weft_search_control_is_cancelled(struct weft_search_control *control) {
  return atomic_load_explicit(&control->cancelled, memory_order_relaxed);
}

#endif
