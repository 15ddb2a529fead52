/* Whether a step can be a graph; see step_graph.h. */
#include "run/step/step_graph.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "run/pipeline.h"

const char *weft_step_graph_refusal_text(uint32_t refusal) {
  static const char *const texts[WEFT_STEP_GRAPH_REFUSAL_COUNT] = {
      [WEFT_STEP_GRAPH_NO_DEVICE] = "a rank has no device that records graphs",
      [WEFT_STEP_GRAPH_NOT_WANTED] = "options.no_graph is set",
      [WEFT_STEP_GRAPH_CHECKED] = "payloads are checked, which the host does",
      [WEFT_STEP_GRAPH_OUTPUTS] = "outputs are wanted, which the host merges",
      [WEFT_STEP_GRAPH_STAGE] = "a stage does not say that its work can be replayed",
      [WEFT_STEP_GRAPH_CUSTOM] = "a custom function replaces an op",
      [WEFT_STEP_GRAPH_NO_GROUP] = "the transport has no groups, in which ranks decide about it",
      [WEFT_STEP_GRAPH_CHAIN_HANGS] =
          ("the program would hang if each rank had one transfer at a time, in the order of its "
           "row, as a graph does; verify it with the channel model nccl-world to see where"),
      [WEFT_STEP_GRAPH_CHAIN_SLOW] =
          ("one transfer at a time per rank, in the order of its row, as a graph has them, would "
           "make the step longer; lower the table in the order of time, or "
           "set WEFT_NCCL_GRAPHS=all"),
      [WEFT_STEP_GRAPH_NOT_RECORDED] = "it could not be recorded"};
  return refusal < WEFT_STEP_GRAPH_REFUSAL_COUNT ? texts[refusal] : "of a reason unknown here";
}

enum weft_step_graph_refusal weft_step_graph_refuse_always(const struct weft_pipeline *pipeline) {
  const struct weft_executor *executor = &pipeline->executor;
  if (executor->device == NULL || pipeline->options.device->ops->capture_begin == NULL) {
    return WEFT_STEP_GRAPH_NO_DEVICE;
  }
  if (pipeline->options.no_graph) {
    return WEFT_STEP_GRAPH_NOT_WANTED;
  }
  if (pipeline->options.check_payloads) {
    return WEFT_STEP_GRAPH_CHECKED;
  }
  for (uint32_t k = 0; k < executor->own_count; k++) {
    if (!executor->stages[k].impl->ops->replays) {
      return WEFT_STEP_GRAPH_STAGE;
    }
  }
  return WEFT_STEP_GRAPH_POSSIBLE;
}

enum weft_step_graph_refusal weft_step_graph_refuse(const struct weft_pipeline *pipeline) {
  const enum weft_step_graph_refusal always = weft_step_graph_refuse_always(pipeline);
  if (always != WEFT_STEP_GRAPH_POSSIBLE) {
    return always;
  }
  if (pipeline->want_outputs) {
    return WEFT_STEP_GRAPH_OUTPUTS;
  }
  for (uint32_t op = 0; op < WEFT_OP_COUNT; op++) {
    if (pipeline->executor.custom[op].function != NULL) {
      return WEFT_STEP_GRAPH_CUSTOM;
    }
  }
  return WEFT_STEP_GRAPH_POSSIBLE;
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

struct weft_step_graph_key weft_step_graph_key_of(const struct weft_pipeline *pipeline) {
  const struct weft_executor *executor = &pipeline->executor;
  const uint32_t count = pipeline->last_row->program->microbatch_count;
  struct weft_step_graph_key key;
  memset(&key, 0, sizeof key); /* compared as bytes */
  key.pipeline = pipeline;
  key.row = pipeline->last_row;
  key.losses = pipeline->feeds.losses;
  key.saved = executor->saved;
  for (uint32_t k = 0; k < pipeline->feeds.count; k++) {
    const struct weft_executor_stage *stage = pipeline->feeds.items[k].stage;
    key.batch = hash_tensors(stage->is_source ? stage->inputs : NULL, count, key.batch);
    key.batch = hash_tensors(stage->is_loss ? stage->targets : NULL, count, key.batch);
  }
  return key;
}

void weft_step_graph_explain(struct weft_pipeline *pipeline, const char *reason) {
  char line[700];
  if (reason != NULL && reason != pipeline->no_graph_reason && pipeline->options.log != NULL) {
    (void)snprintf(line, sizeof line, "step %" PRIu64 " is enqueued action by action: %s",
                   pipeline->step, reason);
    pipeline->options.log(pipeline->options.log_context, line);
  }
  pipeline->no_graph_reason = reason;
}
