/* A trainer whose stages form a graph: a skip connection, and two heads with targets of their own.
 *
 *     0 --> 1 --> 2 --> 3 (head)        a stage is tanh((sum of its inputs) W)
 *      `---- | --------^
 *             `--> 4 (head)
 *
 *     cc examples/graph_trainer.c $(pkg-config --cflags --libs weft-run) -lm -o graph_trainer
 *     ./graph_trainer 1F1B             (a thread per rank; or ./graph_trainer 1F1B loopback)
 * Any schedule with one stage per rank works: GPipe, 1F1B, Eager1F1B, ZBH1. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <weft/comm.h>
#include <weft/graph.h>
#include <weft/run.h>
#include <weft/source.h>

enum { STAGES = 5, N = 8, ROWS = 64, COUNT = ROWS * N, MICROBATCHES = 8, STEPS = 400 };

struct training {
  struct weft_named_source source;
  double losses[STAGES][STEPS / 100 + 1]; /* each written by the rank of that head */
};

struct layer {
  struct weft_stage stage;
  float w[N * N], dw[N * N];
};

static float *data_of(const struct weft_tensors *t) { return t->items[0].data; }

/* All in-edges bring tensors of one shape. An output goes over all out-edges: what leaves stage 0
 * is one tensor for the stages 1 and 3, and Weft adds up the two gradients that come back. */
static enum weft_status forward(struct weft_stage *stage, struct weft_stage_call *call,
                                struct weft_error *error) {
  const struct layer *layer = (struct layer *)stage;
  const uint64_t count = call->inputs[0].items[0].shape.dims[0] * N;
  float *y = data_of(call->outputs), *x = call->saved, *slope = x + COUNT; /* for the backward */
  (void)error;
  call->outputs->items[0].shape = call->inputs[0].items[0].shape;
  for (uint64_t k = 0; k < count; k++) {
    x[k] = 0;
    for (uint32_t e = 0; e < call->input_count; e++) x[k] += data_of(&call->inputs[e])[k];
  }
  for (uint64_t k = 0; k < count; k++) {
    float sum = 0;
    for (uint64_t i = 0; i < N; i++) sum += x[k / N * N + i] * layer->w[i * N + k % N];
    y[k] = tanhf(sum);
    slope[k] = 1 - y[k] * y[k];
  }
  return WEFT_OK;
}

static enum weft_status loss(struct weft_stage *stage, struct weft_stage_call *call,
                             struct weft_error *error) {
  const float *y = data_of(call->outputs), *target = data_of(call->targets);
  const uint64_t count = call->outputs->items[0].shape.dims[0] * N;
  (void)stage, (void)error;
  for (uint64_t k = 0; k < count; k++) {
    const float difference = y[k] - target[k];
    *call->loss += difference * difference / (double)count;
    if (call->training) data_of(call->output_grads)[k] = 2 * difference / (float)count;
  }
  return WEFT_OK;
}

/* The gradient of the sum of the inputs is that of each of them. */
static enum weft_status backward_input(struct weft_stage *stage, struct weft_stage_call *call,
                                       struct weft_error *error) {
  const struct layer *layer = (struct layer *)stage;
  const uint64_t count = call->inputs[0].items[0].shape.dims[0] * N;
  float *ds = (float *)call->saved + COUNT;
  (void)error;
  for (uint64_t k = 0; k < count; k++) ds[k] *= data_of(call->output_grads)[k];
  for (uint64_t k = 0; k < count; k++) {
    float sum = 0;
    for (uint64_t j = 0; j < N; j++) sum += ds[k / N * N + j] * layer->w[k % N * N + j];
    for (uint32_t e = 0; e < call->input_count; e++) {
      if (call->input_grads[e].count > 0) data_of(&call->input_grads[e])[k] = sum;
    }
  }
  return WEFT_OK;
}

