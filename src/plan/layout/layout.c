/* Lists the layouts of a request. */
#include "plan/layout/layout.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <weft/support.h>

#include "plan/layout/partition.h"
#include "plan/problem/problem.h"

#define FACTOR_MAX 1e6 /* of a rank */

const uint32_t weft_usual_stages_per_rank[WEFT_USUAL_STAGES] = {1, 2, 4};

/* Parts to partition into stages; 0: the stages are given. */
static uint32_t part_count(const struct weft_search_request *request) {
  return request->keep_partition ? 0 : request->costs->part_count;
}

/* ---- The list ---- */

static enum weft_status set_parts(struct weft_plan_layouts *layouts,
                                  struct weft_plan_layout *layout, const uint32_t *first,
                                  struct weft_error *error) {
  const uint32_t stage_count = layout->stage_count;
  layout->stage_parts =
      weft_array_allocate(layouts->allocator, stage_count, sizeof *layout->stage_parts);
  if (layout->stage_parts == NULL) {
    return weft_fail_memory(error, stage_count * sizeof *layout->stage_parts);
  }
  for (uint32_t s = 0; s < stage_count; s++) {
    layout->stage_parts[s] = first[s + 1] - first[s];
  }
  return WEFT_OK;
}

/* Adds a layout like this one, which has no costs yet; `first` is its partition, NULL without
 * parts. */
static enum weft_status add_kind(struct weft_plan_layouts *layouts,
                                 const struct weft_search_request *request,
                                 const struct weft_plan_layout *like, const uint32_t *first,
                                 struct weft_error *error) {
  assert(layouts->count < WEFT_PLAN_LAYOUTS_MAX);
  struct weft_plan_layout *layout = &layouts->list[layouts->count];
  *layout = *like;
  WEFT_TRY(first == NULL
               ? weft_plan_layout_costs(layouts->allocator, request, like, &layout->costs, error)
               : weft_partition_costs(layouts->allocator, request, &like->shape, first,
                                      &layout->costs, error));
  layouts->count++;
  return first == NULL ? WEFT_OK : set_parts(layouts, layout, first, error);
}

/* Where backwards are all whole or all split, both are tried. */
static enum weft_status add_layout(struct weft_plan_layouts *layouts,
                                   const struct weft_search_request *request,
                                   struct weft_plan_layout like, const uint32_t *first,
                                   struct weft_error *error) {
  like.whole_backward = request->whole_backward;
  WEFT_TRY(add_kind(layouts, request, &like, first, error));
  like.whole_backward = true;
  return request->uniform_backward && !request->whole_backward &&
                 weft_costs_gain_from_whole(request->costs)
             ? add_kind(layouts, request, &like, first, error)
             : WEFT_OK;
}

static enum weft_status add_shape(struct weft_plan_layouts *layouts,
                                  const struct weft_search_request *request,
                                  const struct weft_shape *shape, const uint32_t *first,
                                  struct weft_error *error) {
  const struct weft_plan_layout like = {.shape = *shape,
                                        .stage_count = shape->ranks * shape->stages_per_rank};
  return add_layout(layouts, request, like, first, error);
}

/* ---- Partitions ---- */

/* For both kinds of backwards. */
static bool has_room(const struct weft_plan_layouts *layouts) {
  return layouts->count + 2 <= WEFT_PLAN_LAYOUTS_MAX;
}

/* Whether a layout of this shape has the same partition. */
static bool is_listed(const struct weft_plan_layouts *layouts, const struct weft_shape *shape,
                      const uint32_t *first) {
  for (uint32_t n = 0; n < layouts->count; n++) {
    const struct weft_plan_layout *layout = &layouts->list[n];
    bool same = layout->shape.stages_per_rank == shape->stages_per_rank &&
                layout->shape.placement == shape->placement;
    for (uint32_t s = 0; same && s < layout->stage_count; s++) {
      same = layout->stage_parts[s] == first[s + 1] - first[s];
    }
    if (same) {
      return true;
    }
  }
  return false;
}

/* Unless it is listed, or there is no room for it. */
static enum weft_status add_partition(struct weft_plan_layouts *layouts,
                                      const struct weft_search_request *request,
                                      const struct weft_shape *shape, const uint32_t *first,
                                      struct weft_error *error) {
  return is_listed(layouts, shape, first) || !has_room(layouts)
             ? WEFT_OK
             : add_shape(layouts, request, shape, first, error);
}

