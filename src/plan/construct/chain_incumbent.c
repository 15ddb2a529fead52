/* Keeps the best order. */
#include "plan/construct/chain_incumbent.h"

#include <assert.h>
#include <string.h>

#include <weft/support.h>

enum weft_status weft_chain_incumbent_init_bound(struct weft_chain_incumbent *incumbent,
                                                 const struct weft_chain *problem, int64_t bound,
                                                 struct weft_error *error) {
  assert(incumbent != NULL && problem != NULL);
  *incumbent = (struct weft_chain_incumbent){
      .problem = problem, .value = WEFT_NEVER, .span_sum = WEFT_NEVER, .bound = bound};
  WEFT_TRY(weft_chain_times_init(&incumbent->evaluation, problem, error));
  struct weft_arena *arena = &incumbent->evaluation.arena; /* orders live as long */
  if (!WEFT_ALLOCATE(arena, incumbent->best.ops, weft_chain_op_count(problem)) ||
      !WEFT_ALLOCATE(arena, incumbent->draft.ops, weft_chain_op_count(problem))) {
    weft_chain_incumbent_finish(incumbent);
    return weft_fail_memory(error, weft_chain_op_count(problem));
  }
  return WEFT_OK;
}

enum weft_status weft_chain_incumbent_init(struct weft_chain_incumbent *incumbent,
                                           const struct weft_chain *problem,
                                           struct weft_error *error) {
  assert(problem != NULL);
  return weft_chain_incumbent_init_bound(incumbent, problem, weft_chain_bound(problem), error);
}

void weft_chain_incumbent_finish(struct weft_chain_incumbent *incumbent) {
  weft_chain_times_finish(&incumbent->evaluation);
}

static bool fits(const struct weft_chain *problem, const struct weft_chain_order *order) {
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t peak =
        weft_chain_order_peak(problem, r, weft_chain_order_sequence(problem, order, r));
    if (peak < 0 || peak > problem->limit[r]) {
      return false;
    }
  }
  return true;
}

void weft_chain_incumbent_replace(struct weft_chain_incumbent *incumbent,
                                  const struct weft_chain_order *order, int64_t value,
                                  int64_t span_sum, const char *name) {
  assert(value >= incumbent->bound && value <= incumbent->value);
  memcpy(incumbent->best.ops, order->ops, weft_chain_op_count(incumbent->problem));
  incumbent->replaced++;
  incumbent->value = value;
  incumbent->span_sum = span_sum;
  incumbent->name = name;
}

int64_t weft_chain_incumbent_offer(struct weft_chain_incumbent *incumbent,
                                   const struct weft_chain_order *order, const char *name) {
  assert(incumbent->evaluation.links != NULL && order != NULL);
  incumbent->evaluated++;
  const int64_t value = weft_chain_evaluate(&incumbent->evaluation, order, incumbent->value);
  const int64_t span_sum = incumbent->evaluation.span_sum;
  if (value == WEFT_NEVER || !weft_chain_incumbent_is_beaten(incumbent, value, span_sum) ||
      !fits(incumbent->problem, order)) {
    return WEFT_NEVER;
  }
  weft_chain_incumbent_replace(incumbent, order, value, span_sum, name);
  return value;
}
