/* The optimizer's step: the learning rate, clipping, AdamW on what this rank keeps of its layers,
 * and the gathering of parameters that only gradients and moments are sharded for. */
#include <math.h>

#include <weft/support.h>

#include "gpt/kernels/kernels.h"
#include "gpt/train/rank.h"

static uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t max64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Weight decay differs by parameter, so each is updated by itself, as far as it is kept here. */
static void update_layer(const struct weft_gpt_rank *rank, uint32_t layer,
                         struct weft_gpt_adamw adamw) {
  struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX];
  uint32_t k;
  const struct weft_gpt_stage *stage = weft_gpt_rank_find_layer(rank, layer, &k);
  const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
  const uint32_t count = weft_gpt_layer_parameters(&rank->trainer->config, layer, parameters);
  const float decay = adamw.decay;
  for (uint32_t n = 0; n < count; n++) {
    const uint64_t begin = max64(parameters[n].offset, shard->begin);
    const uint64_t end =
        min64(parameters[n].offset + parameters[n].count, shard->begin + shard->floats);
    if (begin < end) {
      const uint64_t at = begin - shard->begin;
      adamw.decay = parameters[n].decays ? decay : 0;
      weft_gpt_adamw_update(&adamw, end - begin, shard->gradients + at, shard->parameters + at,
                            shard->first_moment + at, shard->second_moment + at);
    }
  }
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
  for (uint32_t k = 0; k < rank->own_layer_count; k++) {
    update_layer(rank, rank->own_layers[k], adamw);
  }
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