/* Share of the work that goes into partitions of a shape, and nanoseconds of a typical core to rate
 * one, for each stage. */
#define PARTITIONING 0.1
enum { RATING_WORK = 2000, TRIES_MAX = 20000, ACTIONS_MAX = 2000000 /* of all together */ };

static double tries_of(double effort, uint32_t stage_count) {
  return fmin(PARTITIONING * 1e9 * effort / (double)RATING_WORK / stage_count, TRIES_MAX);
}

/* The partitions with the smallest bounds that a local search finds from the first one. */
static enum weft_status add_found(struct weft_plan_layouts *layouts,
                                  const struct weft_search_request *request,
                                  const struct weft_shape *shape, const uint32_t *start,
                                  struct weft_error *error) {
  const uint32_t stage_count = shape->ranks * shape->stages_per_rank;
  const double tries = tries_of(layouts->effort, stage_count);
  const double most = (double)ACTIONS_MAX / (3.0 * stage_count * shape->microbatches);
  WEFT_SCOPED_ARENA arena = {.allocator = layouts->allocator};
  struct weft_partition_list list = {.most = (uint32_t)fmax(2, fmin(most, WEFT_PARTITION_LIST_MAX)),
                                     .rest = INFINITY};
  for (uint32_t n = 0; n < list.most; n++) {
    list.first[n] = weft_arena_allocate(&arena, stage_count + (size_t)1, sizeof *list.first[n]);
  }
  WEFT_TRY(weft_arena_status(&arena, error));
  WEFT_TRY(weft_partition_search(layouts->allocator, request, shape, (uint32_t)tries,
                                 layouts->control, start, &list, error));
  for (uint32_t n = 0; n < list.count; n++) {
    WEFT_TRY(add_partition(layouts, request, shape, list.first[n], error));
  }
  layouts->rest = fmin(layouts->rest, list.rest);
  return WEFT_OK;
}

static enum weft_status add_partitions(struct weft_plan_layouts *layouts,
                                       const struct weft_search_request *request,
                                       const struct weft_shape *shape, struct weft_error *error) {
  const size_t room = (size_t)shape->ranks * shape->stages_per_rank + 1;
  const unsigned kinds =
      isfinite(request->memory_limit) ? WEFT_PARTITION_KINDS : WEFT_PARTITION_LIGHT_FIRST + 1;
  WEFT_SCOPED_ARENA arena = {.allocator = layouts->allocator};
  uint32_t *first = weft_arena_allocate(&arena, room, sizeof *first);
  WEFT_TRY(weft_arena_status(&arena, error));
  for (unsigned kind = 0; kind < kinds; kind++) {
    WEFT_TRY(weft_partition_make(layouts->allocator, request, shape, (enum weft_partition_kind)kind,
                                 layouts->control, first, error));
    WEFT_TRY(add_partition(layouts, request, shape, first, error));
  }
  return add_found(layouts, request, shape, first, error);
}

/* ---- Placements ---- */

static uint32_t list_placements(const struct weft_search_request *request, uint32_t v,
                                struct weft_shape *list) {
  const struct weft_shape shape = {
      .ranks = request->ranks, .stages_per_rank = v, .microbatches = request->microbatches};
  uint32_t count = 0;
  if (v == 1 || request->any_placement || request->placement == WEFT_PLACEMENT_LOOP) {
    list[count] = shape;
    list[count++].placement = WEFT_PLACEMENT_LOOP;
  }
  if (v % 2 == 0 && (request->any_placement || request->placement == WEFT_PLACEMENT_V)) {
    list[count] = shape;
    list[count++].placement = WEFT_PLACEMENT_V;
  }
  return count;
}

static uint32_t list_shapes(const struct weft_search_request *request, uint32_t v,
                            struct weft_shape *list) {
  assert(request->ranks > 0 && list != NULL);
  const uint32_t p = request->ranks, parts = part_count(request);
  uint32_t count = 0;
  if (v != 0) {
    return parts > 0 && (uint64_t)p * v > parts ? 0 : list_placements(request, v, list);
  }
  for (size_t n = 0; n < WEFT_USUAL_STAGES; n++) {
    const uint64_t stages = (uint64_t)p * weft_usual_stages_per_rank[n];
    const bool fits = stages * request->microbatches <= WEFT_PROBLEM_OPS_MAX / 3;
    if (stages <= (parts > 0 ? parts : WEFT_STAGES_MAX) && (fits || n == 0)) {
      count += list_placements(request, weft_usual_stages_per_rank[n], list + count);
    }
  }
  return count;
}

