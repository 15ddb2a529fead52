/* Problems: from costs to integers; the time of an order, its memory, its table. */
#include "plan/problem/problem.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ir/action.h"
#include "ir/program.h"
#include "ir/program_builder.h"
#include "sim/sim_ticks.h"

/* Sizes are integers, this many to the unit unless sums would overflow. */
#define SIZES_PER_UNIT 1e9
enum { GRAPH_OPS_MAX = 1 << 24 };

/* ---- Whether a request is a problem ---- */

enum weft_status weft_problem_check_shape(const struct weft_shape *shape, bool whole_backward,
                                          struct weft_error *error) {
  assert(shape->ranks > 0 && shape->stages_per_rank > 0 && shape->microbatches > 0);
  const uint64_t stages = (uint64_t)shape->ranks * shape->stages_per_rank;
  const uint64_t length =
      (uint64_t)shape->stages_per_rank * shape->microbatches * (whole_backward ? 2 : 3);
  if (shape->stages_per_rank > WEFT_LOCAL_STAGES_MAX) {
    return weft_fail(error, WEFT_ERR_LIMIT, "plan with fewer stages per rank",
                     "%" PRIu32 " stages per rank are more than %d", shape->stages_per_rank,
                     WEFT_LOCAL_STAGES_MAX);
  }
  if (stages > WEFT_STAGES_MAX || shape->microbatches > WEFT_MICROBATCHES_MAX ||
      length > WEFT_PROBLEM_OPS_MAX / shape->ranks) {
    return weft_fail(error, WEFT_ERR_LIMIT,
                     "plan for fewer microbatches; the order of the steady state repeats",
                     "%" PRIu32 " ranks with %" PRIu64
                     " actions each are more than the %d that a "
                     "plan may have",
                     shape->ranks, length, WEFT_PROBLEM_OPS_MAX);
  }
  return WEFT_OK;
}

enum weft_status weft_problem_check_ranks(const struct weft_search_request *request,
                                          const uint32_t *rank_of, struct weft_error *error) {
  assert(request->graph != NULL && rank_of != NULL);
  const struct weft_graph *graph = request->graph;
  for (uint32_t s = 0; s < graph->stage_count; s++) {
    if (rank_of[s] >= request->ranks) {
      return weft_fail(error, WEFT_ERR_USAGE, "ranks count from 0",
                       "stage %" PRIu32 " is placed on rank %" PRIu32 ", and there are %" PRIu32
                       " ranks",
                       s, rank_of[s], request->ranks);
    }
  }
  const uint64_t each = (uint64_t)graph->edge_count * 2 + graph->stage_count * UINT64_C(3);
  if (each * request->microbatches > GRAPH_OPS_MAX) {
    return weft_fail(error, WEFT_ERR_LIMIT,
                     "plan for fewer microbatches; the order of the steady state repeats",
                     "%" PRIu32 " microbatches with %" PRIu64
                     " actions and messages each are more than the %d that a plan of a graph may "
                     "have",
                     request->microbatches, each, GRAPH_OPS_MAX);
  }
  return weft_costs_check(request->costs, graph->stage_count, error);
}

static bool gains_from_whole(const struct weft_stage_costs *stage) {
  return stage->b < stage->i + stage->w || stage->activation_after_i > stage->activation;
}

bool weft_costs_gain_from_whole(const struct weft_costs *costs) {
  assert(costs != NULL);
  for (uint32_t s = 0; s < costs->stage_count; s++) {
    if (gains_from_whole(&costs->stages[s])) {
      return true;
    }
  }
  return false;
}

/* ---- Stages on ranks ---- */

/* Edges from the first of two neighbours to the second, or to it, by stage. */
static bool list_edges(struct weft_edge_list *list, struct weft_arena *arena, uint32_t stages,
                       bool to) {
  if (!WEFT_ALLOCATE(arena, list->begin, stages + (size_t)1) ||
      !WEFT_ALLOCATE(arena, list->edges, stages)) {
    return false;
  }
  for (uint32_t s = 0; s < stages; s++) {
    list->edges[s] = s;
    list->begin[s + 1] = to ? s : s + 1 < stages ? s + 1 : s;
  }
  return true;
}

