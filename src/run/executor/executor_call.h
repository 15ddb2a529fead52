/* What a stage's function gets: the tensors of its edges. Inline, and compiled twice: for ranks
 * whose stages have a pair of ports, as in a chain, so that loops over ports are none, and for
 * others. For executor_compute.c alone. */
#ifndef RUN_EXECUTOR_CALL_H
#define RUN_EXECUTOR_CALL_H

#include "run/executor/executor.h"

#define TWICE static inline __attribute__((always_inline))

TWICE uint32_t in_ports(const struct weft_executor_stage *stage, bool pair) {
  return pair ? 1 : stage->in_count;
}

/* The number of the first: they are behind the in-ports. */
TWICE uint32_t first_out(const struct weft_executor_stage *stage, bool pair) {
  return pair ? 1 : stage->in_count;
}

TWICE uint32_t out_ports(const struct weft_executor_stage *stage, bool pair) {
  return pair ? 1 : stage->port_count - stage->in_count;
}

/* One input is the buffer's own list of tensors. Several are copies of these lists, one after the
 * other; shapes that a stage sets there are written back. The views of a call are, in this order,
 * its inputs, input_grads, outputs and output_grads. */

TWICE void fill_inputs(struct weft_sub_action *sub, bool pair) {
  const struct weft_executor_stage *stage = sub->stage;
  struct weft_stage_call *call = &sub->call;
  const struct weft_held *held = sub->held;
  if (stage->is_source) {
    call->inputs = &stage->inputs[sub->action->microbatch];
    return;
  }
  if (pair || stage->in_count == 1) {
    if (held->ports[0].activation != NULL) {
      call->inputs = &held->ports[0].activation->tensors;
    }
    return;
  }
  call->input_count = stage->in_count;
  for (uint32_t n = 0; n < stage->in_count; n++) {
    const struct weft_buffer *buffer = held->ports[n].activation;
    sub->views[n].count = 0;
    if (buffer != NULL) {
      sub->views[n] = buffer->tensors;
    }
  }
  call->inputs = sub->views;
}

/* The views of several outputs, or of their gradients. */
static inline struct weft_tensors *output_views(const struct weft_sub_action *sub, bool gradients) {
  const struct weft_executor_stage *stage = sub->stage;
  return sub->views + 2 * (size_t)stage->in_count + (gradients ? stage->output_count : 0);
}

/* Ports that share an output have it in the buffer of the first. */
TWICE void fill_outputs(struct weft_sub_action *sub, bool pair) {
  const struct weft_executor_stage *stage = sub->stage;
  const struct weft_held *held = sub->held;
  if (pair || stage->output_count == 1) {
    sub->call.outputs = &held->ports[first_out(stage, pair)].activation->tensors;
    return;
  }
  sub->call.output_count = stage->output_count;
  struct weft_tensors *views = output_views(sub, false);
  for (uint32_t n = stage->port_count; n-- > stage->in_count;) {
    views[stage->ports[n].output] = held->ports[n].activation->tensors;
  }
  sub->call.outputs = views;
}

/* Those that share an output have their sum in the first that has a gradient. */
TWICE void fill_output_grads(struct weft_sub_action *sub, bool pair) {
  const struct weft_executor_stage *stage = sub->stage;
  const struct weft_held *held = sub->held;
  if (!pair && stage->output_count > 1) {
    sub->call.output_count = stage->output_count;
    struct weft_tensors *views = output_views(sub, true);
    for (uint32_t k = 0; k < stage->output_count; k++) {
      views[k].count = 0;
    }
    for (uint32_t n = stage->port_count; n-- > stage->in_count;) {
      if (held->ports[n].gradient != NULL) {
        views[stage->ports[n].output] = held->ports[n].gradient->tensors;
      }
    }
    sub->call.output_grads = views;
    return;
  }
  for (uint32_t k = 0; k < out_ports(stage, pair); k++) {
    const uint32_t n = first_out(stage, pair) + k;
    if (held->ports[n].gradient != NULL) {
      sub->call.output_grads = &held->ports[n].gradient->tensors;
      return;
    }
  }
}

TWICE void fill_input_grads(struct weft_sub_action *sub, bool pair) {
  const struct weft_executor_stage *stage = sub->stage;
  struct weft_stage_call *call = &sub->call;
  for (uint32_t n = 0; n < in_ports(stage, pair); n++) {
    struct weft_buffer *buffer = sub->held->ports[n].gradient;
    if (buffer != NULL) {
      weft_buffer_match(buffer, stage->ports[n].gradients, &call->inputs[n]);
    }
    if (!pair && stage->in_count > 1) {
      struct weft_tensors *views = sub->views + stage->in_count;
      views[n].count = 0;
      if (buffer != NULL) {
        views[n] = buffer->tensors;
      }
      call->input_grads = views;
    } else if (buffer != NULL) {
      call->input_grads = &buffer->tensors;
    }
  }
}

static inline void take_shapes(struct weft_buffer *buffer, const struct weft_tensors *from) {
  for (uint32_t k = 0; k < buffer->tensors.count; k++) {
    buffer->tensors.items[k].shape = from->items[k].shape;
  }
  buffer->tensors.count = from->count; /* which weft_buffer_pack() checks */
}

TWICE void fill_forward(struct weft_sub_action *sub, bool pair) {
  struct weft_stage_call *call = &sub->call;
  const struct weft_executor_stage *stage = sub->stage;
  const uint32_t mb = sub->action->microbatch;
  fill_outputs(sub, pair);
  if (stage->is_loss) {
    const struct weft_buffer *made = sub->held->ports[first_out(stage, pair)].gradient;
    if (stage->targets != NULL) {
      call->targets = &stage->targets[mb];
    }
    call->loss = &stage->losses[mb];
    if (made != NULL) {
      call->output_grads = &made->tensors;
    }
  }
}

TWICE void fill_backward(struct weft_sub_action *sub, bool pair) {
  struct weft_stage_call *call = &sub->call;
  const struct weft_executor_stage *stage = sub->stage;
  fill_output_grads(sub, pair);
  if (sub->action->op != WEFT_OP_W) {
    fill_input_grads(sub, pair);
  }
  if (stage->is_loss && stage->targets != NULL) {
    call->targets = &stage->targets[sub->action->microbatch];
  }
  call->first_backward = sub->record == stage->needs->first_backward;
  call->last_backward = sub->record == stage->needs->last_backward;
}

TWICE void fill_call(struct weft_executor *executor, struct weft_sub_action *sub, bool pair) {
  struct weft_stage_call *call = &sub->call;
  const struct weft_held *held = sub->held;
  weft_executor_fill_call(executor, sub->action->stage, sub->action->microbatch, call);
  call->slot = held->slot;
  if (sub->stage->saved_at != NULL) {
    call->saved = executor->saved + sub->stage->saved_at[sub->action->microbatch];
  }
  fill_inputs(sub, pair);
  if (sub->action->op == WEFT_OP_F) {
    fill_forward(sub, pair);
  } else {
    fill_backward(sub, pair);
  }
  sub->functions = &sub->stage->functions[sub->action->op];
  sub->function_at = 0;
  sub->function_count = sub->action->op == WEFT_OP_F || call->last_backward
                            ? sub->functions->count
                            : sub->functions->op_count;
}

#endif
