/* The optimizer's step: the learning rate, clipping, AdamW on what this rank keeps of its layers,
 * and the gathering of parameters that only gradients and moments are sharded for. */
#include <math.h>

#include <weft/support.h>

#include "gpt/train/rank.h"

/* What this rank keeps of its layers. */
static enum weft_status update_layers(struct weft_gpt_rank *rank,
                                      const struct weft_gpt_adamw *adamw,
                                      struct weft_error *error) {
  WEFT_SCOPED_ARENA arena = {.allocator = rank->trainer->allocator};
  struct weft_gpt_update *updates =
      weft_arena_allocate(&arena, rank->own_layer_count, sizeof *updates);
  WEFT_TRY(weft_arena_status(&arena, error));
  for (uint32_t n = 0; n < rank->own_layer_count; n++) {
    uint32_t k;
    const struct weft_gpt_stage *stage = weft_gpt_rank_find_layer(rank, rank->own_layers[n], &k);
    const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
    updates[n] = (struct weft_gpt_update){.layer = rank->own_layers[n],
                                          .begin = shard->begin,
                                          .count = shard->floats,
                                          .parameters = shard->parameters,
                                          .first_moment = shard->first_moment,
                                          .second_moment = shard->second_moment,
                                          .gradients = shard->gradients,
                                          .rounded = shard->rounded};
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
  const struct weft_gpt_training *training = weft_gpt_rank_training(rank);
  const double steps = (double)rank->step + 1, norm = rank->stats.gradient_norm;
  const bool clips = training->clip > 0 && norm > training->clip;
  const struct weft_gpt_adamw adamw = {
      .rate = (float)learning_rate,
      .beta1 = (float)training->beta1,
      .beta2 = (float)training->beta2,
      .epsilon = (float)training->epsilon,
      .decay = (float)training->decay,
      .correction1 = (float)(1 - pow(training->beta1, steps)),
      .correction2 = (float)(1 - pow(training->beta2, steps)),
      .grad_scale = clips ? (float)(training->clip / (norm + 1e-6)) : 1};
  WEFT_TRY(update_layers(rank, &adamw, error));
  return rank->trainer->options.shard == WEFT_GPT_SHARD_GRADS ? gather_parameters(rank, error)
                                                              : WEFT_OK;
}

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
