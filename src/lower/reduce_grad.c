/* Pass reduce_grad: directly after the m-th B or W of a stage, its
 * REDUCE_GRAD. Parts of an overlap count; the action comes after the whole
 * overlap. */
#include <string.h>

#include "base/fail.h"
#include "base/memory.h"
#include "ir/program_builder.h"
#include "lower/passes.h"

static void put_row(const struct weft_pass_input *input, uint32_t rank, uint32_t *done,
                    struct weft_program_builder *row) {
  const struct weft_program *program = input->program;
  const uint32_t ends = WEFT_OP_BIT(WEFT_OP_B) | WEFT_OP_BIT(WEFT_OP_W);
  for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1];) {
    const struct weft_action *cell = &program->actions[i];
    const uint32_t records = weft_cell_records(cell);
    i += records;
    if (weft_op_in(cell->op, input->skip)) {
      continue;
    }
    for (uint32_t k = 0; k < records; k++) {
      weft_program_builder_add(row, cell[k]);
    }
    for (uint32_t k = 0; k < records; k++) {
      if (weft_op_in(cell[k].op, ends) &&
          ++done[cell[k].stage] == program->microbatch_count) {
        weft_program_builder_put(row, WEFT_OP_REDUCE_GRAD, cell[k].stage, 0);
      }
    }
  }
}

enum weft_status weft_pass_reduce_grad(const struct weft_pass_input *input,
                                       struct weft_program **out, struct weft_error *error) {
  const struct weft_program *program = input->program;
  const uint32_t n = program->stage_count;
  uint32_t *done = weft_array_allocate_zero(input->allocator, n, sizeof *done);
  struct weft_program_builder builder;
  if (done == NULL) {
    return weft_fail_memory(error, n * sizeof *done);
  }
  weft_program_builder_init(&builder, input->allocator, program->action_count + n,
                            program->rank_count);
  for (uint32_t r = 0; r < program->rank_count && builder.status == WEFT_OK; r++) {
    put_row(input, r, done, &builder);
    weft_program_builder_end_row(&builder);
  }
  weft_array_free(input->allocator, done, n, sizeof *done);
  return weft_program_builder_finish(&builder, out, error);
}
