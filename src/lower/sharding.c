/* Passes unshard and reduce_grad: what sharded parameters need.
 *
 * unshard gathers the parameters of the stages a rank is about to use, at most
 * `window` of them at once, and drops them when they leave the window. The
 * window before an action is the set of stages that this and the following
 * actions compute on, in order of first use, until `window` different ones are
 * found. As the scan goes on its far end only moves forward, so it is a sliding
 * window with a use count per stage: every action enters once and leaves once,
 * and the cost does not depend on the window. (PyTorch looks ahead anew for
 * each action, which is quadratic when a rank has fewer stages than the
 * window.) What is unsharded is always exactly the window.
 *
 * reduce_grad puts a stage's REDUCE_GRAD directly after its m-th B or W, which
 * is before a RESHARD at the same place: so the two passes can share one scan,
 * and a lowering that does both makes one copy of the program instead of two. */
#include <assert.h>
#include <stdlib.h>

#include <weft/support.h>

#include "ir/program_builder.h"
#include "lower/passes.h"

struct sharding {
  const struct weft_pass_input *input;
  struct weft_program_builder row;
  bool unshards;
  bool reduces;
  uint64_t ahead; /* first record not yet in the window */
  uint64_t row_end;
  uint32_t *uses;    /* [stage] actions of the window that compute on it */
  uint32_t distinct; /* stages with uses > 0 */
  uint16_t *entered; /* stages that entered since the last change, in order of first use */
  uint32_t entered_count;
  uint32_t *backwards; /* [stage] B and W so far */
};

/* ---- The window ---- */

static void enter_window(struct sharding *sharding, struct weft_action action) {
  if (weft_op_in(action.op, WEFT_OPS_COMPUTE) && sharding->uses[action.stage]++ == 0) {
    sharding->entered[sharding->entered_count++] = action.stage;
    sharding->distinct++;
  }
}

/* Moves the far end until enough different stages are in sight. The parts of
 * an overlap enter together. */
static void look_ahead(struct sharding *sharding) {
  const struct weft_action *actions = sharding->input->program->actions;
  uint64_t ahead = sharding->ahead;
  while (sharding->distinct < sharding->input->window && ahead < sharding->row_end) {
    const uint64_t end = ahead + weft_cell_records(&actions[ahead]);
    do {
      enter_window(sharding, actions[ahead]);
    } while (++ahead < end);
  }
  sharding->ahead = ahead;
}

/* Takes a cell out of the window; returns how many stages went out of use. */
static uint32_t leave_window(struct sharding *sharding, const struct weft_action *cell,
                             uint32_t records, uint16_t *left) {
  uint32_t left_count = 0;
  for (uint32_t k = 0; k < records; k++) {
    if (weft_op_in(cell[k].op, WEFT_OPS_COMPUTE) && --sharding->uses[cell[k].stage] == 0) {
      left[left_count++] = cell[k].stage;
      sharding->distinct--;
    }
  }
  return left_count;
}

static int compare_stages(const void *a, const void *b) {
  return (int)*(const uint16_t *)a - (int)*(const uint16_t *)b;
}

/* `left` is what went out of use with the last action. A stage that left and
 * came back in the same move stays unsharded. */
static void put_changes(struct sharding *sharding, uint16_t *left, uint32_t left_count) {
  qsort(left, left_count, sizeof *left, compare_stages);
  for (uint32_t k = 0; k < left_count; k++) {
    if (sharding->uses[left[k]] == 0) {
      weft_program_builder_put(&sharding->row, WEFT_OP_RESHARD, left[k], 0);
    }
  }
  for (uint32_t k = 0; k < sharding->entered_count; k++) {
    bool was_active = false;
    for (uint32_t j = 0; j < left_count; j++) {
      was_active = was_active || left[j] == sharding->entered[k];
    }
    if (!was_active) {
      weft_program_builder_put(&sharding->row, WEFT_OP_UNSHARD, sharding->entered[k], 0);
    }
  }
  sharding->entered_count = 0;
}

/* ---- Gradients ---- */

/* Counts the cell's backwards; true when a stage has all of them now. */
static bool count_backwards(struct sharding *sharding, const struct weft_action *cell,
                            uint32_t records) {
  const uint32_t ends = WEFT_OP_BIT(WEFT_OP_B) | WEFT_OP_BIT(WEFT_OP_W);
  bool complete = false;
  for (uint32_t k = 0; k < records; k++) {
    complete |= weft_op_in(cell[k].op, ends) &&
                ++sharding->backwards[cell[k].stage] == sharding->input->program->microbatch_count;
  }
  return complete;
}

static void put_reductions(struct sharding *sharding, const struct weft_action *cell,
                           uint32_t records) {
  const uint32_t ends = WEFT_OP_BIT(WEFT_OP_B) | WEFT_OP_BIT(WEFT_OP_W);
  for (uint32_t k = 0; k < records; k++) {
    if (weft_op_in(cell[k].op, ends) &&
        sharding->backwards[cell[k].stage] == sharding->input->program->microbatch_count) {
      weft_program_builder_put(&sharding->row, WEFT_OP_REDUCE_GRAD, cell[k].stage, 0);
    }
  }
}

