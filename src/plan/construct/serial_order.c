/* The serial orders, which need the least memory: one microbatch after the other runs forward
 * through all stages and back, and its weight gradients follow at once. The first stages of the
 * pipeline may run their backwards only when all forwards are done: then their gradients take no
 * memory meanwhile. If any order fits into a limit, one of these does (least_memory.c). */
#include <assert.h>

#include "plan/construct/chain_incumbent.h"

static uint32_t add_backward(const struct weft_chain *problem, uint32_t local_stage,
                             uint8_t *sequence, uint32_t n) {
  const uint8_t first = (uint8_t)(local_stage * WEFT_KINDS);
  if (problem->backward == WEFT_BACKWARD_SPLIT) {
    sequence[n++] = first + WEFT_KIND_I;
    sequence[n++] = first + WEFT_KIND_W;
  } else {
    sequence[n++] = first + WEFT_KIND_B;
  }
  if (problem->backward == WEFT_BACKWARD_MIXED) {
    sequence[n++] = first + WEFT_KIND_NO_W;
  }
  return n;
}

/* `held` of the rank's stages run all forwards first. */
static void write_sequence(const struct weft_chain *problem, uint32_t held, uint8_t *sequence) {
  const uint32_t stages = problem->stages_per_rank, m = problem->microbatch_count;
  uint32_t n = 0;
  for (uint32_t k = 0; k < m; k++) {
    for (uint32_t s = 0; s < stages; s++) {
      sequence[n++] = (uint8_t)(s * WEFT_KINDS + WEFT_KIND_F);
    }
    for (uint32_t s = stages; s-- > held;) {
      n = add_backward(problem, s, sequence, n);
    }
  }
  for (uint32_t s = held; s-- > 0;) {
    for (uint32_t k = 0; k < m; k++) {
      n = add_backward(problem, s, sequence, n);
    }
  }
  assert(n == problem->length);
}

void weft_construct_serial(struct weft_chain_incumbent *incumbent) {
  assert(incumbent != NULL && incumbent->draft.ops != NULL);
  const struct weft_chain *problem = incumbent->problem;
  const uint32_t v = problem->stages_per_rank;
  uint32_t rank;
  const uint32_t stages = weft_chain_serial_stages(problem, &rank);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    uint32_t held = 0;
    while (held < v && problem->stage_of[r * v + held] < stages) {
      held++;
    }
    write_sequence(problem, held, weft_chain_order_sequence(problem, &incumbent->draft, r));
  }
  (void)weft_chain_incumbent_offer(incumbent, &incumbent->draft, NULL);
}
