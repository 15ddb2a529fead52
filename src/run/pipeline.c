/* The pipeline of one rank: programs, batches, steps, and the error that all ranks agree on.
 * The executor does the work. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/run.h>
#include <weft/support.h>

#include "run/pipeline.h"

struct weft_pipeline_options weft_pipeline_options_default(void) {
  return (struct weft_pipeline_options){
      .scale_grads = true, .stall_limit = INT64_C(30000000000), .forward_ahead = 8};
}

static void log_line(const struct weft_pipeline *pipeline, const char *line) {
  if (pipeline->options.log != NULL) {
    pipeline->options.log(pipeline->options.log_context, line);
  }
}

static bool has_streams(const struct weft_pipeline *pipeline) {
  return pipeline->executor.device != NULL;
}

/* What a device says does not name the rank. */
static void name_rank(const struct weft_pipeline *pipeline, struct weft_error *error) {
  if (error != NULL && error->status == WEFT_ERR_DEVICE &&
      strstr(error->message, "rank ") == NULL) {
    (void)weft_fail(error, error->status, error->hint, "rank %" PRIu32 ": %s",
                    pipeline->transport->rank, error->message);
  }
}

/* ---- Programs ---- */

WEFT_SCOPED_TYPE(weft_program)
WEFT_SCOPED_TYPE(weft_row)

/* Every row has a rank of the transport, and this rank has a row. */
static enum weft_status check_ranks(const struct weft_pipeline *pipeline,
                                    const struct weft_program *program, struct weft_error *error) {
  const struct weft_transport *transport = pipeline->transport;
  const uint32_t first = pipeline->options.first_rank;
  if (first > transport->rank_count || program->rank_count > transport->rank_count - first) {
    return weft_fail(error, WEFT_ERR_USAGE, "a rank of the transport runs each row",
                     "the program has %" PRIu32 " ranks, from rank %" PRIu32
                     " on, and the transport %" PRIu32,
                     program->rank_count, first, transport->rank_count);
  }
  if (transport->rank < first || transport->rank - first >= program->rank_count) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "options.first_rank is the rank that runs row 0 of this replica",
                     "the program has %" PRIu32 " ranks, from rank %" PRIu32
                     " on, and rank %" PRIu32 " has no row of it",
                     program->rank_count, first, transport->rank);
  }
  return WEFT_OK;
}

/* One for all, or one for each edge and for the output of each loss. */
static enum weft_status check_boundaries(const struct weft_pipeline_options *options,
                                         const struct weft_graph *graph, struct weft_error *error) {
  const uint32_t edges = weft_graph_edge_count(graph, options->stage_count);
  uint32_t losses = 0;
  for (uint32_t s = 0; s < options->stage_count; s++) {
    losses += weft_graph_is_loss(graph, s, options->stage_count);
  }
  if (options->boundary_count != 1 && options->boundary_count != edges + losses) {
    return weft_fail(
        error, WEFT_ERR_USAGE, "give one boundary for all, or one per edge and per loss's output",
        "%" PRIu32 " boundaries for %" PRIu32 " edges and outputs of %" PRIu32 " losses",
        options->boundary_count, edges, losses);
  }
  if (edges > (UINT32_MAX - options->first_channel) / 2) {
    return weft_fail(error, WEFT_ERR_LIMIT, "number channels from 2 x edges x replica on",
                     "channels of %" PRIu32 " edges from channel %" PRIu32
                     " on; there are %" PRIu32,
                     edges, options->first_channel, UINT32_MAX);
  }
  return WEFT_OK;
}

static enum weft_status check_program(const struct weft_pipeline *pipeline,
                                      const struct weft_program *program, uint32_t microbatch_count,
                                      struct weft_error *error) {
  WEFT_TRY(check_ranks(pipeline, program, error));
  if (program->stage_count != pipeline->options.stage_count) {
    return weft_fail(error, WEFT_ERR_USAGE, "options.stage_count must be the program's",
                     "the program has %" PRIu32 " stages, and options.stage_count is %" PRIu32,
                     program->stage_count, pipeline->options.stage_count);
  }
  WEFT_TRY(check_boundaries(&pipeline->options, program->graph, error));
  if (program->microbatch_count != microbatch_count) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "options.source must make the program that it is asked for",
                     "the program is for %" PRIu32 " microbatches, and %" PRIu32 " were asked for",
                     program->microbatch_count, microbatch_count);
  }
  return WEFT_OK;
}

