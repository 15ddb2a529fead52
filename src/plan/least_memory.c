/* The smallest memory limit with a schedule: the activations of a rank that runs one microbatch
 * at a time, and the parameters and gradients of its stages. */
#include <assert.h>
#include <math.h>

#include <weft/support.h>

#include "plan/layout/layout.h"
#include "plan/problem.h"

static double least_of(const struct weft_problem *problem, const struct weft_costs *costs) {
  double least = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const double activations = (double)weft_problem_least_of(problem, r) / problem->sizes_per_unit;
    least = fmax(least, weft_problem_add_kept(problem, costs, r, activations));
  }
  return least;
}

static enum weft_status find(const struct weft_plan_layouts *layouts,
                             const struct weft_search_request *request, double *least,
                             struct weft_error *error) {
  for (uint32_t n = 0; n < layouts->count; n++) {
    const struct weft_plan_layout *layout = &layouts->list[n];
    struct weft_search_request own = *request;
    struct weft_problem problem;
    own.whole_backward = layout->whole_backward;
    WEFT_TRY(weft_problem_init(&problem, layouts->allocator, &layout->shape, layout->costs, &own,
                               error));
    *least = fmin(*least, least_of(&problem, layout->costs));
    weft_problem_finish(&problem);
  }
  return WEFT_OK;
}

enum weft_status weft_search_least_memory(const struct weft_allocator *allocator,
                                          const struct weft_search_request *request, double *least,
                                          struct weft_error *error) {
  WEFT_NEED(request, error);
  WEFT_NEED(least, error);
  WEFT_NEED(request->costs, error);
  /* With a limit of 0, partitions are made for the least memory. */
  struct weft_search_request starved = *request;
  struct weft_plan_layouts layouts;
  double found = INFINITY;
  starved.memory_limit = 0;
  WEFT_TRY(weft_plan_layouts_init(&layouts, allocator, &starved, error));
  const enum weft_status status = find(&layouts, &starved, &found, error);
  weft_plan_layouts_finish(&layouts);
  if (status == WEFT_OK) {
    *least = found;
  }
  return status;
}
