/* Graph problems: from costs to integers, the time of an order, its memory, its table. */
#include "plan/problem/problem.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ir/program_builder.h"
#include "sim/sim_ticks.h"

#define SIZES_PER_UNIT 1e9
enum { OPS_MAX = 1 << 24 };

/* ---- Making a problem ---- */

enum weft_status weft_problem_check(const struct weft_search_request *request,
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
  if (each * request->microbatches > OPS_MAX) {
    return weft_fail(error, WEFT_ERR_LIMIT,
                     "plan for fewer microbatches; the order of the steady state repeats",
                     "%" PRIu32 " microbatches with %" PRIu64
                     " actions and messages each are more than the %d that a plan of a graph may "
                     "have",
                     request->microbatches, each, OPS_MAX);
  }
  return weft_costs_check(request->costs, graph->stage_count, error);
}

static bool allocate(struct weft_problem *problem) {
  struct weft_arena *arena = &problem->arena;
  const uint32_t n = problem->stage_count, p = problem->rank_count;
  const size_t channels = 2 * (size_t)problem->graph->edge_count;
  problem->occupancy = weft_arena_allocate(arena, channels, sizeof(int64_t));
  problem->crosses = weft_arena_allocate(arena, channels, sizeof(bool));
  problem->limit = weft_arena_allocate(arena, p, sizeof(int64_t));
  problem->stages = weft_arena_allocate(arena, n, sizeof *problem->stages);
  problem->begin = weft_arena_allocate(arena, p + (size_t)1, sizeof(uint32_t));
  problem->stage_of = weft_arena_allocate(arena, n, sizeof(uint32_t));
  problem->first_of = weft_arena_allocate(arena, p + (size_t)1, sizeof(uint32_t));
  problem->height = weft_arena_allocate(arena, n, sizeof(uint32_t));
  problem->round_trip = weft_arena_allocate(arena, n, sizeof(int64_t));
  return arena->failed_bytes == 0;
}

static void place(struct weft_problem *problem, const uint32_t *rank_of) {
  const struct weft_graph *graph = problem->graph;
  uint32_t listed = 0, ops = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    problem->first_of[r] = listed;
    problem->begin[r] = ops;
    for (uint32_t s = 0; s < problem->stage_count; s++) {
      if (rank_of[s] == r) {
        struct weft_problem_stage *stage = &problem->stages[s];
        stage->rank = r;
        stage->trains = weft_graph_has_backward(graph, s);
        problem->stage_of[listed++] = s;
        ops += problem->microbatch_count * (stage->trains ? WEFT_ORDER_KINDS : 1);
      }
    }
  }
  problem->first_of[problem->rank_count] = listed;
  problem->begin[problem->rank_count] = ops;
  for (uint32_t e = graph->edge_count; e-- > 0;) {
    const struct weft_edge *edge = &graph->edges[e];
    const uint32_t height = problem->height[edge->to] + 1;
    uint32_t *own = &problem->height[edge->from];
    *own = height > *own ? height : *own;
    problem->height_max = *own > problem->height_max ? *own : problem->height_max;
    problem->crosses[2 * e] = problem->crosses[2 * e + 1] =
        rank_of[edge->from] != rank_of[edge->to];
  }
}

/* Takes the simulator's ticks, so that both compute with the same numbers. */
static enum weft_status set_times(struct weft_problem *problem,
                                  const struct weft_search_request *request,
                                  struct weft_error *error) {
  const struct weft_program like = {.rank_count = problem->rank_count,
                                    .stage_count = problem->stage_count,
                                    .action_count = weft_problem_op_count(problem),
                                    .graph = (struct weft_graph *)problem->graph};
  const struct weft_sim_options options = weft_sim_options_default();
  struct weft_ticks ticks;
  WEFT_TRY(weft_ticks_init(&ticks, problem->allocator, &like, request->costs, &options, error));
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const int64_t *compute = weft_ticks_of(&ticks, s)->compute;
    struct weft_problem_stage *stage = &problem->stages[s];
    stage->f = compute[0];
    stage->b = compute[WEFT_OP_B - WEFT_OP_F];
    stage->i = compute[WEFT_OP_I - WEFT_OP_F];
    stage->w = compute[WEFT_OP_W - WEFT_OP_F];
    const struct weft_stage_costs *costs = weft_costs_of(request->costs, s);
    problem->may_join =
        problem->may_join || (stage->trains && (stage->b < stage->i + stage->w ||
                                                costs->activation_after_i > costs->activation));
  }
  for (uint32_t c = 0; c < 2 * problem->graph->edge_count; c++) {
    const struct weft_edge *edge = &problem->graph->edges[c / 2];
    problem->occupancy[c] = weft_ticks_occupancy(&ticks, &request->costs->hop,
                                                 c % 2 == 0 ? edge->bytes : edge->gradient_bytes);
  }
  problem->latency = ticks.latency;
  problem->ticks_per_unit = ticks.per_unit;
  weft_ticks_finish(&ticks);
  return WEFT_OK;
}

