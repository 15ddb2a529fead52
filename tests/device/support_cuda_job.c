/* See support_cuda_job.h. */
#include "support_cuda_job.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

#include "run/pipeline.h"

/* NULL on a GPU (job_cuda.c), where there is nobody to ask. */
#pragma weak fake_cuda_statistics
#pragma weak fake_cuda_host_reads
#pragma weak fake_cuda_host_writes
#pragma weak fake_cuda_finding_count
#pragma weak fake_cuda_finding
#pragma weak fake_cuda_label_by

enum { BATCH_ROWS = CUDA_MICROBATCHES_MAX * CUDA_ROWS + 1 };

static struct cuda_step step_of(const struct cuda_job *job, uint32_t k) {
  struct cuda_step step = {.microbatches = 0};
  if (job->steps != NULL) {
    step = job->steps[k];
  }
  step.microbatches = step.microbatches > 0 ? step.microbatches : job->microbatches;
  assert_in_range(step.microbatches, 1, CUDA_MICROBATCHES_MAX);
  return step;
}

static enum weft_status make_program(struct cuda_job *job, struct weft_program **program,
                                     struct weft_error *error) {
  return job->program != NULL
             ? weft_source_fixed(&job->fixed, job->microbatches, true, program, error)
             : weft_source_named(&job->sources[CUDA_STEPS_MAX], job->microbatches, true, program,
                                 error);
}

bool cuda_job_fits(struct cuda_job *job) {
  struct weft_program *program;
  struct weft_error error;
  job->sources[CUDA_STEPS_MAX] =
      (struct weft_named_source){.schedule = job->schedule, .ranks = job->ranks};
  job->fixed = (struct weft_fixed_source){.program = job->program};
  if (make_program(job, &program, &error) < 0) {
    return false;
  }
  job->stage_count = program->stage_count;
  assert_in_range(job->stage_count, 1, CUDA_STAGES_MAX);
  for (uint32_t r = 0; r < program->rank_count; r++) {
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      if (program->actions[i].op == WEFT_OP_F) {
        job->rank_of[program->actions[i].stage] = r;
      }
    }
  }
  weft_program_destroy(program);
  return true;
}

static float (*batch_data(unsigned which))[CUDA_WIDTH] {
  static float data[2][BATCH_ROWS][CUDA_WIDTH];
  static bool drawn;
  struct weft_random random = {.state = 7};
  for (size_t k = 0; !drawn && k < 2 * sizeof data[0] / sizeof(float); k++) {
    (&data[0][0][0])[k] = (float)weft_random_share(&random);
  }
  if (!drawn) {
    drawn = true;
  }
  return data[which];
}

static void note_line(void *context, const char *line) {
  struct cuda_job *job = context; /* of one rank alone */
  const size_t used = strlen(job->log);
  (void)snprintf(job->log + used, sizeof job->log - used, "%s\n", line);
}

/* Of a rank, among those that the GPUs were opened for. */
static uint32_t number_of(const struct cuda_job *job, uint32_t rank) {
  return job->communicator != NULL ? 0 : rank;
}

/* NULL: it is on the host, or another process's. */
static struct weft_device *device_of(const struct cuda_job *job, uint32_t rank) {
  const bool is_here = job->communicator != NULL
                           ? rank == job->own_rank
                           : job->cuda != NULL && (job->host_ranks >> rank & 1) == 0;
  return is_here ? weft_cuda_device(job->cuda, number_of(job, rank)) : NULL;
}

/* ---- Stages on the host: the driver sees what they do to pinned memory ---- */

static const struct weft_stage_ops *linear_ops;

static void look_at_one(const struct weft_tensors *tensors, bool writes) {
  for (uint32_t k = 0; k < tensors->count; k++) {
    uint64_t bytes;
    assert_true(weft_device_is_host(tensors->items[k].device));
    if (fake_cuda_host_reads != NULL && tensors->items[k].device != NULL &&
        weft_shape_bytes(&tensors->items[k].shape, &bytes)) {
      (writes ? fake_cuda_host_writes : fake_cuda_host_reads)(tensors->items[k].data,
                                                              (size_t)bytes);
    }
  }
}

