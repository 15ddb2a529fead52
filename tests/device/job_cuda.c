/* Linear stages on GPUs beside the host: losses and gradients must have the same bits on every
 * schedule, enqueued action by action and as a graph.
 *
 *     job_cuda [PARTITIONS [RANKS...]]
 *
 * Prints a line per case that differs or fails, and a summary. Exit status: 0 all the same, 1 not,
 * 77 without a GPU. On the fake driver (fake_cuda/) it runs without one. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/comm.h>
#include <weft/cuda.h>
#include <weft/run.h>
#include <weft/source.h>
#include <weft/support.h>

enum { WIDTH = 24, ROWS = 3, STEPS = 4, STAGES_MAX = 64, MICROBATCHES_MAX = 64 };

struct results {
  double losses[STEPS][MICROBATCHES_MAX];
  float grads[STAGES_MAX][WIDTH * WIDTH];
};

struct job {
  struct weft_named_source source;
  uint32_t microbatches, stage_count;
  struct weft_cuda *cuda; /* NULL: on the host */
  bool no_graph;
  uint32_t rank_of[STAGES_MAX];
  float inputs[MICROBATCHES_MAX * ROWS * WIDTH];
  float targets[MICROBATCHES_MAX * ROWS * WIDTH];
  struct weft_linear_stage stages[STAGES_MAX];
  struct results *results;
};

static enum weft_status find_placement(struct job *job, struct weft_error *error) {
  struct weft_program *program;
  WEFT_TRY(weft_source_named(&job->source, job->microbatches, true, &program, error));
  job->stage_count = program->stage_count;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      if (program->actions[i].op == WEFT_OP_F) {
        job->rank_of[program->actions[i].stage] = r;
      }
    }
  }
  weft_program_destroy(program);
  return WEFT_OK;
}

static enum weft_status make_stages(struct job *job, struct weft_error *error) {
  for (uint32_t s = 0; s < job->stage_count; s++) {
    struct weft_device *device =
        job->cuda != NULL ? weft_cuda_device(job->cuda, job->rank_of[s]) : NULL;
    WEFT_TRY(weft_linear_stage_init(&job->stages[s], device, WIDTH, WIDTH, 100 + s, error));
  }
  return WEFT_OK;
}

static enum weft_status run_steps(struct job *job, struct weft_pipeline *pipeline, bool is_last,
                                  struct weft_error *error) {
  const struct weft_tensor_shape shape = {
      .dtype = WEFT_F32, .dim_count = 2, .dims = {(uint64_t)job->microbatches * ROWS, WIDTH}};
  const struct weft_tensor input = {.data = job->inputs, .shape = shape};
  const struct weft_tensor target = {.data = job->targets, .shape = shape};
  const struct weft_batch batch = {.microbatch_count = job->microbatches,
                                   .inputs = &input,
                                   .input_count = 1,
                                   .targets = &target,
                                   .target_count = 1,
                                   .want_losses = is_last};
  for (uint32_t step = 0; step < STEPS; step++) {
    struct weft_step_result result;
    WEFT_TRY(weft_pipeline_step(pipeline, &batch, &result, error));
    for (uint32_t m = 0; is_last && m < job->microbatches; m++) {
      job->results->losses[step][m] = result.losses[m];
    }
  }
  return WEFT_OK;
}

static enum weft_status rank_main(void *context, struct weft_transport *transport,
                                  struct weft_error *error) {
  struct job *job = context;
  struct weft_stage *stages[STAGES_MAX];
  const struct weft_boundary boundary = {
      .tensor_count = 1,
      .tensors = {{.largest = {.dtype = WEFT_F32, .dim_count = 2, .dims = {ROWS, WIDTH}},
                   .needs_grad = true}}};
  for (uint32_t s = 0; s < job->stage_count; s++) {
    stages[s] = &job->stages[s].stage;
  }
  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = weft_source_named;
  options.source_context = &job->source;
  options.microbatch_count = job->microbatches;
  options.stages = stages;
  options.stage_count = job->stage_count;
  options.boundaries = &boundary;
  options.boundary_count = 1;
  options.no_graph = job->no_graph;
  options.device = job->cuda != NULL ? weft_cuda_device(job->cuda, transport->rank) : NULL;
  struct weft_pipeline *pipeline;
  WEFT_TRY(weft_pipeline_create(NULL, transport, &options, &pipeline, error));
  const enum weft_status status =
      run_steps(job, pipeline, job->rank_of[job->stage_count - 1] == transport->rank, error);
  weft_pipeline_destroy(pipeline);
  return status;
}