/* That of a chain; not by weft_graph_create(), which refuses a single stage. */
static struct weft_graph *make_graph(struct weft_arena *arena, uint32_t stages) {
  struct weft_graph *graph;
  if (!WEFT_ALLOCATE(arena, graph, 1) || !list_edges(&graph->in, arena, stages, true) ||
      !list_edges(&graph->out, arena, stages, false) ||
      !WEFT_ALLOCATE(arena, graph->edges, stages)) {
    return NULL;
  }
  graph->stage_count = stages;
  graph->edge_count = stages - 1;
  for (uint32_t e = 0; e + 1 < stages; e++) {
    graph->edges[e] = weft_edge_make(e, e + 1);
  }
  graph->gradient_in = graph->out;
  graph->gradient_out = graph->in;
  return graph;
}

static uint32_t rank_at(const struct weft_problem *problem, const uint32_t *rank_of, uint32_t s) {
  const struct weft_shape shape = {.ranks = problem->rank_count, .placement = problem->placement};
  return rank_of != NULL ? rank_of[s] : weft_shape_rank_of(&shape, s);
}

static void place_stages(struct weft_problem *problem, const uint32_t *rank_of) {
  const struct weft_graph *graph = problem->graph;
  uint32_t *listed = problem->begin; /* stages of each rank, so far */
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    struct weft_problem_stage *stage = &problem->stages[s];
    stage->rank = rank_at(problem, rank_of, s);
    stage->trains = weft_graph_has_backward(graph, s);
    stage->local_stage = listed[stage->rank]++;
  }
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    problem->first_of[r + 1] = problem->first_of[r] + listed[r];
    listed[r] = 0;
  }
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_problem_stage *stage = &problem->stages[s];
    problem->stage_of[problem->first_of[stage->rank] + stage->local_stage] = s;
    problem->begin[stage->rank + 1] +=
        problem->microbatch_count * (stage->trains ? WEFT_ORDER_KINDS : 1);
  }
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    problem->begin[r + 1] += problem->begin[r];
  }
  for (uint32_t e = graph->edge_count; e-- > 0;) {
    const struct weft_edge *edge = &graph->edges[e];
    const uint32_t height = problem->height[edge->to] + 1;
    uint32_t *own = &problem->height[edge->from];
    *own = height > *own ? height : *own;
    problem->height_max = *own > problem->height_max ? *own : problem->height_max;
    problem->crosses[2 * e] = problem->crosses[2 * e + 1] =
        problem->stages[edge->from].rank != problem->stages[edge->to].rank;
  }
}

bool weft_problem_make(struct weft_problem *problem, const uint32_t *rank_of) {
  assert(problem->stage_count > 0);
  struct weft_arena *arena = &problem->arena;
  const size_t n = problem->stage_count, p = problem->rank_count;
  if (problem->graph == NULL &&
      (problem->graph = make_graph(arena, problem->stage_count)) == NULL) {
    return false;
  }
  if (!WEFT_ALLOCATE(arena, problem->occupancy, 2 * (size_t)problem->graph->edge_count) ||
      !WEFT_ALLOCATE(arena, problem->crosses, 2 * (size_t)problem->graph->edge_count) ||
      !WEFT_ALLOCATE(arena, problem->limit, p) || !WEFT_ALLOCATE(arena, problem->stages, n) ||
      !WEFT_ALLOCATE(arena, problem->begin, p + 1) || !WEFT_ALLOCATE(arena, problem->stage_of, n) ||
      !WEFT_ALLOCATE(arena, problem->first_of, p + 1) ||
      !WEFT_ALLOCATE(arena, problem->height, n) || !WEFT_ALLOCATE(arena, problem->round_trip, n)) {
    return false;
  }
  place_stages(problem, rank_of);
  return true;
}

/* ---- Times ---- */

