/* Pass unshard: gathers the parameters of the stages a rank is about to use,
 * at most `window` of them at once, and drops them when they leave the window.
 *
 * The window before an action is the set of stages that this and the following
 * actions compute on, in order of first use, until `window` different ones are
 * found. As the walk goes on its far end only moves forward, so it is a sliding
 * window with a use count per stage: every action enters once and leaves once,
 * and the cost does not depend on the window. (PyTorch looks ahead anew for
 * each action, which is quadratic when a rank has fewer stages than the
 * window.) What is unsharded is always exactly the window. */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/memory.h"
#include "ir/program_builder.h"
#include "lower/passes.h"

struct window {
  const struct weft_pass_input *input;
  uint64_t ahead;     /* first record not yet in the window */
  uint64_t row_end;
  uint32_t *uses;     /* [stage] actions of the window that compute on it */
  uint32_t distinct;  /* stages with uses > 0 */
  uint16_t *entered;  /* stages that entered since the last action, in order of first use */
  uint32_t entered_count;
};

static void enter(struct window *window, struct weft_action action) {
  if (!weft_op_in(action.op, WEFT_OPS_COMPUTE)) {
    return;
  }
  if (window->uses[action.stage]++ == 0) {
    window->entered[window->entered_count++] = action.stage;
    window->distinct++;
  }
}

/* Moves the far end until enough different stages are in sight. The parts of
 * an overlap enter together. */
static void look_ahead(struct window *window) {
  const struct weft_action *actions = window->input->program->actions;
  while (window->distinct < window->input->window && window->ahead < window->row_end) {
    const uint32_t records = weft_cell_records(&actions[window->ahead]);
    for (uint32_t k = 0; k < records; k++) {
      enter(window, actions[window->ahead + k]);
    }
    window->ahead += records;
  }
}

static int compare_stages(const void *a, const void *b) {
  return (int)*(const uint16_t *)a - (int)*(const uint16_t *)b;
}

/* `left` is what went out of use with the last action. A stage that left and
 * came back in the same move stays unsharded. */
static void put_changes(struct window *window, uint16_t *left, uint32_t left_count,
                        struct weft_program_builder *row) {
  qsort(left, left_count, sizeof *left, compare_stages);
  for (uint32_t k = 0; k < left_count; k++) {
    if (window->uses[left[k]] == 0) {
      weft_program_builder_put(row, WEFT_OP_RESHARD, left[k], 0);
    }
  }
  for (uint32_t k = 0; k < window->entered_count; k++) {
    bool was_active = false;
    for (uint32_t j = 0; j < left_count; j++) {
      was_active = was_active || left[j] == window->entered[k];
    }
    if (!was_active) {
      weft_program_builder_put(row, WEFT_OP_UNSHARD, window->entered[k], 0);
    }
  }
  window->entered_count = 0;
}

/* Takes a cell out of the window; returns how many stages went out of use. */
static uint32_t leave(struct window *window, const struct weft_action *cell, uint32_t records,
                      uint16_t *left) {
  uint32_t left_count = 0;
  for (uint32_t k = 0; k < records; k++) {
    if (weft_op_in(cell[k].op, WEFT_OPS_COMPUTE) && --window->uses[cell[k].stage] == 0) {
      left[left_count++] = cell[k].stage;
      window->distinct--;
    }
  }
  return left_count;
}

static void put_row(struct window *window, uint32_t rank, struct weft_program_builder *row) {
  const struct weft_program *program = window->input->program;
  uint16_t left[UINT8_MAX + 1];
  window->ahead = program->row_begin[rank];
  window->row_end = program->row_begin[rank + 1];
  look_ahead(window);
  put_changes(window, left, 0, row);
  for (uint64_t i = program->row_begin[rank]; i < window->row_end;) {
    const struct weft_action *cell = &program->actions[i];
    const uint32_t records = weft_cell_records(cell);
    i += records;
    if (weft_op_in(cell->op, window->input->skip)) {
      continue;
    }
    for (uint32_t k = 0; k < records; k++) {
      weft_program_builder_add(row, cell[k]);
    }
    const uint32_t left_count = leave(window, cell, records, left);
    if (left_count > 0) {
      look_ahead(window);
      put_changes(window, left, left_count, row);
    }
  }
}

enum weft_status weft_pass_unshard(const struct weft_pass_input *input, struct weft_program **out,
                                   struct weft_error *error) {
  const struct weft_program *program = input->program;
  const uint32_t n = program->stage_count;
  struct window window = {
      .input = input,
      .uses = weft_array_allocate_zero(input->allocator, n, sizeof *window.uses),
      .entered = weft_array_allocate(input->allocator, n, sizeof *window.entered)};
  struct weft_program_builder builder;
  enum weft_status status;
  if (window.uses == NULL || window.entered == NULL) {
    status = weft_fail_memory(error, n * sizeof *window.uses);
    goto free_window;
  }
  weft_program_builder_init(&builder, input->allocator, program->action_count + 2 * (uint64_t)n,
                            program->rank_count);
  for (uint32_t r = 0; r < program->rank_count && builder.status == WEFT_OK; r++) {
    put_row(&window, r, &builder);
    weft_program_builder_end_row(&builder);
  }
  status = weft_program_builder_finish(&builder, out, error);
free_window:
  weft_array_free(input->allocator, window.uses, n, sizeof *window.uses);
  weft_array_free(input->allocator, window.entered, n, sizeof *window.entered);
  return status;
}
