/* A range of layers as a stage; see stage.h.
 *
 * Layer k of the stage reads x[k] and writes x[k + 1]; x[0] is the boundary's input
 * and x[layer_count] its output, so a slot holds the activations in between, and their
 * gradients, which backward_weight needs after backward_input. */
#include "gpt/train/stage.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "gpt/kernels/kernels.h"
#include "gpt/model/aligned_memory.h"
#include "gpt/model/layer.h"

/* What a microbatch saves from its forward to its last backward. */
struct weft_gpt_slot {
  float *memory; /* all of it */
};

/* ---- Slots ---- */

static uint64_t row_floats(const struct weft_gpt_stage *stage) {
  return stage->context->sequences_max * stage->config->context * stage->config->dim;
}

static bool is_embedding(uint32_t layer) { return layer == 0; }

static bool is_head(const struct weft_gpt_config *config, uint32_t layer) {
  return layer == config->blocks + 1;
}

static uint64_t saved_floats(const struct weft_gpt_stage *stage, uint32_t k) {
  return weft_gpt_layer_saved(stage->config, stage->first_layer + k, stage->context->sequences_max,
                              stage->config->context);
}

/* Activations between layers, their gradients, then what each layer saves. */
uint64_t weft_gpt_slot_floats(const struct weft_gpt_config *config, uint64_t sequences_max,
                              uint32_t first_layer, uint32_t layer_count) {
  uint64_t floats = 2 * (uint64_t)(layer_count - 1) * sequences_max * config->context * config->dim;
  for (uint32_t k = 0; k < layer_count; k++) {
    const uint64_t saved =
        weft_gpt_layer_saved(config, first_layer + k, sequences_max, config->context);
    floats += (saved + 15) / 16 * 16;
  }
  return floats;
}

static uint64_t slot_floats(const struct weft_gpt_stage *stage) {
  return weft_gpt_slot_floats(stage->config, stage->context->sequences_max, stage->first_layer,
                              stage->layer_count);
}

/* x[k + 1], between layer k and layer k + 1, and its gradient. */
static float *between(const struct weft_gpt_stage *stage, uint32_t slot, uint32_t k) {
  return stage->slots[slot].memory + k * row_floats(stage);
}

static float *gradient_between(const struct weft_gpt_stage *stage, uint32_t slot, uint32_t k) {
  return between(stage, slot, stage->layer_count - 1 + k);
}

static float *saved(const struct weft_gpt_stage *stage, uint32_t slot, uint32_t k) {
  float *at = between(stage, slot, 2 * (stage->layer_count - 1));
  for (uint32_t n = 0; n < k; n++) {
    at += (saved_floats(stage, n) + 15) / 16 * 16;
  }
  return at;
}

/* ---- Calls ---- */

static struct weft_gpt_stage *stage_of(struct weft_stage *stage) {
  return (struct weft_gpt_stage *)stage;
}

static struct weft_gpt_layer_call layer_call(const struct weft_gpt_stage *stage,
                                             const struct weft_stage_call *call, uint32_t k) {
  const struct weft_tensor_shape *shape = &call->inputs->items[0].shape;
  return (struct weft_gpt_layer_call){.config = stage->config,
                                      .layer = stage->first_layer + k,
                                      .sequences = shape->dims[0],
                                      .tokens = shape->dims[1],
                                      .parameters = stage->layers[k].parameters,
                                      .saved = saved(stage, call->slot, k),
                                      .scratch = stage->scratch};
}

static enum weft_status check_inputs(const struct weft_gpt_stage *stage,
                                     const struct weft_stage_call *call, struct weft_error *error) {
  const bool tokens = is_embedding(stage->first_layer);
  const struct weft_tensor_shape *shape = &call->inputs->items[0].shape;
  if (call->inputs->count != 1 || shape->dtype != (tokens ? WEFT_U8 : WEFT_F32) ||
      shape->dim_count != (tokens ? 2 : 3) || shape->dims[0] > stage->context->sequences_max ||
      shape->dims[1] > stage->config->context || shape->dims[0] == 0 || shape->dims[1] == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "give it tokens as u8, sequences x context",
                     "microbatch %" PRIu32 " has %" PRIu64 " x %" PRIu64 "; at most %" PRIu64
                     " sequences of %" PRIu32 " tokens fit",
                     call->microbatch, shape->dims[0], shape->dims[1],
                     stage->context->sequences_max, stage->config->context);
  }
  return WEFT_OK;
}

