/* What needs unsharded layers or other ranks' data between steps and at the end: checkpoints, the
 * hash of all parameters, the model for the sampler, and the events for the timeline. */
#include <assert.h>
#include <string.h>

#include <weft/support.h>

#include "trainer/train/rank.h"

/* Items [layer_count] of which the first replica's ranks know those of their own layers: after
 * this all ranks know all. */
static enum weft_status allgather_layers(const struct weft_gpt_rank *rank, void *items, size_t size,
                                         struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const struct weft_gpt_ownership *layers = &trainer->layers;
  const size_t bytes = layers->most * size;
  WEFT_SCOPED_ARENA arena = {.allocator = trainer->allocator};
  char *sent = weft_arena_allocate(&arena, bytes, 1);
  char *received = weft_arena_allocate(&arena, bytes, trainer->world_size);
  WEFT_TRY(weft_arena_status(&arena, error));
  for (uint32_t k = 0; rank->replica == 0 && k < rank->own_layer_count; k++) {
    memcpy(sent + k * size, (const char *)items + rank->own_layers[k] * size, size);
  }
  WEFT_TRY(weft_allgather(rank->transport, sent, received, bytes, trainer->stall_limit, error));
  for (uint32_t row = 0; row < trainer->options.ranks; row++) {
    for (uint32_t k = layers->begin[row]; k < layers->begin[row + 1]; k++) {
      memcpy((char *)items + layers->list[k] * size,
             received + row * bytes + (k - layers->begin[row]) * size, size);
    }
  }
  return WEFT_OK;
}

/* ---- Checkpoints ---- */

/* The first replica writes the layers' files, rank 0 then the manifest. */
enum weft_status weft_gpt_rank_save_checkpoint(struct weft_gpt_rank *rank,
                                               struct weft_error *error) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  WEFT_SCOPED_ARENA arena = {.allocator = rank->trainer->allocator};
  struct weft_gpt_layer_file *files =
      weft_arena_allocate(&arena, rank->trainer->layer_count, sizeof *files);
  WEFT_TRY(weft_arena_status(&arena, error));
  for (uint32_t k = 0; k < rank->own_layer_count; k++) {
    const uint32_t layer = rank->own_layers[k];
    struct weft_gpt_layer_state gathered;
    WEFT_TRY(weft_gpt_rank_gather_layer(rank, layer, true, &gathered, error));
    if (rank->replica == 0) {
      WEFT_TRY(weft_gpt_checkpoint_write_layer(options->files, options->checkpoint_dir,
                                               &rank->trainer->config, rank->step, &gathered,
                                               &files[layer], error));
    }
  }
  weft_gpt_rank_free_gather_buffers(rank);
  WEFT_TRY(allgather_layers(rank, files, sizeof *files, error));
  if (weft_gpt_rank_reports(rank)) {
    struct weft_gpt_training training = options->training;
    training.step = rank->step;
    WEFT_TRY(weft_gpt_checkpoint_commit(options->files, options->checkpoint_dir, &training, files,
                                        options->checkpoint_keep, error));
  }
  /* Nobody continues before the checkpoint is complete. */
  return weft_barrier(rank->transport, rank->trainer->stall_limit, error);
}

/* ---- The hash ---- */

enum weft_status weft_gpt_rank_hash(struct weft_gpt_rank *rank, struct weft_error *error) {
  WEFT_SCOPED_ARENA arena = {.allocator = rank->trainer->allocator};
  uint64_t *hashes = weft_arena_allocate(&arena, rank->trainer->layer_count, sizeof *hashes);
  WEFT_TRY(weft_arena_status(&arena, error));
  for (uint32_t k = 0; k < rank->own_layer_count; k++) {
    struct weft_gpt_layer_state gathered;
    WEFT_TRY(weft_gpt_rank_gather_layer(rank, rank->own_layers[k], false, &gathered, error));
    hashes[rank->own_layers[k]] =
        weft_checksum(gathered.parameters, gathered.floats * sizeof(float));
  }
  weft_gpt_rank_free_gather_buffers(rank);
  WEFT_TRY(allgather_layers(rank, hashes, sizeof *hashes, error));
  rank->hash = 0;
  for (uint32_t layer = 0; layer < rank->trainer->layer_count; layer++) {
    const uint64_t pair[2] = {rank->hash, hashes[layer]};
    rank->hash = weft_checksum(pair, sizeof pair);
  }
  return WEFT_OK;
}

