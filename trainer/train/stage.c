/* A range of layers as a stage; see stage.h.
 *
 * In a chain layer k of the stage reads the output of layer k - 1; the first one reads the
 * boundary's input, and the last one writes its output. call->saved holds the activations in
 * between, and their gradients, which backward_weight needs after backward_input. Where layers read
 * two outputs, or outputs have two readers, it holds the sums too (stage_wiring.h). */
#include "trainer/train/stage.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "trainer/model/aligned_memory.h"

static bool is_embedding(uint32_t layer) { return layer == 0; }

static struct weft_gpt_stage *stage_of(struct weft_stage *stage) {
  return (struct weft_gpt_stage *)stage;
}

/* ---- Where things are ---- */

static char *slot(const struct weft_stage_call *call, uint64_t offset) {
  assert(offset != WEFT_GPT_NO_SLOT);
  return (char *)call->saved + offset;
}

static bool has(const struct weft_gpt_stage *stage, uint32_t layer) {
  return layer >= stage->first_layer && layer - stage->first_layer < stage->layer_count;
}

static const struct weft_gpt_port *find_import(const struct weft_gpt_stage *stage, uint32_t layer) {
  return weft_gpt_wiring_find(stage->wiring.imports, stage->wiring.import_count, layer, 0);
}

/* The n-th message with the output of a layer; NULL: there are not so many. */
static const struct weft_gpt_port *find_export(const struct weft_gpt_stage *stage, uint32_t layer,
                                               uint32_t n) {
  return weft_gpt_wiring_find(stage->wiring.exports, stage->wiring.export_count, layer, n);
}

/* B, of this microbatch. */
static uint64_t sequences_of(const struct weft_gpt_stage *stage,
                             const struct weft_stage_call *call) {
  const struct weft_gpt_wiring *wiring = &stage->wiring;
  const uint64_t first = call->inputs[0].items[0].shape.dims[0];
  return wiring->import_count > 0 ? first / wiring->imports[0].parts : first;
}

/* B T C. */
static uint64_t floats_of(const struct weft_gpt_stage *stage, const struct weft_stage_call *call) {
  return sequences_of(stage, call) * call->inputs[0].items[0].shape.dims[1] * stage->config->dim;
}

/* A port in the messages of its direction, or in their gradients. */
static char *at_port(const struct weft_gpt_stage *stage, const struct weft_stage_call *call,
                     const struct weft_tensors *messages, const struct weft_gpt_port *port) {
  const uint64_t each = weft_dtype_size(stage->context->compute->ops->dtype);
  return (char *)messages[port->edge].items[port->item].data +
         port->part * floats_of(stage, call) * each;
}

/* The output of a layer, of this stage or of another one. */
static const void *output_of(const struct weft_gpt_stage *stage, const struct weft_stage_call *call,
                             uint32_t layer) {
  if (has(stage, layer)) {
    return slot(call, stage->wiring.slots[layer - stage->first_layer].y);
  }
  return at_port(stage, call, call->inputs, find_import(stage, layer));
}

static const void *input_of(const struct weft_gpt_stage *stage, const struct weft_stage_call *call,
                            uint32_t k) {
  const struct weft_gpt_links inputs = weft_gpt_layer_inputs(stage->config, stage->first_layer + k);
  return inputs.count == 0   ? call->inputs[0].items[0].data
         : inputs.count == 1 ? output_of(stage, call, inputs.layers[0])
                             : slot(call, stage->wiring.slots[k].x);
}

/* Where backward_input puts the gradient of layer k's input. */
static void *gradient_of_input(const struct weft_gpt_stage *stage,
                               const struct weft_stage_call *call, uint32_t k) {
  const uint64_t offset = stage->wiring.slots[k].dx;
  if (offset != WEFT_GPT_NO_SLOT) {
    return slot(call, offset);
  }
  const uint32_t layer = stage->first_layer + k;
  const struct weft_gpt_port *port =
      find_import(stage, weft_gpt_layer_inputs(stage->config, layer).layers[0]);
  return at_port(stage, call, call->input_grads, port);
}

/* Gradients that are added up: at most two. */
struct terms {
  uint32_t count;
  const void *data[2];
};

