/* What no order can beat. (helper bounds: read /tmp/plan/hints_for_bounds.md) */
#include "plan/problem.h"

static int64_t work_of(const struct weft_problem *problem, uint32_t rank) {
  int64_t sum = 0;
  for (uint32_t k = 0; k < problem->stages_per_rank; k++) {
    const int64_t *time =
        problem->stages[problem->stage_of[rank * problem->stages_per_rank + k]].time;
    sum +=
        time[WEFT_LETTER_F] +
        (problem->whole_backward ? time[WEFT_LETTER_B] : time[WEFT_LETTER_I] + time[WEFT_LETTER_W]);
  }
  return sum * problem->microbatch_count;
}

int64_t weft_problem_bound(const struct weft_problem *problem, enum weft_objective objective) {
  int64_t bound = 0;
  (void)objective;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t work = work_of(problem, r);
    bound = work > bound ? work : bound;
  }
  return bound;
}

/* One microbatch at a time, its weight gradients at once: all of a rank's stages hold it when
 * its last stage does, and nobody can avoid that. */
static int64_t least_of(const struct weft_problem *problem, uint32_t rank) {
  int64_t held = 0, peak = 0;
  for (uint32_t k = 0; k < problem->stages_per_rank; k++) {
    const struct weft_problem_stage *stage =
        &problem->stages[problem->stage_of[rank * problem->stages_per_rank + k]];
    const int64_t after = problem->whole_backward ? 0 : stage->held_after;
    peak = held + after > peak ? held + after : peak;
    held += stage->held;
    peak = held > peak ? held : peak;
  }
  return peak;
}

int64_t weft_problem_least_memory(const struct weft_problem *problem, uint32_t *rank) {
  int64_t least = -1;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t own = least_of(problem, r);
    if (own > least) {
      least = own;
      *rank = r;
    }
  }
  return least;
}
