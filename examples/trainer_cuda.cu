/* A complete trainer on GPUs: sixteen layers x + tanh(x W) learn a rule, on any schedule.
 *     nvcc -O2 -std=c++20 -forward-unknown-to-host-compiler trainer_cuda.cu \
 *       $(pkg-config --cflags --libs weft-run) -o trainer_cuda
 *     ./trainer_cuda 1F1B 4              4 ranks on the GPUs that are there
 *     ./trainer_cuda ZBVZeroBubble 4 4   on 4 partitions of each GPU
 *     ./trainer_cuda 1F1B 4 0 eager      without a graph: launches every kernel in every step */
#include <cstdio>
#include <vector>
#include <weft/comm.h>
#include <weft/cuda.h>
#include <weft/run.h>
#include <weft/source.h>
#include <weft/support.h>

constexpr int N = 64, LAYERS = 16, ROWS = 32, MICROBATCHES = 8, STEPS = 400; /* rows of N numbers */

struct kept { float x[ROWS][N], slope[ROWS][N]; }; /* of a layer, in call->saved */
struct layers {          /* a stage: some of the layers */
  weft_stage stage;      /* first: Weft's handle on it */
  weft_device *device;   /* where its memory is */
  int first, count;      /* of the model's layers */
  uint64_t bytes;        /* from w on: */
  float *w, *dw, *m, *v; /* [count][N][N]; m and v are the optimizer's */
};

/* ---- Kernels: a thread per number, and sums in one order, so the same bits always ---- */
__global__ void layers_forward(layers own, kept *saved, const float *x, float *y) {
  __shared__ float row[N];
  const int r = blockIdx.x, j = threadIdx.x;
  float value = x[r * N + j];
  for (int layer = 0; layer < own.count; layer++) {
    float sum = 0;
    row[j] = saved[layer].x[r][j] = value;
    __syncthreads();
    for (int i = 0; i < N; i++) sum += row[i] * own.w[(layer * N + i) * N + j];
    __syncthreads();
    value += tanhf(sum);
    saved[layer].slope[r][j] = 1 - tanhf(sum) * tanhf(sum);
  }
  y[r * N + j] = value;
}

__global__ void square_loss(const float *y, const float *target, float *dy, double *loss) {
  __shared__ double sums[N];
  const int j = threadIdx.x;
  sums[j] = 0;
  for (int k = j; k < ROWS * N; k += N) {
    dy[k] = 2 * (y[k] - target[k]) / (ROWS * N);
    sums[j] += dy[k] * (y[k] - target[k]) / 2;
  }
  __syncthreads();
  for (int k = 0; j == 0 && k < N; k++) *loss += sums[k];
}

__global__ void layers_backward_input(layers own, kept *saved, const float *dy, float *dx) {
  __shared__ float row[N];
  const int r = blockIdx.x, i = threadIdx.x;
  float grad = dy[r * N + i];
  for (int layer = own.count - 1; layer >= 0; layer--) {
    row[i] = saved[layer].slope[r][i] *= grad; /* now of x W */
    __syncthreads();
    for (int j = 0; j < N; j++) grad += row[j] * own.w[(layer * N + i) * N + j];
    __syncthreads();
  }
  if (dx != NULL) dx[r * N + i] = grad;
}

__global__ void layers_backward_weight(layers own, const kept *saved, bool updates) {
  const int i = blockIdx.x % N, j = threadIdx.x, k = blockIdx.x * N + j;
  const kept &of = saved[blockIdx.x / N];
  for (int r = 0; r < ROWS; r++) own.dw[k] += of.x[r][i] * of.slope[r][j];
  if (!updates) return;
  own.m[k] = 0.9f * own.m[k] + 0.1f * own.dw[k];
  own.v[k] = 0.99f * own.v[k] + 0.01f * own.dw[k] * own.dw[k];
  own.w[k] -= 1e-3f * own.m[k] / (sqrtf(own.v[k]) + 1e-8f);
  own.dw[k] = 0;
}

/* ---- The stage's functions enqueue on the call's stream, and return ---- */
static float *data_of(const weft_tensors *t) { return (float *)t->items[0].data; }
static float noise(uint64_t k) { return (float)(weft_splitmix(k) >> 40) / (1 << 23) - 1; }

static weft_status check_launches(weft_error *error) {
  const cudaError_t result = cudaGetLastError();
  if (result == cudaSuccess) return WEFT_OK;
  return weft_fail(error, WEFT_ERR_DEVICE, "", "a launch failed: %s", cudaGetErrorString(result));
}

static weft_status forward(weft_stage *stage, weft_stage_call *call, weft_error *error) {
  layers_forward<<<ROWS, N, 0, (cudaStream_t)call->stream>>>(
      *(layers *)stage, (kept *)call->saved, data_of(call->inputs), data_of(call->outputs));
  return check_launches(error);
}

/* The last stage's loss, in memory of the host that the GPU can write; and its gradient. */
static weft_status loss(weft_stage *, weft_stage_call *call, weft_error *error) {
  square_loss<<<1, N, 0, (cudaStream_t)call->stream>>>(
      data_of(call->outputs), data_of(call->targets), data_of(call->output_grads), call->loss);
  return check_launches(error);
}

/* The backward is split for zero-bubble schedules; for the others Weft calls both functions. */
static weft_status backward_input(weft_stage *stage, weft_stage_call *call, weft_error *error) {
  float *dx = call->input_grads->count > 0 ? data_of(call->input_grads) : NULL; /* of stage 0 */
  layers_backward_input<<<ROWS, N, 0, (cudaStream_t)call->stream>>>(
      *(layers *)stage, (kept *)call->saved, data_of(call->output_grads), dx);
  return check_launches(error);
}

