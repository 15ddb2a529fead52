/* Mutants in which actions of a rank are in a wrong order, transfers go where
 * they cannot, or actions run together that must not. */
#include "support_mutant_tools.h"

/* --- Moving on the rank ------------------------------------------------------------------ */

static bool recv_after_consumer(struct mutant *mutant) {
  struct draft_site site, consumer;
  if (!mutant_choose(mutant, RECV, NULL, &site)) {
    return false;
  }
  const struct weft_action recv = *draft_at(&mutant->draft, site);
  if (!mutant_find_compute(mutant, recv, &consumer)) {
    return false;
  }
  (void)mutant_move_to(mutant, site,
                       mutant_some_gap(mutant, site.rank, mutant_behind(mutant, consumer)));
  return mutant_find_compute(mutant, recv, &consumer) &&
         mutant_expect_at(mutant, WEFT_RULE_ORDER_RECEIVE, consumer);
}

static bool send_before_producer(struct mutant *mutant) {
  struct draft_site site, producer;
  if (!mutant_choose(mutant, SEND, NULL, &site) ||
      !mutant_find_compute(mutant, *draft_at(&mutant->draft, site), &producer)) {
    return false;
  }
  const size_t to = draft_cell_begin(&mutant->draft, producer);
  return mutant_expect_at(mutant, WEFT_RULE_ORDER_SEND, mutant_move_to(mutant, site, to));
}

/* In front of the last backward of its stage. */
static bool before_backward(struct mutant *mutant, enum weft_op op, enum weft_rule rule) {
  struct draft_site site, last = {0}, next;
  if (!mutant_choose(mutant, BIT(op), NULL, &site)) {
    return false;
  }
  const uint32_t stage = draft_at(&mutant->draft, site)->stage;
  bool found = false;
  for (size_t from = 0;
       mutant_find_next(mutant, site.rank, from, BIT(WEFT_OP_B) | BIT(WEFT_OP_W), stage, &next);
       from = next.index + 1) {
    last = next;
    found = true;
  }
  if (!found) {
    return false;
  }
  const size_t to = draft_cell_begin(&mutant->draft, last);
  return mutant_expect_at(mutant, rule, mutant_move_to(mutant, site, to));
}

static bool reduce_early(struct mutant *mutant) {
  return before_backward(mutant, WEFT_OP_REDUCE_GRAD, WEFT_RULE_REDUCE_EARLY);
}
static bool tie_early(struct mutant *mutant) {
  return before_backward(mutant, WEFT_OP_TIE_GRAD, WEFT_RULE_TIE_EARLY);
}

/* Behind the REDUCE_GRAD of its stage. */
static bool tie_after_reduce(struct mutant *mutant) {
  struct draft_site site, reduce;
  if (!mutant_choose(mutant, BIT(WEFT_OP_TIE_GRAD), NULL, &site)) {
    return false;
  }
  const uint32_t stage = draft_at(&mutant->draft, site)->stage;
  return mutant_find_next(mutant, site.rank, site.index, BIT(WEFT_OP_REDUCE_GRAD), stage,
                          &reduce) &&
         mutant_expect_at(mutant, WEFT_RULE_TIE_REDUCED,
                          mutant_move_to(mutant, site, mutant_behind(mutant, reduce)));
}

/* In front of the last compute or transfer of the rank, of whatever stage. */
static bool tie_blocks(struct mutant *mutant) {
  struct draft_site site;
  if (!mutant_choose(mutant, BIT(WEFT_OP_TIE_GRAD), NULL, &site)) {
    return false;
  }
  for (size_t index = site.index; index-- > 0;) {
    struct draft_site last = {site.rank, index};
    const struct weft_action action = *draft_at(&mutant->draft, last);
    if (mutant_op_in(&action, COMPUTE | SEND | RECV)) {
      last.index = draft_cell_begin(&mutant->draft, last);
      const struct weft_action *cell = draft_at(&mutant->draft, last);
      const struct weft_action blocked = *cell;
      (void)mutant_move_to(mutant, site, last.index);
      return blocked.op == WEFT_OP_OVERLAP_F_B ||
             mutant_expect_action(mutant, WEFT_RULE_TIE_BLOCKS, blocked);
    }
  }
  return false;
}

/* What gathers parameters, behind it: compute may wait for that. */
static bool unshard_behind_tie(struct mutant *mutant) {
  struct draft_site site;
  if (!mutant_choose(mutant, BIT(WEFT_OP_TIE_GRAD), NULL, &site)) {
    return false;
  }
  const struct weft_action unshard =
      draft_action(WEFT_OP_UNSHARD, draft_at(&mutant->draft, site)->stage, 0);
  const size_t to = mutant_some_gap(mutant, site.rank, mutant_behind(mutant, site));
  return mutant_expect_at(mutant, WEFT_RULE_TIE_BLOCKS, mutant_put(mutant, site.rank, to, unshard));
}

