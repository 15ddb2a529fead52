/* The embedding, and the sizes of all kinds of layers. The embedding saves nothing: its input are
 * tokens, which the caller keeps. */
#include <assert.h>

#include "trainer/kernels/kernels.h"
#include "trainer/model/layer.h"

uint64_t weft_gpt_layer_saved(const struct weft_gpt_config *config, uint32_t layer,
                              uint64_t sequences, uint64_t tokens) {
  assert(layer < weft_gpt_layer_count(config));
  if (layer == 0) {
    return 0;
  }
  return layer <= config->blocks ? weft_gpt_block_saved(config, sequences, tokens)
                                 : weft_gpt_head_saved(config, sequences, tokens);
}

uint64_t weft_gpt_layer_scratch(const struct weft_gpt_config *config, uint32_t layer,
                                uint64_t sequences, uint64_t tokens) {
  assert(layer < weft_gpt_layer_count(config));
  if (layer == 0) {
    return 0;
  }
  return layer <= config->blocks ? weft_gpt_block_scratch(config, sequences, tokens)
                                 : weft_gpt_head_scratch(config, sequences, tokens);
}

void weft_gpt_embedding_forward(const struct weft_gpt_layer_call *call, const void *ids, float *y) {
  assert(call->layer == 0 && ids != NULL && y != NULL);
  struct weft_gpt_parameter tensors[WEFT_GPT_PARAMETERS_MAX];
  weft_gpt_layer_parameters(call->config, call->layer, tensors);
  weft_gpt_embed(call->sequences, call->tokens, call->config->dim,
                 weft_gpt_token_bytes(call->config->vocabulary), ids,
                 call->parameters + tensors[WEFT_GPT_WTE].offset,
                 call->parameters + tensors[WEFT_GPT_WPE].offset, y);
}

void weft_gpt_embedding_backward_weight(const struct weft_gpt_layer_call *call, const void *ids,
                                        const float *dy, float *gradients) {
  assert(call->layer == 0 && dy != NULL && gradients != NULL);
  struct weft_gpt_parameter tensors[WEFT_GPT_PARAMETERS_MAX];
  weft_gpt_layer_parameters(call->config, call->layer, tensors);
  weft_gpt_embed_backward_weight(call->sequences, call->tokens, call->config->dim,
                                 weft_gpt_token_bytes(call->config->vocabulary), ids, dy,
                                 gradients + tensors[WEFT_GPT_WTE].offset,
                                 gradients + tensors[WEFT_GPT_WPE].offset);
}
