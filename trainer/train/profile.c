/* Measured times: from the pipeline's events to times per stage and op, from the stages' clocks
 * to times per layer, and from both to the costs that the simulator, the planner and --split
 * read. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include <weft/sim.h>
#include <weft/source.h>
#include <weft/support.h>

#include "trainer/model/layer.h"
#include "trainer/train/rank.h"

WEFT_SCOPED_TYPE(weft_costs)
WEFT_SCOPED_TYPE(weft_simulation)

/* ---- Memory ---- */

enum weft_status weft_gpt_profile_init(struct weft_gpt_rank *rank, struct weft_error *error) {
  const uint32_t stages = rank->trainer->stage_count, layers = rank->trainer->layer_count;
  struct weft_gpt_profile *profile = &rank->profile;
  profile->times = weft_arena_allocate(&rank->arena, stages, sizeof *profile->times);
  profile->means = weft_arena_allocate(&rank->arena, stages, sizeof *profile->means);
  profile->layer_means = weft_arena_allocate(&rank->arena, layers, sizeof *profile->layer_means);
  WEFT_TRY(weft_arena_status(&rank->arena, error));
  for (uint32_t s = 0; s < stages; s++) {
    profile->means[s].ms[WEFT_OP_F] = NAN;
  }
  return WEFT_OK;
}

void weft_gpt_profile_finish(struct weft_gpt_rank *rank) {
  weft_arena_finish(&rank->profile.event_arena);
}

enum weft_status weft_gpt_profile_reserve(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  struct weft_gpt_profile *profile = &rank->profile;
  struct weft_arena *arena = &profile->event_arena;
  const uint64_t capacity = profile->event_capacity;
  const bool gathers = trainer->options.gather_events && rank->pipeline_group != NULL &&
                       trainer->local_count < trainer->world_size;
  weft_arena_finish(arena);
  arena->allocator = trainer->allocator;
  profile->event_count = profile->all_event_count = 0;
  profile->events = weft_arena_allocate(arena, capacity, sizeof *profile->events);
  profile->all_events = gathers ? weft_arena_allocate(arena, capacity * trainer->options.ranks,
                                                      sizeof(struct weft_event))
                                : NULL;
  return weft_arena_status(arena, error);
}

/* ---- Events ---- */

static bool is_compute(uint32_t op) {
  return op == WEFT_OP_F || op == WEFT_OP_B || op == WEFT_OP_I || op == WEFT_OP_W;
}

/* A transfer is measured from SEND to where the message was used, and a collective includes the
 * wait for other replicas: the shortest of them waited least, and comes closest to the transfer
 * itself. */
static bool is_transfer(uint32_t op) {
  return op == WEFT_OP_RECV_F || op == WEFT_OP_RECV_B || op == WEFT_OP_UNSHARD ||
         op == WEFT_OP_REDUCE_GRAD;
}

static void add_event(struct weft_gpt_profile *profile, const struct weft_action *action,
                      const struct weft_event *event, bool counts) {
  assert(event->begin <= event->end);
  struct weft_gpt_stage_times *times = &profile->times[action->stage];
  const double duration = (double)(event->end - event->begin);
  double *shortest = &times->shortest_ns[action->op];
  if (is_transfer(action->op) && counts && (*shortest <= 0 || duration < *shortest)) {
    const bool receives = action->op == WEFT_OP_RECV_F || action->op == WEFT_OP_RECV_B;
    *shortest = receives ? fmax(duration, 1) : duration; /* a boundary without messages has 0 */
  }
  if (is_compute(action->op)) {
    times->total_ns[action->op] += counts ? duration : 0;
    times->count[action->op] += counts;
    profile->busy_ns += event->end - event->begin;
    profile->first_begin =
        event->begin < profile->first_begin ? event->begin : profile->first_begin;
    profile->last_end = event->end > profile->last_end ? event->end : profile->last_end;
  }
}

