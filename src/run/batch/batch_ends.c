/* See batch_ends.h. */
#include "run/batch/batch_ends.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

/* ---- Making ---- */

static bool has_streams(const struct weft_batch_ends *ends) {
  return ends->executor->device != NULL;
}

enum weft_status weft_batch_ends_init(struct weft_batch_ends *ends,
                                      const struct weft_allocator *allocator,
                                      struct weft_executor *executor, struct weft_error *error) {
  *ends = (struct weft_batch_ends){.allocator = allocator, .executor = executor};
  uint32_t count = 0, losses = 0;
  for (uint32_t k = 0; k < executor->own_count; k++) {
    count += executor->stages[k].is_source || executor->stages[k].is_loss;
    losses += executor->stages[k].is_loss;
  }
  ends->memory.allocator = allocator;
  ends->items = weft_arena_allocate(&ends->memory, count, sizeof *ends->items);
  ends->heads = weft_arena_allocate(&ends->memory, losses, sizeof *ends->heads);
  WEFT_TRY(weft_arena_status(&ends->memory, error));
  for (uint32_t k = 0; k < executor->own_count; k++) {
    struct weft_executor_stage *stage = &executor->stages[k];
    if (stage->is_source || stage->is_loss) {
      ends->items[ends->count++] = (struct weft_batch_end){.stage = stage,
                                                           .inputs.allocator = allocator,
                                                           .targets.allocator = allocator,
                                                           .outputs.allocator = allocator};
    }
  }
  ends->loss_count = losses;
  return WEFT_OK;
}

/* Losses of so many microbatches, and their sums. */
static size_t loss_numbers(const struct weft_batch_ends *ends, uint32_t microbatches) {
  return (size_t)microbatches * (ends->loss_count + (ends->loss_count > 1));
}

void weft_batch_ends_finish(struct weft_batch_ends *ends) {
  weft_batch_memory_finish(&ends->loss_memory, ends->allocator);
  for (uint32_t k = 0; k < ends->count; k++) {
    struct weft_batch_end *end = &ends->items[k];
    weft_batch_in_finish(&end->inputs);
    weft_batch_in_finish(&end->targets);
    weft_batch_out_finish(&end->outputs);
  }
  weft_arena_finish(&ends->memory);
  *ends = (struct weft_batch_ends){.count = 0};
}

/* ---- Beginning a step ---- */

static enum weft_status take_microbatches(struct weft_batch_in *in,
                                          const struct weft_tensors *ready,
                                          const struct weft_tensor *tensors, uint32_t count,
                                          const struct weft_chunk *chunks,
                                          uint32_t microbatch_count, const char *what,
                                          struct weft_error *error) {
  if (count > 0 && tensors == NULL && ready == NULL) {
    return weft_fail(error, WEFT_ERR_USAGE, "set batch.inputs and batch.targets, or their counts",
                     "batch.%s_count is %" PRIu32 ", and batch.%ss is NULL", what, count, what);
  }
  if (ready != NULL && tensors != NULL) {
    return weft_fail(error, WEFT_ERR_USAGE, "leave one of them out",
                     "%ss are given both whole and as microbatches", what);
  }
  return ready != NULL
             ? weft_batch_in_borrow(in, ready, microbatch_count, what, error)
             : weft_batch_in_split(in, tensors, count, chunks, microbatch_count, what, error);
}

/* The data of a stage: its own, or the batch's. */
static struct weft_stage_batch data_of(const struct weft_batch *batch, uint32_t stage) {
  for (uint32_t k = 0; k < batch->stage_count; k++) {
    if (batch->stages[k].stage == stage) {
      return batch->stages[k];
    }
  }
  return (struct weft_stage_batch){.stage = stage,
                                   .inputs = batch->inputs,
                                   .input_count = batch->input_count,
                                   .input_chunks = batch->input_chunks,
                                   .targets = batch->targets,
                                   .target_count = batch->target_count,
                                   .target_chunks = batch->target_chunks,
                                   .microbatch_inputs = batch->microbatch_inputs,
                                   .microbatch_targets = batch->microbatch_targets,
                                   .merges = batch->merges};
}