/* Parameters are unsharded from UNSHARD to RESHARD, gradients from the first backward on. */
static enum weft_status check_unsharded(const struct weft_gpt_stage *stage,
                                        struct weft_error *error) {
  if (stage->layers[0].parameters == NULL) {
    return weft_fail(error, WEFT_ERR_INVALID, "lower the table again, with UNSHARD",
                     "the parameters are sharded: there is no UNSHARD before this action");
  }
  return WEFT_OK;
}

static const float *input_of(const struct weft_gpt_stage *stage, const struct weft_stage_call *call,
                             uint32_t k) {
  return k == 0 ? call->inputs->items[0].data : between(stage, call->slot, k - 1);
}

static const uint8_t *tokens_of(const struct weft_stage_call *call) {
  return call->inputs->items[0].data;
}

/* Layer k's pass began at `begin` and ends now, which is when the next one's begins. */
static int64_t take_time(const struct weft_gpt_stage *stage, uint32_t k, enum weft_gpt_pass pass,
                         int64_t begin) {
  const int64_t now = weft_clock_ns();
  stage->times[k].total_ns[pass] += now - begin;
  stage->times[k].count[pass]++;
  return now;
}

/* ---- Forward ---- */

static void set_shape(const struct weft_gpt_stage *stage, const struct weft_stage_call *call,
                      uint64_t width) {
  const struct weft_tensor_shape *in = &call->inputs->items[0].shape;
  struct weft_tensor_shape *out = &call->outputs->items[0].shape;
  (void)stage;
  out->dim_count = 3;
  out->dims[0] = in->dims[0];
  out->dims[1] = in->dims[1];
  out->dims[2] = width;
}

static void run_head(const struct weft_gpt_stage *stage, struct weft_stage_call *call, uint32_t k) {
  const struct weft_gpt_layer_call layer = layer_call(stage, call, k);
  const uint8_t *targets = call->targets->count > 0 ? call->targets->items[0].data : NULL;
  float *logits = NULL;
  if (call->outputs->count > 0) {
    set_shape(stage, call, stage->config->vocabulary);
    logits = call->outputs->items[0].data;
  }
  *call->loss +=
      weft_gpt_head_forward(&layer, input_of(stage, call, k), targets, call->training, logits);
}

static void run_inner(const struct weft_gpt_stage *stage, struct weft_stage_call *call,
                      uint32_t k) {
  const struct weft_gpt_layer_call layer = layer_call(stage, call, k);
  const bool leaves = k + 1 == stage->layer_count;
  float *y = leaves ? call->outputs->items[0].data : between(stage, call->slot, k);
  if (is_embedding(layer.layer)) {
    weft_gpt_embedding_forward(&layer, tokens_of(call), y);
  } else {
    weft_gpt_block_forward(&layer, input_of(stage, call, k), y);
  }
  if (leaves) {
    set_shape(stage, call, stage->config->dim);
  }
}

static enum weft_status forward(struct weft_stage *base, struct weft_stage_call *call,
                                struct weft_error *error) {
  struct weft_gpt_stage *stage = stage_of(base);
  WEFT_TRY(check_inputs(stage, call, error));
  WEFT_TRY(check_unsharded(stage, error));
  int64_t begin = weft_clock_ns();
  if (stage->context->before_forward != NULL && call->training) {
    stage->context->before_forward(stage->context->before_forward_context, call->stage, call->step);
  }
  for (uint32_t k = 0; k < stage->layer_count; k++) {
    call->progress(call->progress_context);
    if (is_head(stage->config, stage->first_layer + k)) {
      run_head(stage, call, k);
    } else {
      run_inner(stage, call, k);
    }
    if (call->training) {
      begin = take_time(stage, k, WEFT_GPT_PASS_F, begin);
    }
  }
  return WEFT_OK;
}

/* ---- Backward ---- */

/* The gradient of layer k's output. */
static const float *gradient_of(const struct weft_gpt_stage *stage,
                                const struct weft_stage_call *call, uint32_t k) {
  return k + 1 < stage->layer_count  ? gradient_between(stage, call->slot, k)
         : call->output_grads->count ? call->output_grads->items[0].data
                                     : NULL;
}

static enum weft_status backward_input(struct weft_stage *base, struct weft_stage_call *call,
                                       struct weft_error *error) {
  struct weft_gpt_stage *stage = stage_of(base);
  WEFT_TRY(check_unsharded(stage, error));
  WEFT_TRY(weft_gpt_stage_memory_acquire_gradients(&stage->memory, error));
  int64_t begin = weft_clock_ns();
  for (uint32_t k = stage->layer_count; k-- > 0;) {
    const struct weft_gpt_layer_call layer = layer_call(stage, call, k);
    if (is_embedding(layer.layer)) {
      break;
    }
    call->progress(call->progress_context);
    float *dx =
        k > 0 ? gradient_between(stage, call->slot, k - 1) : call->input_grads->items[0].data;
    if (is_head(stage->config, layer.layer)) {
      weft_gpt_head_backward_input(&layer, input_of(stage, call, k), dx);
    } else {
      weft_gpt_block_backward_input(&layer, input_of(stage, call, k), gradient_of(stage, call, k),
                                    dx);
    }
    begin = take_time(stage, k, WEFT_GPT_PASS_I, begin);
  }
  return WEFT_OK;
}

