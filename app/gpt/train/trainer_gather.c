/* What is divided among replicas or ranks, made whole: layers for checkpoints, for the hash
 * of all parameters and for the sampler, one at a time; and events for the timeline. */
#include <string.h>

#include <weft/support.h>

#include "gpt/model/aligned_memory.h"
#include "gpt/train/trainer_rank.h"

enum { WEIGHTS_ONLY = 1, WITH_MOMENTS = 3 };

/* ---- A layer ---- */

/* The n-th buffer, made when it is first needed. */
static enum weft_status buffer_of(struct weft_gpt_rank *rank, uint32_t n, float **out,
                                  struct weft_error *error) {
  const uint64_t floats = rank->trainer->floats_largest;
  float **buffer = &rank->gathering.buffers[n];
  if (*buffer == NULL) {
    *buffer = weft_gpt_allocate(rank->trainer->allocator, floats, sizeof **buffer);
  }
  *out = *buffer;
  return *buffer != NULL ? WEFT_OK : weft_fail_memory(error, floats * sizeof **buffer);
}

static void free_buffers(struct weft_gpt_rank *rank) {
  for (uint32_t n = 0; n < WEFT_GPT_GATHERED_MAX; n++) {
    weft_gpt_free(rank->trainer->allocator, rank->gathering.buffers[n]);
    rank->gathering.buffers[n] = NULL;
  }
}

static enum weft_status start_gathering(struct weft_gpt_rank *rank, uint32_t layer, uint32_t arrays,
                                        struct weft_error *error) {
  struct weft_gpt_gathering *gathering = &rank->gathering;
  uint32_t k;
  const struct weft_gpt_stage *stage = weft_gpt_rank_stage(rank, layer, &k);
  const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
  const float *slices[] = {shard->parameters, shard->first_moment, shard->second_moment};
  struct weft_gpt_layer_state *whole = &gathering->whole;
  float **wholes[] = {&whole->parameters, &whole->first_moment, &whole->second_moment};
  *whole = stage->layers[k];
  gathering->count = gathering->done = 0;
  for (uint32_t n = 0; n < arrays; n++) {
    if (*wholes[n] == NULL) {
      struct weft_collective *collective = &gathering->collectives[gathering->count];
      WEFT_TRY(buffer_of(rank, n, wholes[n], error));
      *collective = (struct weft_collective){.kind = WEFT_ALL_GATHER,
                                             .from = slices[n],
                                             .to = *wholes[n],
                                             .bytes = shard->slice_floats * sizeof(float)};
      WEFT_TRY(rank->group->ops->start(rank->group, collective, error));
      gathering->count++;
    }
  }
  return WEFT_OK;
}

/* WEFT_OK: gathering.whole has weights, and moments, of an own layer. All replicas of the
 * rank call it. */
static enum weft_status gather_layer(struct weft_gpt_rank *rank, uint32_t layer, uint32_t arrays,
                                     struct weft_error *error) {
  struct weft_gpt_gathering *gathering = &rank->gathering;
  if (!gathering->started) {
    WEFT_TRY(start_gathering(rank, layer, arrays, error));
    gathering->started = true;
  }
  const enum weft_status status = weft_gpt_collectives_advance(
      rank->group, gathering->collectives, gathering->count, &gathering->done, error);
  if (status == WEFT_IN_PROGRESS) {
    return weft_gpt_rank_await(rank, error);
  }
  gathering->started = false;
  rank->wait_since = 0;
  return status;
}

/* ---- Checkpoints ---- */

static bool saves_now(const struct weft_gpt_rank *rank) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  const uint64_t every = options->checkpoint_every;
  return options->checkpoint_dir != NULL &&
         ((every > 0 && rank->step % every == 0) || weft_gpt_rank_is_over(rank));
}

/* The first replica writes. */
static enum weft_status save_layer(struct weft_gpt_rank *rank, uint32_t layer,
                                   struct weft_error *error) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  const enum weft_status status = gather_layer(rank, layer, WITH_MOMENTS, error);
  if (status != WEFT_OK || rank->replica != 0) {
    return status;
  }
  return weft_gpt_checkpoint_write_layer(options->files, options->checkpoint_dir,
                                         &rank->trainer->config, rank->step, &rank->gathering.whole,
                                         &rank->files[layer], error);
}

