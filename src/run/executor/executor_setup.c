/* Stages of a rank, and what a row needs of them; see executor.h. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/spec.h>
#include <weft/support.h>

#include "run/executor/executor.h"

/* ---- Stages ---- */

static enum weft_status check_stage(const struct weft_executor *executor, uint32_t stage,
                                    struct weft_error *error) {
  const struct weft_stage *impl = executor->options->stages[stage];
  if (impl == NULL || impl->ops == NULL || impl->ops->forward == NULL) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "options.stages has an entry per stage; this rank's "
                     "own must be there",
                     "rank %" PRIu32 " runs stage %" PRIu32 ", and %s", executor->transport->rank,
                     stage, impl == NULL ? "it is not given" : "it has no forward function");
  }
  return WEFT_OK;
}

/* ---- Making ---- */

static enum weft_status allocate_stages(struct weft_executor *executor,
                                        const struct weft_row *first, struct weft_error *error) {
  executor->stage_count = first->program->stage_count;
  executor->placement_hash = first->placement_hash;
  executor->graph = weft_graph_hold(first->program->graph);
  executor->memory.allocator = executor->allocator;
  executor->stages =
      weft_arena_allocate(&executor->memory, first->own_count, sizeof *executor->stages);
  executor->ports =
      weft_arena_allocate(&executor->memory, first->port_count, sizeof *executor->ports);
  executor->pools = weft_arena_allocate(&executor->memory, 2 * (size_t)first->port_count,
                                        sizeof *executor->pools);
  WEFT_TRY(weft_arena_status(&executor->memory, error));
  executor->own_count = first->own_count;
  executor->port_count = first->port_count;
  for (uint32_t n = 0; n < 2 * executor->port_count; n++) {
    weft_buffer_pool_init(&executor->pools[n], executor->allocator, executor->options->device);
  }
  return WEFT_OK;
}

static enum weft_status make_stages(struct weft_executor *executor, const struct weft_row *first,
                                    struct weft_error *error) {
  WEFT_TRY(allocate_stages(executor, first, error));
  executor->has_pairs = true;
  for (uint32_t k = 0; k < executor->own_count; k++) {
    struct weft_executor_stage *stage = &executor->stages[k];
    stage->stage = first->own_stages[k];
    stage->needs = &first->stages[k];
    stage->in_count = stage->needs->in_count;
    stage->port_count = stage->needs->port_count;
    stage->ports = &executor->ports[stage->needs->first_port];
    executor->has_pairs = executor->has_pairs && stage->port_count == 2;
  }
  for (uint32_t k = 0; k < executor->own_count; k++) {
    struct weft_executor_stage *stage = &executor->stages[k];
    WEFT_TRY(check_stage(executor, stage->stage, error));
    weft_executor_link_stage(executor, first, stage);
    if (stage->in_count > 1 || stage->output_count > 1) {
      const uint32_t views = 2 * (stage->in_count + stage->output_count);
      executor->view_count = views > executor->view_count ? views : executor->view_count;
    }
  }
  WEFT_TRY(weft_executor_open_device(executor, error));
  for (uint32_t k = 0; k < executor->own_count; k++) {
    WEFT_TRY(weft_executor_open_pools(executor, first, &executor->stages[k], error));
  }
  return WEFT_OK;
}

/* An error is reported again to the executor when the stage has returned. */
static void progress(void *context) {
  struct weft_transport *transport = context;
  struct weft_error error;
  if (transport->ops->progress_from_compute != NULL) {
    transport->ops->progress_from_compute(transport);
  } else {
    (void)transport->ops->progress(transport, &error);
  }
}

static void progress_nothing(void *context) { (void)context; }

enum weft_status weft_executor_init(struct weft_executor *executor,
                                    const struct weft_allocator *allocator,
                                    struct weft_transport *transport,
                                    const struct weft_pipeline_options *options,
                                    const struct weft_row *first, struct weft_error *error) {
  static struct weft_tensors none; /* never written: it has no tensors */
  assert(transport->rank < transport->rank_count && options->boundary_count > 0);
  *executor = (struct weft_executor){
      .allocator = allocator,
      .transport = transport,
      .options = options,
      .row_waits = weft_send_model_info(options->comm)->row_waits,
      .send_capacity = weft_send_model_capacity(options->comm, options->slots),
      .status = transport->ops->rank_status(transport, transport->rank),
      .call = {.input_count = 1,
               .output_count = 1,
               .inputs = &none,
               .outputs = &none,
               .targets = &none,
               .output_grads = &none,
               .input_grads = &none,
               .device = options->device,
               .progress = transport->ops->async_progress ? progress_nothing : progress,
               .progress_context = transport->ops->async_progress ? NULL : transport}};
  WEFT_TRY(make_stages(executor, first, error));
  WEFT_TRY(weft_executor_fit(executor, first, error));
  return weft_executor_open_channels(executor, first, error);
}

/* ---- Fitting ---- */

/* The schedules are those of the registry that do not split (tests/run/test_pipeline.c
 * compares). */
