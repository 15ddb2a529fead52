/* See stage_feed.h. */
#include "run/batch/stage_feed.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

/* ---- Making ---- */

static bool has_streams(const struct weft_stage_feeds *feeds) {
  return feeds->executor->device != NULL;
}

enum weft_status weft_stage_feeds_init(struct weft_stage_feeds *feeds,
                                       const struct weft_allocator *allocator,
                                       struct weft_executor *executor, struct weft_error *error) {
  *feeds = (struct weft_stage_feeds){.allocator = allocator, .executor = executor};
  uint32_t count = 0, losses = 0;
  for (uint32_t k = 0; k < executor->own_count; k++) {
    count += executor->stages[k].is_source || executor->stages[k].is_loss;
    losses += executor->stages[k].is_loss;
  }
  feeds->items = weft_array_allocate_zero(allocator, count, sizeof *feeds->items);
  if (feeds->items == NULL) {
    return weft_fail_memory(error, count * sizeof *feeds->items);
  }
  for (uint32_t k = 0; k < executor->own_count; k++) {
    struct weft_executor_stage *stage = &executor->stages[k];
    if (stage->is_source || stage->is_loss) {
      feeds->items[feeds->count++] = (struct weft_stage_feed){.stage = stage,
                                                              .inputs.allocator = allocator,
                                                              .targets.allocator = allocator,
                                                              .outputs.allocator = allocator};
    }
  }
  feeds->heads = weft_array_allocate_zero(allocator, losses, sizeof *feeds->heads);
  if (feeds->heads == NULL) {
    return weft_fail_memory(error, losses * sizeof *feeds->heads);
  }
  feeds->loss_count = losses;
  return WEFT_OK;
}

/* Losses of so many microbatches, and their sums. */
static size_t loss_numbers(const struct weft_stage_feeds *feeds, uint32_t microbatches) {
  return (size_t)microbatches * (feeds->loss_count + (feeds->loss_count > 1));
}

static void free_losses(struct weft_stage_feeds *feeds) {
  if (feeds->losses == NULL) {
    return;
  }
  if (has_streams(feeds)) {
    struct weft_device *device = feeds->executor->options->device;
    device->ops->free_host(device, feeds->losses);
  } else {
    weft_array_free(feeds->allocator, feeds->losses, loss_numbers(feeds, feeds->loss_room),
                    sizeof *feeds->losses);
  }
  feeds->losses = NULL;
}

void weft_stage_feeds_finish(struct weft_stage_feeds *feeds) {
  const struct weft_allocator *allocator = feeds->allocator;
  free_losses(feeds);
  for (uint32_t k = 0; k < feeds->count; k++) {
    struct weft_stage_feed *feed = &feeds->items[k];
    weft_batch_upload_finish(&feed->uploaded_inputs, allocator);
    weft_batch_upload_finish(&feed->uploaded_targets, allocator);
    weft_batch_split_finish(&feed->inputs);
    weft_batch_split_finish(&feed->targets);
    weft_batch_merge_finish(&feed->outputs);
  }
  weft_array_free(allocator, feeds->items, feeds->count, sizeof *feeds->items);
  weft_array_free(allocator, feeds->heads, feeds->loss_count, sizeof *feeds->heads);
  *feeds = (struct weft_stage_feeds){.count = 0};
}

/* ---- Beginning a step ---- */

