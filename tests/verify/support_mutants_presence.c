/* Mutants in which something is missing, or there twice. */
#include "support_mutant_tools.h"

/* --- Dropping -------------------------------------------------------------------- */

/* Without the last trace of a microbatch it is another, smaller table. */
static bool is_not_alone(const struct mutant *mutant, struct draft_site site) {
  const uint32_t microbatch = draft_at(&mutant->draft, site)->microbatch;
  for (uint32_t rank = 0; rank < mutant->draft.rank_count; rank++) {
    for (size_t index = 0; index < mutant->draft.rows[rank].count; index++) {
      const struct weft_action *action = &mutant->draft.rows[rank].records[index];
      if (mutant_op_in(action, COMPUTE) && action->microbatch == microbatch &&
          !(rank == site.rank && index == site.index)) {
        return true;
      }
    }
  }
  return false;
}

static bool drop_compute(struct mutant *mutant, enum weft_op op, enum weft_rule rule) {
  struct draft_site site;
  if (!mutant_choose(mutant, BIT(op), is_not_alone, &site)) {
    return false;
  }
  const struct weft_action action = *draft_at(&mutant->draft, site);
  mutant_drop(mutant, site);
  return mutant_expect_missing(mutant, rule, action);
}

static bool drop_f(struct mutant *mutant) {
  return drop_compute(mutant, WEFT_OP_F, WEFT_RULE_COVERAGE_FORWARD);
}
static bool drop_b(struct mutant *mutant) {
  return drop_compute(mutant, WEFT_OP_B, WEFT_RULE_COVERAGE_BACKWARD);
}
static bool drop_i(struct mutant *mutant) {
  return drop_compute(mutant, WEFT_OP_I, WEFT_RULE_COVERAGE_BACKWARD);
}
static bool drop_w(struct mutant *mutant) {
  return drop_compute(mutant, WEFT_OP_W, WEFT_RULE_COVERAGE_BACKWARD);
}

static bool drop_transfer(struct mutant *mutant, uint32_t ops, enum weft_rule rule) {
  struct draft_site site;
  if (!mutant_choose(mutant, ops, NULL, &site)) {
    return false;
  }
  const struct weft_action other = draft_partner(*draft_at(&mutant->draft, site));
  mutant_drop(mutant, site);
  return mutant_expect_action(mutant, rule, other);
}

static bool drop_send(struct mutant *mutant) {
  return drop_transfer(mutant, SEND, WEFT_RULE_PAIR_SEND);
}
static bool drop_recv(struct mutant *mutant) {
  return drop_transfer(mutant, RECV, WEFT_RULE_PAIR_RECV);
}

/* Needs another transfer to be left, or it would be a table. */
static bool drop_send_and_recv(struct mutant *mutant) {
  struct draft_site site, other, consumer;
  if (mutant_count_choices(mutant, RECV, NULL, UINT32_MAX, &site) < 2 ||
      !mutant_choose(mutant, RECV, NULL, &site)) {
    return false;
  }
  const struct weft_action recv = *draft_at(&mutant->draft, site);
  mutant_drop(mutant, site);
  if (!draft_find(&mutant->draft, draft_partner(recv), &other)) {
    return false;
  }
  mutant_drop(mutant, other);
  return mutant_find_compute(mutant, recv, &consumer) &&
         mutant_expect_at(mutant, WEFT_RULE_COMM_MISSING, consumer);
}

static bool drop_unshard(struct mutant *mutant) {
  struct draft_site site, victim, reshard;
  if (!mutant_choose(mutant, BIT(WEFT_OP_UNSHARD), NULL, &site)) {
    return false;
  }
  const uint32_t stage = draft_at(&mutant->draft, site)->stage;
  mutant_drop(mutant, site);
  return mutant_find_next(mutant, site.rank, site.index, COMPUTE, stage, &victim) &&
         mutant_find_next(mutant, site.rank, site.index, BIT(WEFT_OP_RESHARD), stage, &reshard) &&
         mutant_expect_at(mutant, WEFT_RULE_SHARD_COMPUTE, victim) &&
         mutant_expect_at(mutant, WEFT_RULE_SHARD_RESHARD, reshard);
}

