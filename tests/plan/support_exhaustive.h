/* The best order of a small problem, by trying all: it shares nothing with the planner
 * but the problem. */
#ifndef TESTS_SUPPORT_EXHAUSTIVE_H
#define TESTS_SUPPORT_EXHAUSTIVE_H

#include "plan/problem.h"

enum {
  EXHAUSTIVE_STAGES = 8,
  EXHAUSTIVE_MICROBATCHES = 8,
  EXHAUSTIVE_NONE = -1,     /* no order keeps the limits */
  EXHAUSTIVE_TOO_LARGE = -2 /* more had to be remembered than `most` */
};

/* The smallest objective over all orders within the limits. It remembers beginnings of
 * orders, at most `most` of the same length; 200,000 do for 3 ranks with 4 microbatches. */
int64_t exhaustive_best(const struct weft_problem *problem, enum weft_objective objective,
                        size_t most);

#endif
