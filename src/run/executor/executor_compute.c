/* F, B, I, W and OVERLAP_F_B. A cell goes through three phases; when one has to wait, the
 * next advance() resumes it:
 *
 *   prepare   wait for inputs, take buffers for outputs
 *   call      the stage's functions, or a custom function; then loss, scale_grads
 *   finish    pass outputs on, return inputs that are no longer needed
 *
 * An overlap prepares all its sub-actions, then calls them in order, then finishes them. */
#include <assert.h>
#include <inttypes.h>

#include <weft/support.h>

#include "run/executor/executor.h"

/* ---- What a stage's function gets: the tensors of its edges ---- */

/* Compiled twice: for ranks whose stages have a pair of ports, as in a chain, so that loops over ports
 * are none, and for others. Compiled once, 1F1B takes 2.5 % more instructions per action. */
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

/* ---- Prepare ---- */

TWICE enum weft_status check_order(const struct weft_executor *executor,
                                   const struct weft_sub_action *sub, struct weft_error *error) {
  const uint32_t done = sub->held->done;
  const uint32_t op = sub->action->op;
  if (weft_op_in(op, done) || (op == WEFT_OP_I && weft_op_in(WEFT_OP_B, done)) ||
      (op == WEFT_OP_B && weft_op_in(WEFT_OP_I, done))) {
    return weft_executor_fail_action(executor, sub->action, "it has been done before", error);
  }
  if (weft_op_in(op, WEFT_OPS_GRADIENT) && !weft_op_in(WEFT_OP_F, done)) {
    return weft_executor_fail_action(executor, sub->action, "its forward has not been done", error);
  }
  if (op == WEFT_OP_W && !weft_op_in(WEFT_OP_I, done)) {
    return weft_executor_fail_action(executor, sub->action,
                                     "its input gradient (I) has not been done", error);
  }
  if (sub->stage->needs->shards && !sub->stage->unsharded) {
    return weft_executor_fail_action(executor, sub->action,
                                     "the stage is sharded: no UNSHARD precedes it", error);
  }
  return WEFT_OK;
}

/* The message of one edge: an activation for F, a gradient for B and I. */
TWICE enum weft_status await_message(struct weft_executor *executor, struct weft_sub_action *sub,
                                     const struct weft_port *port, struct weft_buffer *buffer,
                                     bool forward, struct weft_error *error) {
  if (buffer == NULL) {
    return weft_executor_fail_action(executor, sub->action,
                                     forward ? "its input has not been received or computed"
                                             : "its gradient has not been received or computed",
                                     error);
  }
  if (buffer->under_way) {
    WEFT_AWAIT(weft_executor_await(executor, sub->stage, port, buffer, sub->action->microbatch,
                                   forward, error));
  }
  return weft_executor_order(executor, buffer, error);
}

TWICE enum weft_status await_input(struct weft_executor *executor, struct weft_sub_action *sub,
                                   bool pair, struct weft_error *error) {
  const struct weft_executor_stage *stage = sub->stage;
  if (sub->action->op == WEFT_OP_F) {
    const uint32_t inputs = stage->is_source ? 0 : in_ports(stage, pair);
    for (uint32_t n = 0; n < inputs; n++) {
      WEFT_AWAIT(await_message(executor, sub, &stage->ports[n], sub->held->ports[n].activation,
                               true, error));
    }
  } else if (sub->action->op != WEFT_OP_W && !stage->is_loss) {
    for (uint32_t k = 0; k < out_ports(stage, pair); k++) {
      const uint32_t n = first_out(stage, pair) + k;
      if (stage->ports[n].gradients != NULL) {
        WEFT_AWAIT(await_message(executor, sub, &stage->ports[n], sub->held->ports[n].gradient,
                                 false, error));
      }
    }
  }
  return WEFT_OK;
}

