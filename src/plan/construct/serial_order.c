/* The serial orders, which need the least memory: one microbatch after the other runs forward
 * through all stages and back, and its weight gradients follow at once. The first stages of the
 * pipeline may run their backwards only when all forwards are done: then their gradients take no
 * memory meanwhile. If any order fits into a limit, one of these does (least_memory.c). */
#include <assert.h>
#include <string.h>

#include "plan/construct/constructors.h"

/* Backwards are whole wherever they may be. */
static uint32_t *add_backward(uint32_t stage, uint32_t *ops) {
  *ops++ = stage * WEFT_ORDER_KINDS + WEFT_KIND_I;
  *ops++ = stage * WEFT_ORDER_KINDS + WEFT_KIND_W;
  return ops;
}

/* The first `held` of the rank's stages run all forwards first. */
static void write_sequence(const struct weft_problem *problem, uint32_t rank, uint32_t held,
                           uint32_t *ops) {
  const uint32_t v = problem->stages_per_rank, m = problem->microbatch_count;
  const uint32_t *stages = &problem->stage_of[rank * v];
  for (uint32_t k = 0; k < m; k++) {
    for (uint32_t n = 0; n < v; n++) {
      *ops++ = stages[n] * WEFT_ORDER_KINDS + WEFT_KIND_F;
    }
    for (uint32_t n = v; n-- > held;) {
      ops = add_backward(stages[n], ops);
    }
  }
  for (uint32_t n = held; n-- > 0;) {
    for (uint32_t k = 0; k < m; k++) {
      ops = add_backward(stages[n], ops);
    }
  }
}

void weft_construct_serial(struct weft_incumbent *incumbent) {
  assert(incumbent != NULL && incumbent->problem->stages_per_rank > 0);
  const struct weft_problem *problem = incumbent->problem;
  const uint32_t v = problem->stages_per_rank;
  struct weft_order *draft = &incumbent->draft;
  uint32_t rank;
  const uint32_t stages = weft_chain_serial_stages(problem, &rank);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    uint32_t held = 0;
    while (held < v && problem->stage_of[r * v + held] < stages) {
      held++;
    }
    write_sequence(problem, r, held, draft->ops + problem->begin[r]);
  }
  memset(draft->whole, problem->may_join, (size_t)problem->stage_count * problem->microbatch_count);
  weft_incumbent_try(incumbent, draft, NULL);
}
