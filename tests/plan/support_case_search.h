/* Searching the planner's cases, and what came of it. */
#ifndef TESTS_SUPPORT_CASE_SEARCH_H
#define TESTS_SUPPORT_CASE_SEARCH_H

#include <stdint.h>

struct case_marks {
  uint32_t count;
  uint32_t optimal;
  uint32_t above_peer;
  double mean_gap[2]; /* to the bound, in per cent: equal stages, unequal ones */
  double worst_gap;
};

/* Every `every`-th case, with so much work on two threads. Each answer is simulated: it must
 * take as long as promised, and keep the limit. */
struct case_marks search_cases(double effort, uint32_t every);

#endif