static void look_at(const struct weft_tensors *tensors, uint32_t count, bool writes) {
  for (uint32_t k = 0; k < count; k++) {
    look_at_one(&tensors[k], writes);
  }
}

static enum weft_status host_forward(struct weft_stage *stage, struct weft_stage_call *call,
                                     struct weft_error *error) {
  look_at(call->inputs, call->input_count, false);
  WEFT_TRY(linear_ops->forward(stage, call, error));
  look_at(call->outputs, call->output_count, true);
  return WEFT_OK;
}

static enum weft_status host_backward_input(struct weft_stage *stage, struct weft_stage_call *call,
                                            struct weft_error *error) {
  look_at(call->output_grads, call->output_count, false);
  WEFT_TRY(linear_ops->backward_input(stage, call, error));
  look_at(call->input_grads, call->input_count, true);
  return WEFT_OK;
}

static enum weft_status host_backward_weight(struct weft_stage *stage, struct weft_stage_call *call,
                                             struct weft_error *error) {
  look_at(call->output_grads, call->output_count, false);
  look_at(call->inputs, call->input_count, false);
  return linear_ops->backward_weight(stage, call, error);
}

static void look_at_host_stage(struct cuda_job *job, uint32_t s) {
  static struct weft_stage_ops ops;
  if (job->cuda != NULL && job->communicator == NULL &&
      (job->host_ranks >> job->rank_of[s] & 1) != 0) {
    linear_ops = job->stages[s].stage.ops;
    ops = *linear_ops;
    ops.forward = host_forward;
    ops.backward_input = host_backward_input;
    ops.backward_weight = host_backward_weight;
    job->stages[s].stage.ops = &ops;
  }
}

/* ---- Names for what the driver finds ---- */

static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER;
static struct weft_pipeline *pipelines[CUDA_RANKS_MAX];

static void name_pipeline(uint32_t rank, struct weft_pipeline *pipeline) {
  pthread_mutex_lock(&names_lock);
  pipelines[rank] = pipeline;
  pthread_mutex_unlock(&names_lock);
}

static bool is_streams(const struct weft_device_work *work, const void *stream) {
  return work != NULL &&
         (work->stream == stream || work->second == stream || work->incoming == stream ||
          work->outgoing == stream || work->watch == stream);
}

/* "1F3 of rank 1": the action that the rank is enqueuing; of an overlap, the part. */
static void name_action(const struct weft_pipeline *pipeline, char *text, size_t size) {
  const struct weft_executor *executor = &pipeline->executor;
  const bool runs = pipeline->state == WEFT_PIPELINE_RUNNING; /* else its row may be gone */
  const struct weft_row *row = pipeline->last_row;
  char action[64] = "the end";
  if (!runs) {
    (void)snprintf(action, sizeof action, "the batch");
  } else if (executor->at < row->end) {
    const struct weft_action *cell = &row->program->actions[executor->at];
    const bool part = weft_cell_parts(cell) > 0 && executor->cell_step == WEFT_CELL_CALLING &&
                      executor->sub_action_at < executor->sub_action_count;
    (void)weft_action_format(part ? executor->sub_actions[executor->sub_action_at].action : cell,
                             action, sizeof action);
  }
  (void)snprintf(text, size, "%s of rank %u", action, executor->transport->rank);
}

static bool label(void *stream, char *text, size_t size) {
  bool found = false;
  pthread_mutex_lock(&names_lock);
  for (uint32_t r = 0; r < CUDA_RANKS_MAX && !found; r++) {
    found = pipelines[r] != NULL && is_streams(pipelines[r]->executor.device, stream);
    if (found) {
      name_action(pipelines[r], text, size);
    }
  }
  pthread_mutex_unlock(&names_lock);
  return found;
}

/* ---- A rank ---- */

void cuda_job_read_grads(struct cuda_job *job) {
  for (uint32_t s = 0; s < job->stage_count; s++) {
    struct weft_error error;
    if (weft_linear_stage_read(&job->stages[s], true, job->results->grads[s], &error) < 0) {
      fail_msg("%s", error.message);
    }
  }
}

