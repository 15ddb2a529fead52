/* The trainer: the world, its ranks in this process, made and driven; see trainer.h. What a
 * rank does is trainer_rank.c's. */
#include "gpt/train/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <weft/comm.h>
#include <weft/support.h>

#include "gpt/kernels/kernels.h"
#include "gpt/model/aligned_memory.h"
#include "gpt/train/trainer_rank.h"

struct weft_gpt_rank *weft_gpt_trainer_local(const struct weft_gpt_trainer *trainer,
                                             uint32_t world_rank) {
  return world_rank >= trainer->first_local &&
                 world_rank - trainer->first_local < trainer->local_count
             ? &trainer->ranks[world_rank - trainer->first_local]
             : NULL;
}

/* ---- The world ---- */

static enum weft_status join_world(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  const struct weft_transport *endpoint = trainer->options.endpoint;
  if (endpoint->rank_count != trainer->world_size) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "start as many processes as replicas times pipeline ranks",
                     "the world has %" PRIu32 " ranks; %" PRIu32 " replicas of %" PRIu32
                     " pipeline ranks are %" PRIu32,
                     endpoint->rank_count, trainer->options.replicas, trainer->options.ranks,
                     trainer->world_size);
  }
  trainer->first_local = endpoint->rank;
  trainer->local_count = 1;
  return WEFT_OK;
}

static enum weft_status make_world(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  const uint32_t count = trainer->world_size;
  trainer->local_count = count;
  switch (trainer->options.transport) {
    case WEFT_GPT_THREADS:
      return weft_threads_create(trainer->allocator, count, &trainer->threads, error);
    case WEFT_GPT_LOOPBACK:
      return weft_loopback_create(trainer->allocator,
                                  &(struct weft_loopback_options){
                                      .rank_count = count, .seed = trainer->options.loopback_seed},
                                  &trainer->loopback, error);
    case WEFT_GPT_MPI: break;
  }
  return join_world(trainer, error);
}

static struct weft_transport *endpoint_of(const struct weft_gpt_trainer *trainer, uint32_t number) {
  return trainer->threads != NULL    ? weft_threads_endpoint(trainer->threads, number)
         : trainer->loopback != NULL ? weft_loopback_endpoint(trainer->loopback, number)
                                     : trainer->options.endpoint;
}

/* ---- Groups ---- */

static enum weft_status join_group(const struct weft_gpt_rank *rank, uint32_t id,
                                   const uint32_t *ranks, uint32_t count, struct weft_group **out,
                                   struct weft_error *error) {
  struct weft_transport *transport = rank->transport;
  if (transport->ops->group == NULL) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, "use threads, or MPI",
                     "the %s transport has no collectives", transport->ops->name);
  }
  return transport->ops->group(transport, id, ranks, count, out, error);
}

/* `count` ranks from `first` on, `stride` apart. */
static enum weft_status join_row(const struct weft_gpt_rank *rank, uint32_t id, uint32_t first,
                                 uint32_t stride, uint32_t count, struct weft_group **out,
                                 struct weft_error *error) {
  uint32_t *ranks = weft_gpt_allocate(rank->trainer->allocator, count, sizeof *ranks);
  if (ranks == NULL) {
    return weft_fail_memory(error, count * sizeof *ranks);
  }
  for (uint32_t k = 0; k < count; k++) {
    ranks[k] = first + k * stride;
  }
  const enum weft_status status = join_group(rank, id, ranks, count, out, error);
  weft_gpt_free(rank->trainer->allocator, ranks);
  return status;
}

static bool needs_pipeline_group(const struct weft_gpt_rank *rank) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const bool events = trainer->options.gather_events && trainer->local_count < trainer->world_size;
  return rank->replica == 0 && trainer->options.ranks > 1 &&
         (events || trainer->options.gather_model);
}

/* Their ids: one per row, then one per replica, then one. */
static enum weft_status join_groups(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const uint32_t rows = trainer->options.ranks, replicas = trainer->options.replicas;
  const uint32_t first = rank->replica * rows;
  const uint32_t pair[2] = {first + trainer->rank_of[0],
                            first + trainer->rank_of[trainer->stage_count - 1]};
  if (replicas > 1) {
    WEFT_TRY(join_row(rank, rank->row, rank->row, rows, replicas, &rank->group, error));
  }
  if (trainer->config.tied && pair[0] != pair[1] && (rank->has_first || rank->has_last)) {
    WEFT_TRY(join_group(rank, rows + rank->replica, pair, 2, &rank->tie_group, error));
  }
  if (needs_pipeline_group(rank)) {
    WEFT_TRY(join_row(rank, rows + replicas, 0, 1, rows, &rank->pipeline_group, error));
  }
  return WEFT_OK;
}