/* From the layers of this stage that read the output of a layer, in ascending order. */
static struct terms terms_inside(const struct weft_gpt_stage *stage,
                                 const struct weft_stage_call *call, uint32_t layer) {
  const struct weft_gpt_links readers = weft_gpt_layer_readers(stage->config, layer);
  struct terms terms = {.count = 0};
  for (uint32_t k = 0; k < readers.count; k++) {
    if (has(stage, readers.layers[k])) {
      terms.data[terms.count++] =
          gradient_of_input(stage, call, readers.layers[k] - stage->first_layer);
    }
  }
  return terms;
}

/* And from other stages, which are later ones. */
static struct terms terms_of(const struct weft_gpt_stage *stage, const struct weft_stage_call *call,
                             uint32_t layer) {
  struct terms terms = terms_inside(stage, call, layer);
  const struct weft_gpt_port *port;
  for (uint32_t n = 0; (port = find_export(stage, layer, n)) != NULL; n++) {
    terms.data[terms.count++] = at_port(stage, call, call->output_grads, port);
  }
  return terms;
}

/* The gradient of layer k's output; NULL for a head. */
static const void *gradient_of_output(const struct weft_gpt_stage *stage,
                                      const struct weft_stage_call *call, uint32_t k) {
  const struct terms terms = terms_of(stage, call, stage->first_layer + k);
  return terms.count == 0   ? NULL
         : terms.count == 1 ? terms.data[0]
                            : slot(call, stage->wiring.slots[k].dy);
}

/* ---- Sums and copies ---- */

static enum weft_status add_up(const struct weft_gpt_stage *stage,
                               const struct weft_stage_call *call, const void *a, const void *b,
                               void *sum, struct weft_error *error) {
  struct weft_gpt_compute *compute = stage->context->compute;
  return compute->ops->sum(compute, floats_of(stage, call), a, b, sum, call->stream, error);
}

static enum weft_status copy_out(const struct weft_gpt_stage *stage,
                                 const struct weft_stage_call *call, const void *from, void *to,
                                 struct weft_error *error) {
  struct weft_device *device = stage->context->compute->device;
  const uint64_t each = weft_dtype_size(stage->context->compute->ops->dtype);
  return weft_copy(&(struct weft_copy){.to = to,
                                       .to_device = device,
                                       .from = from,
                                       .from_device = device,
                                       .row_bytes = floats_of(stage, call) * each,
                                       .rows = 1},
                   call->stream, error);
}

/* ---- Calls ---- */

/* What all passes of layer k have in common. */
static struct weft_gpt_pass_call pass_call(const struct weft_gpt_stage *stage,
                                           const struct weft_stage_call *call, uint32_t k) {
  const struct weft_tensor_shape *shape = &call->inputs[0].items[0].shape;
  const void *rounded = stage->memory.shards[k].rounded;
  return (struct weft_gpt_pass_call){
      .config = stage->config,
      .layer = stage->first_layer + k,
      .sequences = sequences_of(stage, call),
      .tokens = shape->dims[1],
      .parameters = rounded != NULL ? rounded : stage->layers[k].parameters,
      .saved = slot(call, stage->wiring.slots[k].saved),
      .scratch = stage->scratch,
      .stream = call->stream,
      .x = input_of(stage, call, k)};
}

