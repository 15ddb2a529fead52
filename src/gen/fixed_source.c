/* The program source for one given table or program. */
#include <assert.h>
#include <inttypes.h>

#include <weft/source.h>
#include <weft/support.h>

#include "ir/program.h"
#include "ir/program_builder.h"

static enum weft_status copy_program(const struct weft_allocator *allocator,
                                     const struct weft_program *program, struct weft_program **out,
                                     struct weft_error *error) {
  struct weft_program_builder rows;
  weft_program_builder_init(&rows, allocator, program->action_count, program->rank_count);
  for (uint32_t r = 0; r < program->rank_count; r++) {
    const uint64_t begin = program->row_begin[r];
    weft_program_builder_copy(&rows, &program->actions[begin], program->row_begin[r + 1] - begin);
    weft_program_builder_end_row(&rows);
  }
  return weft_program_builder_finish_like(&rows, program, program->level, out, error);
}

enum weft_status weft_source_fixed(void *context, uint32_t microbatch_count, bool training,
                                   struct weft_program **out, struct weft_error *error) {
  const struct weft_fixed_source *source = context;
  WEFT_NEED(source, error);
  WEFT_NEED(source->program, error);
  WEFT_NEED(out, error);
  const struct weft_program *program = source->program;
  assert(weft_program_is_sound(program));
  const bool fits = program->microbatch_count == microbatch_count;
  if (!training && (!fits || weft_program_has(program, WEFT_OPS_BACKWARD))) {
    struct weft_lower_options lower =
        source->lower != NULL ? *source->lower : weft_lower_options_default();
    if (program->level == WEFT_LEVEL_COMMS) { /* the program shows whether stages are sharded */
      lower.unshard = weft_program_has(program, WEFT_OP_BIT(WEFT_OP_UNSHARD));
    }
    return weft_source_forward_only(source->allocator, program, microbatch_count, &lower, out,
                                    error);
  }
  if (!fits) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "give a batch of that many microbatches, or use a source for any number "
                     "(weft_source_named)",
                     "the program is for %" PRIu32 " microbatches, and the step has %" PRIu32,
                     program->microbatch_count, microbatch_count);
  }
  if (program->level == WEFT_LEVEL_COMPUTE) {
    return weft_lower(source->allocator, program, source->lower, out, error);
  }
  return copy_program(source->allocator, program, out, error);
}
