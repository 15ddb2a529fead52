/* The kinds of mutants (support_mutants.h). */
#include "support_mutants.h"

#include <assert.h>
#include <string.h>

/* --- Choosing and expecting -------------------------------------------------- */

#define BIT(op) (1u << (op))
#define COMPUTE (BIT(WEFT_OP_F) | BIT(WEFT_OP_B) | BIT(WEFT_OP_I) | BIT(WEFT_OP_W))
#define GRADIENT (BIT(WEFT_OP_B) | BIT(WEFT_OP_I))
#define SEND (BIT(WEFT_OP_SEND_F) | BIT(WEFT_OP_SEND_B))
#define RECV (BIT(WEFT_OP_RECV_F) | BIT(WEFT_OP_RECV_B))

static bool is(const struct weft_action *action, uint32_t ops) {
  return (BIT(action->op) & ops) != 0;
}

static bool in_overlap(const struct draft *draft, struct draft_site site) {
  return draft_cell_begin(draft, site) != site.index;
}

/* A test on a record, for choosing one. */
typedef bool choice(const struct mutant *mutant, struct draft_site site);

static uint32_t count_choices(const struct mutant *mutant, uint32_t ops, choice *suits,
                              uint32_t wanted, struct draft_site *site) {
  uint32_t count = 0;
  for (uint32_t rank = 0; rank < mutant->draft.rank_count; rank++) {
    for (size_t index = 0; index < mutant->draft.rows[rank].count; index++) {
      const struct draft_site here = {rank, index};
      if (is(draft_at(&mutant->draft, here), ops) && (suits == NULL || suits(mutant, here)) &&
          count++ == wanted) {
        *site = here;
      }
    }
  }
  return count;
}

/* Any record of those ops that suits, each as likely as the other. */
static bool choose(struct mutant *mutant, uint32_t ops, choice *suits, struct draft_site *site) {
  const uint32_t count = count_choices(mutant, ops, suits, UINT32_MAX, site);
  if (count == 0) {
    return false;
  }
  (void)count_choices(mutant, ops, suits, weft_random_below(mutant->random, count), site);
  return true;
}

static bool is_single(const struct mutant *mutant, struct draft_site site) {
  return !in_overlap(&mutant->draft, site);
}

static struct expected *expect(struct mutant *mutant, enum weft_rule rule,
                               enum expected_place where) {
  assert(mutant->expected_count < EXPECTED_MAX);
  struct expected *expected = &mutant->expected[mutant->expected_count++];
  *expected = (struct expected){.rule = rule, .where = where};
  return expected;
}

/* The record at `site`, once the mutation is done. */
static bool expect_at(struct mutant *mutant, enum weft_rule rule, struct draft_site site) {
  struct expected *expected = expect(mutant, rule, AT_RECORD);
  expected->rank = site.rank;
  expected->step = draft_step(&mutant->draft, site);
  expected->action = *draft_at(&mutant->draft, site);
  return true;
}

/* The one record with that op, stage and microbatch. */
static bool expect_action(struct mutant *mutant, enum weft_rule rule, struct weft_action action) {
  struct draft_site site;
  const bool found = draft_find(&mutant->draft, action, &site);
  assert(found);
  return found && expect_at(mutant, rule, site);
}

static bool expect_missing(struct mutant *mutant, enum weft_rule rule, struct weft_action action) {
  struct expected *expected = expect(mutant, rule, AT_PAIR);
  expected->rank = mutant->rank_of[action.stage];
  expected->action = action;
  return true;
}

static bool expect_row(struct mutant *mutant, enum weft_rule rule, uint32_t rank) {
  expect(mutant, rule, AT_ROW_END)->rank = rank;
  return true;
}

bool mutant_matches(const struct expected *expected, const struct weft_finding *finding) {
  const struct weft_place *place = &finding->place;
  const struct weft_action *action = place->action;
  if (finding->rule != expected->rule || finding->message == NULL || finding->message[0] == '\0') {
    return false;
  }
  switch (expected->where) {
    case AT_RECORD:
      return place->rank == expected->rank && place->step == expected->step && action != NULL &&
             memcmp(action, &expected->action, sizeof *action) == 0;
    case AT_PAIR:
      return place->rank == expected->rank &&
             (action == NULL || (is(action, COMPUTE) && action->stage == expected->action.stage &&
                                 action->microbatch == expected->action.microbatch));
    case AT_ROW_END: return place->rank == expected->rank && action == NULL;
    default: return true;
  }
}

/* --- Editing ------------------------------------------------------------------- */