/* The v that was given, or that follows from the number of entries; 0: open. */
static enum weft_status find_stages_per_rank(const struct weft_search_request *request, uint32_t *v,
                                             struct weft_error *error) {
  const uint32_t entries = request->costs->stage_count;
  *v = request->stages_per_rank;
  if (request->ranks > WEFT_RANKS_MAX ||
      (uint64_t)request->ranks * (*v != 0 ? *v : 1) > WEFT_STAGES_MAX) {
    return weft_fail(error, WEFT_ERR_LIMIT, "plan for fewer ranks or stages",
                     "%" PRIu32 " ranks with %" PRIu32 " stages each; the limit is %" PRIu32
                     " stages",
                     request->ranks, *v != 0 ? *v : 1, WEFT_STAGES_MAX);
  }
  if (entries == 1 || part_count(request) > 0) {
    return WEFT_OK;
  }
  if (entries % request->ranks != 0 || (*v != 0 && entries != (uint64_t)*v * request->ranks)) {
    return weft_fail(
        error, WEFT_ERR_USAGE, "give one entry that serves all stages, or one for each stage",
        "the costs have %" PRIu32 " entries in stages, which does not match %" PRIu32 " ranks",
        entries, request->ranks);
  }
  *v = entries / request->ranks;
  return WEFT_OK;
}

/* Every stage needs a part. */
static enum weft_status check_parts(const struct weft_search_request *request, uint32_t v,
                                    struct weft_error *error) {
  const uint64_t stages = (uint64_t)request->ranks * (v != 0 ? v : 1);
  const uint32_t parts = part_count(request);
  if (parts == 0 || stages <= parts) {
    return WEFT_OK;
  }
  return weft_fail(
      error, WEFT_ERR_USAGE, "use fewer ranks or stages per rank, or give smaller parts",
      "the costs have %" PRIu32 " parts, which cannot make %" PRIu64 " stages", parts, stages);
}

enum weft_status weft_plan_check_factors(const struct weft_search_request *request,
                                         struct weft_error *error) {
  assert(request != NULL);
  for (uint32_t r = 0; request->rank_factors != NULL && r < request->ranks; r++) {
    if (!(request->rank_factors[r] > 0 && request->rank_factors[r] <= FACTOR_MAX)) {
      return weft_fail(error, WEFT_ERR_USAGE, "1 is as fast as the costs say",
                       "the factor of rank %" PRIu32 " is %g: expected more than 0, at most %g", r,
                       request->rank_factors[r], FACTOR_MAX);
    }
  }
  return WEFT_OK;
}

/* ---- Chains ---- */

static enum weft_status list_chains(struct weft_plan_layouts *layouts,
                                    const struct weft_search_request *request,
                                    struct weft_error *error) {
  uint32_t v;
  struct weft_shape shapes[WEFT_PLAN_SHAPES_MAX];
  WEFT_TRY(find_stages_per_rank(request, &v, error));
  WEFT_TRY(check_parts(request, v, error));
  const uint32_t count = list_shapes(request, v, shapes);
  for (uint32_t n = 0; n < count; n++) {
    WEFT_TRY(weft_problem_check_shape(&shapes[n], request->whole_backward, error));
    WEFT_TRY(part_count(request) > 0 ? add_partitions(layouts, request, &shapes[n], error)
                                     : add_shape(layouts, request, &shapes[n], NULL, error));
  }
  if (layouts->count == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "give an even number of stages per rank",
                     "a V needs two stages on each rank, and %" PRIu32 " were asked for", v);
  }
  return WEFT_OK;
}

static enum weft_status bound_chain(const struct weft_allocator *allocator,
                                    const struct weft_search_request *request, double *bound,
                                    struct weft_error *error) {
  const struct weft_shape shape = {.ranks = request->ranks,
                                   .stages_per_rank = request->stages_per_rank,
                                   .microbatches = request->microbatches,
                                   .placement = request->placement};
  WEFT_TRY(weft_problem_check_shape(&shape, request->whole_backward, error));
  return weft_partition_bound(allocator, request, &shape, bound, error);
}