/* Takes the simulator's ticks, so that both compute with the same numbers. */
static enum weft_status set_times(struct weft_problem *problem,
                                  const struct weft_search_request *request,
                                  struct weft_error *error) {
  const struct weft_program like = {.rank_count = problem->rank_count,
                                    .stage_count = problem->stage_count,
                                    .action_count = weft_problem_timed_op_count(problem),
                                    .graph = (struct weft_graph *)problem->graph};
  const struct weft_sim_options options = weft_sim_options_default();
  struct weft_ticks ticks;
  bool gains = false;
  WEFT_SCOPED_ARENA scratch = {.allocator = problem->allocator};
  WEFT_TRY(weft_ticks_init(&ticks, &scratch, &like, request->costs, &options, error));
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const int64_t *compute = weft_ticks_of(&ticks, s)->compute;
    struct weft_problem_stage *stage = &problem->stages[s];
    stage->f = compute[0];
    stage->b = compute[WEFT_OP_B - WEFT_OP_F];
    stage->i = compute[WEFT_OP_I - WEFT_OP_F];
    stage->w = compute[WEFT_OP_W - WEFT_OP_F];
    gains = gains || (stage->trains && gains_from_whole(weft_costs_of(request->costs, s)));
  }
  problem->may_join = request->whole_backward || (gains && !request->uniform_backward);
  problem->latency = ticks.latency;
  problem->ticks_per_unit = ticks.per_unit;
  for (uint32_t c = 0; c < 2 * problem->graph->edge_count; c++) {
    const struct weft_edge *edge = &problem->graph->edges[c / 2];
    problem->occupancy[c] = weft_ticks_occupancy(&ticks, &request->costs->hop,
                                                 c % 2 == 0 ? edge->bytes : edge->gradient_bytes);
  }
  return WEFT_OK;
}

/* ---- Memory of a problem ---- */

/* With one stage per rank, the limit of a chain can be reduced by its gradients: when they come,
 * everything that was held before is still held. */
static bool counts_gradients(const struct weft_problem *problem) {
  return problem->stages_per_rank != 1;
}

/* What comes with the first backward; a part of the gradients may be there from the beginning. */
static double late_gradients(const struct weft_stage_costs *stage) {
  return fmax(0, stage->gradients - stage->gradients_sharded);
}

double weft_problem_kept(const struct weft_problem *problem, const struct weft_costs *costs,
                         uint32_t rank) {
  assert(rank < problem->rank_count);
  double size = 0;
  for (uint32_t k = problem->first_of[rank]; k < problem->first_of[rank + 1]; k++) {
    const struct weft_stage_costs *stage = weft_costs_of(costs, problem->stage_of[k]);
    size += stage->parameters + stage->gradients_sharded;
    size += counts_gradients(problem) ? 0 : late_gradients(stage);
  }
  return size;
}

int64_t weft_problem_limit_at_end(const struct weft_problem *problem, uint32_t rank) {
  assert(rank < problem->rank_count);
  int64_t limit = problem->limit[rank];
  for (uint32_t k = problem->first_of[rank]; k < problem->first_of[rank + 1]; k++) {
    limit -= problem->stages[problem->stage_of[k]].gradients;
  }
  return limit;
}

static void set_sizes(struct weft_problem *problem, const struct weft_search_request *request) {
  double sum = 1;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_stage_costs *costs = weft_costs_of(request->costs, s);
    sum += (costs->activation + costs->activation_after_i) * problem->microbatch_count +
           costs->parameters + costs->gradients + costs->gradients_sharded;
  }
  problem->sizes_per_unit = fmin(SIZES_PER_UNIT, (double)(INT64_MAX / 8) / sum);
  problem->limit_max = (int64_t)(sum * problem->sizes_per_unit);
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_stage_costs *costs = weft_costs_of(request->costs, s);
    struct weft_problem_stage *stage = &problem->stages[s];
    stage->held = llrint(costs->activation * problem->sizes_per_unit);
    stage->held_after = llrint(costs->activation_after_i * problem->sizes_per_unit);
    stage->gradients =
        counts_gradients(problem) ? llrint(late_gradients(costs) * problem->sizes_per_unit) : 0;
  }
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const double left = request->memory_limit * (1 + 1e-9) /* plan_check.c has the same tolerance */
                        - weft_problem_kept(problem, request->costs, r);
    const double size = left * problem->sizes_per_unit;
    problem->limit[r] =
        size >= (double)problem->limit_max ? problem->limit_max : (int64_t)floor(size);
  }
}

