/* Converts a placement and its costs into the planner's integers. */
#include "plan/problem/chain.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>

#include <weft/support.h>

#include "ir/program.h"
#include "sim/sim_ticks.h"

/* Sizes are integers, this many to the unit unless sums would overflow. */
#define SIZES_PER_UNIT 1e9

static uint64_t op_count(const struct weft_shape *shape, enum weft_plan_backward backward) {
  return (uint64_t)shape->stages_per_rank * shape->microbatches *
         (backward == WEFT_BACKWARD_WHOLE ? 2 : 3);
}

bool weft_costs_gain_from_whole(const struct weft_costs *costs) {
  assert(costs != NULL);
  for (uint32_t s = 0; s < costs->stage_count; s++) {
    const struct weft_stage_costs *stage = &costs->stages[s];
    if (stage->b < stage->i + stage->w || stage->activation_after_i > stage->activation) {
      return true;
    }
  }
  return false;
}

static enum weft_plan_backward backward_of(const struct weft_costs *costs, bool whole,
                                           bool uniform) {
  return whole                                           ? WEFT_BACKWARD_WHOLE
         : !uniform && weft_costs_gain_from_whole(costs) ? WEFT_BACKWARD_MIXED
                                                         : WEFT_BACKWARD_SPLIT;
}

static enum weft_status check_shape(const struct weft_shape *shape,
                                    enum weft_plan_backward backward, struct weft_error *error) {
  const uint64_t stages = (uint64_t)shape->ranks * shape->stages_per_rank;
  const uint64_t length = op_count(shape, backward);
  if (stages == 0 || shape->microbatches == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "give each of them at least 1",
                     "%" PRIu32 " ranks with %" PRIu32 " stages each and %" PRIu32
                     " microbatches make no pipeline",
                     shape->ranks, shape->stages_per_rank, shape->microbatches);
  }
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

/* ---- Memory ---- */

static double size_sum(const struct weft_chain *problem, const struct weft_costs *costs) {
  double sum = 1;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_stage_costs *stage = weft_costs_of(costs, s);
    sum += (stage->activation + stage->activation_after_i) * problem->microbatch_count +
           stage->parameters + stage->gradients + stage->gradients_sharded;
  }
  return sum;
}

static const struct weft_stage_costs *costs_at(const struct weft_chain *problem,
                                               const struct weft_costs *costs, uint32_t rank,
                                               uint32_t local_stage) {
  return weft_costs_of(costs, problem->stage_of[rank * problem->stages_per_rank + local_stage]);
}

/* With one stage per rank, the limit can be reduced by its gradients: when they come, everything
 * that was held before is still held. */
static bool counts_gradients(const struct weft_chain *problem) {
  return problem->stages_per_rank > 1;
}

/* What comes with the first backward; a part of the gradients may be there from the beginning. */
static double late_gradients(const struct weft_stage_costs *stage) {
  return fmax(0, stage->gradients - stage->gradients_sharded);
}

double weft_chain_kept(const struct weft_chain *problem, const struct weft_costs *costs,
                       uint32_t rank) {
  assert(rank < problem->rank_count);
  double size = 0;
  for (uint32_t k = 0; k < problem->stages_per_rank; k++) {
    const struct weft_stage_costs *stage = costs_at(problem, costs, rank, k);
    size += stage->parameters + stage->gradients_sharded;
    size += counts_gradients(problem) ? 0 : late_gradients(stage);
  }
  return size;
}

int64_t weft_chain_limit_at_end(const struct weft_chain *problem, uint32_t rank) {
  assert(rank < problem->rank_count);
  int64_t limit = problem->limit[rank];
  for (uint32_t k = 0; k < problem->stages_per_rank; k++) {
    limit -= problem->stages[problem->stage_of[rank * problem->stages_per_rank + k]].gradients;
  }
  return limit;
}

static void set_limits(struct weft_chain *problem, const struct weft_costs *costs,
                       double memory_limit) {
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    /* plan_check.c has the same tolerance. */
    const double left = memory_limit * (1 + 1e-9) - weft_chain_kept(problem, costs, r);
    const double size = left * problem->sizes_per_unit;
    problem->limit[r] =
        size >= (double)problem->limit_max ? problem->limit_max : (int64_t)floor(size);
  }
}

static void set_sizes(struct weft_chain *problem, const struct weft_costs *costs) {
  const double sum = size_sum(problem, costs);
  problem->sizes_per_unit = fmin(SIZES_PER_UNIT, (double)(INT64_MAX / 8) / sum);
  problem->limit_max = (int64_t)(sum * problem->sizes_per_unit);
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_stage_costs *stage = weft_costs_of(costs, s);
    problem->stages[s].held = llrint(stage->activation * problem->sizes_per_unit);
    problem->stages[s].held_after = llrint(stage->activation_after_i * problem->sizes_per_unit);
    problem->stages[s].gradients =
        counts_gradients(problem) ? llrint(late_gradients(stage) * problem->sizes_per_unit) : 0;
  }
}

