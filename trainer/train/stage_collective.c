/* The collective actions of a stage, with its replicas and with the stage that shares weights:
 * UNSHARD, RESHARD, REDUCE_GRAD, TIE_GRAD. Each starts collectives, one per layer, and returns
 * WEFT_IN_PROGRESS until all are done, so that the pipeline can compute meanwhile. */
#include <assert.h>
#include <weft/support.h>

#include "trainer/train/stage.h"

static struct weft_gpt_stage *stage_of(struct weft_stage *stage) {
  return (struct weft_gpt_stage *)stage;
}

/* ---- Replicas ---- */

static enum weft_status start_collective(struct weft_gpt_stage *stage, uint32_t k,
                                         struct weft_collective collective,
                                         struct weft_error *error) {
  assert(k < stage->layer_count);
  struct weft_group *group = stage->context->group;
  stage->collectives[k] = collective;
  return group->ops->start(group, &stage->collectives[k], error);
}

/* Tests the stage's collectives in order. WEFT_OK: all are done. */
static enum weft_status finish_collectives(struct weft_gpt_stage *stage, struct weft_error *error) {
  struct weft_group *group = stage->context->group;
  while (stage->collectives_done < stage->layer_count) {
    const enum weft_status status =
        group->ops->test(group, &stage->collectives[stage->collectives_done], error);
    if (status != WEFT_OK) {
      return status;
    }
    stage->collectives_done++;
  }
  return WEFT_OK;
}

/* All replicas' slices, rounded, straight from their memory: nothing changes it in a step. */
static enum weft_status enqueue_unshard(const struct weft_gpt_stage *stage,
                                        struct weft_stream *stream, struct weft_error *error) {
  const struct weft_gpt_stage_context *context = stage->context;
  for (uint32_t d = 0; d < context->sharding.replicas; d++) {
    const struct weft_gpt_stage *peer = context->peer(context->peer_context, stage, d);
    for (uint32_t k = 0; k < stage->layer_count; k++) {
      const struct weft_gpt_layer_shard *from = &peer->memory.shards[k];
      uint16_t *to = (uint16_t *)stage->memory.shards[k].rounded + from->slice_begin;
      WEFT_TRY(context->compute->ops->enqueue_round(context->compute, from->slice_floats,
                                                    from->parameters, to, stream, error));
    }
  }
  return WEFT_OK;
}

/* A slice, or all of a layer's rounded parameters, between the GPU and the host. In the stream: other
 * streams may have transfers that wait for other ranks. A copy to the host is complete at return,
 * because that memory is pageable. */
static enum weft_status copy_rounded(const struct weft_gpt_stage *stage, uint16_t *device,
                                     uint16_t *host, uint64_t count, bool to_host,
                                     struct weft_stream *stream, struct weft_error *error) {
  struct weft_device *gpu = stage->context->compute->device;
  return weft_copy(&(struct weft_copy){.to = to_host ? host : device,
                                       .to_device = to_host ? NULL : gpu,
                                       .from = to_host ? device : host,
                                       .from_device = to_host ? gpu : NULL,
                                       .row_bytes = count * sizeof *host,
                                       .rows = 1},
                   stream, error);
}

/* This replica's slices, rounded, in their places among all of them. */
static enum weft_status round_slices(const struct weft_gpt_stage *stage, struct weft_stream *stream,
                                     struct weft_error *error) {
  struct weft_gpt_compute *compute = stage->context->compute;
  for (uint32_t k = 0; k < stage->layer_count; k++) {
    const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
    uint16_t *slice = (uint16_t *)shard->rounded + shard->slice_begin;
    WEFT_TRY(compute->ops->enqueue_round(compute, shard->slice_floats, shard->parameters, slice,
                                         stream, error));
  }
  return WEFT_OK;
}

/* The replicas are in other processes, and the group gathers on the GPU, in the stage's stream. */
static enum weft_status unshard_enqueued(struct weft_gpt_stage *stage,
                                         const struct weft_stage_call *call,
                                         struct weft_error *error) {
  WEFT_TRY(round_slices(stage, call->stream, error));
  stage->collectives_done = 0;
  for (uint32_t k = 0; k < stage->layer_count; k++) {
    const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
    uint16_t *rounded = shard->rounded;
    WEFT_TRY(
        start_collective(stage, k,
                         (struct weft_collective){.kind = WEFT_ALL_GATHER,
                                                  .from = rounded + shard->slice_begin,
                                                  .to = rounded,
                                                  .device = stage->context->compute->device,
                                                  .bytes = shard->slice_floats * sizeof *rounded,
                                                  .stream = call->stream,
                                                  .recorded = call->recorded},
                         error));
  }
  return finish_collectives(stage, error);
}

