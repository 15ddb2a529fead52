/* A trainer under MPI: one layer y = w x per process, learning y = -x. A rank that dies,
 * fails or hangs ends the whole job with one report, exit status 75, and what all ranks were
 * doing in hang.json, for `weft explain-hang`.
 *     cc examples/mpi_trainer.c $(pkg-config --cflags --libs weft-run) -o mpi_trainer
 *     mpirun -n 4 ./mpi_trainer [STEPS] */
#include <stdio.h>
#include <stdlib.h>
#include <weft/comm.h>
#include <weft/launch.h>
#include <weft/run.h>
#include <weft/source.h>

enum { ROWS = 64, MICROBATCHES = 8, RANKS_MAX = 64 };

/* ---- A layer: y = w x ---- */

struct layer {
  struct weft_stage stage; /* first: Weft's handle on it */
  float w, dw;
};

static float *data_of(const struct weft_tensors *t) { return t->items[0].data; }
static uint64_t rows_of(const struct weft_tensors *t) { return t->items[0].shape.dims[0]; }

static enum weft_status forward(struct weft_stage *stage, struct weft_stage_call *call,
                                struct weft_error *error) {
  const struct layer *layer = (struct layer *)stage;
  (void)error;
  call->outputs->items[0].shape = call->inputs->items[0].shape;
  for (uint64_t k = 0; k < rows_of(call->inputs); k++)
    data_of(call->outputs)[k] = layer->w * data_of(call->inputs)[k];
  return WEFT_OK;
}

static enum weft_status loss(struct weft_stage *stage, struct weft_stage_call *call,
                             struct weft_error *error) {
  const uint64_t rows = rows_of(call->outputs);
  (void)stage, (void)error;
  for (uint64_t k = 0; k < rows; k++) {
    const float difference = data_of(call->outputs)[k] - data_of(call->targets)[k];
    *call->loss += difference * difference / (double)rows;
    if (call->training) data_of(call->output_grads)[k] = 2 * difference / (float)rows;
  }
  return WEFT_OK;
}

static enum weft_status backward(struct weft_stage *stage, struct weft_stage_call *call,
                                 struct weft_error *error) {
  struct layer *layer = (struct layer *)stage;
  const float *dy = data_of(call->output_grads), *x = data_of(call->inputs);
  (void)error;
  for (uint64_t k = 0; k < rows_of(call->inputs); k++) {
    layer->dw += dy[k] * x[k];
    if (call->input_grads->count > 0) data_of(call->input_grads)[k] = layer->w * dy[k];
  }
  return WEFT_OK;
}

static const struct weft_stage_ops layer_ops = {
    .forward = forward, .loss = loss, .backward = backward};

/* ---- One rank: its layer, its pipeline, its steps ---- */

static enum weft_status train(struct weft_transport *transport, long steps,
                              struct weft_error *error) {
  static const struct weft_tensor_shape shape = {WEFT_F32, 1, {0}, {ROWS}};
  const struct weft_boundary boundary = {.tensor_count = 1, .tensors = {{"x", shape, true}}};
  const uint32_t last = transport->rank_count - 1;
  struct weft_named_source schedule = {.schedule = "1F1B", .ranks = transport->rank_count};
  struct layer layer = {.stage.ops = &layer_ops, .w = transport->rank == last ? -0.3f : 0.8f};
  struct weft_stage *stages[RANKS_MAX] = {NULL};
  stages[transport->rank] = &layer.stage;

  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = weft_source_named, options.source_context = &schedule;
  options.microbatch_count = MICROBATCHES;
  options.stages = stages, options.stage_count = transport->rank_count;
  options.boundaries = &boundary, options.boundary_count = 1;
  options.scale_grads = false; /* the learning rate does it */
  options.interrupted = weft_launch_is_interrupted;
  struct weft_pipeline *pipeline = NULL;
  enum weft_status status = weft_pipeline_create(NULL, transport, &options, &pipeline, error);

  float x[ROWS], y[ROWS];
  for (int k = 0; k < ROWS; k++) x[k] = (float)k / ROWS - 0.5f, y[k] = -x[k];
  const struct weft_tensor input = {.name = "x", .data = x, .shape = shape};
  const struct weft_tensor target = {.name = "y", .data = y, .shape = shape};
  struct weft_batch batch = {.microbatch_count = MICROBATCHES, .inputs = &input, .input_count = 1};
  batch.targets = &target, batch.target_count = 1;
  batch.want_losses = transport->rank == last;
  for (long step = 0; step <= steps && status == WEFT_OK; step++) {
    struct weft_step_result result = {0};
    double mean = 0;
    status = weft_pipeline_step(pipeline, &batch, &result, error);
    layer.w -= 0.005f * layer.dw;
    layer.dw = 0;
    for (uint32_t k = 0; k < result.loss_count; k++) mean += result.losses[k] / MICROBATCHES;
    if (result.loss_count > 0 && step % 100 == 0) {
      printf("step %3ld  loss %.6f\n", step, mean);
      fflush(stdout);
    }
  }
  weft_pipeline_destroy(pipeline);
  return status;
}

/* After a failure: what all ranks were doing, in a file. */
static void write_hang_file(struct weft_transport *transport, const char *path) {
  struct weft_text text = {0};
  FILE *file = NULL;
  if (weft_launch_is_reporter(transport) && weft_hang_dump(transport, &text, NULL) == WEFT_OK &&
      (file = fopen(path, "w")) != NULL) {
    fputs(text.data, file);
    fclose(file);
  }
  weft_text_finish(&text);
}

int main(int argc, char **argv) {
  struct weft_error error = {.status = WEFT_OK};
  struct weft_comm *comm = NULL;
  weft_launch_begin("mpi_trainer"); /* from here on this is the rank, below a supervisor */
  weft_launch_signals_begin();
  weft_launch_startup_begin(NULL, 0);
  enum weft_status status = weft_comm_open(NULL, "mpi", NULL, &comm, &error);
  weft_launch_startup_end();
  if (status == WEFT_OK) {
    status = train(weft_comm_local(comm), argc > 1 ? atol(argv[1]) : 300, &error);
    if (status != WEFT_OK) write_hang_file(weft_comm_local(comm), "hang.json");
  }
  return weft_launch_end(comm, status == WEFT_OK ? NULL : &error);
}
