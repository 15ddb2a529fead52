/* A rank: its place in the world, its groups, its stages with their parameters, and its
 * pipeline. */
#include "trainer/train/rank.h"

#include <assert.h>
#include <math.h>

#include <weft/support.h>

#include "trainer/cuda/compute_cuda.h"

struct weft_gpt_stage *weft_gpt_rank_find_layer(const struct weft_gpt_rank *rank, uint32_t layer,
                                                uint32_t *k) {
  assert(k != NULL);
  assert(layer < rank->trainer->layer_count);
  for (uint32_t n = 0; n < rank->own_stage_count; n++) {
    struct weft_gpt_stage *stage = rank->stages[rank->own_stages[n]];
    if (layer >= stage->first_layer && layer - stage->first_layer < stage->layer_count) {
      *k = layer - stage->first_layer;
      return stage;
    }
  }
  return NULL;
}

/* ---- Groups ---- */

static enum weft_status join_group(const struct weft_gpt_rank *rank, uint32_t id,
                                   const uint32_t *ranks, uint32_t count,
                                   struct weft_device *device, struct weft_group **out,
                                   struct weft_error *error) {
  struct weft_transport *transport = rank->transport;
  if (transport->ops->group == NULL) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, "use threads, or MPI",
                     "the %s transport has no collectives", transport->ops->name);
  }
  return transport->ops->group(transport, id, ranks, count, device, out, error);
}

/* `count` ranks from `first` on, `stride` apart. */
static enum weft_status join_range(const struct weft_gpt_rank *rank, uint32_t id, uint32_t first,
                                   uint32_t stride, uint32_t count, struct weft_device *device,
                                   struct weft_group **out, struct weft_error *error) {
  WEFT_SCOPED_ARENA arena = {.allocator = rank->trainer->allocator};
  uint32_t *ranks = weft_arena_allocate(&arena, count, sizeof *ranks);
  WEFT_TRY(weft_arena_status(&arena, error));
  for (uint32_t k = 0; k < count; k++) {
    ranks[k] = first + k * stride;
  }
  return join_group(rank, id, ranks, count, device, out, error);
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
  const bool reach =
      trainer->options.cuda != NULL && !trainer->process_per_rank; /* each other's memory */
  struct weft_device *device = rank->compute->device;
  if (replicas > 1 && !reach) {
    WEFT_TRY(join_range(rank, rank->row, rank->row, rows, replicas, device, &rank->replica_group,
                        error));
  }
  if (trainer->config.tied && pair[0] != pair[1] && (rank->has_first || rank->has_last) && !reach) {
    WEFT_TRY(join_group(rank, rows + rank->replica, pair, 2, device, &rank->tie_group, error));
  }
  if (needs_pipeline_group(rank)) {
    WEFT_TRY(join_range(rank, rows + replicas, 0, 1, rows, NULL, &rank->pipeline_group, error));
  }
  return WEFT_OK;
}

static void leave_group(struct weft_group *group) {
  if (group != NULL) {
    group->ops->destroy(group);
  }
}

/* ---- Stages ---- */

/* A buffer per own stage at most: the program says how many are unsharded at once. */
static enum weft_status init_pools(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  uint64_t largest = 0;
  for (uint32_t n = 0; n < rank->own_stage_count; n++) {
    const uint32_t first = trainer->first_layers[rank->own_stages[n]];
    const uint64_t floats = weft_gpt_unsharded_floats(
        &trainer->config, first, trainer->first_layers[rank->own_stages[n] + 1] - first,
        trainer->options.replicas);
    largest = floats > largest ? floats : largest;
  }
  const uint32_t count = rank->own_stage_count;
  const enum weft_gpt_shard shard = trainer->options.shard;
  struct weft_device *device = rank->compute->device;
  const uint64_t parameters = trainer->compute_ops->rounds ? (largest + 1) / 2 : largest;
  WEFT_TRY(weft_gpt_pool_init(&rank->memory.parameters, trainer->allocator, device, parameters,
                              count, device != NULL && shard == WEFT_GPT_SHARD_FULL ? count : 0,
                              error));
  return weft_gpt_pool_init(&rank->memory.gradients, trainer->allocator, device, largest, count,
                            device != NULL && shard != WEFT_GPT_SHARD_NONE ? count : 0, error);
}

