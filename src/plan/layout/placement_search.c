/* Local search for a placement of a graph. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "plan/layout/layout.h"
#include "plan/layout/partition.h"

/* Its work, in nanoseconds of a typical core, whatever the effort; and that of one placement: for
 * each op, and for each stage times stages and edges, which the bound looks at. */
#define PLACING_WORK 2.5e7
enum { PLACE_WORK = 4000, PLACE_OP_WORK = 2, PLACE_BOUND_WORK = 4 };

static enum weft_status bound_on(const struct weft_allocator *allocator,
                                 const struct weft_search_request *request,
                                 struct weft_plan_layout layout, double *out,
                                 struct weft_error *error) {
  struct weft_problem problem;
  WEFT_TRY(weft_plan_layout_costs(allocator, request, &layout, &layout.costs, error));
  enum weft_status status = weft_plan_layout_problem(&problem, allocator, request, &layout, error);
  if (status == WEFT_OK) {
    int64_t bound;
    status = weft_problem_bound(&problem, &bound, error);
    *out = status == WEFT_OK ? (double)bound / problem.ticks_per_unit +
                                   weft_all_reduce_of(request, &problem, layout.costs)
                             : 0;
    weft_problem_finish(&problem);
  }
  weft_costs_destroy(layout.costs);
  return status;
}

/* Moves a stage to rank `way`, or lets it change places with the later stage `way` - ranks. False:
 * nothing changes. */
static bool change(uint32_t *rank_of, uint32_t stage, uint32_t way, uint32_t ranks) {
  const uint32_t before = rank_of[stage];
  if (way < ranks) {
    rank_of[stage] = way;
  } else if (way - ranks > stage) {
    rank_of[stage] = rank_of[way - ranks];
    rank_of[way - ranks] = before;
  }
  return rank_of[stage] != before;
}

enum weft_status weft_plan_placement_search(const struct weft_plan_layout *layout,
                                            const struct weft_problem *problem,
                                            const struct weft_search_request *request, double bound,
                                            double open, uint32_t *rank_of,
                                            struct weft_error *error) {
  assert(request->graph != NULL && layout->rank_of != NULL && rank_of != NULL);
  const uint32_t n = problem->stage_count, p = problem->rank_count;
  const double cost = (double)PLACE_WORK + (double)PLACE_OP_WORK * weft_problem_op_count(problem) +
                      (double)PLACE_BOUND_WORK * n * (n + problem->graph->edge_count);
  WEFT_SCOPED_ARENA arena = {.allocator = problem->allocator};
  struct weft_plan_layout next = *layout;
  double left = PLACING_WORK;
  next.rank_of = weft_arena_allocate(&arena, n, sizeof *next.rank_of);
  WEFT_TRY(weft_arena_status(&arena, error));
  memcpy(rank_of, layout->rank_of, n * sizeof *rank_of);
  memcpy(next.rank_of, rank_of, n * sizeof *rank_of);
  for (uint32_t same = 0, s = 0; same < n; same++, s = (s + 1) % n) {
    for (uint32_t way = 0; way < p + n; way++) {
      double own = INFINITY;
      left--; /* looking for a change takes time, too */
      if (change(next.rank_of, s, way, p)) {
        left -= cost;
      } else if (left >= 0) {
        continue;
      }
      if (left < 0 || bound <= open || weft_search_control_poll(problem->control)) {
        return WEFT_OK;
      }
      WEFT_TRY(bound_on(problem->allocator, request, next, &own, error));
      if (own < bound) {
        bound = own;
        memcpy(rank_of, next.rank_of, n * sizeof *rank_of);
        same = 0;
      }
      memcpy(next.rank_of, rank_of, n * sizeof *rank_of);
    }
  }
  return WEFT_OK;
}
