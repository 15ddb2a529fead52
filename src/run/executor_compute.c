/* F, B, I, W and overlaps. A cell goes through three steps, each of which may
 * have to wait and is taken up again where it stood:
 *
 *   prepare   every part's input is there, and a buffer for what it makes
 *   call      the stage's functions, or a custom function; then loss, scale_grads
 *   finish    what was made goes to the neighbour, what is used up is given back
 *
 * The parts of an overlap are prepared all, then called in order, then finished. */
#include <inttypes.h>

#include <weft/support.h>

#include "run/executor.h"

static enum weft_status fail_part(const struct weft_executor *executor,
                                  const struct weft_part *part, const char *what,
                                  struct weft_error *error) {
  char text[64];
  return weft_fail(error, WEFT_ERR_INVALID, "'weft verify' lists everything that is wrong with it",
                   "rank %" PRIu32 ", action %" PRIu64 " (%s): %s", executor->transport->rank,
                   executor->cell, weft_action_format(part->action, text, sizeof text), what);
}

/* ---- Prepare ---- */

static enum weft_status check_order(const struct weft_executor *executor,
                                    const struct weft_part *part, struct weft_error *error) {
  const uint32_t done = part->held->done;
  const uint32_t op = part->action->op;
  if (weft_op_in(op, done) || (op == WEFT_OP_I && weft_op_in(WEFT_OP_B, done)) ||
      (op == WEFT_OP_B && weft_op_in(WEFT_OP_I, done))) {
    return fail_part(executor, part, "it has been done before", error);
  }
  if (weft_op_in(op, WEFT_OPS_GRADIENT) && !weft_op_in(WEFT_OP_F, done)) {
    return fail_part(executor, part, "its forward has not been done", error);
  }
  if (op == WEFT_OP_W && !weft_op_in(WEFT_OP_I, done)) {
    return fail_part(executor, part, "its input gradient (I) has not been done", error);
  }
  if (part->stage->needs->shards && !part->stage->whole) {
    return fail_part(executor, part, "the stage is sharded: no UNSHARD stands before it", error);
  }
  return WEFT_OK;
}

/* UNSHARD was begun; compute is the first to need it done. */
static enum weft_status await_parameters(struct weft_executor *executor,
                                         const struct weft_part *part, struct weft_error *error) {
  if (executor->collective_done >= part->stage->whole_ticket) {
    return WEFT_OK;
  }
  WEFT_TRY(weft_executor_poll_collectives(executor, error));
  if (executor->collective_done >= part->stage->whole_ticket) {
    return WEFT_OK;
  }
  return weft_executor_await_collective(executor, error);
}

static enum weft_status await_input(struct weft_executor *executor, struct weft_part *part,
                                    struct weft_error *error) {
  struct weft_stage_run *stage = part->stage;
  const bool forward = part->action->op == WEFT_OP_F;
  struct weft_buffer *buffer = forward ? part->held->input : part->held->grad_in;
  const bool needed = forward ? stage->in != NULL : stage->grad_in != NULL && !stage->is_last;
  if (part->action->op == WEFT_OP_W || !needed) {
    return WEFT_OK;
  }
  if (buffer == NULL) {
    return fail_part(executor, part,
                     forward ? "its input has not been received or made"
                             : "its gradient has not been received or made",
                     error);
  }
  return buffer->under_way ? weft_executor_await(executor, stage, buffer, part->action->microbatch,
                                                 forward, error)
                           : WEFT_OK;
}

/* A buffer for what the part makes. */
static enum weft_status take_room(struct weft_executor *executor, struct weft_part *part,
                                  struct weft_error *error) {
  const struct weft_stage_run *stage = part->stage;
  const bool forward = part->action->op == WEFT_OP_F;
  struct weft_buffer_pool *pool = forward ? stage->out
                                  : weft_op_in(part->action->op, WEFT_OPS_GRADIENT)
                                      ? stage->grad_out
                                      : NULL;
  if (pool != NULL && part->made == NULL) {
    const uint32_t peer = forward ? stage->above_rank : stage->below_rank;
    const enum weft_status status = weft_executor_take(executor, pool, peer, &part->made, error);
    if (status != WEFT_OK) {
      return status;
    }
    weft_buffer_offer(part->made, pool);
  }
  if (forward && stage->is_last && stage->grad_in != NULL && stage->needs->has_backward &&
      part->loss_grad == NULL) {
    const enum weft_status status =
        weft_executor_take(executor, stage->grad_in, UINT32_MAX, &part->loss_grad, error);
    if (status != WEFT_OK) {
      return status;
    }
    weft_buffer_offer(part->loss_grad, stage->grad_in);
  }
  return WEFT_OK;
}