/* Every entry of batch.stages is about a stage that reads it, once. */
static enum weft_status check_stages(const struct weft_executor *executor,
                                     const struct weft_batch *batch, struct weft_error *error) {
  if (batch->stage_count > 0 && batch->stages == NULL) {
    return weft_fail(error, WEFT_ERR_USAGE, "set batch.stages, or its count to 0",
                     "batch.stage_count is %" PRIu32 ", and batch.stages is NULL",
                     batch->stage_count);
  }
  for (uint32_t k = 0; k < batch->stage_count; k++) {
    const uint32_t stage = batch->stages[k].stage;
    if (k > 0 && stage <= batch->stages[k - 1].stage) {
      return weft_fail(error, WEFT_ERR_USAGE, "list each stage once, in ascending order",
                       "batch.stages has stage %" PRIu32 " behind stage %" PRIu32, stage,
                       batch->stages[k - 1].stage);
    }
    if (stage >= executor->stage_count ||
        !(weft_graph_is_source(executor->graph, stage) ||
          weft_graph_is_loss(executor->graph, stage, executor->stage_count))) {
      return weft_fail(error, WEFT_ERR_USAGE,
                       "stages without in-edges read inputs, stages without out-edges targets",
                       "batch.stages has data for stage %" PRIu32 ", which %s", stage,
                       stage >= executor->stage_count ? "does not exist" : "reads none");
    }
  }
  return WEFT_OK;
}

/* The first loss of the pipeline. */
static uint32_t first_loss(const struct weft_executor *executor) {
  assert(executor->stage_count > 0);
  uint32_t stage = 0;
  while (!weft_graph_is_loss(executor->graph, stage, executor->stage_count)) {
    stage++;
  }
  return stage;
}

static enum weft_status check_wants(const struct weft_batch_ends *ends,
                                    const struct weft_batch *batch, const struct weft_row *row,
                                    struct weft_error *error) {
  const struct weft_executor *executor = ends->executor;
  if (ends->loss_count > 0 || (!batch->want_losses && !batch->want_outputs)) {
    return WEFT_OK;
  }
  const uint32_t loss = first_loss(executor);
  const char *what = batch->want_losses ? "losses" : "outputs";
  return weft_fail(
      error, WEFT_ERR_USAGE, "ask a rank with a stage without out-edges",
      "rank %" PRIu32 " is asked for %s, and has no loss; the first one (stage %" PRIu32
      ") is on rank %" PRIu32,
      executor->transport->rank, what, loss, weft_executor_rank_of(executor, row, loss));
}

/* Several stages may have data, so the message says which one's is wrong. */
static enum weft_status name_stage(const struct weft_batch_end *end, enum weft_status status,
                                   struct weft_error *error) {
  return status < 0 && error != NULL
             ? weft_fail(error, status, error->hint, "stage %" PRIu32 ": %s", end->stage->stage,
                         error->message)
             : status;
}

static enum weft_status split_batch(struct weft_batch_end *end, const struct weft_batch *batch,
                                    struct weft_error *error) {
  const struct weft_stage_batch data = data_of(batch, end->stage->stage);
  const uint32_t m = batch->microbatch_count;
  end->merges = data.merges;
  if (end->stage->is_source) {
    WEFT_TRY(take_microbatches(&end->inputs, data.microbatch_inputs, data.inputs, data.input_count,
                               data.input_chunks, m, "input", error));
  }
  return end->stage->is_loss
             ? take_microbatches(&end->targets, data.microbatch_targets, data.targets,
                                 data.target_count, data.target_chunks, m, "target", error)
             : WEFT_OK;
}

/* On a device with streams in memory that it accesses, too. */
static enum weft_status make_losses(struct weft_batch_ends *ends, uint32_t microbatches,
                                    struct weft_error *error) {
  struct weft_device *device = ends->executor->options->device;
  const size_t bytes = loss_numbers(ends, microbatches) * sizeof(double);
  if (bytes == 0) {
    return WEFT_OK;
  }
  WEFT_TRY(weft_batch_memory_reserve(&ends->loss_memory, ends->allocator, 0,
                                     has_streams(ends) ? device->ops->pinned(device) : NULL, bytes,
                                     error));
  ends->losses = memset(ends->loss_memory.data, 0, bytes);
  return WEFT_OK;
}