static enum weft_status make_row(const struct weft_pipeline *pipeline,
                                 const struct weft_pipeline_options *options,
                                 uint32_t microbatch_count, bool training, struct weft_row **out,
                                 struct weft_error *error) {
  WEFT_SCOPED(weft_program) program = NULL;
  if (microbatch_count == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "a step has at least one microbatch", "0 microbatches");
  }
  struct weft_rank_status *rank_status =
      pipeline->transport->ops->rank_status(pipeline->transport, pipeline->transport->rank);
  WEFT_STATUS_STORE(rank_status->stall_limit, options->stall_limit);
  weft_rank_status_enter(rank_status);
  enum weft_status status =
      options->source(options->source_context, microbatch_count, training, &program, error);
  weft_rank_status_leave(rank_status);
  WEFT_TRY(status);
  if (program == NULL) {
    return weft_fail(error, WEFT_ERR_USAGE, "a source that succeeds writes the program to *out",
                     "options.source has made no program: it returned WEFT_OK, and *out is NULL");
  }
  WEFT_TRY(check_program(pipeline, program, microbatch_count, error));
  struct weft_program *given = program;
  program = NULL;
  return weft_row_create(pipeline->allocator, given,
                         pipeline->transport->rank - options->first_rank, training, options, out,
                         error);
}

/* The pipeline owns it from here on. */
static void keep_row(struct weft_pipeline *pipeline, struct weft_row **row) {
  (*row)->next = pipeline->rows;
  pipeline->rows = *row;
  *row = NULL;
}

static void drop_rows(struct weft_pipeline *pipeline) {
  while (pipeline->rows != NULL) {
    struct weft_row *row = pipeline->rows;
    pipeline->rows = row->next;
    weft_row_destroy(row);
  }
}

/* The row for that number of microbatches, made if there is none. */
static enum weft_status find_row(struct weft_pipeline *pipeline, uint32_t microbatch_count,
                                 bool training, struct weft_row **out, struct weft_error *error) {
  for (struct weft_row *row = pipeline->rows; row != NULL; row = row->next) {
    if (row->program->microbatch_count == microbatch_count && row->training == training) {
      *out = row;
      return WEFT_OK;
    }
  }
  WEFT_SCOPED(weft_row) row = NULL;
  WEFT_TRY(make_row(pipeline, &pipeline->options, microbatch_count, training, &row, error));
  assert(row != NULL);
  WEFT_TRY(weft_executor_read_times(&pipeline->executor, error));
  WEFT_TRY(weft_executor_fit(&pipeline->executor, row, error));
  keep_row(pipeline, &row);
  log_line(pipeline,
           training ? "a program for another number of microbatches" : "a forward-only program");
  *out = pipeline->rows;
  return WEFT_OK;
}

/* ---- Create and destroy ---- */

static enum weft_status check_options(const struct weft_pipeline_options *options,
                                      struct weft_error *error) {
  if (options->source == NULL || options->stages == NULL || options->stage_count == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "weft/run.h shows a first pipeline",
                     "a pipeline needs %s",
                     options->source == NULL ? "a program source" : "stages");
  }
  if (options->boundaries == NULL || options->boundary_count == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "give one boundary for all, or one per stage",
                     "0 boundaries for %" PRIu32 " stages", options->stage_count);
  }
  if (options->stage_count > (UINT32_MAX - options->first_channel) / 2) {
    return weft_fail(error, WEFT_ERR_LIMIT, "number channels from 2 x stage_count x replica on",
                     "channels of %" PRIu32 " stages from channel %" PRIu32
                     " on; there are %" PRIu32,
                     options->stage_count, options->first_channel, UINT32_MAX);
  }
  if (options->stall_limit < 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "0 means never", "the stall limit is negative");
  }
  if (weft_send_model_info(options->comm) == NULL) {
    return weft_fail(error, WEFT_ERR_USAGE, "one of enum weft_send_model",
                     "options.comm is %d, which does not exist", (int)options->comm);
  }
  for (uint32_t k = 0; k < options->boundary_count; k++) {
    WEFT_TRY(weft_boundary_check(&options->boundaries[k], k, error));
  }
  return WEFT_OK;
}

