/* The optimizer's step: the learning rate, clipping, AdamW on what this rank keeps of its layers,
 * and the gathering of parameters that only gradients and moments are sharded for. On the host it
 * comes after the pipeline's step; where work is enqueued it is the end of that step. */
#include <assert.h>
#include <math.h>

#include <weft/support.h>

#include "trainer/train/rank.h"

/* What this rank keeps of a layer. */
static struct weft_gpt_update update_of(const struct weft_gpt_rank *rank, uint32_t layer) {
  assert(layer < rank->trainer->layer_count);
  uint32_t k;
  const struct weft_gpt_stage *stage = weft_gpt_rank_find_layer(rank, layer, &k);
  const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
  return (struct weft_gpt_update){
      .layer = layer,
      .begin = shard->begin,
      .count = shard->floats,
      .parameters = shard->parameters,
      .first_moment = shard->first_moment,
      .second_moment = shard->second_moment,
      .gradients = shard->gradients,
      .rounded = shard->rounded != NULL ? (uint16_t *)shard->rounded + shard->begin : NULL};
}

static struct weft_gpt_adamw adamw_of(const struct weft_gpt_rank *rank, double learning_rate) {
  const struct weft_gpt_training *training = weft_gpt_rank_training(rank);
  const double steps = (double)rank->step + 1;
  return (struct weft_gpt_adamw){.rate = (float)learning_rate,
                                 .beta1 = (float)training->beta1,
                                 .beta2 = (float)training->beta2,
                                 .epsilon = (float)training->epsilon,
                                 .decay = (float)training->decay,
                                 .correction1 = (float)(1 - pow(training->beta1, steps)),
                                 .correction2 = (float)(1 - pow(training->beta2, steps)),
                                 .grad_scale = 1};
}

/* ---- On the host ---- */

static enum weft_status update_layers(struct weft_gpt_rank *rank,
                                      const struct weft_gpt_adamw *adamw,
                                      struct weft_error *error) {
  WEFT_SCOPED_ARENA arena = {.allocator = rank->trainer->allocator};
  struct weft_gpt_update *updates =
      weft_arena_allocate(&arena, rank->own_layer_count, sizeof *updates);
  WEFT_TRY(weft_arena_status(&arena, error));
  for (uint32_t n = 0; n < rank->own_layer_count; n++) {
    updates[n] = update_of(rank, rank->own_layers[n]);
  }
  return rank->compute->ops->update(rank->compute, &rank->trainer->config, adamw,
                                    rank->own_layer_count, updates, error);
}

