/* The program of a named schedule for any number of microbatches. */
#include <weft/source.h>
#include <weft/support.h>

#include "ir/action.h"
#include "ir/program.h"

/* What the forward-only program takes its placement from. A table of one
 * microbatch does: some schedules have none for so few, or so many, as an eval
 * has. */
static enum weft_status make_placement(const struct weft_named_source *plan,
                                       const struct weft_shape *shape, struct weft_program **out,
                                       struct weft_error *error) {
  const struct weft_schedule_info *info = weft_schedule_find(plan->schedule, error);
  struct weft_shape one = *shape;
  if (info == NULL) {
    return WEFT_ERR_USAGE;
  }
  if (one.stages_per_rank == 0) {
    one.stages_per_rank = info->stages_per_rank_default;
  }
  if (info->fixed || one.stages_per_rank < info->stages_per_rank_min ||
      one.stages_per_rank > info->stages_per_rank_max) { /* it says what is wrong */
    return weft_generate(plan->allocator, plan->schedule, shape, out, error);
  }
  one.microbatches = 1;
  one.placement = info->placement;
  return weft_generate(plan->allocator, "ForwardOnly", &one, out, error);
}

enum weft_status weft_source_named(void *context, uint32_t microbatch_count, bool training,
                                   struct weft_program **out, struct weft_error *error) {
  const struct weft_named_source *plan = context;
  const struct weft_shape shape = {.ranks = plan->ranks,
                                   .stages_per_rank = plan->stages_per_rank,
                                   .microbatches = microbatch_count};
  struct weft_program *table = NULL;
  WEFT_TRY(training ? weft_generate(plan->allocator, plan->schedule, &shape, &table, error)
                    : make_placement(plan, &shape, &table, error));
  if (training && table->level == WEFT_LEVEL_COMMS) { /* a fixed one that is a program already */
    *out = table;
    return WEFT_OK;
  }
  struct weft_lower_options lower =
      plan->lower != NULL ? *plan->lower : weft_lower_options_default();
  if (table->level == WEFT_LEVEL_COMMS) { /* it says itself whether stages are sharded */
    lower.unshard = weft_program_has(table, WEFT_OP_BIT(WEFT_OP_UNSHARD));
  }
  const enum weft_status status =
      training
          ? weft_lower(plan->allocator, table, &lower, out, error)
          : weft_source_forward_only(plan->allocator, table, microbatch_count, &lower, out, error);
  weft_program_destroy(table);
  return status;
}
