/* Mutants in which an action has another number, another op or another rank. */
#include "support_mutant_tools.h"

/* --- Changing a number -------------------------------------------------------------- */

/* Some other rank owns a stage, and all stages are busy. */
static bool stage_elsewhere(struct mutant *mutant, uint32_t rank, uint32_t *stage) {
  const uint32_t first = weft_random_below(mutant->random, mutant->stage_count);
  for (uint32_t k = 0; k < mutant->stage_count; k++) {
    *stage = (first + k) % mutant->stage_count;
    if (mutant->rank_of[*stage] != rank && mutant_count_ops(mutant, COMPUTE, *stage) >= 4) {
      return true;
    }
  }
  return false;
}

static bool retarget(struct mutant *mutant, uint32_t ops, enum weft_rule rule) {
  struct draft_site site;
  uint32_t stage;
  if (!mutant_choose(mutant, ops, mutant_is_of_a_busy_stage, &site) ||
      !stage_elsewhere(mutant, site.rank, &stage)) {
    return false;
  }
  mutant->draft.rows[site.rank].records[site.index].stage = (uint16_t)stage;
  return mutant_expect_at(mutant, rule, site);
}

static bool retarget_compute(struct mutant *mutant) {
  return retarget(mutant, COMPUTE, WEFT_RULE_PLACEMENT_SPLIT);
}
static bool retarget_transfer(struct mutant *mutant) {
  return retarget(mutant, SEND | RECV, WEFT_RULE_PLACEMENT_RANK);
}
static bool retarget_shard(struct mutant *mutant) {
  return retarget(mutant, SHARD, WEFT_RULE_PLACEMENT_RANK);
}

/* Another stage of the rank, where that is in the middle. */
static bool retarget_tie(struct mutant *mutant) {
  struct draft_site site;
  if (!mutant_choose(mutant, BIT(WEFT_OP_TIE_GRAD), NULL, &site)) {
    return false;
  }
  for (uint32_t stage = 1; stage + 1 < mutant->stage_count; stage++) {
    if (mutant->rank_of[stage] == site.rank) {
      mutant->draft.rows[site.rank].records[site.index].stage = (uint16_t)stage;
      return mutant_expect_at(mutant, WEFT_RULE_TIE_STAGE, site);
    }
  }
  return false;
}

static bool retarget_beyond(struct mutant *mutant) {
  static const uint16_t beyond[] = {0, 1, 100, UINT16_MAX};
  struct draft_site site;
  if (!mutant_choose(mutant, ~(BIT(WEFT_OP_IDLE) | BIT(WEFT_OP_OVERLAP_F_B)),
                     mutant_is_of_a_busy_stage, &site)) {
    return false;
  }
  const uint32_t far = beyond[weft_random_below(mutant->random, 4)];
  mutant->draft.rows[site.rank].records[site.index].stage =
      (uint16_t)(far == UINT16_MAX ? far : mutant->stage_count + far);
  return mutant_expect_at(mutant, WEFT_RULE_RANGE_STAGE, site);
}

/* Every microbatch occurs often enough for a single wrong number to be told
 * from a microbatch of which something is missing. */
static bool numbers_are_clear(const struct mutant *mutant) {
  uint32_t computations = 0;
  for (uint32_t stage = 0; stage < mutant->stage_count; stage++) {
    computations += mutant_count_ops(mutant, COMPUTE, stage);
  }
  return computations / mutant->microbatch_count >= 4;
}