/* The stage is unsharded again later, or left so at the end. */
static bool drop_reshard(struct mutant *mutant) {
  struct draft_site site, unshard;
  if (!mutant_choose(mutant, BIT(WEFT_OP_RESHARD), NULL, &site)) {
    return false;
  }
  const uint32_t stage = draft_at(&mutant->draft, site)->stage;
  mutant_drop(mutant, site);
  return mutant_find_next(mutant, site.rank, site.index, BIT(WEFT_OP_UNSHARD), stage, &unshard)
             ? mutant_expect_at(mutant, WEFT_RULE_SHARD_UNSHARD, unshard)
             : mutant_expect_row(mutant, WEFT_RULE_SHARD_LEFT, site.rank);
}

static bool drop_reduce_grad(struct mutant *mutant) {
  struct draft_site site;
  if (mutant_count_choices(mutant, BIT(WEFT_OP_REDUCE_GRAD), NULL, UINT32_MAX, &site) < 2 ||
      !mutant_choose(mutant, BIT(WEFT_OP_REDUCE_GRAD), NULL, &site)) {
    return false;
  }
  mutant_drop(mutant, site);
  return mutant_expect_row(mutant, WEFT_RULE_REDUCE_MISSING, site.rank);
}

/* The other one has nobody to meet then. */
static bool drop_tie_grad(struct mutant *mutant) {
  struct draft_site site;
  if (mutant_count_choices(mutant, BIT(WEFT_OP_TIE_GRAD), NULL, UINT32_MAX, &site) < 2 ||
      !mutant_choose(mutant, BIT(WEFT_OP_TIE_GRAD), NULL, &site)) {
    return false;
  }
  mutant_drop(mutant, site);
  return mutant_expect_row(mutant, WEFT_RULE_TIE_MISSING, site.rank);
}

/* All of a stage in the middle, so that its number stays within the pipeline. */
static bool drop_stage(struct mutant *mutant) {
  if (mutant->stage_count < 3) {
    return false;
  }
  const uint32_t stage = 1 + weft_random_below(mutant->random, mutant->stage_count - 2);
  for (uint32_t rank = 0; rank < mutant->draft.rank_count; rank++) {
    for (size_t index = mutant->draft.rows[rank].count; index-- > 0;) {
      const struct draft_site site = {rank, index};
      const struct weft_action *action = draft_at(&mutant->draft, site);
      if (mutant_op_in(action, ~(BIT(WEFT_OP_IDLE) | BIT(WEFT_OP_OVERLAP_F_B))) &&
          action->stage == stage) {
        mutant_drop(mutant, site);
      }
    }
  }
  mutant_expect(mutant, WEFT_RULE_COVERAGE_FORWARD, ANYWHERE);
  return true;
}

static bool drop_everything(struct mutant *mutant) {
  for (uint32_t rank = 0; rank < mutant->draft.rank_count; rank++) {
    for (size_t index = mutant->draft.rows[rank].count; index-- > 0;) {
      const struct weft_action *action = &mutant->draft.rows[rank].records[index];
      if (mutant_op_in(action, COMPUTE | BIT(WEFT_OP_OVERLAP_F_B))) {
        draft_remove(&mutant->draft, rank, index, 1);
      }
    }
  }
  mutant_expect(mutant, WEFT_RULE_EMPTY, ANYWHERE);
  return true;
}

/* --- Doubling --------------------------------------------------------------------- */

/* A copy somewhere behind; the copy is the one too many. */
static bool double_op(struct mutant *mutant, uint32_t ops, enum weft_rule rule) {
  struct draft_site site;
  if (!mutant_choose(mutant, ops, NULL, &site)) {
    return false;
  }
  const struct weft_action action = *draft_at(&mutant->draft, site);
  const size_t to = mutant_some_gap(mutant, site.rank, mutant_behind(mutant, site));
  return mutant_expect_at(mutant, rule, mutant_put(mutant, site.rank, to, action));
}