/* Takes a buffer for what goes out at one port, unless it is taken, or nothing does (NULL). */
TWICE enum weft_status take_buffer(struct weft_executor *executor,
                                   const struct weft_executor_stage *stage,
                                   const struct weft_port *port, struct weft_buffer_pool *pool,
                                   struct weft_buffer **buffer, struct weft_error *error) {
  if (pool == NULL) {
    return WEFT_OK;
  }
  if (*buffer == NULL) {
    WEFT_AWAIT(weft_executor_take(executor, stage->stage, port, pool, buffer, error));
  }
  WEFT_AWAIT(pool->streamed ? weft_executor_await_copy(executor, *buffer, error)
                            : weft_executor_order(executor, *buffer, error));
  weft_buffer_offer(*buffer, pool);
  return WEFT_OK;
}

/* Takes buffers for the outputs, and for the gradient that a loss makes. */
TWICE enum weft_status take_room(struct weft_executor *executor, struct weft_sub_action *sub,
                                 bool pair, struct weft_error *error) {
  const struct weft_executor_stage *stage = sub->stage;
  struct weft_port_held *held = sub->held->ports;
  if (sub->action->op == WEFT_OP_F) {
    for (uint32_t k = 0; k < out_ports(stage, pair); k++) {
      const uint32_t n = first_out(stage, pair) + k;
      const struct weft_port *port = &stage->ports[n];
      WEFT_AWAIT(take_buffer(executor, stage, port, port->activations, &held[n].activation, error));
      if (stage->is_loss && stage->needs->has_backward) {
        WEFT_AWAIT(take_buffer(executor, stage, port, port->gradients, &held[n].gradient, error));
      }
    }
  } else if (sub->action->op != WEFT_OP_W) {
    for (uint32_t n = 0; n < in_ports(stage, pair); n++) {
      const struct weft_port *port = &stage->ports[n];
      WEFT_AWAIT(take_buffer(executor, stage, port, port->gradients, &held[n].gradient, error));
    }
  }
  return WEFT_OK;
}

TWICE enum weft_status prepare_sub(struct weft_executor *executor, struct weft_sub_action *sub,
                                   bool pair, struct weft_error *error) {
  WEFT_TRY(check_order(executor, sub, error));
  if (executor->collective_done != executor->collective_count) {
    WEFT_AWAIT(weft_executor_await_collectives(executor, *sub->action, error));
  }
  WEFT_AWAIT(await_input(executor, sub, pair, error));
  WEFT_AWAIT(take_room(executor, sub, pair, error));
  if (sub->action->op == WEFT_OP_F) {
    struct weft_executor_stage *stage = sub->stage;
    if (stage->free_slot_count == 0) {
      return weft_executor_fail_action(
          executor, sub->action, "more microbatches are under way than the row can have", error);
    }
    sub->held->slot = stage->free_slots[--stage->free_slot_count];
  }
  fill_call(executor, sub, pair);
  return WEFT_OK;
}

TWICE enum weft_status find_sub_actions(struct weft_executor *executor,
                                        const struct weft_action *cell, struct weft_error *error) {
  const uint32_t first = cell->parts > 0 ? 1 : 0; /* an overlap's are behind it */
  const uint32_t count = cell->parts > 0 ? cell->parts : 1;
  executor->sub_action_at = 0;
  executor->sub_action_count = count;
  assert(count <= executor->sub_action_capacity);
  for (uint32_t k = 0; k < count; k++) {
    struct weft_sub_action *sub = &executor->sub_actions[k];
    sub->action = &cell[first + k];
    sub->record = (uint32_t)executor->at + first + k;
    if (!weft_op_in(sub->action->op, WEFT_OPS_COMPUTE)) {
      return weft_executor_fail_action(executor, sub->action, "an overlap is made of F, B, I and W",
                                       error);
    }
    sub->stage = weft_executor_own_stage(executor, sub->action->stage);
    assert(sub->stage->stage == sub->action->stage); /* a row has only stages of its rank */
    sub->held = weft_executor_held(sub->stage, sub->action->microbatch);
  }
  return WEFT_OK;
}

