/* Random planning problems, all a function of the seed. */
#ifndef TESTS_SUPPORT_PLANNING_H
#define TESTS_SUPPORT_PLANNING_H

#include <weft/support.h>
#include <weft/weft.h>

#include "plan/problem/chain.h"

struct planning {
  struct weft_shape shape;
  struct weft_costs *costs; /* one entry per stage */
  struct weft_search_request request;
  struct weft_chain problem;
};

/* From `least` on, with so many choices of ranks, stages per rank and microbatches; half of
 * those with two stages per rank are a V. */
struct weft_shape planning_draw_shape(struct weft_random *random, struct weft_shape least,
                                      struct weft_shape choices);

/* Costs between 1 and 20, some unequal, some with expensive or occupied hops, with sizes in
 * tenths. The shape is as given. No memory limit. */
void planning_init(struct planning *planning, struct weft_random *random,
                   const struct weft_shape *shape, bool whole_backward);
/* The same problem with a limit per rank, in units of the costs. */
void planning_limit(struct planning *planning, double limit);
/* The least limit of the request. */
double planning_least(const struct planning *planning);

void planning_finish(struct planning *planning);

/* A random order that can finish: the actions that can go next, in random order. With a
 * limit it is kept, as long as one microbatch fits. */
void planning_random_order(const struct planning *planning, struct weft_random *random,
                           struct weft_chain_order *order);

#endif