static enum weft_status backward_weight(struct weft_stage *base, struct weft_stage_call *call,
                                        struct weft_error *error) {
  struct weft_gpt_stage *stage = stage_of(base);
  WEFT_TRY(check_unsharded(stage, error));
  WEFT_TRY(weft_gpt_stage_memory_acquire_gradients(&stage->memory, error));
  int64_t begin = weft_clock_ns();
  for (uint32_t k = stage->layer_count; k-- > 0;) {
    const struct weft_gpt_layer_call layer = layer_call(stage, call, k);
    float *gradients = stage->layers[k].gradients;
    call->progress(call->progress_context);
    if (is_embedding(layer.layer)) {
      weft_gpt_embedding_backward_weight(&layer, tokens_of(call), gradient_of(stage, call, k),
                                         gradients);
    } else if (is_head(stage->config, layer.layer)) {
      weft_gpt_head_backward_weight(&layer, input_of(stage, call, k), gradients);
    } else {
      weft_gpt_block_backward_weight(&layer, input_of(stage, call, k), gradient_of(stage, call, k),
                                     gradients);
    }
    begin = take_time(stage, k, WEFT_GPT_PASS_W, begin);
  }
  return WEFT_OK;
}

/* Unsharded gradients in a pool's buffer are cleared when the buffer is acquired. */
static enum weft_status zero_grad(struct weft_stage *base, struct weft_stage_call *call,
                                  struct weft_error *error) {
  struct weft_gpt_stage *stage = stage_of(base);
  struct weft_gpt_tie *tie = stage->context->tie;
  (void)call;
  (void)error;
  for (uint32_t k = 0; k < stage->layer_count; k++) {
    if (stage->layers[k].gradients != NULL) {
      memset(stage->layers[k].gradients, 0, stage->layers[k].floats * sizeof(float));
    }
  }
  stage->reduces_later = false;
  if (tie != NULL) {
    tie->first_ready = tie->last_ready = false;
  }
  return WEFT_OK;
}

/* Divides by the number of replicas too, so that reducing is only a sum. */
static enum weft_status scale_grads(struct weft_stage *base, struct weft_stage_call *call,
                                    struct weft_error *error) {
  struct weft_gpt_stage *stage = stage_of(base);
  const double factor = call->grad_scale / stage->context->sharding.replicas;
  (void)error;
  for (uint32_t k = 0; k < stage->layer_count; k++) {
    weft_gpt_scale(stage->layers[k].floats, (float)factor, stage->layers[k].gradients);
  }
  return WEFT_OK;
}

/* ---- Memory ---- */

static float *allocate_floats(const struct weft_gpt_stage *stage, uint64_t count,
                              struct weft_error *error) {
  float *floats = weft_gpt_allocate(stage->context->allocator, count, sizeof(float));
  if (floats == NULL) {
    (void)weft_fail(error, WEFT_ERR_MEMORY,
                    "a smaller model, batch or context needs less, and so do more ranks",
                    "no memory for %" PRIu64 " bytes", count * sizeof(float));
  }
  return floats;
}

static void free_slots(struct weft_gpt_stage *stage) {
  for (uint32_t k = 0; k < stage->slot_count; k++) {
    weft_gpt_free(stage->context->allocator, stage->slots[k].memory);
  }
  weft_gpt_free(stage->context->allocator, stage->slots);
  stage->slots = NULL;
  stage->slot_count = 0;
}

static enum weft_status prepare(struct weft_stage *base, uint32_t slot_count,
                                struct weft_error *error) {
  struct weft_gpt_stage *stage = stage_of(base);
  if (slot_count == stage->slot_count) {
    return WEFT_OK;
  }
  free_slots(stage);
  stage->slots = weft_gpt_allocate(stage->context->allocator, slot_count, sizeof *stage->slots);
  if (stage->slots == NULL) {
    return weft_fail(error, WEFT_ERR_MEMORY, "", "no memory for %" PRIu32 " slots", slot_count);
  }
  stage->slot_count = slot_count;
  for (uint32_t k = 0; k < slot_count; k++) {
    stage->slots[k].memory = allocate_floats(stage, slot_floats(stage), error);
    if (stage->slots[k].memory == NULL) {
      return WEFT_ERR_MEMORY;
    }
  }
  return WEFT_OK;
}

