/* The executor's loop; see executor.h. */
#include "run/executor/executor.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "run/hang/hang.h"

/* ---- Waiting ---- */

static void show_phase(struct weft_executor *executor, enum weft_rank_phase phase, uint32_t peer,
                       struct weft_action wants) {
  const struct weft_rank_status *status = executor->status;
  const struct weft_row *row = executor->row;
  if (status->phase != (uint32_t)phase || status->cell != executor->cell || status->peer != peer) {
    WEFT_STATUS_STORE(executor->status->since, executor->now);
  }
  weft_executor_show(
      executor, phase, peer,
      executor->at < row->end ? row->program->actions[executor->at] : weft_action_idle(), wants);
}

static enum weft_status fail_stalled(struct weft_executor *executor, struct weft_error *error) {
  struct weft_failure failure;
  weft_hang_refresh(executor->transport);
  const struct weft_hang hang = weft_hang_of(executor->transport);
  (void)weft_hang_diagnose(&hang, executor->row->program, executor->options->first_rank,
                           executor->options->comm, executor->transport->rank, &failure);
  executor->transport->ops->fail(executor->transport, &failure);
  if (error != NULL) {
    *error = failure.error;
  }
  return failure.error.status;
}

enum weft_status weft_executor_block(struct weft_executor *executor, enum weft_rank_phase phase,
                                     uint32_t peer, struct weft_action wants, int64_t ready_at,
                                     struct weft_error *error) {
  const int64_t limit = executor->options->stall_limit;
  assert(limit >= 0 && (peer == UINT32_MAX || peer < executor->transport->rank_count));
  weft_executor_read_clock(executor);
  show_phase(executor, phase, peer, wants);
  if (limit > 0 && executor->now - executor->last_progress >= limit) {
    return fail_stalled(executor, error);
  }
  if (phase == WEFT_PHASE_COMPUTE && ready_at == 0) { /* no message will end this wait */
    ready_at = weft_executor_ask_at(executor, executor->status->since);
  }
  const int64_t deadline = limit > 0 ? executor->last_progress + limit : WEFT_TIME_NEVER;
  executor->wake_at = ready_at > 0 && ready_at < deadline ? ready_at : deadline;
  if (executor->collective_running && executor->collective_ready_at < executor->wake_at) {
    executor->wake_at = executor->collective_ready_at;
  }
  return WEFT_IN_PROGRESS;
}

/* ---- Failing ---- */

enum weft_status weft_executor_fail_stage(const struct weft_executor *executor,
                                          const struct weft_action *action,
                                          struct weft_error *error) {
  char text[64];
  return weft_fail(
      error, WEFT_ERR_STAGE, error->hint[0] != '\0' ? error->hint : "look at that stage's function",
      "rank %" PRIu32 ", step %" PRIu64 ", %s failed: %s", executor->transport->rank,
      executor->step, action != NULL ? weft_action_format(action, text, sizeof text) : "zero_grad",
      error->message[0] != '\0' ? error->message : "the stage gives no reason");
}

enum weft_status weft_executor_fail_action(const struct weft_executor *executor,
                                           const struct weft_action *action, const char *what,
                                           struct weft_error *error) {
  char text[64];
  return weft_fail(error, WEFT_ERR_INVALID, "verify the program to see everything that is wrong",
                   "rank %" PRIu32 ", action %" PRIu64 " (%s): %s", executor->transport->rank,
                   executor->cell, weft_action_format(action, text, sizeof text), what);
}

/* ---- The beginning ---- */

void weft_executor_begin(struct weft_executor *executor, struct weft_row *row, uint64_t step) {
  assert(row->begin <= row->end && row->own_count == executor->own_count);
  executor->row = row;
  executor->step = step;
  executor->round++;
  executor->call.microbatch_count = row->program->microbatch_count;
  executor->call.step = step;
  executor->call.training = row->training;
  executor->call.grad_scale = 1.0 / (double)row->program->microbatch_count;
  executor->at = row->begin;
  executor->cell = 0;
  executor->zeroed = 0;
  executor->cell_step = WEFT_CELL_NEW;
  weft_executor_begin_device(executor);
  executor->collective_count = executor->collective_done = 0;
  executor->collective_running = false;
  for (uint32_t k = 0; k < executor->own_count; k++) {
    struct weft_executor_stage *stage = &executor->stages[k];
    stage->needs = &row->stages[k];
    stage->held = row->held + stage->needs->held_at;
    stage->held_bytes = stage->needs->held_bytes;
    stage->saved_at = row->saved_at != NULL && stage->impl->saved_bytes > 0
                          ? &row->saved_at[(uint64_t)k * row->program->microbatch_count]
                          : NULL;
    stage->unsharded = !stage->needs->shards;
    stage->reduced = stage->tied = false;
  }
  memset(row->held, 0, row->held_bytes);
  if (row->times != NULL) {
    memset(row->times, 0xff, (row->end - row->begin) * sizeof *row->times);
  }
  weft_executor_read_clock(executor);
  executor->last_progress = executor->now;
}

