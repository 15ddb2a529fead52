/* What kinds of mutants are made with: choosing a record, editing the draft, and
 * noting what must be found (support_mutant_tools.h). */
#include "support_mutant_tools.h"

#include <assert.h>
#include <string.h>

/* --- Choosing and expecting -------------------------------------------------- */

bool mutant_op_in(const struct weft_action *action, uint32_t ops) {
  return (BIT(action->op) & ops) != 0;
}

static bool in_overlap(const struct draft *draft, struct draft_site site) {
  return draft_cell_begin(draft, site) != site.index;
}

uint32_t mutant_count_choices(const struct mutant *mutant, uint32_t ops, mutant_choice *suits,
                              uint32_t wanted, struct draft_site *site) {
  uint32_t count = 0;
  for (uint32_t rank = 0; rank < mutant->draft.rank_count; rank++) {
    for (size_t index = 0; index < mutant->draft.rows[rank].count; index++) {
      const struct draft_site here = {rank, index};
      if (mutant_op_in(draft_at(&mutant->draft, here), ops) &&
          (suits == NULL || suits(mutant, here)) && count++ == wanted) {
        *site = here;
      }
    }
  }
  return count;
}

/* Any record of those ops that suits, each as likely as the other. */
bool mutant_choose(struct mutant *mutant, uint32_t ops, mutant_choice *suits,
                   struct draft_site *site) {
  *site = (struct draft_site){0};
  const uint32_t count = mutant_count_choices(mutant, ops, suits, UINT32_MAX, site);
  if (count == 0) {
    return false;
  }
  (void)mutant_count_choices(mutant, ops, suits, weft_random_below(mutant->random, count), site);
  return true;
}

bool mutant_is_single(const struct mutant *mutant, struct draft_site site) {
  return !in_overlap(&mutant->draft, site);
}

struct expected *mutant_expect(struct mutant *mutant, enum weft_rule rule,
                               enum expected_place where) {
  assert(mutant->expected_count < EXPECTED_MAX);
  struct expected *expected = &mutant->expected[mutant->expected_count++];
  *expected = (struct expected){.rule = rule, .where = where};
  return expected;
}

/* The record at `site`, once the mutation is done. */
bool mutant_expect_at(struct mutant *mutant, enum weft_rule rule, struct draft_site site) {
  struct expected *expected = mutant_expect(mutant, rule, AT_RECORD);
  expected->rank = site.rank;
  expected->step = draft_step(&mutant->draft, site);
  expected->action = *draft_at(&mutant->draft, site);
  return true;
}

/* The one record with that op, stage and microbatch. */
bool mutant_expect_action(struct mutant *mutant, enum weft_rule rule, struct weft_action action) {
  struct draft_site site;
  const bool found = draft_find(&mutant->draft, action, &site);
  assert(found);
  return found && mutant_expect_at(mutant, rule, site);
}

bool mutant_expect_missing(struct mutant *mutant, enum weft_rule rule, struct weft_action action) {
  struct expected *expected = mutant_expect(mutant, rule, AT_PAIR);
  expected->rank = mutant->rank_of[action.stage];
  expected->action = action;
  return true;
}

bool mutant_expect_row(struct mutant *mutant, enum weft_rule rule, uint32_t rank) {
  mutant_expect(mutant, rule, AT_ROW_END)->rank = rank;
  return true;
}

/* --- Editing ------------------------------------------------------------------- */

/* Takes a record out; what remains of an overlap of two becomes a plain cell. */
void mutant_drop(struct mutant *mutant, struct draft_site site) {
  const size_t begin = draft_cell_begin(&mutant->draft, site);
  struct weft_action *cell = &mutant->draft.rows[site.rank].records[begin];
  draft_remove(&mutant->draft, site.rank, site.index, 1);
  if (begin != site.index && --cell->parts == 1) {
    draft_remove(&mutant->draft, site.rank, begin, 1);
  }
}

/* The index behind the cell of the record. */
size_t mutant_behind(const struct mutant *mutant, struct draft_site site) {
  const size_t begin = draft_cell_begin(&mutant->draft, site);
  return begin + draft_cell_records(&mutant->draft, site.rank, begin);
}

struct draft_site mutant_put(struct mutant *mutant, uint32_t rank, size_t index,
                             struct weft_action action) {
  draft_insert(&mutant->draft, rank, index, &action, 1);
  return (struct draft_site){rank, index};
}

/* A place between cells at or after `from`. */
size_t mutant_some_gap(struct mutant *mutant, uint32_t rank, size_t from) {
  const struct draft_row *row = &mutant->draft.rows[rank];
  size_t gaps = 1;
  for (size_t at = from; at < row->count; at += draft_records(&row->records[at])) {
    gaps++;
  }
  size_t skip = weft_random_below(mutant->random, (uint32_t)gaps);
  size_t at = from;
  while (skip-- > 0) {
    at += draft_records(&row->records[at]);
  }
  return at;
}

/* Takes a whole cell out and puts it before or behind another cell of the row.
 * Returns where its first record is now. */
struct draft_site mutant_move_to(struct mutant *mutant, struct draft_site site, size_t to) {
  const size_t begin = draft_cell_begin(&mutant->draft, site);
  const size_t size = draft_cell_records(&mutant->draft, site.rank, begin);
  draft_move(&mutant->draft, site.rank, begin, size, to);
  return (struct draft_site){site.rank, to > begin ? to - size : to};
}

/* What consumes a RECV, or makes what a SEND sends. */
bool mutant_find_compute(const struct mutant *mutant, struct weft_action transfer,
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
bool mutant_find_next(const struct mutant *mutant, uint32_t rank, size_t from, uint32_t ops,
                      uint32_t stage, struct draft_site *site) {
  for (size_t index = from; index < mutant->draft.rows[rank].count; index++) {
    *site = (struct draft_site){rank, index};
    const struct weft_action *action = draft_at(&mutant->draft, *site);
    if (mutant_op_in(action, ops) && action->stage == stage) {
      return true;
    }
  }
  return false;
}

uint32_t mutant_count_ops(const struct mutant *mutant, uint32_t ops, uint32_t stage) {
  uint32_t count = 0;
  for (uint32_t rank = 0; rank < mutant->draft.rank_count; rank++) {
    for (size_t index = 0; index < mutant->draft.rows[rank].count; index++) {
      const struct weft_action *action = &mutant->draft.rows[rank].records[index];
      count += mutant_op_in(action, ops) && action->stage == stage;
    }
  }
  return count;
}

uint32_t mutant_other_rank(struct mutant *mutant, uint32_t rank) {
  return (rank + 1 + weft_random_below(mutant->random, mutant->draft.rank_count - 1)) %
         mutant->draft.rank_count;
}

/* A stage is where most of it is computed: three of four records at least must
 * stay for that to be clear. */
bool mutant_is_of_a_busy_stage(const struct mutant *mutant, struct draft_site site) {
  return mutant_count_ops(mutant, COMPUTE, draft_at(&mutant->draft, site)->stage) >= 4;
}

/* The later of two equal records, ranks counted first. */
struct draft_site mutant_later_of(const struct mutant *mutant, struct weft_action action) {
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
