/* From costs to ticks: find the denominator that all times share. */
#include "sim/sim_ticks.h"

#include <assert.h>
#include <math.h>

#include "spec/costs_fields.h"

#define PER_UNIT_MAX 1e9

/* Of fractions with a denominator up to this a common one is looked for. */
enum { FACTOR_MAX = 1000 };

static bool is_whole(double x) {
  /* A decimal such as 18.522 times its denominator is off by a few units in the
   * last place of a double. */
  return fabs(x - nearbyint(x)) <= 1e-12 * fmax(1, fabs(x));
}

/* Makes time × per_unit whole, if a small factor does. */
static void refine(double *per_unit, double time) {
  for (int factor = 1; factor <= FACTOR_MAX; factor++) {
    if (is_whole(time * *per_unit * factor)) {
      *per_unit = fmin(*per_unit * factor, PER_UNIT_MAX);
      return;
    }
  }
  *per_unit = PER_UNIT_MAX;
}

struct scale {
  double per_unit;
  double largest; /* time */
};

static void consider(struct scale *scale, double time) {
  if (time > 0) {
    refine(&scale->per_unit, time);
    scale->largest = fmax(scale->largest, time);
  }
}

static void consider_stage(struct scale *scale, const struct weft_stage_costs *stage) {
  for (enum weft_op op = WEFT_OP_F; op < WEFT_OP_COUNT; op++) {
    consider(scale, weft_stage_time(stage, op));
    if (op == WEFT_OP_W) {
      consider(scale, stage->overlap_f_b);
    }
  }
}

static void consider_channels(struct scale *scale, const struct weft_program *program,
                              const struct weft_hop_costs *hop) {
  const uint32_t channels = weft_channel_count(program->graph, program->stage_count);
  for (uint32_t k = 0; k < channels; k++) {
    consider(scale, weft_hop_transfer(hop, weft_channel_bytes(program->graph, k)));
  }
}

/* How many times are added up at most: an action and a transfer of its own are two of the four that
 * the limit leaves room for. */
static double count_times(const struct weft_program *program) {
  const uint32_t channels = weft_channel_count(program->graph, program->stage_count);
  const double more = channels - 2.0 * program->stage_count;
  return (double)program->action_count + fmax(more, 0) * program->microbatch_count + 1;
}

/* A rank's factor multiplies times, and so the denominators. */
static void consider_factors(struct scale *scale, const struct weft_program *program,
                             const struct weft_sim_options *options) {
  double factors = 1, largest = 1;
  for (uint32_t r = 0; options->rank_factors != NULL && r < program->rank_count; r++) {
    refine(&factors, options->rank_factors[r]);
    largest = fmax(largest, options->rank_factors[r]);
  }
  scale->per_unit = fmin(scale->per_unit * factors, PER_UNIT_MAX);
  scale->largest *= largest * (1 + 10 * options->jitter);
}

static struct scale scale_of(const struct weft_program *program, const struct weft_costs *costs,
                             const struct weft_sim_options *options) {
  struct scale scale = {.per_unit = 1};
  for (uint32_t s = 0; s < costs->stage_count; s++) {
    consider_stage(&scale, &costs->stages[s]);
  }
  consider(&scale, costs->hop.latency);
  consider(&scale, weft_hop_transfer(&costs->hop, -1));
  consider_channels(&scale, program, &costs->hop);
  consider_factors(&scale, program, options);
  /* Jittered times are no fractions of anything. */
  if (options->jitter > 0) {
    scale.per_unit = PER_UNIT_MAX;
  }
  /* No sum of times may overflow; coarser ticks if need be. */
  const double sum_max = scale.largest * count_times(program);
  if (sum_max * scale.per_unit > (double)(INT64_MAX / 4)) {
    scale.per_unit = (double)(INT64_MAX / 4) / sum_max;
  }
  return scale;
}

static struct weft_stage_ticks stage_ticks(const struct weft_stage_costs *stage, double per_unit) {
  struct weft_stage_ticks ticks = {
      .overlap = stage->overlap_f_b < 0 ? -1 : llrint(stage->overlap_f_b * per_unit)};
  for (enum weft_op op = WEFT_OP_F; op < WEFT_OP_COUNT; op++) {
    ticks.compute[op - WEFT_OP_F] = llrint(weft_stage_time(stage, op) * per_unit);
  }
  return ticks;
}

enum weft_status weft_ticks_init(struct weft_ticks *ticks, struct weft_arena *arena,
                                 const struct weft_program *program, const struct weft_costs *costs,
                                 const struct weft_sim_options *options, struct weft_error *error) {
  assert(costs->stage_count > 0);
  WEFT_TRY(weft_costs_check(costs, program->stage_count, error));
  const double per_unit = scale_of(program, costs, options).per_unit;
  assert(per_unit > 0);
  *ticks = (struct weft_ticks){.per_unit = per_unit, .stage_count = costs->stage_count};
  ticks->stages = weft_arena_allocate(arena, costs->stage_count, sizeof *ticks->stages);
  WEFT_TRY(weft_arena_status(arena, error));
  for (uint32_t s = 0; s < costs->stage_count; s++) {
    ticks->stages[s] = stage_ticks(&costs->stages[s], per_unit);
  }
  ticks->latency = llrint(costs->hop.latency * per_unit);
  ticks->occupancy = weft_ticks_occupancy(ticks, &costs->hop, -1);
  return WEFT_OK;
}

int64_t weft_ticks_occupancy(const struct weft_ticks *ticks, const struct weft_hop_costs *hop,
                             double bytes) {
  assert(ticks->per_unit > 0);
  return llrint(weft_hop_transfer(hop, bytes) * ticks->per_unit);
}