/* The same through memory of the host. */
static enum weft_status unshard_through_host(struct weft_gpt_stage *stage,
                                             struct weft_stage_call *call,
                                             struct weft_error *error) {
  const struct weft_gpt_stage_memory *memory = &stage->memory;
  if (!call->again) {
    WEFT_TRY(round_slices(stage, call->stream, error));
  }
  stage->collectives_done = call->again ? stage->collectives_done : 0;
  for (uint32_t k = 0; !call->again && k < stage->layer_count; k++) {
    const struct weft_gpt_layer_shard *shard = &memory->shards[k];
    uint16_t *host = stage->gathered + memory->offsets[k];
    WEFT_TRY(copy_rounded(stage, (uint16_t *)shard->rounded + shard->slice_begin,
                          host + shard->slice_begin, shard->slice_floats, true, call->stream,
                          error));
    WEFT_TRY(start_collective(stage, k,
                              (struct weft_collective){.kind = WEFT_ALL_GATHER,
                                                       .from = host + shard->slice_begin,
                                                       .to = host,
                                                       .bytes = shard->slice_floats * sizeof *host},
                              error));
  }
  const enum weft_status status = finish_collectives(stage, error);
  for (uint32_t k = 0; status == WEFT_OK && k < stage->layer_count; k++) {
    WEFT_TRY(copy_rounded(stage, memory->shards[k].rounded, stage->gathered + memory->offsets[k],
                          memory->offsets[k + 1] - memory->offsets[k], false, call->stream, error));
  }
  return status;
}

enum weft_status weft_gpt_stage_unshard(struct weft_stage *base, struct weft_stage_call *call,
                                        struct weft_error *error) {
  assert(call != NULL);
  struct weft_gpt_stage *stage = stage_of(base);
  if (stage->context->sharding.mode != WEFT_GPT_SHARD_FULL) {
    return WEFT_OK;
  }
  if (!call->again) {
    WEFT_TRY(weft_gpt_stage_memory_acquire_parameters(&stage->memory, error));
  }
  if (stage->context->compute->ops->enqueues) {
    return stage->context->group == NULL ? enqueue_unshard(stage, call->stream, error)
           : stage->gathered == NULL     ? unshard_enqueued(stage, call, error)
                                         : unshard_through_host(stage, call, error);
  }
  if (!call->again) {
    stage->collectives_done = 0;
    for (uint32_t k = 0; k < stage->layer_count; k++) {
      const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
      const struct weft_collective gather = {.kind = WEFT_ALL_GATHER,
                                             .from = shard->parameters,
                                             .to = stage->layers[k].parameters,
                                             .bytes = shard->slice_floats * sizeof(float)};
      WEFT_TRY(start_collective(stage, k, gather, error));
    }
  }
  return finish_collectives(stage, error);
}

enum weft_status weft_gpt_stage_reshard(struct weft_stage *base, struct weft_stage_call *call,
                                        struct weft_error *error) {
  (void)call;
  (void)error;
  weft_gpt_stage_memory_release_parameters(&stage_of(base)->memory);
  return WEFT_OK;
}

static enum weft_status start_reducing(struct weft_gpt_stage *stage, struct weft_error *error) {
  const bool all = stage->context->sharding.mode == WEFT_GPT_SHARD_NONE;
  stage->collectives_done = 0;
  for (uint32_t k = 0; k < stage->layer_count; k++) {
    const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
    const struct weft_collective sum = {.kind = all ? WEFT_ALL_REDUCE : WEFT_REDUCE_SCATTER,
                                        .from = stage->layers[k].gradients,
                                        .to = shard->gradients,
                                        .bytes = shard->floats * sizeof(float)};
    WEFT_TRY(start_collective(stage, k, sum, error));
  }
  return WEFT_OK;
}

static enum weft_status reduce(struct weft_gpt_stage *stage, bool again, struct weft_error *error) {
  if (stage->context->group == NULL || stage->context->reduces_at_end) {
    return WEFT_OK;
  }
  if (!again) {
    WEFT_TRY(weft_gpt_stage_memory_acquire_gradients(&stage->memory, NULL, error));
    WEFT_TRY(start_reducing(stage, error));
  }
  const enum weft_status status = finish_collectives(stage, error);
  if (status == WEFT_OK) {
    weft_gpt_stage_memory_release_gradients(&stage->memory);
  }
  return status;
}

/* Tied gradients must be summed before. */
static bool waits_for_tie(const struct weft_gpt_stage *stage) {
  const struct weft_gpt_tie *tie = stage->context->tie;
  return tie != NULL && tie->group == NULL && (stage == tie->first || stage == tie->last) &&
         !(tie->first_ready && tie->last_ready);
}