/* ---- Graphs ---- */

static uint32_t count_stages(const struct weft_search_request *request) {
  return request->graph->stage_count;
}

static struct weft_shape graph_shape(const struct weft_search_request *request,
                                     enum weft_placement_kind placement) {
  return (struct weft_shape){
      .ranks = request->ranks,
      .stages_per_rank = (request->graph->stage_count + request->ranks - 1) / request->ranks,
      .microbatches = request->microbatches,
      .placement = placement};
}

static uint32_t list_graph_shapes(const struct weft_search_request *request, uint32_t v,
                                  struct weft_shape *list) {
  const uint32_t n = request->graph->stage_count, p = request->ranks;
  assert(p > 0 && list != NULL);
  (void)v; /* it follows */
  list[0] =
      graph_shape(request, request->any_placement ? WEFT_PLACEMENT_INFERRED : request->placement);
  return p <= n && (request->any_placement || n % p == 0);
}

enum weft_status weft_plan_layouts_add_placement(struct weft_plan_layouts *layouts,
                                                 const struct weft_search_request *request,
                                                 const uint32_t *rank_of, const char *name,
                                                 enum weft_placement_kind kind,
                                                 struct weft_error *error) {
  assert(request->graph != NULL && rank_of != NULL && name != NULL);
  const uint32_t stages = request->graph->stage_count;
  for (uint32_t n = 0; n < layouts->count; n++) {
    if (memcmp(layouts->list[n].rank_of, rank_of, stages * sizeof *rank_of) == 0) {
      return WEFT_OK;
    }
  }
  WEFT_TRY(weft_problem_check_ranks(request, rank_of, error));
  const struct weft_plan_layout like = {
      .shape = graph_shape(request, kind),
      .stage_count = stages,
      .rank_of = weft_arena_allocate(&layouts->arena, stages, sizeof *rank_of),
      .name = name};
  WEFT_TRY(weft_arena_status(&layouts->arena, error));
  memcpy(like.rank_of, rank_of, stages * sizeof *rank_of);
  return add_layout(layouts, request, like, NULL, error);
}

static enum weft_status list_placed(struct weft_plan_layouts *layouts,
                                    const struct weft_search_request *request,
                                    struct weft_error *error) {
  if (part_count(request) > 0) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "keep the partition of the costs, or give costs without parts",
                     "stages that form a graph cannot be partitioned anew: the graph is of stages");
  }
  WEFT_TRY(weft_plan_placements(layouts, request, error));
  layouts->has_others = request->rank_of == NULL && request->any_placement;
  if (layouts->has_others) {
    WEFT_TRY(weft_plan_placement_bound(layouts->allocator, request, &layouts->least, error));
    layouts->rest = layouts->least;
  }
  return WEFT_OK;
}

/* ---- Of either ---- */

const struct weft_stage_source *weft_stage_source_of(const struct weft_search_request *request) {
  static const struct weft_stage_source chain = {.pieces = "parts",
                                                 .rule = "stage has a part",
                                                 .divides_model = true,
                                                 .count_pieces = part_count,
                                                 .list_shapes = list_shapes,
                                                 .list_layouts = list_chains,
                                                 .bound = bound_chain};
  static const struct weft_stage_source graph = {.pieces = "stages",
                                                 .rule = "rank has a stage",
                                                 .count_pieces = count_stages,
                                                 .list_shapes = list_graph_shapes,
                                                 .list_layouts = list_placed,
                                                 .bound = weft_plan_placement_bound};
  assert(request != NULL);
  return request->graph == NULL ? &chain : &graph;
}

struct weft_search_request weft_plan_resolve(const struct weft_search_request *request,
                                             struct weft_costs_view *view) {
  assert(request->costs != NULL && view != NULL);
  struct weft_search_request resolved = *request;
  resolved.costs = weft_costs_of_stages(request->costs, request->ranks,
                                        weft_graph_stage_count(request->graph), view);
  return resolved;
}

enum weft_status weft_plan_open_bound(const struct weft_allocator *allocator,
                                      const struct weft_search_request *request, double *bound,
                                      struct weft_error *error) {
  assert(request->ranks > 0 && bound != NULL);
  struct weft_costs_view view;
  const struct weft_search_request resolved = weft_plan_resolve(request, &view);
  return weft_stage_source_of(request)->bound(allocator, &resolved, bound, error);
}