/* On a device with streams the stages find the batch there, at the same place in every step. */
static enum weft_status upload_batch(const struct weft_batch_ends *ends, struct weft_batch_end *end,
                                     struct weft_error *error) {
  struct weft_batch_in *const both[] = {&end->inputs, &end->targets};
  struct weft_device *device = ends->executor->options->device;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(both) && has_streams(ends); k++) {
    if (both[k]->items != NULL) {
      WEFT_TRY(device->ops->make_current(device, error));
      WEFT_TRY(weft_batch_in_upload(both[k], device, ends->executor->device->stream, error));
    }
  }
  end->stage->inputs = end->inputs.items;
  end->stage->targets = end->targets.items;
  return WEFT_OK;
}

enum weft_status weft_batch_ends_begin(struct weft_batch_ends *ends, const struct weft_batch *batch,
                                       const struct weft_row *row, struct weft_error *error) {
  assert(batch != NULL && row->own_count == ends->executor->own_count);
  struct weft_device *device = ends->executor->options->device;
  const uint32_t m = batch->microbatch_count;
  WEFT_TRY(check_stages(ends->executor, batch, error));
  for (uint32_t k = 0; k < ends->count; k++) {
    struct weft_batch_end *end = &ends->items[k];
    WEFT_TRY(name_stage(end, split_batch(end, batch, error), error));
  }
  WEFT_TRY(check_wants(ends, batch, row, error));
  WEFT_TRY(make_losses(ends, m, error));
  ends->want_losses = batch->want_losses;
  ends->want_outputs = batch->want_outputs;
  double *losses = ends->losses;
  for (uint32_t k = 0; k < ends->count; k++) {
    struct weft_batch_end *end = &ends->items[k];
    end->stage->outputs = NULL;
    if (end->stage->is_loss) {
      end->stage->losses = losses;
      losses += m;
      if (batch->want_outputs) {
        end->stage->outputs = &end->outputs;
        end->outputs.pinned = has_streams(ends) ? device->ops->pinned(device) : NULL;
        WEFT_TRY(weft_batch_out_begin(
            &end->outputs,
            &ends->executor->options->boundaries[end->stage->ports[end->stage->in_count].boundary],
            m, error));
      }
    }
  }
  for (uint32_t k = 0; k < ends->count; k++) {
    WEFT_TRY(upload_batch(ends, &ends->items[k], error));
  }
  return WEFT_OK;
}

/* ---- Ending it ---- */

/* The sum over the rank's losses, in ascending order of their stages. */
static const double *sum_losses(const struct weft_batch_ends *ends, uint32_t microbatches) {
  if (ends->loss_count == 1) {
    return ends->losses;
  }
  double *sums = ends->losses + (size_t)ends->loss_count * microbatches;
  memcpy(sums, ends->losses, microbatches * sizeof *sums);
  for (uint32_t h = 1; h < ends->loss_count; h++) {
    for (uint32_t mb = 0; mb < microbatches; mb++) {
      sums[mb] += ends->losses[(size_t)h * microbatches + mb];
    }
  }
  return sums;
}

enum weft_status weft_batch_ends_end(struct weft_batch_ends *ends, uint32_t microbatch_count,
                                     struct weft_step_result *result, struct weft_error *error) {
  assert(result != NULL);
  uint32_t h = 0;
  if (!ends->want_losses && !ends->want_outputs) {
    return WEFT_OK;
  }
  for (uint32_t k = 0; k < ends->count; k++) {
    struct weft_batch_end *end = &ends->items[k];
    if (!end->stage->is_loss) {
      continue;
    }
    struct weft_head_result *head = &ends->heads[h++];
    *head = (struct weft_head_result){.stage = end->stage->stage,
                                      .losses = ends->want_losses ? end->stage->losses : NULL};
    if (ends->want_outputs) {
      WEFT_TRY(name_stage(
          end, weft_batch_out_merge(&end->outputs, end->merges, &head->outputs, error), error));
    }
  }
  assert(h == ends->loss_count && h > 0);
  result->head_count = h;
  result->heads = ends->heads;
  result->outputs = ends->heads[0].outputs;
  if (ends->want_losses) {
    result->loss_count = microbatch_count;
    result->losses = sum_losses(ends, microbatch_count);
  }
  return WEFT_OK;
}
