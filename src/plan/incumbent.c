/* Keeping the best order. */
#include "plan/incumbent.h"

#include <string.h>

#include <weft/support.h>

#include "base/memory.h"

static size_t op_count(const struct weft_problem *problem) {
  return (size_t)problem->rank_count * problem->length;
}

enum weft_status weft_incumbent_init_bound(struct weft_incumbent *incumbent,
                                           const struct weft_problem *problem, int64_t bound,
                                           struct weft_error *error) {
  *incumbent =
      (struct weft_incumbent){.problem = problem, .value = WEFT_NEVER, .span_sum = WEFT_NEVER};
  WEFT_TRY(weft_evaluation_init(&incumbent->evaluation, problem, error));
  incumbent->best.ops = weft_array_allocate(problem->allocator, op_count(problem), 1);
  incumbent->draft.ops = weft_array_allocate(problem->allocator, op_count(problem), 1);
  if (incumbent->best.ops == NULL || incumbent->draft.ops == NULL) {
    weft_incumbent_finish(incumbent);
    return weft_fail_memory(error, op_count(problem));
  }
  incumbent->bound = bound;
  return WEFT_OK;
}

enum weft_status weft_incumbent_init(struct weft_incumbent *incumbent,
                                     const struct weft_problem *problem, struct weft_error *error) {
  return weft_incumbent_init_bound(incumbent, problem,
                                   weft_problem_bound(problem, problem->objective), error);
}

void weft_incumbent_finish(struct weft_incumbent *incumbent) {
  const struct weft_problem *problem = incumbent->problem;
  weft_evaluation_finish(&incumbent->evaluation);
  weft_array_free(problem->allocator, incumbent->best.ops, op_count(problem), 1);
  weft_array_free(problem->allocator, incumbent->draft.ops, op_count(problem), 1);
  incumbent->best.ops = NULL;
  incumbent->draft.ops = NULL;
}

static bool fits(const struct weft_problem *problem, const struct weft_order *order) {
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t peak = weft_sequence_peak(problem, r, weft_order_sequence(problem, order, r));
    if (peak < 0 || peak > problem->limit[r]) {
      return false;
    }
  }
  return true;
}

int64_t weft_incumbent_offer(struct weft_incumbent *incumbent, const struct weft_order *order,
                             const char *name) {
  incumbent->evaluated++;
  const int64_t value = weft_evaluate(&incumbent->evaluation, order, incumbent->value);
  const bool better =
      value < incumbent->value ||
      (value == incumbent->value && incumbent->evaluation.span_sum < incumbent->span_sum);
  if (value == WEFT_NEVER || !better || !fits(incumbent->problem, order)) {
    return WEFT_NEVER;
  }
  memcpy(incumbent->best.ops, order->ops, op_count(incumbent->problem));
  incumbent->value = value;
  incumbent->span_sum = incumbent->evaluation.span_sum;
  incumbent->name = name;
  return value;
}

void weft_incumbent_take(struct weft_incumbent *incumbent, const struct weft_incumbent *from) {
  if (from->value < incumbent->value ||
      (from->value == incumbent->value && from->span_sum < incumbent->span_sum)) {
    memcpy(incumbent->best.ops, from->best.ops, op_count(incumbent->problem));
    incumbent->value = from->value;
    incumbent->span_sum = from->span_sum;
    incumbent->name = from->name;
  }
}
