/* Whether a step can be recorded; see recording.h. */
#include "run/step/recording.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "run/pipeline.h"

const char *weft_recording_reason_text(uint32_t reason) {
  static const char *const texts[WEFT_RECORDING_REASON_COUNT] = {
      [WEFT_RECORDING_NO_DEVICE] = "a rank has no device that records CUDA graphs",
      [WEFT_RECORDING_NOT_WANTED] = "options.eager is set",
      [WEFT_RECORDING_CHECKED] = "payloads are checked, which the host does",
      [WEFT_RECORDING_OUTPUTS] = "outputs are wanted, which the host merges",
      [WEFT_RECORDING_STAGE] = "a stage does not say that its work can be replayed",
      [WEFT_RECORDING_CUSTOM] = "a custom function replaces an op",
      [WEFT_RECORDING_NO_GROUP] = "the transport has no groups, in which ranks decide about it",
      [WEFT_RECORDING_CHAIN_HANGS] =
          ("the program would hang if each rank had one transfer at a time, in the order of its "
           "row, as a recording has them; verify it with the channel model nccl-world to see "
           "where"),
      [WEFT_RECORDING_CHAIN_SLOW] =
          ("one transfer at a time per rank, in the order of its row, as a recording has them, "
           "would make the step longer; lower the table in the order of time, or "
           "set options.record_slow"),
      [WEFT_RECORDING_NOT_RECORDED] = "it could not be recorded"};
  return reason < WEFT_RECORDING_REASON_COUNT ? texts[reason] : "of a reason unknown here";
}

enum weft_recording_reason weft_recording_reason_of_pipeline(const struct weft_pipeline *pipeline) {
  assert(pipeline != NULL);
  const struct weft_executor *executor = &pipeline->executor;
  if (executor->device == NULL || pipeline->options.device->ops->capture_begin == NULL) {
    return WEFT_RECORDING_NO_DEVICE;
  }
  if (pipeline->options.eager) {
    return WEFT_RECORDING_NOT_WANTED;
  }
  if (pipeline->options.check_payloads) {
    return WEFT_RECORDING_CHECKED;
  }
  for (uint32_t k = 0; k < executor->own_count; k++) {
    if (!executor->stages[k].impl->ops->replays) {
      return WEFT_RECORDING_STAGE;
    }
  }
  return WEFT_RECORDING_POSSIBLE;
}

enum weft_recording_reason weft_recording_reason_of_step(const struct weft_pipeline *pipeline) {
  const enum weft_recording_reason always = weft_recording_reason_of_pipeline(pipeline);
  if (always != WEFT_RECORDING_POSSIBLE) {
    return always;
  }
  if (pipeline->ends.want_outputs) {
    return WEFT_RECORDING_OUTPUTS;
  }
  for (uint32_t op = 0; op < WEFT_OP_COUNT; op++) {
    if (pipeline->executor.custom[op].function != NULL) {
      return WEFT_RECORDING_CUSTOM;
    }
  }
  return WEFT_RECORDING_POSSIBLE;
}

static uint64_t hash_tensors(const struct weft_tensors *items, uint32_t count, uint64_t hash) {
  hash = (hash ^ (uintptr_t)items) * UINT64_C(0x100000001b3);
  for (uint32_t m = 0; items != NULL && m < count; m++) {
    for (uint32_t t = 0; t < items[m].count; t++) {
      hash = (hash ^ weft_checksum(&items[m].items[t].shape, sizeof items[m].items[t].shape)) *
             UINT64_C(0x100000001b3);
      hash ^= (uintptr_t)items[m].items[t].data;
    }
  }
  return hash;
}

struct weft_recording_key weft_recording_key_of(const struct weft_pipeline *pipeline) {
  assert(pipeline->last_row != NULL);
  const struct weft_executor *executor = &pipeline->executor;
  const uint32_t count = pipeline->last_row->program->microbatch_count;
  struct weft_recording_key key;
  memset(&key, 0, sizeof key); /* compared as bytes */
  key.pipeline = pipeline;
  key.row = pipeline->last_row;
  key.losses = pipeline->ends.losses;
  key.saved = executor->saved;
  for (uint32_t k = 0; k < pipeline->ends.count; k++) {
    const struct weft_executor_stage *stage = pipeline->ends.items[k].stage;
    key.batch = hash_tensors(stage->is_source ? stage->inputs : NULL, count, key.batch);
    key.batch = hash_tensors(stage->is_loss ? stage->targets : NULL, count, key.batch);
  }
  return key;
}

void weft_recording_explain(struct weft_pipeline *pipeline, const char *reason) {
  char line[700];
  if (reason != NULL && reason != pipeline->eager_reason && pipeline->options.log != NULL) {
    (void)snprintf(line, sizeof line, "step %" PRIu64 " is enqueued action by action: %s",
                   pipeline->step, reason);
    pipeline->options.log(pipeline->options.log_context, line);
  }
  pipeline->eager_reason = reason;
}
