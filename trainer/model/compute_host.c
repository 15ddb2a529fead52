/* The host's side of compute.h: the layers of layer.h and the kernels of the optimizer. */
#include "trainer/model/compute.h"

#include <assert.h>
#include <string.h>

#include <weft/support.h>

#include "trainer/model/layer.h"

static bool is_embedding(uint32_t layer) { return layer == 0; }
static bool is_head(const struct weft_gpt_pass_call *call) {
  return weft_gpt_is_head(call->config, call->layer);
}

static uint64_t saved_bytes(const struct weft_gpt_config *config, uint32_t layer,
                            uint64_t sequences, uint64_t tokens) {
  return weft_gpt_layer_saved(config, layer, sequences, tokens) * sizeof(float);
}

static uint64_t scratch_bytes(const struct weft_gpt_config *config, uint32_t layer,
                              uint64_t sequences, uint64_t tokens) {
  return weft_gpt_layer_scratch(config, layer, sequences, tokens) * sizeof(float);
}

static struct weft_gpt_layer_call layer_call(const struct weft_gpt_pass_call *call) {
  return (struct weft_gpt_layer_call){.config = call->config,
                                      .layer = call->layer,
                                      .sequences = call->sequences,
                                      .tokens = call->tokens,
                                      .parameters = call->parameters,
                                      .saved = call->saved,
                                      .scratch = call->scratch};
}

static enum weft_status forward(struct weft_gpt_compute *compute,
                                const struct weft_gpt_pass_call *call, struct weft_error *error) {
  const struct weft_gpt_layer_call layer = layer_call(call);
  (void)compute;
  (void)error;
  if (is_embedding(call->layer)) {
    weft_gpt_embedding_forward(&layer, call->x, call->y);
  } else if (is_head(call)) {
    const double loss =
        weft_gpt_head_forward(&layer, call->x, call->targets, call->training, call->y);
    *call->loss += weft_gpt_head_weight(call->config, call->layer) * loss;
    if (call->head_loss != NULL) {
      *call->head_loss = loss;
    }
  } else {
    weft_gpt_block_forward(&layer, call->x, call->y);
  }
  return WEFT_OK;
}

static enum weft_status backward_input(struct weft_gpt_compute *compute,
                                       const struct weft_gpt_pass_call *call,
                                       struct weft_error *error) {
  const struct weft_gpt_layer_call layer = layer_call(call);
  (void)compute;
  (void)error;
  if (is_head(call)) {
    weft_gpt_head_backward_input(&layer, call->x, call->dx);
  } else {
    weft_gpt_block_backward_input(&layer, call->x, call->dy, call->dx);
  }
  return WEFT_OK;
}

static enum weft_status backward_weight(struct weft_gpt_compute *compute,
                                        const struct weft_gpt_pass_call *call,
                                        struct weft_error *error) {
  const struct weft_gpt_layer_call layer = layer_call(call);
  (void)compute;
  (void)error;
  if (is_embedding(call->layer)) {
    weft_gpt_embedding_backward_weight(&layer, call->x, call->dy, call->gradients);
  } else if (is_head(call)) {
    weft_gpt_head_backward_weight(&layer, call->x, call->gradients);
  } else {
    weft_gpt_block_backward_weight(&layer, call->x, call->dy, call->gradients);
  }
  return WEFT_OK;
}

static enum weft_status scale(struct weft_gpt_compute *compute, uint64_t count, float factor,
                              float *x, struct weft_stream *stream, struct weft_error *error) {
  (void)compute;
  (void)stream;
  (void)error;
  weft_gpt_scale(count, factor, x);
  return WEFT_OK;
}

static enum weft_status tie(struct weft_gpt_compute *compute, uint64_t count, float *a, float *b,
                            struct weft_stream *stream, struct weft_error *error) {
  (void)compute;
  (void)stream;
  (void)error;
  weft_gpt_add(count, b, a);
  memcpy(b, a, count * sizeof *b);
  return WEFT_OK;
}

static enum weft_status sum(struct weft_gpt_compute *compute, uint64_t count, const void *a,
                            const void *b, void *c, struct weft_stream *stream,
                            struct weft_error *error) {
  const float *x = a, *y = b;
  float *z = c;
  (void)compute;
  (void)stream;
  (void)error;
  for (uint64_t k = 0; k < count; k++) {
    z[k] = x[k] + y[k];
  }
  return WEFT_OK;
}

static enum weft_status square_sums(struct weft_gpt_compute *compute, uint32_t count,
                                    const struct weft_gpt_floats *arrays, double *sums,
                                    struct weft_error *error) {
  (void)compute;
  (void)error;
  for (uint32_t k = 0; k < count; k++) {
    sums[k] = arrays[k].count > 0 ? weft_gpt_square_sum(arrays[k].count, arrays[k].data) : 0;
  }
  return WEFT_OK;
}

static uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t max64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Weight decay differs by parameter, so each is updated by itself, as far as it is kept here. */
static void update_layer(const struct weft_gpt_config *config, const struct weft_gpt_update *update,
                         struct weft_gpt_adamw adamw) {
  struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX];
  const uint32_t count = weft_gpt_layer_parameters(config, update->layer, parameters);
  const float decay = adamw.decay;
  for (uint32_t n = 0; n < count; n++) {
    const uint64_t begin = max64(parameters[n].offset, update->begin);
    const uint64_t end =
        min64(parameters[n].offset + parameters[n].count, update->begin + update->count);
    if (begin < end) {
      const uint64_t at = begin - update->begin;
      adamw.decay = parameters[n].decays ? decay : 0;
      weft_gpt_adamw_update(&adamw, end - begin, update->gradients + at, update->parameters + at,
                            update->first_moment + at, update->second_moment + at);
    }
  }
}

static enum weft_status update(struct weft_gpt_compute *compute,
                               const struct weft_gpt_config *config,
                               const struct weft_gpt_adamw *adamw, uint32_t count,
                               const struct weft_gpt_update *updates, struct weft_error *error) {
  (void)compute;
  (void)error;
  for (uint32_t k = 0; k < count; k++) {
    update_layer(config, &updates[k], *adamw);
  }
  return WEFT_OK;
}

struct weft_gpt_compute *weft_gpt_compute_host(void) {
  static const struct weft_gpt_compute_ops ops = {.dtype = WEFT_F32,
                                                  .saved_bytes = saved_bytes,
                                                  .scratch_bytes = scratch_bytes,
                                                  .forward = forward,
                                                  .backward_input = backward_input,
                                                  .backward_weight = backward_weight,
                                                  .scale = scale,
                                                  .tie = tie,
                                                  .sum = sum,
                                                  .square_sums = square_sums,
                                                  .update = update};
  static struct weft_gpt_compute host = {.ops = &ops};
  return &host;
}
