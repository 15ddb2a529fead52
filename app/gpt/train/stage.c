/* A range of layers as a stage; see stage.h.
 *
 * Layer k of the stage reads x[k] and writes x[k + 1]; x[0] is the boundary's input
 * and x[layer_count] its output, so call->saved holds the activations in between, and their
 * gradients, which backward_weight needs after backward_input. */
#include "gpt/train/stage.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "gpt/model/aligned_memory.h"

/* ---- What a microbatch saves from its forward to its last backward ---- */

static uint64_t aligned(uint64_t bytes) {
  return (bytes + WEFT_DEVICE_ALIGN - 1) / WEFT_DEVICE_ALIGN * WEFT_DEVICE_ALIGN;
}

/* Of activations between two layers. */
static uint64_t between_bytes(const struct weft_gpt_compute_ops *ops,
                              const struct weft_gpt_config *config, uint64_t sequences_max) {
  return aligned(sequences_max * config->context * config->dim * weft_dtype_size(ops->dtype));
}

static bool is_embedding(uint32_t layer) { return layer == 0; }

static bool is_head(const struct weft_gpt_config *config, uint32_t layer) {
  return layer == config->blocks + 1;
}

/* Activations between layers, their gradients, then what each layer saves. */
uint64_t weft_gpt_saved_bytes(const struct weft_gpt_compute_ops *ops,
                              const struct weft_gpt_config *config, uint64_t sequences_max,
                              uint32_t first_layer, uint32_t layer_count) {
  uint64_t bytes = 2 * (layer_count - 1) * between_bytes(ops, config, sequences_max);
  for (uint32_t k = 0; k < layer_count; k++) {
    bytes += aligned(ops->saved_bytes(config, first_layer + k, sequences_max, config->context));
  }
  return bytes;
}

/* x[k + 1], between layer k and layer k + 1, and its gradient. */
static char *between(const struct weft_gpt_stage *stage, const struct weft_stage_call *call,
                     uint32_t k) {
  return (char *)call->saved + k * between_bytes(stage->context->compute->ops, stage->config,
                                                 stage->context->sequences_max);
}

static char *gradient_between(const struct weft_gpt_stage *stage,
                              const struct weft_stage_call *call, uint32_t k) {
  return between(stage, call, stage->layer_count - 1 + k);
}

static char *saved(const struct weft_gpt_stage *stage, const struct weft_stage_call *call,
                   uint32_t k) {
  const struct weft_gpt_compute_ops *ops = stage->context->compute->ops;
  char *at = between(stage, call, 2 * (stage->layer_count - 1));
  for (uint32_t n = 0; n < k; n++) {
    at += aligned(ops->saved_bytes(stage->config, stage->first_layer + n,
                                   stage->context->sequences_max, stage->config->context));
  }
  return at;
}

/* ---- Calls ---- */

static struct weft_gpt_stage *stage_of(struct weft_stage *stage) {
  return (struct weft_gpt_stage *)stage;
}

static const void *input_of(const struct weft_gpt_stage *stage, const struct weft_stage_call *call,
                            uint32_t k) {
  return k == 0 ? call->inputs->items[0].data : between(stage, call, k - 1);
}

/* The gradient of layer k's output. */
static const void *gradient_of(const struct weft_gpt_stage *stage,
                               const struct weft_stage_call *call, uint32_t k) {
  return k + 1 < stage->layer_count  ? gradient_between(stage, call, k)
         : call->output_grads->count ? call->output_grads->items[0].data
                                     : NULL;
}

/* What all passes of layer k have in common. */
static struct weft_gpt_pass_call pass_call(const struct weft_gpt_stage *stage,
                                           const struct weft_stage_call *call, uint32_t k) {
  const struct weft_tensor_shape *shape = &call->inputs->items[0].shape;
  const void *rounded = stage->memory.shards[k].rounded;
  return (struct weft_gpt_pass_call){
      .config = stage->config,
      .layer = stage->first_layer + k,
      .sequences = shape->dims[0],
      .tokens = shape->dims[1],
      .parameters = rounded != NULL ? rounded : stage->layers[k].parameters,
      .saved = saved(stage, call, k),
      .scratch = stage->scratch,
      .stream = call->stream,
      .x = input_of(stage, call, k)};
}