static enum weft_status check_finish(const struct weft_pipeline *pipeline,
                                     struct weft_error *error) {
  const struct weft_pipeline_options *options = &pipeline->options;
  return options->finish != NULL && options->device != NULL &&
                 pipeline->transport->ops->step_barrier == NULL
             ? weft_fail(error, WEFT_ERR_USAGE, "do what ends the step after weft_pipeline_step()",
                         "options.finish is for ranks that end a step together, as those of the "
                         "transport cuda do; the transport is %s",
                         pipeline->transport->ops->name)
             : WEFT_OK;
}

static enum weft_status build_pipeline(struct weft_pipeline *pipeline, struct weft_error *error) {
  struct weft_transport *transport = pipeline->transport;
  struct weft_pipeline_options *options = &pipeline->options;
  const size_t count = options->boundary_count;
  WEFT_TRY(check_finish(pipeline, error));
  pipeline->memory.allocator = pipeline->allocator;
  struct weft_boundary *boundaries =
      weft_arena_allocate(&pipeline->memory, count, sizeof *boundaries);
  if (transport->ops->exchanged == NULL) {
    pipeline->handshakes =
        weft_arena_allocate(&pipeline->memory, transport->rank_count, sizeof *pipeline->handshakes);
  }
  WEFT_TRY(weft_arena_status(&pipeline->memory, error));
  memcpy(boundaries, options->boundaries, count * sizeof *boundaries);
  options->boundaries = boundaries;
  struct weft_row *row = NULL;
  WEFT_TRY(make_row(pipeline, &pipeline->options, pipeline->options.microbatch_count, true, &row,
                    error));
  assert(row != NULL);
  pipeline->handshake = weft_handshake_make(&pipeline->options, row->hash);
  keep_row(pipeline, &row);
  WEFT_TRY(weft_executor_init(&pipeline->executor, pipeline->allocator, transport,
                              &pipeline->options, pipeline->rows, error));
  return weft_batch_ends_init(&pipeline->ends, pipeline->allocator, &pipeline->executor, error);
}

/* Beyond 73 years is never: times and their doubles can be added up. */
#define STALL_LIMIT_MAX (INT64_MAX / 4)

enum weft_status weft_pipeline_create(const struct weft_allocator *allocator,
                                      struct weft_transport *transport,
                                      const struct weft_pipeline_options *options,
                                      struct weft_pipeline **out, struct weft_error *error) {
  WEFT_NEED(transport, error);
  WEFT_NEED(options, error);
  WEFT_NEED(out, error);
  WEFT_TRY(check_options(options, error));
  struct weft_pipeline *pipeline = weft_array_allocate_zero(allocator, 1, sizeof *pipeline);
  if (pipeline == NULL) {
    return weft_fail_memory(error, sizeof *pipeline);
  }
  pipeline->allocator = allocator;
  pipeline->transport = transport;
  pipeline->options = *options;
  if (options->stall_limit > STALL_LIMIT_MAX) {
    pipeline->options.stall_limit = 0;
  }
  pipeline->step = 1;
  pipeline->executor.allocator = allocator;
  const enum weft_status status = build_pipeline(pipeline, error);
  if (status < 0) {
    name_rank(pipeline, error);
    weft_pipeline_destroy(pipeline);
    return status;
  }
  *out = pipeline;
  return WEFT_OK;
}

void weft_pipeline_destroy(struct weft_pipeline *pipeline) {
  if (pipeline == NULL) {
    return;
  }
  const struct weft_allocator *allocator = pipeline->allocator;
  const int64_t limit = weft_pipeline_drain_limit(pipeline, pipeline->failure.status);
  if (!weft_executor_drain_device(&pipeline->executor, limit)) {
    weft_executor_abandon_device(&pipeline->executor);
  }
  weft_executor_await_devices(&pipeline->executor, 2 * limit);
  weft_process_recording_destroy(pipeline->process_recording);
  weft_rank_recording_destroy(pipeline->rank_recording);
  weft_batch_ends_finish(&pipeline->ends); /* before the device's */
  weft_executor_finish(&pipeline->executor);
  drop_rows(pipeline);
  weft_arena_finish(&pipeline->memory);
  weft_array_free(allocator, pipeline, 1, sizeof *pipeline);
}