/* ---- The problem ---- */

static bool is_placed(const struct weft_problem *problem, const struct weft_shape *shape) {
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    if (problem->stages[s].rank != weft_shape_rank_of(shape, s)) {
      return false;
    }
  }
  return true;
}

static void set_chain(struct weft_problem *problem, uint32_t stages_per_rank) {
  assert(stages_per_rank > 0 && stages_per_rank <= WEFT_LOCAL_STAGES_MAX);
  problem->stages_per_rank = stages_per_rank;
  problem->chain_occupancy = problem->graph->edge_count > 0 ? problem->occupancy[0] : 0;
  for (uint32_t s = problem->stage_count; s-- > 0;) {
    problem->round_trip[s] = problem->stages[s].f + weft_problem_backward(problem, s);
    if (s + 1 < problem->stage_count) {
      problem->round_trip[s] += problem->round_trip[s + 1] + 2 * weft_problem_hop(problem, 2 * s);
    }
  }
}

void weft_problem_look_for_chain(struct weft_problem *problem) {
  static const enum weft_placement_kind kinds[] = {WEFT_PLACEMENT_LOOP, WEFT_PLACEMENT_V,
                                                   WEFT_PLACEMENT_LOOP};
  const size_t first = problem->placement == WEFT_PLACEMENT_V;
  const uint32_t v = problem->stage_count / problem->rank_count;
  assert(problem->stages != NULL);
  if (problem->stage_count % problem->rank_count != 0 || v > WEFT_LOCAL_STAGES_MAX ||
      !weft_graph_is_chain(problem->graph)) {
    return;
  }
  for (uint32_t c = 1; c < 2 * problem->graph->edge_count; c++) {
    if (problem->occupancy[c] != problem->occupancy[0]) {
      return;
    }
  }
  for (size_t n = first; n < first + 2; n++) {
    const struct weft_shape shape = {.ranks = problem->rank_count, .placement = kinds[n]};
    if (is_placed(problem, &shape)) {
      problem->placement = kinds[n];
      set_chain(problem, v);
      return;
    }
  }
}

enum weft_status weft_problem_init(struct weft_problem *problem,
                                   const struct weft_allocator *allocator,
                                   const struct weft_search_request *request,
                                   const uint32_t *rank_of, struct weft_error *error) {
  assert(problem != NULL && request->ranks > 0 && request->microbatches > 0);
  *problem = (struct weft_problem){.allocator = allocator,
                                   .arena = {.allocator = allocator},
                                   .graph = request->graph,
                                   .given_graph = request->graph,
                                   .rank_count = request->ranks,
                                   .stage_count = request->costs->stage_count,
                                   .microbatch_count = request->microbatches,
                                   .placement = request->placement,
                                   .objective = request->objective,
                                   .may_split = !request->whole_backward};
  const enum weft_status status = weft_problem_make(problem, rank_of)
                                      ? set_times(problem, request, error)
                                      : weft_arena_status(&problem->arena, error);
  if (status < 0) {
    weft_problem_finish(problem);
    return status;
  }
  weft_problem_look_for_chain(problem);
  set_sizes(problem, request);
  return WEFT_OK;
}

struct weft_problem weft_problem_chain_like(const struct weft_problem *problem,
                                            struct weft_arena arena, uint32_t ranks,
                                            uint32_t stages, uint32_t microbatches) {
  assert(ranks > 0 && stages > 0 && microbatches > 0);
  return (struct weft_problem){.allocator = problem->allocator,
                               .control = problem->control,
                               .arena = arena,
                               .rank_count = ranks,
                               .stage_count = stages,
                               .microbatch_count = microbatches,
                               .placement = problem->placement,
                               .objective = problem->objective,
                               .may_split = problem->may_split,
                               .may_join = problem->may_join,
                               .latency = problem->latency,
                               .ticks_per_unit = problem->ticks_per_unit,
                               .sizes_per_unit = problem->sizes_per_unit};
}

void weft_problem_finish(struct weft_problem *problem) { weft_arena_finish(&problem->arena); }

/* ---- Time ---- */