static void set_sizes(struct weft_problem *problem, const struct weft_search_request *request) {
  double sum = 1;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_stage_costs *costs = weft_costs_of(request->costs, s);
    sum += (costs->activation + costs->activation_after_i) * problem->microbatch_count +
           costs->parameters + costs->gradients + costs->gradients_sharded;
  }
  problem->sizes_per_unit = fmin(SIZES_PER_UNIT, (double)(INT64_MAX / 8) / sum);
  const double most = sum * problem->sizes_per_unit;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    double left = request->memory_limit * (1 + 1e-9); /* plan_check.c has the same tolerance */
    for (uint32_t k = problem->first_of[r]; k < problem->first_of[r + 1]; k++) {
      const uint32_t s = problem->stage_of[k];
      const struct weft_stage_costs *costs = weft_costs_of(request->costs, s);
      struct weft_problem_stage *stage = &problem->stages[s];
      left -= costs->parameters + costs->gradients_sharded;
      stage->held = llrint(costs->activation * problem->sizes_per_unit);
      stage->held_after = llrint(costs->activation_after_i * problem->sizes_per_unit);
      stage->gradients =
          llrint(fmax(0, costs->gradients - costs->gradients_sharded) * problem->sizes_per_unit);
    }
    const double size = left * problem->sizes_per_unit;
    problem->limit[r] = size >= most ? (int64_t)most : (int64_t)floor(size);
  }
}

enum weft_status weft_problem_init(struct weft_problem *problem,
                                   const struct weft_allocator *allocator,
                                   const struct weft_search_request *request,
                                   const uint32_t *rank_of, struct weft_error *error) {
  assert(request->graph != NULL && rank_of != NULL);
  *problem = (struct weft_problem){.allocator = allocator,
                                   .arena = {.allocator = allocator},
                                   .graph = request->graph,
                                   .rank_count = request->ranks,
                                   .stage_count = request->graph->stage_count,
                                   .microbatch_count = request->microbatches,
                                   .objective = request->objective,
                                   .may_split = !request->whole_backward,
                                   .may_join = request->whole_backward};
  enum weft_status status = WEFT_OK;
  if (!allocate(problem)) {
    status = weft_arena_status(&problem->arena, error);
  } else {
    place(problem, rank_of);
    status = set_times(problem, request, error);
  }
  if (status < 0) {
    weft_problem_finish(problem);
    return status;
  }
  problem->may_join = problem->may_join && (request->whole_backward || !request->uniform_backward);
  set_sizes(problem, request);
  return WEFT_OK;
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
  clock->span = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    if (clock->at[r] < problem->begin[r + 1]) {
      return WEFT_NEVER;
    }
    if (clock->first[r] >= 0) {
      const int64_t span = clock->time[r] - clock->first[r];
      first = clock->first[r] < first ? clock->first[r] : first;
      last = clock->time[r] > last ? clock->time[r] : last;
      clock->span = span > clock->span ? span : clock->span;
    }
  }
  clock->makespan = last - (first < INT64_MAX ? first : 0);
  return problem->objective == WEFT_OBJECTIVE_SPAN ? clock->span : clock->makespan;
}

int64_t weft_order_evaluate(const struct weft_problem *problem, struct weft_plan_clock *clock,
                            const struct weft_order *order) {
  assert(clock->arrivals != NULL && order->ops != NULL);
  const uint32_t m = problem->microbatch_count;
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
  uint32_t *done = weft_array_allocate_zero(problem->allocator, counters, sizeof *done);
  if (done == NULL) {
    return weft_fail_memory(error, counters * sizeof *done);
  }
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
  weft_array_free(problem->allocator, done, counters, sizeof *done);
  return weft_program_builder_finish(&rows, problem->graph, out, error);
}