static void add_function(struct weft_part *part,
                         enum weft_status (*function)(struct weft_stage *, struct weft_stage_call *,
                                                      struct weft_error *)) {
  if (function != NULL) {
    part->functions[part->function_count++] = function;
  }
}

static void list_functions(const struct weft_executor *executor, struct weft_part *part) {
  const struct weft_stage_ops *ops = part->stage->impl->ops;
  const uint32_t op = part->action->op;
  part->function_count = part->function_at = 0;
  if (op == WEFT_OP_F) {
    add_function(part, ops->forward);
    part->op_count = part->function_count;
    if (part->stage->is_last) {
      add_function(part, ops->loss);
    }
    return;
  }
  const bool whole = op == WEFT_OP_B;
  if (part->stage->wants_backward) {
    if (whole && ops->backward != NULL) {
      add_function(part, ops->backward);
    } else {
      add_function(part, whole || op == WEFT_OP_I ? ops->backward_input : NULL);
      add_function(part, whole || op == WEFT_OP_W ? ops->backward_weight : NULL);
    }
  }
  part->op_count = part->function_count;
  if (part->call.last_backward && executor->options->scale_grads && part->stage->wants_backward) {
    add_function(part, ops->scale_grads);
  }
}

static void fill_forward(const struct weft_executor *executor, struct weft_part *part) {
  struct weft_stage_call *call = &part->call;
  const uint32_t mb = part->action->microbatch;
  call->outputs = &part->made->tensors;
  if (part->stage->is_last) {
    if (executor->targets != NULL) {
      call->targets = &executor->targets[mb];
    }
    call->loss = &executor->losses[mb];
    if (part->loss_grad != NULL) {
      call->output_grads = &part->loss_grad->tensors;
    }
  }
}

static void fill_backward(const struct weft_executor *executor, struct weft_part *part) {
  struct weft_stage_call *call = &part->call;
  const struct weft_held *held = part->held;
  if (held->grad_in != NULL) {
    call->output_grads = &held->grad_in->tensors;
  }
  if (part->made != NULL) {
    weft_buffer_match(part->made, part->stage->grad_out, call->inputs);
    call->input_grads = &part->made->tensors;
  }
  if (part->stage->is_last && executor->targets != NULL) {
    call->targets = &executor->targets[part->action->microbatch];
  }
  call->first_backward = part->record == part->stage->needs->first_backward;
  call->last_backward = part->record == part->stage->needs->last_backward;
}

static void fill_call(struct weft_executor *executor, struct weft_part *part) {
  static struct weft_tensors none; /* nothing ever writes to it: it has no tensors */
  struct weft_stage_call *call = &part->call;
  const struct weft_held *held = part->held;
  weft_executor_fill_call(executor, part->action->stage, part->action->microbatch, call);
  call->slot = held->slot;
  call->outputs = call->input_grads = &none;
  if (part->stage->is_first) {
    call->inputs = &executor->inputs[part->action->microbatch];
  } else if (held->input != NULL) {
    call->inputs = &held->input->tensors;
  }
  if (part->action->op == WEFT_OP_F) {
    fill_forward(executor, part);
  } else {
    fill_backward(executor, part);
  }
}

static enum weft_status prepare_part(struct weft_executor *executor, struct weft_part *part,
                                     struct weft_error *error) {
  WEFT_TRY(check_order(executor, part, error));
  enum weft_status status = await_parameters(executor, part, error);
  if (status == WEFT_OK) {
    status = await_input(executor, part, error);
  }
  if (status == WEFT_OK) {
    status = take_room(executor, part, error);
  }
  if (status != WEFT_OK) {
    return status;
  }
  if (part->action->op == WEFT_OP_F) {
    struct weft_stage_run *stage = part->stage;
    if (stage->free_slot_count == 0) {
      return fail_part(executor, part, "more microbatches are under way than the row can have",
                       error);
    }
    part->held->slot = stage->free_slots[--stage->free_slot_count];
  }
  return WEFT_OK;
}

static enum weft_status find_parts(struct weft_executor *executor, const struct weft_action *cell,
                                   struct weft_error *error) {
  executor->part_at = 0;
  executor->part_count = cell->parts > 0 ? cell->parts : 1;
  for (uint32_t k = 0; k < executor->part_count; k++) {
    struct weft_part *part = &executor->parts[k];
    part->action = cell->parts > 0 ? &cell[1 + k] : cell;
    part->record = (uint32_t)(executor->at + (cell->parts > 0 ? 1 + k : 0));
    part->made = part->loss_grad = NULL;
    if (!weft_op_in(part->action->op, WEFT_OPS_COMPUTE)) {
      return fail_part(executor, part, "an overlap is made of F, B, I and W", error);
    }
    part->stage = executor->of_stage[part->action->stage];
    part->held = &part->stage->held[part->action->microbatch];
  }
  return WEFT_OK;
}

