/* The incumbent: the best order of a problem so far, and the lower bound. Internal to the module.
 *
 * Constructors build orders for a problem and offer them to its incumbent. Each is one function
 * in a file of its own in construct/. first_orders.c and rounds.c call them. */
#ifndef PLAN_CHAIN_INCUMBENT_H
#define PLAN_CHAIN_INCUMBENT_H

#include "plan/problem/chain.h"

struct weft_chain_incumbent {
  const struct weft_chain *problem;
  struct weft_chain_times evaluation; /* of the last order offered */
  struct weft_chain_order best;
  struct weft_chain_order draft; /* scratch for constructors */
  int64_t value;                 /* objective of the best order; WEFT_NEVER: there is none */
  int64_t span_sum;              /* of the best order: the tie-breaker */
  int64_t bound;
  const char *name;   /* of the best order's schedule; NULL: it has no name */
  uint64_t evaluated; /* orders offered */
  uint64_t replaced;  /* how often the best order was */
  uint64_t moves;     /* local moves tried */
  uint64_t move_ns;   /* processor time they took */
};

/* Computes the lower bound. WEFT_ERR_MEMORY. */
enum weft_status weft_chain_incumbent_init(struct weft_chain_incumbent *incumbent,
                                           const struct weft_chain *problem,
                                           struct weft_error *error);
/* With a lower bound that is known already. */
enum weft_status weft_chain_incumbent_init_bound(struct weft_chain_incumbent *incumbent,
                                                 const struct weft_chain *problem, int64_t bound,
                                                 struct weft_error *error);
void weft_chain_incumbent_finish(struct weft_chain_incumbent *incumbent);

/* Whether an order with these numbers would replace the best one. */
static inline bool weft_chain_incumbent_is_beaten(const struct weft_chain_incumbent *incumbent,
                                                  int64_t value, int64_t span_sum) {
  return value < incumbent->value || (value == incumbent->value && span_sum < incumbent->span_sum);
}

/* Whether there is no order but the first one, the serial order: anything else is worth waiting for. */
static inline bool weft_chain_incumbent_is_serial(const struct weft_chain_incumbent *incumbent) {
  return incumbent->replaced < 2;
}

/* Replaces the best order by a copy of this one. */
void weft_chain_incumbent_replace(struct weft_chain_incumbent *incumbent,
                                  const struct weft_chain_order *order, int64_t value,
                                  int64_t span_sum, const char *name);

/* Evaluates an order, and keeps a copy if it is better than the best one and fits into the
 * memory. Returns its objective if it was kept, else WEFT_NEVER. */
int64_t weft_chain_incumbent_offer(struct weft_chain_incumbent *incumbent,
                                   const struct weft_chain_order *order, const char *name);

static inline bool weft_chain_incumbent_is_optimal(const struct weft_chain_incumbent *incumbent) {
  return incumbent->value <= incumbent->bound;
}

/* Whether constructors may end: the best order is optimal, or the search is cancelled. */
static inline bool weft_chain_incumbent_is_done(const struct weft_chain_incumbent *incumbent) {
  return weft_chain_incumbent_is_optimal(incumbent) ||
         weft_search_control_poll(incumbent->problem->control);
}

/* ---- Constructors ---- */

/* The orders of all constructors below that take little time (first_orders.c). */
enum weft_status weft_construct_first(struct weft_chain_incumbent *incumbent,
                                      struct weft_error *error);

/* The named schedules on the problem's placement. */
enum weft_status weft_construct_named(struct weft_chain_incumbent *incumbent,
                                      struct weft_error *error);

/* One microbatch after the other: fits whenever any order does. */
void weft_construct_serial(struct weft_chain_incumbent *incumbent);

/* As many microbatches in flight as the memory allows, by a plain recipe: 1F1B with one stage per
 * rank, else one group of microbatches after the other. Only for so many ops that any other order
 * takes long. */
void weft_construct_limited(struct weft_chain_incumbent *incumbent);

/* V placement from building blocks, for any memory; nothing on other placements. */
enum weft_status weft_construct_v_blocks(struct weft_chain_incumbent *incumbent,
                                         struct weft_error *error);

/* Several stages per rank, any placement and costs; nothing with one stage per rank. */
enum weft_status weft_construct_chain_greedy(struct weft_chain_incumbent *incumbent,
                                             struct weft_error *error);

/* Orders that repeat, for any placement and costs. For about `work` nanoseconds of a typical core;
 * returns the work done. */
uint64_t weft_construct_periodic(struct weft_chain_incumbent *incumbent, uint64_t work,
                                 uint64_t seed);

/* Orders for many ranks from one for few; nothing for few ranks. For about `work` nanoseconds of a
 * typical core; returns the work done. */
uint64_t weft_construct_scaled(struct weft_chain_incumbent *incumbent, uint64_t work,
                               uint64_t seed);

/* Beam search, which for small problems finds the optimum and raises the bound to it. For about
 * `work` nanoseconds of a typical core; does nothing when that is too little. Returns the work
 * done. */
uint64_t weft_construct_beam(struct weft_chain_incumbent *incumbent, uint64_t work);

/* Beam searches for targets between the bound and the best value, within the time windows of each;
 * also raises the bound. For about `work` nanoseconds of a typical core; returns the work done. */
uint64_t weft_construct_guided(struct weft_chain_incumbent *incumbent, uint64_t work);

/* From the time windows that a bound leaves open, for any placement; also raises the bound. Visits
 * about *work states of tables at most, as weft_chain_sharpen() does, and sets it to as many as it
 * has visited; does nothing when the tables would be too large for that. */
enum weft_status weft_construct_windows(struct weft_chain_incumbent *incumbent, uint64_t *work,
                                        struct weft_error *error);

#endif