/* After the stage's last backward its gradients are complete, and nothing in the step reads its
 * weights any more: the optimizer, here Adam, is a part of the step, and of its graph. */
static weft_status backward_weight(weft_stage *stage, weft_stage_call *call, weft_error *error) {
  const layers own = *(layers *)stage;
  layers_backward_weight<<<own.count * N, N, 0, (cudaStream_t)call->stream>>>(
      own, (const kept *)call->saved, call->last_backward);
  return check_launches(error);
}

/* Before the first step, for the stages of the rank. Device memory is zero at first. */
static weft_status prepare_stage(weft_stage *stage, uint32_t, weft_error *error) {
  layers *own = (layers *)stage;
  const size_t size = (size_t)own->count * N * N;
  std::vector<float> w(size);
  for (size_t k = 0; k < size; k++) w[k] = 0.03f * noise(own->first * N * N + k);
  own->bytes = 4 * size * sizeof(float);
  own->w = (float *)weft_device_allocate(own->device, NULL, own->bytes);
  if (own->w == NULL) return weft_fail_memory(error, own->bytes);
  own->dw = own->w + size, own->m = own->dw + size, own->v = own->m + size;
  const struct weft_copy upload = {own->w, own->device, w.data(), NULL, size * sizeof(float), 1};
  return weft_copy(&upload, NULL, error);
}

/* ---- One rank: its stages, its pipeline, its steps ---- */
static weft_named_source source;
static weft_cuda *cuda;
static weft_status rank_main(void *eager, weft_transport *transport, weft_error *error) {
  static const weft_stage_ops ops = {
      .enqueues = true, .replays = true, .prepare = prepare_stage, .forward = forward,
      .backward_input = backward_input, .backward_weight = backward_weight, .loss = loss};
  const weft_boundary boundary = {1, {{"x", {WEFT_F32, 2, {}, {ROWS, N}}, true}}, false};
  weft_pipeline_options options = weft_pipeline_options_default();
  weft_program *program;
  WEFT_TRY(weft_source_named(&source, MICROBATCHES, true, &program, error));
  const int stage_count = (int)program->stage_count;
  weft_program_destroy(program);
  options.device = weft_cuda_device(cuda, transport->rank), options.eager = eager != NULL;
  std::vector<layers> own(stage_count);
  std::vector<weft_stage *> stages(stage_count);
  for (int s = 0, layer = 0; s < stage_count; layer += own[s++].count) {
    const int count = (s + 1) * LAYERS / stage_count - layer;
    own[s] = {{&ops, count * sizeof(kept)}, options.device, layer, count};
    stages[s] = &own[s].stage;
  }
  options.source = weft_source_named, options.source_context = &source;
  options.stages = stages.data(), options.stage_count = stage_count;
  options.boundaries = &boundary, options.boundary_count = 1;
  options.microbatch_count = MICROBATCHES, options.scale_grads = false; /* Adam needs no scale */
  weft_pipeline *pipeline = NULL;
  weft_status status = weft_pipeline_create(NULL, transport, &options, &pipeline, error);
  const bool is_last = own.back().w != NULL;
  const weft_tensor_shape shape = {WEFT_F32, 2, {}, {ROWS * MICROBATCHES, N}};
  std::vector<float> x(ROWS * MICROBATCHES * N), y(x.size());
  const weft_tensor input = {"x", x.data(), NULL, shape}, target = {"y", y.data(), NULL, shape};
  const weft_batch batch = {.microbatch_count = MICROBATCHES, .inputs = &input, .input_count = 1,
                            .targets = &target, .target_count = 1, .want_losses = is_last};
  const int64_t begin = weft_clock_ns();
  for (int step = 0; step <= STEPS && status == WEFT_OK; step++) {
    for (size_t k = 0; k < x.size(); k++) x[k] = noise(~(k + step * x.size()));
    for (size_t k = 0; k < x.size(); k++) y[k] = 0.5f * x[k] - 0.5f * x[k ^ 1]; /* the rule */
    weft_step_result result = {};
    status = weft_pipeline_step(pipeline, &batch, &result, error);
    double mean = 0;
    for (uint32_t k = 0; k < result.loss_count; k++) mean += result.losses[k] / MICROBATCHES;
    if (result.loss_count > 0 && step % 100 == 0) printf("step %3d  loss %.8f\n", step, mean);
  }
  const double took = (double)(weft_clock_ns() - begin) / 1e9;
  if (is_last && status == WEFT_OK) printf("%.0f samples/s\n", (STEPS + 1) * ROWS * MICROBATCHES / took);
  weft_pipeline_destroy(pipeline);
  for (const layers &one : own) weft_device_free(one.device, NULL, one.w, one.bytes);
  return status;
}

int main(int argc, char **argv) {
  const weft_cuda_options gpus = {.partitions = argc > 3 ? (uint32_t)atoi(argv[3]) : 0};
  weft_comm_options options = weft_comm_options_default();
  weft_comm *comm = NULL;
  weft_error error;
  source.schedule = argc > 1 ? argv[1] : "1F1B";
  source.ranks = options.rank_count = argc > 2 ? (uint32_t)atoi(argv[2]) : 4;
  weft_status status = weft_cuda_open(NULL, &gpus, source.ranks, &cuda, &error);
  if (status == WEFT_OK) status = weft_comm_open(NULL, "cuda", &options, &comm, &error);
  if (status == WEFT_OK) status = weft_comm_run(comm, rank_main, argc > 4 ? argv[4] : NULL, &error);
  if (status != WEFT_OK) fprintf(stderr, "%s\n%s\n", error.message, error.hint);
  weft_comm_close(comm);
  weft_cuda_close(cuda);
  return status == WEFT_OK ? 0 : 1;
}