/* ---- Failing ---- */

/* A device that has stalled, or that may wait for one that is lost, gets a moment more; and after
 * a signal somebody waits. */
int64_t weft_pipeline_drain_limit(const struct weft_pipeline *pipeline, enum weft_status status) {
  assert(pipeline->options.stall_limit >= 0);
  const int64_t limit = pipeline->options.stall_limit;
  if (status == WEFT_ERR_CANCELLED) {
    return limit > 0 && limit < WEFT_CANCEL_NS ? limit : WEFT_CANCEL_NS;
  }
  const bool is_short = status == WEFT_ERR_STALLED || status == WEFT_ERR_DEVICE;
  return is_short && limit > 0 ? (limit + 19) / 20 : limit; /* 0 would be no limit */
}

/* Takes over the error that the ranks agreed on. */
static enum weft_status take_failure(struct weft_pipeline *pipeline,
                                     const struct weft_error *error) {
  pipeline->state = WEFT_PIPELINE_FAILED;
  pipeline->failure = *error;
  return error->status;
}

enum weft_status weft_pipeline_fail(struct weft_pipeline *pipeline, uint32_t rank,
                                    struct weft_error *error) {
  assert(rank < pipeline->transport->rank_count && error != NULL);
  struct weft_transport *transport = pipeline->transport;
  name_rank(pipeline, error);
  struct weft_failure failure = {.rank = rank, .error = *error};
  assert(error->status < 0);
  transport->ops->fail(transport, &failure);
  if (transport->ops->get_failure(transport, &failure)) {
    *error = failure.error;
  }
  if (error->status != WEFT_ERR_STALLED) { /* then the status still shows what it waits for */
    WEFT_STATUS_STORE(pipeline->executor.status->phase, (uint32_t)WEFT_PHASE_FAILED);
  }
  return take_failure(pipeline, error);
}

/* ---- Another program source ---- */

enum weft_status weft_pipeline_set_source(
    struct weft_pipeline *pipeline,
    enum weft_status (*source)(void *context, uint32_t microbatch_count, bool training,
                               struct weft_program **out, struct weft_error *error),
    void *source_context, struct weft_error *error) {
  WEFT_NEED(pipeline, error);
  WEFT_NEED(source, error);
  struct weft_pipeline_options other = pipeline->options;
  struct weft_error unheard;
  WEFT_SCOPED(weft_row) row = NULL;
  error = error != NULL ? error : &unheard;
  if (pipeline->state != WEFT_PIPELINE_READY) {
    return pipeline->state == WEFT_PIPELINE_FAILED
               ? weft_fail(error, WEFT_ERR_USAGE, "make another pipeline",
                           "the pipeline has failed")
               : weft_fail(error, WEFT_ERR_USAGE, "advance it until it is done",
                           "a step is still running on rank %" PRIu32, pipeline->transport->rank);
  }
  other.source = source;
  other.source_context = source_context;
  WEFT_TRY(make_row(pipeline, &other, other.microbatch_count, true, &row, error));
  assert(row != NULL);
  WEFT_TRY(weft_executor_check(&pipeline->executor, row, error));
  drop_rows(pipeline);
  pipeline->options = other;
  keep_row(pipeline, &row);
  pipeline->last_row = NULL;
  pipeline->handshake = weft_handshake_make(&pipeline->options, pipeline->rows->hash);
  pipeline->handshake_done = false;
  const enum weft_status status = weft_executor_refit(&pipeline->executor, pipeline->rows, error);
  return status < 0 ? take_failure(pipeline, error) : WEFT_OK;
}

/* ---- Beginning a step ---- */

static enum weft_status start_step(struct weft_pipeline *pipeline, const struct weft_batch *batch,
                                   struct weft_row *row, struct weft_error *error) {
  struct weft_executor *executor = &pipeline->executor;
  WEFT_TRY(weft_batch_ends_begin(&pipeline->ends, batch, row, error));
  pipeline->last_row = row;
  weft_executor_begin(executor, row, pipeline->step);
  weft_rank_recording_begin_step(pipeline);
  pipeline->state = WEFT_PIPELINE_RUNNING;
  return pipeline->transport->ops->step_barrier == NULL && pipeline->rank_recording == NULL
             ? weft_executor_begin_times(executor, error)
             : WEFT_OK;
}

