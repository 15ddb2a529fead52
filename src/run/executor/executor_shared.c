/* Outputs that several out-edges of a stage share. Each edge has buffers of its own, because a
 * message is handed over to the rank that receives it. The stage writes that of the first edge; the
 * runtime copies it to the others, and adds up the gradients that come back, in the buffer of the
 * first edge that brings one. Edges ascend by stage, so sums have one order on every transport and
 * number of ranks. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "device/kernel.h"
#include "run/executor/executor.h"
#include "run/shape_text.h"

/* Whether a port is not the first one of its output. */
static bool is_later(const struct weft_executor_stage *stage, uint32_t n, uint32_t *first) {
  *first = stage->in_count;
  while (stage->ports[*first].output != stage->ports[n].output) {
    (*first)++;
  }
  return *first < n;
}

/* ---- Forward ---- */

static enum weft_status copy_tensors(struct weft_tensors *to, const struct weft_tensors *from,
                                     struct weft_stream *stream, struct weft_error *error) {
  assert(to->count == from->count);
  for (uint32_t k = 0; k < from->count; k++) {
    uint64_t bytes;
    if (!weft_shape_bytes(&from->items[k].shape, &bytes)) {
      return weft_fail(error, WEFT_ERR_STAGE, "see WEFT_DIMS_MAX",
                       "output tensor %" PRIu32 " has a shape that cannot be", k);
    }
    to->items[k].shape = from->items[k].shape;
    WEFT_TRY(weft_copy_bytes(to->items[k].data, to->items[k].device, from->items[k].data,
                             from->items[k].device, bytes, stream, error));
  }
  return WEFT_OK;
}

enum weft_status weft_executor_copy_outputs(struct weft_executor *executor,
                                            const struct weft_sub_action *sub,
                                            struct weft_error *error) {
  assert(sub->stage->shares);
  const struct weft_executor_stage *stage = sub->stage;
  for (uint32_t n = stage->in_count; n < stage->port_count; n++) {
    uint32_t first;
    if (!is_later(stage, n, &first)) {
      continue;
    }
    struct weft_buffer *from = sub->held->ports[first].activation;
    struct weft_buffer *to = sub->held->ports[n].activation;
    if (weft_buffer_pack(from, stage->ports[first].activations, error) < 0) {
      return weft_executor_fail_stage(executor, sub->action, error); /* it would not fit */
    }
    WEFT_TRY(WEFT_ENQUEUE(
        executor, copy_tensors(&to->tensors, &from->tensors, sub->call.stream, error), error));
  }
  return WEFT_OK;
}

/* ---- Backward ---- */

/* WEFT_KERNELS: tensors of this dtype are not added up. */
static enum weft_kernel_id addition_of(uint8_t dtype) {
  switch (dtype) {
    case WEFT_F32: return WEFT_KERNEL_ADD;
    case WEFT_F64: return WEFT_KERNEL_ADD_F64;
    case WEFT_F16: return WEFT_KERNEL_ADD_F16;
    case WEFT_BF16: return WEFT_KERNEL_ADD_BF16;
    default: return WEFT_KERNELS;
  }
}

static enum weft_status add_tensor(const struct weft_executor *executor,
                                   const struct weft_tensor *to, const struct weft_tensor *from,
                                   struct weft_stream *stream, struct weft_error *error) {
  uint64_t count = 0;
  void *sum = to->data;
  const void *more = from->data;
  void *const parameters[] = {&sum, &more, &count};
  if (!weft_shape_elements(&to->shape, &count) || count == 0) {
    return WEFT_OK;
  }
  return weft_kernel_launch(executor->options->device, addition_of(to->shape.dtype), count,
                            parameters, stream, error);
}

/* Adds the gradient of port n to that of the first port with the same output, if it is another. */
static enum weft_status add_gradient(const struct weft_executor *executor,
                                     const struct weft_sub_action *sub, uint32_t n,
                                     struct weft_error *error) {
  const struct weft_executor_stage *stage = sub->stage;
  const struct weft_buffer *more = sub->held->ports[n].gradient;
  uint32_t first = stage->in_count;
  while (stage->ports[first].output != stage->ports[n].output ||
         sub->held->ports[first].gradient == NULL) {
    first++;
  }
  const struct weft_buffer *sum = sub->held->ports[first].gradient;
  for (uint32_t k = 0; first < n && k < sum->tensors.count; k++) {
    const struct weft_tensor_shape *one = &sum->tensors.items[k].shape;
    const struct weft_tensor_shape *other = &more->tensors.items[k].shape;
    if (memcmp(one, other, sizeof *one) != 0) {
      char texts[2][WEFT_SHAPE_TEXT_MAX];
      return weft_fail(error, WEFT_ERR_STAGE,
                       "input_grads have the shapes of the inputs: look at the backward of both",
                       "the gradients from stages %" PRIu32 " and %" PRIu32
                       " are of one output, and are %s and %s",
                       stage->ports[first].other, stage->ports[n].other,
                       weft_shape_text(texts[0], one), weft_shape_text(texts[1], other));
    }
    WEFT_TRY(add_tensor(executor, &sum->tensors.items[k], &more->tensors.items[k], sub->call.stream,
                        error));
  }
  return WEFT_OK;
}

