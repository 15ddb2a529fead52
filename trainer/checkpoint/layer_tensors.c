/* From a layer's parameters to the tensors of its file. */
#include "trainer/checkpoint/layer_tensors.h"

#include <assert.h>
#include <stdio.h>

_Static_assert(WEFT_GPT_TENSORS_MAX == WEFT_GPT_ARRAYS * WEFT_GPT_PARAMETERS_MAX, "");

static struct weft_gpt_tensor describe_tensor(const struct weft_gpt_parameter *parameter,
                                              const char *suffix) {
  struct weft_gpt_tensor tensor = {.dim_count = parameter->dim_count,
                                   .dims = {parameter->dims[0], parameter->dims[1]},
                                   .bytes = parameter->count * sizeof(float)};
  (void)snprintf(tensor.name, sizeof tensor.name, "%.47s%.16s", parameter->name, suffix);
  return tensor;
}

uint32_t weft_gpt_layer_tensors(const struct weft_gpt_config *config, uint32_t layer,
                                struct weft_gpt_tensor tensors[WEFT_GPT_TENSORS_MAX],
                                struct weft_gpt_layer_tensor places[WEFT_GPT_TENSORS_MAX]) {
  static const char *const suffixes[WEFT_GPT_ARRAYS] = {"", ".exp_avg", ".exp_avg_sq"};
  struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX];
  const uint32_t count = weft_gpt_layer_parameters(config, layer, parameters);
  uint32_t filled = 0;
  for (uint32_t k = 0; k < count; k++) {
    for (uint32_t array = 0; array < WEFT_GPT_ARRAYS; array++) {
      tensors[filled] = describe_tensor(&parameters[k], suffixes[array]);
      if (places != NULL) {
        places[filled] = (struct weft_gpt_layer_tensor){.array = (enum weft_gpt_array)array,
                                                        .offset = parameters[k].offset};
      }
      filled++;
    }
  }
  return filled;
}

float *weft_gpt_layer_array(const struct weft_gpt_layer_state *layer, enum weft_gpt_array array) {
  assert(layer != NULL);
  switch (array) {
    case WEFT_GPT_WEIGHTS: return layer->parameters;
    case WEFT_GPT_FIRST_MOMENT: return layer->first_moment;
    case WEFT_GPT_SECOND_MOMENT: return layer->second_moment;
  }
  return NULL;
}
