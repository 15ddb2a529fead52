/* What a step took: from the pipeline's events to times per stage and op, and to the
 * costs that the simulator reads. */
#include <math.h>
#include <string.h>

#include <weft/plan.h>
#include <weft/sim.h>

#include "gpt/fail.h"
#include "gpt/part.h"
#include "gpt/trainer_rank.h"

static bool is_compute(uint32_t op) {
  return op == WEFT_OP_F || op == WEFT_OP_B || op == WEFT_OP_I || op == WEFT_OP_W;
}

/* Most RECVs are posted long before the other rank has computed what they receive; the
 * shortest is the one that waited least, so that most of it is the transfer. */
static void add_transfer(struct weft_gpt_stage_times *times, double duration, bool counts) {
  if (counts && (times->transfer_count == 0 || duration < times->transfer_ns)) {
    times->transfer_ns = duration;
  }
  times->transfer_count += counts;
}

static void add_event(struct weft_gpt_rank *rank, const struct weft_action *action,
                      const struct weft_event *event, bool counts) {
  struct weft_gpt_stage_times *times = &rank->trainer->times[action->stage];
  const double duration = (double)(event->end - event->begin);
  if (action->op == WEFT_OP_RECV_F || action->op == WEFT_OP_RECV_B) {
    add_transfer(times, duration, counts);
    return;
  }
  if (!is_compute(action->op)) {
    return;
  }
  times->total_ns[action->op] += counts ? duration : 0;
  times->count[action->op] += counts;
  rank->busy_ns += event->end - event->begin;
  rank->first_begin = event->begin < rank->first_begin ? event->begin : rank->first_begin;
  rank->last_end = event->end > rank->last_end ? event->end : rank->last_end;
}

void weft_gpt_rank_measure(struct weft_gpt_rank *rank) {
  const struct weft_program *program = weft_pipeline_program(rank->pipeline);
  const bool counts = rank->step > rank->trainer->options.progress.step; /* not the first one */
  uint64_t count;
  weft_pipeline_events(rank->pipeline, rank->events, rank->event_room, &count);
  count = count < rank->event_room ? count : rank->event_room;
  rank->program = program;
  rank->event_count = count;
  rank->busy_ns = 0;
  rank->first_begin = INT64_MAX;
  rank->last_end = INT64_MIN;
  for (uint64_t k = 0; k < count; k++) {
    const struct weft_action *action = &program->actions[rank->events[k].record];
    const bool part_of_overlap = k > 0 && rank->events[k].begin == rank->events[k - 1].begin &&
                                 action->op != WEFT_OP_F && is_compute(action->op);
    if (!part_of_overlap) {
      add_event(rank, action, &rank->events[k], counts);
    }
  }
}

/* ---- Costs ---- */

static double mean_ms(const struct weft_gpt_stage_times *times, enum weft_op op) {
  return times->count[op] > 0 ? times->total_ns[op] / (double)times->count[op] * 1e-6 : NAN;
}

static void fill_costs(const struct weft_gpt_stage_times *times, struct weft_stage_costs *costs) {
  const double f = mean_ms(times, WEFT_OP_F), b = mean_ms(times, WEFT_OP_B);
  double i = mean_ms(times, WEFT_OP_I), w = mean_ms(times, WEFT_OP_W);
  costs->f = isnan(f) ? 0 : f;
  if (isnan(i) || isnan(w)) { /* the schedule does not split: halves, as good a guess as any */
    i = w = isnan(b) ? 0 : b / 2;
  }
  costs->i = i;
  costs->w = w;
  costs->b = isnan(b) ? i + w : b;
}

enum weft_status weft_gpt_trainer_costs(const struct weft_gpt_trainer *trainer,
                                        struct weft_costs **out, struct weft_error *error) {
  if (trainer->times[0].count[WEFT_OP_F] == 0) {
    return weft_gpt_fail(error, WEFT_ERR_USAGE, "train at least two steps",
                         "nothing has been measured yet: the first step is a warm-up");
  }
  struct weft_costs *costs;
  WEFT_GPT_TRY(weft_costs_create(trainer->allocator, trainer->stage_count, &costs, error));
  double transfer_ns = 0, transfers = 0;
  memcpy(costs->unit, "ms", 3);
  for (uint32_t s = 0; s < trainer->stage_count; s++) {
    const struct weft_gpt_stage *stage = trainer->stages[s];
    fill_costs(&trainer->times[s], &costs->stages[s]);
    transfer_ns += trainer->times[s].transfer_ns;
    transfers += trainer->times[s].transfer_count > 0;
    costs->stages[s].activation = 0;
    for (uint32_t k = 0; k < stage->part_count; k++) {
      const double floats = (double)weft_gpt_part_kept(
          stage->config, stage->first_part + k, stage->sequences_max, stage->config->context);
      costs->stages[s].activation += floats * sizeof(float) / 1048576; /* MiB */
    }
    costs->stages[s].activation_after_i = costs->stages[s].activation;
  }
  costs->hop.latency = transfers > 0 ? transfer_ns / transfers * 1e-6 : 0;
  *out = costs;
  return WEFT_OK;
}

double weft_gpt_trainer_predict(const struct weft_gpt_trainer *trainer,
                                const struct weft_program *program) {
  struct weft_costs *costs = NULL;
  struct weft_simulation *simulation = NULL;
  double bubble = NAN;
  if (program == NULL || weft_gpt_trainer_costs(trainer, &costs, NULL) < 0) {
    return NAN;
  }
  struct weft_sim_options options = weft_sim_options_default();
  options.no_events = true;
  if (weft_simulate(trainer->allocator, program, costs, &options, &simulation, NULL) == WEFT_OK) {
    bubble = simulation->bubble_ratio;
    weft_simulation_destroy(simulation);
  }
  weft_costs_destroy(costs);
  return bubble;
}
