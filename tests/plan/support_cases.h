/* The planner's cases: tests/planner/cases.json, 150 random problems with one stage a rank,
 * with what another planner reached (peer_span) and a published bound (bound_span).
 * A stage is [f, i, w, activation, activation_after_i]; one entry serves all. */
#ifndef TESTS_SUPPORT_CASES_H
#define TESTS_SUPPORT_CASES_H

#include <weft/weft.h>

#include "plan/problem/problem.h"

struct planner_case {
  int id;
  uint32_t ranks, microbatches;
  double memory, peer_span, bound_span;
  struct weft_costs *costs; /* one entry per stage */
};

struct planner_cases {
  struct planner_case *list;
  size_t count;
};

struct planner_cases planner_cases_read(void);
void planner_cases_destroy(struct planner_cases *cases);

/* The problem of a case: spans, and the case's memory. */
void planner_case_problem(const struct planner_case *one, struct weft_problem *problem);

#endif
