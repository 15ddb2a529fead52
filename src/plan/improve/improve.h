/* Improves the best order of a problem on several threads. Internal to the module.
 *
 * Workers work in rounds of a fixed amount of work, first with rules for list scheduling, then by
 * simulated annealing; after each round all continue from the best order of all. So the result
 * depends only on the seed, the work and the number of threads. */
#ifndef PLAN_IMPROVE_H
#define PLAN_IMPROVE_H

#include "plan/construct/chain_incumbent.h"
#include "plan/problem/problem.h"
#include "plan/search_control.h"

struct weft_worker_task {
  uint32_t threads;
  uint64_t seed;
  uint64_t work; /* of each thread, in nanoseconds of a typical core */
};

/* The best order of a problem so far. */
struct weft_incumbent {
  const struct weft_problem *problem;
  struct weft_arena arena;
  struct weft_order best;
  int64_t value;    /* WEFT_NEVER: there is none */
  int64_t span_sum; /* of the best order: the tie-breaker; WEFT_NEVER: not known */
  int64_t bound;
  uint64_t evaluated, moves;
  uint64_t move_ns; /* processor time of the moves */
};

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

static inline bool weft_incumbent_is_optimal(const struct weft_incumbent *incumbent) {
  return incumbent->value <= incumbent->bound;
}

/* The incumbent must have an order. Ends early when it is optimal, the search is cancelled, or a round
 * does not fit into the control's budget. Only the calling thread allocates memory, and it does the
 * work of workers whose thread cannot be started. WEFT_ERR_MEMORY. */
enum weft_status weft_improve(struct weft_incumbent *incumbent, const struct weft_worker_task *task,
                              struct weft_search_control *control, struct weft_error *error);

/* The same for a chain, with its constructors and bounds between the rounds. */
enum weft_status weft_improve_chain(struct weft_chain_incumbent *incumbent,
                                    const struct weft_worker_task *task,
                                    struct weft_search_control *control, struct weft_error *error);

#endif