static enum weft_status prepare(struct weft_executor *executor, const struct weft_action *cell,
                                struct weft_error *error) {
  if (executor->cell_step == WEFT_CELL_NEW) {
    WEFT_TRY(find_parts(executor, cell, error));
    executor->cell_step = WEFT_CELL_PREPARING;
  }
  for (; executor->part_at < executor->part_count; executor->part_at++) {
    const enum weft_status status =
        prepare_part(executor, &executor->parts[executor->part_at], error);
    if (status != WEFT_OK) {
      return status;
    }
  }
  for (uint32_t k = 0; k < executor->part_count; k++) {
    fill_call(executor, &executor->parts[k]);
    list_functions(executor, &executor->parts[k]);
  }
  executor->part_at = 0;
  executor->custom_again = false;
  executor->cell_step = WEFT_CELL_CALLING;
  executor->cell_begin = executor->now;
  return WEFT_OK;
}

/* ---- Call ---- */

/* A function has answered: WEFT_OK, or what to return. */
static enum weft_status settle(struct weft_executor *executor, const struct weft_part *part,
                               const struct weft_action *action, enum weft_status status,
                               struct weft_error *error) {
  if (status == WEFT_IN_PROGRESS) {
    return weft_executor_block(executor, WEFT_PHASE_COMPUTE, UINT32_MAX, weft_action_idle(),
                               part->call.ready_at, error);
  }
  return status < 0 ? weft_executor_fail_stage(executor, action, error) : WEFT_OK;
}

static enum weft_status call_functions(struct weft_executor *executor, struct weft_part *part,
                                       struct weft_error *error) {
  while (part->function_at < part->function_count) {
    struct weft_stage_call *call = &part->call;
    if (part->loss_grad != NULL && part->function_at == part->op_count) {
      weft_buffer_match(part->loss_grad, part->stage->grad_in, call->outputs);
    }
    call->now = executor->now;
    call->ready_at = 0;
    const enum weft_status answer =
        part->functions[part->function_at](part->stage->impl, call, error);
    call->again = answer == WEFT_IN_PROGRESS;
    const enum weft_status status = settle(executor, part, part->action, answer, error);
    if (status != WEFT_OK) {
      return status;
    }
    part->function_at++;
    if (part->function_at < part->function_count) {
      weft_executor_read_clock(executor);
    }
  }
  return WEFT_OK;
}

/* A custom function takes the place of the parts' own functions. */
static enum weft_status call_custom(struct weft_executor *executor, const struct weft_action *cell,
                                    const struct weft_custom *custom, uint32_t first,
                                    uint32_t count, struct weft_error *error) {
  for (uint32_t k = 0; k < count; k++) {
    struct weft_part *part = &executor->parts[first + k];
    part->call.now = executor->now;
    part->call.ready_at = 0;
    part->call.again = executor->custom_again;
    executor->part_actions[k] = part->action;
    executor->part_stages[k] = part->stage->impl;
    executor->part_calls[k] = &part->call;
  }
  const struct weft_custom_call call = {.cell = cell,
                                        .part_count = count,
                                        .actions = executor->part_actions,
                                        .stages = executor->part_stages,
                                        .calls = executor->part_calls};
  const enum weft_status answer = custom->function(custom->context, &call, error);
  executor->custom_again = answer == WEFT_IN_PROGRESS;
  const enum weft_status status = settle(executor, &executor->parts[first], cell, answer, error);
  for (uint32_t k = 0; status == WEFT_OK && k < count; k++) {
    executor->parts[first + k].function_at = executor->parts[first + k].op_count;
    executor->parts[first + k].call.again = false;
  }
  return status;
}

static enum weft_status call_part(struct weft_executor *executor, struct weft_part *part,
                                  uint32_t number, struct weft_error *error) {
  const struct weft_custom *custom = &executor->custom[part->action->op];
  if (custom->function != NULL && part->function_at < part->op_count) {
    const enum weft_status status = call_custom(executor, part->action, custom, number, 1, error);
    if (status != WEFT_OK) {
      return status;
    }
  }
  return call_functions(executor, part, error);
}

static bool overlap_is_called(const struct weft_executor *executor) {
  return executor->parts[0].function_at >= executor->parts[0].op_count;
}

