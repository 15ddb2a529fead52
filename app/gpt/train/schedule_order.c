/* The order in which a table sums gradients. */
#include "gpt/train/schedule_order.h"

#include <assert.h>

/* The microbatch that comes after those of the same op and stage in the row before `at`. The last
 * of them is near, except for the first of each op. */
static uint32_t next_microbatch(const struct weft_program *table, uint64_t row_begin, uint64_t at) {
  const struct weft_action *action = &table->actions[at];
  for (uint64_t k = at; k > row_begin; k--) {
    const struct weft_action *before = &table->actions[k - 1];
    if (before->op == action->op && before->stage == action->stage) {
      return before->microbatch + 1;
    }
  }
  return 0;
}

bool weft_gpt_schedule_keeps_order(const struct weft_program *table, const uint32_t *rank_of,
                                   uint32_t stage_count) {
  assert(table != NULL && rank_of != NULL);
  for (uint32_t r = 0; r < table->rank_count; r++) {
    for (uint64_t k = table->row_begin[r]; k < table->row_begin[r + 1]; k++) {
      const struct weft_action *action = &table->actions[k];
      switch (action->op) {
        case WEFT_OP_IDLE:
        case WEFT_OP_REDUCE_GRAD: break;
        case WEFT_OP_F:
        case WEFT_OP_B:
        case WEFT_OP_I:
        case WEFT_OP_W:
          if (action->stage >= stage_count || rank_of[action->stage] != r ||
              action->microbatch != next_microbatch(table, table->row_begin[r], k)) {
            return false;
          }
          break;
        default: return false;
      }
    }
  }
  return true;
}