static enum weft_status check_ops(const struct weft_executor *executor,
                                  const struct weft_executor_stage *stage,
                                  const struct weft_row_stage *needs, struct weft_error *error) {
  assert(stage->impl != NULL && stage->impl->ops != NULL);
  const struct weft_stage_ops *ops = stage->impl->ops;
  const char *name = ops->name != NULL ? ops->name : "unnamed";
  const bool can_split = ops->backward_input != NULL && ops->backward_weight != NULL;
  const char *found = ops->backward_input != NULL    ? "backward_input and no backward_weight"
                      : ops->backward_weight != NULL ? "backward_weight and no backward_input"
                      : ops->backward != NULL        ? "backward only"
                                                     : "no backward";
  if (!needs->has_backward || !stage->wants_backward) {
    return WEFT_OK;
  }
  if (needs->splits && !can_split) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "give it backward_input and backward_weight, or take a schedule that does not "
                     "split: GPipe, 1F1B, Eager1F1B, LoopedBFS, Interleaved1F1B",
                     "the schedule splits the backward of stage %" PRIu32
                     " into I and W, and its %s stage has %s",
                     stage->stage, name, found);
  }
  if (ops->backward == NULL && !can_split) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "give it backward, or both backward_input and backward_weight, or run eval "
                     "only",
                     "the schedule trains stage %" PRIu32 ", and its %s stage has %s", stage->stage,
                     name, found);
  }
  if (executor->options->scale_grads && ops->scale_grads == NULL) {
    return weft_fail(
        error, WEFT_ERR_USAGE, "give it scale_grads, or set options.scale_grads to false",
        "gradients are to be scaled by 1/m, and the %s stage %" PRIu32 " has no scale_grads", name,
        stage->stage);
  }
  return WEFT_OK;
}

/* Of an edge inside the rank, the stage that holds a message counts it. */
static enum weft_status fit_pools(const struct weft_executor_stage *stage,
                                  const struct weft_row_port *needs, struct weft_error *error) {
  assert(stage->in_count >= 1 && stage->port_count > stage->in_count);
  for (uint32_t n = 0; n < stage->port_count; n++) {
    const struct weft_port *port = &stage->ports[n];
    const bool in = n < stage->in_count;
    if (port->activations != NULL && (port->near == NULL || in)) {
      WEFT_TRY(weft_buffer_pool_grow(port->activations, needs[n].activations, error));
    }
    if (port->gradients != NULL && (port->near == NULL || !in)) {
      WEFT_TRY(weft_buffer_pool_grow(port->gradients, needs[n].gradients, error));
    }
  }
  return WEFT_OK;
}

/* All slots are free. */
static enum weft_status set_slots(struct weft_executor *executor, struct weft_executor_stage *stage,
                                  uint32_t count, struct weft_error *error) {
  assert(stage->free_slot_count == stage->slot_count); /* no microbatch is in flight */
  if (stage->impl->ops->prepare != NULL) {
    weft_rank_status_enter(executor->status);
    const enum weft_status status = stage->impl->ops->prepare(stage->impl, count, error);
    weft_rank_status_leave(executor->status);
    WEFT_TRY(status);
  }
  uint32_t *slots = weft_array_allocate(executor->allocator, count, sizeof *slots);
  if (slots == NULL) {
    return weft_fail_memory(error, count * sizeof *slots);
  }
  weft_array_free(executor->allocator, stage->free_slots, stage->slot_count, sizeof *slots);
  for (uint32_t k = 0; k < count; k++) {
    slots[k] = count - 1 - k; /* slot 0 first */
  }
  stage->free_slots = slots;
  stage->free_slot_count = stage->slot_count = count;
  return WEFT_OK;
}

static enum weft_status set_saved(struct weft_executor *executor, uint64_t bytes,
                                  struct weft_error *error) {
  struct weft_device *device = executor->options->device;
  weft_device_free(device, executor->allocator, executor->saved, executor->saved_bytes);
  executor->saved = NULL;
  executor->saved_bytes = 0;
  if (bytes > 0) {
    executor->saved = weft_device_allocate(device, executor->allocator, bytes);
    if (executor->saved == NULL) {
      return weft_device_fail_allocation(device, bytes, error);
    }
    executor->saved_bytes = bytes;
  }
  return WEFT_OK;
}