static enum weft_status list_all(struct weft_plan_layouts *layouts,
                                 const struct weft_search_request *request,
                                 struct weft_error *error) {
  if (request->ranks == 0 || request->microbatches == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "give each of them at least 1",
                     "%" PRIu32 " ranks and %" PRIu32 " microbatches make no pipeline",
                     request->ranks, request->microbatches);
  }
  WEFT_TRY(weft_plan_check_factors(request, error));
  return layouts->source->list_layouts(layouts, request, error);
}

enum weft_status weft_plan_layouts_init(struct weft_plan_layouts *layouts,
                                        const struct weft_allocator *allocator,
                                        const struct weft_search_request *request, double effort,
                                        struct weft_search_control *control,
                                        struct weft_error *error) {
  assert(layouts != NULL && request != NULL && request->costs != NULL);
  *layouts = (struct weft_plan_layouts){.allocator = allocator,
                                        .source = weft_stage_source_of(request),
                                        .arena = {.allocator = allocator},
                                        .control = control,
                                        .effort = effort,
                                        .rest = INFINITY};
  layouts->list = weft_array_allocate(allocator, WEFT_PLAN_LAYOUTS_MAX, sizeof *layouts->list);
  if (layouts->list == NULL) {
    return weft_fail_memory(error, WEFT_PLAN_LAYOUTS_MAX * sizeof *layouts->list);
  }
  const enum weft_status status = list_all(layouts, request, error);
  if (status != WEFT_OK) {
    weft_plan_layouts_finish(layouts);
  }
  return status;
}

enum weft_status weft_plan_layouts_extend(struct weft_plan_layouts *layouts,
                                          const struct weft_search_request *request, double effort,
                                          struct weft_error *error) {
  assert(layouts->count > 0);
  layouts->effort = effort;
  return part_count(request) > 0 ? list_all(layouts, request, error) : WEFT_OK;
}

bool weft_plan_layouts_are_complete(const struct weft_plan_layouts *layouts,
                                    const struct weft_search_request *request) {
  assert(layouts->list != NULL && request != NULL);
  uint32_t stages = 0;
  for (uint32_t n = 0; n < layouts->count; n++) {
    const uint32_t own = layouts->list[n].stage_count;
    stages = own > stages ? own : stages;
  }
  return part_count(request) == 0 || !has_room(layouts) ||
         tries_of(layouts->effort, stages) == (double)TRIES_MAX;
}

double weft_plan_layouts_share(const struct weft_plan_layouts *layouts,
                               const struct weft_search_request *request) {
  assert(layouts->list != NULL && request != NULL);
  uint32_t shapes = part_count(request) > 0;
  for (uint32_t n = 1; n < layouts->count && shapes > 0; n++) {
    const struct weft_shape *a = &layouts->list[n - 1].shape, *b = &layouts->list[n].shape;
    shapes += a->stages_per_rank != b->stages_per_rank || a->placement != b->placement;
  }
  return PARTITIONING * shapes;
}

void weft_plan_layouts_finish(struct weft_plan_layouts *layouts) {
  assert(layouts->count <= WEFT_PLAN_LAYOUTS_MAX);
  for (uint32_t n = 0; n < layouts->count; n++) {
    weft_costs_destroy(layouts->list[n].costs);
    weft_array_free(layouts->allocator, layouts->list[n].stage_parts, layouts->list[n].stage_count,
                    sizeof(uint32_t));
  }
  weft_array_free(layouts->allocator, layouts->list, WEFT_PLAN_LAYOUTS_MAX, sizeof *layouts->list);
  weft_arena_finish(&layouts->arena);
  *layouts = (struct weft_plan_layouts){.allocator = layouts->allocator};
}

enum weft_status weft_plan_layout_problem(struct weft_problem *problem,
                                          const struct weft_allocator *allocator,
                                          const struct weft_search_request *request,
                                          const struct weft_plan_layout *layout,
                                          struct weft_error *error) {
  assert(layout->costs != NULL);
  struct weft_search_request own = *request;
  own.costs = layout->costs;
  own.microbatches = layout->shape.microbatches;
  own.stages_per_rank = layout->shape.stages_per_rank;
  own.placement = layout->shape.placement;
  own.whole_backward = layout->whole_backward;
  return weft_problem_init(problem, allocator, &own, layout->rank_of, error);
}