/* Takes a record out; what remains of an overlap of two becomes a plain cell. */
static void drop(struct mutant *mutant, struct draft_site site) {
  const size_t begin = draft_cell_begin(&mutant->draft, site);
  struct weft_action *cell = &mutant->draft.rows[site.rank].records[begin];
  draft_remove(&mutant->draft, site.rank, site.index, 1);
  if (begin != site.index && --cell->parts == 1) {
    draft_remove(&mutant->draft, site.rank, begin, 1);
  }
}

/* The index behind the cell of the record. */
static size_t behind(const struct mutant *mutant, struct draft_site site) {
  const size_t begin = draft_cell_begin(&mutant->draft, site);
  return begin + draft_cell_records(&mutant->draft, site.rank, begin);
}

static struct draft_site put(struct mutant *mutant, uint32_t rank, size_t index,
                             struct weft_action action) {
  draft_insert(&mutant->draft, rank, index, &action, 1);
  return (struct draft_site){rank, index};
}

/* A place between cells at or after `from`. */
static size_t some_gap(struct mutant *mutant, uint32_t rank, size_t from) {
  const struct draft_row *row = &mutant->draft.rows[rank];
  size_t gaps = 1;
  for (size_t at = from; at < row->count; at += 1u + row->records[at].parts) {
    gaps++;
  }
  size_t skip = weft_random_below(mutant->random, (uint32_t)gaps);
  size_t at = from;
  while (skip-- > 0) {
    at += 1u + row->records[at].parts;
  }
  return at;
}

/* Takes a whole cell out and puts it before or behind another cell of the row.
 * Returns where its first record is now. */
static struct draft_site move_to(struct mutant *mutant, struct draft_site site, size_t to) {
  const size_t begin = draft_cell_begin(&mutant->draft, site);
  const size_t size = draft_cell_records(&mutant->draft, site.rank, begin);
  draft_move(&mutant->draft, site.rank, begin, size, to);
  return (struct draft_site){site.rank, to > begin ? to - size : to};
}

static struct weft_action partner(struct weft_action action) {
  switch (action.op) {
    case WEFT_OP_SEND_F: return draft_action(WEFT_OP_RECV_F, action.stage + 1u, action.microbatch);
    case WEFT_OP_RECV_F: return draft_action(WEFT_OP_SEND_F, action.stage - 1u, action.microbatch);
    case WEFT_OP_SEND_B: return draft_action(WEFT_OP_RECV_B, action.stage - 1u, action.microbatch);
    default: return draft_action(WEFT_OP_SEND_B, action.stage + 1u, action.microbatch);
  }
}

/* What consumes a RECV, or makes what a SEND sends. */
static bool find_compute(const struct mutant *mutant, struct weft_action transfer,
                         struct draft_site *site) {
  const bool forward = transfer.op == WEFT_OP_SEND_F || transfer.op == WEFT_OP_RECV_F;
  const enum weft_op ops[] = {forward ? WEFT_OP_F : WEFT_OP_B, WEFT_OP_I};
  for (uint32_t k = 0; k < (forward ? 1u : 2u); k++) {
    if (draft_find(&mutant->draft, draft_action(ops[k], transfer.stage, transfer.microbatch),
                   site)) {
      return true;
    }
  }
  return false;
}

/* The next record of those ops for the stage in the row, from an index on. */
static bool find_next(const struct mutant *mutant, uint32_t rank, size_t from, uint32_t ops,
                      uint32_t stage, struct draft_site *site) {
  for (size_t index = from; index < mutant->draft.rows[rank].count; index++) {
    *site = (struct draft_site){rank, index};
    const struct weft_action *action = draft_at(&mutant->draft, *site);
    if (is(action, ops) && action->stage == stage) {
      return true;
    }
  }
  return false;
}

static uint32_t count_ops(const struct mutant *mutant, uint32_t ops, uint32_t stage) {
  uint32_t count = 0;
  for (uint32_t rank = 0; rank < mutant->draft.rank_count; rank++) {
    for (size_t index = 0; index < mutant->draft.rows[rank].count; index++) {
      const struct weft_action *action = &mutant->draft.rows[rank].records[index];
      count += is(action, ops) && action->stage == stage;
    }
  }
  return count;
}

static uint32_t other_rank(struct mutant *mutant, uint32_t rank) {
  return (rank + 1 + weft_random_below(mutant->random, mutant->draft.rank_count - 1)) %
         mutant->draft.rank_count;
}

/* --- Dropping -------------------------------------------------------------------- */