static void meet(struct cuda_job *job, uint32_t rank, uint32_t k, bool after) {
  void (*call)(struct cuda_job *, uint32_t) = after ? job->after : job->before;
  if (call == NULL) {
    return;
  }
  (void)pthread_barrier_wait(&job->barrier);
  if (rank == 0) {
    call(job, k);
  }
  (void)pthread_barrier_wait(&job->barrier);
}

static enum weft_status run_step(struct cuda_job *job, struct weft_pipeline *pipeline,
                                 uint32_t rank, uint32_t k, struct weft_error *error) {
  const struct cuda_step step = step_of(job, k);
  const bool is_last = job->rank_of[job->stage_count - 1] == rank;
  const struct weft_tensor_shape shape = {
      .dtype = WEFT_F32,
      .dim_count = 2,
      .dims = {(uint64_t)step.microbatches * CUDA_ROWS + !step.even, CUDA_WIDTH}};
  const struct weft_tensor input = {.data = batch_data(0), .shape = shape};
  const struct weft_tensor target = {.data = batch_data(1), .shape = shape};
  const struct weft_batch batch = {.microbatch_count = step.microbatches,
                                   .inputs = &input,
                                   .input_count = 1,
                                   .targets = &target,
                                   .target_count = 1,
                                   .want_losses = is_last,
                                   .want_outputs = is_last && step.outputs};
  struct weft_step_result result;
  if (step.twice) {
    WEFT_TRY(weft_pipeline_set_source(pipeline, weft_source_named, &job->sources[CUDA_STEPS_MAX],
                                      error));
  }
  if (step.schedule != NULL) {
    WEFT_TRY(weft_pipeline_set_source(pipeline, weft_source_named, &job->sources[k], error));
  }
  WEFT_TRY(
      (step.evaluates ? weft_pipeline_eval : weft_pipeline_step)(pipeline, &batch, &result, error));
  if (is_last) {
    const uint32_t to = job->after != NULL ? 0 : k % CUDA_STEPS_MAX;
    if (device_of(job, rank) != NULL && fake_cuda_host_reads != NULL) {
      fake_cuda_host_reads(result.losses, step.microbatches * sizeof result.losses[0]);
    }
    memcpy(job->results->losses[to], result.losses, step.microbatches * sizeof result.losses[0]);
    if (step.outputs) {
      assert_int_equal(result.outputs.items[0].shape.dims[0], shape.dims[0]);
      memcpy(job->results->outputs, result.outputs.items[0].data,
             (size_t)shape.dims[0] * sizeof job->results->outputs[0]);
    }
  }
  return WEFT_OK;
}

struct finish_context {
  struct cuda_job *job;
  uint32_t rank;
};

static enum weft_status finish(void *context, uint32_t pass, struct weft_stream *stream,
                               struct weft_error *error) {
  const struct finish_context *of = context;
  return of->job->finish(of->job, of->rank, pass, stream, error);
}