static enum weft_status begin_step(struct weft_pipeline *pipeline, bool training,
                                   const struct weft_batch *batch, struct weft_error *error) {
  struct weft_row *row;
  if (pipeline->state == WEFT_PIPELINE_FAILED) {
    *error = pipeline->failure;
    return error->status;
  }
  if (pipeline->state == WEFT_PIPELINE_RUNNING) {
    return weft_fail(error, WEFT_ERR_USAGE, "advance it until it is done",
                     "a step is still running on rank %" PRIu32, pipeline->transport->rank);
  }
  pipeline->result = (struct weft_step_result){.loss_count = 0};
  WEFT_TRY(find_row(pipeline, batch->microbatch_count, training, &row, error));
  return start_step(pipeline, batch, row, error);
}

enum weft_status weft_pipeline_begin(struct weft_pipeline *pipeline, bool training,
                                     const struct weft_batch *batch, struct weft_error *error) {
  WEFT_NEED(pipeline, error);
  WEFT_NEED(batch, error);
  struct weft_error unheard;
  error = error != NULL ? error : &unheard;
  if (pipeline->transport->ops->step_barrier != NULL) {
    return weft_fail(error, WEFT_ERR_USAGE, "call weft_pipeline_step() or weft_pipeline_eval()",
                     "on the transport %s the ranks of a process end each step together",
                     pipeline->transport->ops->name);
  }
  return begin_step(pipeline, training, batch, error);
}

/* ---- Running a step ---- */

/* A rank that has not reached the handshake, for the report. */
static uint32_t find_absent(const struct weft_pipeline *pipeline) {
  struct weft_transport *transport = pipeline->transport;
  for (uint32_t r = 0; r < transport->rank_count; r++) {
    const struct weft_rank_status *status = transport->ops->rank_status(transport, r);
    if (WEFT_STATUS_LOAD(status->phase) == WEFT_PHASE_IDLE && r != transport->rank) {
      return r;
    }
  }
  return UINT32_MAX;
}

static enum weft_status shake_hands(struct weft_pipeline *pipeline, struct weft_error *error) {
  struct weft_executor *executor = &pipeline->executor;
  struct weft_transport *transport = pipeline->transport;
  WEFT_STATUS_STORE(executor->status->phase, (uint32_t)WEFT_PHASE_HANDSHAKE);
  if (transport->ops->enqueues) {
    pipeline->handshake.recording = weft_rank_recording_reason(pipeline);
  }
  const enum weft_status status = transport->ops->exchange(
      transport, &pipeline->handshake, pipeline->handshakes, sizeof pipeline->handshake, error);
  if (status == WEFT_IN_PROGRESS) {
    return weft_executor_block(executor, WEFT_PHASE_HANDSHAKE, find_absent(pipeline),
                               weft_action_idle(), 0, error);
  }
  WEFT_TRY(status);
  WEFT_TRY(weft_handshakes_compare(transport, pipeline->handshakes, &executor->blamed_rank, error));
  weft_executor_read_clock(executor);
  executor->last_progress = executor->now;
  WEFT_TRY(weft_executor_connect(executor, error));
  return weft_rank_recording_open(pipeline, error);
}

enum weft_status weft_pipeline_end_step(struct weft_pipeline *pipeline, struct weft_error *error) {
  assert(pipeline->last_row != NULL);
  if (weft_batch_ends_end(&pipeline->ends, pipeline->last_row->program->microbatch_count,
                          &pipeline->result, error) < 0) {
    return weft_pipeline_fail(pipeline, pipeline->transport->rank, error);
  }
  pipeline->state = WEFT_PIPELINE_READY;
  pipeline->step++;
  WEFT_STATUS_STORE(pipeline->executor.status->phase, (uint32_t)WEFT_PHASE_DONE);
  return WEFT_OK;
}

enum weft_status weft_pipeline_poll(struct weft_pipeline *pipeline, struct weft_error *error) {
  if (pipeline->transport->ops->progress(pipeline->transport, error) < 0) {
    return take_failure(pipeline, error);
  }
  if (!weft_executor_is_interrupted(&pipeline->executor)) {
    return WEFT_OK;
  }
  (void)weft_fail(error, WEFT_ERR_CANCELLED, "",
                  "rank %" PRIu32 " was asked to stop in step %" PRIu64, pipeline->transport->rank,
                  pipeline->step);
  return weft_pipeline_fail(pipeline, pipeline->transport->rank, error);
}