static enum weft_status check_inputs(const struct weft_gpt_stage *stage,
                                     const struct weft_stage_call *call, struct weft_error *error) {
  const bool tokens = is_embedding(stage->first_layer);
  const enum weft_dtype dtype =
      tokens ? weft_gpt_token_dtype(stage->config) : stage->context->compute->ops->dtype;
  const struct weft_tensor_shape *shape = &call->inputs->items[0].shape;
  if (call->inputs->count != 1 || shape->dtype != dtype || shape->dim_count != (tokens ? 2 : 3) ||
      shape->dims[0] > stage->context->sequences_max || shape->dims[1] > stage->config->context ||
      shape->dims[0] == 0 || shape->dims[1] == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "give it tokens, sequences x context",
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
  if (stage->layers[0].parameters == NULL && stage->memory.shards[0].rounded == NULL) {
    return weft_fail(error, WEFT_ERR_INVALID, "lower the table again, with UNSHARD",
                     "the parameters are sharded: there is no UNSHARD before this action");
  }
  return WEFT_OK;
}

/* Layer k's pass began at `begin` and ends now, which is when the next one's begins. Where work is
 * enqueued it ends some other time, and is not measured. */
static int64_t take_time(const struct weft_gpt_stage *stage, uint32_t k, enum weft_gpt_pass pass,
                         int64_t begin) {
  const int64_t now = weft_clock_ns();
  if (!stage->context->compute->ops->enqueues) {
    stage->times[k].total_ns[pass] += now - begin;
    stage->times[k].count[pass]++;
  }
  return now;
}

/* ---- Forward ---- */

static void set_shape(const struct weft_stage_call *call, uint64_t width) {
  const struct weft_tensor_shape *in = &call->inputs->items[0].shape;
  struct weft_tensor_shape *out = &call->outputs->items[0].shape;
  out->dim_count = 3;
  out->dims[0] = in->dims[0];
  out->dims[1] = in->dims[1];
  out->dims[2] = width;
}

static enum weft_status forward_layer(struct weft_gpt_stage *stage, struct weft_stage_call *call,
                                      uint32_t k, struct weft_error *error) {
  struct weft_gpt_compute *compute = stage->context->compute;
  struct weft_gpt_pass_call pass = pass_call(stage, call, k);
  pass.training = call->training;
  if (is_head(stage->config, pass.layer)) {
    pass.targets = call->targets->count > 0 ? call->targets->items[0].data : NULL;
    pass.loss = call->loss;
    stage->losses = call->loss - call->microbatch;
  } else if (k + 1 == stage->layer_count) {
    set_shape(call, stage->config->dim);
    pass.y = call->outputs->items[0].data;
  } else {
    pass.y = between(stage, call, k);
  }
  return compute->ops->forward(compute, &pass, error);
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
    WEFT_TRY(forward_layer(stage, call, k, error));
    if (call->training) {
      begin = take_time(stage, k, WEFT_GPT_PASS_F, begin);
    }
  }
  return WEFT_OK;
}

/* ---- Backward ---- */

static enum weft_status backward_input(struct weft_stage *base, struct weft_stage_call *call,
                                       struct weft_error *error) {
  struct weft_gpt_stage *stage = stage_of(base);
  struct weft_gpt_compute *compute = stage->context->compute;
  WEFT_TRY(check_unsharded(stage, error));
  WEFT_TRY(weft_gpt_stage_memory_acquire_gradients(&stage->memory, call->stream, error));
  int64_t begin = weft_clock_ns();
  for (uint32_t k = stage->layer_count; k-- > 0;) {
    struct weft_gpt_pass_call pass = pass_call(stage, call, k);
    if (is_embedding(pass.layer)) {
      break;
    }
    call->progress(call->progress_context);
    pass.dy = gradient_of(stage, call, k);
    pass.dx = k > 0 ? gradient_between(stage, call, k - 1) : call->input_grads->items[0].data;
    WEFT_TRY(compute->ops->backward_input(compute, &pass, error));
    begin = take_time(stage, k, WEFT_GPT_PASS_I, begin);
  }
  return WEFT_OK;
}

static enum weft_status backward_weight(struct weft_stage *base, struct weft_stage_call *call,
                                        struct weft_error *error) {
  struct weft_gpt_stage *stage = stage_of(base);
  struct weft_gpt_compute *compute = stage->context->compute;
  WEFT_TRY(check_unsharded(stage, error));
  WEFT_TRY(weft_gpt_stage_memory_acquire_gradients(&stage->memory, call->stream, error));
  int64_t begin = weft_clock_ns();
  for (uint32_t k = stage->layer_count; k-- > 0;) {
    struct weft_gpt_pass_call pass = pass_call(stage, call, k);
    call->progress(call->progress_context);
    pass.dy = gradient_of(stage, call, k);
    pass.gradients = stage->layers[k].gradients;
    WEFT_TRY(compute->ops->backward_weight(compute, &pass, error));
    begin = take_time(stage, k, WEFT_GPT_PASS_W, begin);
  }
  return WEFT_OK;
}

