/* The program source for a named schedule. */

#include <assert.h>

#include <weft/source.h>
#include <weft/support.h>

#include "ir/action.h"
#include "ir/program.h"

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
  struct weft_program *table = NULL;
  WEFT_TRY(training ? weft_generate(source->allocator, source->schedule, &shape, &table, error)
                    : make_placement(source, &shape, &table, error));
  assert(table != NULL);
  if (training && table->level == WEFT_LEVEL_COMMS) { /* a fixed schedule that is lowered already */
    *out = table;
    return WEFT_OK;
  }
  struct weft_lower_options lower =
      source->lower != NULL ? *source->lower : weft_lower_options_default();
  if (table->level == WEFT_LEVEL_COMMS) { /* the program shows whether stages are sharded */
    lower.unshard = weft_program_has(table, WEFT_OP_BIT(WEFT_OP_UNSHARD));
  }
  const enum weft_status status =
      training ? weft_lower(source->allocator, table, &lower, out, error)
               : weft_source_forward_only(source->allocator, table, microbatch_count, &lower, out,
                                          error);
  weft_program_destroy(table);
  return status;
}