/* ---- The model ---- */

/* Blocks until a collective of the first replica is done. */
static enum weft_status run_collective(struct weft_gpt_rank *rank, enum weft_collective_kind kind,
                                       const void *from, void *to, uint64_t bytes,
                                       struct weft_error *error) {
  struct weft_group *group = rank->pipeline_group;
  struct weft_collective *collective = &rank->gather.collectives[0];
  *collective = (struct weft_collective){.kind = kind, .from = from, .to = to, .bytes = bytes};
  WEFT_TRY(group->ops->start(group, collective, error));
  return weft_gpt_rank_wait_collective(rank, group, collective, error);
}

/* Broadcasts a layer within the first replica: a sum to which all ranks but one give zeros. */
static enum weft_status broadcast_layer(struct weft_gpt_rank *rank, uint32_t layer,
                                        const float *own, struct weft_error *error) {
  assert(layer < rank->trainer->layer_count);
  const uint64_t bytes = weft_gpt_layer_floats(&rank->trainer->config, layer) * sizeof(float);
  float *buffer;
  WEFT_TRY(weft_gpt_rank_gather_buffer(rank, WEFT_GPT_GATHERED_MAX - 1, &buffer, error));
  memset(buffer, 0, bytes);
  if (own != NULL) {
    memcpy(buffer, own, bytes);
  }
  if (rank->pipeline_group != NULL) {
    WEFT_TRY(run_collective(rank, WEFT_ALL_REDUCE, buffer, buffer, bytes, error));
  }
  if (rank->model != NULL) {
    memcpy(rank->model[layer].parameters, buffer, bytes);
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_rank_gather_model(struct weft_gpt_rank *rank, struct weft_error *error) {
  assert(rank->pipeline != NULL);
  for (uint32_t layer = 0; layer < rank->trainer->layer_count; layer++) {
    struct weft_gpt_layer_state gathered = {.parameters = NULL};
    uint32_t k;
    if (weft_gpt_rank_find_layer(rank, layer, &k) != NULL) {
      WEFT_TRY(weft_gpt_rank_gather_layer(rank, layer, false, &gathered, error));
    }
    if (rank->replica == 0) {
      WEFT_TRY(broadcast_layer(rank, layer, gathered.parameters, error));
    }
  }
  weft_gpt_rank_free_gather_buffers(rank);
  rank->has_model = true;
  return WEFT_OK;
}

/* ---- Events ---- */

enum weft_status weft_gpt_rank_gather_events(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_gpt_profile *profile = &rank->profile;
  const uint64_t capacity = profile->event_capacity;
  assert(profile->event_count <= capacity);
  if (profile->all_events == NULL) {
    return WEFT_OK;
  }
  for (uint64_t k = profile->event_count; k < capacity; k++) {
    profile->events[k] = (struct weft_event){.record = UINT32_MAX};
  }
  WEFT_TRY(run_collective(rank, WEFT_ALL_GATHER, profile->events, profile->all_events,
                          capacity * sizeof *profile->events, error));
  profile->all_event_count = 0;
  for (uint64_t k = 0; k < capacity * rank->trainer->options.ranks; k++) {
    if (profile->all_events[k].record != UINT32_MAX) {
      profile->all_events[profile->all_event_count++] = profile->all_events[k];
    }
  }
  return WEFT_OK;
}