enum weft_status weft_gpt_rank_save(struct weft_gpt_rank *rank, struct weft_error *error) {
  if (!saves_now(rank)) {
    weft_gpt_rank_tell(rank);
    return WEFT_OK;
  }
  for (; rank->layer_at < rank->own_layer_count; rank->layer_at++) {
    const enum weft_status status = save_layer(rank, rank->own_layers[rank->layer_at], error);
    if (status != WEFT_OK) {
      return status;
    }
  }
  free_buffers(rank);
  rank->state = WEFT_GPT_RANK_SAVED;
  return WEFT_OK;
}

/* ---- Told by the ranks of the first replica, of each of their layers ---- */

static void tell_layers(struct weft_gpt_rank *rank, const void *items, size_t size) {
  weft_gpt_bulletin_begin(&rank->bulletin, rank->trainer->layers.most * size);
  for (uint32_t k = 0; rank->replica == 0 && k < rank->own_layer_count; k++) {
    memcpy(rank->bulletin.mine + k * size, (const char *)items + rank->own_layers[k] * size, size);
  }
  rank->told = true;
}

static void take_layers(struct weft_gpt_rank *rank, void *items, size_t size) {
  const struct weft_gpt_ownership *layers = &rank->trainer->layers;
  for (uint32_t row = 0; row < rank->trainer->options.ranks; row++) {
    const unsigned char *told = weft_gpt_bulletin_of(&rank->bulletin, row);
    for (uint32_t k = layers->begin[row]; k < layers->begin[row + 1]; k++) {
      memcpy((char *)items + layers->list[k] * size, told + (k - layers->begin[row]) * size, size);
    }
  }
}

static enum weft_status exchange_layers(struct weft_gpt_rank *rank, void *items, size_t size,
                                        struct weft_error *error) {
  if (!rank->told) {
    tell_layers(rank, items, size);
  }
  const enum weft_status status = weft_gpt_rank_meet(rank, error);
  if (status == WEFT_OK) {
    take_layers(rank, items, size);
  }
  return status;
}

enum weft_status weft_gpt_rank_saved(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  const enum weft_status status = exchange_layers(rank, rank->files, sizeof *rank->files, error);
  if (status != WEFT_OK) {
    return status;
  }
  if (weft_gpt_rank_reports(rank)) {
    struct weft_gpt_training training = options->training;
    training.step = rank->step;
    WEFT_TRY(weft_gpt_checkpoint_commit(options->files, options->checkpoint_dir, &training,
                                        rank->files, options->checkpoint_keep, error));
  }
  rank->state = WEFT_GPT_RANK_COMMITTED;
  return WEFT_OK;
}

/* ---- The hash ---- */

enum weft_status weft_gpt_rank_hash(struct weft_gpt_rank *rank, struct weft_error *error) {
  for (; rank->layer_at < rank->own_layer_count; rank->layer_at++) {
    const uint32_t layer = rank->own_layers[rank->layer_at];
    const enum weft_status status = gather_layer(rank, layer, WEIGHTS_ONLY, error);
    if (status != WEFT_OK) {
      return status;
    }
    const struct weft_gpt_layer_state *whole = &rank->gathering.whole;
    rank->hashes[layer] = weft_checksum(whole->parameters, whole->floats * sizeof(float));
  }
  rank->state = WEFT_GPT_RANK_HASHED;
  return WEFT_OK;
}

enum weft_status weft_gpt_rank_hashed(struct weft_gpt_rank *rank, struct weft_error *error) {
  const enum weft_status status = exchange_layers(rank, rank->hashes, sizeof *rank->hashes, error);
  if (status == WEFT_OK) {
    rank->is_hashed = true;
    rank->layer_at = 0;
    rank->state = WEFT_GPT_RANK_MODEL;
  }
  return status;
}

/* ---- The model ---- */

/* The sum over the first replica's ranks, of which all but one give zeros, is what that
 * one has. */
static enum weft_status start_spreading(struct weft_gpt_rank *rank, uint32_t layer, bool own,
                                        struct weft_error *error) {
  struct weft_gpt_gathering *gathering = &rank->gathering;
  const uint64_t bytes = weft_gpt_layer_floats(&rank->trainer->config, layer) * sizeof(float);
  float *buffer;
  WEFT_TRY(buffer_of(rank, WEFT_GPT_GATHERED_MAX - 1, &buffer, error));
  memset(buffer, 0, bytes);
  if (own) {
    memcpy(buffer, gathering->whole.parameters, bytes);
  }
  gathering->spread = (struct weft_collective){
      .kind = WEFT_ALL_REDUCE, .from = buffer, .to = buffer, .bytes = bytes};
  return rank->pipeline_group == NULL
             ? WEFT_OK
             : rank->pipeline_group->ops->start(rank->pipeline_group, &gathering->spread, error);
}

