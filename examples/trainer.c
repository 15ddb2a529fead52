/* A complete trainer on Weft: four layers tanh(x W), one per rank, learn a rule.
 *     cc examples/trainer.c $(pkg-config --cflags --libs weft-run) -lm -o trainer
 *     ./trainer 1F1B             (a thread per rank; or ./trainer 1F1B loopback)
 * Any schedule with one stage per rank works: GPipe, 1F1B, Eager1F1B, ZBH1. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <weft/comm.h>
#include <weft/run.h>
#include <weft/source.h>

enum { RANKS = 4, N = 8, ROWS = 64, MICROBATCHES = 8, STEPS = 400 }; /* N: numbers in a row */

/* ---- A layer: y = tanh(x W) ---- */

struct layer {
  struct weft_stage stage;   /* first: Weft's handle on it */
  float w[N * N], dw[N * N]; /* parameters, and their gradient */
};

static float *data_of(const struct weft_tensors *t) { return t->items[0].data; }
static uint64_t rows_of(const struct weft_tensors *t) { return t->items[0].shape.dims[0]; }

static enum weft_status forward(struct weft_stage *stage, struct weft_stage_call *call,
                                struct weft_error *error) {
  struct layer *layer = (struct layer *)stage;
  const float *x = data_of(call->inputs);
  float *y = data_of(call->outputs), *slope = call->saved; /* for the backward */
  (void)error;
  call->outputs->items[0].shape = call->inputs->items[0].shape; /* as many rows as the input */
  for (uint64_t k = 0; k < rows_of(call->inputs) * N; k++) {
    float sum = 0;
    for (uint64_t i = 0; i < N; i++) sum += x[k / N * N + i] * layer->w[i * N + k % N];
    y[k] = tanhf(sum);
    slope[k] = 1 - y[k] * y[k];
  }
  return WEFT_OK;
}

/* The last layer's loss, and its gradient, from which the backward starts. */
static enum weft_status loss(struct weft_stage *stage, struct weft_stage_call *call,
                             struct weft_error *error) {
  const float *y = data_of(call->outputs), *target = data_of(call->targets);
  const uint64_t count = rows_of(call->outputs) * N;
  (void)stage, (void)error;
  for (uint64_t k = 0; k < count; k++) {
    const float difference = y[k] - target[k];
    *call->loss += difference * difference / (double)count;
    if (call->training) data_of(call->output_grads)[k] = 2 * difference / (float)count;
  }
  return WEFT_OK;
}

/* ds = dy * slope, dx = ds W^T. The backward is split for zero-bubble schedules; for the
 * others Weft calls both functions. */
static enum weft_status backward_input(struct weft_stage *stage, struct weft_stage_call *call,
                                       struct weft_error *error) {
  struct layer *layer = (struct layer *)stage;
  const uint64_t count = rows_of(call->inputs) * N;
  float *ds = call->saved;
  (void)error;
  for (uint64_t k = 0; k < count; k++) ds[k] *= data_of(call->output_grads)[k];
  for (uint64_t k = 0; k < count && call->input_grads->count > 0; k++) {
    float sum = 0;
    for (uint64_t j = 0; j < N; j++) sum += ds[k / N * N + j] * layer->w[k % N * N + j];
    data_of(call->input_grads)[k] = sum;
  }
  return WEFT_OK;
}

/* dW += x^T ds. The inputs are still valid. */
static enum weft_status backward_weight(struct weft_stage *stage, struct weft_stage_call *call,
                                        struct weft_error *error) {
  struct layer *layer = (struct layer *)stage;
  (void)error;
  for (uint64_t r = 0; r < rows_of(call->inputs); r++) {
    const float *x = data_of(call->inputs) + r * N, *ds = (float *)call->saved + r * N;
    for (int k = 0; k < N * N; k++) layer->dw[k] += x[k / N] * ds[k % N];
  }
  return WEFT_OK;
}

static const struct weft_stage_ops layer_ops = {.forward = forward,
                                                .loss = loss,
                                                .backward_input = backward_input,
                                                .backward_weight = backward_weight};

static float noise(unsigned *state) { /* -1 ... 1 */
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) / (float)(1 << 23) - 1;
}

/* ---- One rank: its layer, its pipeline, its steps ---- */

static enum weft_status rank_main(void *source, struct weft_transport *transport,
                                  struct weft_error *error) {
  static const struct weft_tensor_shape shape = {WEFT_F32, 2, {0}, {ROWS, N}};
  const struct weft_boundary boundary = {.tensor_count = 1, .tensors = {{"x", shape, true}}};
  struct layer *layer = calloc(1, sizeof *layer);
  struct weft_stage *stages[RANKS] = {NULL};
  unsigned seed = transport->rank + 1, data = 12345; /* the same data on every rank */
  for (int k = 0; k < N * N; k++) layer->w[k] = 0.7f * noise(&seed);
  layer->stage.ops = &layer_ops, layer->stage.saved_bytes = ROWS * N * sizeof(float);
  stages[transport->rank] = &layer->stage;

  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = weft_source_named, options.source_context = source;
  options.microbatch_count = MICROBATCHES;
  options.stages = stages, options.stage_count = RANKS;
  options.boundaries = &boundary, options.boundary_count = 1;
  options.scale_grads = false; /* the learning rate does it */
  struct weft_pipeline *pipeline = NULL;
  enum weft_status status = weft_pipeline_create(NULL, transport, &options, &pipeline, error);

  float x[ROWS * N], y[ROWS * N];
  const struct weft_tensor input = {"x", x, NULL, shape}, target = {"y", y, NULL, shape};
  struct weft_batch batch = {.microbatch_count = MICROBATCHES, .inputs = &input, .input_count = 1};
  batch.targets = &target, batch.target_count = 1;
  batch.want_losses = transport->rank == RANKS - 1;
  for (int step = 0; step <= STEPS && status == WEFT_OK; step++) {
    for (int k = 0; k < ROWS * N; k++) x[k] = noise(&data);
    for (int k = 0; k < ROWS * N; k++) y[k] = 0.5f * x[k] - 0.5f * x[k ^ 1]; /* the rule */
    struct weft_step_result result = {0};
    status = weft_pipeline_step(pipeline, &batch, &result, error);
    for (int k = 0; k < N * N; k++) layer->w[k] -= 0.1f * layer->dw[k], layer->dw[k] = 0;
    double mean = 0;
    for (uint32_t k = 0; k < result.loss_count; k++) mean += result.losses[k] / MICROBATCHES;
    if (result.loss_count > 0 && step % 100 == 0) printf("step %3d  loss %.4f\n", step, mean);
  }
  weft_pipeline_destroy(pipeline);
  free(layer);
  return status;
}

int main(int argc, char **argv) {
  struct weft_named_source source = {.schedule = argc > 1 ? argv[1] : "1F1B", .ranks = RANKS};
  const char *transport = argc > 2 ? argv[2] : "threads";
  struct weft_comm_options options = weft_comm_options_default();
  options.rank_count = RANKS;
  struct weft_comm *comm = NULL;
  struct weft_error error;
  enum weft_status status = weft_comm_open(NULL, transport, &options, &comm, &error);
  if (status == WEFT_OK) status = weft_comm_run(comm, rank_main, &source, &error);
  if (status != WEFT_OK) fprintf(stderr, "%s\n%s\n", error.message, error.hint);
  weft_comm_close(comm);
  return status == WEFT_OK ? 0 : 1;
}