/* ---- Stages ---- */

/* The program says how many stages are whole at once: the window, or what an overlap needs. */
static enum weft_status make_pools(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  uint64_t largest = 0;
  for (uint32_t n = 0; n < rank->own_stage_count; n++) {
    const uint32_t first = trainer->first_layers[rank->own_stages[n]];
    const uint64_t floats = weft_gpt_unsharded_floats(
        &trainer->config, first, trainer->first_layers[rank->own_stages[n] + 1] - first,
        trainer->options.replicas);
    largest = floats > largest ? floats : largest;
  }
  WEFT_TRY(weft_gpt_pool_init(&rank->memory.parameters, trainer->allocator, largest,
                              rank->own_stage_count, error));
  return weft_gpt_pool_init(&rank->memory.gradients, trainer->allocator, largest,
                            rank->own_stage_count, error);
}

static void make_context(struct weft_gpt_rank *rank) {
  struct weft_gpt_trainer *trainer = rank->trainer;
  const bool ties = trainer->config.tied && (rank->has_first || rank->has_last);
  rank->context =
      (struct weft_gpt_stage_context){.allocator = trainer->allocator,
                                      .config = &trainer->config,
                                      .sequences_max = trainer->sequences_max,
                                      .sharding = {.mode = trainer->options.shard,
                                                   .replicas = trainer->options.replicas,
                                                   .replica = rank->replica},
                                      .group = rank->group,
                                      .memory = &rank->memory,
                                      .tie = ties ? &rank->tie : NULL,
                                      .before_forward = trainer->options.before_forward,
                                      .before_forward_context = trainer->options.context};
}

static enum weft_status make_stages(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_gpt_trainer *trainer = rank->trainer;
  make_context(rank);
  WEFT_TRY(make_pools(rank, error));
  for (uint32_t n = 0; n < rank->own_stage_count; n++) {
    const uint32_t s = rank->own_stages[n], first = trainer->first_layers[s];
    WEFT_TRY(weft_gpt_stage_create(&rank->context, first, trainer->first_layers[s + 1] - first,
                                   &rank->stages[s], error));
    rank->bases[s] = &rank->stages[s]->stage;
  }
  rank->tie = (struct weft_gpt_tie){.first = rank->stages[0],
                                    .last = rank->stages[trainer->stage_count - 1],
                                    .group = rank->tie_group};
  return WEFT_OK;
}

static void make_boundaries(const struct weft_gpt_trainer *trainer) {
  for (uint32_t s = 0; s < trainer->stage_count; s++) {
    trainer->boundaries[s] =
        s + 1 < trainer->stage_count
            ? weft_gpt_boundary(&trainer->config, trainer->sequences_max)
            : weft_gpt_output_boundary(&trainer->config, trainer->sequences_max, false);
  }
}

/* ---- Resuming ---- */

/* A layer's file has it whole; `whole` has room for that where this rank keeps slices. */
static enum weft_status load_layer(const struct weft_gpt_rank *rank, uint32_t layer,
                                   struct weft_gpt_layer_state *whole, struct weft_error *error) {
  const struct weft_gpt_checkpoint *resume = rank->trainer->options.resume;
  uint32_t k;
  struct weft_gpt_stage *stage = weft_gpt_rank_stage(rank, layer, &k);
  if (whole->parameters == NULL) {
    return weft_gpt_checkpoint_read_layer(resume, &stage->layers[k], error);
  }
  whole->layer = layer;
  whole->floats = stage->layers[k].floats;
  WEFT_TRY(weft_gpt_checkpoint_read_layer(resume, whole, error));
  weft_gpt_stage_memory_store(&stage->memory, k, whole);
  return WEFT_OK;
}