static enum weft_status run_rank(struct cuda_job *job, struct weft_transport *transport,
                                 struct weft_error *error) {
  struct weft_stage *stages[CUDA_STAGES_MAX];
  const struct weft_boundary boundary = {
      .tensor_count = 1,
      .own_output = job->own_outputs,
      .tensors = {
          {.largest = {.dtype = WEFT_F32, .dim_count = 2, .dims = {CUDA_ROWS + 1, CUDA_WIDTH}},
           .needs_grad = true}}};
  for (uint32_t s = 0; s < job->stage_count; s++) {
    stages[s] = &job->stages[s].stage;
  }
  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = job->program != NULL ? weft_source_fixed : weft_source_named;
  options.source_context =
      job->program != NULL ? (void *)&job->fixed : (void *)&job->sources[CUDA_STEPS_MAX];
  options.microbatch_count = job->microbatches;
  options.stages = stages;
  options.stage_count = job->stage_count;
  options.boundaries = &boundary;
  options.boundary_count = 1;
  options.eager = job->eager;
  options.record_slow = true; /* over NCCL, in PyTorch's order of transfers too */
  options.no_events = job->no_events;
  options.device = device_of(job, transport->rank);
  options.stall_limit = job->stall_limit > 0 ? job->stall_limit : options.stall_limit;
  uint32_t first = 0;
  while (first + 1 < job->ranks && (job->host_ranks >> first & 1) != 0) {
    first++;
  }
  options.log = transport->rank == first ? note_line : NULL;
  options.log_context = job;
  options.interrupted = job->interrupted;
  struct finish_context finish_context = {job, transport->rank};
  options.finish = job->finish != NULL ? finish : NULL;
  options.finish_context = &finish_context;
  struct weft_pipeline *pipeline;
  WEFT_TRY(weft_pipeline_create(job->allocator, transport, &options, &pipeline, error));
  name_pipeline(transport->rank, pipeline);
  enum weft_status status = WEFT_OK;
  for (uint32_t k = 0; k < job->step_count && status == WEFT_OK; k++) {
    meet(job, transport->rank, k, false);
    status = run_step(job, pipeline, transport->rank, k, error);
    if (status == WEFT_OK && job->look != NULL) {
      job->look(job, pipeline, transport->rank, k);
    }
    if (status == WEFT_OK) {
      meet(job, transport->rank, k, true);
    }
  }
  name_pipeline(transport->rank, NULL);
  weft_pipeline_destroy(pipeline);
  return status;
}

static enum weft_status rank_main(void *context, struct weft_transport *transport,
                                  struct weft_error *error) {
  struct cuda_job *job = context;
  const enum weft_status status = run_rank(job, transport, error);
  if (status < 0) {
    job->errors[transport->rank] = *error;
    (void)__atomic_fetch_add(&job->failed_ranks, 1, __ATOMIC_RELAXED);
  }
  return status;
}

/* ---- The world ---- */

static enum weft_status run_world(struct cuda_job *job, struct weft_error *error) {
  struct weft_comm_options options = weft_comm_options_default();
  struct weft_comm *comm;
  options.rank_count = job->ranks;
  for (uint32_t s = 0; s < job->stage_count; s++) {
    const uint32_t rank = job->rank_of[s];
    struct weft_cuda *cuda = device_of(job, rank) != NULL ? job->cuda : NULL;
    WEFT_TRY(weft_linear_stage_init(&job->stages[s], cuda, number_of(job, rank), CUDA_WIDTH,
                                    CUDA_WIDTH, 100 + s, error));
    look_at_host_stage(job, s);
  }
  if (job->with_stages != NULL) {
    job->with_stages(job);
  }
  options.communicator = job->communicator;
  const char *transport = job->communicator != NULL ? "nccl"
                          : job->cuda != NULL       ? "cuda"
                                                    : "threads";
  WEFT_TRY(weft_comm_open(job->allocator, transport, &options, &comm, error));
  enum weft_status status = weft_comm_run(comm, rank_main, job, error);
  for (uint32_t s = 0; s < job->stage_count && status == WEFT_OK; s++) {
    status = weft_linear_stage_read(&job->stages[s], true, job->results->grads[s], error);
  }
  job->stuck_ranks = weft_comm_stuck_ranks(comm);
  weft_comm_close(comm);
  return status;
}

static enum weft_status run_job(struct cuda_job *job, struct cuda_results *results,
                                struct weft_error *error) {
  memset(results, 0, sizeof *results);
  memset(job->errors, 0, sizeof job->errors);
  memset(job->stages, 0, sizeof job->stages);
  job->results = results;
  job->failed_ranks = 0;
  job->log[0] = '\0';
  (void)batch_data(0); /* drawn before there are threads */
  if (fake_cuda_label_by != NULL) {
    fake_cuda_label_by(label);
  }
  for (uint32_t k = 0; job->steps != NULL && k < job->step_count; k++) {
    job->sources[k] =
        (struct weft_named_source){.schedule = job->steps[k].schedule, .ranks = job->ranks};
  }
  assert_true(cuda_job_fits(job));
  assert_int_equal(pthread_barrier_init(&job->barrier, NULL, job->ranks), 0);
  const enum weft_status status = run_world(job, error);
  for (uint32_t s = 0; s < job->stage_count; s++) {
    weft_linear_stage_finish(&job->stages[s]);
  }
  (void)pthread_barrier_destroy(&job->barrier);
  return status;
}