static enum weft_status check_inputs(const struct weft_gpt_stage *stage,
                                     const struct weft_stage_call *call, struct weft_error *error) {
  const bool tokens = is_embedding(stage->first_layer);
  const enum weft_dtype dtype =
      tokens ? weft_gpt_token_dtype(stage->config) : stage->context->compute->ops->dtype;
  const struct weft_tensor_shape *shape = &call->inputs[0].items[0].shape;
  const uint64_t sequences = sequences_of(stage, call);
  if (call->inputs[0].count < 1 || shape->dtype != dtype || shape->dim_count != (tokens ? 2 : 3) ||
      sequences > stage->context->sequences_max || shape->dims[1] > stage->config->context ||
      sequences == 0 || shape->dims[1] == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "give it tokens, sequences x context",
                     "microbatch %" PRIu32 " has %" PRIu64 " x %" PRIu64 "; at most %" PRIu64
                     " sequences of %" PRIu32 " tokens fit",
                     call->microbatch, sequences, shape->dims[1], stage->context->sequences_max,
                     stage->config->context);
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
static int64_t take_time(const struct weft_gpt_stage *stage, uint32_t k, enum weft_op pass,
                         int64_t begin) {
  assert(k < stage->layer_count);
  const int64_t now = weft_clock_ns();
  if (!stage->context->compute->ops->enqueues) {
    stage->times[k].total_ns[pass] += now - begin;
    stage->times[k].count[pass]++;
  }
  return now;
}

/* ---- Forward ---- */

/* Of all messages with the output of a layer. */
static void set_shapes(const struct weft_gpt_stage *stage, const struct weft_stage_call *call,
                       uint32_t layer) {
  const struct weft_tensor_shape *in = &call->inputs[0].items[0].shape;
  const struct weft_gpt_port *port;
  for (uint32_t n = 0; (port = find_export(stage, layer, n)) != NULL; n++) {
    struct weft_tensor_shape *out = &call->outputs[port->edge].items[port->item].shape;
    out->dim_count = 3;
    out->dims[0] = port->parts * sequences_of(stage, call);
    out->dims[1] = in->dims[1];
    out->dims[2] = stage->config->dim;
  }
}

/* To the messages other than the one that the last layer has written straight into. */
static enum weft_status copy_output(const struct weft_gpt_stage *stage,
                                    const struct weft_stage_call *call, uint32_t layer,
                                    const void *y, struct weft_error *error) {
  const struct weft_gpt_port *port;
  for (uint32_t n = 0; (port = find_export(stage, layer, n)) != NULL; n++) {
    void *to = at_port(stage, call, call->outputs, port);
    if (to != y) {
      WEFT_TRY(copy_out(stage, call, y, to, error));
    }
  }
  return WEFT_OK;
}

/* Its loss is kept by itself where there are two heads. */
static enum weft_status forward_head(struct weft_gpt_stage *stage,
                                     const struct weft_stage_call *call,
                                     struct weft_gpt_pass_call *pass, struct weft_error *error) {
  struct weft_gpt_compute *compute = stage->context->compute;
  const uint32_t head = pass->layer - stage->config->blocks - 1;
  pass->targets = call->targets->count > head ? call->targets->items[head].data : NULL;
  pass->loss = call->loss;
  stage->losses = call->loss - call->microbatch;
  if (stage->head_losses != NULL) {
    pass->head_loss = &stage->head_losses[head * stage->context->microbatches + call->microbatch];
  }
  return compute->ops->forward(compute, pass, error);
}

static enum weft_status forward_layer(struct weft_gpt_stage *stage, struct weft_stage_call *call,
                                      uint32_t k, struct weft_error *error) {
  assert(stage->layer_count > 0);
  struct weft_gpt_compute *compute = stage->context->compute;
  struct weft_gpt_pass_call pass = pass_call(stage, call, k);
  const struct weft_gpt_links inputs = weft_gpt_layer_inputs(stage->config, pass.layer);
  pass.training = call->training;
  if (inputs.count > 1) {
    WEFT_TRY(add_up(stage, call, output_of(stage, call, inputs.layers[0]),
                    output_of(stage, call, inputs.layers[1]), slot(call, stage->wiring.slots[k].x),
                    error));
  }
  if (weft_gpt_is_head(stage->config, pass.layer)) {
    return forward_head(stage, call, &pass, error);
  }
  const struct weft_gpt_port *port = find_export(stage, pass.layer, 0);
  pass.y = k + 1 < stage->layer_count ? slot(call, stage->wiring.slots[k].y)
                                      : at_port(stage, call, call->outputs, port);
  set_shapes(stage, call, pass.layer);
  WEFT_TRY(compute->ops->forward(compute, &pass, error));
  return copy_output(stage, call, pass.layer, pass.y, error);
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
      begin = take_time(stage, k, WEFT_OP_F, begin);
    }
  }
  return WEFT_OK;
}

/* ---- Backward ---- */

/* The gradient of layer k's output, when its readers have theirs. */
static enum weft_status add_up_output(const struct weft_gpt_stage *stage,
                                      const struct weft_stage_call *call, uint32_t k,
                                      struct weft_error *error) {
  const struct terms terms = terms_of(stage, call, stage->first_layer + k);
  return terms.count > 1 ? add_up(stage, call, terms.data[0], terms.data[1],
                                  slot(call, stage->wiring.slots[k].dy), error)
                         : WEFT_OK;
}