static bool double_f(struct mutant *mutant) {
  return double_op(mutant, BIT(WEFT_OP_F), WEFT_RULE_DUPLICATE);
}
static bool double_b(struct mutant *mutant) {
  return double_op(mutant, BIT(WEFT_OP_B), WEFT_RULE_DUPLICATE);
}
static bool double_i(struct mutant *mutant) {
  return double_op(mutant, BIT(WEFT_OP_I), WEFT_RULE_DUPLICATE);
}
static bool double_w(struct mutant *mutant) {
  return double_op(mutant, BIT(WEFT_OP_W), WEFT_RULE_DUPLICATE);
}
static bool double_send(struct mutant *mutant) {
  return double_op(mutant, SEND, WEFT_RULE_DUPLICATE);
}
static bool double_recv(struct mutant *mutant) {
  return double_op(mutant, RECV, WEFT_RULE_DUPLICATE);
}
static bool double_reduce_grad(struct mutant *mutant) {
  return double_op(mutant, BIT(WEFT_OP_REDUCE_GRAD), WEFT_RULE_DUPLICATE);
}

static bool double_tie_grad(struct mutant *mutant) {
  return double_op(mutant, BIT(WEFT_OP_TIE_GRAD), WEFT_RULE_DUPLICATE);
}

/* Directly behind: further on it might belong. */
static bool double_shard(struct mutant *mutant, enum weft_op op, enum weft_rule rule) {
  struct draft_site site;
  if (!mutant_choose(mutant, BIT(op), NULL, &site)) {
    return false;
  }
  const struct weft_action action = *draft_at(&mutant->draft, site);
  return mutant_expect_at(mutant, rule, mutant_put(mutant, site.rank, site.index + 1, action));
}

static bool double_unshard(struct mutant *mutant) {
  return double_shard(mutant, WEFT_OP_UNSHARD, WEFT_RULE_SHARD_UNSHARD);
}
static bool double_reshard(struct mutant *mutant) {
  return double_shard(mutant, WEFT_OP_RESHARD, WEFT_RULE_SHARD_RESHARD);
}

/* --- The kinds ---------------------------------------------------------------- */

static const struct mutant_kind kinds[] = {
    {"drop_f", drop_f, MUTANT_OF_ANY},
    {"drop_b", drop_b, MUTANT_OF_ANY},
    {"drop_i", drop_i, MUTANT_OF_ANY},
    {"drop_w", drop_w, MUTANT_OF_ANY},
    {"drop_send", drop_send, MUTANT_OF_ANY},
    {"drop_recv", drop_recv, MUTANT_OF_ANY},
    {"drop_send_and_recv", drop_send_and_recv, MUTANT_OF_ANY},
    {"drop_unshard", drop_unshard, MUTANT_OF_ANY},
    {"drop_reshard", drop_reshard, MUTANT_OF_ANY},
    {"drop_reduce_grad", drop_reduce_grad, MUTANT_OF_ANY},
    {"drop_tie_grad", drop_tie_grad, MUTANT_OF_ANY},
    {"drop_stage", drop_stage, MUTANT_OF_ANY},
    {"drop_everything", drop_everything, MUTANT_OF_ANY},
    {"double_f", double_f, MUTANT_OF_ANY},
    {"double_b", double_b, MUTANT_OF_ANY},
    {"double_i", double_i, MUTANT_OF_ANY},
    {"double_w", double_w, MUTANT_OF_ANY},
    {"double_send", double_send, MUTANT_OF_ANY},
    {"double_recv", double_recv, MUTANT_OF_ANY},
    {"double_reduce_grad", double_reduce_grad, MUTANT_OF_ANY},
    {"double_tie_grad", double_tie_grad, MUTANT_OF_ANY},
    {"double_unshard", double_unshard, MUTANT_OF_ANY},
    {"double_reshard", double_reshard, MUTANT_OF_ANY},
};

const struct mutant_group mutant_group_presence = {kinds, sizeof kinds / sizeof kinds[0]};