/* ---- The scan ---- */

/* Passes over plain actions after which nothing changes; nearly all are. */
static uint64_t pass_over(struct sharding *sharding, uint64_t i) {
  const struct weft_program *program = sharding->input->program;
  const uint32_t ends = sharding->reduces ? WEFT_OP_BIT(WEFT_OP_B) | WEFT_OP_BIT(WEFT_OP_W) : 0;
  const uint32_t used = sharding->unshards ? 1 : 0;
  for (; i < sharding->row_end; i++) {
    const struct weft_action action = program->actions[i];
    const uint32_t backward = weft_op_in(action.op, ends);
    if (!weft_op_in(action.op, WEFT_OPS_COMPUTE) || sharding->uses[action.stage] == used ||
        sharding->backwards[action.stage] + backward == program->microbatch_count) {
      return i;
    }
    sharding->uses[action.stage] -= used;
    sharding->backwards[action.stage] += backward;
  }
  return i;
}

/* Actions are copied in stretches, from one change to the next. */
static void put_row(struct sharding *sharding, uint32_t rank) {
  const struct weft_program *program = sharding->input->program;
  uint16_t left[UINT8_MAX + 1];
  uint64_t copied = program->row_begin[rank], i = copied;
  sharding->ahead = i;
  sharding->row_end = program->row_begin[rank + 1];
  if (sharding->unshards) {
    look_ahead(sharding);
    put_changes(sharding, left, 0);
  }
  while ((i = pass_over(sharding, i)) < sharding->row_end) {
    const struct weft_action *cell = &program->actions[i];
    const uint32_t records = weft_cell_records(cell);
    if (weft_op_in(cell->op, sharding->input->skip)) {
      weft_program_builder_copy(&sharding->row, &program->actions[copied], i - copied);
      copied = ++i;
      continue;
    }
    i += records;
    const uint32_t left_count =
        sharding->unshards ? leave_window(sharding, cell, records, left) : 0;
    const bool reduce = sharding->reduces && count_backwards(sharding, cell, records);
    if (left_count > 0 || reduce) {
      weft_program_builder_copy(&sharding->row, &program->actions[copied], i - copied);
      copied = i;
      if (reduce) {
        put_reductions(sharding, cell, records);
      }
      if (left_count > 0) {
        look_ahead(sharding);
        put_changes(sharding, left, left_count);
      }
    }
  }
  weft_program_builder_copy(&sharding->row, &program->actions[copied], i - copied);
}

/* Out of line: it keeps its own in registers. */
static __attribute__((noinline)) enum weft_status put_rows(struct sharding *sharding,
                                                           struct weft_program **out,
                                                           struct weft_error *error) {
  const struct weft_program *program = sharding->input->program;
  weft_program_builder_init(&sharding->row, sharding->input->allocator,
                            program->action_count + 3 * (uint64_t)program->stage_count,
                            program->rank_count);
  for (uint32_t r = 0; r < program->rank_count && sharding->row.status == WEFT_OK; r++) {
    put_row(sharding, r);
    weft_program_builder_end_row(&sharding->row);
  }
  const bool changes_level = sharding->unshards && sharding->row.count > 0;
  return weft_program_builder_finish_like(
      &sharding->row, program, changes_level ? WEFT_LEVEL_COMMS : program->level, out, error);
}

static enum weft_status run_pass(const struct weft_pass_input *input, bool unshards, bool reduces,
                                 struct weft_program **out, struct weft_error *error) {
  const uint32_t n = input->program->stage_count;
  WEFT_SCOPED_ARENA arena = {.allocator = input->allocator};
  struct sharding sharding = {
      .input = input,
      .unshards = unshards,
      .reduces = reduces,
      .uses = weft_arena_allocate(&arena, n, sizeof *sharding.uses),
      .entered = weft_arena_allocate(&arena, n, sizeof *sharding.entered),
      .backwards = weft_arena_allocate(&arena, n, sizeof *sharding.backwards)};
  WEFT_TRY(weft_arena_status(&arena, error));
  return put_rows(&sharding, out, error);
}

enum weft_status weft_pass_unshard(const struct weft_pass_input *input, struct weft_program **out,
                                   struct weft_error *error) {
  assert(input->window > 0);
  return run_pass(input, true, false, out, error);
}

enum weft_status weft_pass_reduce_grad(const struct weft_pass_input *input,
                                       struct weft_program **out, struct weft_error *error) {
  return run_pass(input, false, true, out, error);
}

enum weft_status weft_pass_unshard_reduce(const struct weft_pass_input *input,
                                          struct weft_program **out, struct weft_error *error) {
  assert(input->window > 0);
  return run_pass(input, true, true, out, error);
}
