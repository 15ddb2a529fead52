/* A bound from the first backwards, for one stage per rank; cheap for any size.
 *
 * Before its first I, a rank can only run F. If it may idle for D in all, it must run n of them, so
 * that the first gradient arrives within D after the last; that gradient then waits for the n-th F
 * to end, and reaches the previous rank that much later. For a target T, D of a rank is T less its
 * work. The earliest times of the first gradient follow from the last rank to the first: each is
 * the smallest that the later ranks allow, and monotone in theirs. If n exceeds the microbatches
 * or the memory, no order reaches T. A larger T leaves more D, so bisection finds the smallest T
 * that is not refuted. */
#include <assert.h>

#include "plan/bounds/chain_bound.h"

static int64_t most_forwards(const struct weft_problem *problem, uint32_t stage) {
  const struct weft_problem_stage *at = &problem->stages[stage];
  const int64_t m = problem->microbatch_count;
  return at->held > 0 ? weft_min(m, problem->limit[at->rank] / at->held) : m;
}

static int64_t work_of(const struct weft_problem *problem, uint32_t stage) {
  return problem->microbatch_count *
         (problem->stages[stage].time[WEFT_KIND_F] + weft_least_gradient(problem, stage) +
          weft_least_weight(problem, stage));
}

/* Stage and rank are the same here. */
static bool is_refuted(const struct weft_paths *paths, int64_t target) {
  const struct weft_problem *problem = paths->problem;
  int64_t arrives = 0; /* of the first gradient, after the start of the rank's first F */
  for (uint32_t s = problem->stage_count; s-- > 0;) {
    const int64_t f = problem->stages[s].time[WEFT_KIND_F];
    const int64_t opening = problem->objective == WEFT_OBJECTIVE_MAKESPAN ? paths->forward[s] : 0;
    const int64_t idle = target - opening - work_of(problem, s);
    const int64_t short_of = arrives - f - idle; /* after the first F */
    const int64_t count = 1 + (short_of <= 0 ? 0 : f > 0 ? (short_of + f - 1) / f : INT32_MAX);
    if (idle < 0 || count > most_forwards(problem, s)) {
      return true;
    }
    if (s > 0) {
      arrives = weft_max(arrives, count * f) + weft_least_gradient(problem, s) +
                2 * weft_problem_hop(problem, 2 * (s - 1)) + problem->stages[s - 1].time[WEFT_KIND_F];
    }
  }
  return false;
}

int64_t weft_bound_cascade(const struct weft_paths *paths, int64_t bound) {
  assert(paths->forward != NULL && bound >= 0);
  const struct weft_problem *problem = paths->problem;
  if (problem->stages_per_rank != 1 || !is_refuted(paths, bound)) {
    return bound;
  }
  int64_t low = bound, high = bound; /* low is refuted */
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    high = weft_max(high, weft_paths_trip(paths, s, s) + paths->forward[s] + work_of(problem, s));
  }
  if (is_refuted(paths, high)) { /* not even one microbatch fits */
    return bound;
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (is_refuted(paths, middle)) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return high;
}