static enum weft_status load_layers(const struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const uint64_t room = trainer->floats_largest;
  struct weft_gpt_layer_state whole = {.parameters = NULL};
  enum weft_status status = WEFT_OK;
  if (trainer->options.resume == NULL) {
    return WEFT_OK;
  }
  if (trainer->options.shard != WEFT_GPT_SHARD_NONE) {
    whole.parameters = weft_gpt_allocate(trainer->allocator, 3 * room, sizeof(float));
    if (whole.parameters == NULL) {
      return weft_fail_memory(error, 3 * room * sizeof(float));
    }
    whole.first_moment = whole.parameters + room;
    whole.second_moment = whole.parameters + 2 * room;
  }
  for (uint32_t n = 0; n < rank->own_layer_count && status == WEFT_OK; n++) {
    status = load_layer(rank, rank->own_layers[n], &whole, error);
  }
  weft_gpt_free(trainer->allocator, whole.parameters);
  return status;
}

/* ---- Ranks ---- */

static bool allocate_stage_tables(struct weft_gpt_rank *rank) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const struct weft_allocator *allocator = trainer->allocator;
  const uint32_t stages = trainer->stage_count;
  rank->stages = weft_gpt_allocate(allocator, stages, sizeof(struct weft_gpt_stage *));
  rank->bases = weft_gpt_allocate(allocator, stages, sizeof(struct weft_stage *));
  rank->means = weft_gpt_allocate(allocator, stages, sizeof *rank->means);
  rank->times = weft_gpt_allocate(allocator, stages, sizeof *rank->times);
  for (uint32_t s = 0; rank->means != NULL && s < stages; s++) {
    rank->means[s].f = NAN;
  }
  rank->layer_means = weft_gpt_allocate(allocator, trainer->layer_count, sizeof *rank->layer_means);
  return rank->stages != NULL && rank->bases != NULL && rank->means != NULL &&
         rank->times != NULL && rank->layer_means != NULL;
}

static bool allocate_rank(struct weft_gpt_rank *rank) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const struct weft_gpt_training *training = &trainer->options.training;
  const struct weft_allocator *allocator = trainer->allocator;
  const uint64_t tokens = training->batch * training->config.context;
  const uint32_t layers = trainer->layer_count;
  const bool reads = rank->has_first || rank->has_last;
  rank->inputs = weft_gpt_allocate(allocator, reads ? tokens : 0, 1);
  rank->targets = weft_gpt_allocate(allocator, reads ? tokens : 0, 1);
  rank->squares = weft_gpt_allocate(allocator, layers, sizeof *rank->squares);
  rank->files = weft_gpt_allocate(allocator, layers, sizeof *rank->files);
  rank->hashes = weft_gpt_allocate(allocator, layers, sizeof *rank->hashes);
  return rank->inputs != NULL && rank->targets != NULL && rank->squares != NULL &&
         rank->files != NULL && rank->hashes != NULL && allocate_stage_tables(rank);
}

/* What is gathered at the end, if it is asked for. */
static bool allocate_gathered(struct weft_gpt_rank *rank) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const struct weft_gpt_trainer_options *options = &trainer->options;
  const struct weft_allocator *allocator = trainer->allocator;
  if (!options->gather_model || !weft_gpt_rank_reports(rank)) {
    return true;
  }
  rank->model = weft_gpt_allocate(allocator, trainer->layer_count, sizeof *rank->model);
  for (uint32_t layer = 0; rank->model != NULL && layer < trainer->layer_count; layer++) {
    rank->model[layer].layer = layer;
    rank->model[layer].floats = weft_gpt_layer_floats(&trainer->config, layer);
    rank->model[layer].parameters =
        weft_gpt_allocate(allocator, rank->model[layer].floats, sizeof(float));
    if (rank->model[layer].parameters == NULL) {
      return false;
    }
  }
  return rank->model != NULL;
}

static void place_rank(struct weft_gpt_rank *rank, uint32_t number) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const struct weft_gpt_ownership *layers = &trainer->layers, *stages = &trainer->stages;
  rank->replica = number / trainer->options.ranks;
  rank->row = number % trainer->options.ranks;
  rank->own_layers = layers->list + layers->begin[rank->row];
  rank->own_layer_count = layers->begin[rank->row + 1] - layers->begin[rank->row];
  rank->own_stages = stages->list + stages->begin[rank->row];
  rank->own_stage_count = stages->begin[rank->row + 1] - stages->begin[rank->row];
  rank->has_first = trainer->rank_of[0] == rank->row;
  rank->has_last = trainer->rank_of[trainer->stage_count - 1] == rank->row;
}