enum weft_status weft_plan_clock_init(struct weft_plan_clock *clock,
                                      const struct weft_problem *problem, struct weft_arena *arena,
                                      struct weft_error *error) {
  assert(clock != NULL && problem != NULL && arena != NULL);
  const uint32_t n = problem->stage_count, p = problem->rank_count;
  const size_t channels = 2 * (size_t)problem->graph->edge_count;
  *clock = (struct weft_plan_clock){
      .arrivals = weft_arena_allocate(arena, channels * problem->microbatch_count, sizeof(int64_t)),
      .free = weft_arena_allocate(arena, channels, sizeof(int64_t)),
      .done = weft_arena_allocate(arena, (size_t)n * WEFT_ORDER_KINDS, sizeof(uint32_t)),
      .at = weft_arena_allocate(arena, p, sizeof(uint32_t)),
      .time = weft_arena_allocate(arena, p, sizeof(int64_t)),
      .first = weft_arena_allocate(arena, p, sizeof(int64_t)),
      .work = weft_arena_allocate(arena, p, sizeof(uint32_t)),
      .is_waiting = weft_arena_allocate(arena, p, sizeof(bool)),
      .scratch = weft_arena_allocate(arena, n, 2 * sizeof(uint32_t))};
  return weft_arena_status(arena, error);
}

void weft_plan_clock_reset(const struct weft_problem *problem, struct weft_plan_clock *clock) {
  assert(problem != NULL && clock->done != NULL);
  const uint32_t p = problem->rank_count;
  memset(clock->free, 0, 2 * (size_t)problem->graph->edge_count * sizeof *clock->free);
  memset(clock->done, 0, (size_t)problem->stage_count * WEFT_ORDER_KINDS * sizeof *clock->done);
  memset(clock->time, 0, p * sizeof *clock->time);
  for (uint32_t r = 0; r < p; r++) {
    clock->at[r] = problem->begin[r];
    clock->first[r] = -1;
  }
}

/* Wakes the ranks that get what an op has made. */
static uint32_t wake(const struct weft_problem *problem, struct weft_plan_clock *clock, uint32_t op,
                     uint32_t count) {
  const bool gradient = op % WEFT_ORDER_KINDS == WEFT_KIND_I;
  const struct weft_edge_list *list =
      gradient ? &problem->graph->gradient_out : &problem->graph->out;
  const uint32_t s = op / WEFT_ORDER_KINDS;
  if (op % WEFT_ORDER_KINDS == WEFT_KIND_W) {
    return count;
  }
  for (uint32_t n = list->begin[s]; n < list->begin[s + 1]; n++) {
    const struct weft_edge *edge = &problem->graph->edges[list->edges[n]];
    const uint32_t rank = problem->stages[gradient ? edge->from : edge->to].rank;
    if (!clock->is_waiting[rank] && rank != problem->stages[s].rank) {
      clock->is_waiting[rank] = true;
      clock->work[count++] = rank;
    }
  }
  return count;
}

int64_t weft_plan_clock_summarise(const struct weft_problem *problem,
                                  struct weft_plan_clock *clock) {
  assert(problem != NULL && clock->at != NULL);
  int64_t first = INT64_MAX, last = 0;
  clock->span = clock->span_sum = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    if (clock->at[r] < problem->begin[r + 1]) {
      return WEFT_NEVER;
    }
    if (clock->first[r] >= 0) {
      const int64_t span = clock->time[r] - clock->first[r];
      first = clock->first[r] < first ? clock->first[r] : first;
      last = clock->time[r] > last ? clock->time[r] : last;
      clock->span = span > clock->span ? span : clock->span;
      clock->span_sum += span;
    }
  }
  clock->makespan = last - (first < INT64_MAX ? first : 0);
  return problem->objective == WEFT_OBJECTIVE_SPAN ? clock->span : clock->makespan;
}