/* Calls zero_grad of every stage that has one. */
static enum weft_status zero_gradients(struct weft_executor *executor, struct weft_error *error) {
  for (; executor->row->training && executor->zeroed < executor->own_count; executor->zeroed++) {
    struct weft_executor_stage *stage = &executor->stages[executor->zeroed];
    if (stage->impl->ops->zero_grad == NULL) {
      continue;
    }
    struct weft_stage_call *call = &executor->collective_call;
    const bool again = executor->custom_again;
    weft_executor_fill_call(executor, stage->stage, 0, call);
    call->again = again;
    show_phase(executor, WEFT_PHASE_COMPUTE, UINT32_MAX, weft_action_idle());
    WEFT_STATUS_STORE(executor->status->action, weft_action_pack(weft_action_idle()));
    weft_rank_status_enter(executor->status);
    const enum weft_status status = weft_executor_recording_failed(executor)
                                        ? WEFT_OK
                                        : stage->impl->ops->zero_grad(stage->impl, call, error);
    weft_rank_status_leave(executor->status);
    executor->custom_again = status == WEFT_IN_PROGRESS;
    if (status == WEFT_IN_PROGRESS) {
      return weft_executor_block(executor, WEFT_PHASE_COMPUTE, UINT32_MAX, weft_action_idle(),
                                 call->ready_at, error);
    }
    if (status < 0) {
      WEFT_TRY(weft_executor_record_error(executor, weft_executor_fail_stage(executor, NULL, error),
                                          error));
    }
  }
  return WEFT_OK;
}

/* ---- The end ---- */

/* `op` is the RECV of the other end. */
static enum weft_status drain_pool(struct weft_executor *executor, uint32_t stage,
                                   const struct weft_port *port, struct weft_buffer_pool *pool,
                                   enum weft_op op, struct weft_error *error) {
  if (pool == NULL || pool->sends == NULL) {
    return WEFT_OK;
  }
  WEFT_TRY(weft_executor_collect(executor, pool, error));
  if (pool->sends == NULL) {
    return WEFT_OK;
  }
  const struct weft_action wants =
      weft_action_transfer(op, port->other, stage, pool->sends->message.header.microbatch);
  return weft_executor_block(executor, WEFT_PHASE_SEND, port->rank, wants, 0, error);
}

static enum weft_status drain_sends(struct weft_executor *executor, struct weft_error *error) {
  for (uint32_t k = 0; k < executor->own_count; k++) {
    struct weft_executor_stage *stage = &executor->stages[k];
    for (uint32_t n = 0; n < stage->port_count; n++) {
      const struct weft_port *port = &stage->ports[n];
      const bool in = n < stage->in_count;
      WEFT_AWAIT(port->near != NULL ? WEFT_OK
                                    : drain_pool(executor, stage->stage, port,
                                                 in ? port->gradients : port->activations,
                                                 in ? WEFT_OP_RECV_B : WEFT_OP_RECV_F, error));
    }
  }
  if (executor->collective_done < executor->collective_count) {
    return weft_executor_await_collective(executor, error);
  }
  return WEFT_OK;
}

static const char *name_leftover(const struct weft_port_held *held, bool in) {
  if (held->activation != NULL) {
    return in ? "an activation without a backward" : "an activation that was computed and not sent";
  }
  return in ? "a gradient that was computed and not sent"
            : "a gradient that no weight gradient was taken from";
}

/* Names what a stage still holds of a microbatch, and of which edge. */
static enum weft_status find_held(const struct weft_executor *executor,
                                  const struct weft_executor_stage *stage, uint32_t microbatch,
                                  struct weft_error *error) {
  const struct weft_held *held = weft_executor_held(stage, microbatch);
  for (uint32_t n = stage->port_count; n-- > 0;) {
    const struct weft_port *port = &stage->ports[n];
    const bool in = n < stage->in_count;
    const struct weft_port_held *at = &held->ports[n];
    char edge[48] = "";
    if (at->activation == NULL && at->gradient == NULL) {
      continue;
    }
    if (port->other != WEFT_STAGE_NONE) {
      (void)snprintf(edge, sizeof edge, ", edge %" PRIu32 ">%" PRIu32,
                     in ? port->other : stage->stage, in ? stage->stage : port->other);
    }
    return weft_fail(
        error, WEFT_ERR_INVALID, "verify the program to see everything that is missing",
        "rank %" PRIu32 " is at the end of the step and still has %s: stage %" PRIu32
        ", microbatch %" PRIu32 "%s",
        executor->transport->rank, name_leftover(at, in), stage->stage, microbatch, edge);
  }
  return WEFT_OK;
}

