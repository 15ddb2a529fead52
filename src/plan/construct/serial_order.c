/* The serial orders: one microbatch after the other runs forward through all stages and back, and its
 * weight gradients follow at once. Of a chain they need the least memory: if any order fits into a
 * limit, one of these does (least_memory.c). */
#include <assert.h>
#include <string.h>

#include "plan/construct/constructors.h"

static void append(const struct weft_problem *problem, struct weft_plan_clock *clock,
                   struct weft_order *order, uint32_t op) {
  order->ops[clock->at[problem->stages[op / WEFT_ORDER_KINDS].rank]++] = op;
}

static void append_backward(const struct weft_problem *problem, struct weft_plan_clock *clock,
                            struct weft_order *order, uint32_t stage) {
  append(problem, clock, order, stage * WEFT_ORDER_KINDS + WEFT_KIND_I);
  append(problem, clock, order, stage * WEFT_ORDER_KINDS + WEFT_KIND_W);
}

/* Of each a backward as soon as it can be: branches of the graph that share a rank then need not hold
 * their activations at the same time. Backwards are whole wherever they may be. */
void weft_order_serial(const struct weft_problem *problem, struct weft_plan_clock *clock,
                       uint32_t held, struct weft_order *order) {
  assert(problem != NULL && clock != NULL && order->ops != NULL);
  const struct weft_graph *graph = problem->graph;
  const uint32_t n = problem->stage_count, m = problem->microbatch_count;
  uint32_t *missing = clock->scratch, *ready = clock->scratch + n; /* gradients; stages, a stack */
  memset(order->whole, problem->may_join, (size_t)n * m);
  memcpy(clock->at, problem->begin, problem->rank_count * sizeof *clock->at);
  for (uint32_t k = 0; k < m; k++) {
    for (uint32_t s = 0; s < n; s++) {
      uint32_t count = 0;
      missing[s] = graph->gradient_in.begin[s + 1] - graph->gradient_in.begin[s];
      append(problem, clock, order, s * WEFT_ORDER_KINDS + WEFT_KIND_F);
      if (problem->stages[s].trains && missing[s] == 0) {
        ready[count++] = s;
      }
      while (count > 0 && ready[count - 1] >= held) {
        const uint32_t t = ready[--count];
        append_backward(problem, clock, order, t);
        for (uint32_t e = graph->gradient_out.begin[t]; e < graph->gradient_out.begin[t + 1]; e++) {
          const uint32_t from = graph->edges[graph->gradient_out.edges[e]].from;
          if (--missing[from] == 0) {
            ready[count++] = from;
          }
        }
      }
    }
  }
  for (uint32_t s = held; s-- > 0;) {
    for (uint32_t k = 0; k < m; k++) {
      append_backward(problem, clock, order, s);
    }
  }
}

void weft_construct_serial(struct weft_incumbent *incumbent) {
  assert(incumbent != NULL && incumbent->problem->stages_per_rank > 0);
  uint32_t rank;
  const uint32_t held = weft_chain_serial_stages(incumbent->problem, &rank);
  weft_order_serial(incumbent->problem, &incumbent->clock, held, &incumbent->draft);
  weft_incumbent_try(incumbent, &incumbent->draft, NULL);
}