int64_t weft_order_evaluate(const struct weft_problem *problem, struct weft_plan_clock *clock,
                            const struct weft_order *order, int64_t cutoff) {
  assert(clock->arrivals != NULL && order->ops != NULL);
  const uint32_t m = problem->microbatch_count;
  const bool spans = problem->objective == WEFT_OBJECTIVE_SPAN;
  uint32_t count = 0;
  weft_plan_clock_reset(problem, clock);
  for (uint32_t r = problem->rank_count; r-- > 0;) {
    clock->work[count++] = r;
    clock->is_waiting[r] = true;
  }
  while (count > 0) {
    const uint32_t rank = clock->work[--count];
    clock->is_waiting[rank] = false;
    while (clock->at[rank] < problem->begin[rank + 1]) {
      const uint32_t op = order->ops[clock->at[rank]], s = op / WEFT_ORDER_KINDS;
      const enum weft_plan_op_kind kind = (enum weft_plan_op_kind)(op % WEFT_ORDER_KINDS);
      const int64_t arrival = weft_plan_clock_arrival(problem, clock, s, kind);
      if (arrival == WEFT_NEVER) {
        break;
      }
      const int64_t start = arrival > clock->time[rank] ? arrival : clock->time[rank];
      const bool is_whole = order->whole[(size_t)s * m + clock->done[op]] != 0;
      weft_plan_clock_advance(problem, clock, op, is_whole, start);
      clock->at[rank]++;
      count = wake(problem, clock, op, count);
    }
    const int64_t from = spans ? clock->first[rank] : 0;
    if (from >= 0 && clock->time[rank] - from > cutoff) {
      memset(clock->is_waiting, 0, problem->rank_count * sizeof *clock->is_waiting);
      return WEFT_NEVER;
    }
  }
  return weft_plan_clock_summarise(problem, clock);
}

/* ---- Memory ---- */

int64_t weft_order_peak(const struct weft_problem *problem, const struct weft_order *order,
                        uint32_t rank, uint32_t *done) {
  assert(rank < problem->rank_count && order->ops != NULL && done != NULL);
  int64_t held = 0, peak = 0;
  for (uint32_t k = problem->first_of[rank]; k < problem->first_of[rank + 1]; k++) {
    memset(&done[(size_t)problem->stage_of[k] * WEFT_ORDER_KINDS], 0,
           WEFT_ORDER_KINDS * sizeof *done);
  }
  for (uint32_t n = problem->begin[rank]; n < problem->begin[rank + 1]; n++) {
    const uint32_t op = order->ops[n], s = op / WEFT_ORDER_KINDS, kind = op % WEFT_ORDER_KINDS;
    const struct weft_problem_stage *stage = &problem->stages[s];
    const uint32_t k = done[op]++;
    if (kind != WEFT_KIND_F && done[op - 1] <= k) {
      return -1;
    }
    const bool is_whole = order->whole[(size_t)s * problem->microbatch_count + k] != 0;
    const int64_t own =
        weft_problem_step_memory(stage, (enum weft_plan_op_kind)kind, k, is_whole, &held);
    peak = own > peak ? own : peak;
  }
  return peak;
}

bool weft_order_fits(const struct weft_problem *problem, const struct weft_order *order,
                     uint32_t *done) {
  assert(problem != NULL && order != NULL && done != NULL);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t peak = weft_order_peak(problem, order, r, done);
    if (peak < 0 || peak > problem->limit[r]) {
      return false;
    }
  }
  return true;
}

/* ---- Tables ---- */

enum weft_status weft_order_table(const struct weft_problem *problem,
                                  const struct weft_order *order, struct weft_program **out,
                                  struct weft_error *error) {
  assert(order->ops != NULL && out != NULL);
  struct weft_program_builder rows;
  const size_t counters = (size_t)problem->stage_count * WEFT_ORDER_KINDS;
  WEFT_SCOPED_ARENA arena = {.allocator = problem->allocator};
  uint32_t *done = weft_arena_allocate(&arena, counters, sizeof *done);
  WEFT_TRY(weft_arena_status(&arena, error));
  weft_program_builder_init(&rows, problem->allocator, weft_problem_op_count(problem),
                            problem->rank_count);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    for (uint32_t n = problem->begin[r]; n < problem->begin[r + 1]; n++) {
      const uint32_t op = order->ops[n], s = op / WEFT_ORDER_KINDS;
      const uint32_t k = done[op]++;
      const bool is_whole = order->whole[(size_t)s * problem->microbatch_count + k] != 0;
      switch ((enum weft_plan_op_kind)(op % WEFT_ORDER_KINDS)) {
        case WEFT_KIND_F: weft_program_builder_put(&rows, WEFT_OP_F, s, k); break;
        case WEFT_KIND_I:
          weft_program_builder_put(&rows, is_whole ? WEFT_OP_B : WEFT_OP_I, s, k);
          break;
        default:
          if (!is_whole) {
            weft_program_builder_put(&rows, WEFT_OP_W, s, k);
          }
      }
    }
    weft_program_builder_end_row(&rows);
  }
  return weft_program_builder_finish(&rows, problem->given_graph, out, error);
}