/* Where work is enqueued layers are measured once (layer_times.c). */
static void reset_layer_times(const struct weft_gpt_rank *rank) {
  if (rank->compute->ops->enqueues) {
    return;
  }
  for (uint32_t n = 0; n < rank->own_stage_count; n++) {
    const struct weft_gpt_stage *stage = rank->stages[rank->own_stages[n]];
    memset(stage->times, 0, stage->layer_count * sizeof *stage->times);
  }
}

void weft_gpt_profile_add_step(struct weft_gpt_rank *rank) {
  struct weft_gpt_profile *profile = &rank->profile;
  const bool counts = rank->step > weft_gpt_rank_training(rank)->step;
  uint64_t count;
  profile->program = weft_pipeline_program(rank->pipeline);
  weft_pipeline_events(rank->pipeline, profile->events, profile->event_capacity, &count);
  profile->event_count = count < profile->event_capacity ? count : profile->event_capacity;
  profile->busy_ns = 0;
  profile->first_begin = INT64_MAX;
  profile->last_end = INT64_MIN;
  for (uint64_t k = 0; k < profile->event_count; k++) {
    const struct weft_event *event = &profile->events[k];
    const struct weft_action *action = &profile->program->actions[event->record];
    const bool overlaps = k > 0 && event->begin == event[-1].begin && action->op != WEFT_OP_F &&
                          is_compute(action->op); /* the F has the time of both */
    if (!overlaps) {
      add_event(profile, action, event, counts);
    }
  }
  if (!counts) {
    reset_layer_times(rank);
  }
}

void weft_gpt_profile_reset(struct weft_gpt_rank *rank) {
  memset(rank->profile.times, 0, rank->trainer->stage_count * sizeof *rank->profile.times);
  reset_layer_times(rank);
}

/* ---- Means ---- */

static float mean_ms(const struct weft_gpt_stage_times *times, enum weft_op op) {
  return times->count[op] > 0 ? (float)(times->total_ns[op] / (double)times->count[op] * 1e-6)
                              : NAN;
}

struct weft_gpt_op_means weft_gpt_profile_stage_means(const struct weft_gpt_rank *rank,
                                                      uint32_t stage) {
  assert(stage < rank->trainer->stage_count);
  const struct weft_gpt_stage_times *times = &rank->profile.times[stage];
  struct weft_gpt_op_means means;
  for (unsigned op = 0; op < WEFT_OP_COUNT; op++) {
    means.ms[op] = is_compute(op) ? mean_ms(times, op) : (float)(times->shortest_ns[op] * 1e-6);
  }
  return means;
}

static double layer_ms(const struct weft_gpt_layer_times *times, unsigned pass) {
  assert(pass < WEFT_OP_COUNT);
  return times->count[pass] > 0 ? (double)times->total_ns[pass] / (double)times->count[pass] * 1e-6
                                : 0;
}

/* Layers that were measured by themselves together take as long as their stage does in steps. */
static void scale_to_stage(const struct weft_gpt_rank *rank, const struct weft_gpt_stage *stage,
                           uint32_t number, struct weft_gpt_op_means *means) {
  const struct weft_gpt_op_means of_stage = weft_gpt_profile_stage_means(rank, number);
  const double f = (double)of_stage.ms[WEFT_OP_F], b = (double)of_stage.ms[WEFT_OP_B];
  const double i = (double)of_stage.ms[WEFT_OP_I], w = (double)of_stage.ms[WEFT_OP_W];
  const bool splits = !isnan(i) && !isnan(w);
  double sums[WEFT_OP_COUNT] = {0};
  for (uint32_t k = 0; k < stage->layer_count; k++) {
    for (unsigned pass = 0; pass < WEFT_OP_COUNT; pass++) {
      sums[pass] += layer_ms(&stage->times[k], pass);
    }
  }
  const double backward = b / (sums[WEFT_OP_I] + sums[WEFT_OP_W]);
  const double factors[WEFT_OP_COUNT] = {[WEFT_OP_F] = f / sums[WEFT_OP_F],
                                         [WEFT_OP_I] = splits ? i / sums[WEFT_OP_I] : backward,
                                         [WEFT_OP_W] = splits ? w / sums[WEFT_OP_W] : backward};
  for (unsigned pass = 0; pass < WEFT_OP_COUNT; pass++) {
    if (isfinite(factors[pass])) { /* else the stage was not measured, or has nothing to do */
      means->ms[pass] *= (float)factors[pass];
    }
  }
}

