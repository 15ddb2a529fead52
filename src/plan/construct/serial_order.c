/* The order with the least memory: one microbatch after the other goes forward through
 * all stages and back, and its weight gradients are computed at once. Whatever limit has
 * an order at all has this one. */
#include "plan/incumbent.h"

static uint32_t put_microbatch(const struct weft_problem *problem, uint8_t *word, uint32_t n) {
  const uint32_t places = problem->stages_per_rank;
  for (uint32_t k = 0; k < places; k++) {
    word[n++] = (uint8_t)(k * WEFT_KINDS + WEFT_LETTER_F);
  }
  for (uint32_t k = places; k-- > 0;) {
    if (problem->whole_backward) {
      word[n++] = (uint8_t)(k * WEFT_KINDS + WEFT_LETTER_B);
    } else {
      word[n++] = (uint8_t)(k * WEFT_KINDS + WEFT_LETTER_I);
      word[n++] = (uint8_t)(k * WEFT_KINDS + WEFT_LETTER_W);
    }
  }
  return n;
}

enum weft_status weft_construct_one_at_a_time(struct weft_pool *pool, struct weft_error *error) {
  const struct weft_problem *problem = pool->problem;
  (void)error;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    uint8_t *word = weft_order_word(problem, &pool->draft, r);
    for (uint32_t m = 0, n = 0; m < problem->microbatch_count; m++) {
      n = put_microbatch(problem, word, n);
    }
  }
  (void)weft_pool_offer(pool, &pool->draft, NULL);
  return WEFT_OK;
}