/* Appends the ops of an action to the sequence of its rank; false when it may not have it. */
static bool read_action(const struct weft_problem *problem, const struct weft_action *action,
                        uint32_t rank, uint32_t *done, uint32_t *ops, uint32_t *size) {
  const bool is_forward = action->op == WEFT_OP_F, is_weight = action->op == WEFT_OP_W;
  const bool is_whole = action->op == WEFT_OP_B;
  if (action->stage >= problem->stage_count || problem->stages[action->stage].rank != rank ||
      !(is_forward || is_whole || (problem->may_split && (is_weight || action->op == WEFT_OP_I)))) {
    return false;
  }
  const enum weft_plan_op_kind kind = is_forward  ? WEFT_KIND_F
                                      : is_weight ? WEFT_KIND_W
                                                  : WEFT_KIND_I;
  const uint32_t first = action->stage * (uint32_t)WEFT_ORDER_KINDS, k = action->microbatch;
  uint32_t *own = &done[first];
  if (k != own[kind] || k >= problem->microbatch_count || (!is_forward && own[kind - 1] <= k) ||
      (is_whole && own[WEFT_KIND_W] != k)) {
    return false;
  }
  for (uint32_t n = kind; n <= (is_whole ? WEFT_KIND_W : kind); n++) {
    own[n]++;
    ops[(*size)++] = first + n;
  }
  return true;
}

static bool is_ignored(enum weft_op op) { return op == WEFT_OP_IDLE || op == WEFT_OP_REDUCE_GRAD; }

static enum weft_status read_row(const struct weft_problem *problem,
                                 const struct weft_program *table, uint32_t rank, uint32_t *done,
                                 uint32_t *ops, struct weft_error *error) {
  const uint32_t length = problem->begin[rank + 1] - problem->begin[rank];
  uint32_t size = 0;
  for (uint64_t n = table->row_begin[rank]; n < table->row_begin[rank + 1]; n++) {
    const struct weft_action *action = &table->actions[n];
    char text[64];
    if (!is_ignored(action->op) && !read_action(problem, action, rank, done, ops, &size)) {
      return weft_fail(error, WEFT_ERR_INVALID, "", "rank %" PRIu32 ": a plan cannot have %s here",
                       rank, weft_action_format(action, text, sizeof text));
    }
  }
  return size == length ? WEFT_OK
                        : weft_fail(error, WEFT_ERR_INVALID, "",
                                    "rank %" PRIu32 " has %" PRIu32 " actions, a plan %" PRIu32,
                                    rank, size, length);
}

enum weft_status weft_order_read(const struct weft_problem *problem,
                                 const struct weft_program *table, struct weft_order *order,
                                 struct weft_error *error) {
  assert(!weft_problem_mixes(problem) && table != NULL && order->ops != NULL);
  if (table->rank_count != problem->rank_count || table->stage_count != problem->stage_count ||
      table->microbatch_count != problem->microbatch_count) {
    return weft_fail(error, WEFT_ERR_INVALID, "", "the table has another shape than the plan");
  }
  const size_t counters = (size_t)problem->stage_count * WEFT_ORDER_KINDS;
  WEFT_SCOPED_ARENA arena = {.allocator = problem->allocator};
  uint32_t *done = weft_arena_allocate(&arena, counters, sizeof *done);
  WEFT_TRY(weft_arena_status(&arena, error));
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    WEFT_TRY(read_row(problem, table, r, done, order->ops + problem->begin[r], error));
  }
  memset(order->whole, !problem->may_split,
         (size_t)problem->stage_count * problem->microbatch_count);
  return WEFT_OK;
}
