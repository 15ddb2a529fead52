/* Sizes of `saved` and `scratch` by kind of layer, in floats, for B sequences of T tokens. */
#ifndef GPT_LAYER_LAYOUT_H
#define GPT_LAYER_LAYOUT_H

#include "gpt/model/layer.h"

uint64_t weft_gpt_block_saved(const struct weft_gpt_config *config, uint64_t sequences,
                              uint64_t tokens);
uint64_t weft_gpt_block_scratch(const struct weft_gpt_config *config, uint64_t sequences,
                                uint64_t tokens);
uint64_t weft_gpt_head_saved(const struct weft_gpt_config *config, uint64_t sequences,
                             uint64_t tokens);
uint64_t weft_gpt_head_scratch(const struct weft_gpt_config *config, uint64_t sequences,
                               uint64_t tokens);

#endif