/* What cells and collectives in progress need. */
static enum weft_status fit_actions(struct weft_executor *executor, const struct weft_row *row,
                                    struct weft_error *error) {
  struct weft_arena *memory = &executor->action_memory;
  uint32_t count = executor->sub_action_capacity, collectives = executor->collective_capacity;
  if (row->sub_actions_max <= count && row->collectives <= collectives) {
    return WEFT_OK;
  }
  count = row->sub_actions_max > count ? row->sub_actions_max : count;
  collectives = row->collectives > collectives ? row->collectives : collectives;
  weft_arena_finish(memory);
  executor->sub_action_capacity = executor->collective_capacity = 0;
  memory->allocator = executor->allocator;
  executor->sub_actions = weft_arena_allocate(memory, count, sizeof *executor->sub_actions);
  struct weft_tensors *views =
      weft_arena_allocate(memory, (size_t)count * executor->view_count, sizeof *views);
  executor->custom_actions = weft_arena_allocate(memory, count, sizeof(void *));
  executor->custom_stages = weft_arena_allocate(memory, count, sizeof(void *));
  executor->custom_calls = weft_arena_allocate(memory, count, sizeof(void *));
  executor->collectives = weft_arena_allocate(memory, collectives, sizeof *executor->collectives);
  WEFT_TRY(weft_arena_status(memory, error));
  for (uint32_t k = 0; k < count; k++) {
    executor->sub_actions[k].views = &views[(size_t)k * executor->view_count];
  }
  executor->sub_action_capacity = count;
  executor->collective_capacity = collectives;
  return WEFT_OK;
}

static enum weft_status check_same_stages(const struct weft_executor *executor,
                                          const struct weft_row *row, struct weft_error *error) {
  if (row->program->stage_count != executor->stage_count ||
      row->placement_hash != executor->placement_hash) {
    return weft_fail(error, WEFT_ERR_USAGE, "a pipeline keeps its stages where they are",
                     "the program for %" PRIu32
                     " microbatches puts stages on other ranks than the "
                     "first program did",
                     row->program->microbatch_count);
  }
  if (!weft_graph_equal(row->program->graph, executor->graph)) {
    return weft_fail(error, WEFT_ERR_USAGE, "a pipeline keeps its graph",
                     "the program for %" PRIu32
                     " microbatches has other edges between its stages than the first program has",
                     row->program->microbatch_count);
  }
  return WEFT_OK;
}

enum weft_status weft_executor_check(const struct weft_executor *executor,
                                     const struct weft_row *row, struct weft_error *error) {
  WEFT_TRY(check_same_stages(executor, row, error));
  for (uint32_t k = 0; k < executor->own_count; k++) {
    const struct weft_executor_stage *stage = &executor->stages[k];
    WEFT_TRY(check_ops(executor, stage, &row->stages[k], error));
  }
  return WEFT_OK;
}

enum weft_status weft_executor_fit(struct weft_executor *executor, const struct weft_row *row,
                                   struct weft_error *error) {
  WEFT_TRY(weft_executor_check(executor, row, error));
  WEFT_TRY(fit_actions(executor, row, error));
  WEFT_TRY(weft_executor_fit_device(executor, row, error));
  for (uint32_t k = 0; k < executor->own_count; k++) {
    struct weft_executor_stage *stage = &executor->stages[k];
    const struct weft_row_stage *needs = &row->stages[k];
    WEFT_TRY(fit_pools(stage, &row->ports[needs->first_port], error));
    if (needs->slots > stage->slot_count) {
      WEFT_TRY(set_slots(executor, stage, needs->slots, error));
    }
  }
  return row->saved_bytes > executor->saved_bytes ? set_saved(executor, row->saved_bytes, error)
                                                  : WEFT_OK;
}

enum weft_status weft_executor_refit(struct weft_executor *executor, const struct weft_row *row,
                                     struct weft_error *error) {
  if (executor->device != NULL) {
    executor->device->has_unread_times = false; /* they went with the rows */
  }
  if (row->saved_bytes < executor->saved_bytes) {
    WEFT_TRY(set_saved(executor, row->saved_bytes, error));
  }
  for (uint32_t k = 0; k < executor->own_count; k++) {
    struct weft_executor_stage *stage = &executor->stages[k];
    const uint32_t count = row->stages[k].slots;
    if (count < stage->slot_count && count > 0) {
      WEFT_TRY(set_slots(executor, stage, count, error));
    }
  }
  return weft_executor_fit(executor, row, error);
}

/* ---- The end ---- */

/* Cancels what the transport still has, after a failure. */
static void cancel_pool(struct weft_executor *executor, struct weft_buffer_pool *pool) {
  for (struct weft_buffer *buffer = pool->all; buffer != NULL; buffer = buffer->older) {
    if (buffer->under_way) {
      executor->transport->ops->cancel(executor->transport, &buffer->message);
      buffer->under_way = false;
    }
  }
}

void weft_executor_finish(struct weft_executor *executor) {
  const struct weft_allocator *allocator = executor->allocator;
  for (uint32_t k = 0; k < executor->own_count; k++) {
    const struct weft_executor_stage *stage = &executor->stages[k];
    weft_array_free(allocator, stage->free_slots, stage->slot_count, sizeof *stage->free_slots);
  }
  for (uint32_t n = 0; n < 2 * executor->port_count; n++) {
    cancel_pool(executor, &executor->pools[n]);
    weft_buffer_pool_finish(&executor->pools[n]);
  }
  if (executor->saved != NULL) {
    weft_device_free(executor->options->device, allocator, executor->saved, executor->saved_bytes);
  }
  weft_executor_close_device(executor);
  weft_arena_finish(&executor->action_memory);
  weft_arena_finish(&executor->memory);
  weft_graph_destroy(executor->graph);
}
