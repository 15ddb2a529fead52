/* Mutants of programs whose stages form a graph: transfers over edges that are not there, stages
 * without a gradient that have a backward, graphs that the program was not made for. */
#include <string.h>

#include "support_mutant_tools.h"

static bool is_forward(const struct weft_action *transfer) {
  return transfer->op == WEFT_OP_SEND_F || transfer->op == WEFT_OP_RECV_F;
}

static bool goes_up(const struct weft_action *transfer) {
  return transfer->op == WEFT_OP_SEND_F || transfer->op == WEFT_OP_RECV_B;
}

/* An edge between two stages that carries what a transfer of that direction needs. */
static bool has_edge(const struct mutant *mutant, uint32_t a, uint32_t b, bool forward) {
  const struct weft_graph *graph = mutant->draft.graph;
  for (uint32_t e = 0; e < graph->edge_count; e++) {
    const struct weft_edge *edge = &graph->edges[e];
    if ((edge->from == a && edge->to == b) || (edge->from == b && edge->to == a)) {
      return forward || edge->gradient;
    }
  }
  return false;
}

static bool is_frozen(const struct mutant *mutant, uint32_t stage) {
  bool is_loss = true;
  for (uint32_t e = 0; e < mutant->draft.graph->edge_count; e++) {
    const struct weft_edge *edge = &mutant->draft.graph->edges[e];
    if (edge->from == stage && edge->gradient) {
      return false;
    }
    is_loss = is_loss && edge->from != stage;
  }
  return !is_loss;
}

/* --- Transfers -------------------------------------------------------------------- */

/* A stage on the same side of the transfer's own, with or without an edge to it. */
static bool other_stage(struct mutant *mutant, const struct weft_action *transfer, bool with_edge,
                        uint32_t *other) {
  const uint32_t n = mutant->stage_count, first = weft_random_below(mutant->random, n);
  for (uint32_t k = 0; k < n; k++) {
    *other = (first + k) % n;
    if ((goes_up(transfer) ? *other > transfer->stage : *other < transfer->stage) &&
        *other != draft_other(*transfer) &&
        has_edge(mutant, transfer->stage, *other, is_forward(transfer)) == with_edge) {
      return true;
    }
  }
  return false;
}

static bool choose_retarget(struct mutant *mutant, bool with_edge, struct draft_site *site,
                            struct weft_action *old, struct weft_action *now) {
  uint32_t other;
  if (!mutant_choose(mutant, SEND | RECV, NULL, site)) {
    return false;
  }
  *old = *draft_at(&mutant->draft, *site);
  if (!other_stage(mutant, old, with_edge, &other)) {
    return false;
  }
  *now = draft_transfer((enum weft_op)old->op, old->stage, other, old->microbatch);
  return true;
}

static enum weft_rule missing_end(const struct weft_action *dropped) {
  return mutant_op_in(dropped, SEND) ? WEFT_RULE_PAIR_SEND : WEFT_RULE_PAIR_RECV;
}

/* To a stage that has no edge with its own. */
static bool retarget_off_the_graph(struct mutant *mutant) {
  struct draft_site site;
  struct weft_action old, now;
  if (!choose_retarget(mutant, false, &site, &old, &now)) {
    return false;
  }
  mutant->draft.rows[site.rank].records[site.index] = now;
  return mutant_expect_at(mutant, WEFT_RULE_COMM_BOUNDARY, site) &&
         mutant_expect_action(mutant, missing_end(&old), draft_partner(old));
}

/* Over another edge of its stage: there are two there, and none where it was. */
static bool retarget_over_another_edge(struct mutant *mutant) {
  struct draft_site site, twin;
  struct weft_action old, now;
  if (!choose_retarget(mutant, true, &site, &old, &now) ||
      !draft_find(&mutant->draft, now, &twin)) {
    return false;
  }
  mutant->draft.rows[site.rank].records[site.index] = now;
  return mutant_expect_at(mutant, WEFT_RULE_DUPLICATE, mutant_later_of(mutant, now)) &&
         mutant_expect_action(mutant, missing_end(&old), draft_partner(old));
}