/* Unsharded gradients in a pool's buffer are cleared when the buffer is acquired. */
static enum weft_status zero_grad(struct weft_stage *base, struct weft_stage_call *call,
                                  struct weft_error *error) {
  struct weft_gpt_stage *stage = stage_of(base);
  struct weft_gpt_tie *tie = stage->context->tie;
  weft_gpt_stage_memory_release_gradients(&stage->memory); /* of a step that was not recorded */
  for (uint32_t k = 0; k < stage->layer_count; k++) {
    if (stage->layers[k].gradients != NULL) {
      WEFT_TRY(weft_device_fill(stage->context->compute->device, stage->layers[k].gradients, 0,
                                stage->layers[k].floats * sizeof(float), call->stream, error));
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
  struct weft_gpt_compute *compute = stage->context->compute;
  const double factor = call->grad_scale / stage->context->sharding.replicas;
  for (uint32_t k = 0; k < stage->layer_count; k++) {
    WEFT_TRY(compute->ops->scale(compute, stage->layers[k].floats, (float)factor,
                                 stage->layers[k].gradients, call->stream, error));
  }
  return WEFT_OK;
}

/* ---- Memory ---- */

static void *allocate_bytes(const struct weft_gpt_stage *stage, uint64_t bytes,
                            struct weft_error *error) {
  void *data =
      weft_device_allocate(stage->context->compute->device, stage->context->allocator, bytes);
  if (data == NULL) {
    (void)weft_fail(error, WEFT_ERR_MEMORY,
                    "a smaller model, batch or context needs less, and so do more ranks",
                    "no memory for %" PRIu64 " bytes", bytes);
  }
  return data;
}

uint64_t weft_gpt_stage_scratch_bytes(const struct weft_gpt_stage *stage) {
  return stage->scratch_bytes;
}

#define STAGE_FUNCTIONS                                                         \
  .name = "gpt", .forward = forward, .backward_input = backward_input,          \
  .backward_weight = backward_weight, .unshard = weft_gpt_stage_unshard,        \
  .reshard = weft_gpt_stage_reshard, .reduce_grad = weft_gpt_stage_reduce_grad, \
  .tie_grad = weft_gpt_stage_tie_grad, .zero_grad = zero_grad, .scale_grads = scale_grads

static const struct weft_stage_ops host_ops = {STAGE_FUNCTIONS};
static const struct weft_stage_ops enqueued_ops = {STAGE_FUNCTIONS, .enqueues = true,
                                                   .replays = true};
/* With collectives that go through memory of the host: a graph would leave them out. */
static const struct weft_stage_ops gathering_ops = {STAGE_FUNCTIONS, .enqueues = true};

static enum weft_status allocate_all(struct weft_gpt_stage *stage, struct weft_error *error) {
  const struct weft_gpt_stage_context *context = stage->context;
  WEFT_TRY(weft_gpt_stage_memory_init(&stage->memory, context->allocator, context->compute,
                                      context->config, stage->first_layer, stage->layer_count,
                                      &context->sharding, context->memory, error));
  stage->layers = stage->memory.layers;
  stage->collectives =
      weft_gpt_allocate(context->allocator, stage->layer_count, sizeof *stage->collectives);
  stage->times = weft_gpt_allocate(context->allocator, stage->layer_count, sizeof *stage->times);
  if (stage->collectives == NULL || stage->times == NULL) {
    return weft_fail_memory(error, stage->layer_count * sizeof *stage->collectives);
  }
  if (context->group != NULL && context->compute->ops->enqueues && !context->group_enqueues &&
      context->sharding.mode == WEFT_GPT_SHARD_FULL) {
    const uint64_t count = stage->memory.unsharded_floats;
    stage->gathered = weft_gpt_allocate(context->allocator, count, sizeof *stage->gathered);
    if (stage->gathered == NULL) {
      return weft_fail_memory(error, count * sizeof *stage->gathered);
    }
    stage->stage.ops = &gathering_ops;
  }
  for (uint32_t k = 0; k < stage->layer_count; k++) {
    const uint64_t scratch = context->compute->ops->scratch_bytes(
        stage->config, stage->first_layer + k, context->sequences_max, stage->config->context);
    stage->scratch_bytes = scratch > stage->scratch_bytes ? scratch : stage->scratch_bytes;
  }
  stage->scratch = allocate_bytes(stage, stage->scratch_bytes, error);
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
  *stage = (struct weft_gpt_stage){
      .stage = {.ops = context->compute->ops->enqueues ? &enqueued_ops : &host_ops,
                .saved_bytes =
                    weft_gpt_saved_bytes(context->compute->ops, context->config,
                                         context->sequences_max, first_layer, layer_count)},
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
  weft_gpt_stage_memory_finish(&stage->memory);
  weft_gpt_free(allocator, stage->collectives);
  weft_gpt_free(allocator, stage->times);
  weft_gpt_free(allocator, stage->gathered);
  weft_device_free(stage->context->compute->device, allocator, stage->scratch,
                   stage->scratch_bytes);
  weft_gpt_free(allocator, stage);
}

/* ---- Boundaries ---- */

struct weft_boundary weft_gpt_boundary(const struct weft_gpt_config *config, enum weft_dtype dtype,
                                       uint64_t sequences_max) {
  return (struct weft_boundary){
      .tensor_count = 1,
      .tensors = {{.name = "x",
                   .largest = {.dtype = (uint8_t)dtype,
                               .dim_count = 3,
                               .dims = {sequences_max, config->context, config->dim}},
                   .needs_grad = true}}};
}