TWICE enum weft_status prepare_cell(struct weft_executor *executor, const struct weft_action *cell,
                                    bool pair, struct weft_error *error) {
  if (executor->cell_step == WEFT_CELL_NEW) {
    WEFT_TRY(find_sub_actions(executor, cell, error));
    executor->cell_step = WEFT_CELL_PREPARING;
  }
  for (; executor->sub_action_at < executor->sub_action_count; executor->sub_action_at++) {
    WEFT_AWAIT(prepare_sub(executor, &executor->sub_actions[executor->sub_action_at], pair, error));
  }
  executor->sub_action_at = 0;
  executor->custom_again = false;
  executor->cell_step = WEFT_CELL_CALLING;
  executor->cell_begin = executor->now;
  return WEFT_OK;
}

/* ---- Call ---- */

/* A stage's function has returned: WEFT_OK, or what the executor returns. */
static inline enum weft_status end_call(struct weft_executor *executor,
                                        const struct weft_sub_action *sub,
                                        const struct weft_action *action, enum weft_status status,
                                        struct weft_error *error) {
  if (status == WEFT_OK) {
    return WEFT_OK;
  }
  return status == WEFT_IN_PROGRESS
             ? weft_executor_block(executor, WEFT_PHASE_COMPUTE, UINT32_MAX, weft_action_idle(),
                                   sub->call.ready_at, error)
             : weft_executor_record_error(executor,
                                          weft_executor_fail_stage(executor, action, error), error);
}

/* The loss's gradients get the shapes that its forward has given the outputs. */
TWICE void match_loss(struct weft_sub_action *sub, bool pair) {
  const struct weft_executor_stage *stage = sub->stage;
  struct weft_buffer *made = sub->held->ports[first_out(stage, pair)].gradient;
  if (stage->is_loss && made != NULL) {
    weft_buffer_match(made, stage->ports[first_out(stage, pair)].gradients, sub->call.outputs);
  }
}

TWICE enum weft_status call_functions(struct weft_executor *executor, struct weft_sub_action *sub,
                                      bool pair, struct weft_error *error) {
  while (sub->function_at < sub->function_count) {
    struct weft_stage_call *call = &sub->call;
    if (sub->function_at == sub->functions->op_count && sub->action->op == WEFT_OP_F) {
      match_loss(sub, pair);
    }
    call->now = executor->now;
    call->ready_at = 0;
    weft_rank_status_enter(executor->status);
    const enum weft_status answer =
        weft_executor_recording_failed(executor)
            ? WEFT_OK
            : sub->functions->items[sub->function_at](sub->stage->impl, call, error);
    weft_rank_status_leave(executor->status);
    call->again = answer == WEFT_IN_PROGRESS;
    WEFT_AWAIT(end_call(executor, sub, sub->action, answer, error));
    sub->function_at++;
    if (sub->function_at < sub->function_count) {
      weft_executor_read_clock(executor);
    }
  }
  return WEFT_OK;
}

/* A custom function replaces the functions of its sub-actions. */
static enum weft_status call_custom(struct weft_executor *executor, const struct weft_action *cell,
                                    const struct weft_custom *custom, uint32_t first,
                                    uint32_t count, struct weft_error *error) {
  for (uint32_t k = 0; k < count; k++) {
    struct weft_sub_action *sub = &executor->sub_actions[first + k];
    sub->call.now = executor->now;
    sub->call.ready_at = 0;
    sub->call.again = executor->custom_again;
    executor->custom_actions[k] = sub->action;
    executor->custom_stages[k] = sub->stage->impl;
    executor->custom_calls[k] = &sub->call;
  }
  const struct weft_custom_call call = {.cell = cell,
                                        .sub_action_count = count,
                                        .actions = executor->custom_actions,
                                        .stages = executor->custom_stages,
                                        .calls = executor->custom_calls};
  weft_rank_status_enter(executor->status);
  const enum weft_status answer = custom->function(custom->context, &call, error);
  weft_rank_status_leave(executor->status);
  executor->custom_again = answer == WEFT_IN_PROGRESS;
  const enum weft_status status =
      end_call(executor, &executor->sub_actions[first], cell, answer, error);
  for (uint32_t k = 0; status == WEFT_OK && k < count; k++) {
    struct weft_sub_action *sub = &executor->sub_actions[first + k];
    sub->function_at = sub->functions->op_count;
    sub->call.again = false;
  }
  return status;
}

