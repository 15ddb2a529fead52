/* A head: the last norm, logits, and the mean cross entropy. Training saves the norm's output
 * and the gradient of the logits, with which the backward begins. */
#include <assert.h>
#include <string.h>

#include "trainer/kernels/kernels.h"
#include "trainer/model/layer.h"

struct head_layer {
  uint64_t rows, channels, vocabulary;
  const float *parameters;
  uint64_t at[WEFT_GPT_PARAMETERS_MAX];
  float *normed;      /* [R, C] */
  float *dlogits;     /* [R, V] */
  float *share;       /* [2 C], written by backward_input */
  float *mean, *rstd; /* [R] */
};

uint64_t weft_gpt_head_saved(const struct weft_gpt_config *config, uint64_t sequences,
                             uint64_t tokens) {
  return sequences * tokens * ((uint64_t)config->dim + config->vocabulary + 2) +
         2 * (uint64_t)config->dim;
}

uint64_t weft_gpt_head_scratch(const struct weft_gpt_config *config, uint64_t sequences,
                               uint64_t tokens) {
  return sequences * tokens * config->dim;
}

static struct head_layer open_head(const struct weft_gpt_layer_call *call) {
  struct weft_gpt_parameter tensors[WEFT_GPT_PARAMETERS_MAX];
  struct head_layer head = {.rows = call->sequences * call->tokens,
                            .channels = call->config->dim,
                            .vocabulary = call->config->vocabulary,
                            .parameters = call->parameters};
  const uint32_t count = weft_gpt_layer_parameters(call->config, call->layer, tensors);
  for (uint32_t i = 0; i < count; i++) {
    head.at[i] = tensors[i].offset;
  }
  head.normed = call->saved;
  head.dlogits = head.normed + head.rows * head.channels;
  head.share = head.dlogits + head.rows * head.vocabulary;
  head.mean = head.share + 2 * head.channels;
  head.rstd = head.mean + head.rows;
  return head;
}

double weft_gpt_head_forward(const struct weft_gpt_layer_call *call, const float *x,
                             const void *targets, bool training, float *logits) {
  assert(x != NULL && weft_gpt_is_head(call->config, call->layer));
  const struct head_layer head = open_head(call);
  float *scores = logits != NULL ? logits : head.dlogits;
  weft_gpt_layernorm(head.rows, head.channels, x, head.parameters + head.at[WEFT_GPT_LNF_WEIGHT],
                     head.parameters + head.at[WEFT_GPT_LNF_BIAS], head.normed, head.mean,
                     head.rstd);
  weft_gpt_linear(head.rows, head.channels, head.vocabulary, head.normed,
                  head.parameters + head.at[WEFT_GPT_LM_HEAD_WEIGHT], NULL, scores);
  if (targets == NULL) {
    return 0.0;
  }
  const float weight = (float)weft_gpt_head_weight(call->config, call->layer);
  const double sum =
      weft_gpt_cross_entropy(head.rows, head.vocabulary, scores, targets, weight / (float)head.rows,
                             training ? head.dlogits : NULL);
  return sum / (double)head.rows;
}

void weft_gpt_head_backward_input(const struct weft_gpt_layer_call *call, const float *x,
                                  float *dx) {
  assert(x != NULL && dx != NULL);
  const struct head_layer head = open_head(call);
  weft_gpt_linear_backward_input(head.rows, head.channels, head.vocabulary, head.dlogits,
                                 head.parameters + head.at[WEFT_GPT_LM_HEAD_WEIGHT], call->scratch,
                                 false);
  memset(dx, 0, head.rows * head.channels * sizeof *dx);
  weft_gpt_layernorm_backward_input(head.rows, head.channels, x,
                                    head.parameters + head.at[WEFT_GPT_LNF_WEIGHT], head.mean,
                                    head.rstd, call->scratch, dx, head.share);
}

void weft_gpt_head_backward_weight(const struct weft_gpt_layer_call *call, const float *x,
                                   float *gradients) {
  assert(gradients != NULL);
  (void)x; /* its norm is saved */
  const struct head_layer head = open_head(call);
  weft_gpt_linear_backward_weight(head.rows, head.channels, head.vocabulary, head.normed,
                                  head.dlogits, gradients + head.at[WEFT_GPT_LM_HEAD_WEIGHT], NULL);
  weft_gpt_add(head.channels, head.share, gradients + head.at[WEFT_GPT_LNF_WEIGHT]);
  weft_gpt_add(head.channels, head.share + head.channels, gradients + head.at[WEFT_GPT_LNF_BIAS]);
}
