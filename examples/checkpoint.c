/* Checkpoints: training that was stopped goes on with the same bits.
 *     cc examples/checkpoint.c $(pkg-config --cflags --libs weft-run) -o checkpoint
 *     ./checkpoint FOLDER 100              100 steps; a thread per rank
 *     mpirun -n 4 ./checkpoint FOLDER 200  goes on from step 100, with a process per rank
 * Each rank writes its stage to FOLDER/step-N/stage-S. When all have, FOLDER/latest names the
 * step. Files belong to stages, not to ranks: another transport or schedule may go on. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <weft/launch.h>
#include <weft/run.h>
#include <weft/source.h>
#include <weft/support.h>

enum { ROWS = 64, MICROBATCHES = 8, RANKS = 4, RANKS_MAX = 64, EVERY = 50, PATH_SIZE = 512 };
static const int64_t stall_limit = INT64_C(30000000000); /* ns */

struct job {
  const char *folder;
  long steps;
};

/* ---- A layer: y = w x, with momentum ---- */

struct layer {
  struct weft_stage stage; /* first: Weft's handle on it */
  float dw;
  struct {
    float w, velocity;
  } state; /* what a checkpoint must hold: weights and the optimizer's own */
};

static float *data_of(const struct weft_tensors *t) { return t->items[0].data; }
static uint64_t rows_of(const struct weft_tensors *t) { return t->items[0].shape.dims[0]; }

static enum weft_status forward(struct weft_stage *stage, struct weft_stage_call *call,
                                struct weft_error *error) {
  const struct layer *layer = (struct layer *)stage;
  (void)error;
  call->outputs->items[0].shape = call->inputs->items[0].shape;
  for (uint64_t k = 0; k < rows_of(call->inputs); k++)
    data_of(call->outputs)[k] = layer->state.w * data_of(call->inputs)[k];
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
    if (call->input_grads->count > 0) data_of(call->input_grads)[k] = layer->state.w * dy[k];
  }
  return WEFT_OK;
}

static const struct weft_stage_ops layer_ops = {
    .forward = forward, .loss = loss, .backward = backward};

/* ---- Files ---- */

static enum weft_status fail_file(struct weft_error *error, const char *what, const char *path) {
  return weft_fail(error, WEFT_ERR_IO, "", "%s %s: %s", what, path, strerror(errno));
}

/* Under another name first: a reader of `path` finds all of it or nothing. A trainer that must
 * survive a loss of power calls fsync() before rename(), for the file and for its folder. */
static enum weft_status write_file(const char *path, const void *data, size_t size,
                                   struct weft_error *error) {
  char temporary[PATH_SIZE + 8];
  snprintf(temporary, sizeof temporary, "%s.tmp", path);
  FILE *file = fopen(temporary, "wb");
  const bool is_written = file != NULL && fwrite(data, 1, size, file) == size;
  if (file == NULL || fclose(file) != 0 || !is_written || rename(temporary, path) != 0)
    return fail_file(error, "cannot write", path);
  return WEFT_OK;
}

static enum weft_status save(const struct job *job, struct weft_transport *transport, long step,
                             const struct layer *layer, struct weft_error *error) {
  char path[PATH_SIZE];
  snprintf(path, sizeof path, "%s/step-%ld", job->folder, step);
  if ((mkdir(job->folder, 0777) != 0 && errno != EEXIST) ||
      (mkdir(path, 0777) != 0 && errno != EEXIST))
    return fail_file(error, "cannot make", path);
  snprintf(path, sizeof path, "%s/step-%ld/stage-%u", job->folder, step, transport->rank);
  WEFT_TRY(write_file(path, &layer->state, sizeof layer->state, error));
  WEFT_TRY(weft_barrier(transport, stall_limit, error)); /* all stages are written */
  snprintf(path, sizeof path, "%s/latest", job->folder);
  return transport->rank == 0 ? write_file(path, &step, sizeof step, error) : WEFT_OK;
}