/* The kernel that sums both gradients runs on either of the two, as peers. */
static enum weft_status check_reach(const struct weft_gpt_tie *tie, struct weft_error *error) {
  struct weft_device *a = tie->first->context->compute->device;
  struct weft_device *b = tie->last->context->compute->device;
  return a->ops->reach(a, b) != WEFT_REACH_NONE && a->ops->reach(b, a) != WEFT_REACH_NONE
             ? WEFT_OK
             : weft_fail(error, WEFT_ERR_USAGE,
                         "leave out --tied, or give --gpus GPUs with NVLink or peer access",
                         "the first and the last stage share weights, and their GPUs cannot "
                         "access each other's memory");
}

/* GPUs of a process access each other's memory, and one thread enqueues the work of all. */
static enum weft_status share_tie(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_gpt_tie *tie = &rank->trainer->ties[rank->replica];
  struct weft_device *device = rank->compute->device;
  struct weft_gpt_stage **stages[] = {&tie->first, &tie->last};
  struct weft_gpt_stage *own[] = {rank->tie.first, rank->tie.last};
  for (uint32_t k = 0; k < 2; k++) {
    if (own[k] != NULL) {
      *stages[k] = own[k];
      WEFT_TRY(device->ops->event_create(device, false, &tie->events[k], error));
    }
  }
  return rank->trainer->config.tied && tie->first != NULL && tie->last != NULL
             ? check_reach(tie, error)
             : WEFT_OK;
}

static void unshare_tie(const struct weft_gpt_rank *rank) {
  struct weft_gpt_tie *tie = &rank->trainer->ties[rank->replica];
  struct weft_device *device = rank->compute->device;
  const struct weft_gpt_stage *own[] = {rank->tie.first, rank->tie.last};
  for (uint32_t k = 0; k < 2; k++) {
    if (own[k] != NULL && tie->events[k] != NULL) {
      device->ops->event_destroy(device, tie->events[k]);
    }
  }
}

/* The first rank of the process is the first that is made. */
static enum weft_status share_sums(const struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_gpt_trainer *trainer = rank->trainer;
  struct weft_device *device = rank->compute->device;
  const uint64_t each = trainer->layer_count + weft_gpt_head_count(&trainer->config);
  const uint64_t bytes = trainer->options.replicas * each * sizeof *trainer->sums;
  if (rank->compute->ops->clip == NULL || rank->transport->rank > trainer->first_local) {
    return WEFT_OK;
  }
  trainer->sums = device->ops->allocate_host(device, bytes);
  return trainer->sums != NULL ? WEFT_OK : weft_device_fail_allocation(device, bytes, error);
}

static void unshare_sums(const struct weft_gpt_rank *rank) {
  if (rank->compute != NULL && rank->compute->device != NULL &&
      rank->transport->rank == rank->trainer->first_local) {
    rank->compute->device->ops->free_host(rank->compute->device, rank->trainer->sums);
  }
}

/* All replicas are in this process. */
static const struct weft_gpt_stage *find_peer(void *context, const struct weft_gpt_stage *stage,
                                              uint32_t replica) {
  const struct weft_gpt_trainer *trainer = context;
  uint32_t s = 0;
  while (trainer->first_layers[s] != stage->first_layer) {
    s++;
  }
  const struct weft_gpt_rank *rank =
      weft_gpt_trainer_local(trainer, replica * trainer->options.ranks + trainer->rank_of[s]);
  return rank->stages[s];
}