/* Two of a microbatch, and none of another. */
static bool renumber(struct mutant *mutant, uint32_t ops, struct weft_action *old) {
  struct draft_site site;
  if (mutant->microbatch_count < 2 || !numbers_are_clear(mutant) ||
      !mutant_choose(mutant, ops, NULL, &site)) {
    return false;
  }
  struct weft_action *action = &mutant->draft.rows[site.rank].records[site.index];
  *old = *action;
  action->microbatch =
      (action->microbatch + 1 + weft_random_below(mutant->random, mutant->microbatch_count - 1)) %
      mutant->microbatch_count;
  struct draft_site found;
  /* With mixed backwards the other microbatch may have no such op. */
  const struct weft_action now = *action;
  const struct weft_action saved = *old;
  *action = saved;
  const bool doubled = draft_find(&mutant->draft, now, &found);
  *action = now;
  return doubled && mutant_expect_at(mutant, WEFT_RULE_DUPLICATE, mutant_later_of(mutant, now));
}

static bool renumber_f(struct mutant *mutant) {
  struct weft_action old;
  return renumber(mutant, BIT(WEFT_OP_F), &old) &&
         mutant_expect_missing(mutant, WEFT_RULE_COVERAGE_FORWARD, old);
}
static bool renumber_backward(struct mutant *mutant) {
  struct weft_action old;
  return renumber(mutant, GRADIENT | BIT(WEFT_OP_W), &old) &&
         mutant_expect_missing(mutant, WEFT_RULE_COVERAGE_BACKWARD, old);
}
static bool renumber_send(struct mutant *mutant) {
  struct weft_action old;
  return renumber(mutant, SEND, &old) &&
         mutant_expect_action(mutant, WEFT_RULE_PAIR_SEND, draft_partner(old));
}
static bool renumber_recv(struct mutant *mutant) {
  struct weft_action old;
  return renumber(mutant, RECV, &old) &&
         mutant_expect_action(mutant, WEFT_RULE_PAIR_RECV, draft_partner(old));
}

static bool renumber_beyond(struct mutant *mutant) {
  static const uint32_t beyond[] = {0, 1, 1000, WEFT_MICROBATCHES_MAX - 1};
  struct draft_site site;
  if (!numbers_are_clear(mutant) || !mutant_choose(mutant, COMPUTE | SEND | RECV, NULL, &site)) {
    return false;
  }
  const uint32_t far = beyond[weft_random_below(mutant->random, 4)];
  mutant->draft.rows[site.rank].records[site.index].microbatch =
      far == WEFT_MICROBATCHES_MAX - 1 ? far : mutant->microbatch_count + far;
  return mutant_expect_at(mutant, WEFT_RULE_RANGE_MICROBATCH, site);
}

/* --- Changing the op ----------------------------------------------------------------- */

static bool change_op(struct mutant *mutant, enum weft_op from, enum weft_op to,
                      enum weft_rule rule) {
  struct draft_site site;
  if (!mutant_choose(mutant, BIT(from), mutant_is_single, &site)) {
    return false;
  }
  struct weft_action *action = &mutant->draft.rows[site.rank].records[site.index];
  action->op = (uint8_t)to;
  return mutant_expect_missing(mutant, rule, *action);
}

static bool b_becomes_i(struct mutant *mutant) {
  return change_op(mutant, WEFT_OP_B, WEFT_OP_I, WEFT_RULE_COVERAGE_BACKWARD);
}
static bool b_becomes_w(struct mutant *mutant) {
  return change_op(mutant, WEFT_OP_B, WEFT_OP_W, WEFT_RULE_COVERAGE_BACKWARD);
}
static bool i_becomes_b(struct mutant *mutant) {
  return change_op(mutant, WEFT_OP_I, WEFT_OP_B, WEFT_RULE_COVERAGE_MIXED);
}
static bool w_becomes_b(struct mutant *mutant) {
  return change_op(mutant, WEFT_OP_W, WEFT_OP_B, WEFT_RULE_COVERAGE_MIXED);
}

static bool f_becomes_b(struct mutant *mutant) {
  struct draft_site site;
  if (!mutant_choose(mutant, BIT(WEFT_OP_F), mutant_is_single, &site)) {
    return false;
  }
  struct weft_action *action = &mutant->draft.rows[site.rank].records[site.index];
  struct draft_site other;
  const struct weft_action backward = draft_action(WEFT_OP_B, action->stage, action->microbatch);
  if (!draft_find(&mutant->draft, backward, &other)) {
    return false;
  }
  action->op = WEFT_OP_B;
  return mutant_expect_at(mutant, WEFT_RULE_DUPLICATE, mutant_later_of(mutant, backward)) &&
         mutant_expect_missing(mutant, WEFT_RULE_COVERAGE_FORWARD, backward);
}