enum weft_status weft_pipeline_advance(struct weft_pipeline *pipeline, struct weft_error *error) {
  WEFT_NEED(pipeline, error);
  struct weft_error unheard;
  error = error != NULL ? error : &unheard;
  if (pipeline->state != WEFT_PIPELINE_RUNNING) {
    *error = pipeline->failure;
    return pipeline->state == WEFT_PIPELINE_FAILED ? pipeline->failure.status : WEFT_OK;
  }
  error->message[0] = error->hint[0] = '\0';
  WEFT_TRY(weft_pipeline_poll(pipeline, error));
  enum weft_status status;
  pipeline->executor.blamed_rank = pipeline->transport->rank;
  if (!pipeline->handshake_done) {
    status = shake_hands(pipeline, error);
    if (status != WEFT_OK) { /* before any action */
      return status < 0 ? weft_pipeline_fail(pipeline, pipeline->executor.blamed_rank, error)
                        : status;
    }
    pipeline->handshake_done = true;
  }
  status = pipeline->rank_recording != NULL ? weft_rank_recording_advance(pipeline, error)
                                            : weft_executor_advance(&pipeline->executor, error);
  if ((status == WEFT_ERR_DEVICE || status == WEFT_ERR_STAGE) &&
      pipeline->executor.device != NULL) {
    (void)weft_executor_fail_device(&pipeline->executor, error);
  }
  if (status < 0) {
    return weft_pipeline_fail(pipeline, pipeline->executor.blamed_rank, error);
  }
  return status == WEFT_OK ? weft_pipeline_end_step(pipeline, error) : status;
}

enum weft_status weft_pipeline_wait(struct weft_pipeline *pipeline, struct weft_error *error) {
  WEFT_NEED(pipeline, error);
  struct weft_transport *transport = pipeline->transport;
  struct weft_error unheard;
  error = error != NULL ? error : &unheard;
  const enum weft_status status =
      transport->ops->wait(transport, pipeline->executor.wake_at, error);
  return status < 0 && pipeline->state == WEFT_PIPELINE_RUNNING ? take_failure(pipeline, error)
                                                                : status;
}

static enum weft_status run_step(struct weft_pipeline *pipeline, bool training,
                                 const struct weft_batch *batch, struct weft_step_result *result,
                                 struct weft_error *error) {
  const char *function = training ? "weft_pipeline_step" : "weft_pipeline_eval";
  struct weft_error unheard;
  error = error != NULL ? error : &unheard;
  if (pipeline == NULL) {
    return weft_fail_null(error, function, "pipeline");
  }
  enum weft_status status = batch != NULL ? begin_step(pipeline, training, batch, error)
                                          : weft_fail_null(error, function, "batch");
  if (status < 0) {
    /* Other ranks would wait for this one: broadcast the failure. */
    return pipeline->transport->rank_count > 1 && pipeline->state != WEFT_PIPELINE_FAILED
               ? weft_pipeline_fail(pipeline, pipeline->transport->rank, error)
               : status;
  }
  const bool one_process = pipeline->transport->ops->step_barrier != NULL;
  if (one_process && has_streams(pipeline)) {
    status = weft_pipeline_step_process(pipeline, error);
  } else if (one_process) {
    pipeline->transport->ops->set_undriven(pipeline->transport);
  }
  while (pipeline->state == WEFT_PIPELINE_RUNNING &&
         (status = weft_pipeline_advance(pipeline, error)) == WEFT_IN_PROGRESS) {
    const enum weft_status waited = weft_pipeline_wait(pipeline, error);
    if (waited < 0) {
      status = waited;
      break;
    }
  }
  if (one_process && !has_streams(pipeline)) {
    /* What ranks on devices have enqueued uses buffers of this one, too: it has to be done. */
    struct weft_error failure;
    const enum weft_status joined = pipeline->transport->ops->step_barrier(
        pipeline->transport, NULL, NULL, WEFT_TIME_NEVER, &failure);
    if (status == WEFT_OK && joined < 0) {
      *error = failure;
      status = take_failure(pipeline, error);
    }
  }
  if (status == WEFT_OK && result != NULL) {
    weft_pipeline_result(pipeline, result);
  }
  return status;
}

