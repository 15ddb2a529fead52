/* Numbers that are not finite: in a step, and in the parameters. All ranks decide alike, because
 * they decide by numbers that they have gathered. */
#include <assert.h>
#include <math.h>

#include <weft/support.h>

#include "gpt/kernels/kernels.h"
#include "gpt/train/rank.h"

bool weft_gpt_rank_may_update(struct weft_gpt_rank *rank) {
  if (isfinite(rank->stats.loss) && isfinite(rank->stats.gradient_norm)) {
    return true;
  }
  switch (rank->trainer->options.on_divergence) {
    case WEFT_GPT_ON_DIVERGENCE_STOP: rank->divergence = WEFT_GPT_DIVERGED_STEP; return false;
    case WEFT_GPT_ON_DIVERGENCE_SKIP: rank->skipped++; return false;
    case WEFT_GPT_ON_DIVERGENCE_CONTINUE: break;
  }
  return true;
}

/* The square of a finite float is finite in double precision, and so is any sum of them here. */
static bool is_finite_array(uint64_t count, const float *floats) {
  return isfinite(weft_gpt_square_sum(count, floats));
}

static bool is_finite_layer(const struct weft_gpt_rank *rank, uint32_t layer) {
  uint32_t k;
  const struct weft_gpt_stage *stage = weft_gpt_rank_find_layer(rank, layer, &k);
  const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
  return is_finite_array(shard->floats, shard->parameters) &&
         is_finite_array(shard->floats, shard->first_moment) &&
         is_finite_array(shard->floats, shard->second_moment);
}

enum weft_status weft_gpt_rank_check_parameters(struct weft_gpt_rank *rank, bool *finite,
                                                struct weft_error *error) {
  assert(rank != NULL && finite != NULL);
  double bad = 0, all_bad;
  for (uint32_t k = 0; k < rank->own_layer_count; k++) {
    bad += is_finite_layer(rank, rank->own_layers[k]) ? 0 : 1;
  }
  WEFT_TRY(weft_gpt_rank_sum(rank, bad, &all_bad, error));
  *finite = all_bad == 0;
  if (!*finite && rank->trainer->options.on_divergence != WEFT_GPT_ON_DIVERGENCE_CONTINUE) {
    rank->divergence = WEFT_GPT_DIVERGED_PARAMETERS;
  }
  return WEFT_OK;
}
