/* Improvement of orders by one thread. Inside the module. */
#ifndef PLAN_IMPROVER_H
#define PLAN_IMPROVER_H

#include <weft/support.h>

#include "plan/improve/incremental_evaluator.h"
#include "plan/improve/priority_rule.h"
#include "plan/incumbent.h"
#include "plan/search_progress.h"

struct weft_improver {
  struct weft_pool pool; /* its best so far */
  struct weft_lister lister;
  struct weft_tableau tableau;
  struct weft_policy *policies; /* [3 * rank_count]: best, current, tried */
  uint32_t *critical;           /* [critical_room] */
  uint32_t critical_count, critical_room;
  struct weft_random random;
  struct weft_watch *watch; /* NULL: nobody */
  bool has_tableau;         /* else there is no annealing */
  uint64_t work;            /* done; about nanoseconds of a usual core */
  uint64_t moves;           /* tried */
  uint64_t move_ns;         /* the processor's time for them */
};

enum weft_status weft_improver_init(struct weft_improver *improver,
                                    const struct weft_problem *problem, uint64_t seed,
                                    struct weft_watch *watch, int64_t bound,
                                    struct weft_error *error);
void weft_improver_finish(struct weft_improver *improver);

static inline bool weft_improver_is_done(const struct weft_improver *improver) {
  return weft_pool_is_optimal(&improver->pool) ||
         (improver->watch != NULL && weft_watch_halted(improver->watch));
}

/* A grid of policies, of which every `stride`-th is this improver's, for `grid_work`; then
 * better ones near the best, until `work` is done. One stage per rank only. */
void weft_improve_policies(struct weft_improver *improver, uint64_t work, uint64_t grid_work,
                           uint32_t number, uint32_t stride);

/* Room for annealing; from then on there is some, unless the problem is too large, or has
 * actions that take no time. */
enum weft_status weft_improver_prepare(struct weft_improver *improver, struct weft_error *error);

/* Annealing over orders, from the pool's best, for as much work; from a temperature of
 * `heat` times the bound. Without heat: only letters on the critical path move, to wherever
 * the value is no larger; how long the other ranks take does not count. */
void weft_improve_order(struct weft_improver *improver, uint64_t work, double heat);

#endif