TWICE enum weft_status call_sub(struct weft_executor *executor, struct weft_sub_action *sub,
                                uint32_t number, bool pair, struct weft_error *error) {
  const struct weft_custom *custom = &executor->custom[sub->action->op];
  if (custom->function != NULL && sub->function_at < sub->functions->op_count) {
    WEFT_AWAIT(call_custom(executor, sub->action, custom, number, 1, error));
  }
  return call_functions(executor, sub, pair, error);
}

static bool overlap_is_called(const struct weft_executor *executor) {
  const struct weft_sub_action *first = &executor->sub_actions[0];
  return first->function_at >= first->functions->op_count;
}

TWICE enum weft_status call_all(struct weft_executor *executor, const struct weft_action *cell,
                                bool pair, struct weft_error *error) {
  const struct weft_custom *custom = &executor->custom[cell->op];
  if (cell->parts > 0 && custom->function != NULL && !overlap_is_called(executor)) {
    WEFT_AWAIT(call_custom(executor, cell, custom, 0, executor->sub_action_count, error));
  }
  for (; executor->sub_action_at < executor->sub_action_count; executor->sub_action_at++) {
    WEFT_AWAIT(call_sub(executor, &executor->sub_actions[executor->sub_action_at],
                        executor->sub_action_at, pair, error));
  }
  return WEFT_OK;
}

/* ---- Finish ---- */

TWICE void give_back(const struct weft_executor *executor, struct weft_buffer_pool *pool,
                     struct weft_buffer **buffer) {
  if (*buffer != NULL) {
    weft_executor_publish(executor, pool, *buffer);
    weft_buffer_pool_give(pool, *buffer);
    *buffer = NULL;
  }
}

TWICE void end_microbatch(const struct weft_executor *executor, struct weft_sub_action *sub,
                          bool pair) {
  struct weft_executor_stage *stage = sub->stage;
  assert(stage->free_slot_count < stage->slot_count);
  for (uint32_t n = 0; n < in_ports(stage, pair); n++) {
    give_back(executor, stage->ports[n].activations, &sub->held->ports[n].activation);
  }
  for (uint32_t k = 0; k < out_ports(stage, pair); k++) {
    const uint32_t n = first_out(stage, pair) + k;
    give_back(executor, stage->ports[n].gradients, &sub->held->ports[n].gradient);
  }
  stage->free_slots[stage->free_slot_count++] = sub->held->slot;
}

/* A loss's output stays here: it is kept for the result, if that is wanted. */
TWICE enum weft_status keep_output(struct weft_sub_action *sub, bool pair,
                                   struct weft_error *error) {
  const struct weft_executor_stage *stage = sub->stage;
  struct weft_buffer **made = &sub->held->ports[first_out(stage, pair)].activation;
  if (stage->outputs != NULL) {
    WEFT_TRY(weft_batch_out_keep(stage->outputs, sub->action->microbatch, &(*made)->tensors,
                                 sub->call.stream, error));
  }
  weft_buffer_pool_give(stage->ports[first_out(stage, pair)].activations, *made);
  *made = NULL;
  return WEFT_OK;
}

TWICE enum weft_status finish_forward(struct weft_executor *executor, struct weft_sub_action *sub,
                                      bool pair, struct weft_error *error) {
  struct weft_executor_stage *stage = sub->stage;
  if (!pair && stage->output_count > 1) {
    for (uint32_t n = stage->in_count; n < stage->port_count; n++) {
      take_shapes(sub->held->ports[n].activation, &sub->call.outputs[stage->ports[n].output]);
    }
  }
  if (!pair && stage->shares) {
    WEFT_TRY(weft_executor_copy_outputs(executor, sub, error));
  }
  for (uint32_t k = 0; k < out_ports(stage, pair); k++) {
    const uint32_t n = first_out(stage, pair) + k;
    const struct weft_port *port = &stage->ports[n];
    struct weft_buffer **made = &sub->held->ports[n].activation;
    if (weft_buffer_pack(*made, port->activations, error) < 0) {
      return weft_executor_fail_stage(executor, sub->action, error);
    }
    if (port->near != NULL) {
      struct weft_held *near = weft_executor_held(port->near, sub->action->microbatch);
      near->ports[port->near_port].activation = *made;
      *made = NULL;
    } else if (!stage->is_loss) {
      weft_executor_publish(executor, port->activations, *made);
    }
  }
  if (stage->is_loss) {
    WEFT_TRY(keep_output(sub, pair, error));
  }
  if (!stage->needs->has_backward) {
    end_microbatch(executor, sub, pair);
  }
  return WEFT_OK;
}

