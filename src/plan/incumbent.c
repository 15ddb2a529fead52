/* Keeping the best order. */
#include "plan/incumbent.h"

#include <string.h>

#include <weft/support.h>

#include "base/memory.h"

static size_t letters_of(const struct weft_problem *problem) {
  return (size_t)problem->rank_count * problem->word_size;
}

enum weft_status weft_pool_init_bound(struct weft_pool *pool, const struct weft_problem *problem,
                                      int64_t bound, struct weft_error *error) {
  *pool = (struct weft_pool){.problem = problem, .value = WEFT_NEVER, .span_sum = WEFT_NEVER};
  WEFT_TRY(weft_evaluation_init(&pool->evaluation, problem, error));
  pool->best.letters = weft_array_allocate(problem->allocator, letters_of(problem), 1);
  pool->draft.letters = weft_array_allocate(problem->allocator, letters_of(problem), 1);
  if (pool->best.letters == NULL || pool->draft.letters == NULL) {
    weft_pool_finish(pool);
    return weft_fail_memory(error, letters_of(problem));
  }
  pool->bound = bound;
  return WEFT_OK;
}

enum weft_status weft_pool_init(struct weft_pool *pool, const struct weft_problem *problem,
                                struct weft_error *error) {
  return weft_pool_init_bound(pool, problem, weft_problem_bound(problem, problem->objective),
                              error);
}

void weft_pool_finish(struct weft_pool *pool) {
  const struct weft_problem *problem = pool->problem;
  weft_evaluation_finish(&pool->evaluation);
  weft_array_free(problem->allocator, pool->best.letters, letters_of(problem), 1);
  weft_array_free(problem->allocator, pool->draft.letters, letters_of(problem), 1);
  pool->best.letters = NULL;
  pool->draft.letters = NULL;
}

static bool fits(const struct weft_problem *problem, const struct weft_order *order) {
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t peak = weft_word_peak(problem, r, weft_order_word(problem, order, r));
    if (peak < 0 || peak > problem->limit[r]) {
      return false;
    }
  }
  return true;
}

int64_t weft_pool_offer(struct weft_pool *pool, const struct weft_order *order, const char *name) {
  pool->evaluated++;
  const int64_t value = weft_evaluate(&pool->evaluation, order, pool->value);
  const bool better =
      value < pool->value || (value == pool->value && pool->evaluation.span_sum < pool->span_sum);
  if (value == WEFT_NEVER || !better || !fits(pool->problem, order)) {
    return WEFT_NEVER;
  }
  memcpy(pool->best.letters, order->letters, letters_of(pool->problem));
  pool->value = value;
  pool->span_sum = pool->evaluation.span_sum;
  pool->name = name;
  return value;
}

void weft_pool_take(struct weft_pool *pool, const struct weft_pool *from) {
  if (from->value < pool->value ||
      (from->value == pool->value && from->span_sum < pool->span_sum)) {
    memcpy(pool->best.letters, from->best.letters, letters_of(pool->problem));
    pool->value = from->value;
    pool->span_sum = from->span_sum;
    pool->name = from->name;
  }
}
