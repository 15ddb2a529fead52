/* The optimizer's step: the learning rate, clipping, AdamW on what this rank keeps of its layers,
 * and the gathering of parameters that only gradients and moments are sharded for. On the host it
 * comes after the pipeline's step; where work is enqueued it is the end of that step. */
#include <math.h>

#include <weft/support.h>

#include "gpt/train/rank.h"

/* What this rank keeps of a layer. */
static struct weft_gpt_update update_of(const struct weft_gpt_rank *rank, uint32_t layer) {
  uint32_t k;
  const struct weft_gpt_stage *stage = weft_gpt_rank_find_layer(rank, layer, &k);
  const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
  return (struct weft_gpt_update){.layer = layer,
                                  .begin = shard->begin,
                                  .count = shard->floats,
                                  .parameters = shard->parameters,
                                  .first_moment = shard->first_moment,
                                  .second_moment = shard->second_moment,
                                  .gradients = shard->gradients,
                                  .rounded = shard->rounded};
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
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  const struct weft_gpt_adamw adamw = adamw_of(rank, learning_rate);
  if (rank->compute->ops->set_step != NULL) {
    rank->compute->ops->set_step(rank->compute, &adamw, options->training.clip,
                                 options->on_divergence == WEFT_GPT_ON_DIVERGENCE_CONTINUE);
  }
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
  if (!rank->has_last) {
    return WEFT_OK;
  }
  return rank->compute->ops->sum_losses(
      rank->compute, trainer->options.training.microbatches,
      rank->stages[trainer->stage_count - 1]->losses,
      trainer->sums + (uint64_t)trainer->options.replicas * trainer->layer_count + rank->replica,
      stream, error);
}

static enum weft_status clip_and_update(const struct weft_gpt_rank *rank,
                                        struct weft_stream *stream, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const struct weft_gpt_compute_ops *ops = rank->compute->ops;
  WEFT_TRY(ops->clip(rank->compute, trainer->sums, trainer->layer_count, trainer->options.replicas,
                     stream, error));
  for (uint32_t n = 0; n < rank->own_layer_count; n++) {
    const struct weft_gpt_update update = update_of(rank, rank->own_layers[n]);
    WEFT_TRY(ops->update_layer(rank->compute, &trainer->config, &update, stream, error));
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_rank_finish_step(void *context, uint32_t pass, struct weft_stream *stream,
                                           struct weft_error *error) {
  const struct weft_gpt_rank *rank = context;
  if (pass == 0) {
    WEFT_TRY(sum_squares(rank, stream, error));
    return WEFT_IN_PROGRESS;
  }
  return clip_and_update(rank, stream, error);
}

/* ---- The learning rate ---- */

double weft_gpt_learning_rate(uint64_t step, double rate, double rate_min, uint64_t warmup,
                              uint64_t total) {
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
