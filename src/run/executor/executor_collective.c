/* UNSHARD, RESHARD, REDUCE_GRAD and TIE_GRAD run in order, concurrently with the compute, as on
 * a stream of their own. An UNSHARD is only started in its place of the row; the first compute
 * that needs the parameters waits for it. */
#include <assert.h>
#include <inttypes.h>

#include <weft/support.h>

#include "run/executor/executor.h"

/* What is wrong with an action here; NULL: nothing. */
static const char *fault_of(const struct weft_executor *executor, uint32_t op,
                            const struct weft_executor_stage *stage) {
  const uint32_t last = stage->needs->last_backward;
  if (op == WEFT_OP_UNSHARD) {
    return stage->unsharded ? "the stage is unsharded already" : NULL;
  }
  if (op == WEFT_OP_RESHARD) {
    return stage->unsharded ? NULL : "the stage is sharded already";
  }
  if (op != WEFT_OP_REDUCE_GRAD && op != WEFT_OP_TIE_GRAD) {
    return NULL; /* an op that was added */
  }
  if (stage->reduced) {
    return "the stage's gradients are reduced already";
  }
  if (op == WEFT_OP_TIE_GRAD && stage->tied) {
    return "the stage's gradients are tied already";
  }
  return last != WEFT_RECORD_NONE && executor->at < last ? "a backward of the stage follows it"
                                                         : NULL;
}

enum weft_status weft_executor_enqueue(struct weft_executor *executor,
                                       const struct weft_action *action, struct weft_error *error) {
  struct weft_executor_stage *stage = weft_executor_own_stage(executor, action->stage);
  assert(stage != NULL && executor->collective_count < executor->collective_capacity);
  const char *fault = fault_of(executor, action->op, stage);
  if (fault != NULL) {
    return weft_executor_fail_action(executor, action, fault, error);
  }
  switch (action->op) {
    case WEFT_OP_UNSHARD: stage->unsharded = true; break;
    case WEFT_OP_RESHARD: stage->unsharded = false; break;
    case WEFT_OP_REDUCE_GRAD: stage->reduced = true; break;
    case WEFT_OP_TIE_GRAD: stage->tied = true; break;
    default: break;
  }
  executor->collectives[executor->collective_count++] = (uint32_t)executor->at;
  const enum weft_status status = weft_executor_poll_collectives(executor, error);
  return status < 0 ? status : WEFT_OK;
}

enum weft_status weft_executor_await_collective(struct weft_executor *executor,
                                                struct weft_error *error) {
  assert(executor->collective_done < executor->collective_count);
  const uint32_t record = executor->collectives[executor->collective_done];
  return weft_executor_block(executor, WEFT_PHASE_COMPUTE, UINT32_MAX,
                             executor->row->program->actions[record], executor->collective_ready_at,
                             error);
}

/* Whether one that compute waits for has been started and is not done. */
static bool is_awaited(const struct weft_executor *executor, struct weft_action compute) {
  bool found = false;
  for (uint64_t k = executor->collective_done; k < executor->collective_count; k++) {
    const uint32_t record = executor->collectives[k];
    found = found || weft_action_awaits(compute, executor->row->program->actions[record]);
  }
  return found;
}

enum weft_status weft_executor_await_collectives(struct weft_executor *executor,
                                                 struct weft_action compute,
                                                 struct weft_error *error) {
  if (!is_awaited(executor, compute)) {
    return WEFT_OK;
  }
  WEFT_TRY(weft_executor_poll_collectives(executor, error));
  return is_awaited(executor, compute) ? weft_executor_await_collective(executor, error) : WEFT_OK;
}

static enum weft_status call_collective(struct weft_executor *executor,
                                        const struct weft_action *action,
                                        struct weft_error *error) {
  const struct weft_executor_stage *stage = weft_executor_own_stage(executor, action->stage);
  struct weft_stage_call *call = &executor->collective_call;
  const struct weft_custom *custom = &executor->custom[action->op];
  call->now = executor->now;
  call->ready_at = 0;
  call->again = executor->collective_running;
  if (custom->function != NULL) {
    struct weft_stage *impl = stage->impl;
    const struct weft_custom_call custom_call = {
        .cell = action, .sub_action_count = 1, .actions = &action, .stages = &impl, .calls = &call};
    return custom->function(custom->context, &custom_call, error);
  }
  const struct weft_stage_functions *functions = &stage->functions[action->op];
  if (functions->count == 0) {
    return WEFT_OK; /* nothing is to be done */
  }
  if (executor->device != NULL) {
    executor->device->trails = true;
  }
  return functions->items[0](stage->impl, call, error);
}

enum weft_status weft_executor_poll_collectives(struct weft_executor *executor,
                                                struct weft_error *error) {
  while (executor->collective_done < executor->collective_count) {
    const uint32_t record = executor->collectives[executor->collective_done];
    const struct weft_action *action = &executor->row->program->actions[record];
    if (!executor->collective_running) {
      weft_executor_fill_call(executor, action->stage, action->microbatch,
                              &executor->collective_call);
      executor->collective_begin = executor->now;
      WEFT_STATUS_STORE(executor->status->phase, (uint32_t)WEFT_PHASE_COMPUTE);
      WEFT_STATUS_STORE(executor->status->wants, weft_action_pack(*action));
    }
    weft_rank_status_enter(executor->status);
    const enum weft_status status = weft_executor_recording_failed(executor)
                                        ? WEFT_OK
                                        : call_collective(executor, action, error);
    weft_rank_status_leave(executor->status);
    if (status < 0) {
      WEFT_TRY(weft_executor_record_error(
          executor, weft_executor_fail_stage(executor, action, error), error));
    }
    executor->collective_running = status == WEFT_IN_PROGRESS;
    if (status == WEFT_IN_PROGRESS) {
      const int64_t ready_at = executor->collective_call.ready_at;
      executor->collective_ready_at =
          ready_at > 0 ? ready_at : weft_executor_ask_at(executor, executor->collective_begin);
      return WEFT_OK;
    }
    executor->collective_done++;
    weft_executor_read_clock(executor); /* the call may have taken long */
    executor->last_progress = executor->now;
    weft_executor_record_time(executor, record, executor->collective_begin, executor->now);
  }
  return WEFT_OK;
}
