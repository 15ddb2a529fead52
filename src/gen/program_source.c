/* The program sources for a named schedule, and for one given table or program. */

#include <assert.h>
#include <inttypes.h>

#include <weft/source.h>
#include <weft/support.h>

#include "ir/program.h"
#include "ir/program_builder.h"

WEFT_SCOPED_TYPE(weft_program)

/* A table with the placement of the schedule, for the forward-only program. It has one microbatch:
 * the schedule itself may not support the number of microbatches of an evaluation. */
static enum weft_status make_placement(const struct weft_named_source *source,
                                       const struct weft_shape *shape, struct weft_program **out,
                                       struct weft_error *error) {
  const struct weft_schedule_info *info = weft_schedule_find(source->schedule, error);
  struct weft_shape one = *shape;
  if (info == NULL) {
    return WEFT_ERR_USAGE;
  }
  if (one.stages_per_rank == 0) {
    one.stages_per_rank = info->stages_per_rank_default;
  }
  if (info->fixed || one.stages_per_rank < info->stages_per_rank_min ||
      one.stages_per_rank > info->stages_per_rank_max) { /* it reports the error */
    return weft_generate(source->allocator, source->schedule, shape, out, error);
  }
  one.microbatches = 1;
  one.placement = info->placement;
  return weft_generate(source->allocator, "ForwardOnly", &one, out, error);
}

/* For the forward-only program of one: the program shows whether stages are sharded. */
static struct weft_lower_options forward_options(const struct weft_lower_options *lower,
                                                 const struct weft_program *program) {
  struct weft_lower_options options = lower != NULL ? *lower : weft_lower_options_default();
  if (program->level == WEFT_LEVEL_COMMS) {
    options.unshard = weft_program_has(program, WEFT_OP_BIT(WEFT_OP_UNSHARD));
  }
  return options;
}

enum weft_status weft_source_named(void *context, uint32_t microbatch_count, bool training,
                                   struct weft_program **out, struct weft_error *error) {
  const struct weft_named_source *source = context;
  WEFT_NEED(source, error);
  WEFT_NEED(source->schedule, error);
  WEFT_NEED(out, error);
  const struct weft_shape shape = {.ranks = source->ranks,
                                   .stages_per_rank = source->stages_per_rank,
                                   .microbatches = microbatch_count,
                                   .graph = source->graph};
  WEFT_SCOPED(weft_program) table = NULL;
  WEFT_TRY(training ? weft_generate(source->allocator, source->schedule, &shape, &table, error)
                    : make_placement(source, &shape, &table, error));
  assert(table != NULL);
  if (training && table->level == WEFT_LEVEL_COMMS) { /* a fixed schedule that is lowered already */
    *out = table;
    table = NULL;
    return WEFT_OK;
  }
  const struct weft_lower_options lower = forward_options(source->lower, table);
  return training ? weft_lower(source->allocator, table, &lower, out, error)
                  : weft_source_forward_only(source->allocator, table, microbatch_count, &lower,
                                             out, error);
}

/* ---- One table or program ---- */

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
    const struct weft_lower_options lower = forward_options(source->lower, program);
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
