/* Searches the planner's cases and summarises the results. */
#ifndef TESTS_SUPPORT_CASE_SEARCH_H
#define TESTS_SUPPORT_CASE_SEARCH_H

#include <stdint.h>

struct case_summary {
  uint32_t count;
  uint32_t optimal;
  uint32_t above_peer;
  double mean_gap[2]; /* to the bound, in per cent: equal stages, unequal ones */
  double worst_gap;
};

/* Every `every`-th case, with this effort on two threads. Each answer is simulated: its times must
 * be those of the answer, within the limit. */
struct case_summary search_cases(double effort, uint32_t every);

#endif
