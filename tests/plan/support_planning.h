/* Random planning problems, all a function of the seed. */
#ifndef TESTS_SUPPORT_PLANNING_H
#define TESTS_SUPPORT_PLANNING_H

#include <weft/support.h>
#include <weft/weft.h>

#include "plan/bounds/chain_bound.h"
#include "plan/problem/incumbent.h"

struct planning {
  struct weft_shape shape;
  struct weft_costs *costs; /* one entry per stage */
  struct weft_search_request request;
  struct weft_problem problem;
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

/* Room for an order of the problem, and a clock for it. */
struct planning_room {
  struct weft_arena arena;
  struct weft_order order;
  struct weft_plan_clock clock;
};
void planning_room_init(struct planning_room *room, const struct weft_problem *problem);
void planning_room_finish(struct planning_room *room);

/* A random order that can finish: the actions that can go next, in random order. With a
 * limit it is kept, as long as one microbatch fits. */
void planning_random_order(const struct planning *planning, struct weft_random *random,
                           struct weft_order *order);

#endif