enum weft_status cuda_job_run_on_host(struct cuda_job *job, struct cuda_results *results,
                                      struct weft_error *error) {
  struct cuda_job host = *job;
  host.before = host.after = NULL;
  host.look = NULL;
  host.cuda = NULL;
  host.communicator = NULL;
  return run_job(&host, results, error);
}

void cuda_job_keep_rank(const struct cuda_job *job, uint32_t rank, struct cuda_results *results) {
  if (job->rank_of[job->stage_count - 1] != rank) {
    memset(results->losses, 0, sizeof results->losses);
    memset(results->outputs, 0, sizeof results->outputs);
  }
  for (uint32_t s = 0; s < job->stage_count; s++) {
    if (job->rank_of[s] != rank) {
      memset(results->grads[s], 0, sizeof results->grads[s]);
    }
  }
}

bool cuda_job_same(const void *a, const void *b, size_t bytes) { return memcmp(a, b, bytes) == 0; }

/* ---- What the driver found ---- */

void cuda_job_check_findings(const struct cuda_job *job) {
  if (fake_cuda_finding_count() > 0) {
    fail_msg("%s, %u ranks, %s: %s", job->schedule, job->ranks, job->eager ? "eager" : "graph",
             fake_cuda_finding(0));
  }
}

static struct fake_cuda_statistics statistics(void) {
  const struct fake_cuda_statistics none = {.blocks = 0};
  return fake_cuda_statistics != NULL ? fake_cuda_statistics() : none;
}

/* How many objects there are more than before the run, and of which kinds. */
static int64_t count_leaks(const struct cuda_job *job, char *text, size_t size) {
  const struct fake_cuda_statistics now = statistics();
  const struct fake_cuda_statistics *before = &job->objects;
  const struct {
    const char *kind;
    uint64_t now, before;
  } kinds[] = {{"blocks", now.blocks, before->blocks},
               {"pinned blocks", now.pinned_blocks, before->pinned_blocks},
               {"streams", now.streams, before->streams},
               {"events", now.events, before->events},
               {"graphs", now.graphs, before->graphs},
               {"executables", now.executables, before->executables},
               {"libraries", now.libraries, before->libraries},
               {"contexts", now.contexts, before->contexts},
               {"partitions", now.partitions, before->partitions}};
  int64_t leaks = 0;
  text[0] = '\0';
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(kinds); k++) {
    const int64_t more = (int64_t)(kinds[k].now - kinds[k].before);
    const size_t used = strlen(text);
    if (more != 0) {
      (void)snprintf(text + used, size - used, " %+" PRId64 " %s", more, kinds[k].kind);
    }
    leaks += more;
  }
  return leaks;
}

bool cuda_job_leaks(const struct cuda_job *job) {
  char text[256];
  return count_leaks(job, text, sizeof text) != 0;
}

void cuda_job_check_leaks(const struct cuda_job *job, const char *what) {
  char text[256];
  if (count_leaks(job, text, sizeof text) != 0) {
    fail_msg("%s, %u ranks, %s: the driver's objects are not those of before:%s", job->schedule,
             job->ranks, what, text);
  }
}

enum weft_status cuda_job_run(struct cuda_job *job, struct cuda_results *results,
                              struct weft_error *error) {
  const struct weft_cuda_options options = {
      .gpus = job->gpus, .gpu_count = job->gpu_count, .partitions = job->partitions};
  job->objects = statistics();
  job->failed_ranks = 0;
  const uint32_t ranks = job->communicator != NULL ? 1 : job->ranks;
  WEFT_TRY(weft_cuda_open(NULL, &options, ranks, &job->cuda, error));
  const enum weft_status status = run_job(job, results, error);
  weft_cuda_close(job->cuda);
  job->cuda = NULL;
  return status;
}
