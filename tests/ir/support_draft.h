/* A program that can be edited: rows of records that grow. Tests build random
 * programs and mutants in one and turn it into a struct weft_program. */
#ifndef TESTS_SUPPORT_DRAFT_H
#define TESTS_SUPPORT_DRAFT_H

#include <weft/ir.h>

#define DRAFT_RANKS_MAX 64u

struct draft_row {
  struct weft_action *records;
  size_t count;
  size_t capacity;
};

/* Zero-initialise; rows keep their memory between resets. */
struct draft {
  uint32_t rank_count;
  struct weft_graph *graph; /* held; NULL: a chain */
  struct draft_row rows[DRAFT_RANKS_MAX];
};

/* Where a record stands. */
struct draft_site {
  uint32_t rank;
  size_t index;
};

struct weft_action draft_action(enum weft_op op, uint32_t stage, uint32_t microbatch);
/* A SEND or RECV of `stage` whose other end is `other`, and the other end of one. */
struct weft_action draft_transfer(enum weft_op op, uint32_t stage, uint32_t other,
                                  uint32_t microbatch);
uint32_t draft_other(struct weft_action transfer);
struct weft_action draft_partner(struct weft_action transfer);

/* Parts of the cell that begins at a record, and its records. */
static inline uint32_t draft_parts(const struct weft_action *cell) {
  return cell->op == WEFT_OP_OVERLAP_F_B ? cell->parts : 0;
}
static inline uint32_t draft_records(const struct weft_action *cell) {
  return 1u + draft_parts(cell);
}

void draft_reset(struct draft *draft, uint32_t rank_count);
void draft_finish(struct draft *draft);
void draft_append(struct draft *draft, uint32_t rank, struct weft_action action);
void draft_insert(struct draft *draft, uint32_t rank, size_t index,
                  const struct weft_action *records, size_t count);
void draft_remove(struct draft *draft, uint32_t rank, size_t index, size_t count);

/* Takes the `count` records at `from` out and puts them before what stood at
 * `to` in the same row (an index from before the move, outside of what moves). */
void draft_move(struct draft *draft, uint32_t rank, size_t from, size_t count, size_t to);

void draft_copy(struct draft *draft, const struct weft_program *program);
/* Aborts when the program cannot be made: a draft is always well-formed. */
struct weft_program *draft_build(const struct draft *draft);

/* The records of the cell that begins at index; the cell number of a record
 * (a part has the step of its overlap); where the cell of a record begins. */
size_t draft_cell_records(const struct draft *draft, uint32_t rank, size_t index);
uint64_t draft_step(const struct draft *draft, struct draft_site site);
size_t draft_cell_begin(const struct draft *draft, struct draft_site site);

/* Takes hold of a graph, in place of the one before. */
void draft_set_graph(struct draft *draft, const struct weft_graph *graph);

/* First record like `action`, overlap parts included. */
bool draft_find(const struct draft *draft, struct weft_action action, struct draft_site *site);
const struct weft_action *draft_at(const struct draft *draft, struct draft_site site);

#endif
