/* What no placement of a graph can beat. */
#include <assert.h>
#include <math.h>

#include "plan/layout/layout.h"
#include "plan/layout/partition.h"

/* More than the tolerance of plan_check.c, and the rounding of a sum over all stages. */
#define MEMORY_SLACK 1e-8

/* All stages on one rank, which is as fast as the fastest, so that no message takes time; and the work
 * of all stages, divided among the ranks. */
static enum weft_status bound_with(const struct weft_allocator *allocator,
                                   const struct weft_search_request *request, bool whole_backward,
                                   uint32_t *rank_of, double *out, struct weft_error *error) {
  struct weft_problem problem;
  struct weft_search_request own = *request;
  struct weft_plan_layout layout = {
      .shape = {.ranks = request->ranks, .microbatches = request->microbatches},
      .stage_count = request->graph->stage_count,
      .whole_backward = whole_backward};
  double fastest = INFINITY, speeds = 0, sum = 0, most = 0;
  for (uint32_t r = 0; r < request->ranks; r++) {
    const double factor = request->rank_factors != NULL ? request->rank_factors[r] : 1;
    fastest = fmin(fastest, factor);
    speeds += 1 / factor;
  }
  layout.rank_of = rank_of;
  own.rank_factors = &fastest;
  own.memory_limit = INFINITY;
  WEFT_TRY(weft_plan_layout_costs(allocator, &own, &layout, &layout.costs, error));
  enum weft_status status = weft_plan_layout_problem(&problem, allocator, &own, &layout, error);
  if (status == WEFT_OK) {
    int64_t bound;
    status = weft_problem_open_bound(&problem, request->ranks, speeds * fastest, &bound, error);
    *out = status == WEFT_OK ? (double)bound / problem.ticks_per_unit : 0;
    weft_problem_finish(&problem);
  }
  weft_costs_destroy(layout.costs);
  for (uint32_t s = 0; s < request->graph->stage_count && request->replicas > 1; s++) {
    const double gradients = weft_gradients_to_reduce(request->costs, s);
    sum += gradients;
    most = fmax(most, gradients);
  }
  *out += weft_all_reduce_time(request, fmax(most, sum / request->ranks));
  return status;
}

/* What some rank needs on any placement. Before the first backward all stages of any way of
 * gradients hold an activation, and in the end all gradients are there: the ranks share that. And
 * some rank has the largest stage. */
static double least_memory(const struct weft_search_request *request, double *ways) {
  const struct weft_graph *graph = request->graph;
  double kept = 0, gradients = 0, way = 0, largest = 0;
  for (uint32_t s = graph->stage_count; s-- > 0;) {
    const struct weft_stage_costs *costs = weft_costs_of(request->costs, s);
    const bool trains = weft_graph_has_backward(graph, s);
    const double own = costs->parameters + costs->gradients_sharded;
    const double more = trains ? fmax(0, costs->gradients - costs->gradients_sharded) : 0;
    ways[s] = 0;
    for (uint32_t n = graph->gradient_in.begin[s]; n < graph->gradient_in.begin[s + 1]; n++) {
      ways[s] = fmax(ways[s], ways[graph->edges[graph->gradient_in.edges[n]].to]);
    }
    ways[s] += trains ? costs->activation : 0;
    way = fmax(way, ways[s]);
    kept += own;
    gradients += more;
    largest = fmax(largest, own + more + costs->activation);
  }
  return fmax(largest, (kept + fmax(way, gradients)) / request->ranks);
}

enum weft_status weft_plan_placement_bound(const struct weft_allocator *allocator,
                                           const struct weft_search_request *request, double *bound,
                                           struct weft_error *error) {
  assert(request->ranks > 0 && bound != NULL);
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  const uint32_t n = request->graph->stage_count;
  double *ways = weft_arena_allocate(&arena, n, sizeof *ways);
  uint32_t *rank_of = weft_arena_allocate(&arena, n, sizeof *rank_of);
  WEFT_TRY(weft_arena_status(&arena, error));
  WEFT_TRY(
      weft_problem_check_ranks(request, rank_of, error)); /* the size does not depend on them */
  if (least_memory(request, ways) > request->memory_limit * (1 + MEMORY_SLACK)) {
    *bound = INFINITY;
    return WEFT_OK;
  }
  WEFT_TRY(bound_with(allocator, request, request->whole_backward, rank_of, bound, error));
  if (request->uniform_backward && !request->whole_backward &&
      weft_costs_gain_from_whole(request->costs)) {
    const double split = *bound;
    WEFT_TRY(bound_with(allocator, request, true, rank_of, bound, error));
    *bound = fmin(*bound, split);
  }
  return WEFT_OK;
}
