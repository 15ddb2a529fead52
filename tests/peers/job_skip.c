/* A model with a skip connection on Weft's runtime, for a comparison with PyTorch's own pipelining
 * (test_skip_pytorch.py): three linear stages on three threads, of which the last adds up what the
 * first and the second make. Prints weights, batch, losses and gradients as JSON.
 *
 *     job_skip SCHEDULE */
#include <stdio.h>
#include <stdlib.h>

#include <weft/comm.h>
#include <weft/gen.h>
#include <weft/run.h>
#include <weft/source.h>
#include <weft/support.h>

#include "bench/linear/linear_stage.h"

enum { STAGES = 3, MICROBATCHES = 4, ROWS = 3, WIDTH = 5, BATCH = MICROBATCHES * ROWS };

struct job {
  struct weft_fixed_source source;
  float x[BATCH * WIDTH], y[BATCH * WIDTH];
  float weights[STAGES][WIDTH * WIDTH], grads[STAGES][WIDTH * WIDTH];
  double losses[MICROBATCHES];
};

static enum weft_status step(struct job *job, struct weft_pipeline *pipeline, bool has_loss,
                             struct weft_error *error) {
  const struct weft_tensor_shape shape = {WEFT_F32, 2, {0}, {BATCH, WIDTH}};
  const struct weft_tensor x = {"x", job->x, NULL, shape}, y = {"y", job->y, NULL, shape};
  const struct weft_batch batch = {.microbatch_count = MICROBATCHES,
                                   .inputs = &x,
                                   .input_count = 1,
                                   .targets = &y,
                                   .target_count = 1,
                                   .want_losses = has_loss};
  struct weft_step_result result = {0};
  WEFT_TRY(weft_pipeline_step(pipeline, &batch, &result, error));
  for (uint32_t k = 0; k < result.loss_count; k++) {
    job->losses[k] = result.losses[k];
  }
  return WEFT_OK;
}

static enum weft_status rank_main(void *context, struct weft_transport *transport,
                                  struct weft_error *error) {
  struct job *job = context;
  const uint32_t own = transport->rank;
  const struct weft_tensor_shape shape = {WEFT_F32, 2, {0}, {ROWS, WIDTH}};
  const struct weft_boundary boundary = {.tensor_count = 1, .tensors = {{"x", shape, true}}};
  struct weft_linear_stage linear;
  struct weft_stage *stages[STAGES] = {NULL};
  WEFT_TRY(weft_linear_stage_init(&linear, NULL, 0, WIDTH, WIDTH, own + 1, error));
  stages[own] = &linear.stage;
  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = weft_source_fixed, options.source_context = &job->source;
  options.microbatch_count = MICROBATCHES;
  options.stages = stages, options.stage_count = STAGES;
  options.boundaries = &boundary, options.boundary_count = 1;
  options.scale_grads = false;
  struct weft_pipeline *pipeline = NULL;
  enum weft_status status = weft_pipeline_create(NULL, transport, &options, &pipeline, error);
  if (status == WEFT_OK) {
    status = step(job, pipeline, own == STAGES - 1, error);
  }
  if (status == WEFT_OK) {
    status = weft_linear_stage_read(&linear, false, job->weights[own], error);
  }
  if (status == WEFT_OK) {
    status = weft_linear_stage_read(&linear, true, job->grads[own], error);
  }
  weft_pipeline_destroy(pipeline);
  weft_linear_stage_finish(&linear);
  return status;
}

static void print_list(const char *name, const float *numbers, uint32_t count, const char *end) {
  printf("\"%s\": [", name);
  for (uint32_t k = 0; k < count; k++) {
    printf("%s%.9g", k > 0 ? ", " : "", (double)numbers[k]);
  }
  printf("]%s", end);
}

static void print(const struct job *job) {
  printf("{\"stages\": %d, \"microbatches\": %d, \"rows\": %d, \"width\": %d,\n", STAGES,
         MICROBATCHES, ROWS, WIDTH);
  print_list("x", job->x, BATCH * WIDTH, ",\n");
  print_list("y", job->y, BATCH * WIDTH, ",\n");
  print_list("weights", &job->weights[0][0], STAGES * WIDTH * WIDTH, ",\n");
  print_list("grads", &job->grads[0][0], STAGES * WIDTH * WIDTH, ",\n\"losses\": [");
  for (uint32_t k = 0; k < MICROBATCHES; k++) {
    printf("%s%.17g", k > 0 ? ", " : "", job->losses[k]);
  }
  printf("]}\n");
}

static enum weft_status run_job(struct job *job, const struct weft_program *table,
                                struct weft_error *error) {
  struct weft_comm_options options = weft_comm_options_default();
  struct weft_comm *comm = NULL;
  options.rank_count = STAGES;
  job->source = (struct weft_fixed_source){.program = table};
  enum weft_status status = weft_comm_open(NULL, "threads", &options, &comm, error);
  if (status == WEFT_OK) {
    status = weft_comm_run(comm, rank_main, job, error);
  }
  weft_comm_close(comm);
  return status;
}

int main(int argc, char **argv) {
  const struct weft_edge edges[] = {weft_edge_make(0, 1), weft_edge_make(1, 2),
                                    weft_edge_make(0, 2)};
  struct weft_shape shape = {.ranks = STAGES, .stages_per_rank = 1, .microbatches = MICROBATCHES};
  static struct job job;
  struct weft_random random = {22};
  struct weft_graph *graph = NULL;
  struct weft_program *table = NULL;
  struct weft_error error;
  for (uint32_t k = 0; k < BATCH * WIDTH; k++) {
    job.x[k] = (float)(2 * weft_random_share(&random) - 1);
    job.y[k] = (float)(2 * weft_random_share(&random) - 1);
  }
  enum weft_status status =
      weft_graph_create(NULL, STAGES, edges, WEFT_ARRAY_LENGTH(edges), NULL, &graph, &error);
  if (status == WEFT_OK) {
    shape.graph = graph;
    status = weft_generate(NULL, argc > 1 ? argv[1] : "1F1B", &shape, &table, &error);
  }
  if (status == WEFT_OK) {
    status = run_job(&job, table, &error);
  }
  weft_program_destroy(table);
  weft_graph_destroy(graph);
  if (status < 0) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  print(&job);
  return 0;
}
