/* What a step took: from the pipeline's events to times per stage and op, from the
 * stages' clocks to times per layer, and to the costs that the simulator and --split read. */
#include <math.h>
#include <string.h>

#include <weft/sim.h>
#include <weft/source.h>
#include <weft/support.h>

#include "gpt/model/aligned_memory.h"
#include "gpt/model/layer.h"
#include "gpt/train/trainer_rank.h"

/* ---- Events ---- */

enum weft_status weft_gpt_rank_make_event_room(struct weft_gpt_rank *rank,
                                               struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const struct weft_allocator *allocator = trainer->allocator;
  const uint64_t room = rank->event_room;
  const bool gathers = trainer->options.gather_events && rank->pipeline_group != NULL &&
                       trainer->local_count < trainer->world_size;
  weft_gpt_free(allocator, rank->events);
  weft_gpt_free(allocator, rank->all_events);
  rank->event_count = rank->all_event_count = 0;
  rank->events = weft_gpt_allocate(allocator, room, sizeof *rank->events);
  rank->all_events = gathers ? weft_gpt_allocate(allocator, room * trainer->options.ranks,
                                                 sizeof *rank->all_events)
                             : NULL;
  return rank->events != NULL && (rank->all_events != NULL || !gathers)
             ? WEFT_OK
             : weft_fail_memory(error, room * sizeof *rank->events);
}

static bool is_compute(uint32_t op) {
  return op == WEFT_OP_F || op == WEFT_OP_B || op == WEFT_OP_I || op == WEFT_OP_W;
}

/* From SEND to where it was taken: which a rank that computes does late. The shortest is
 * the one that waited least, so that most of it is the transfer. */
static void add_arrival(struct weft_gpt_stage_times *times, enum weft_op op, double duration,
                        bool counts) {
  double *shortest = &times->arrival_ns[op == WEFT_OP_RECV_B];
  if (counts && (*shortest <= 0 || duration < *shortest)) {
    *shortest = fmax(duration, 1);
  }
}

/* Collectives wait for other replicas: likewise. */
static void add_collective(struct weft_gpt_stage_times *times, enum weft_op op, double duration,
                           bool counts) {
  double *shortest = op == WEFT_OP_UNSHARD ? &times->unshard_ns : &times->reduce_grad_ns;
  if (counts && (*shortest <= 0 || duration < *shortest)) {
    *shortest = duration;
  }
}

