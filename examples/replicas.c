/* Data parallelism: replicas of a pipeline share the batch and average their gradients.
 *     cc examples/replicas.c $(pkg-config --cflags --libs weft-run) -o replicas
 *     ./replicas 2 full              2 replicas, sharded; a thread per rank
 *     mpirun -n 4 ./replicas 2       the same, with a process per rank; not sharded
 * Rank d * P + r runs stage r of replica d. Both commands print the same, bit for bit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/launch.h>
#include <weft/run.h>
#include <weft/source.h>
#include <weft/support.h>

enum { N = 12, ROWS = 24, MICROBATCHES = 4, RANKS = 4, STEPS = 200, RANKS_MAX = 64 };

struct job {
  uint32_t replicas;
  bool shards;
};

/* ---- A layer: y = w x, number by number; its replicas are a group ---- */

struct layer {
  struct weft_stage stage; /* first: Weft's handle on it */
  float w[N], dw[N];       /* all weights; sharded, they are valid from unshard to reshard */
  float share[N], share_grad[N];
  float *own, *own_grad; /* what this replica updates: its share, or all */
  uint32_t own_count;
  struct weft_group *group; /* the replicas of this layer */
  struct weft_collective collective;
};

static float *data_of(const struct weft_tensors *t) { return t->items[0].data; }
static uint64_t count_of(const struct weft_tensors *t) { return t->items[0].shape.dims[0] * N; }

static enum weft_status forward(struct weft_stage *stage, struct weft_stage_call *call,
                                struct weft_error *error) {
  const struct layer *layer = (struct layer *)stage;
  (void)error;
  call->outputs->items[0].shape = call->inputs->items[0].shape;
  for (uint64_t k = 0; k < count_of(call->inputs); k++)
    data_of(call->outputs)[k] = layer->w[k % N] * data_of(call->inputs)[k];
  return WEFT_OK;
}

static enum weft_status loss(struct weft_stage *stage, struct weft_stage_call *call,
                             struct weft_error *error) {
  const uint64_t count = count_of(call->outputs);
  (void)stage, (void)error;
  for (uint64_t k = 0; k < count; k++) {
    const float difference = data_of(call->outputs)[k] - data_of(call->targets)[k];
    *call->loss += difference * difference / (double)count;
    if (call->training) data_of(call->output_grads)[k] = 2 * difference / (float)count;
  }
  return WEFT_OK;
}

static enum weft_status backward(struct weft_stage *stage, struct weft_stage_call *call,
                                 struct weft_error *error) {
  struct layer *layer = (struct layer *)stage;
  const float *dy = data_of(call->output_grads), *x = data_of(call->inputs);
  (void)error;
  for (uint64_t k = 0; k < count_of(call->inputs); k++) {
    layer->dw[k % N] += dy[k] * x[k];
    if (call->input_grads->count > 0) data_of(call->input_grads)[k] = layer->w[k % N] * dy[k];
  }
  return WEFT_OK;
}

/* A collective never blocks: Weft calls again, with call->again, until it is done. */
static enum weft_status collect(struct layer *layer, const struct weft_stage_call *call,
                                enum weft_collective_kind kind, const float *from, float *to,
                                uint32_t count, struct weft_error *error) {
  struct weft_group *group = layer->group;
  if (!call->again) {
    layer->collective = (struct weft_collective){
        .kind = kind, .from = from, .to = to, .bytes = count * sizeof(float)};
    WEFT_TRY(group->ops->start(group, &layer->collective, error));
  }
  return group->ops->test(group, &layer->collective, error);
}

/* Unsharded: every replica gets the sum. */
static enum weft_status sum_grads(struct weft_stage *stage, struct weft_stage_call *call,
                                  struct weft_error *error) {
  struct layer *layer = (struct layer *)stage;
  return collect(layer, call, WEFT_ALL_REDUCE, layer->dw, layer->dw, N, error);
}

/* Sharded: every replica gets its share of the sum, and gathers the weights before use. */
static enum weft_status scatter_grads(struct weft_stage *stage, struct weft_stage_call *call,
                                      struct weft_error *error) {
  struct layer *layer = (struct layer *)stage;
  return collect(layer, call, WEFT_REDUCE_SCATTER, layer->dw, layer->own_grad, layer->own_count,
                 error);
}

static enum weft_status unshard(struct weft_stage *stage, struct weft_stage_call *call,
                                struct weft_error *error) {
  struct layer *layer = (struct layer *)stage;
  return collect(layer, call, WEFT_ALL_GATHER, layer->own, layer->w, layer->own_count, error);
}

/* A large model would free the memory of w here. */
static enum weft_status reshard(struct weft_stage *stage, struct weft_stage_call *call,
                                struct weft_error *error) {
  (void)call, (void)error;
  memset(((struct layer *)stage)->w, 0, sizeof(float[N]));
  return WEFT_OK;
}

static const struct weft_stage_ops unsharded_ops = {
    .forward = forward, .loss = loss, .backward = backward, .reduce_grad = sum_grads};
static const struct weft_stage_ops sharded_ops = {.forward = forward,
                                                  .loss = loss,
                                                  .backward = backward,
                                                  .unshard = unshard,
                                                  .reshard = reshard,
                                                  .reduce_grad = scatter_grads};