static struct weft_pipeline_options pipeline_options(struct weft_gpt_rank *rank) {
  struct weft_gpt_trainer *trainer = rank->trainer;
  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = weft_gpt_rank_plan;
  options.source_context = rank;
  options.microbatch_count = trainer->options.training.microbatches;
  options.stages = rank->bases;
  options.stage_count = trainer->stage_count;
  options.boundaries = trainer->boundaries;
  options.boundary_count = trainer->stage_count;
  options.first_rank = rank->replica * trainer->options.ranks;
  options.first_channel = rank->replica * 2 * trainer->stage_count;
  options.configuration = trainer->configuration;
  options.stall_limit = trainer->options.transport != WEFT_GPT_LOOPBACK
                            ? trainer->options.stall_limit
                            : 0; /* virtual time stands still while a rank computes */
  return options;
}

static void announce(const struct weft_gpt_trainer *trainer, uint32_t number) {
  if (trainer->options.on_rank != NULL) {
    trainer->options.on_rank(trainer->options.context, number);
  }
}

static enum weft_status make_rank(struct weft_gpt_trainer *trainer, uint32_t number,
                                  struct weft_error *error) {
  struct weft_gpt_rank *rank = weft_gpt_trainer_local(trainer, number);
  announce(trainer, number);
  rank->trainer = trainer;
  rank->loss = NAN;
  rank->step = trainer->options.training.step;
  rank->transport = endpoint_of(trainer, number);
  place_rank(rank, number);
  WEFT_TRY(join_groups(rank, error));
  if (!allocate_rank(rank) || !allocate_gathered(rank)) {
    return weft_fail_memory(error, trainer->options.training.batch * trainer->config.context);
  }
  WEFT_TRY(weft_gpt_bulletin_init(&rank->bulletin, trainer->allocator, trainer->world_size,
                                  weft_gpt_rank_bulletin_bytes(trainer), error));
  WEFT_TRY(make_stages(rank, error));
  WEFT_TRY(load_layers(rank, error));
  weft_gpt_tuning_init(&rank->tuning);
  rank->now.schedule =
      trainer->first.schedule != NULL ? trainer->first.schedule : trainer->options.schedule;
  const struct weft_pipeline_options options = pipeline_options(rank);
  WEFT_TRY(
      weft_pipeline_create(trainer->allocator, rank->transport, &options, &rank->pipeline, error));
  return weft_gpt_rank_make_event_room(rank, error);
}

/* ---- Create and destroy ---- */

static enum weft_status build(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  WEFT_TRY(weft_gpt_trainer_lay_out(trainer, error));
  WEFT_TRY(make_world(trainer, error));
  trainer->boundaries =
      weft_gpt_allocate(trainer->allocator, trainer->stage_count, sizeof *trainer->boundaries);
  trainer->ranks =
      weft_gpt_allocate(trainer->allocator, trainer->local_count, sizeof *trainer->ranks);
  if (trainer->boundaries == NULL || trainer->ranks == NULL) {
    return weft_fail_memory(error, trainer->local_count * sizeof *trainer->ranks);
  }
  make_boundaries(trainer);
  weft_gpt_set_blas_threads(
      trainer->options.threads_per_rank > 0 ? (int)trainer->options.threads_per_rank : 1);
  for (uint32_t k = 0; k < trainer->local_count; k++) {
    WEFT_TRY(make_rank(trainer, trainer->first_local + k, error));
  }
  return WEFT_OK;
}

/* Ranks in other processes would wait for this one. */
static void tell_world(const struct weft_gpt_trainer_options *options,
                       const struct weft_error *error) {
  struct weft_transport *endpoint = options->endpoint;
  if (options->transport == WEFT_GPT_MPI && endpoint != NULL) {
    const struct weft_failure failure = {.rank = endpoint->rank, .error = *error};
    endpoint->ops->fail(endpoint, &failure);
  }
}

enum weft_status weft_gpt_trainer_create(const struct weft_gpt_trainer_options *options,
                                         struct weft_gpt_trainer **out, struct weft_error *error) {
  struct weft_gpt_trainer *trainer = weft_gpt_allocate(options->allocator, 1, sizeof *trainer);
  if (trainer == NULL) {
    return weft_fail_memory(error, sizeof *trainer);
  }
  trainer->options = *options;
  trainer->allocator = options->allocator;
  const enum weft_status status = build(trainer, error);
  if (status < 0) {
    tell_world(options, error);
    weft_gpt_trainer_destroy(trainer);
    return status;
  }
  *out = trainer;
  return WEFT_OK;
}

