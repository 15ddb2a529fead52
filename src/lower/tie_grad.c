/* Pass tie_grad: TIE_GRAD of the first and of the last stage, whose weights are
 * shared: each sums its gradient of them with the other's.
 *
 * It is a collective of two ranks, so that it waits for the other one. Therefore
 * it follows all compute of its row, not of its stage alone: then nothing
 * that others wait for can come after it, and it can be part of no deadlock. What
 * is reduced over replicas is the sum, so the stage's REDUCE_GRAD moves behind
 * it; those of other stages that are ready go first, and use the time in which
 * the other rank gets there. */
#include <assert.h>

#include "ir/program_builder.h"
#include "lower/passes.h"

struct tying {
  const struct weft_pass_input *input;
  struct weft_program_builder row;
  bool placed; /* any at all */
};

/* What the pass needs to know about a row. */
struct row_facts {
  uint64_t compute_end; /* one past the records of its last compute */
  bool ties[2];         /* it has backwards of the first and of the last stage */
};

static uint32_t last_stage(const struct tying *tying) {
  return tying->input->program->stage_count - 1u;
}

static void read_action(const struct tying *tying, struct weft_action action,
                        struct row_facts *facts) {
  const uint32_t last = last_stage(tying);
  if (weft_op_in(action.op, WEFT_OPS_BACKWARD)) {
    facts->ties[0] = facts->ties[0] || action.stage == 0;
    facts->ties[1] = facts->ties[1] || (action.stage == last && last > 0);
  }
}

static struct row_facts read_row(const struct tying *tying, uint32_t rank) {
  const struct weft_program *program = tying->input->program;
  struct row_facts facts = {.compute_end = program->row_begin[rank]};
  for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1];) {
    const uint64_t end = i + weft_cell_records(&program->actions[i]);
    if (weft_op_in(program->actions[i].op, WEFT_OPS_COMPUTE_CELL)) {
      facts.compute_end = end;
    }
    for (; i < end; i++) {
      read_action(tying, program->actions[i], &facts);
    }
  }
  return facts;
}

/* Copies cells, and leaves out the REDUCE_GRAD of stages that the row ties. Sets
 * `left_out` for those. */
static void copy_cells(struct tying *tying, const struct row_facts *facts, uint64_t from,
                       uint64_t to, bool left_out[2]) {
  const struct weft_action *actions = tying->input->program->actions;
  while (from < to) {
    const struct weft_action action = actions[from];
    const uint32_t records = weft_cell_records(&actions[from]);
    const unsigned end = action.stage == 0 ? 0 : 1; /* of the pipeline, if it is one */
    const bool tied = facts->ties[end] && (end == 0 || action.stage == last_stage(tying));
    from += records;
    if (weft_op_in(action.op, tying->input->skip)) {
      continue;
    }
    if (action.op == WEFT_OP_REDUCE_GRAD && tied) {
      left_out[end] = true;
    } else {
      weft_program_builder_copy(&tying->row, &actions[from - records], records);
    }
  }
}

/* One past the REDUCE_GRADs that directly follow the last compute. */
static uint64_t ready_end(const struct weft_program *program, uint64_t from, uint64_t end) {
  const uint32_t ready = WEFT_OP_BIT(WEFT_OP_REDUCE_GRAD) | WEFT_OP_BIT(WEFT_OP_IDLE);
  while (from < end && weft_op_in(program->actions[from].op, ready)) {
    from++;
  }
  return from;
}

static void put_row(struct tying *tying, uint32_t rank) {
  const struct weft_program *program = tying->input->program;
  const uint64_t end = program->row_begin[rank + 1];
  const uint32_t stages[2] = {0, last_stage(tying)};
  const struct row_facts facts = read_row(tying, rank);
  const uint64_t index = ready_end(program, facts.compute_end, end);
  bool left_out[2] = {false, false};
  copy_cells(tying, &facts, program->row_begin[rank], index, left_out);
  for (unsigned k = 0; k < 2; k++) {
    if (facts.ties[k]) {
      weft_program_builder_put(&tying->row, WEFT_OP_TIE_GRAD, stages[k], 0);
      tying->placed = true;
    }
  }
  for (unsigned k = 0; k < 2; k++) {
    if (left_out[k]) {
      weft_program_builder_put(&tying->row, WEFT_OP_REDUCE_GRAD, stages[k], 0);
    }
  }
  copy_cells(tying, &(struct row_facts){.ties = {false, false}}, index, end, left_out);
}

enum weft_status weft_pass_tie_grad(const struct weft_pass_input *input, struct weft_program **out,
                                    struct weft_error *error) {
  assert(input->program != NULL && out != NULL);
  const struct weft_program *program = input->program;
  struct tying tying = {.input = input};
  weft_program_builder_init(&tying.row, input->allocator, program->action_count + 2,
                            program->rank_count);
  for (uint32_t r = 0; r < program->rank_count && tying.row.status == WEFT_OK; r++) {
    put_row(&tying, r);
    weft_program_builder_end_row(&tying.row);
  }
  return weft_program_builder_finish_like(
      &tying.row, program, tying.placed ? WEFT_LEVEL_COMMS : program->level, out, error);
}