/* ---- Times ---- */

/* Takes the simulator's ticks, so that both compute with the same numbers. */
static enum weft_status set_times(struct weft_chain *problem, const struct weft_costs *costs,
                                  struct weft_error *error) {
  const struct weft_program like = {
      .rank_count = problem->rank_count,
      .stage_count = problem->stage_count,
      .action_count = (uint64_t)problem->rank_count * problem->length};
  const struct weft_sim_options options = weft_sim_options_default();
  struct weft_ticks ticks;
  WEFT_TRY(weft_ticks_init(&ticks, problem->allocator, &like, costs, &options, error));
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_stage_ticks *from = weft_ticks_of(&ticks, s);
    int64_t *time = problem->stages[s].time;
    time[WEFT_KIND_F] = from->compute[0];
    time[WEFT_KIND_B] = from->compute[WEFT_OP_B - WEFT_OP_F];
    time[WEFT_KIND_I] = from->compute[WEFT_OP_I - WEFT_OP_F];
    time[WEFT_KIND_W] = from->compute[WEFT_OP_W - WEFT_OP_F];
  }
  problem->ticks_per_unit = ticks.per_unit;
  problem->latency = ticks.latency;
  problem->occupancy = ticks.occupancy;
  weft_ticks_finish(&ticks);
  return WEFT_OK;
}

/* ---- The problem ---- */

static void place_stages(struct weft_chain *problem, const struct weft_shape *shape) {
  for (uint32_t r = 0; r < shape->ranks; r++) {
    for (uint32_t k = 0; k < shape->stages_per_rank; k++) {
      const uint32_t stage = weft_shape_stage_of(shape, r, k);
      problem->stage_of[r * shape->stages_per_rank + k] = stage;
      problem->stages[stage].rank = r;
      problem->stages[stage].local_stage = k;
    }
  }
}

static enum weft_status fill(struct weft_chain *problem, const struct weft_shape *shape,
                             const struct weft_costs *costs, double memory_limit,
                             struct weft_error *error) {
  struct weft_arena *arena = &problem->arena;
  if (!WEFT_ALLOCATE(arena, problem->limit, problem->rank_count) ||
      !WEFT_ALLOCATE(arena, problem->stages, problem->stage_count) ||
      !WEFT_ALLOCATE(arena, problem->stage_of, problem->stage_count)) {
    return weft_fail_memory(error, problem->stage_count * sizeof *problem->stages);
  }
  place_stages(problem, shape);
  WEFT_TRY(set_times(problem, costs, error));
  set_sizes(problem, costs);
  set_limits(problem, costs, memory_limit);
  return WEFT_OK;
}

enum weft_status weft_chain_init(struct weft_chain *problem, const struct weft_allocator *allocator,
                                 const struct weft_shape *shape, const struct weft_costs *costs,
                                 const struct weft_search_request *request,
                                 struct weft_error *error) {
  assert(shape != NULL && costs != NULL && request != NULL);
  const enum weft_plan_backward backward =
      backward_of(costs, request->whole_backward, request->uniform_backward);
  WEFT_TRY(check_shape(shape, backward, error));
  *problem = (struct weft_chain){.allocator = allocator,
                                 .arena = {.allocator = allocator},
                                 .rank_count = shape->ranks,
                                 .stage_count = shape->ranks * shape->stages_per_rank,
                                 .stages_per_rank = shape->stages_per_rank,
                                 .microbatch_count = shape->microbatches,
                                 .length = (uint32_t)op_count(shape, backward),
                                 .backward = backward,
                                 .objective = request->objective,
                                 .placement = shape->placement};
  const enum weft_status status = fill(problem, shape, costs, request->memory_limit, error);
  if (status != WEFT_OK) {
    weft_chain_finish(problem);
  }
  return status;
}

void weft_chain_finish(struct weft_chain *problem) { weft_arena_finish(&problem->arena); }

struct weft_chain weft_chain_restrict(const struct weft_chain *problem,
                                      enum weft_plan_backward backward) {
  assert(problem->backward == WEFT_BACKWARD_MIXED);
  struct weft_chain view = *problem;
  view.backward = backward;
  view.length = problem->length / 3 * (backward == WEFT_BACKWARD_WHOLE ? 2 : 3);
  return view;
}

int64_t weft_chain_hop(const struct weft_chain *problem, uint32_t stage, uint32_t next) {
  assert(stage < problem->stage_count && next < problem->stage_count);
  return problem->stages[stage].rank == problem->stages[next].rank
             ? 0
             : problem->latency + problem->occupancy;
}