struct weft_gpt_op_means weft_gpt_profile_layer_means(const struct weft_gpt_rank *rank,
                                                      uint32_t layer) {
  assert(layer < rank->trainer->layer_count);
  uint32_t k;
  const struct weft_gpt_stage *stage = weft_gpt_rank_find_layer(rank, layer, &k);
  struct weft_gpt_op_means means = {.ms = {0}};
  for (unsigned pass = 0; pass < WEFT_OP_COUNT; pass++) {
    means.ms[pass] = (float)layer_ms(&stage->times[k], pass);
  }
  for (uint32_t n = 0; rank->compute->ops->enqueues && n < rank->own_stage_count; n++) {
    if (rank->stages[rank->own_stages[n]] == stage) {
      scale_to_stage(rank, stage, rank->own_stages[n], &means);
    }
  }
  return means;
}

/* ---- Costs ---- */

/* The share of I in a stage's backward. A schedule that does not split the backward has no
 * events of I and W, but the layers' times tell them apart. */
static double input_share(const struct weft_gpt_rank *rank, uint32_t s) {
  const uint32_t *first = rank->trainer->first_layers;
  double i = 0, w = 0;
  for (uint32_t p = first[s]; p < first[s + 1]; p++) {
    i += (double)rank->profile.layer_means[p].ms[WEFT_OP_I];
    w += (double)rank->profile.layer_means[p].ms[WEFT_OP_W];
  }
  return i + w > 0 ? i / (i + w) : 0.5;
}

static void fill_times(const struct weft_gpt_rank *rank, uint32_t s,
                       struct weft_stage_costs *costs) {
  assert(s < rank->trainer->stage_count);
  const float *ms = rank->profile.means[s].ms;
  const double f = (double)ms[WEFT_OP_F], b = (double)ms[WEFT_OP_B];
  const double i = (double)ms[WEFT_OP_I], w = (double)ms[WEFT_OP_W];
  const bool splits = !isnan(i) && !isnan(w);
  const double full = isnan(b) ? 0 : b, share = input_share(rank, s) * full;
  costs->f = isnan(f) ? 0 : f;
  costs->i = splits ? i : share;
  costs->w = splits ? w : full - share;
  costs->b = isnan(b) ? costs->i + costs->w : b;
  costs->unshard = (double)ms[WEFT_OP_UNSHARD];
  costs->reduce_grad = (double)ms[WEFT_OP_REDUCE_GRAD];
}

/* Of a range of layers, in MiB: what a microbatch saves for its backward, and parameters and
 * gradients. Unsharded buffers come on top of the shards. */
static void fill_sizes(const struct weft_gpt_trainer *trainer, uint32_t first, uint32_t count,
                       struct weft_stage_costs *costs) {
  assert(first + count <= trainer->layer_count);
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
  const double unsharded = unit * (double)weft_gpt_unsharded_floats(config, first, count, replicas);
  const double slices = unsharded / replicas;
  const bool cut = shard != WEFT_GPT_SHARD_NONE, full = shard == WEFT_GPT_SHARD_FULL;
  costs->parameters = full ? unsharded + slices : unsharded;
  costs->parameters_sharded = full ? slices : unsharded;
  costs->gradients = cut ? unsharded + slices : unsharded;
  costs->gradients_sharded = cut ? slices : unsharded;
}

/* Sizes are those of a stage with nothing else on it. */
static void fill_layers(const struct weft_gpt_rank *rank, struct weft_costs *costs) {
  for (uint32_t p = 0; p < costs->part_count; p++) {
    const float *ms = rank->profile.layer_means[p].ms;
    struct weft_stage_costs alone;
    fill_sizes(rank->trainer, p, 1, &alone);
    costs->parts[p] = (struct weft_part_costs){.f = (double)ms[WEFT_OP_F],
                                               .i = (double)ms[WEFT_OP_I],
                                               .w = (double)ms[WEFT_OP_W],
                                               .activation = alone.activation,
                                               .activation_after_i = alone.activation_after_i,
                                               .parameters = alone.parameters,
                                               .gradients = alone.gradients};
  }
}