enum weft_status weft_gpt_stage_reduce_grad(struct weft_stage *base, struct weft_stage_call *call,
                                            struct weft_error *error) {
  assert(call != NULL);
  struct weft_gpt_stage *stage = stage_of(base);
  if (!call->again && waits_for_tie(stage)) {
    stage->reduces_later = true;
    return WEFT_OK;
  }
  return reduce(stage, call->again, error);
}

/* ---- Tied weights ---- */

void weft_gpt_tied_range(const struct weft_gpt_config *config, bool head, uint64_t *offset,
                         uint64_t *count) {
  assert(offset != NULL && count != NULL);
  struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX];
  (void)weft_gpt_layer_parameters(config, head ? config->blocks + 1 : 0, parameters);
  *offset = parameters[head ? WEFT_GPT_LM_HEAD_WEIGHT : WEFT_GPT_WTE].offset;
  *count = parameters[head ? WEFT_GPT_LM_HEAD_WEIGHT : WEFT_GPT_WTE].count;
}

float *weft_gpt_tied_gradient(const struct weft_gpt_stage *stage, bool head, uint64_t *count) {
  uint64_t offset;
  weft_gpt_tied_range(stage->config, head, &offset, count);
  const uint32_t k = head ? stage->config->blocks + 1 - stage->first_layer : 0;
  return stage->layers[k].gradients + offset;
}

/* The other stage is on another rank. */
static enum weft_status tie_with_peer(struct weft_gpt_tie *tie, bool again,
                                      struct weft_error *error) {
  struct weft_group *group = tie->group;
  if (!again) {
    uint64_t count;
    float *gradient = tie->first != NULL ? weft_gpt_tied_gradient(tie->first, false, &count)
                                         : weft_gpt_tied_gradient(tie->last, true, &count);
    tie->collective = (struct weft_collective){.kind = WEFT_ALL_REDUCE,
                                               .from = gradient,
                                               .to = gradient,
                                               .bytes = count * sizeof *gradient};
    WEFT_TRY(group->ops->start(group, &tie->collective, error));
  }
  return group->ops->test(group, &tie->collective, error);
}

/* `other`: where work is enqueued, the gradient of the other stage is complete. */
static enum weft_status tie_here(const struct weft_gpt_tie *tie, struct weft_gpt_compute *compute,
                                 struct weft_device_event *other, struct weft_stream *stream,
                                 struct weft_error *error) {
  uint64_t count;
  float *embedding = weft_gpt_tied_gradient(tie->first, false, &count);
  float *head = weft_gpt_tied_gradient(tie->last, true, &count);
  if (other != NULL) {
    WEFT_TRY(compute->device->ops->event_wait(compute->device, other, stream, error));
  }
  return compute->ops->tie(compute, count, embedding, head, stream, error);
}

/* Both stages are in reach, on this rank or on GPUs of this process: the second to come adds up,
 * and then reduces for the one that had to wait. */
static enum weft_status tie_with_own(struct weft_gpt_tie *tie, const struct weft_gpt_stage *stage,
                                     bool again, struct weft_stream *stream,
                                     struct weft_error *error) {
  assert(tie->first == stage || tie->last == stage);
  struct weft_gpt_compute *compute = stage->context->compute;
  struct weft_gpt_stage *other = stage == tie->first ? tie->last : tie->first;
  if (!again) {
    tie->first_ready = tie->first_ready || stage == tie->first;
    tie->last_ready = tie->last_ready || stage == tie->last;
    if (!tie->first_ready || !tie->last_ready) {
      struct weft_device_event *event = tie->events[stage == tie->last];
      return event != NULL
                 ? compute->device->ops->event_record(compute->device, event, stream, error)
                 : WEFT_OK;
    }
    WEFT_TRY(tie_here(tie, compute, tie->events[stage == tie->first], stream, error));
  }
  if (!other->reduces_later) {
    return WEFT_OK;
  }
  const enum weft_status status = reduce(other, again, error);
  other->reduces_later = status == WEFT_IN_PROGRESS;
  return status;
}

enum weft_status weft_gpt_stage_tie_grad(struct weft_stage *base, struct weft_stage_call *call,
                                         struct weft_error *error) {
  struct weft_gpt_stage *stage = stage_of(base);
  struct weft_gpt_tie *tie = stage->context->tie;
  if (tie == NULL || (stage != tie->first && stage != tie->last)) {
    return WEFT_OK;
  }
  if (tie->group != NULL && stage->context->reduces_at_end) {
    return WEFT_OK;
  }
  return tie->group != NULL ? tie_with_peer(tie, call->again, error)
                            : tie_with_own(tie, stage, call->again, call->stream, error);
}