static enum weft_status backward_weight(struct weft_stage *stage, struct weft_stage_call *call,
                                        struct weft_error *error) {
  struct layer *layer = (struct layer *)stage;
  (void)error;
  for (uint64_t r = 0; r < call->inputs[0].items[0].shape.dims[0]; r++) {
    const float *x = (float *)call->saved + r * N, *ds = x + COUNT;
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

static enum weft_status rank_main(void *context, struct weft_transport *transport,
                                  struct weft_error *error) {
  static const struct weft_tensor_shape shape = {WEFT_F32, 2, {0}, {ROWS, N}};
  const struct weft_boundary boundary = {.tensor_count = 1, .tensors = {{"x", shape, true}}};
  struct training *training = context;
  const uint32_t own = transport->rank;
  struct layer *layer = calloc(1, sizeof *layer);
  struct weft_stage *stages[STAGES] = {NULL};
  unsigned seed = own + 1, data = 12345; /* the same data on every rank */
  for (int k = 0; k < N * N; k++) layer->w[k] = 0.7f * noise(&seed);
  layer->stage.ops = &layer_ops, layer->stage.saved_bytes = 2 * COUNT * sizeof(float);
  stages[own] = &layer->stage;

  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = weft_source_named, options.source_context = &training->source;
  options.microbatch_count = MICROBATCHES;
  options.stages = stages, options.stage_count = STAGES;
  options.boundaries = &boundary, options.boundary_count = 1; /* one for all edges */
  options.scale_grads = false;
  struct weft_pipeline *pipeline = NULL;
  enum weft_status status = weft_pipeline_create(NULL, transport, &options, &pipeline, error);

  float x[COUNT], differences[COUNT], means[COUNT];
  const struct weft_tensor input = {"x", x, NULL, shape};
  const struct weft_tensor targets[] = {{"y", differences, NULL, shape}, {"y", means, NULL, shape}};
  const struct weft_stage_batch heads[] = {{.stage = 3, .targets = &targets[0], .target_count = 1},
                                           {.stage = 4, .targets = &targets[1], .target_count = 1}};
  struct weft_batch batch = {.microbatch_count = MICROBATCHES, .inputs = &input, .input_count = 1};
  batch.stages = heads, batch.stage_count = 2, batch.want_losses = own >= 3;
  for (int step = 0; step <= STEPS && status == WEFT_OK; step++) {
    for (int k = 0; k < COUNT; k++) x[k] = noise(&data);
    for (int k = 0; k < COUNT; k++) differences[k] = 0.5f * x[k] - 0.5f * x[k ^ 1];
    for (int k = 0; k < COUNT; k++) means[k] = 0.5f * x[k] + 0.5f * x[k ^ 1];
    struct weft_step_result result = {0};
    status = weft_pipeline_step(pipeline, &batch, &result, error);
    for (int k = 0; k < N * N; k++) layer->w[k] -= 0.1f * layer->dw[k], layer->dw[k] = 0;
    for (uint32_t k = 0; k < result.loss_count && step % 100 == 0; k++) {
      training->losses[own][step / 100] += result.losses[k] / MICROBATCHES;
    }
  }
  weft_pipeline_destroy(pipeline);
  free(layer);
  return status;
}

int main(int argc, char **argv) {
  const struct weft_edge edges[] = {weft_edge_make(0, 1), weft_edge_make(1, 2),
                                    weft_edge_make(2, 3), weft_edge_make(0, 3),
                                    weft_edge_make(1, 4)};
  struct training training = {.source = {.schedule = argc > 1 ? argv[1] : "1F1B", .ranks = STAGES}};
  struct weft_comm_options options = weft_comm_options_default();
  struct weft_graph *graph = NULL;
  struct weft_comm *comm = NULL;
  struct weft_error error;
  options.rank_count = STAGES;
  enum weft_status status = weft_graph_create(NULL, STAGES, edges, 5, NULL, &graph, &error);
  training.source.graph = graph;
  if (status == WEFT_OK) {
    status = weft_comm_open(NULL, argc > 2 ? argv[2] : "threads", &options, &comm, &error);
  }
  if (status == WEFT_OK) status = weft_comm_run(comm, rank_main, &training, &error);
  if (status != WEFT_OK) fprintf(stderr, "%s\n%s\n", error.message, error.hint);
  for (int k = 0; k <= STEPS / 100 && status == WEFT_OK; k++) {
    printf("step %3d  losses %.4f %.4f\n", 100 * k, training.losses[3][k], training.losses[4][k]);
  }
  weft_comm_close(comm);
  weft_graph_destroy(graph);
  return status == WEFT_OK ? 0 : 1;
}