/* Kernels of each replica access the memory of the others. The first one is made before them. */
static enum weft_status check_replicas(const struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  struct weft_device *device = rank->compute->device;
  for (uint32_t d = 0;
       trainer->options.cuda != NULL && !trainer->process_per_rank && d < rank->replica; d++) {
    struct weft_device *other =
        weft_gpt_trainer_local(trainer, d * trainer->options.ranks + rank->row)->compute->device;
    if (device->ops->reach(device, other) == WEFT_REACH_NONE ||
        device->ops->reach(other, device) == WEFT_REACH_NONE) {
      return weft_fail(error, WEFT_ERR_USAGE,
                       "give --gpus GPUs with NVLink or peer access, or one replica",
                       "the replicas' GPUs cannot access each other's memory");
    }
  }
  return WEFT_OK;
}

static enum weft_status create_stages(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_gpt_trainer *trainer = rank->trainer;
  const bool ties = trainer->config.tied && (rank->has_first || rank->has_last);
  const bool shares = trainer->options.cuda != NULL && !trainer->process_per_rank;
  rank->context =
      (struct weft_gpt_stage_context){.allocator = trainer->allocator,
                                      .config = &trainer->config,
                                      .compute = rank->compute,
                                      .sequences_max = trainer->sequences_max,
                                      .microbatches = trainer->options.training.microbatches,
                                      .split = {.config = &trainer->config,
                                                .stage_count = trainer->stage_count,
                                                .first = trainer->first_layers},
                                      .sharding = {.mode = trainer->options.shard,
                                                   .replicas = trainer->options.replicas,
                                                   .replica = rank->replica},
                                      .group = rank->replica_group,
                                      .group_enqueues = rank->transport->ops->enqueues,
                                      .reduces_at_end = trainer->options.cuda != NULL,
                                      .peer = find_peer,
                                      .peer_context = trainer,
                                      .memory = &rank->memory,
                                      .tie = !ties    ? NULL
                                             : shares ? &trainer->ties[rank->replica]
                                                      : &rank->tie,
                                      .before_forward = trainer->options.before_forward,
                                      .before_forward_context = trainer->options.context};
  WEFT_TRY(init_pools(rank, error));
  for (uint32_t n = 0; n < rank->own_stage_count; n++) {
    const uint32_t s = rank->own_stages[n], first = trainer->first_layers[s];
    WEFT_TRY(weft_gpt_stage_create(&rank->context, first, trainer->first_layers[s + 1] - first,
                                   &rank->stages[s], error));
    rank->bases[s] = &rank->stages[s]->stage;
  }
  rank->tie = (struct weft_gpt_tie){.first = rank->stages[0],
                                    .last = rank->stages[trainer->stage_count - 1],
                                    .group = rank->tie_group};
  return shares ? share_tie(rank, error) : WEFT_OK;
}

/* ---- Resuming ---- */

/* A file has the layer unsharded; `unsharded` has room for it where this rank keeps slices, or
 * where a device does. */
static enum weft_status load_layer(const struct weft_gpt_rank *rank, uint32_t layer,
                                   struct weft_gpt_layer_state *unsharded,
                                   struct weft_error *error) {
  assert(layer < rank->trainer->layer_count);
  const struct weft_gpt_checkpoint *resume = rank->trainer->options.resume;
  uint32_t k = 0;
  struct weft_gpt_stage *stage = weft_gpt_rank_find_layer(rank, layer, &k);
  if (unsharded->parameters == NULL) {
    return weft_gpt_checkpoint_read_layer(resume, &stage->layers[k], error);
  }
  unsharded->layer = layer;
  unsharded->floats = stage->layers[k].floats;
  WEFT_TRY(weft_gpt_checkpoint_read_layer(resume, unsharded, error));
  return weft_gpt_stage_memory_store(&stage->memory, k, unsharded, error);
}