/* Activations and gradients cross a boundary. Where the rank on one side computes all the time,
 * its messages always wait, and those of the other side do not. */
static void fill_hop(const struct weft_gpt_rank *rank, struct weft_costs *costs) {
  double sum = 0, count = 0;
  for (uint32_t s = 0; s + 1 < costs->stage_count; s++) {
    const double up = (double)rank->profile.means[s + 1].ms[WEFT_OP_RECV_F];
    const double down = (double)rank->profile.means[s].ms[WEFT_OP_RECV_B];
    const double shortest = up > 0 && (down <= 0 || up < down) ? up : down;
    sum += shortest;
    count += shortest > 0;
  }
  costs->hop.latency = count > 0 ? sum / count : 0;
}

static enum weft_status check_measured(const struct weft_gpt_rank *rank, struct weft_error *error) {
  return isnan(rank->profile.means[0].ms[WEFT_OP_F])
             ? weft_fail(error, WEFT_ERR_USAGE, "train at least two steps",
                         "nothing has been measured yet: the first step is a warm-up")
             : WEFT_OK;
}

static enum weft_status make_costs(const struct weft_gpt_rank *rank, struct weft_costs **out,
                                   struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  WEFT_SCOPED(weft_costs) costs = NULL;
  WEFT_TRY(check_measured(rank, error));
  WEFT_TRY(weft_costs_create(trainer->allocator, trainer->stage_count, &costs, error));
  WEFT_TRY(weft_costs_add_parts(costs, trainer->layer_count, error));
  const struct weft_gpt_training *training = &trainer->options.training;
  const uint32_t replicas = trainer->options.replicas > 0 ? trainer->options.replicas : 1;
  memcpy(costs->unit, "ms", 3);
  const uint64_t sequences = training->batch / replicas / training->microbatches; /* exact */
  costs->microbatch_size = (double)sequences;
  fill_layers(rank, costs);
  for (uint32_t s = 0; s < trainer->stage_count; s++) {
    fill_times(rank, s, &costs->stages[s]);
    fill_sizes(trainer, trainer->first_layers[s],
               trainer->first_layers[s + 1] - trainer->first_layers[s], &costs->stages[s]);
  }
  fill_hop(rank, costs);
  *out = costs;
  costs = NULL;
  return WEFT_OK;
}

enum weft_status weft_gpt_trainer_costs(const struct weft_gpt_trainer *trainer,
                                        struct weft_costs **out, struct weft_error *error) {
  return make_costs(&trainer->ranks[0], out, error);
}

/* ---- Costs for the planner ---- */

/* In virtual time actions take no time, but the times of their layers are real. */
static void add_up_layers(const struct weft_gpt_rank *rank, uint32_t s,
                          struct weft_stage_costs *costs) {
  const uint32_t *first = rank->trainer->first_layers;
  costs->f = costs->i = costs->w = 0;
  for (uint32_t p = first[s]; p < first[s + 1]; p++) {
    costs->f += (double)rank->profile.layer_means[p].ms[WEFT_OP_F];
    costs->i += (double)rank->profile.layer_means[p].ms[WEFT_OP_I];
    costs->w += (double)rank->profile.layer_means[p].ms[WEFT_OP_W];
  }
}

/* A microbatch has what the stage saves, the buffers of its inputs and, from I to W, those of the
 * gradients of its outputs. Moments and scratch are always allocated, so they count as
 * parameters. */