enum weft_status weft_pipeline_step(struct weft_pipeline *pipeline, const struct weft_batch *batch,
                                    struct weft_step_result *result, struct weft_error *error) {
  return run_step(pipeline, true, batch, result, error);
}

enum weft_status weft_pipeline_eval(struct weft_pipeline *pipeline, const struct weft_batch *batch,
                                    struct weft_step_result *result, struct weft_error *error) {
  return run_step(pipeline, false, batch, result, error);
}

void weft_pipeline_result(const struct weft_pipeline *pipeline, struct weft_step_result *result) {
  assert(pipeline != NULL && result != NULL);
  *result = pipeline->result;
}

/* ---- Custom functions ---- */

enum weft_status weft_pipeline_set_function(
    struct weft_pipeline *pipeline, enum weft_op op,
    enum weft_status (*function)(void *context, const struct weft_custom_call *call,
                                 struct weft_error *error),
    void *context, struct weft_error *error) {
  WEFT_NEED(pipeline, error);
  const uint32_t replaceable = WEFT_OPS_COMPUTE | WEFT_OPS_SHARD | WEFT_OP_BIT(WEFT_OP_OVERLAP_F_B);
  const bool known = (uint32_t)op < WEFT_OP_COUNT;
  if (!known || !weft_op_in((uint32_t)op, replaceable)) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "compute, OVERLAP_F_B and collectives can be replaced; SEND and RECV are the "
                     "transport's",
                     "%s cannot be replaced by a function of one's own",
                     !known               ? "an op that does not exist"
                     : op == WEFT_OP_IDLE ? "an empty cell"
                                          : weft_op_info(op)->text);
  }
  if (pipeline->state == WEFT_PIPELINE_RUNNING) {
    return weft_fail(error, WEFT_ERR_USAGE, "between steps", "a step is running");
  }
  char line[96];
  snprintf(line, sizeof line, "%s is %s on rank %" PRIu32, weft_op_info(op)->text,
           function != NULL ? "replaced by a custom function" : "the built-in one again",
           pipeline->transport->rank);
  log_line(pipeline, line);
  pipeline->executor.custom[op] = (struct weft_custom){.function = function, .context = context};
  return WEFT_OK;
}

/* ---- What happened ---- */

const struct weft_program *weft_pipeline_program(const struct weft_pipeline *pipeline) {
  assert(pipeline != NULL);
  return pipeline->last_row != NULL ? pipeline->last_row->program : NULL;
}

void weft_pipeline_events(const struct weft_pipeline *pipeline, struct weft_event *events,
                          uint64_t room, uint64_t *count) {
  assert(pipeline != NULL && count != NULL && (events != NULL || room == 0));
  const struct weft_row *row = pipeline->last_row;
  struct weft_error ignored; /* a device that fails now is the next step's failure */
  *count = 0;
  if (row == NULL || row->times == NULL ||
      weft_executor_read_times(&pipeline->executor, &ignored) < 0) {
    return;
  }
  for (uint64_t i = row->begin; i < row->end; i++) {
    const struct weft_row_time *time = &row->times[i - row->begin];
    if (time->begin < 0) {
      continue;
    }
    if (*count < room) {
      events[*count] = (struct weft_event){
          .rank = row->rank, .record = (uint32_t)i, .begin = time->begin, .end = time->end};
    }
    (*count)++;
  }
}

uint64_t weft_pipeline_saved_bytes(const struct weft_pipeline *pipeline) {
  assert(pipeline != NULL);
  return pipeline->executor.saved_bytes;
}

uint64_t weft_pipeline_actions_done(const struct weft_pipeline *pipeline) {
  assert(pipeline != NULL);
  return pipeline->executor.actions_done;
}

uint64_t weft_pipeline_replayed_steps(const struct weft_pipeline *pipeline) {
  assert(pipeline != NULL);
  return pipeline->replayed_steps;
}

const char *weft_pipeline_eager_reason(const struct weft_pipeline *pipeline) {
  assert(pipeline != NULL);
  return pipeline->eager_reason;
}