static void leave_group(struct weft_group *group) {
  if (group != NULL) {
    group->ops->destroy(group);
  }
}

static void free_tables(const struct weft_allocator *allocator, struct weft_gpt_rank *rank) {
  for (uint32_t n = 0; n < WEFT_GPT_GATHERED_MAX; n++) {
    weft_gpt_free(allocator, rank->gathering.buffers[n]);
  }
  for (uint32_t layer = 0; rank->model != NULL && layer < rank->trainer->layer_count; layer++) {
    weft_gpt_free(allocator, rank->model[layer].parameters);
  }
  void *arrays[] = {rank->layer_means, rank->stages, rank->bases,     rank->inputs, rank->targets,
                    rank->squares,     rank->means,  rank->times,     rank->files,  rank->hashes,
                    rank->model,       rank->events, rank->all_events};
  for (size_t k = 0; k < sizeof arrays / sizeof arrays[0]; k++) {
    weft_gpt_free(allocator, arrays[k]);
  }
}

static void finish_rank(const struct weft_allocator *allocator, struct weft_gpt_rank *rank) {
  weft_pipeline_destroy(rank->pipeline);
  weft_gpt_rank_end_tuning(allocator, rank);
  leave_group(rank->group);
  leave_group(rank->tie_group);
  leave_group(rank->pipeline_group);
  for (uint32_t n = 0; rank->stages != NULL && n < rank->own_stage_count; n++) {
    weft_gpt_stage_destroy(rank->stages[rank->own_stages[n]]);
  }
  weft_gpt_pool_finish(&rank->memory.parameters);
  weft_gpt_pool_finish(&rank->memory.gradients);
  weft_gpt_bulletin_finish(&rank->bulletin);
  free_tables(allocator, rank);
}

void weft_gpt_trainer_destroy(struct weft_gpt_trainer *trainer) {
  if (trainer == NULL) {
    return;
  }
  const struct weft_allocator *allocator = trainer->allocator;
  for (uint32_t k = 0; trainer->ranks != NULL && k < trainer->local_count; k++) {
    finish_rank(allocator, &trainer->ranks[k]);
  }
  weft_threads_destroy(trainer->threads);
  weft_loopback_destroy(trainer->loopback);
  weft_gpt_trainer_clear_layout(trainer);
  weft_gpt_free(allocator, trainer->boundaries);
  weft_gpt_free(allocator, trainer->ranks);
  weft_gpt_free(allocator, trainer);
}

/* ---- Run ---- */

static enum weft_status rank_main(void *context, struct weft_transport *transport,
                                  struct weft_error *error) {
  struct weft_gpt_trainer *trainer = context;
  struct weft_gpt_rank *rank = weft_gpt_trainer_local(trainer, transport->rank);
  enum weft_status status;
  announce(trainer, transport->rank);
  while ((status = weft_gpt_rank_advance(rank, error)) == WEFT_IN_PROGRESS) {
    WEFT_TRY(weft_gpt_rank_wait(rank, error));
  }
  return status;
}

static enum weft_status run_loopback(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  uint32_t running = trainer->world_size;
  while (running > 0) {
    uint32_t number;
    WEFT_TRY(weft_loopback_next(trainer->loopback, &number, error));
    struct weft_gpt_rank *rank = &trainer->ranks[number];
    if (rank->state == WEFT_GPT_RANK_DONE) {
      continue;
    }
    const enum weft_status status = weft_gpt_rank_advance(rank, error);
    if (status == WEFT_IN_PROGRESS) {
      WEFT_TRY(weft_gpt_rank_wait(rank, error));
      continue;
    }
    WEFT_TRY(status);
    running--;
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_trainer_run(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  const int64_t now = weft_clock_ns();
  for (uint32_t k = 0; k < trainer->local_count; k++) {
    trainer->ranks[k].state = WEFT_GPT_RANK_NEXT;
    trainer->ranks[k].run_begin_ns = now;
    if (trainer->loopback != NULL) {
      weft_loopback_wake(trainer->loopback, k);
    }
  }
  return trainer->threads != NULL
             ? weft_threads_run(trainer->threads, NULL, rank_main, trainer, error)
         : trainer->loopback != NULL ? run_loopback(trainer, error)
                                     : rank_main(trainer, trainer->options.endpoint, error);
}