/* What other stages get: the gradients of their outputs, as far as this stage reads them. */
static enum weft_status send_back(const struct weft_gpt_stage *stage,
                                  const struct weft_stage_call *call, struct weft_error *error) {
  for (uint32_t n = 0; n < stage->wiring.import_count; n++) {
    const struct weft_gpt_port *port = &stage->wiring.imports[n];
    const struct terms terms = terms_inside(stage, call, port->layer);
    void *to = at_port(stage, call, call->input_grads, port);
    if (terms.count > 1) {
      WEFT_TRY(add_up(stage, call, terms.data[0], terms.data[1], to, error));
    } else if (terms.data[0] != to) {
      WEFT_TRY(copy_out(stage, call, terms.data[0], to, error));
    }
  }
  return WEFT_OK;
}

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
    WEFT_TRY(add_up_output(stage, call, k, error));
    pass.dy = gradient_of_output(stage, call, k);
    pass.dx = gradient_of_input(stage, call, k);
    WEFT_TRY(compute->ops->backward_input(compute, &pass, error));
    begin = take_time(stage, k, WEFT_OP_I, begin);
  }
  return send_back(stage, call, error);
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
    pass.dy = gradient_of_output(stage, call, k);
    pass.gradients = stage->layers[k].gradients;
    WEFT_TRY(compute->ops->backward_weight(compute, &pass, error));
    begin = take_time(stage, k, WEFT_OP_W, begin);
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
/* With collectives that go through memory of the host: a recording would leave them out. */
static const struct weft_stage_ops gathering_ops = {STAGE_FUNCTIONS, .enqueues = true};

static enum weft_status allocate_head_losses(struct weft_gpt_stage *stage,
                                             struct weft_error *error) {
  struct weft_device *device = stage->context->compute->device;
  const size_t count = (size_t)WEFT_GPT_HEADS_MAX * stage->context->microbatches;
  if (!stage->context->compute->ops->enqueues) {
    stage->head_losses = weft_arena_allocate(&stage->arena, count, sizeof *stage->head_losses);
    return weft_arena_status(&stage->arena, error);
  }
  stage->head_losses = device->ops->allocate_host(device, count * sizeof *stage->head_losses);
  return stage->head_losses != NULL
             ? WEFT_OK
             : weft_device_fail_allocation(device, count * sizeof *stage->head_losses, error);
}

static uint32_t stage_number(const struct weft_gpt_stage *stage) {
  uint32_t s = 0;
  while (stage->context->split.first[s] != stage->first_layer) {
    s++;
  }
  return s;
}

static enum weft_status allocate_all(struct weft_gpt_stage *stage, struct weft_error *error) {
  const struct weft_gpt_stage_context *context = stage->context;
  stage->arena.allocator = context->allocator;
  WEFT_TRY(weft_gpt_wiring_init(&stage->wiring, &stage->arena, context->compute->ops,
                                &context->split, stage_number(stage), context->sequences_max,
                                error));
  stage->stage.saved_bytes = stage->wiring.saved_bytes;
  if (weft_gpt_head_count(stage->config) > 1) {
    WEFT_TRY(allocate_head_losses(stage, error));
  }
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
  assert(context != NULL && layer_count > 0 && out != NULL);
  assert(layer_count > 0 && out != NULL);
  struct weft_gpt_stage *stage = weft_gpt_allocate(context->allocator, 1, sizeof *stage);
  if (stage == NULL) {
    return weft_fail(error, WEFT_ERR_MEMORY, "", "no memory for a stage");
  }
  *stage = (struct weft_gpt_stage){
      .stage = {.ops = context->compute->ops->enqueues ? &enqueued_ops : &host_ops},
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
  if (stage->context->compute->ops->enqueues) {
    struct weft_device *device = stage->context->compute->device;
    device->ops->free_host(device, stage->head_losses);
  }
  weft_arena_finish(&stage->arena);
  weft_gpt_free(allocator, stage);
}

/* ---- Boundaries ---- */

struct weft_boundary weft_gpt_boundary(const struct weft_gpt_config *config, enum weft_dtype dtype,
                                       uint64_t sequences_max, uint32_t outputs) {
  assert(sequences_max > 0 && outputs > 0);
  const uint32_t each = weft_gpt_outputs_per_tensor(outputs);
  struct weft_boundary boundary = {.tensor_count = (outputs + each - 1) / each, .own_output = true};
  for (uint32_t k = 0; k < boundary.tensor_count; k++) {
    const uint32_t left = outputs - k * each;
    boundary.tensors[k] = (struct weft_boundary_tensor){
        .name = "x",
        .largest = {.dtype = (uint8_t)dtype,
                    .dim_count = 3,
                    .dims = {(left < each ? left : each) * sequences_max, config->context,
                             config->dim}},
        .needs_grad = true};
  }
  return boundary;
}
