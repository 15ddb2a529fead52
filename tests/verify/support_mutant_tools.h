/* For the files with kinds of mutants: choosing a record, editing the draft, and
 * noting what the verifier must find. */
#ifndef TESTS_SUPPORT_MUTANT_TOOLS_H
#define TESTS_SUPPORT_MUTANT_TOOLS_H

#include "support_mutants.h"

/* Sets of ops. */
#define BIT(op) (1u << (op))
#define COMPUTE (BIT(WEFT_OP_F) | BIT(WEFT_OP_B) | BIT(WEFT_OP_I) | BIT(WEFT_OP_W))
#define GRADIENT (BIT(WEFT_OP_B) | BIT(WEFT_OP_I))
#define SEND (BIT(WEFT_OP_SEND_F) | BIT(WEFT_OP_SEND_B))
#define RECV (BIT(WEFT_OP_RECV_F) | BIT(WEFT_OP_RECV_B))
#define SHARD \
  (BIT(WEFT_OP_UNSHARD) | BIT(WEFT_OP_RESHARD) | BIT(WEFT_OP_REDUCE_GRAD) | BIT(WEFT_OP_TIE_GRAD))
bool mutant_op_in(const struct weft_action *action, uint32_t ops);

/* The kinds of one file. */
struct mutant_group {
  const struct mutant_kind *kinds;
  size_t count;
};
extern const struct mutant_group mutant_group_presence;
extern const struct mutant_group mutant_group_change;
extern const struct mutant_group mutant_group_order;
extern const struct mutant_group mutant_group_edge;

/* --- Choosing ------------------------------------------------------------------- */

/* A test on a record; NULL takes all. */
typedef bool mutant_choice(const struct mutant *mutant, struct draft_site site);

/* Any record of those ops that suits, each as likely as the other. */
bool mutant_choose(struct mutant *mutant, uint32_t ops, mutant_choice *suits,
                   struct draft_site *site);
/* How many there are; the one numbered `wanted` goes to *site. */
uint32_t mutant_count_choices(const struct mutant *mutant, uint32_t ops, mutant_choice *suits,
                              uint32_t wanted, struct draft_site *site);

/* Choices: not part of an overlap; of a stage with so many computations that one
 * more or less leaves no doubt where the stage lives. */
bool mutant_is_single(const struct mutant *mutant, struct draft_site site);
bool mutant_is_of_a_busy_stage(const struct mutant *mutant, struct draft_site site);

uint32_t mutant_other_rank(struct mutant *mutant, uint32_t rank);
uint32_t mutant_count_ops(const struct mutant *mutant, uint32_t ops, uint32_t stage);

/* What makes or consumes its data; the next
 * record of those ops for the stage in the row, from an index on; the last of
 * several equal records. */
bool mutant_find_compute(const struct mutant *mutant, struct weft_action transfer,
                         struct draft_site *site);
bool mutant_find_next(const struct mutant *mutant, uint32_t rank, size_t from, uint32_t ops,
                      uint32_t stage, struct draft_site *site);
struct draft_site mutant_later_of(const struct mutant *mutant, struct weft_action action);

/* --- Editing -------------------------------------------------------------------- */

/* Takes a record out; what remains of an overlap of two becomes a plain cell. */
void mutant_drop(struct mutant *mutant, struct draft_site site);
/* The index behind the cell of the record. */
size_t mutant_behind(const struct mutant *mutant, struct draft_site site);
struct draft_site mutant_put(struct mutant *mutant, uint32_t rank, size_t index,
                             struct weft_action action);
/* A place between cells at or after `from`. */
size_t mutant_some_gap(struct mutant *mutant, uint32_t rank, size_t from);
/* Takes a whole cell out and puts it before what is at `to` in its row;
 * returns where its first record is now. */
struct draft_site mutant_move_to(struct mutant *mutant, struct draft_site site, size_t to);

/* --- Expecting, once the mutation is done: always true -------------------------- */

struct expected *mutant_expect(struct mutant *mutant, enum weft_rule rule,
                               enum expected_place where);
/* At the record; at the one record like `action`; a computation is missing; at
 * the row as a whole. */
bool mutant_expect_at(struct mutant *mutant, enum weft_rule rule, struct draft_site site);
bool mutant_expect_action(struct mutant *mutant, enum weft_rule rule, struct weft_action action);
bool mutant_expect_missing(struct mutant *mutant, enum weft_rule rule, struct weft_action action);
bool mutant_expect_row(struct mutant *mutant, enum weft_rule rule, uint32_t rank);

#endif