/* A gradient over an edge that carries none. */
static bool gradient_over_frozen_edge(struct mutant *mutant) {
  const struct weft_graph *graph = mutant->draft.graph;
  struct draft_site any;
  const uint32_t first = weft_random_below(mutant->random, graph->edge_count);
  for (uint32_t k = 0; k < graph->edge_count && mutant_choose(mutant, SEND, NULL, &any); k++) {
    const struct weft_edge *edge = &graph->edges[(first + k) % graph->edge_count];
    if (!edge->gradient) {
      const bool send = weft_random_below(mutant->random, 2) == 0;
      const struct weft_action action =
          send ? draft_transfer(WEFT_OP_SEND_B, edge->to, edge->from, 0)
               : draft_transfer(WEFT_OP_RECV_B, edge->from, edge->to, 0);
      const uint32_t rank = mutant->rank_of[action.stage];
      return mutant_expect_at(mutant, WEFT_RULE_COMM_BOUNDARY,
                              mutant_put(mutant, rank, mutant_some_gap(mutant, rank, 0), action));
    }
  }
  return false;
}

/* --- Frozen stages ------------------------------------------------------------------ */

static bool is_of_frozen_stage(const struct mutant *mutant, struct draft_site site) {
  return is_frozen(mutant, draft_at(&mutant->draft, site)->stage);
}

static bool backward_of_frozen_stage(struct mutant *mutant) {
  static const enum weft_op ops[] = {WEFT_OP_B, WEFT_OP_I, WEFT_OP_W};
  struct draft_site site;
  if (!mutant_choose(mutant, BIT(WEFT_OP_F), is_of_frozen_stage, &site)) {
    return false;
  }
  const struct weft_action forward = *draft_at(&mutant->draft, site);
  const size_t to = mutant_some_gap(mutant, site.rank, mutant_behind(mutant, site));
  return mutant_expect_at(mutant, WEFT_RULE_COVERAGE_FROZEN,
                          mutant_put(mutant, site.rank, to,
                                     draft_action(ops[weft_random_below(mutant->random, 3)],
                                                  forward.stage, forward.microbatch)));
}

static bool end_of_frozen_stage(struct mutant *mutant, enum weft_op op) {
  struct draft_site site;
  if (!mutant_choose(mutant, BIT(WEFT_OP_F), is_of_frozen_stage, &site)) {
    return false;
  }
  const uint32_t stage = op == WEFT_OP_TIE_GRAD ? 0 : draft_at(&mutant->draft, site)->stage;
  const uint32_t rank = mutant->rank_of[stage];
  return is_frozen(mutant, stage) &&
         mutant_expect_at(
             mutant, WEFT_RULE_COVERAGE_FROZEN,
             mutant_put(mutant, rank, mutant->draft.rows[rank].count, draft_action(op, stage, 0)));
}

static bool reduce_of_frozen_stage(struct mutant *mutant) {
  return end_of_frozen_stage(mutant, WEFT_OP_REDUCE_GRAD);
}
static bool tie_of_frozen_stage(struct mutant *mutant) {
  return end_of_frozen_stage(mutant, WEFT_OP_TIE_GRAD);
}

/* --- Another graph ------------------------------------------------------------------- */

/* The graph with an edge changed, left out, or more; false where that is no graph. */
static bool change_graph(struct mutant *mutant, uint32_t drop, bool drop_gradient,
                         const struct weft_edge *more) {
  enum { EDGES_MAX = 256 };
  struct weft_edge edges[EDGES_MAX];
  const struct weft_graph *graph = mutant->draft.graph;
  struct weft_graph *changed = NULL;
  uint32_t count = 0;
  if (graph->edge_count + 1 > EDGES_MAX) {
    return false;
  }
  for (uint32_t e = 0; e < graph->edge_count; e++) {
    if (e != drop || drop_gradient) {
      edges[count] = graph->edges[e];
      edges[count].gradient = edges[count].gradient && e != drop;
      count++;
    }
  }
  if (more != NULL) {
    edges[count++] = *more;
  }
  if (weft_graph_create(NULL, graph->stage_count, edges, count, NULL, &changed, NULL) != WEFT_OK) {
    return false;
  }
  draft_set_graph(&mutant->draft, changed);
  weft_graph_destroy(changed);
  return true;
}

