/* The clock, the request's callbacks, and the flag that cancels a search. */
#include "plan/search_control.h"

#include <assert.h>
#include <math.h>

#include <weft/support.h>

/* Seconds between reports while nothing new is known. */
#define INTERVAL 0.02

static double seconds(void) { return (double)weft_clock_ns() * 1e-9; }

void weft_search_control_start(struct weft_search_control *control,
                               const struct weft_search_request *request) {
  assert(control != NULL && request != NULL);
  const double now = seconds();
  *control = (struct weft_search_control){.request = request,
                                          .started = now,
                                          .budget = INFINITY,
                                          .reported = now,
                                          .last = {.value = INFINITY}};
  atomic_init(&control->cancelled, false);
}

bool weft_search_control_has_time(const struct weft_search_control *control, double needed) {
  assert(control != NULL);
  const double limit = control->request->time_limit;
  return limit <= 0 || seconds() - control->started + needed < limit;
}

static void report(struct weft_search_control *control) {
  const struct weft_search_request *request = control->request;
  control->reported = seconds();
  if (request->report != NULL) {
    request->report(request->context, &control->last);
  }
  control->is_stopped =
      control->is_stopped || (request->stop != NULL && request->stop(request->context));
  if (control->is_stopped || !weft_search_control_has_time(control, control->reserve)) {
    control->was_cut = true;
    atomic_store_explicit(&control->cancelled, true, memory_order_relaxed);
  }
}

void weft_search_control_set_reserve(struct weft_search_control *control, double needed) {
  assert(control != NULL && needed >= 0);
  control->reserve = needed;
  atomic_store_explicit(&control->cancelled,
                        weft_search_control_is_cancelled(control) &&
                            (control->is_stopped || !weft_search_control_has_time(control, needed)),
                        memory_order_relaxed);
}

void weft_search_control_note_order(struct weft_search_control *control) {
  if (control != NULL && control->first_order == 0) {
    control->first_order = seconds() - control->started;
  }
}

void weft_search_control_report(struct weft_search_control *control, double value, double bound,
                                double done, uint64_t evaluated) {
  assert(control->request != NULL && done >= 0);
  if (!control->is_silent &&
      value + control->all_reduce <= control->last.value) { /* another layout may be better */
    control->last.value = value + control->all_reduce;
    control->last.bound = bound + control->all_reduce;
  }
  control->last.done = control->done + control->share * done;
  control->last.evaluated = control->is_silent ? control->last.evaluated : evaluated;
  report(control);
}

bool weft_search_control_spend(struct weft_search_control *control, double work) {
  assert(control != NULL && work >= 0);
  control->budget = control->budget >= work ? control->budget - work : -1;
  return control->budget >= 0;
}

void weft_search_control_return(struct weft_search_control *control, double work) {
  assert(control != NULL && control->budget >= 0 && work >= 0);
  control->budget += work;
}

double weft_search_round(uint32_t round) {
  const int above = (int)round - WEFT_ROUND_DEFAULT;
  return weft_search_request_default().effort * pow(above < 0 ? 8 : 2, above);
}

bool weft_search_control_poll(struct weft_search_control *control) {
  assert(control == NULL || control->request != NULL);
  if (control == NULL) {
    return false;
  }
  if (seconds() - control->reported >= INTERVAL) {
    report(control);
  }
  return weft_search_control_is_cancelled(control);
}