static enum weft_status take_microbatches(struct weft_batch_split *mb,
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
             ? weft_batch_split_borrow(mb, ready, microbatch_count, what, error)
             : weft_batch_split_make(mb, tensors, count, chunks, microbatch_count, what, error);
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

static bool is_end(const struct weft_executor *executor, uint32_t stage) {
  return weft_graph_is_source(executor->graph, stage) ||
         weft_graph_is_loss(executor->graph, stage, executor->stage_count);
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
    if (stage >= executor->stage_count || !is_end(executor, stage)) {
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

static enum weft_status check_wants(const struct weft_stage_feeds *feeds,
                                    const struct weft_batch *batch, const struct weft_row *row,
                                    struct weft_error *error) {
  const struct weft_executor *executor = feeds->executor;
  if (feeds->loss_count > 0 || (!batch->want_losses && !batch->want_outputs)) {
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
static enum weft_status name_stage(const struct weft_stage_feed *feed, enum weft_status status,
                                   struct weft_error *error) {
  return status < 0 && error != NULL
             ? weft_fail(error, status, error->hint, "stage %" PRIu32 ": %s", feed->stage->stage,
                         error->message)
             : status;
}

static enum weft_status split(struct weft_stage_feed *feed, const struct weft_batch *batch,
                              struct weft_error *error) {
  const struct weft_stage_batch data = data_of(batch, feed->stage->stage);
  const uint32_t m = batch->microbatch_count;
  feed->merges = data.merges;
  if (feed->stage->is_source) {
    WEFT_TRY(take_microbatches(&feed->inputs, data.microbatch_inputs, data.inputs, data.input_count,
                               data.input_chunks, m, "input", error));
  }
  return feed->stage->is_loss
             ? take_microbatches(&feed->targets, data.microbatch_targets, data.targets,
                                 data.target_count, data.target_chunks, m, "target", error)
             : WEFT_OK;
}

static enum weft_status make_losses(struct weft_stage_feeds *feeds, uint32_t microbatches,
                                    struct weft_error *error) {
  struct weft_device *device = feeds->executor->options->device;
  const size_t count = loss_numbers(feeds, microbatches);
  if (microbatches > feeds->loss_room && feeds->loss_count > 0) {
    double *losses = has_streams(feeds)
                         ? device->ops->allocate_host(device, count * sizeof *losses)
                         : weft_array_allocate(feeds->allocator, count, sizeof *losses);
    if (losses == NULL) {
      return weft_device_fail_allocation(has_streams(feeds) ? device : NULL, count * sizeof *losses,
                                         error);
    }
    free_losses(feeds);
    feeds->losses = losses;
    feeds->loss_room = microbatches;
  }
  if (count > 0) {
    memset(feeds->losses, 0, count * sizeof *feeds->losses);
  }
  return WEFT_OK;
}

/* On a device with streams the stages find the batch there, at the same place in every step. */
static enum weft_status upload(struct weft_stage_feeds *feeds, struct weft_stage_feed *feed,
                               struct weft_error *error) {
  struct weft_executor_stage *stage = feed->stage;
  struct weft_device *device = feeds->executor->options->device;
  stage->inputs = feed->inputs.items;
  stage->targets = feed->targets.items;
  if (!has_streams(feeds)) {
    return WEFT_OK;
  }
  struct weft_stream *stream = feeds->executor->device->stream;
  WEFT_TRY(device->ops->make_current(device, error));
  if (stage->is_source) {
    WEFT_TRY(weft_batch_upload_run(&feed->uploaded_inputs, feeds->allocator, &feed->inputs, device,
                                   stream, &stage->inputs, error));
  }
  return stage->targets != NULL
             ? weft_batch_upload_run(&feed->uploaded_targets, feeds->allocator, &feed->targets,
                                     device, stream, &stage->targets, error)
             : WEFT_OK;
}

static const struct weft_boundary *output_boundary(const struct weft_stage_feeds *feeds,
                                                   const struct weft_executor_stage *stage) {
  const struct weft_pipeline_options *options = feeds->executor->options;
  return &options
              ->boundaries[options->boundary_count == 1 ? 0
                                                        : stage->ports[stage->in_count].boundary];
}

enum weft_status weft_stage_feeds_begin(struct weft_stage_feeds *feeds,
                                        const struct weft_batch *batch, const struct weft_row *row,
                                        struct weft_error *error) {
  assert(batch != NULL && row->own_count == feeds->executor->own_count);
  struct weft_device *device = feeds->executor->options->device;
  const uint32_t m = batch->microbatch_count;
  WEFT_TRY(check_stages(feeds->executor, batch, error));
  for (uint32_t k = 0; k < feeds->count; k++) {
    struct weft_stage_feed *feed = &feeds->items[k];
    WEFT_TRY(name_stage(feed, split(feed, batch, error), error));
  }
  WEFT_TRY(check_wants(feeds, batch, row, error));
  WEFT_TRY(make_losses(feeds, m, error));
  double *losses = feeds->losses;
  for (uint32_t k = 0; k < feeds->count; k++) {
    struct weft_stage_feed *feed = &feeds->items[k];
    feed->stage->outputs = NULL;
    if (feed->stage->is_loss) {
      feed->stage->losses = losses;
      losses += m;
      if (batch->want_outputs) {
        feed->stage->outputs = &feed->outputs;
        feed->outputs.pinned = has_streams(feeds) ? device->ops->pinned(device) : NULL;
        WEFT_TRY(
            weft_batch_merge_begin(&feed->outputs, output_boundary(feeds, feed->stage), m, error));
      }
    }
  }
  for (uint32_t k = 0; k < feeds->count; k++) {
    WEFT_TRY(upload(feeds, &feeds->items[k], error));
  }
  return WEFT_OK;
}

/* ---- Ending it ---- */

/* The sum over the rank's losses, in ascending order of their stages. */
static const double *sum_losses(const struct weft_stage_feeds *feeds, uint32_t microbatches) {
  if (feeds->loss_count == 1) {
    return feeds->losses;
  }
  double *sums = feeds->losses + (size_t)feeds->loss_count * microbatches;
  memcpy(sums, feeds->losses, microbatches * sizeof *sums);
  for (uint32_t h = 1; h < feeds->loss_count; h++) {
    for (uint32_t mb = 0; mb < microbatches; mb++) {
      sums[mb] += feeds->losses[(size_t)h * microbatches + mb];
    }
  }
  return sums;
}

enum weft_status weft_stage_feeds_end(struct weft_stage_feeds *feeds, bool want_losses,
                                      bool want_outputs, uint32_t microbatch_count,
                                      struct weft_step_result *result, struct weft_error *error) {
  assert(result != NULL);
  uint32_t h = 0;
  if (!want_losses && !want_outputs) {
    return WEFT_OK;
  }
  for (uint32_t k = 0; k < feeds->count; k++) {
    struct weft_stage_feed *feed = &feeds->items[k];
    if (!feed->stage->is_loss) {
      continue;
    }
    struct weft_head_result *head = &feeds->heads[h++];
    *head = (struct weft_head_result){.stage = feed->stage->stage,
                                      .losses = want_losses ? feed->stage->losses : NULL};
    if (want_outputs) {
      WEFT_TRY(name_stage(
          feed, weft_batch_merge_run(&feed->outputs, feed->merges, &head->outputs, error), error));
    }
  }
  assert(h == feeds->loss_count && h > 0);
  result->head_count = h;
  result->heads = feeds->heads;
  result->outputs = feeds->heads[0].outputs;
  if (want_losses) {
    result->loss_count = microbatch_count;
    result->losses = sum_losses(feeds, microbatch_count);
  }
  return WEFT_OK;
}