/* A RECV where the SEND should be: the wrong end of the wire. */
static bool send_becomes_recv(struct mutant *mutant) {
  struct draft_site site;
  if (!mutant_choose(mutant, SEND, NULL, &site)) {
    return false;
  }
  struct weft_action *action = &mutant->draft.rows[site.rank].records[site.index];
  const struct weft_action other = draft_partner(*action);
  action->op = action->op == WEFT_OP_SEND_F ? WEFT_OP_RECV_F : WEFT_OP_RECV_B;
  return mutant_expect_action(mutant, WEFT_RULE_PAIR_SEND, other);
}

/* --- Moving to another rank ------------------------------------------------------------ */

static bool move_to_rank(struct mutant *mutant, uint32_t ops, mutant_choice *suits,
                         enum weft_rule rule) {
  struct draft_site site;
  if (mutant->draft.rank_count < 2 || !mutant_choose(mutant, ops, suits, &site)) {
    return false;
  }
  const struct weft_action action = *draft_at(&mutant->draft, site);
  const uint32_t rank = mutant_other_rank(mutant, site.rank);
  mutant_drop(mutant, site);
  return mutant_expect_at(mutant, rule,
                          mutant_put(mutant, rank, mutant_some_gap(mutant, rank, 0), action));
}

static bool move_compute(struct mutant *mutant) {
  return move_to_rank(mutant, COMPUTE, mutant_is_of_a_busy_stage, WEFT_RULE_PLACEMENT_SPLIT);
}
static bool move_transfer(struct mutant *mutant) {
  return move_to_rank(mutant, SEND | RECV, NULL, WEFT_RULE_PLACEMENT_RANK);
}
static bool move_shard(struct mutant *mutant) {
  return move_to_rank(mutant, SHARD, NULL, WEFT_RULE_PLACEMENT_RANK);
}

/* --- The kinds ---------------------------------------------------------------- */

static const struct mutant_kind kinds[] = {
    {"retarget_compute", retarget_compute, MUTANT_OF_ANY},
    {"retarget_transfer", retarget_transfer, MUTANT_OF_CHAIN},
    {"retarget_shard", retarget_shard, MUTANT_OF_ANY},
    {"retarget_tie", retarget_tie, MUTANT_OF_ANY},
    {"retarget_beyond", retarget_beyond, MUTANT_OF_CHAIN},
    {"renumber_f", renumber_f, MUTANT_OF_ANY},
    {"renumber_backward", renumber_backward, MUTANT_OF_ANY},
    {"renumber_send", renumber_send, MUTANT_OF_ANY},
    {"renumber_recv", renumber_recv, MUTANT_OF_ANY},
    {"renumber_beyond", renumber_beyond, MUTANT_OF_ANY},
    {"b_becomes_i", b_becomes_i, MUTANT_OF_ANY},
    {"b_becomes_w", b_becomes_w, MUTANT_OF_ANY},
    {"i_becomes_b", i_becomes_b, MUTANT_OF_ANY},
    {"w_becomes_b", w_becomes_b, MUTANT_OF_ANY},
    {"f_becomes_b", f_becomes_b, MUTANT_OF_ANY},
    {"send_becomes_recv", send_becomes_recv, MUTANT_OF_CHAIN},
    {"move_compute", move_compute, MUTANT_OF_ANY},
    {"move_transfer", move_transfer, MUTANT_OF_ANY},
    {"move_shard", move_shard, MUTANT_OF_ANY},
};

const struct mutant_group mutant_group_change = {kinds, sizeof kinds / sizeof kinds[0]};
