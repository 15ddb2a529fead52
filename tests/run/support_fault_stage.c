/* See support_fault_stage.h. */
#include "support_fault_stage.h"

#include <weft/support.h>

typedef enum weft_status stage_function(struct weft_stage *stage, struct weft_stage_call *call,
                                        struct weft_error *error);

static struct fault_stage *fault_of(struct weft_stage *stage) {
  return (struct fault_stage *)stage;
}

static void note_misuse(struct fault_stage *stage, bool wrong, const char *what) {
  if (wrong && stage->misuse == NULL) {
    stage->misuse = what;
  }
}

/* A new call: it fails, or its time begins. */
static enum weft_status begin(struct fault_stage *stage, struct fault_stage_work *work,
                              const struct weft_stage_call *call, struct weft_error *error) {
  note_misuse(stage, call->again, "a first call is said to be a poll");
  stage->calls++;
  if (stage->calls == stage->fail_at) {
    return weft_fail(error, WEFT_ERR_STAGE, "", "it was asked to fail");
  }
  work->begun = true;
  work->until = call->now;
  if (stage->time_max > 0) {
    work->until += weft_random_below(&stage->random, (uint32_t)stage->time_max + 1);
  }
  if (stage->calls == stage->long_at) {
    work->until = call->now + stage->long_time;
  }
  if (stage->calls == stage->never_at) {
    work->until = WEFT_TIME_NEVER;
  }
  return WEFT_OK;
}

static enum weft_status take_time(struct fault_stage *stage, struct fault_stage_work *work,
                                  stage_function *function, struct weft_stage_call *call,
                                  struct weft_error *error) {
  if (!work->begun) {
    WEFT_TRY(begin(stage, work, call, error));
  } else {
    note_misuse(stage, !call->again, "a poll is said to be a first call");
  }
  if (call->now < work->until) {
    call->ready_at = stage->is_quiet || work->until == WEFT_TIME_NEVER ? 0 : work->until;
    return WEFT_IN_PROGRESS;
  }
  enum weft_status status = WEFT_OK;
  if (function != NULL) {
    call->again = work->inner;
    status = function(stage->inside, call, error);
  }
  work->inner = work->begun = status == WEFT_IN_PROGRESS;
  return status;
}

/* What the stage inside has for it; NULL where there is none. */
#define INSIDE(stage, name) ((stage)->inside != NULL ? (stage)->inside->ops->name : NULL)

#define COMPUTE(name)                                                                      \
  static enum weft_status name(struct weft_stage *base, struct weft_stage_call *call,      \
                               struct weft_error *error) {                                 \
    struct fault_stage *stage = fault_of(base);                                            \
    note_misuse(stage, stage->knows_shards && !stage->is_whole, "computes while sharded"); \
    return take_time(stage, &stage->compute, INSIDE(stage, name), call, error);            \
  }
COMPUTE(forward)
COMPUTE(backward)
COMPUTE(backward_input)
COMPUTE(backward_weight)
COMPUTE(loss)
COMPUTE(scale_grads)

static enum weft_status zero_grad(struct weft_stage *base, struct weft_stage_call *call,
                                  struct weft_error *error) {
  struct fault_stage *stage = fault_of(base);
  return take_time(stage, &stage->compute, INSIDE(stage, zero_grad), call, error);
}

static enum weft_status unshard(struct weft_stage *base, struct weft_stage_call *call,
                                struct weft_error *error) {
  struct fault_stage *stage = fault_of(base);
  const enum weft_status status =
      take_time(stage, &stage->collective, INSIDE(stage, unshard), call, error);
  if (status == WEFT_OK) {
    stage->is_whole = stage->knows_shards = true;
  }
  return status;
}

static enum weft_status reshard(struct weft_stage *base, struct weft_stage_call *call,
                                struct weft_error *error) {
  struct fault_stage *stage = fault_of(base);
  note_misuse(stage, stage->compute.begun, "is resharded while it computes");
  stage->is_whole = false;
  return take_time(stage, &stage->collective, INSIDE(stage, reshard), call, error);
}

static enum weft_status reduce_grad(struct weft_stage *base, struct weft_stage_call *call,
                                    struct weft_error *error) {
  struct fault_stage *stage = fault_of(base);
  return take_time(stage, &stage->collective, INSIDE(stage, reduce_grad), call, error);
}

static const struct weft_stage_ops fault_ops = {
    .name = "fault",
    .forward = forward,
    .backward = backward,
    .backward_input = backward_input,
    .backward_weight = backward_weight,
    .loss = loss,
    .unshard = unshard,
    .reshard = reshard,
    .reduce_grad = reduce_grad,
    .zero_grad = zero_grad,
    .scale_grads = scale_grads,
};

void fault_stage_init(struct fault_stage *stage, struct weft_stage *inside, uint64_t seed) {
  *stage = (struct fault_stage){
      .stage = {.ops = &fault_ops}, .inside = inside, .random = {.state = seed}};
}