static uint32_t edge_of(const struct mutant *mutant, const struct weft_action *transfer) {
  const uint32_t other = draft_other(*transfer);
  const uint32_t from = goes_up(transfer) ? transfer->stage : other;
  const uint32_t to = goes_up(transfer) ? other : transfer->stage;
  uint32_t e = 0;
  while (mutant->draft.graph->edges[e].from != from || mutant->draft.graph->edges[e].to != to) {
    e++;
  }
  return e;
}

static bool lost_edge(struct mutant *mutant) {
  struct draft_site site;
  return mutant_choose(mutant, SEND | RECV, NULL, &site) &&
         change_graph(mutant, edge_of(mutant, draft_at(&mutant->draft, site)), false, NULL) &&
         mutant_expect_at(mutant, WEFT_RULE_COMM_BOUNDARY, site);
}

static bool lost_gradient(struct mutant *mutant) {
  struct draft_site site;
  return mutant_choose(mutant, BIT(WEFT_OP_SEND_B) | BIT(WEFT_OP_RECV_B), NULL, &site) &&
         change_graph(mutant, edge_of(mutant, draft_at(&mutant->draft, site)), true, NULL) &&
         mutant_expect_at(mutant, WEFT_RULE_COMM_BOUNDARY, site);
}

/* The F at its end has an input that nobody transfers. */
static bool more_edges(struct mutant *mutant) {
  struct draft_site any;
  const uint32_t n = mutant->stage_count, first = weft_random_below(mutant->random, n * n);
  for (uint32_t k = 0; k < n * n && mutant_choose(mutant, SEND, NULL, &any); k++) {
    const uint32_t from = (first + k) % (n * n) / n, to = (first + k) % n;
    if (from < to && mutant->rank_of[from] != mutant->rank_of[to] &&
        !has_edge(mutant, from, to, true)) {
      struct weft_edge edge = weft_edge_make(from, to);
      edge.gradient = false;
      return change_graph(mutant, UINT32_MAX, false, &edge) &&
             mutant_expect_action(mutant, WEFT_RULE_COMM_MISSING, draft_action(WEFT_OP_F, to, 0));
    }
  }
  return false;
}

static bool skips(const struct mutant *mutant, struct draft_site site) {
  return draft_at(&mutant->draft, site)->skip > 0;
}

/* As a chain: what skips stages goes nowhere. */
static bool lost_graph(struct mutant *mutant) {
  struct draft_site site;
  if (!mutant_choose(mutant, SEND | RECV, skips, &site)) {
    return false;
  }
  draft_set_graph(&mutant->draft, NULL);
  return mutant_expect_at(mutant, WEFT_RULE_COMM_BOUNDARY, site);
}

/* --- The kinds ---------------------------------------------------------------- */

static const struct mutant_kind kinds[] = {
    {"retarget_off_the_graph", retarget_off_the_graph, MUTANT_OF_GRAPH},
    {"retarget_other_edge", retarget_over_another_edge, MUTANT_OF_GRAPH},
    {"gradient_over_frozen", gradient_over_frozen_edge, MUTANT_OF_GRAPH},
    {"backward_of_frozen", backward_of_frozen_stage, MUTANT_OF_GRAPH},
    {"reduce_of_frozen", reduce_of_frozen_stage, MUTANT_OF_GRAPH},
    {"tie_of_frozen", tie_of_frozen_stage, MUTANT_OF_GRAPH},
    {"lost_edge", lost_edge, MUTANT_OF_GRAPH},
    {"lost_gradient", lost_gradient, MUTANT_OF_GRAPH},
    {"more_edges", more_edges, MUTANT_OF_GRAPH},
    {"lost_graph", lost_graph, MUTANT_OF_GRAPH},
};

const struct mutant_group mutant_group_edge = {kinds, sizeof kinds / sizeof kinds[0]};
