/* The best order so far of a problem, and whoever offers a better one. Inside the
 * module.
 *
 * Constructors make orders from a problem and offer them; each is a function of a incumbent
 * in a file of its own, none knows another, and constructors[] in search.c lists them. */
#ifndef PLAN_POOL_H
#define PLAN_POOL_H

#include "plan/problem.h"

struct weft_incumbent {
  const struct weft_problem *problem;
  struct weft_evaluation evaluation; /* of whatever was offered last */
  struct weft_order best;
  struct weft_order draft; /* room for constructors */
  int64_t value;           /* of the best; WEFT_NEVER while there is none */
  int64_t span_sum;        /* of the best: among equals the smaller one is kept */
  int64_t bound;
  const char *name;   /* of the best: a schedule's, or NULL when it has none */
  uint64_t evaluated; /* orders that were offered */
  uint64_t moves;     /* of ops that were tried */
  uint64_t move_ns;   /* processor time for them */
};

/* Computes the bound. */
enum weft_status weft_incumbent_init(struct weft_incumbent *incumbent,
                                     const struct weft_problem *problem, struct weft_error *error);
/* With a bound that is known. */
enum weft_status weft_incumbent_init_bound(struct weft_incumbent *incumbent,
                                           const struct weft_problem *problem, int64_t bound,
                                           struct weft_error *error);
void weft_incumbent_finish(struct weft_incumbent *incumbent);

/* Copies the order if it fits into the memory and is better than the best; returns its
 * value, WEFT_NEVER when it does not fit, cannot finish or is worse. */
int64_t weft_incumbent_offer(struct weft_incumbent *incumbent, const struct weft_order *order,
                             const char *name);

/* Takes over the best of another incumbent of the same problem, if it is better. */
void weft_incumbent_take(struct weft_incumbent *incumbent, const struct weft_incumbent *from);

static inline bool weft_incumbent_is_optimal(const struct weft_incumbent *incumbent) {
  return incumbent->value <= incumbent->bound;
}

/* ---- Constructors ---- */

/* The named schedules on the problem's placement. */
enum weft_status weft_construct_named(struct weft_incumbent *incumbent, struct weft_error *error);

/* One microbatch after the other: fits whenever anything does. */
enum weft_status weft_construct_one_at_a_time(struct weft_incumbent *incumbent,
                                              struct weft_error *error);

/* V placement from building blocks, for any memory; nothing on other placements. */
enum weft_status weft_construct_v_blocks(struct weft_incumbent *incumbent,
                                         struct weft_error *error);

/* Several stages per rank, any placement and costs; nothing with one stage. */
enum weft_status weft_construct_chain_greedy(struct weft_incumbent *incumbent,
                                             struct weft_error *error);

#endif