TWICE enum weft_status finish_backward(struct weft_executor *executor, struct weft_sub_action *sub,
                                       bool pair, struct weft_error *error) {
  const struct weft_executor_stage *stage = sub->stage;
  const bool made_gradients = sub->action->op != WEFT_OP_W;
  for (uint32_t n = 0; made_gradients && n < in_ports(stage, pair); n++) {
    const struct weft_port *port = &stage->ports[n];
    struct weft_buffer **made = &sub->held->ports[n].gradient;
    if (port->gradients == NULL) {
      continue;
    }
    if (!pair && stage->in_count > 1) {
      take_shapes(*made, &sub->call.input_grads[n]);
    }
    if (weft_buffer_pack(*made, port->gradients, error) < 0) {
      return weft_executor_fail_stage(executor, sub->action, error);
    }
    if (port->near != NULL) {
      struct weft_held *near = weft_executor_held(port->near, sub->action->microbatch);
      near->ports[port->near_port].gradient = *made;
      *made = NULL;
    } else {
      weft_executor_publish(executor, port->gradients, *made);
    }
  }
  if (sub->action->op != WEFT_OP_I) {
    end_microbatch(executor, sub, pair);
  }
  return WEFT_OK;
}

TWICE enum weft_status finish_cell(struct weft_executor *executor, const struct weft_action *cell,
                                   bool pair, struct weft_error *error) {
  weft_executor_read_clock(executor);
  weft_executor_record_time(executor, (uint32_t)executor->at, executor->cell_begin, executor->now);
  const uint32_t count = executor->sub_action_count;
  for (uint32_t k = 0; k < count; k++) {
    struct weft_sub_action *sub = &executor->sub_actions[k];
    sub->held->done |= WEFT_OP_BIT(sub->action->op);
    WEFT_TRY(sub->action->op == WEFT_OP_F ? finish_forward(executor, sub, pair, error)
                                          : finish_backward(executor, sub, pair, error));
    if (cell->parts > 0) {
      weft_executor_record_time(executor, sub->record, executor->cell_begin, executor->now);
    }
  }
  executor->cell_step = WEFT_CELL_NEW;
  return executor->device != NULL ? weft_executor_end_cell(executor, cell, error) : WEFT_OK;
}

TWICE enum weft_status compute_cell(struct weft_executor *executor, const struct weft_action *cell,
                                    bool pair, struct weft_error *error) {
  if (executor->cell_step != WEFT_CELL_CALLING) {
    WEFT_AWAIT(prepare_cell(executor, cell, pair, error));
    /* before the call, because it may never return */
    weft_executor_show(executor, WEFT_PHASE_COMPUTE, UINT32_MAX, *cell, weft_action_idle());
    WEFT_STATUS_STORE(executor->status->since, executor->now);
    if (executor->device != NULL) {
      WEFT_TRY(weft_executor_begin_cell(executor, cell, error));
    }
    for (uint32_t k = 0; !pair && k < executor->sub_action_count; k++) {
      WEFT_TRY(weft_executor_sum_gradients(executor, &executor->sub_actions[k], error));
    }
  }
  WEFT_AWAIT(call_all(executor, cell, pair, error));
  return finish_cell(executor, cell, pair, error);
}

static __attribute__((noinline)) enum weft_status compute_ports(struct weft_executor *executor,
                                                                const struct weft_action *cell,
                                                                struct weft_error *error) {
  return compute_cell(executor, cell, false, error);
}

enum weft_status weft_executor_compute(struct weft_executor *executor,
                                       const struct weft_action *cell, struct weft_error *error) {
  return executor->has_pairs ? compute_cell(executor, cell, true, error)
                             : compute_ports(executor, cell, error);
}