static enum weft_status load_layers(const struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const uint64_t floats = trainer->floats_largest;
  WEFT_SCOPED_ARENA arena = {.allocator = trainer->allocator};
  struct weft_gpt_layer_state unsharded = {.parameters = NULL};
  if (trainer->options.resume == NULL) {
    return WEFT_OK;
  }
  if (trainer->options.shard != WEFT_GPT_SHARD_NONE ||
      !weft_device_is_host(rank->compute->device)) {
    unsharded.parameters = weft_arena_allocate(&arena, floats, sizeof(float));
    unsharded.first_moment = weft_arena_allocate(&arena, floats, sizeof(float));
    unsharded.second_moment = weft_arena_allocate(&arena, floats, sizeof(float));
    WEFT_TRY(weft_arena_status(&arena, error));
  }
  for (uint32_t n = 0; n < rank->own_layer_count; n++) {
    WEFT_TRY(load_layer(rank, rank->own_layers[n], &unsharded, error));
  }
  return WEFT_OK;
}

/* ---- The rank ---- */

static void place(struct weft_gpt_rank *rank) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const struct weft_gpt_ownership *layers = &trainer->layers, *stages = &trainer->stages;
  rank->replica = rank->transport->rank / trainer->options.ranks;
  rank->row = rank->transport->rank % trainer->options.ranks;
  rank->own_layers = layers->list + layers->begin[rank->row];
  rank->own_layer_count = layers->begin[rank->row + 1] - layers->begin[rank->row];
  rank->own_stages = stages->list + stages->begin[rank->row];
  rank->own_stage_count = stages->begin[rank->row + 1] - stages->begin[rank->row];
  rank->has_first = trainer->rank_of[0] == rank->row;
  rank->has_last = trainer->rank_of[trainer->stage_count - 1] == rank->row;
  for (uint32_t k = 0; k < rank->own_layer_count; k++) {
    rank->has_head = rank->has_head || weft_gpt_is_head(&trainer->config, rank->own_layers[k]);
  }
}

static enum weft_status allocate(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const struct weft_gpt_training *training = &trainer->options.training;
  struct weft_arena *arena = &rank->arena;
  const bool reads = rank->has_first || rank->has_head;
  const uint64_t tokens = reads ? training->batch * training->config.context : 0;
  const uint64_t record = weft_gpt_step_stats_bytes(trainer);
  const size_t size = (size_t)weft_dtype_size(weft_gpt_token_dtype(&trainer->config));
  rank->inputs = weft_arena_allocate(arena, tokens, size);
  for (uint32_t k = 0; k < weft_gpt_head_count(&trainer->config); k++) {
    rank->targets[k] = weft_arena_allocate(arena, tokens, size);
  }
  rank->stats_sent = weft_arena_allocate(arena, record, 1);
  rank->stats_received = weft_arena_allocate(arena, trainer->world_size, record);
  rank->stages = weft_arena_allocate(arena, trainer->stage_count, sizeof(struct weft_gpt_stage *));
  rank->bases = weft_arena_allocate(arena, trainer->stage_count, sizeof(struct weft_stage *));
  return weft_arena_status(arena, error);
}

/* Where gather_model puts the parameters. */
static enum weft_status allocate_model(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  struct weft_arena *arena = &rank->arena;
  if (!trainer->options.gather_model || !weft_gpt_rank_reports(rank)) {
    return WEFT_OK;
  }
  rank->model = weft_arena_allocate(arena, trainer->layer_count, sizeof *rank->model);
  for (uint32_t layer = 0; rank->model != NULL && layer < trainer->layer_count; layer++) {
    const uint64_t floats = weft_gpt_layer_floats(&trainer->config, layer);
    rank->model[layer] = (struct weft_gpt_layer_state){
        .layer = layer,
        .floats = floats,
        .parameters = weft_arena_allocate(arena, floats, sizeof(float))};
  }
  return weft_arena_status(arena, error);
}

static struct weft_pipeline_options pipeline_options(struct weft_gpt_rank *rank) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = weft_gpt_rank_source;
  options.source_context = rank;
  options.microbatch_count = trainer->options.training.microbatches;
  options.stages = rank->bases;
  options.stage_count = trainer->stage_count;
  options.boundaries = trainer->boundaries;
  options.boundary_count = trainer->boundary_count;
  options.first_rank = rank->replica * trainer->options.ranks;
  options.first_channel = rank->replica * 2 * trainer->boundary_count; /* edges, and more */
  options.configuration = trainer->configuration;
  options.stall_limit = trainer->stall_limit;
  options.device = rank->compute->device;
  options.eager = trainer->options.eager;
  if (rank->compute->ops->clip != NULL && !trainer->process_per_rank) {
    options.finish = weft_gpt_rank_finish_step;
    options.finish_context = rank;
  }
  return options;
}