static enum weft_status run_world(struct job *job, struct weft_error *error) {
  struct weft_comm_options options = weft_comm_options_default();
  struct weft_comm *comm;
  options.rank_count = job->source.ranks;
  WEFT_TRY(weft_comm_open(NULL, job->cuda != NULL ? "cuda" : "threads", &options, &comm, error));
  enum weft_status status = weft_comm_run(comm, rank_main, job, error);
  for (uint32_t s = 0; s < job->stage_count && status == WEFT_OK; s++) {
    status = weft_linear_stage_read(&job->stages[s], true, job->results->grads[s], error);
  }
  weft_comm_close(comm);
  return status;
}

static enum weft_status run(struct job *job, struct results *results, struct weft_error *error) {
  memset(results, 0, sizeof *results);
  job->results = results;
  WEFT_TRY(find_placement(job, error));
  enum weft_status status = make_stages(job, error);
  if (status == WEFT_OK) {
    status = run_world(job, error);
  }
  for (uint32_t s = 0; s < job->stage_count; s++) {
    weft_linear_stage_finish(&job->stages[s]);
  }
  return status;
}

static bool compare(struct job *job, struct weft_cuda *cuda, bool no_graph,
                    const struct results *expected, struct results *found) {
  struct weft_error error;
  job->cuda = cuda;
  job->no_graph = no_graph;
  const char *how = no_graph ? "eager" : "graph";
  if (run(job, found, &error) < 0) {
    printf("%s, %" PRIu32 " ranks, %s: %s\n  hint: %s\n", job->source.schedule, job->source.ranks,
           how, error.message, error.hint);
    return false;
  }
  if (memcmp(expected, found, sizeof *expected) != 0) {
    printf("%s, %" PRIu32 " ranks, %s: other bits (loss %.17g, on the host %.17g)\n",
           job->source.schedule, job->source.ranks, how, found->losses[0][0],
           expected->losses[0][0]);
    return false;
  }
  return true;
}

static bool check_schedule(struct job *job, uint32_t partitions, uint32_t *cases) {
  static struct results expected, found;
  const struct weft_cuda_options options = {.partitions = partitions};
  struct weft_cuda *cuda;
  struct weft_error error;
  job->cuda = NULL;
  if (run(job, &expected, &error) < 0) {
    if (error.status == WEFT_ERR_USAGE) {
      return true; /* the schedule does not have this shape */
    }
    printf("%s on the host: %s\n", job->source.schedule, error.message);
    return false;
  }
  if (weft_cuda_open(NULL, &options, job->source.ranks, &cuda, &error) < 0) {
    printf("%s\n  hint: %s\n", error.message, error.hint);
    exit(error.status == WEFT_ERR_UNAVAILABLE ? 77 : 1);
  }
  bool same = compare(job, cuda, true, &expected, &found);
  same = compare(job, cuda, false, &expected, &found) && same;
  *cases += 2;
  weft_cuda_close(cuda);
  return same;
}

static bool check_ranks(struct job *job, uint32_t ranks, uint32_t partitions, uint32_t *cases) {
  bool same = true;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    if (info->trains && !info->fixed) {
      job->source = (struct weft_named_source){.schedule = info->name, .ranks = ranks};
      job->microbatches = 2 * ranks;
      same = check_schedule(job, partitions, cases) && same;
    }
  }
  return same;
}

int main(int argc, char **argv) {
  static struct job job;
  struct weft_random random = {.state = 7};
  const uint32_t partitions = argc > 1 ? (uint32_t)atoi(argv[1]) : 0;
  uint32_t cases = 0;
  bool same = true;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(job.inputs); k++) {
    job.inputs[k] = (float)weft_random_share(&random);
    job.targets[k] = (float)weft_random_share(&random);
  }
  for (int k = 2; k < argc; k++) {
    same = check_ranks(&job, (uint32_t)atoi(argv[k]), partitions, &cases) && same;
  }
  if (argc <= 2) {
    same = check_ranks(&job, 2, partitions, &cases) && same;
    same = check_ranks(&job, 4, partitions, &cases) && same;
  }
  printf("%" PRIu32 " runs on GPUs: %s\n", cases,
         same ? "losses and gradients have the host's bits" : "not all as on the host");
  return same ? 0 : 1;
}