/* Without the last trace of a microbatch it is another, smaller table. */
static bool is_not_alone(const struct mutant *mutant, struct draft_site site) {
  const uint32_t microbatch = draft_at(&mutant->draft, site)->microbatch;
  for (uint32_t rank = 0; rank < mutant->draft.rank_count; rank++) {
    for (size_t index = 0; index < mutant->draft.rows[rank].count; index++) {
      const struct weft_action *action = &mutant->draft.rows[rank].records[index];
      if (is(action, COMPUTE) && action->microbatch == microbatch &&
          !(rank == site.rank && index == site.index)) {
        return true;
      }
    }
  }
  return false;
}

static bool drop_compute(struct mutant *mutant, enum weft_op op, enum weft_rule rule) {
  struct draft_site site;
  if (!choose(mutant, BIT(op), is_not_alone, &site)) {
    return false;
  }
  const struct weft_action action = *draft_at(&mutant->draft, site);
  drop(mutant, site);
  return expect_missing(mutant, rule, action);
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
  if (!choose(mutant, ops, NULL, &site)) {
    return false;
  }
  const struct weft_action other = partner(*draft_at(&mutant->draft, site));
  drop(mutant, site);
  return expect_action(mutant, rule, other);
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
  if (count_choices(mutant, RECV, NULL, UINT32_MAX, &site) < 2 ||
      !choose(mutant, RECV, NULL, &site)) {
    return false;
  }
  const struct weft_action recv = *draft_at(&mutant->draft, site);
  drop(mutant, site);
  if (!draft_find(&mutant->draft, partner(recv), &other)) {
    return false;
  }
  drop(mutant, other);
  return find_compute(mutant, recv, &consumer) &&
         expect_at(mutant, WEFT_RULE_COMM_MISSING, consumer);
}

static bool drop_unshard(struct mutant *mutant) {
  struct draft_site site, victim, reshard;
  if (!choose(mutant, BIT(WEFT_OP_UNSHARD), NULL, &site)) {
    return false;
  }
  const uint32_t stage = draft_at(&mutant->draft, site)->stage;
  drop(mutant, site);
  return find_next(mutant, site.rank, site.index, COMPUTE, stage, &victim) &&
         find_next(mutant, site.rank, site.index, BIT(WEFT_OP_RESHARD), stage, &reshard) &&
         expect_at(mutant, WEFT_RULE_SHARD_COMPUTE, victim) &&
         expect_at(mutant, WEFT_RULE_SHARD_RESHARD, reshard);
}

/* The stage is unsharded again later, or left so at the end. */
static bool drop_reshard(struct mutant *mutant) {
  struct draft_site site, unshard;
  if (!choose(mutant, BIT(WEFT_OP_RESHARD), NULL, &site)) {
    return false;
  }
  const uint32_t stage = draft_at(&mutant->draft, site)->stage;
  drop(mutant, site);
  return find_next(mutant, site.rank, site.index, BIT(WEFT_OP_UNSHARD), stage, &unshard)
             ? expect_at(mutant, WEFT_RULE_SHARD_UNSHARD, unshard)
             : expect_row(mutant, WEFT_RULE_SHARD_LEFT, site.rank);
}

static bool drop_reduce_grad(struct mutant *mutant) {
  struct draft_site site;
  if (count_choices(mutant, BIT(WEFT_OP_REDUCE_GRAD), NULL, UINT32_MAX, &site) < 2 ||
      !choose(mutant, BIT(WEFT_OP_REDUCE_GRAD), NULL, &site)) {
    return false;
  }
  drop(mutant, site);
  return expect_row(mutant, WEFT_RULE_REDUCE_MISSING, site.rank);
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
      if (is(action, ~(BIT(WEFT_OP_IDLE) | BIT(WEFT_OP_OVERLAP_F_B))) && action->stage == stage) {
        drop(mutant, site);
      }
    }
  }
  expect(mutant, WEFT_RULE_COVERAGE_FORWARD, ANYWHERE);
  return true;
}

static bool drop_everything(struct mutant *mutant) {
  for (uint32_t rank = 0; rank < mutant->draft.rank_count; rank++) {
    for (size_t index = mutant->draft.rows[rank].count; index-- > 0;) {
      const struct weft_action *action = &mutant->draft.rows[rank].records[index];
      if (is(action, COMPUTE | BIT(WEFT_OP_OVERLAP_F_B))) {
        draft_remove(&mutant->draft, rank, index, 1);
      }
    }
  }
  expect(mutant, WEFT_RULE_EMPTY, ANYWHERE);
  return true;
}

/* --- Doubling --------------------------------------------------------------------- */