static enum weft_status call_all(struct weft_executor *executor, const struct weft_action *cell,
                                 struct weft_error *error) {
  const struct weft_custom *custom = &executor->custom[cell->op];
  if (cell->parts > 0 && custom->function != NULL && !overlap_is_called(executor)) {
    const enum weft_status status =
        call_custom(executor, cell, custom, 0, executor->part_count, error);
    if (status != WEFT_OK) {
      return status;
    }
  }
  for (; executor->part_at < executor->part_count; executor->part_at++) {
    const enum weft_status status =
        call_part(executor, &executor->parts[executor->part_at], executor->part_at, error);
    if (status != WEFT_OK) {
      return status;
    }
  }
  return WEFT_OK;
}

/* ---- Finish ---- */

static void give_back(struct weft_buffer_pool *pool, struct weft_buffer **buffer) {
  if (*buffer != NULL) {
    weft_buffer_pool_give(pool, *buffer);
    *buffer = NULL;
  }
}

static void end_microbatch(struct weft_part *part) {
  struct weft_stage_run *stage = part->stage;
  give_back(stage->in, &part->held->input);
  give_back(stage->grad_in, &part->held->grad_in);
  stage->free_slots[stage->free_slot_count++] = part->held->slot;
}

static enum weft_status finish_forward(struct weft_executor *executor, struct weft_part *part,
                                       struct weft_error *error) {
  struct weft_stage_run *stage = part->stage;
  const uint32_t mb = part->action->microbatch;
  if (weft_buffer_pack(part->made, stage->out, error) < 0) {
    return weft_executor_fail_stage(executor, part->action, error);
  }
  if (stage->is_last) {
    if (executor->outputs != NULL) {
      WEFT_TRY(weft_outputs_keep(executor->outputs, mb, &part->made->tensors, error));
    }
    weft_buffer_pool_give(stage->out, part->made);
    part->held->grad_in = part->loss_grad;
  } else if (stage->above != NULL) {
    stage->above->held[mb].input = part->made;
  } else {
    part->held->output = part->made;
  }
  if (!stage->needs->has_backward) {
    end_microbatch(part);
  }
  return WEFT_OK;
}

static enum weft_status finish_backward(struct weft_executor *executor, struct weft_part *part,
                                        struct weft_error *error) {
  struct weft_stage_run *stage = part->stage;
  if (part->made != NULL) {
    if (weft_buffer_pack(part->made, stage->grad_out, error) < 0) {
      return weft_executor_fail_stage(executor, part->action, error);
    }
    if (stage->below != NULL) {
      stage->below->held[part->action->microbatch].grad_in = part->made;
    } else {
      part->held->grad_out = part->made;
    }
  }
  if (part->action->op != WEFT_OP_I) {
    end_microbatch(part);
  }
  return WEFT_OK;
}

static enum weft_status finish(struct weft_executor *executor, const struct weft_action *cell,
                               struct weft_error *error) {
  weft_executor_read_clock(executor);
  weft_executor_note_time(executor, (uint32_t)executor->at, executor->cell_begin, executor->now);
  for (uint32_t k = 0; k < executor->part_count; k++) {
    struct weft_part *part = &executor->parts[k];
    part->held->done |= WEFT_OP_BIT(part->action->op);
    WEFT_TRY(part->action->op == WEFT_OP_F ? finish_forward(executor, part, error)
                                           : finish_backward(executor, part, error));
    if (cell->parts > 0) {
      weft_executor_note_time(executor, part->record, executor->cell_begin, executor->now);
    }
  }
  executor->cell_step = WEFT_CELL_NEW;
  return WEFT_OK;
}

/* Others see that this rank computes, and since when: a call may never return. */
static void show_compute(struct weft_executor *executor, const struct weft_action *cell) {
  struct weft_rank_status *board = executor->board;
  WEFT_BOARD_STORE(board->phase, (uint32_t)WEFT_PHASE_COMPUTE);
  WEFT_BOARD_STORE(board->peer, UINT32_MAX);
  WEFT_BOARD_STORE(board->step, executor->step);
  WEFT_BOARD_STORE(board->cell, executor->cell);
  WEFT_BOARD_STORE(board->action, weft_board_pack(*cell));
  WEFT_BOARD_STORE(board->wants, weft_board_pack(weft_action_idle()));
  WEFT_BOARD_STORE(board->since, executor->now);
}

enum weft_status weft_executor_compute(struct weft_executor *executor,
                                       const struct weft_action *cell, struct weft_error *error) {
  if (executor->cell_step != WEFT_CELL_CALLING) {
    const enum weft_status status = prepare(executor, cell, error);
    if (status != WEFT_OK) {
      return status;
    }
    show_compute(executor, cell);
  }
  const enum weft_status status = call_all(executor, cell, error);
  return status == WEFT_OK ? finish(executor, cell, error) : status;
}