/* Moves what follows in front of what must come first. */
static bool invert(struct mutant *mutant, uint32_t first_ops, uint32_t second_ops,
                   enum weft_rule rule) {
  struct draft_site site, first;
  if (!mutant_choose(mutant, second_ops, mutant_is_single, &site)) {
    return false;
  }
  const struct weft_action action = *draft_at(&mutant->draft, site);
  for (uint32_t op = WEFT_OP_F; op <= WEFT_OP_W; op++) {
    if ((first_ops & BIT(op)) != 0 &&
        draft_find(&mutant->draft, draft_action((enum weft_op)op, action.stage, action.microbatch),
                   &first)) {
      const size_t to = draft_cell_begin(&mutant->draft, first);
      return mutant_expect_at(mutant, rule, mutant_move_to(mutant, site, to));
    }
  }
  return false;
}

static bool backward_before_forward(struct mutant *mutant) {
  return invert(mutant, BIT(WEFT_OP_F), GRADIENT, WEFT_RULE_ORDER_BACKWARD);
}
static bool weight_before_input(struct mutant *mutant) {
  return invert(mutant, BIT(WEFT_OP_I), BIT(WEFT_OP_W), WEFT_RULE_ORDER_WEIGHT);
}

/* A stage of the same rank that makes an input of the action. */
static bool find_neighbour(const struct mutant *mutant, struct draft_site site, uint32_t *stage) {
  const struct weft_action *action = draft_at(&mutant->draft, site);
  const struct weft_graph *graph = mutant->draft.graph;
  const bool forward = action->op == WEFT_OP_F;
  if (graph == NULL) {
    *stage = forward ? action->stage - 1u : action->stage + 1u;
    return *stage < mutant->stage_count && mutant->rank_of[*stage] == site.rank;
  }
  for (uint32_t e = 0; e < graph->edge_count; e++) {
    const struct weft_edge *edge = &graph->edges[e];
    *stage = forward ? edge->from : edge->to;
    if ((forward ? edge->to : edge->from) == action->stage && (forward || edge->gradient) &&
        mutant->rank_of[*stage] == site.rank) {
      return true;
    }
  }
  return false;
}

static bool has_neighbour(const struct mutant *mutant, struct draft_site site) {
  uint32_t stage;
  return mutant_is_single(mutant, site) && find_neighbour(mutant, site, &stage);
}

static bool before_neighbour(struct mutant *mutant) {
  struct draft_site site, producer;
  uint32_t stage;
  if (!mutant_choose(mutant, BIT(WEFT_OP_F) | GRADIENT, has_neighbour, &site) ||
      !find_neighbour(mutant, site, &stage)) {
    return false;
  }
  struct weft_action source = *draft_at(&mutant->draft, site);
  source.op = source.op == WEFT_OP_F ? WEFT_OP_SEND_F : WEFT_OP_SEND_B;
  source.stage = (uint16_t)stage;
  if (!mutant_find_compute(mutant, source, &producer)) {
    return false;
  }
  const size_t to = draft_cell_begin(&mutant->draft, producer);
  return mutant_expect_at(mutant, WEFT_RULE_ORDER_NEIGHBOUR, mutant_move_to(mutant, site, to));
}

/* RESHARD in front of the last computation that needs the stage, UNSHARD behind
 * the first. */
static bool reshard_early(struct mutant *mutant) {
  struct draft_site site, next, last = {0};
  if (!mutant_choose(mutant, BIT(WEFT_OP_RESHARD), NULL, &site)) {
    return false;
  }
  const uint32_t stage = draft_at(&mutant->draft, site)->stage;
  for (size_t from = 0;
       mutant_find_next(mutant, site.rank, from, COMPUTE, stage, &next) && next.index < site.index;
       from = next.index + 1) {
    last = next;
    last.rank = site.rank;
  }
  const struct weft_action victim = *draft_at(&mutant->draft, last);
  if (victim.stage != stage || !mutant_op_in(&victim, COMPUTE)) {
    return false;
  }
  (void)mutant_move_to(mutant, site, draft_cell_begin(&mutant->draft, last));
  return mutant_expect_action(mutant, WEFT_RULE_SHARD_COMPUTE, victim);
}

