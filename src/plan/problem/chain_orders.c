/* Makes the graph of a chain, and converts orders. The k-th W or NO_W of a chain's sequence belongs
 * to the k-th backward, as in a graph's; only where no backward is split, a chain has no W. */
#include "plan/problem/chain_orders.h"

#include <assert.h>
#include <string.h>

/* ---- The problem ---- */

/* Edges from the first of two neighbours to the second, or to it, by stage. */
static bool list_edges(struct weft_edge_list *list, struct weft_arena *arena, uint32_t stages,
                       bool to) {
  list->begin = weft_arena_allocate(arena, stages + (size_t)1, sizeof *list->begin);
  list->edges = weft_arena_allocate(arena, stages, sizeof *list->edges);
  if (list->begin == NULL || list->edges == NULL) {
    return false;
  }
  for (uint32_t s = 0; s < stages; s++) {
    list->edges[s] = s;
    list->begin[s + 1] = to ? s : s + 1 < stages ? s + 1 : s;
  }
  return true;
}

static struct weft_graph *make_graph(struct weft_arena *arena, uint32_t stages) {
  struct weft_graph *graph = weft_arena_allocate(arena, 1, sizeof *graph);
  if (graph == NULL || !list_edges(&graph->in, arena, stages, true) ||
      !list_edges(&graph->out, arena, stages, false)) {
    return NULL;
  }
  graph->stage_count = stages;
  graph->edge_count = stages - 1;
  graph->edges = weft_arena_allocate(arena, stages, sizeof *graph->edges);
  for (uint32_t e = 0; graph->edges != NULL && e + 1 < stages; e++) {
    graph->edges[e] = weft_edge_make(e, e + 1);
  }
  graph->gradient_in = graph->out;
  graph->gradient_out = graph->in;
  return graph->edges != NULL ? graph : NULL;
}

static bool allocate(struct weft_problem *problem) {
  struct weft_arena *arena = &problem->arena;
  const size_t n = problem->stage_count, ranks = (size_t)problem->rank_count + 1;
  problem->graph = make_graph(arena, problem->stage_count);
  return problem->graph != NULL && WEFT_ALLOCATE(arena, problem->occupancy, 2 * n) &&
         WEFT_ALLOCATE(arena, problem->crosses, 2 * n) &&
         WEFT_ALLOCATE(arena, problem->stages, n) && WEFT_ALLOCATE(arena, problem->begin, ranks) &&
         WEFT_ALLOCATE(arena, problem->first_of, ranks) &&
         WEFT_ALLOCATE(arena, problem->height, n) && WEFT_ALLOCATE(arena, problem->round_trip, n);
}

static void fill(struct weft_problem *problem, const struct weft_chain *chain) {
  const uint32_t v = chain->stages_per_rank, n = chain->stage_count;
  for (uint32_t r = 0; r <= problem->rank_count; r++) {
    problem->first_of[r] = r * v;
    problem->begin[r] = r * v * chain->microbatch_count * WEFT_ORDER_KINDS;
  }
  problem->height_max = n - 1;
  for (uint32_t s = n; s-- > 0;) {
    const struct weft_chain_stage *from = &chain->stages[s];
    problem->stages[s] = (struct weft_problem_stage){.f = from->time[WEFT_KIND_F],
                                                     .i = from->time[WEFT_KIND_I],
                                                     .w = from->time[WEFT_KIND_W],
                                                     .b = from->time[WEFT_KIND_B],
                                                     .held = from->held,
                                                     .held_after = from->held_after,
                                                     .gradients = from->gradients,
                                                     .rank = from->rank,
                                                     .trains = true};
    problem->height[s] = n - 1 - s;
    problem->round_trip[s] = from->time[WEFT_KIND_F] + from->time[weft_chain_backward(chain)];
    if (s + 1 < n) {
      const bool crosses = from->rank != chain->stages[s + 1].rank;
      for (uint32_t c = 2 * s; c < 2 * s + 2; c++) {
        problem->crosses[c] = crosses;
        problem->occupancy[c] = chain->occupancy;
      }
      problem->round_trip[s] += problem->round_trip[s + 1] + 2 * weft_chain_hop(chain, s, s + 1);
    }
  }
}

enum weft_status weft_problem_init_of_chain(struct weft_problem *problem,
                                            const struct weft_chain *chain,
                                            struct weft_error *error) {
  assert(problem != NULL && chain != NULL && chain->stage_count > 0);
  *problem = (struct weft_problem){.allocator = chain->allocator,
                                   .arena = {.allocator = chain->allocator},
                                   .control = chain->control,
                                   .rank_count = chain->rank_count,
                                   .stage_count = chain->stage_count,
                                   .microbatch_count = chain->microbatch_count,
                                   .objective = chain->objective,
                                   .may_split = chain->backward != WEFT_BACKWARD_WHOLE,
                                   .may_join = chain->backward != WEFT_BACKWARD_SPLIT,
                                   .latency = chain->latency,
                                   .ticks_per_unit = chain->ticks_per_unit,
                                   .sizes_per_unit = chain->sizes_per_unit,
                                   .limit = chain->limit,
                                   .stage_of = chain->stage_of};
  if (!allocate(problem)) {
    const enum weft_status status = weft_arena_status(&problem->arena, error);
    weft_problem_finish(problem);
    return status;
  }
  fill(problem, chain);
  return WEFT_OK;
}

