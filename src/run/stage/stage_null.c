/* The null stage does nothing: what remains is the cost of the runtime. */
#include <weft/run.h>

static enum weft_status nothing(struct weft_stage *stage, struct weft_stage_call *call,
                                struct weft_error *error) {
  (void)stage;
  (void)call;
  (void)error;
  return WEFT_OK;
}

const struct weft_stage_ops *weft_null_stage_ops(void) {
  static const struct weft_stage_ops ops = {
      .name = "null",
      .enqueues = true, /* nothing */
      .replays = true,
      .forward = nothing,
      .backward = nothing,
      .backward_input = nothing,
      .backward_weight = nothing,
      .loss = nothing,
      .scale_grads = nothing,
  };
  return &ops;
}