/* The step to go on from: 0 where there is no checkpoint. */
static enum weft_status load(const struct job *job, uint32_t stage, struct layer *layer, long *step,
                             struct weft_error *error) {
  char path[PATH_SIZE];
  snprintf(path, sizeof path, "%s/latest", job->folder);
  FILE *file = fopen(path, "rb");
  if (file == NULL) return WEFT_OK;
  bool is_read = fread(step, sizeof *step, 1, file) == 1;
  fclose(file);
  snprintf(path, sizeof path, "%s/step-%ld/stage-%u", job->folder, *step, stage);
  if (!is_read || (file = fopen(path, "rb")) == NULL) return fail_file(error, "cannot read", path);
  is_read = fread(&layer->state, sizeof layer->state, 1, file) == 1;
  fclose(file);
  return is_read ? WEFT_OK : weft_fail(error, WEFT_ERR_FORMAT, "", "%s is too short", path);
}

/* ---- One rank ---- */

static enum weft_status rank_main(void *context, struct weft_transport *transport,
                                  struct weft_error *error) {
  static const struct weft_tensor_shape shape = {WEFT_F32, 1, {0}, {ROWS}};
  const struct job *job = context;
  const struct weft_boundary boundary = {.tensor_count = 1, .tensors = {{"x", shape, true}}};
  const uint32_t last = transport->rank_count - 1;
  struct weft_named_source schedule = {.schedule = "1F1B", .ranks = transport->rank_count};
  struct layer layer = {.stage.ops = &layer_ops, .state.w = transport->rank == last ? -0.3f : 0.8f};
  struct weft_stage *stages[RANKS_MAX] = {NULL};
  stages[transport->rank] = &layer.stage;
  long first = 0;
  WEFT_TRY(load(job, transport->rank, &layer, &first, error));

  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = weft_source_named, options.source_context = &schedule;
  options.microbatch_count = MICROBATCHES;
  options.stages = stages, options.stage_count = transport->rank_count;
  options.boundaries = &boundary, options.boundary_count = 1;
  options.scale_grads = false;             /* the learning rate does it */
  options.configuration = (uint64_t)first; /* a rank with another checkpoint is refused */
  options.interrupted = weft_launch_is_interrupted;
  struct weft_pipeline *pipeline = NULL;
  WEFT_TRY(weft_pipeline_create(NULL, transport, &options, &pipeline, error));

  float x[ROWS], y[ROWS];
  for (int k = 0; k < ROWS; k++) x[k] = (float)k / ROWS - 0.5f, y[k] = -x[k];
  const struct weft_tensor input = {"x", x, NULL, shape}, target = {"y", y, NULL, shape};
  struct weft_batch batch = {.microbatch_count = MICROBATCHES, .inputs = &input, .input_count = 1};
  batch.targets = &target, batch.target_count = 1;
  batch.want_losses = transport->rank == last;
  enum weft_status status = WEFT_OK;
  for (long step = first + 1; step <= job->steps && status == WEFT_OK; step++) {
    struct weft_step_result result = {0};
    double mean = 0;
    status = weft_pipeline_step(pipeline, &batch, &result, error);
    layer.state.velocity = 0.5f * layer.state.velocity + layer.dw;
    layer.state.w -= 0.002f * layer.state.velocity;
    layer.dw = 0;
    for (uint32_t k = 0; k < result.loss_count; k++) mean += result.losses[k] / MICROBATCHES;
    const bool saves = step % EVERY == 0 || step == job->steps;
    if (result.loss_count > 0 && saves) printf("step %3ld  loss %.9f\n", step, mean);
    if (status == WEFT_OK && saves) status = save(job, transport, step, &layer, error);
  }
  weft_pipeline_destroy(pipeline);
  return status;
}

int main(int argc, char **argv) {
  struct job job = {argc > 1 ? argv[1] : ".", argc > 2 ? atol(argv[2]) : 100};
  struct weft_error error = {.status = WEFT_OK};
  struct weft_comm *comm = NULL;
  weft_launch_begin("checkpoint");
  const bool is_job = weft_launch_info().launcher != NULL;
  struct weft_comm_options options = weft_comm_options_default();
  options.rank_count = is_job ? 0 : RANKS;
  weft_launch_startup_begin(NULL, 0);
  weft_comm_open(NULL, is_job ? "mpi" : "threads", &options, &comm, &error);
  weft_launch_startup_end();
  if (comm != NULL) weft_comm_run(comm, rank_main, &job, &error);
  return weft_launch_end(comm, &error);
}