static bool unshard_late(struct mutant *mutant) {
  struct draft_site site, first;
  if (!mutant_choose(mutant, BIT(WEFT_OP_UNSHARD), NULL, &site)) {
    return false;
  }
  const uint32_t stage = draft_at(&mutant->draft, site)->stage;
  if (!mutant_find_next(mutant, site.rank, site.index, COMPUTE, stage, &first)) {
    return false;
  }
  const struct weft_action victim = *draft_at(&mutant->draft, first);
  (void)mutant_move_to(mutant, site, mutant_behind(mutant, first));
  return mutant_expect_action(mutant, WEFT_RULE_SHARD_COMPUTE, victim);
}

/* --- Channels ------------------------------------------------------------------------------ */

static bool next_on_edge(const struct mutant *mutant, struct draft_site site,
                         struct draft_site *next) {
  const struct weft_action *action = draft_at(&mutant->draft, site);
  for (size_t from = site.index + 1;
       mutant_find_next(mutant, site.rank, from, BIT(action->op), action->stage, next);
       from = next->index + 1) {
    if (draft_at(&mutant->draft, *next)->skip == action->skip) {
      return true;
    }
  }
  return false;
}

static bool has_next_on_edge(const struct mutant *mutant, struct draft_site site) {
  struct draft_site next;
  return next_on_edge(mutant, site, &next);
}

/* Two transfers of one boundary change places. The receiving side finds out at
 * the first of the two. */
static bool swap_on_edge(struct mutant *mutant, uint32_t ops) {
  struct draft_site first, second;
  if (!mutant_choose(mutant, ops, has_next_on_edge, &first) ||
      !next_on_edge(mutant, first, &second)) {
    return false;
  }
  struct weft_action *row = mutant->draft.rows[first.rank].records;
  const struct weft_action earlier = row[first.index];
  row[first.index] = row[second.index];
  row[second.index] = earlier;
  return mutant_op_in(&earlier, RECV)
             ? mutant_expect_at(mutant, WEFT_RULE_CHANNEL_ORDER, first)
             : mutant_expect_action(mutant, WEFT_RULE_CHANNEL_ORDER, draft_partner(earlier));
}

static bool swap_sends(struct mutant *mutant) { return swap_on_edge(mutant, SEND); }
static bool swap_recvs(struct mutant *mutant) { return swap_on_edge(mutant, RECV); }

/* Two stages of one rank, of which the first feeds the second. */
static bool stages_of_one_rank(const struct mutant *mutant, uint32_t *stage, uint32_t *next) {
  const struct weft_graph *graph = mutant->draft.graph;
  for (uint32_t e = 0; graph != NULL && e < graph->edge_count; e++) {
    *stage = graph->edges[e].from;
    *next = graph->edges[e].to;
    if (mutant->rank_of[*stage] == mutant->rank_of[*next]) {
      return true;
    }
  }
  if (graph != NULL) {
    return false;
  }
  for (*stage = 0; *stage + 1 < mutant->stage_count; ++*stage) {
    *next = *stage + 1;
    if (mutant->rank_of[*stage] == mutant->rank_of[*next]) {
      return true;
    }
  }
  return false;
}

static bool send_to_oneself(struct mutant *mutant) {
  struct draft_site site, any;
  uint32_t stage, next;
  if (!stages_of_one_rank(mutant, &stage, &next) || !mutant_choose(mutant, SEND, NULL, &any) ||
      !draft_find(&mutant->draft, draft_action(WEFT_OP_F, stage, 0), &site)) {
    return false;
  }
  const struct weft_action send = draft_transfer(WEFT_OP_SEND_F, stage, next, 0);
  return mutant_expect_at(mutant, WEFT_RULE_COMM_SELF,
                          mutant_put(mutant, site.rank, mutant_behind(mutant, site), send));
}

/* Off either end of the pipeline. */
static bool transfer_over_the_end(struct mutant *mutant) {
  struct draft_site any;
  const uint32_t last = mutant->stage_count - 1;
  const struct weft_action choices[] = {
      draft_action(WEFT_OP_RECV_F, 0, 0), draft_action(WEFT_OP_SEND_B, 0, 0),
      draft_action(WEFT_OP_SEND_F, last, 0), draft_action(WEFT_OP_RECV_B, last, 0)};
  if (!mutant_choose(mutant, SEND, NULL, &any)) {
    return false;
  }
  const struct weft_action action = choices[weft_random_below(mutant->random, 4)];
  const uint32_t rank = mutant->rank_of[action.stage];
  return mutant_expect_at(mutant, WEFT_RULE_COMM_BOUNDARY,
                          mutant_put(mutant, rank, mutant_some_gap(mutant, rank, 0), action));
}

/* --- Overlaps ------------------------------------------------------------------------------- */

