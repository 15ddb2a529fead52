/* Improvement of orders by one thread. Inside the module. */
#ifndef PLAN_IMPROVER_H
#define PLAN_IMPROVER_H

#include "base/random.h"
#include "plan/policy.h"
#include "plan/pool.h"
#include "plan/tableau.h"

struct weft_improver {
  struct weft_pool pool; /* its best so far */
  struct weft_lister lister;
  struct weft_tableau tableau;
  struct weft_policy *policies; /* [3 * rank_count]: best, current, tried */
  uint32_t *critical;           /* [critical_room] */
  uint32_t critical_count, critical_room;
  struct weft_random random;
  uint64_t work; /* done; about nanoseconds of a usual core */
};

enum weft_status weft_improver_init(struct weft_improver *improver,
                                    const struct weft_problem *problem, uint64_t seed,
                                    struct weft_error *error);
void weft_improver_finish(struct weft_improver *improver);

/* A grid of policies; then better ones near the best, until `work` is done. One stage per
 * rank only. */
void weft_improve_policies(struct weft_improver *improver, uint64_t work);

/* Annealing over orders, from the pool's best, for as much work. */
void weft_improve_order(struct weft_improver *improver, uint64_t work, double heat);

#endif
