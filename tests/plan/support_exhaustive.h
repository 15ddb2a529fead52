/* The optimum of a small problem by exhaustive search, which shares only the problem with the
 * planner. */
#ifndef TESTS_SUPPORT_EXHAUSTIVE_H
#define TESTS_SUPPORT_EXHAUSTIVE_H

#include "plan/problem/problem.h"

enum {
  EXHAUSTIVE_STAGES = 8,
  EXHAUSTIVE_MICROBATCHES = 8,
  EXHAUSTIVE_NONE = -1,     /* no order fits into the limits */
  EXHAUSTIVE_TOO_LARGE = -2 /* more prefixes than `most` */
};

/* The smallest objective over all orders within the limits. It keeps at most `most` prefixes of
 * each length; 200,000 suffice for 3 ranks with 4 microbatches. */
int64_t exhaustive_best(const struct weft_problem *problem, enum weft_objective objective,
                        size_t most);

#endif