/* ---- Orders ---- */

/* An op of the chain as one or two of the graph: the W of a whole backward has a place, too. */
static uint32_t *write_op(const struct weft_chain *chain, uint32_t stage,
                          enum weft_plan_op_kind kind, uint8_t *whole, uint32_t *ops) {
  const uint32_t first = WEFT_ORDER_KINDS * stage;
  switch (kind) {
    case WEFT_KIND_F: *ops++ = first + WEFT_KIND_F; break;
    case WEFT_KIND_I: *ops++ = first + WEFT_KIND_I; break;
    case WEFT_KIND_B:
      *whole = 1;
      *ops++ = first + WEFT_KIND_I;
      if (chain->backward == WEFT_BACKWARD_WHOLE) {
        *ops++ = first + WEFT_KIND_W;
      }
      break;
    default: *ops++ = first + WEFT_KIND_W; break;
  }
  return ops;
}

void weft_chain_order_write(const struct weft_chain *chain, const struct weft_chain_order *from,
                            const uint32_t *stages, const struct weft_problem *problem,
                            struct weft_order *to) {
  assert(from->ops != NULL && to->ops != NULL && to->whole != NULL);
  const uint32_t m = chain->microbatch_count, v = chain->stages_per_rank;
  memset(to->whole, 0, (size_t)problem->stage_count * m);
  for (uint32_t r = 0; r < chain->rank_count; r++) {
    const uint8_t *sequence = weft_chain_order_sequence(chain, from, r);
    const uint32_t first = chain->stage_of[r * v];
    const uint32_t rank = problem->stages[stages != NULL ? stages[first] : first].rank;
    uint32_t *ops = to->ops + problem->begin[rank];
    uint32_t backwards[WEFT_LOCAL_STAGES_MAX] = {0};
    for (uint32_t n = 0; n < chain->length; n++) {
      const enum weft_plan_op_kind kind = sequence[n] % WEFT_KINDS;
      const uint32_t local_stage = sequence[n] / WEFT_KINDS;
      const uint32_t of_chain = chain->stage_of[r * v + local_stage];
      const uint32_t stage = stages != NULL ? stages[of_chain] : of_chain;
      ops =
          write_op(chain, stage, kind, &to->whole[(size_t)stage * m + backwards[local_stage]], ops);
      backwards[local_stage] += kind == WEFT_KIND_I || kind == WEFT_KIND_B;
    }
    assert(ops == to->ops + problem->begin[rank + 1]);
  }
}

static void read_order(const struct weft_problem *problem, const struct weft_order *from,
                       const struct weft_chain *chain, struct weft_chain_order *to) {
  const uint32_t m = chain->microbatch_count;
  for (uint32_t r = 0; r < chain->rank_count; r++) {
    uint8_t *next = weft_chain_order_sequence(chain, to, r);
    uint32_t done[WEFT_LOCAL_STAGES_MAX][WEFT_ORDER_KINDS] = {{0}};
    for (uint32_t n = problem->begin[r]; n < problem->begin[r + 1]; n++) {
      const uint32_t stage = from->ops[n] / WEFT_ORDER_KINDS;
      const uint32_t local_stage = chain->stages[stage].local_stage;
      const enum weft_plan_op_kind kind = (enum weft_plan_op_kind)(from->ops[n] % WEFT_ORDER_KINDS);
      const uint32_t k = done[local_stage][kind]++;
      const bool whole = from->whole[(size_t)stage * m + k] != 0;
      const uint8_t first = (uint8_t)(local_stage * WEFT_KINDS);
      switch (kind) {
        case WEFT_KIND_F: *next++ = first + WEFT_KIND_F; break;
        case WEFT_KIND_I: *next++ = (uint8_t)(first + (whole ? WEFT_KIND_B : WEFT_KIND_I)); break;
        default:
          if (chain->backward != WEFT_BACKWARD_WHOLE) {
            *next++ = (uint8_t)(first + (whole ? WEFT_KIND_NO_W : WEFT_KIND_W));
          }
      }
    }
    assert(next == weft_chain_order_sequence(chain, to, r) + chain->length);
  }
}

/* ---- Incumbents ---- */

void weft_chain_take(struct weft_incumbent *incumbent, struct weft_order *draft,
                     const struct weft_chain_incumbent *chain) {
  assert(incumbent->best.ops != NULL && draft->ops != NULL);
  if (chain->value != WEFT_NEVER &&
      weft_incumbent_is_beaten(incumbent, chain->value, chain->span_sum)) {
    weft_chain_order_write(chain->problem, &chain->best, NULL, incumbent->problem, draft);
    weft_incumbent_offer(incumbent, draft, chain->value, chain->span_sum);
  }
}

void weft_chain_give(struct weft_incumbent *incumbent, struct weft_chain_incumbent *chain) {
  assert(incumbent != NULL && chain->draft.ops != NULL);
  chain->evaluated += incumbent->evaluated;
  chain->moves += incumbent->moves;
  chain->move_ns += incumbent->move_ns;
  incumbent->evaluated = incumbent->moves = incumbent->move_ns = 0;
  if (weft_chain_incumbent_is_beaten(chain, incumbent->value, incumbent->span_sum)) {
    read_order(incumbent->problem, &incumbent->best, chain->problem, &chain->draft);
    weft_chain_incumbent_replace(chain, &chain->draft, incumbent->value, incumbent->span_sum, NULL);
  }
}