static enum weft_status spread_layer(struct weft_gpt_rank *rank, uint32_t layer, bool own,
                                     struct weft_error *error) {
  struct weft_gpt_gathering *gathering = &rank->gathering;
  struct weft_group *group = rank->pipeline_group;
  if (!gathering->spreads) {
    WEFT_TRY(start_spreading(rank, layer, own, error));
    gathering->spreads = true;
  }
  const enum weft_status status =
      group != NULL ? group->ops->test(group, &gathering->spread, error) : WEFT_OK;
  if (status == WEFT_IN_PROGRESS) {
    return weft_gpt_rank_await(rank, error);
  }
  gathering->spreads = false;
  rank->wait_since = 0;
  if (status == WEFT_OK && rank->model != NULL) {
    memcpy(rank->model[layer].parameters, gathering->spread.to, gathering->spread.bytes);
  }
  return status;
}

static enum weft_status model_layer(struct weft_gpt_rank *rank, uint32_t layer,
                                    struct weft_error *error) {
  uint32_t k;
  const bool own = weft_gpt_rank_stage(rank, layer, &k) != NULL;
  if (own && !rank->gathering.spreads) {
    const enum weft_status status = gather_layer(rank, layer, WEIGHTS_ONLY, error);
    if (status != WEFT_OK) {
      return status;
    }
  }
  return rank->replica == 0 ? spread_layer(rank, layer, own, error) : WEFT_OK;
}

enum weft_status weft_gpt_rank_model(struct weft_gpt_rank *rank, struct weft_error *error) {
  const bool wanted = rank->trainer->options.gather_model;
  for (; wanted && rank->layer_at < rank->trainer->layer_count; rank->layer_at++) {
    const enum weft_status status = model_layer(rank, rank->layer_at, error);
    if (status != WEFT_OK) {
      return status;
    }
  }
  free_buffers(rank);
  rank->is_modelled = wanted;
  rank->state = WEFT_GPT_RANK_EVENTS;
  return WEFT_OK;
}

/* ---- Events ---- */

static enum weft_status start_events(struct weft_gpt_rank *rank, struct weft_error *error) {
  const uint64_t room = rank->event_room;
  struct weft_gpt_gathering *gathering = &rank->gathering;
  for (uint64_t k = rank->event_count; k < room; k++) {
    rank->events[k] = (struct weft_event){.record = UINT32_MAX};
  }
  gathering->spread = (struct weft_collective){.kind = WEFT_ALL_GATHER,
                                               .from = rank->events,
                                               .to = rank->all_events,
                                               .bytes = room * sizeof *rank->events};
  return rank->pipeline_group->ops->start(rank->pipeline_group, &gathering->spread, error);
}

static void pack_events(struct weft_gpt_rank *rank) {
  const uint64_t count = rank->event_room * rank->trainer->options.ranks;
  rank->all_event_count = 0;
  for (uint64_t k = 0; k < count; k++) {
    if (rank->all_events[k].record != UINT32_MAX) {
      rank->all_events[rank->all_event_count++] = rank->all_events[k];
    }
  }
}

enum weft_status weft_gpt_rank_events(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_gpt_gathering *gathering = &rank->gathering;
  if (rank->all_events == NULL) {
    rank->state = WEFT_GPT_RANK_DONE;
    return WEFT_OK;
  }
  if (!gathering->spreads) {
    WEFT_TRY(start_events(rank, error));
    gathering->spreads = true;
  }
  const enum weft_status status =
      rank->pipeline_group->ops->test(rank->pipeline_group, &gathering->spread, error);
  if (status == WEFT_IN_PROGRESS) {
    return weft_gpt_rank_await(rank, error);
  }
  gathering->spreads = false;
  rank->wait_since = 0;
  if (status == WEFT_OK) {
    pack_events(rank);
    rank->state = WEFT_GPT_RANK_DONE;
  }
  return status;
}
