/* The incumbent: the best order of a problem so far, and the lower bound. Internal to the module. */
#ifndef PLAN_INCUMBENT_H
#define PLAN_INCUMBENT_H

#include "plan/problem/problem.h"

struct weft_incumbent {
  const struct weft_problem *problem;
  struct weft_arena arena;
  struct weft_plan_clock clock; /* of the last order tried; scratch in between */
  struct weft_order best;
  struct weft_order draft; /* scratch for constructors */
  int64_t value;           /* objective of the best order; WEFT_NEVER: there is none */
  int64_t span_sum;        /* of the best order: the tie-breaker; WEFT_NEVER: not known */
  int64_t bound;
  bool is_impossible; /* no order fits into the memory */
  const char *name;   /* of the best order's schedule; NULL: it has no name */
  uint64_t evaluated; /* orders */
  uint64_t replaced;  /* how often the best order was */
  uint64_t moves;     /* local moves tried */
  uint64_t move_ns;   /* processor time they took */
};

/* Arrays for an order; they live in the arena. WEFT_ERR_MEMORY. */
enum weft_status weft_order_init(struct weft_order *order, const struct weft_problem *problem,
                                 struct weft_arena *arena, struct weft_error *error);

/* Without an order. WEFT_ERR_MEMORY. */
enum weft_status weft_incumbent_init(struct weft_incumbent *incumbent,
                                     const struct weft_problem *problem, int64_t bound,
                                     struct weft_error *error);
void weft_incumbent_finish(struct weft_incumbent *incumbent);

/* Whether an order with these numbers would replace the best one. */
static inline bool weft_incumbent_is_beaten(const struct weft_incumbent *incumbent, int64_t value,
                                            int64_t span_sum) {
  return value < incumbent->value || (value == incumbent->value && span_sum < incumbent->span_sum);
}

/* Replaces the best order by a copy of this one, which fits into the memory, if it is better. */
void weft_incumbent_offer(struct weft_incumbent *incumbent, const struct weft_order *order,
                          int64_t value, int64_t span_sum);

/* Evaluates an order, and keeps a copy if it is better than the best one and fits into the
 * memory. `name` is that of its schedule, or NULL. */
void weft_incumbent_try(struct weft_incumbent *incumbent, const struct weft_order *order,
                        const char *name);

/* Takes over what another incumbent of the same problem has counted, and its order if it is better. */
void weft_incumbent_collect(struct weft_incumbent *incumbent, struct weft_incumbent *from);

static inline bool weft_incumbent_is_optimal(const struct weft_incumbent *incumbent) {
  return incumbent->value <= incumbent->bound;
}

/* Whether constructors may end: the best order is optimal, or the search is cancelled. */
static inline bool weft_incumbent_is_done(const struct weft_incumbent *incumbent) {
  return weft_incumbent_is_optimal(incumbent) ||
         weft_search_control_poll(incumbent->problem->control);
}

/* Whether there is no order but the first one, the serial order: anything else is worth waiting for. */
static inline bool weft_incumbent_is_serial(const struct weft_incumbent *incumbent) {
  return incumbent->replaced < 2;
}

#endif