static void add_event(struct weft_gpt_rank *rank, const struct weft_action *action,
                      const struct weft_event *event, bool counts) {
  struct weft_gpt_stage_times *times = &rank->times[action->stage];
  const double duration = (double)(event->end - event->begin);
  if (action->op == WEFT_OP_RECV_F || action->op == WEFT_OP_RECV_B) {
    add_arrival(times, (enum weft_op)action->op, duration, counts);
    return;
  }
  if (action->op == WEFT_OP_UNSHARD || action->op == WEFT_OP_REDUCE_GRAD) {
    add_collective(times, (enum weft_op)action->op, duration, counts);
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

static void forget_layer_times(const struct weft_gpt_rank *rank) {
  for (uint32_t n = 0; n < rank->own_stage_count; n++) {
    const struct weft_gpt_stage *stage = rank->stages[rank->own_stages[n]];
    memset(stage->times, 0, stage->layer_count * sizeof *stage->times);
  }
}

void weft_gpt_rank_measure(struct weft_gpt_rank *rank) {
  const struct weft_program *program = weft_pipeline_program(rank->pipeline);
  const bool counts = rank->step > rank->trainer->options.training.step; /* not the first one */
  const uint64_t room = rank->event_room;
  uint64_t count;
  weft_pipeline_events(rank->pipeline, rank->events, room, &count);
  count = count < room ? count : room;
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
  if (!counts) {
    forget_layer_times(rank);
  }
}

void weft_gpt_rank_forget(struct weft_gpt_rank *rank) {
  memset(rank->times, 0, rank->trainer->stage_count * sizeof *rank->times);
  forget_layer_times(rank);
}

/* ---- Means ---- */

static float mean_ms(const struct weft_gpt_stage_times *times, enum weft_op op) {
  return times->count[op] > 0 ? (float)(times->total_ns[op] / (double)times->count[op] * 1e-6)
                              : NAN;
}

struct weft_gpt_stage_means weft_gpt_rank_means(const struct weft_gpt_rank *rank, uint32_t stage) {
  const struct weft_gpt_stage_times *times = &rank->times[stage];
  return (struct weft_gpt_stage_means){
      .f = mean_ms(times, WEFT_OP_F),
      .b = mean_ms(times, WEFT_OP_B),
      .i = mean_ms(times, WEFT_OP_I),
      .w = mean_ms(times, WEFT_OP_W),
      .arrival = {(float)(times->arrival_ns[0] * 1e-6), (float)(times->arrival_ns[1] * 1e-6)},
      .unshard = (float)(times->unshard_ns * 1e-6),
      .reduce_grad = (float)(times->reduce_grad_ns * 1e-6)};
}

static float layer_ms(const struct weft_gpt_layer_times *times, enum weft_gpt_pass pass) {
  const uint64_t count = times->count[pass];
  return count > 0 ? (float)((double)times->total_ns[pass] / (double)count * 1e-6) : 0;
}

struct weft_gpt_layer_means weft_gpt_rank_layer_means(const struct weft_gpt_rank *rank,
                                                      uint32_t layer) {
  uint32_t k;
  const struct weft_gpt_stage *stage = weft_gpt_rank_stage(rank, layer, &k);
  const struct weft_gpt_layer_times *times = &stage->times[k];
  return (struct weft_gpt_layer_means){.f = layer_ms(times, WEFT_GPT_PASS_F),
                                       .i = layer_ms(times, WEFT_GPT_PASS_I),
                                       .w = layer_ms(times, WEFT_GPT_PASS_W)};
}

/* ---- Costs ---- */

/* The share of a stage's backward that is I: a schedule that does not split it has no
 * events of I and W, but layers are timed apart. */
static double input_share(const struct weft_gpt_rank *rank, uint32_t s) {
  const uint32_t *first = rank->trainer->first_layers;
  double i = 0, w = 0;
  for (uint32_t p = first[s]; p < first[s + 1]; p++) {
    i += (double)rank->layer_means[p].i;
    w += (double)rank->layer_means[p].w;
  }
  return i + w > 0 ? i / (i + w) : 0.5;
}

static void fill_times(const struct weft_gpt_rank *rank, uint32_t s,
                       struct weft_stage_costs *costs) {
  const struct weft_gpt_stage_means *means = &rank->means[s];
  const bool splits = !isnan(means->i) && !isnan(means->w);
  const double b = isnan(means->b) ? 0 : (double)means->b, i = input_share(rank, s) * b;
  costs->f = isnan(means->f) ? 0 : (double)means->f;
  costs->i = splits ? (double)means->i : i;
  costs->w = splits ? (double)means->w : b - i;
  costs->b = isnan(means->b) ? costs->i + costs->w : (double)means->b;
  costs->unshard = (double)means->unshard;
  costs->reduce_grad = (double)means->reduce_grad;
}

/* Of a range of layers, in MiB: of what a microbatch keeps; and of parameters and gradients. What is whole
 * for a while comes to what is kept. */
static void fill_sizes(const struct weft_gpt_trainer *trainer, uint32_t first, uint32_t count,
                       struct weft_stage_costs *costs) {
  const struct weft_gpt_config *config = &trainer->config;
  const enum weft_gpt_shard shard = trainer->options.shard;
  const uint32_t replicas = trainer->options.replicas;
  const double unit = sizeof(float) / 1048576.0;
  costs->activation = 0;
  for (uint32_t k = 0; k < count; k++) {
    costs->activation += unit * (double)weft_gpt_layer_saved(
                                    config, first + k, trainer->sequences_max, config->context);
  }
  costs->activation_after_i = costs->activation;
  const double whole = unit * (double)weft_gpt_unsharded_floats(config, first, count, replicas);
  const double slices = whole / replicas;
  const bool cut = shard != WEFT_GPT_SHARD_NONE, full = shard == WEFT_GPT_SHARD_FULL;
  costs->parameters = full ? whole + slices : whole;
  costs->parameters_sharded = full ? slices : whole;
  costs->gradients = cut ? whole + slices : whole;
  costs->gradients_sharded = cut ? slices : whole;
}

/* Sizes are those of a stage with nothing else on it. */
static void fill_layers(const struct weft_gpt_rank *rank, struct weft_costs *costs) {
  for (uint32_t p = 0; p < costs->part_count; p++) {
    const struct weft_gpt_layer_means *means = &rank->layer_means[p];
    struct weft_stage_costs alone;
    fill_sizes(rank->trainer, p, 1, &alone);
    costs->parts[p] = (struct weft_part_costs){.f = (double)means->f,
                                               .i = (double)means->i,
                                               .w = (double)means->w,
                                               .activation = alone.activation,
                                               .activation_after_i = alone.activation_after_i,
                                               .parameters = alone.parameters,
                                               .gradients = alone.gradients};
  }
}

/* Over a boundary go activations and gradients. Where the rank on one side computes all
 * the time, what it gets always waits, and what the other side gets does not. */
static void fill_hop(const struct weft_gpt_rank *rank, struct weft_costs *costs) {
  double sum = 0, count = 0;
  for (uint32_t s = 0; s + 1 < costs->stage_count; s++) {
    const double up = (double)rank->means[s + 1].arrival[0];
    const double down = (double)rank->means[s].arrival[1];
    const double shortest = up > 0 && (down <= 0 || up < down) ? up : down;
    sum += shortest;
    count += shortest > 0;
  }
  costs->hop.latency = count > 0 ? sum / count : 0;
}

static enum weft_status check_measured(const struct weft_gpt_rank *rank, struct weft_error *error) {
  return isnan(rank->means[0].f)
             ? weft_fail(error, WEFT_ERR_USAGE, "train at least two steps",
                         "nothing has been measured yet: the first step is a warm-up")
             : WEFT_OK;
}

static enum weft_status make_costs(const struct weft_gpt_rank *rank, struct weft_costs **out,
                                   struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  struct weft_costs *costs;
  WEFT_TRY(check_measured(rank, error));
  WEFT_TRY(weft_costs_create(trainer->allocator, trainer->stage_count, &costs, error));
  const enum weft_status status = weft_costs_add_parts(costs, trainer->layer_count, error);
  if (status < 0) {
    weft_costs_destroy(costs);
    return status;
  }
  memcpy(costs->unit, "ms", 3);
  fill_layers(rank, costs);
  for (uint32_t s = 0; s < trainer->stage_count; s++) {
    fill_times(rank, s, &costs->stages[s]);
    fill_sizes(trainer, trainer->first_layers[s],
               trainer->first_layers[s + 1] - trainer->first_layers[s], &costs->stages[s]);
  }
  fill_hop(rank, costs);
  *out = costs;
  return WEFT_OK;
}

enum weft_status weft_gpt_trainer_costs(const struct weft_gpt_trainer *trainer,
                                        struct weft_costs **out, struct weft_error *error) {
  return make_costs(&trainer->ranks[0], out, error);
}

/* ---- Costs for the planner ---- */

/* In virtual time actions take none; what their layers have taken is real. */
static void add_up_layers(const struct weft_gpt_rank *rank, uint32_t s,
                          struct weft_stage_costs *costs) {
  const uint32_t *first = rank->trainer->first_layers;
  costs->f = costs->i = costs->w = 0;
  for (uint32_t p = first[s]; p < first[s + 1]; p++) {
    costs->f += (double)rank->layer_means[p].f;
    costs->i += (double)rank->layer_means[p].i;
    costs->w += (double)rank->layer_means[p].w;
  }
}

/* A microbatch has a slot of the stage, and the buffers of what came in and, from I to W,
 * of the gradient that came back. Moments and scratch are there all the time, so they count
 * with the parameters. */
static void fill_planned_sizes(const struct weft_gpt_trainer *trainer, uint32_t s,
                               struct weft_stage_costs *costs) {
  const struct weft_gpt_config *config = &trainer->config;
  const uint64_t sequences = trainer->sequences_max;
  const uint32_t first = trainer->first_layers[s], count = trainer->first_layers[s + 1] - first;
  const double unit = sizeof(float) / 1048576.0;
  const double row = unit * (double)(sequences * config->context * config->dim);
  uint64_t scratch = 0;
  fill_sizes(trainer, first, count, costs);
  costs->activation =
      unit * (double)weft_gpt_slot_floats(config, sequences, first, count) + (s > 0 ? row : 0);
  costs->activation_after_i = costs->activation + (s + 1 < trainer->stage_count ? row : 0);
  for (uint32_t k = 0; k < count; k++) {
    const uint64_t layer = weft_gpt_layer_scratch(config, first + k, sequences, config->context);
    scratch = layer > scratch ? layer : scratch;
  }
  const double whole =
      unit * (double)weft_gpt_unsharded_floats(config, first, count, trainer->options.replicas);
  const bool cut = trainer->options.shard != WEFT_GPT_SHARD_NONE;
  const double moments = 2 * (cut ? whole / trainer->options.replicas : whole);
  costs->parameters += moments + unit * (double)scratch;
  costs->parameters_sharded += moments + unit * (double)scratch;
}

/* A full backward is both halves, one after the other. */
enum weft_status weft_gpt_rank_costs(const struct weft_gpt_rank *rank, struct weft_costs **out,
                                     struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const bool is_virtual = trainer->options.transport == WEFT_GPT_LOOPBACK;
  WEFT_TRY(check_measured(rank, error));
  WEFT_TRY(weft_costs_create(trainer->allocator, trainer->stage_count, out, error));
  memcpy((*out)->unit, "ms", 3);
  for (uint32_t s = 0; s < trainer->stage_count; s++) {
    struct weft_stage_costs *stage = &(*out)->stages[s];
    fill_times(rank, s, stage);
    if (is_virtual) {
      add_up_layers(rank, s, stage);
    }
    stage->b = stage->i + stage->w;
    fill_planned_sizes(trainer, s, stage);
  }
  if (!is_virtual) {
    fill_hop(rank, *out);
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_trainer_estimate(const struct weft_gpt_trainer *trainer,
                                           struct weft_costs **out, struct weft_error *error) {
  const double block = weft_gpt_layer_work(&trainer->config, 1);
  WEFT_TRY(weft_costs_create(trainer->allocator, trainer->stage_count, out, error));
  for (uint32_t s = 0; s < trainer->stage_count; s++) {
    struct weft_stage_costs *stage = &(*out)->stages[s];
    double work = 0;
    for (uint32_t p = trainer->first_layers[s]; p < trainer->first_layers[s + 1]; p++) {
      work += weft_gpt_layer_work(&trainer->config, p) / block;
    }
    stage->f = stage->i = stage->w = work;
    stage->b = 2 * work;
    fill_planned_sizes(trainer, s, stage);
  }
  return WEFT_OK;
}

/* ---- The bubble ---- */

double weft_gpt_rank_predict(const struct weft_gpt_rank *rank) {
  const struct weft_allocator *allocator = rank->trainer->allocator;
  struct weft_costs *costs = NULL;
  struct weft_simulation *simulation = NULL;
  double bubble = NAN;
  if (rank->program == NULL || make_costs(rank, &costs, NULL) < 0) {
    return NAN;
  }
  struct weft_sim_options options = weft_sim_options_default();
  options.no_events = true;
  if (weft_simulate(allocator, rank->program, costs, &options, &simulation, NULL) == WEFT_OK) {
    bubble = simulation->bubble_ratio;
    weft_simulation_destroy(simulation);
  }
  weft_costs_destroy(costs);
  return bubble;
}
