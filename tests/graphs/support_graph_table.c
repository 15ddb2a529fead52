/* Random orders of a graph's actions; see support_graph_model.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

#include "ir/action.h"
#include "support_graph_model.h"

struct order {
  const struct weft_graph *graph;
  uint32_t microbatch_count;
  uint32_t *done; /* [stage][microbatch]: WEFT_OP_BIT */
  bool *splits;   /* [stage] */
};

static uint32_t *done_at(const struct order *order, uint32_t stage, uint32_t microbatch) {
  return &order->done[stage * order->microbatch_count + microbatch];
}

static bool is_ready(const struct order *order, struct weft_action action) {
  const uint32_t done = *done_at(order, action.stage, action.microbatch);
  const uint32_t made = action.op == WEFT_OP_F ? WEFT_OP_BIT(WEFT_OP_F) : WEFT_OPS_GRADIENT;
  if (weft_op_in(action.op, done) || (action.op != WEFT_OP_F && !weft_op_in(WEFT_OP_F, done))) {
    return false;
  }
  if (action.op == WEFT_OP_W) {
    return weft_op_in(WEFT_OP_I, done);
  }
  for (uint32_t k = 0; k < weft_action_input_count(order->graph, action, 0); k++) {
    const uint32_t stage = weft_action_input_at(order->graph, action, k);
    if ((*done_at(order, stage, action.microbatch) & made) == 0) {
      return false;
    }
  }
  return true;
}

/* The next action of a stage and microbatch; false: none is left, or it is not ready. */
static bool next_action(const struct order *order, uint32_t stage, uint32_t microbatch,
                        struct weft_action *action) {
  const uint32_t done = *done_at(order, stage, microbatch);
  enum weft_op op = WEFT_OP_F;
  if (done != 0) {
    op = !order->splits[stage] ? WEFT_OP_B : weft_op_in(WEFT_OP_I, done) ? WEFT_OP_W : WEFT_OP_I;
    if (!weft_graph_has_backward(order->graph, stage)) {
      return false;
    }
  }
  *action = weft_action_make(op, stage, microbatch);
  return is_ready(order, *action);
}

struct weft_program *graph_random_table(const struct weft_graph *graph, const uint32_t *rank_of,
                                        uint32_t rank_count, uint32_t microbatch_count,
                                        uint64_t seed) {
  const uint32_t n = graph->stage_count, pairs = n * microbatch_count;
  struct weft_random random = {.state = seed};
  struct order order = {.graph = graph, .microbatch_count = microbatch_count};
  order.done = calloc(pairs, sizeof *order.done);
  order.splits = calloc(n, sizeof *order.splits);
  struct weft_action *rows = calloc((size_t)rank_count * pairs * 3, sizeof *rows);
  uint64_t *sizes = calloc(rank_count, sizeof *sizes);
  struct weft_action *ready = calloc(pairs, sizeof *ready);
  /* Some orders prefer backwards, as 1F1B does; others take any. */
  const bool backwards_first = weft_random_below(&random, 2) == 0;
  for (uint32_t s = 0; s < n; s++) {
    order.splits[s] = weft_random_below(&random, 2) == 0;
  }
  for (uint32_t count = 1; count > 0;) {
    count = 0;
    for (uint32_t k = 0; k < pairs; k++) {
      count += next_action(&order, k / microbatch_count, k % microbatch_count, &ready[count]);
    }
    if (count > 0) {
      struct weft_action chosen = ready[weft_random_below(&random, count)];
      for (uint32_t k = 0; backwards_first && chosen.op == WEFT_OP_F && k < 3; k++) {
        chosen = ready[weft_random_below(&random, count)];
      }
      const uint32_t rank = rank_of[chosen.stage];
      *done_at(&order, chosen.stage, chosen.microbatch) |= WEFT_OP_BIT(chosen.op);
      rows[(size_t)rank * pairs * 3 + sizes[rank]++] = chosen;
    }
  }
  uint64_t total = 0;
  for (uint32_t r = 0; r < rank_count; r++) {
    memmove(rows + total, rows + (size_t)r * pairs * 3, sizes[r] * sizeof *rows);
    total += sizes[r];
  }
  struct weft_program *table;
  struct weft_error error;
  if (weft_program_create(NULL, rank_count, sizes, rows, &table, &error) != WEFT_OK ||
      weft_program_set_graph(table, graph, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  free(order.done);
  free(order.splits);
  free(rows);
  free(sizes);
  free(ready);
  return table;
}
