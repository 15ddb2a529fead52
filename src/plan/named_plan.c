/* The program of a named schedule for any number of microbatches. */
#include <weft/plan.h>

enum weft_status weft_plan_named(void *context, uint32_t microbatch_count, bool training,
                                 struct weft_program **out, struct weft_error *error) {
  const struct weft_named_plan *plan = context;
  const struct weft_shape shape = {.ranks = plan->ranks,
                                   .stages_per_rank = plan->stages_per_rank,
                                   .microbatches = microbatch_count};
  struct weft_program *table;
  enum weft_status status = weft_generate(plan->allocator, plan->schedule, &shape, &table, error);
  if (status < 0) {
    return status;
  }
  status = training ? weft_lower(plan->allocator, table, plan->lower, out, error)
                    : weft_plan_forward(plan->allocator, table, microbatch_count, out, error);
  weft_program_destroy(table);
  return status;
}
