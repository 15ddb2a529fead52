/* The serial order, which needs the least memory: one microbatch after the other runs forward
 * through all stages and back, and its weight gradients follow at once. If any order fits into a
 * limit, this one does. */
#include <assert.h>

#include "plan/incumbent.h"

static uint32_t add_microbatch(const struct weft_problem *problem, uint8_t *sequence, uint32_t n) {
  const uint32_t places = problem->stages_per_rank;
  for (uint32_t k = 0; k < places; k++) {
    sequence[n++] = (uint8_t)(k * WEFT_KINDS + WEFT_KIND_F);
  }
  for (uint32_t k = places; k-- > 0;) {
    if (problem->whole_backward) {
      sequence[n++] = (uint8_t)(k * WEFT_KINDS + WEFT_KIND_B);
    } else {
      sequence[n++] = (uint8_t)(k * WEFT_KINDS + WEFT_KIND_I);
      sequence[n++] = (uint8_t)(k * WEFT_KINDS + WEFT_KIND_W);
    }
  }
  return n;
}

enum weft_status weft_construct_serial(struct weft_incumbent *incumbent, struct weft_error *error) {
  assert(incumbent != NULL && incumbent->draft.ops != NULL);
  const struct weft_problem *problem = incumbent->problem;
  (void)error;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    uint8_t *sequence = weft_order_sequence(problem, &incumbent->draft, r);
    for (uint32_t m = 0, n = 0; m < problem->microbatch_count; m++) {
      n = add_microbatch(problem, sequence, n);
    }
  }
  (void)weft_incumbent_offer(incumbent, &incumbent->draft, NULL);
  return WEFT_OK;
}
