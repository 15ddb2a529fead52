/* Computing one layer: forward, and the two halves of its backward. What forward saves for the
 * backward, and backward_input for backward_weight, is one block of floats per microbatch, which
 * the caller provides. */
#ifndef GPT_LAYER_H
#define GPT_LAYER_H

#include "trainer/model/model.h"

/* The arguments of a call. x, dx are [B, T, C]. */
struct weft_gpt_layer_call {
  const struct weft_gpt_config *config;
  uint32_t layer;
  uint64_t sequences; /* B */
  uint64_t tokens;    /* T, at most config->context */
  const float *parameters;
  float *saved;   /* weft_gpt_layer_saved() floats; the caller's from F to the last backward */
  float *scratch; /* weft_gpt_layer_scratch() floats; free between calls */
};

/* Floats, for the largest microbatch. */
uint64_t weft_gpt_layer_saved(const struct weft_gpt_config *config, uint32_t layer,
                              uint64_t sequences, uint64_t tokens);
uint64_t weft_gpt_layer_scratch(const struct weft_gpt_config *config, uint32_t layer,
                                uint64_t sequences, uint64_t tokens);

/* The same of a block and of the head, for B sequences of T tokens. */
uint64_t weft_gpt_block_saved(const struct weft_gpt_config *config, uint64_t sequences,
                              uint64_t tokens);
uint64_t weft_gpt_block_scratch(const struct weft_gpt_config *config, uint64_t sequences,
                                uint64_t tokens);
uint64_t weft_gpt_head_saved(const struct weft_gpt_config *config, uint64_t sequences,
                             uint64_t tokens);
uint64_t weft_gpt_head_scratch(const struct weft_gpt_config *config, uint64_t sequences,
                               uint64_t tokens);

/* ids [B, T]: the embedding's input, tokens of weft_gpt_token_bytes(); y is its output. */
void weft_gpt_embedding_forward(const struct weft_gpt_layer_call *call, const void *ids, float *y);
void weft_gpt_embedding_backward_weight(const struct weft_gpt_layer_call *call, const void *ids,
                                        const float *dy, float *gradients);

/* The block does not save x: it must be unchanged until the backward. y may not be x. */
void weft_gpt_block_forward(const struct weft_gpt_layer_call *call, const float *x, float *y);
/* dy must be unchanged until backward_weight. dx (=) may not be dy. */
void weft_gpt_block_backward_input(const struct weft_gpt_layer_call *call, const float *x,
                                   const float *dy, float *dx);
void weft_gpt_block_backward_weight(const struct weft_gpt_layer_call *call, const float *x,
                                    const float *dy, float *gradients);

/* The loss of the microbatch is the mean over its B T tokens. Forward computes it and,
 * when `training`, keeps what the backward begins with: of the second head, the gradient times
 * WEFT_GPT_SECOND_WEIGHT. logits [B, T, V]: written if not
 * NULL. targets may be NULL: then there is no loss, and 0 is returned. */
double weft_gpt_head_forward(const struct weft_gpt_layer_call *call, const float *x,
                             const void *targets, bool training, float *logits);
void weft_gpt_head_backward_input(const struct weft_gpt_layer_call *call, const float *x,
                                  float *dx);
void weft_gpt_head_backward_weight(const struct weft_gpt_layer_call *call, const float *x,
                                   float *gradients);

#endif