/* What a rank before it in this process computes with, if that is on the same GPU. */
static struct weft_gpt_compute *find_neighbour(const struct weft_gpt_rank *rank) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const struct weft_cuda *cuda = trainer->options.cuda;
  const uint32_t own = rank->transport->rank;
  for (uint32_t r = trainer->first_local; r < own; r++) {
    if (weft_cuda_rank_gpu(cuda, r) == weft_cuda_rank_gpu(cuda, own)) {
      return weft_gpt_trainer_local(trainer, r)->compute;
    }
  }
  return NULL;
}

enum weft_status weft_gpt_rank_init(struct weft_gpt_rank *rank, struct weft_gpt_trainer *trainer,
                                    struct weft_transport *transport, struct weft_error *error) {
  assert(trainer != NULL && transport != NULL);
  assert(transport != NULL && transport->rank_count == trainer->world_size);
  *rank = (struct weft_gpt_rank){.trainer = trainer,
                                 .transport = transport,
                                 .arena = {.allocator = trainer->allocator},
                                 .step = trainer->options.training.step,
                                 .stats = {.loss = NAN}};
  place(rank);
  rank->compute = weft_gpt_compute_host();
  if (trainer->options.cuda != NULL) {
    WEFT_TRY(weft_gpt_compute_cuda_create(trainer->allocator, trainer->options.cuda,
                                          transport->rank, &trainer->config, trainer->sequences_max,
                                          find_neighbour(rank), &rank->compute, error));
  }
  WEFT_TRY(check_replicas(rank, error));
  WEFT_TRY(join_groups(rank, error));
  WEFT_TRY(share_sums(rank, error));
  WEFT_TRY(weft_gpt_exchange_init(rank, error));
  WEFT_TRY(allocate(rank, error));
  WEFT_TRY(allocate_model(rank, error));
  WEFT_TRY(weft_gpt_profile_init(rank, error));
  WEFT_TRY(create_stages(rank, error));
  WEFT_TRY(load_layers(rank, error));
  WEFT_TRY(weft_gpt_rank_time_layers(rank, error));
  weft_gpt_tuning_init(&rank->autotune.policy);
  rank->autotune.current.schedule =
      trainer->first.schedule != NULL ? trainer->first.schedule : trainer->options.schedule;
  const struct weft_pipeline_options options = pipeline_options(rank);
  WEFT_TRY(weft_pipeline_create(trainer->allocator, transport, &options, &rank->pipeline, error));
  return weft_gpt_profile_reserve(rank, error);
}

void weft_gpt_rank_finish(struct weft_gpt_rank *rank) {
  if (rank->trainer == NULL) { /* create() failed before it came here */
    return;
  }
  weft_pipeline_destroy(rank->pipeline);
  weft_gpt_autotune_finish(&rank->autotune);
  leave_group(rank->replica_group);
  leave_group(rank->tie_group);
  leave_group(rank->pipeline_group);
  unshare_tie(rank);
  unshare_sums(rank);
  for (uint32_t n = 0; rank->stages != NULL && n < rank->own_stage_count; n++) {
    weft_gpt_stage_destroy(rank->stages[rank->own_stages[n]]);
  }
  weft_gpt_pool_finish(&rank->memory.parameters);
  weft_gpt_pool_finish(&rank->memory.gradients);
  weft_gpt_profile_finish(rank);
  weft_gpt_rank_free_gather_buffers(rank);
  weft_gpt_exchange_finish(rank);
  if (rank->compute != NULL && rank->compute != weft_gpt_compute_host()) {
    weft_gpt_compute_cuda_destroy(rank->compute);
  }
  weft_arena_finish(&rank->arena);
}