uint64_t weft_gpt_stage_slot_bytes(const struct weft_gpt_stage *stage) {
  return stage->slot_count * slot_floats(stage) * sizeof(float);
}

uint64_t weft_gpt_stage_scratch_bytes(const struct weft_gpt_stage *stage) {
  return stage->scratch_floats * sizeof(float);
}

static const struct weft_stage_ops gpt_stage_ops = {.name = "gpt",
                                                    .prepare = prepare,
                                                    .forward = forward,
                                                    .backward_input = backward_input,
                                                    .backward_weight = backward_weight,
                                                    .unshard = weft_gpt_stage_unshard,
                                                    .reshard = weft_gpt_stage_reshard,
                                                    .reduce_grad = weft_gpt_stage_reduce_grad,
                                                    .tie_grad = weft_gpt_stage_tie_grad,
                                                    .zero_grad = zero_grad,
                                                    .scale_grads = scale_grads};

static enum weft_status allocate_all(struct weft_gpt_stage *stage, struct weft_error *error) {
  const struct weft_gpt_stage_context *context = stage->context;
  WEFT_TRY(weft_gpt_stage_memory_init(&stage->memory, context->allocator, context->config,
                                      stage->first_layer, stage->layer_count, &context->sharding,
                                      context->memory, error));
  stage->layers = stage->memory.layers;
  stage->collectives =
      weft_gpt_allocate(context->allocator, stage->layer_count, sizeof *stage->collectives);
  stage->times = weft_gpt_allocate(context->allocator, stage->layer_count, sizeof *stage->times);
  if (stage->collectives == NULL || stage->times == NULL) {
    return weft_fail_memory(error, stage->layer_count * sizeof *stage->collectives);
  }
  for (uint32_t k = 0; k < stage->layer_count; k++) {
    const uint64_t scratch = weft_gpt_layer_scratch(stage->config, stage->first_layer + k,
                                                    context->sequences_max, stage->config->context);
    stage->scratch_floats = scratch > stage->scratch_floats ? scratch : stage->scratch_floats;
  }
  stage->scratch = allocate_floats(stage, stage->scratch_floats, error);
  return stage->scratch != NULL ? WEFT_OK : WEFT_ERR_MEMORY;
}

enum weft_status weft_gpt_stage_create(const struct weft_gpt_stage_context *context,
                                       uint32_t first_layer, uint32_t layer_count,
                                       struct weft_gpt_stage **out, struct weft_error *error) {
  assert(layer_count > 0 && out != NULL);
  struct weft_gpt_stage *stage = weft_gpt_allocate(context->allocator, 1, sizeof *stage);
  if (stage == NULL) {
    return weft_fail(error, WEFT_ERR_MEMORY, "", "no memory for a stage");
  }
  *stage = (struct weft_gpt_stage){.stage = {.ops = &gpt_stage_ops},
                                   .context = context,
                                   .config = context->config,
                                   .first_layer = first_layer,
                                   .layer_count = layer_count};
  const enum weft_status status = allocate_all(stage, error);
  if (status < 0) {
    weft_gpt_stage_destroy(stage);
    return status;
  }
  *out = stage;
  return WEFT_OK;
}

void weft_gpt_stage_destroy(struct weft_gpt_stage *stage) {
  if (stage == NULL) {
    return;
  }
  const struct weft_allocator *allocator = stage->context->allocator;
  free_slots(stage);
  weft_gpt_stage_memory_finish(&stage->memory);
  weft_gpt_free(allocator, stage->collectives);
  weft_gpt_free(allocator, stage->times);
  weft_gpt_free(allocator, stage->scratch);
  weft_gpt_free(allocator, stage);
}

/* ---- Boundaries ---- */

struct weft_boundary weft_gpt_boundary(const struct weft_gpt_config *config,
                                       uint64_t sequences_max) {
  return (struct weft_boundary){
      .tensor_count = 1,
      .tensors = {{.name = "x",
                   .largest = {.dtype = WEFT_F32,
                               .dim_count = 3,
                               .dims = {sequences_max, config->context, config->dim}},
                   .needs_grad = true}}};
}

struct weft_boundary weft_gpt_output_boundary(const struct weft_gpt_config *config,
                                              uint64_t sequences_max, bool want_logits) {
  struct weft_boundary boundary = weft_gpt_boundary(config, sequences_max);
  boundary.tensors[0].name = "logits";
  boundary.tensors[0].largest.dims[2] = config->vocabulary;
  boundary.tensors[0].needs_grad = false;
  boundary.tensor_count = want_logits ? 1 : 0;
  return boundary;
}
