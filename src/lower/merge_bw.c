/* Pass merge_bw: an I directly followed, bubbles aside, by the W of the same
 * stage and microbatch becomes one B. Also the plain strip, which only leaves
 * out what it is told to. */
#include <assert.h>

#include "ir/program_builder.h"
#include "lower/passes.h"

static bool completes(struct weft_action input, struct weft_action weight) {
  return input.op == WEFT_OP_I && weight.op == WEFT_OP_W && input.stage == weight.stage &&
         input.microbatch == weight.microbatch;
}

/* Copies a row. `merge` turns an I whose W comes next into a B. `barrier` is
 * the first record that may be merged: parts of an overlap may not. */
static void copy_row(const struct weft_pass_input *input, uint32_t rank, bool merge,
                     struct weft_program_builder *row) {
  const struct weft_program *program = input->program;
  assert(rank < program->rank_count);
  uint64_t barrier = row->count;
  for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1];) {
    const struct weft_action action = program->actions[i];
    const uint32_t records = weft_cell_records(&program->actions[i]);
    if (weft_op_in(action.op, input->skip)) {
      i += records;
      continue;
    }
    if (merge && row->count > barrier && completes(row->actions[row->count - 1], action)) {
      row->actions[row->count - 1].op = WEFT_OP_B;
      i++;
      continue;
    }
    for (uint32_t k = 0; k < records; k++) {
      weft_program_builder_add(row, program->actions[i + k]);
    }
    i += records;
    barrier = records > 1 ? row->count : barrier;
  }
}

static enum weft_status copy_rows(const struct weft_pass_input *input, bool merge,
                                  struct weft_program **out, struct weft_error *error) {
  struct weft_program_builder builder;
  weft_program_builder_init(&builder, input->allocator, input->program->action_count,
                            input->program->rank_count);
  for (uint32_t r = 0; r < input->program->rank_count && builder.status == WEFT_OK; r++) {
    copy_row(input, r, merge, &builder);
    weft_program_builder_end_row(&builder);
  }
  return weft_program_builder_finish_like(&builder, input->program, input->program->level, out,
                                          error);
}

enum weft_status weft_pass_merge_bw(const struct weft_pass_input *input, struct weft_program **out,
                                    struct weft_error *error) {
  assert(input->program != NULL && out != NULL);
  return copy_rows(input, true, out, error);
}

enum weft_status weft_pass_strip(const struct weft_pass_input *input, struct weft_program **out,
                                 struct weft_error *error) {
  assert(input->program != NULL && out != NULL);
  return copy_rows(input, false, out, error);
}
