/* Named schedules as orders. Schedules that do not support the shape, or have actions that
 * orders do not have, are left out. */
#include <assert.h>
#include <weft/gen.h>
#include <weft/support.h>

#include "ir/action.h"
#include "ir/program.h"
#include "plan/construct/constructors.h"

static enum weft_status offer_named(struct weft_incumbent *incumbent,
                                    const struct weft_schedule_info *info,
                                    struct weft_error *error) {
  const struct weft_problem *problem = incumbent->problem;
  const struct weft_shape shape = {.ranks = problem->rank_count,
                                   .stages_per_rank = problem->stages_per_rank,
                                   .microbatches = problem->microbatch_count};
  struct weft_program *table = NULL;
  enum weft_status status = weft_generate(problem->allocator, info->name, &shape, &table, error);
  if (status == WEFT_OK) {
    status = weft_order_read(problem, table, &incumbent->draft, error);
  }
  if (status == WEFT_OK) {
    /* With its backwards split it is no longer the named schedule, nor as one of a given graph. */
    const bool whole = weft_program_has(table, WEFT_OP_BIT(WEFT_OP_B));
    const bool is_named = whole == !problem->may_split && problem->given_graph == NULL;
    weft_incumbent_try(incumbent, &incumbent->draft, is_named ? info->name : NULL);
  }
  weft_program_destroy(table);
  return status == WEFT_ERR_MEMORY ? status : WEFT_OK;
}

enum weft_status weft_construct_named(struct weft_incumbent *incumbent, struct weft_error *error) {
  assert(incumbent != NULL && incumbent->draft.ops != NULL);
  const struct weft_problem *problem = incumbent->problem;
  const uint32_t v = problem->stages_per_rank;
  for (size_t n = 0; n < weft_schedule_count() && !weft_search_control_poll(problem->control);
       n++) {
    const struct weft_schedule_info *info = weft_schedule_at(n);
    if (info->trains && !info->fixed && v >= info->stages_per_rank_min &&
        v <= info->stages_per_rank_max && (v == 1 || info->placement == problem->placement)) {
      WEFT_TRY(offer_named(incumbent, info, error));
    }
  }
  return WEFT_OK;
}