static bool group(struct mutant *mutant, struct draft_site first, uint32_t parts) {
  const struct weft_action header = {.op = WEFT_OP_OVERLAP_F_B, .parts = (uint8_t)parts};
  return mutant_expect_at(mutant, WEFT_RULE_OVERLAP_PARTS,
                          mutant_put(mutant, first.rank, first.index, header));
}

static bool overlap_of_one(struct mutant *mutant) {
  struct draft_site site;
  return mutant_choose(mutant, COMPUTE, mutant_is_single, &site) && group(mutant, site, 1);
}

static const struct weft_action *cell_behind(const struct mutant *mutant, struct draft_site site) {
  const size_t next = mutant_behind(mutant, site);
  return next < mutant->draft.rows[site.rank].count ? &mutant->draft.rows[site.rank].records[next]
                                                    : NULL;
}

static bool starts_odd_pair(const struct mutant *mutant, struct draft_site site) {
  const struct weft_action *a = draft_at(&mutant->draft, site), *b = cell_behind(mutant, site);
  return mutant_is_single(mutant, site) && b != NULL && mutant_op_in(b, COMPUTE) &&
         !(BIT(a->op) + BIT(b->op) == BIT(WEFT_OP_F) + BIT(WEFT_OP_B) && a->stage != b->stage);
}

/* Two neighbours that are not one F and one B of different stages. */
static bool overlap_of_others(struct mutant *mutant) {
  struct draft_site site;
  return mutant_choose(mutant, COMPUTE, starts_odd_pair, &site) && group(mutant, site, 2);
}

static bool is_header(const struct mutant *mutant, struct draft_site site) {
  const struct weft_action *next = cell_behind(mutant, site);
  return next != NULL && mutant_op_in(next, COMPUTE);
}

/* An overlap swallows its neighbour. */
static bool overlap_of_three(struct mutant *mutant) {
  struct draft_site site;
  if (!mutant_choose(mutant, BIT(WEFT_OP_OVERLAP_F_B), is_header, &site)) {
    return false;
  }
  mutant->draft.rows[site.rank].records[site.index].parts++;
  return mutant_expect_at(mutant, WEFT_RULE_OVERLAP_PARTS, site);
}

static bool overlap_part_becomes_i(struct mutant *mutant) {
  struct draft_site site;
  if (!mutant_choose(mutant, BIT(WEFT_OP_OVERLAP_F_B), NULL, &site)) {
    return false;
  }
  struct weft_action *cell = &mutant->draft.rows[site.rank].records[site.index];
  struct weft_action *part = cell[1].op == WEFT_OP_B ? &cell[1] : &cell[2];
  part->op = WEFT_OP_I;
  const struct weft_action missing = *part;
  return mutant_expect_at(mutant, WEFT_RULE_OVERLAP_PARTS, site) &&
         mutant_expect_missing(mutant, WEFT_RULE_COVERAGE_BACKWARD, missing);
}

/* --- The kinds ---------------------------------------------------------------- */

static const struct mutant_kind kinds[] = {
    {"recv_after_consumer", recv_after_consumer, MUTANT_OF_ANY},
    {"send_before_producer", send_before_producer, MUTANT_OF_ANY},
    {"reduce_early", reduce_early, MUTANT_OF_ANY},
    {"tie_early", tie_early, MUTANT_OF_ANY},
    {"tie_after_reduce", tie_after_reduce, MUTANT_OF_ANY},
    {"tie_blocks", tie_blocks, MUTANT_OF_ANY},
    {"unshard_behind_tie", unshard_behind_tie, MUTANT_OF_ANY},
    {"backward_before_forward", backward_before_forward, MUTANT_OF_ANY},
    {"weight_before_input", weight_before_input, MUTANT_OF_ANY},
    {"before_neighbour", before_neighbour, MUTANT_OF_ANY},
    {"reshard_early", reshard_early, MUTANT_OF_ANY},
    {"unshard_late", unshard_late, MUTANT_OF_ANY},
    {"swap_sends", swap_sends, MUTANT_OF_ANY},
    {"swap_recvs", swap_recvs, MUTANT_OF_ANY},
    {"send_to_oneself", send_to_oneself, MUTANT_OF_ANY},
    {"transfer_over_the_end", transfer_over_the_end, MUTANT_OF_ANY},
    {"overlap_of_one", overlap_of_one, MUTANT_OF_ANY},
    {"overlap_of_others", overlap_of_others, MUTANT_OF_ANY},
    {"overlap_of_three", overlap_of_three, MUTANT_OF_ANY},
    {"overlap_part_becomes_i", overlap_part_becomes_i, MUTANT_OF_ANY},
};

const struct mutant_group mutant_group_order = {kinds, sizeof kinds / sizeof kinds[0]};