enum weft_status weft_executor_sum_gradients(struct weft_executor *executor,
                                             const struct weft_sub_action *sub,
                                             struct weft_error *error) {
  const struct weft_executor_stage *stage = sub->stage;
  if (!stage->shares || !weft_op_in(sub->action->op, WEFT_OPS_GRADIENT)) {
    return WEFT_OK;
  }
  for (uint32_t n = stage->in_count; n < stage->port_count; n++) {
    if (sub->held->ports[n].gradient == NULL || weft_executor_recording_failed(executor)) {
      continue;
    }
    if (add_gradient(executor, sub, n, error) < 0) {
      WEFT_TRY(weft_executor_record_error(
          executor, weft_executor_fail_stage(executor, sub->action, error), error));
    }
  }
  return WEFT_OK;
}

/* ---- Setting up ---- */

static bool is_same_layout(const struct weft_buffer_layout *a, const struct weft_buffer_layout *b) {
  return a->tensor_count == b->tensor_count &&
         memcmp(a->largest, b->largest, a->tensor_count * sizeof a->largest[0]) == 0 &&
         memcmp(a->sources, b->sources, a->tensor_count * sizeof a->sources[0]) == 0;
}

static bool can_add(const struct weft_executor *executor, const struct weft_buffer_layout *layout) {
  struct weft_device *device = executor->options->device;
  bool can = weft_device_is_host(device) || device->ops->launch != NULL;
  for (uint32_t k = 0; k < layout->tensor_count; k++) {
    can = can && addition_of(layout->largest[k].dtype) != WEFT_KERNELS;
  }
  return can;
}

enum weft_status weft_executor_check_shared(const struct weft_executor *executor,
                                            const struct weft_executor_stage *stage,
                                            struct weft_error *error) {
  assert(stage->shares);
  for (uint32_t n = stage->in_count; n < stage->port_count; n++) {
    const struct weft_port *port = &stage->ports[n];
    uint32_t first;
    if (!is_later(stage, n, &first)) {
      continue;
    }
    const struct weft_port *lead = &stage->ports[first];
    if (!is_same_layout(&lead->activations->layout, &port->activations->layout)) {
      return weft_fail(error, WEFT_ERR_USAGE,
                       "give both the same tensors, or set own_output of one of them",
                       "the edges %" PRIu32 ">%" PRIu32 " and %" PRIu32 ">%" PRIu32
                       " share an output, and their boundaries have different tensors",
                       stage->stage, lead->other, stage->stage, port->other);
    }
    while (lead < port && (lead->gradients == NULL || lead->output != port->output)) {
      lead++;
    }
    if (lead == port || port->gradients == NULL) {
      continue; /* no two gradients meet */
    }
    if (!is_same_layout(&lead->gradients->layout, &port->gradients->layout)) {
      return weft_fail(error, WEFT_ERR_USAGE,
                       "set needs_grad alike, or set own_output of one of them",
                       "the edges %" PRIu32 ">%" PRIu32 " and %" PRIu32 ">%" PRIu32
                       " share an output, and different tensors of it need gradients",
                       stage->stage, lead->other, stage->stage, port->other);
    }
    if (!can_add(executor, &port->gradients->layout)) {
      return weft_fail(
          error, WEFT_ERR_USAGE,
          "set own_output of the boundaries: the stage then has an output for each edge, and "
          "adds the gradients up itself",
          "the gradients of the edges %" PRIu32 ">%" PRIu32 " and %" PRIu32 ">%" PRIu32
          " are to be added up, which the runtime can do for f32, f64, f16 and bf16 on the host "
          "and on GPUs only",
          stage->stage, lead->other, stage->stage, port->other);
    }
  }
  return WEFT_OK;
}