/* Every replica has updated its slices of parameters that all replicas need unsharded. */
static enum weft_status gather_parameters(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_group *group = rank->replica_group;
  for (uint32_t n = 0; n < rank->own_stage_count; n++) {
    struct weft_gpt_stage *stage = rank->stages[rank->own_stages[n]];
    for (uint32_t k = 0; k < stage->layer_count; k++) {
      const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
      stage->collectives[k] =
          (struct weft_collective){.kind = WEFT_ALL_GATHER,
                                   .from = shard->parameters,
                                   .to = stage->layers[k].parameters,
                                   .bytes = shard->slice_floats * sizeof(float)};
      WEFT_TRY(group->ops->start(group, &stage->collectives[k], error));
    }
  }
  for (uint32_t n = 0; n < rank->own_stage_count; n++) {
    struct weft_gpt_stage *stage = rank->stages[rank->own_stages[n]];
    for (uint32_t k = 0; k < stage->layer_count; k++) {
      WEFT_TRY(weft_gpt_rank_wait_collective(rank, group, &stage->collectives[k], error));
    }
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_rank_optimizer_step(struct weft_gpt_rank *rank, double learning_rate,
                                              struct weft_error *error) {
  assert(learning_rate >= 0);
  const double clip = weft_gpt_rank_training(rank)->clip, norm = rank->stats.gradient_norm;
  struct weft_gpt_adamw adamw = adamw_of(rank, learning_rate);
  if (clip > 0 && norm > clip) {
    adamw.grad_scale = (float)(clip / (norm + 1e-6));
  }
  WEFT_TRY(update_layers(rank, &adamw, error));
  return rank->trainer->options.shard == WEFT_GPT_SHARD_GRADS ? gather_parameters(rank, error)
                                                              : WEFT_OK;
}

/* ---- Enqueued ---- */

void weft_gpt_rank_set_step(const struct weft_gpt_rank *rank, double learning_rate) {
  assert(learning_rate >= 0);
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  const struct weft_gpt_adamw adamw = adamw_of(rank, learning_rate);
  if (rank->compute->ops->set_step != NULL) {
    rank->compute->ops->set_step(rank->compute, &adamw, options->training.clip,
                                 options->on_divergence == WEFT_GPT_ON_DIVERGENCE_CONTINUE);
  }
}

/* This replica's slice of a layer's gradients becomes the sum over replicas, in their order; where
 * nothing is sharded it does in the memory of all of them. */
static enum weft_status reduce_layer(const struct weft_gpt_stage *stage, uint32_t k,
                                     struct weft_stream *stream, struct weft_error *error) {
  const struct weft_gpt_stage_context *context = stage->context;
  const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
  const bool all = context->sharding.mode == WEFT_GPT_SHARD_NONE;
  const uint64_t begin = shard->slice_begin, count = shard->slice_floats;
  const struct weft_gpt_stage *first = context->peer(context->peer_context, stage, 0);
  float *sum = all ? first->layers[k].gradients + begin : shard->gradients;
  for (uint32_t d = 1; d < context->sharding.replicas; d++) {
    const struct weft_gpt_stage *peer = context->peer(context->peer_context, stage, d);
    WEFT_TRY(context->compute->ops->add(context->compute, count,
                                        d == 1 ? first->layers[k].gradients + begin : sum,
                                        peer->layers[k].gradients + begin, sum, stream, error));
  }
  for (uint32_t d = 1; all && d < context->sharding.replicas; d++) {
    const struct weft_gpt_stage *peer = context->peer(context->peer_context, stage, d);
    WEFT_TRY(weft_copy(&(struct weft_copy){.to = peer->layers[k].gradients + begin,
                                           .to_device = peer->context->compute->device,
                                           .from = sum,
                                           .from_device = first->context->compute->device,
                                           .row_bytes = count * sizeof(float),
                                           .rows = 1},
                       stream, error));
  }
  return WEFT_OK;
}

/* The slices that other replicas have updated, where parameters are not sharded. */
static enum weft_status fetch_layer(const struct weft_gpt_stage *stage, uint32_t k,
                                    struct weft_stream *stream, struct weft_error *error) {
  const struct weft_gpt_stage_context *context = stage->context;
  for (uint32_t d = 0; d < context->sharding.replicas; d++) {
    const struct weft_gpt_stage *peer = context->peer(context->peer_context, stage, d);
    const struct weft_gpt_layer_shard *from = &peer->memory.shards[k];
    float *to = stage->layers[k].parameters + from->slice_begin;
    if (d == context->sharding.replica) {
      continue;
    }
    WEFT_TRY(weft_copy(&(struct weft_copy){.to = to,
                                           .to_device = context->compute->device,
                                           .from = from->parameters,
                                           .from_device = peer->context->compute->device,
                                           .row_bytes = from->slice_floats * sizeof(float),
                                           .rows = 1},
                       stream, error));
    WEFT_TRY(context->compute->ops->enqueue_round(
        context->compute, from->slice_floats, to,
        (uint16_t *)stage->memory.shards[k].rounded + from->slice_begin, stream, error));
  }
  return WEFT_OK;
}

static enum weft_status for_layers(const struct weft_gpt_rank *rank,
                                   enum weft_status (*function)(const struct weft_gpt_stage *stage,
                                                                uint32_t k,
                                                                struct weft_stream *stream,
                                                                struct weft_error *error),
                                   struct weft_stream *stream, struct weft_error *error) {
  for (uint32_t n = 0; n < rank->own_layer_count; n++) {
    uint32_t k;
    const struct weft_gpt_stage *stage = weft_gpt_rank_find_layer(rank, rank->own_layers[n], &k);
    WEFT_TRY(function(stage, k, stream, error));
  }
  return WEFT_OK;
}

/* Squares of this replica's slices of a stage's gradients. */
static enum weft_status sum_stage(const struct weft_gpt_rank *rank,
                                  const struct weft_gpt_stage *stage, struct weft_stream *stream,
                                  struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  WEFT_SCOPED_ARENA arena = {.allocator = trainer->allocator};
  struct weft_gpt_floats *slices = weft_arena_allocate(&arena, stage->layer_count, sizeof *slices);
  WEFT_TRY(weft_arena_status(&arena, error));
  for (uint32_t k = 0; k < stage->layer_count; k++) {
    slices[k] = weft_gpt_rank_slice_gradients(rank, stage->first_layer + k);
  }
  return rank->compute->ops->sum_squares(
      rank->compute, stage->first_layer, stage->layer_count, slices,
      trainer->sums + (uint64_t)rank->replica * trainer->layer_count + stage->first_layer, stream,
      error);
}

/* What the norm is made of, for all ranks to read. */
static enum weft_status sum_squares(const struct weft_gpt_rank *rank, struct weft_stream *stream,
                                    struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  for (uint32_t n = 0; n < rank->own_stage_count; n++) {
    WEFT_TRY(sum_stage(rank, rank->stages[rank->own_stages[n]], stream, error));
  }
  for (uint32_t head = 0; head < weft_gpt_head_count(&trainer->config); head++) {
    uint32_t k;
    const struct weft_gpt_stage *stage =
        weft_gpt_rank_find_layer(rank, trainer->config.blocks + 1 + head, &k);
    const uint32_t m = trainer->options.training.microbatches;
    if (stage != NULL) {
      WEFT_TRY(rank->compute->ops->sum_losses(
          rank->compute, m,
          stage->head_losses != NULL ? stage->head_losses + (size_t)head * m : stage->losses,
          weft_gpt_trainer_losses(trainer, rank->replica) + head, stream, error));
    }
  }
  return WEFT_OK;
}

static enum weft_status clip_and_update(const struct weft_gpt_rank *rank,
                                        struct weft_stream *stream, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const struct weft_gpt_compute_ops *ops = rank->compute->ops;
  WEFT_TRY(ops->clip(rank->compute, trainer->sums, trainer->layer_count,
                     weft_gpt_head_count(&trainer->config), trainer->options.replicas, stream,
                     error));
  for (uint32_t n = 0; n < rank->own_layer_count; n++) {
    const struct weft_gpt_update update = update_of(rank, rank->own_layers[n]);
    WEFT_TRY(ops->update_layer(rank->compute, &trainer->config, &update, stream, error));
  }
  return WEFT_OK;
}

/* Replicas' gradients are summed when all of them are complete, and given back when all replicas
 * have read them. A rank that is a process keeps them until it clears them: a step that is replayed
 * writes where it was recorded, and acquires nothing. */
enum weft_status weft_gpt_rank_finish_step(void *context, uint32_t pass, struct weft_stream *stream,
                                           struct weft_error *error) {
  enum { REDUCE, SUM, UPDATE, FETCH };
  const struct weft_gpt_rank *rank = context;
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  const bool fetches = options->shard == WEFT_GPT_SHARD_GRADS;
  switch (pass + (options->replicas > 1 ? REDUCE : SUM)) {
    case REDUCE: WEFT_TRY(for_layers(rank, reduce_layer, stream, error)); return WEFT_IN_PROGRESS;
    case SUM:
      for (uint32_t n = 0; n < rank->own_stage_count && !rank->trainer->process_per_rank; n++) {
        weft_gpt_stage_memory_release_gradients(&rank->stages[rank->own_stages[n]]->memory);
      }
      WEFT_TRY(sum_squares(rank, stream, error));
      return WEFT_IN_PROGRESS;
    case UPDATE:
      WEFT_TRY(clip_and_update(rank, stream, error));
      return fetches ? WEFT_IN_PROGRESS : WEFT_OK;
    default: return fetches ? for_layers(rank, fetch_layer, stream, error) : WEFT_OK;
  }
}

/* ---- The learning rate ---- */

double weft_gpt_learning_rate(uint64_t step, double rate, double rate_min, uint64_t warmup,
                              uint64_t total) {
  assert(rate_min <= rate);
  static const double pi = 3.14159265358979323846;
  if (step < warmup) {
    return rate * (double)(step + 1) / (double)warmup;
  }
  if (step >= total) {
    return rate_min;
  }
  const double along = (double)(step - warmup) / (double)(total - warmup);
  return rate_min + 0.5 * (rate - rate_min) * (1 + cos(pi * along));
}