static void fill_planned_sizes(const struct weft_gpt_trainer *trainer, uint32_t first,
                               uint32_t count, struct weft_stage_costs *costs) {
  const struct weft_gpt_config *config = &trainer->config;
  const uint64_t sequences = trainer->sequences_max;
  const double unit = sizeof(float) / 1048576.0;
  const struct weft_gpt_compute_ops *ops = trainer->compute_ops;
  const double row = (double)weft_dtype_size(ops->dtype) / 1048576.0 *
                     (double)(sequences * config->context * config->dim);
  uint64_t scratch = 0;
  uint32_t inputs, outputs;
  fill_sizes(trainer, first, count, costs);
  weft_gpt_count_ports(config, first, count, &inputs, &outputs);
  costs->activation =
      (double)weft_gpt_saved_bytes(ops, config, sequences, first, count) / 1048576.0 + inputs * row;
  costs->activation_after_i = costs->activation + outputs * row;
  for (uint32_t k = 0; k < count; k++) {
    const uint64_t layer = ops->scratch_bytes(config, first + k, sequences, config->context);
    scratch = layer > scratch ? layer : scratch;
  }
  const double unsharded =
      unit * (double)weft_gpt_unsharded_floats(config, first, count, trainer->options.replicas);
  const bool cut = trainer->options.shard != WEFT_GPT_SHARD_NONE;
  const double moments = 2 * (cut ? unsharded / trainer->options.replicas : unsharded);
  costs->parameters += moments + (double)scratch / 1048576.0;
  costs->parameters_sharded += moments + (double)scratch / 1048576.0;
}

/* A full backward is I and then W. */
enum weft_status weft_gpt_profile_planner_costs(const struct weft_gpt_rank *rank,
                                                struct weft_costs **out, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const bool is_virtual = trainer->virtual_time;
  const uint32_t *first = trainer->first_layers;
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
    fill_planned_sizes(trainer, first[s], first[s + 1] - first[s], stage);
  }
  if (!is_virtual) {
    fill_hop(rank, *out);
  }
  return WEFT_OK;
}

/* Sizes of a layer are those of a stage with nothing else on it, which is more than it adds to a
 * stage. */
enum weft_status weft_gpt_profile_layer_costs(const struct weft_gpt_rank *rank,
                                              struct weft_costs **out, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  struct weft_costs *costs;
  WEFT_TRY(weft_gpt_profile_planner_costs(rank, &costs, error));
  const enum weft_status status = weft_costs_add_parts(costs, trainer->layer_count, error);
  if (status < 0) {
    weft_costs_destroy(costs);
    return status;
  }
  fill_layers(rank, costs);
  for (uint32_t p = 0; p < costs->part_count; p++) {
    struct weft_stage_costs alone;
    fill_planned_sizes(trainer, p, 1, &alone);
    costs->parts[p].activation = alone.activation;
    costs->parts[p].activation_after_i = alone.activation_after_i;
    costs->parts[p].parameters = alone.parameters;
    costs->parts[p].gradients = alone.gradients;
  }
  for (uint32_t s = 0; s < costs->stage_count; s++) { /* by the same measure */
    add_up_layers(rank, s, &costs->stages[s]);
    costs->stages[s].b = costs->stages[s].i + costs->stages[s].w;
  }
  *out = costs;
  return WEFT_OK;
}

enum weft_status weft_gpt_trainer_estimate_costs(const struct weft_gpt_trainer *trainer,
                                                 struct weft_costs **out,
                                                 struct weft_error *error) {
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
    fill_planned_sizes(trainer, trainer->first_layers[s],
                       trainer->first_layers[s + 1] - trainer->first_layers[s], stage);
  }
  return WEFT_OK;
}

/* ---- The bubble ---- */

double weft_gpt_profile_predict_bubble(const struct weft_gpt_rank *rank) {
  const struct weft_allocator *allocator = rank->trainer->allocator;
  WEFT_SCOPED(weft_costs) costs = NULL;
  WEFT_SCOPED(weft_simulation) simulation = NULL;
  struct weft_sim_options options = weft_sim_options_default();
  options.no_events = true;
  return rank->profile.program != NULL && make_costs(rank, &costs, NULL) == WEFT_OK &&
                 weft_simulate(allocator, rank->profile.program, costs, &options, &simulation,
                               NULL) == WEFT_OK
             ? simulation->bubble_ratio
             : NAN;
}