static enum weft_status layer_init(struct layer *layer, const struct job *job,
                                   struct weft_transport *transport, struct weft_error *error) {
  const uint32_t ranks = transport->rank_count / job->replicas; /* of a pipeline */
  const uint32_t row = transport->rank % ranks, replica = transport->rank / ranks;
  uint32_t members[RANKS_MAX];
  for (uint32_t d = 0; d < job->replicas; d++) members[d] = d * ranks + row;
  for (int k = 0; k < N; k++) layer->w[k] = row == 0 ? -0.3f - 0.01f * (float)k : 0.8f;
  layer->stage.ops = job->shards ? &sharded_ops : &unsharded_ops;
  layer->own_count = job->shards ? N / job->replicas : N;
  layer->own = job->shards ? layer->share : layer->w;
  layer->own_grad = job->shards ? layer->share_grad : layer->dw;
  if (job->shards)
    memcpy(layer->share, layer->w + replica * layer->own_count, layer->own_count * sizeof(float));
  return transport->ops->group(transport, row, members, job->replicas, NULL, &layer->group, error);
}

/* Plain gradient descent on what this replica owns. */
static void layer_update(struct layer *layer, const struct job *job) {
  for (uint32_t k = 0; k < layer->own_count; k++)
    layer->own[k] -= 1.0f / (float)(MICROBATCHES * job->replicas) * layer->own_grad[k];
  memset(layer->dw, 0, sizeof layer->dw);
}

/* ---- One rank ---- */

static enum weft_status train(const struct job *job, struct layer *layer,
                              struct weft_transport *transport, struct weft_error *error) {
  static const struct weft_tensor_shape largest = {WEFT_F32, 2, {0}, {ROWS, N}};
  const struct weft_boundary boundary = {.tensor_count = 1, .tensors = {{"x", largest, true}}};
  const uint32_t ranks = transport->rank_count / job->replicas;
  const uint32_t row = transport->rank % ranks, replica = transport->rank / ranks;
  struct weft_named_source schedule = {.schedule = "1F1B", .ranks = ranks};
  struct weft_stage *stages[RANKS_MAX] = {NULL};
  stages[row] = &layer->stage;

  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = weft_source_named, options.source_context = &schedule;
  options.microbatch_count = MICROBATCHES;
  options.stages = stages, options.stage_count = ranks;
  options.boundaries = &boundary, options.boundary_count = 1;
  options.first_rank = replica * ranks;        /* this replica's ranks of the transport, */
  options.first_channel = replica * 2 * ranks; /* and its channels: two for each stage */
  options.scale_grads = false;                 /* the learning rate does it */
  options.interrupted = weft_launch_is_interrupted;
  struct weft_pipeline *pipeline = NULL;
  WEFT_TRY(weft_pipeline_create(NULL, transport, &options, &pipeline, error));

  /* The replica's share of a batch: rows replica * share ... */
  const uint64_t share = ROWS / job->replicas;
  float x[ROWS * N], y[ROWS * N];
  const struct weft_tensor_shape shape = {WEFT_F32, 2, {0}, {share, N}};
  const struct weft_tensor input = {"x", x, NULL, shape}, target = {"y", y, NULL, shape};
  struct weft_batch batch = {.microbatch_count = MICROBATCHES, .inputs = &input, .input_count = 1};
  batch.targets = &target, batch.target_count = 1;
  batch.want_losses = row == ranks - 1;
  for (uint64_t k = 0; k < share * N; k++) {
    const uint64_t k_of_batch = replica * share * N + k;
    x[k] = (float)(k_of_batch * 7 % 41) / 41 - 0.5f, y[k] = -x[k];
  }
  enum weft_status status = WEFT_OK;
  for (int step = 0; step <= STEPS && status == WEFT_OK; step++) {
    struct weft_step_result result = {0};
    double mean = 0;
    status = weft_pipeline_step(pipeline, &batch, &result, error);
    layer_update(layer, job);
    for (uint32_t k = 0; k < result.loss_count; k++) mean += result.losses[k] / MICROBATCHES;
    if (result.loss_count > 0 && replica == 0 && step % 100 == 0) {
      printf("step %3d  loss %.9f  weight %a\n", step, mean, layer->own[0]);
      fflush(stdout);
    }
  }
  weft_pipeline_destroy(pipeline);
  return status;
}

static enum weft_status rank_main(void *context, struct weft_transport *transport,
                                  struct weft_error *error) {
  const struct job *job = context;
  const uint32_t count = transport->rank_count, d = job->replicas;
  if (d == 0 || count % d != 0 || N % d != 0 || ROWS % d != 0 || count > RANKS_MAX)
    return weft_fail(error, WEFT_ERR_USAGE, "the replicas must divide the ranks, and 12",
                     "%u replicas on %u ranks", d, count);
  struct layer layer = {.group = NULL};
  enum weft_status status = layer_init(&layer, job, transport, error);
  if (status == WEFT_OK) status = train(job, &layer, transport, error);
  if (layer.group != NULL) layer.group->ops->destroy(layer.group);
  return status;
}

int main(int argc, char **argv) {
  struct job job = {argc > 1 ? (uint32_t)atoi(argv[1]) : 2,
                    argc > 2 && strcmp(argv[2], "full") == 0};
  struct weft_error error = {.status = WEFT_OK};
  struct weft_comm *comm = NULL;
  weft_launch_begin("replicas");
  const bool is_job = weft_launch_info().launcher != NULL;
  struct weft_comm_options options = weft_comm_options_default();
  options.rank_count = is_job ? 0 : RANKS;
  weft_launch_startup_begin(NULL, 0);
  weft_comm_open(NULL, is_job ? "mpi" : "threads", &options, &comm, &error);
  weft_launch_startup_end();
  if (comm != NULL) weft_comm_run(comm, rank_main, &job, &error);
  return weft_launch_end(comm, &error);
}