/* Names what the step still holds when its row is done. */
static enum weft_status find_leftover(const struct weft_executor *executor,
                                      struct weft_error *error) {
  const uint32_t microbatches = executor->row->program->microbatch_count;
  for (uint32_t k = 0; k < executor->own_count; k++) {
    const struct weft_executor_stage *stage = &executor->stages[k];
    for (uint32_t mb = 0; mb < microbatches; mb++) {
      WEFT_TRY(find_held(executor, stage, mb, error));
    }
    if (stage->free_slot_count != stage->slot_count) {
      return weft_fail(
          error, WEFT_ERR_INVALID, "verify the program to see everything that is missing",
          "rank %" PRIu32 " is at the end of the step, and stage %" PRIu32 " still has %" PRIu32
          " microbatches without their last backward",
          executor->transport->rank, stage->stage, stage->slot_count - stage->free_slot_count);
    }
  }
  return WEFT_OK;
}

static bool has_leftovers(const struct weft_executor *executor) {
  for (uint32_t n = 0; n < 2 * executor->port_count; n++) {
    if (executor->pools[n].taken > 0) {
      return true;
    }
  }
  for (uint32_t k = 0; k < executor->own_count; k++) {
    if (executor->stages[k].free_slot_count != executor->stages[k].slot_count) {
      return true;
    }
  }
  return false;
}

/* ---- The loop ---- */

static inline enum weft_status run_cell(struct weft_executor *executor,
                                        const struct weft_action *cell, struct weft_error *error) {
  if (weft_op_in(cell->op, WEFT_OPS_COMPUTE | WEFT_OP_BIT(WEFT_OP_OVERLAP_F_B))) {
    return weft_executor_compute(executor, cell, error);
  }
  if (weft_op_in(cell->op, WEFT_OPS_SEND)) {
    return weft_executor_send(executor, cell, error);
  }
  if (weft_op_in(cell->op, WEFT_OPS_RECV)) {
    return weft_executor_receive(executor, cell, error);
  }
  return weft_op_in(cell->op, WEFT_OPS_SHARD) ? weft_executor_enqueue(executor, cell, error)
                                              : WEFT_OK;
}

static enum weft_status run_row(struct weft_executor *executor, struct weft_error *error) {
  const struct weft_row *row = executor->row;
  while (executor->at < row->end) {
    const struct weft_action *cell = &row->program->actions[executor->at];
    if (executor->collective_done < executor->collective_count) {
      WEFT_TRY(weft_executor_poll_collectives(executor, error));
    }
    const int64_t before = executor->now;
    WEFT_AWAIT(run_cell(executor, cell, error));
    const uint32_t records = weft_cell_records(cell);
    if (cell->op != WEFT_OP_IDLE) {
      weft_rank_status_remember(executor->status, *cell, before, executor->now);
      executor->actions_done += records;
      executor->last_progress = executor->now;
    }
    executor->at += records;
    executor->cell++;
  }
  return WEFT_OK;
}

enum weft_status weft_executor_advance(struct weft_executor *executor, struct weft_error *error) {
  assert(executor->row != NULL && executor->at <= executor->row->end);
  if (executor->device != NULL) {
    struct weft_device *device = executor->options->device;
    WEFT_TRY(weft_executor_record_error(executor, device->ops->make_current(device, error), error));
  }
  weft_executor_read_clock(executor);
  WEFT_AWAIT(zero_gradients(executor, error));
  WEFT_AWAIT(run_row(executor, error));
  if (executor->collective_done < executor->collective_count) {
    WEFT_TRY(weft_executor_poll_collectives(executor, error));
  }
  WEFT_AWAIT(drain_sends(executor, error));
  if (has_leftovers(executor)) {
    WEFT_TRY(find_leftover(executor, error));
  }
  WEFT_AWAIT(weft_executor_await_device(executor, error));
  show_phase(executor, WEFT_PHASE_DONE, UINT32_MAX, weft_action_idle());
  return WEFT_OK;
}