/* A copy somewhere behind; the copy is the one too many. */
static bool double_op(struct mutant *mutant, uint32_t ops, enum weft_rule rule) {
  struct draft_site site;
  if (!choose(mutant, ops, NULL, &site)) {
    return false;
  }
  const struct weft_action action = *draft_at(&mutant->draft, site);
  const size_t to = some_gap(mutant, site.rank, behind(mutant, site));
  return expect_at(mutant, rule, put(mutant, site.rank, to, action));
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

/* Directly behind: further on it might belong. */
static bool double_shard(struct mutant *mutant, enum weft_op op, enum weft_rule rule) {
  struct draft_site site;
  if (!choose(mutant, BIT(op), NULL, &site)) {
    return false;
  }
  const struct weft_action action = *draft_at(&mutant->draft, site);
  return expect_at(mutant, rule, put(mutant, site.rank, site.index + 1, action));
}

static bool double_unshard(struct mutant *mutant) {
  return double_shard(mutant, WEFT_OP_UNSHARD, WEFT_RULE_SHARD_UNSHARD);
}
static bool double_reshard(struct mutant *mutant) {
  return double_shard(mutant, WEFT_OP_RESHARD, WEFT_RULE_SHARD_RESHARD);
}

/* --- Changing a number -------------------------------------------------------------- */

/* A stage is where most of it is computed: three of four records at least must
 * stay for that to be clear. */
static bool is_of_a_busy_stage(const struct mutant *mutant, struct draft_site site) {
  return count_ops(mutant, COMPUTE, draft_at(&mutant->draft, site)->stage) >= 4;
}

/* Some other rank owns a stage, and all stages are busy. */
static bool stage_elsewhere(struct mutant *mutant, uint32_t rank, uint32_t *stage) {
  const uint32_t first = weft_random_below(mutant->random, mutant->stage_count);
  for (uint32_t k = 0; k < mutant->stage_count; k++) {
    *stage = (first + k) % mutant->stage_count;
    if (mutant->rank_of[*stage] != rank && count_ops(mutant, COMPUTE, *stage) >= 4) {
      return true;
    }
  }
  return false;
}

static bool retarget(struct mutant *mutant, uint32_t ops, enum weft_rule rule) {
  struct draft_site site;
  uint32_t stage;
  if (!choose(mutant, ops, is_of_a_busy_stage, &site) ||
      !stage_elsewhere(mutant, site.rank, &stage)) {
    return false;
  }
  mutant->draft.rows[site.rank].records[site.index].stage = (uint16_t)stage;
  return expect_at(mutant, rule, site);
}

static bool retarget_compute(struct mutant *mutant) {
  return retarget(mutant, COMPUTE, WEFT_RULE_PLACEMENT_SPLIT);
}
static bool retarget_transfer(struct mutant *mutant) {
  return retarget(mutant, SEND | RECV, WEFT_RULE_PLACEMENT_RANK);
}
static bool retarget_shard(struct mutant *mutant) {
  return retarget(mutant, BIT(WEFT_OP_UNSHARD) | BIT(WEFT_OP_RESHARD) | BIT(WEFT_OP_REDUCE_GRAD),
                  WEFT_RULE_PLACEMENT_RANK);
}

static bool retarget_beyond(struct mutant *mutant) {
  static const uint16_t beyond[] = {0, 1, 100, UINT16_MAX};
  struct draft_site site;
  if (!choose(mutant, ~(BIT(WEFT_OP_IDLE) | BIT(WEFT_OP_OVERLAP_F_B)), is_of_a_busy_stage, &site)) {
    return false;
  }
  const uint32_t far = beyond[weft_random_below(mutant->random, 4)];
  mutant->draft.rows[site.rank].records[site.index].stage =
      (uint16_t)(far == UINT16_MAX ? far : mutant->stage_count + far);
  return expect_at(mutant, WEFT_RULE_RANGE_STAGE, site);
}

/* The later of two equal records, ranks counted first. */
static struct draft_site later_of(const struct mutant *mutant, struct weft_action action) {
  struct draft_site last = {0};
  for (uint32_t rank = 0; rank < mutant->draft.rank_count; rank++) {
    for (size_t index = 0; index < mutant->draft.rows[rank].count; index++) {
      if (memcmp(&mutant->draft.rows[rank].records[index], &action, sizeof action) == 0) {
        last = (struct draft_site){rank, index};
      }
    }
  }
  return last;
}

/* Every microbatch occurs often enough for a single wrong number to be told
 * from a microbatch of which something is missing. */
static bool numbers_are_clear(const struct mutant *mutant) {
  uint32_t computations = 0;
  for (uint32_t stage = 0; stage < mutant->stage_count; stage++) {
    computations += count_ops(mutant, COMPUTE, stage);
  }
  return computations / mutant->microbatch_count >= 4;
}

/* Two of a microbatch, and none of another. */
static bool renumber(struct mutant *mutant, uint32_t ops, struct weft_action *old) {
  struct draft_site site;
  if (mutant->microbatch_count < 2 || !numbers_are_clear(mutant) ||
      !choose(mutant, ops, NULL, &site)) {
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
  return doubled && expect_at(mutant, WEFT_RULE_DUPLICATE, later_of(mutant, now));
}

static bool renumber_f(struct mutant *mutant) {
  struct weft_action old;
  return renumber(mutant, BIT(WEFT_OP_F), &old) &&
         expect_missing(mutant, WEFT_RULE_COVERAGE_FORWARD, old);
}
static bool renumber_backward(struct mutant *mutant) {
  struct weft_action old;
  return renumber(mutant, GRADIENT | BIT(WEFT_OP_W), &old) &&
         expect_missing(mutant, WEFT_RULE_COVERAGE_BACKWARD, old);
}
static bool renumber_send(struct mutant *mutant) {
  struct weft_action old;
  return renumber(mutant, SEND, &old) && expect_action(mutant, WEFT_RULE_PAIR_SEND, partner(old));
}
static bool renumber_recv(struct mutant *mutant) {
  struct weft_action old;
  return renumber(mutant, RECV, &old) && expect_action(mutant, WEFT_RULE_PAIR_RECV, partner(old));
}

static bool renumber_beyond(struct mutant *mutant) {
  static const uint32_t beyond[] = {0, 1, 1000, WEFT_MICROBATCHES_MAX - 1};
  struct draft_site site;
  if (!numbers_are_clear(mutant) || !choose(mutant, COMPUTE | SEND | RECV, NULL, &site)) {
    return false;
  }
  const uint32_t far = beyond[weft_random_below(mutant->random, 4)];
  mutant->draft.rows[site.rank].records[site.index].microbatch =
      far == WEFT_MICROBATCHES_MAX - 1 ? far : mutant->microbatch_count + far;
  return expect_at(mutant, WEFT_RULE_RANGE_MICROBATCH, site);
}

/* --- Changing the op ----------------------------------------------------------------- */

static bool change_op(struct mutant *mutant, enum weft_op from, enum weft_op to,
                      enum weft_rule rule) {
  struct draft_site site;
  if (!choose(mutant, BIT(from), is_single, &site)) {
    return false;
  }
  struct weft_action *action = &mutant->draft.rows[site.rank].records[site.index];
  action->op = (uint8_t)to;
  return expect_missing(mutant, rule, *action);
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
  if (!choose(mutant, BIT(WEFT_OP_F), is_single, &site)) {
    return false;
  }
  struct weft_action *action = &mutant->draft.rows[site.rank].records[site.index];
  struct draft_site other;
  const struct weft_action backward = draft_action(WEFT_OP_B, action->stage, action->microbatch);
  if (!draft_find(&mutant->draft, backward, &other)) {
    return false;
  }
  action->op = WEFT_OP_B;
  return expect_at(mutant, WEFT_RULE_DUPLICATE, later_of(mutant, backward)) &&
         expect_missing(mutant, WEFT_RULE_COVERAGE_FORWARD, backward);
}

/* A RECV where the SEND should be: the wrong end of the wire. */
static bool send_becomes_recv(struct mutant *mutant) {
  struct draft_site site;
  if (!choose(mutant, SEND, NULL, &site)) {
    return false;
  }
  struct weft_action *action = &mutant->draft.rows[site.rank].records[site.index];
  const struct weft_action other = partner(*action);
  action->op = action->op == WEFT_OP_SEND_F ? WEFT_OP_RECV_F : WEFT_OP_RECV_B;
  return expect_action(mutant, WEFT_RULE_PAIR_SEND, other);
}

/* --- Moving to another rank ------------------------------------------------------------ */

static bool move_to_rank(struct mutant *mutant, uint32_t ops, choice *suits, enum weft_rule rule) {
  struct draft_site site;
  if (mutant->draft.rank_count < 2 || !choose(mutant, ops, suits, &site)) {
    return false;
  }
  const struct weft_action action = *draft_at(&mutant->draft, site);
  const uint32_t rank = other_rank(mutant, site.rank);
  drop(mutant, site);
  return expect_at(mutant, rule, put(mutant, rank, some_gap(mutant, rank, 0), action));
}

static bool move_compute(struct mutant *mutant) {
  return move_to_rank(mutant, COMPUTE, is_of_a_busy_stage, WEFT_RULE_PLACEMENT_SPLIT);
}
static bool move_transfer(struct mutant *mutant) {
  return move_to_rank(mutant, SEND | RECV, NULL, WEFT_RULE_PLACEMENT_RANK);
}
static bool move_shard(struct mutant *mutant) {
  return move_to_rank(mutant,
                      BIT(WEFT_OP_UNSHARD) | BIT(WEFT_OP_RESHARD) | BIT(WEFT_OP_REDUCE_GRAD), NULL,
                      WEFT_RULE_PLACEMENT_RANK);
}

/* --- Moving on the rank ------------------------------------------------------------------ */

static bool recv_after_consumer(struct mutant *mutant) {
  struct draft_site site, consumer;
  if (!choose(mutant, RECV, NULL, &site)) {
    return false;
  }
  const struct weft_action recv = *draft_at(&mutant->draft, site);
  if (!find_compute(mutant, recv, &consumer)) {
    return false;
  }
  (void)move_to(mutant, site, some_gap(mutant, site.rank, behind(mutant, consumer)));
  return find_compute(mutant, recv, &consumer) &&
         expect_at(mutant, WEFT_RULE_ORDER_RECEIVE, consumer);
}

static bool send_before_producer(struct mutant *mutant) {
  struct draft_site site, producer;
  if (!choose(mutant, SEND, NULL, &site) ||
      !find_compute(mutant, *draft_at(&mutant->draft, site), &producer)) {
    return false;
  }
  const size_t to = draft_cell_begin(&mutant->draft, producer);
  return expect_at(mutant, WEFT_RULE_ORDER_SEND, move_to(mutant, site, to));
}

static bool reduce_early(struct mutant *mutant) {
  struct draft_site site, last = {0}, next;
  if (!choose(mutant, BIT(WEFT_OP_REDUCE_GRAD), NULL, &site)) {
    return false;
  }
  const uint32_t stage = draft_at(&mutant->draft, site)->stage;
  bool found = false;
  for (size_t from = 0;
       find_next(mutant, site.rank, from, BIT(WEFT_OP_B) | BIT(WEFT_OP_W), stage, &next);
       from = next.index + 1) {
    last = next;
    found = true;
  }
  if (!found) {
    return false;
  }
  const size_t to = draft_cell_begin(&mutant->draft, last);
  return expect_at(mutant, WEFT_RULE_REDUCE_EARLY, move_to(mutant, site, to));
}

/* Moves what follows in front of what must come first. */
static bool invert(struct mutant *mutant, uint32_t first_ops, uint32_t second_ops,
                   enum weft_rule rule) {
  struct draft_site site, first;
  if (!choose(mutant, second_ops, is_single, &site)) {
    return false;
  }
  const struct weft_action action = *draft_at(&mutant->draft, site);
  for (uint32_t op = WEFT_OP_F; op <= WEFT_OP_W; op++) {
    if ((first_ops & BIT(op)) != 0 &&
        draft_find(&mutant->draft, draft_action((enum weft_op)op, action.stage, action.microbatch),
                   &first)) {
      const size_t to = draft_cell_begin(&mutant->draft, first);
      return expect_at(mutant, rule, move_to(mutant, site, to));
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

static bool has_neighbour(const struct mutant *mutant, struct draft_site site) {
  const struct weft_action *action = draft_at(&mutant->draft, site);
  const bool forward = action->op == WEFT_OP_F;
  if (forward ? action->stage == 0 : action->stage + 1u == mutant->stage_count) {
    return false;
  }
  return is_single(mutant, site) &&
         mutant->rank_of[forward ? action->stage - 1u : action->stage + 1u] == site.rank;
}

static bool before_neighbour(struct mutant *mutant) {
  struct draft_site site, producer;
  if (!choose(mutant, BIT(WEFT_OP_F) | GRADIENT, has_neighbour, &site)) {
    return false;
  }
  struct weft_action source = *draft_at(&mutant->draft, site);
  const bool forward = source.op == WEFT_OP_F;
  source.op = forward ? WEFT_OP_SEND_F : WEFT_OP_SEND_B;
  source.stage = (uint16_t)(forward ? source.stage - 1u : source.stage + 1u);
  if (!find_compute(mutant, source, &producer)) {
    return false;
  }
  const size_t to = draft_cell_begin(&mutant->draft, producer);
  return expect_at(mutant, WEFT_RULE_ORDER_NEIGHBOUR, move_to(mutant, site, to));
}

/* RESHARD in front of the last computation that needs the stage, UNSHARD behind
 * the first. */
static bool reshard_early(struct mutant *mutant) {
  struct draft_site site, next, last = {0};
  if (!choose(mutant, BIT(WEFT_OP_RESHARD), NULL, &site)) {
    return false;
  }
  const uint32_t stage = draft_at(&mutant->draft, site)->stage;
  for (size_t from = 0;
       find_next(mutant, site.rank, from, COMPUTE, stage, &next) && next.index < site.index;
       from = next.index + 1) {
    last = next;
    last.rank = site.rank;
  }
  const struct weft_action victim = *draft_at(&mutant->draft, last);
  if (victim.stage != stage || !is(&victim, COMPUTE)) {
    return false;
  }
  (void)move_to(mutant, site, draft_cell_begin(&mutant->draft, last));
  return expect_action(mutant, WEFT_RULE_SHARD_COMPUTE, victim);
}

static bool unshard_late(struct mutant *mutant) {
  struct draft_site site, first;
  if (!choose(mutant, BIT(WEFT_OP_UNSHARD), NULL, &site)) {
    return false;
  }
  const uint32_t stage = draft_at(&mutant->draft, site)->stage;
  if (!find_next(mutant, site.rank, site.index, COMPUTE, stage, &first)) {
    return false;
  }
  const struct weft_action victim = *draft_at(&mutant->draft, first);
  (void)move_to(mutant, site, behind(mutant, first));
  return expect_action(mutant, WEFT_RULE_SHARD_COMPUTE, victim);
}

/* --- Channels ------------------------------------------------------------------------------ */

static bool next_on_edge(const struct mutant *mutant, struct draft_site site,
                         struct draft_site *next) {
  const struct weft_action *action = draft_at(&mutant->draft, site);
  return find_next(mutant, site.rank, site.index + 1, BIT(action->op), action->stage, next);
}

static bool has_next_on_edge(const struct mutant *mutant, struct draft_site site) {
  struct draft_site next;
  return next_on_edge(mutant, site, &next);
}

/* Two transfers of one boundary change places. The receiving side finds out at
 * the first of the two. */
static bool swap_on_edge(struct mutant *mutant, uint32_t ops) {
  struct draft_site first, second;
  if (!choose(mutant, ops, has_next_on_edge, &first) || !next_on_edge(mutant, first, &second)) {
    return false;
  }
  struct weft_action *row = mutant->draft.rows[first.rank].records;
  const struct weft_action earlier = row[first.index];
  row[first.index] = row[second.index];
  row[second.index] = earlier;
  return is(&earlier, RECV) ? expect_at(mutant, WEFT_RULE_CHANNEL_ORDER, first)
                            : expect_action(mutant, WEFT_RULE_CHANNEL_ORDER, partner(earlier));
}

static bool swap_sends(struct mutant *mutant) { return swap_on_edge(mutant, SEND); }
static bool swap_recvs(struct mutant *mutant) { return swap_on_edge(mutant, RECV); }

static bool stages_of_one_rank(const struct mutant *mutant, uint32_t *stage) {
  for (*stage = 0; *stage + 1 < mutant->stage_count; ++*stage) {
    if (mutant->rank_of[*stage] == mutant->rank_of[*stage + 1]) {
      return true;
    }
  }
  return false;
}

static bool send_to_oneself(struct mutant *mutant) {
  struct draft_site site, any;
  uint32_t stage;
  if (!stages_of_one_rank(mutant, &stage) || !choose(mutant, SEND, NULL, &any) ||
      !draft_find(&mutant->draft, draft_action(WEFT_OP_F, stage, 0), &site)) {
    return false;
  }
  const struct weft_action send = draft_action(WEFT_OP_SEND_F, stage, 0);
  return expect_at(mutant, WEFT_RULE_COMM_SELF, put(mutant, site.rank, behind(mutant, site), send));
}

/* Off either end of the pipeline. */
static bool transfer_over_the_end(struct mutant *mutant) {
  struct draft_site any;
  const uint32_t last = mutant->stage_count - 1;
  const struct weft_action choices[] = {
      draft_action(WEFT_OP_RECV_F, 0, 0), draft_action(WEFT_OP_SEND_B, 0, 0),
      draft_action(WEFT_OP_SEND_F, last, 0), draft_action(WEFT_OP_RECV_B, last, 0)};
  if (!choose(mutant, SEND, NULL, &any)) {
    return false;
  }
  const struct weft_action action = choices[weft_random_below(mutant->random, 4)];
  const uint32_t rank = mutant->rank_of[action.stage];
  return expect_at(mutant, WEFT_RULE_COMM_BOUNDARY,
                   put(mutant, rank, some_gap(mutant, rank, 0), action));
}

/* --- Overlaps ------------------------------------------------------------------------------- */

static bool group(struct mutant *mutant, struct draft_site first, uint32_t parts) {
  const struct weft_action header = {.op = WEFT_OP_OVERLAP_F_B, .parts = (uint8_t)parts};
  return expect_at(mutant, WEFT_RULE_OVERLAP_PARTS, put(mutant, first.rank, first.index, header));
}

static bool overlap_of_one(struct mutant *mutant) {
  struct draft_site site;
  return choose(mutant, COMPUTE, is_single, &site) && group(mutant, site, 1);
}

static const struct weft_action *cell_behind(const struct mutant *mutant, struct draft_site site) {
  const size_t next = behind(mutant, site);
  return next < mutant->draft.rows[site.rank].count ? &mutant->draft.rows[site.rank].records[next]
                                                    : NULL;
}

static bool starts_odd_pair(const struct mutant *mutant, struct draft_site site) {
  const struct weft_action *a = draft_at(&mutant->draft, site), *b = cell_behind(mutant, site);
  return is_single(mutant, site) && b != NULL && is(b, COMPUTE) &&
         !(BIT(a->op) + BIT(b->op) == BIT(WEFT_OP_F) + BIT(WEFT_OP_B) && a->stage != b->stage);
}

/* Two neighbours that are not one F and one B of different stages. */
static bool overlap_of_others(struct mutant *mutant) {
  struct draft_site site;
  return choose(mutant, COMPUTE, starts_odd_pair, &site) && group(mutant, site, 2);
}

static bool is_header(const struct mutant *mutant, struct draft_site site) {
  const struct weft_action *next = cell_behind(mutant, site);
  return next != NULL && is(next, COMPUTE);
}

/* An overlap swallows its neighbour. */
static bool overlap_of_three(struct mutant *mutant) {
  struct draft_site site;
  if (!choose(mutant, BIT(WEFT_OP_OVERLAP_F_B), is_header, &site)) {
    return false;
  }
  mutant->draft.rows[site.rank].records[site.index].parts++;
  return expect_at(mutant, WEFT_RULE_OVERLAP_PARTS, site);
}

static bool overlap_part_becomes_i(struct mutant *mutant) {
  struct draft_site site;
  if (!choose(mutant, BIT(WEFT_OP_OVERLAP_F_B), NULL, &site)) {
    return false;
  }
  struct weft_action *cell = &mutant->draft.rows[site.rank].records[site.index];
  struct weft_action *part = cell[1].op == WEFT_OP_B ? &cell[1] : &cell[2];
  part->op = WEFT_OP_I;
  const struct weft_action missing = *part;
  return expect_at(mutant, WEFT_RULE_OVERLAP_PARTS, site) &&
         expect_missing(mutant, WEFT_RULE_COVERAGE_BACKWARD, missing);
}

/* --- The table -------------------------------------------------------------------------------- */

#define KIND(name) \
  { #name, name }
static const struct mutant_kind kinds[] = {
    KIND(drop_f),
    KIND(drop_b),
    KIND(drop_i),
    KIND(drop_w),
    KIND(drop_send),
    KIND(drop_recv),
    KIND(drop_send_and_recv),
    KIND(drop_unshard),
    KIND(drop_reshard),
    KIND(drop_reduce_grad),
    KIND(drop_stage),
    KIND(drop_everything),
    KIND(double_f),
    KIND(double_b),
    KIND(double_i),
    KIND(double_w),
    KIND(double_send),
    KIND(double_recv),
    KIND(double_reduce_grad),
    KIND(double_unshard),
    KIND(double_reshard),
    KIND(retarget_compute),
    KIND(retarget_transfer),
    KIND(retarget_shard),
    KIND(retarget_beyond),
    KIND(renumber_f),
    KIND(renumber_backward),
    KIND(renumber_send),
    KIND(renumber_recv),
    KIND(renumber_beyond),
    KIND(b_becomes_i),
    KIND(b_becomes_w),
    KIND(i_becomes_b),
    KIND(w_becomes_b),
    KIND(f_becomes_b),
    KIND(send_becomes_recv),
    KIND(move_compute),
    KIND(move_transfer),
    KIND(move_shard),
    KIND(recv_after_consumer),
    KIND(send_before_producer),
    KIND(reduce_early),
    KIND(backward_before_forward),
    KIND(weight_before_input),
    KIND(before_neighbour),
    KIND(reshard_early),
    KIND(unshard_late),
    KIND(swap_sends),
    KIND(swap_recvs),
    KIND(send_to_oneself),
    KIND(transfer_over_the_end),
    KIND(overlap_of_one),
    KIND(overlap_of_others),
    KIND(overlap_of_three),
    KIND(overlap_part_becomes_i),
};

size_t mutant_kind_count(void) { return sizeof kinds / sizeof kinds[0]; }
const struct mutant_kind *mutant_kind_at(size_t index) { return &kinds[index]; }
