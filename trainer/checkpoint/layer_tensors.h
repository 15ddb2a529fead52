/* What a layer's file holds: each parameter, and AdamW's moments of it. */
#ifndef GPT_LAYER_TENSORS_H
#define GPT_LAYER_TENSORS_H

#include "trainer/checkpoint/safetensors.h"
#include "trainer/train/stage.h"

/* A layer's floats, in the order in which files have them. */
enum weft_gpt_array { WEFT_GPT_WEIGHTS, WEFT_GPT_FIRST_MOMENT, WEFT_GPT_SECOND_MOMENT };
#define WEFT_GPT_ARRAYS 3

struct weft_gpt_layer_tensor {
  enum weft_gpt_array array;
  uint64_t offset; /* in floats, in that array */
};

/* NAME, NAME.exp_avg and NAME.exp_avg_sq for each parameter; `begin` is left 0. Returns
 * how many. places may be NULL. */
uint32_t weft_gpt_layer_tensors(const struct weft_gpt_config *config, uint32_t layer,
                                struct weft_gpt_tensor tensors[WEFT_GPT_TENSORS_MAX],
                                struct weft_gpt_layer_tensor places[WEFT_GPT_TENSORS_MAX]);

/* NULL if the state does not have it. */
float *weft_gpt_layer_array(const struct weft_gpt_layer_state *layer, enum weft_gpt_array array);

#endif
