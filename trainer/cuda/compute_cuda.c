/* A rank's GPU as the trainer uses it: kernels and products loaded once, and what is computed
 * between steps. */
#include "trainer/cuda/compute_cuda.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

#include "trainer/cuda/gpt_kernels.h"

enum { SUM_PARTS = 1024, SUM_ARRAYS = 32, SETTINGS = 8, VALUES_MAX = 10 };

/* What the host says about a step: the first six settings of AdamW, then these; then what it
 * reads. */
enum { STEP_CLIP = 6, STEP_ALWAYS, STEP_NORM, STEP_NUMBERS };

/* ---- Launching ---- */

uint64_t weft_gpt_cuda_number(double number) {
  uint64_t bits;
  memcpy(&bits, &number, sizeof bits);
  return bits;
}

struct weft_gpt_cuda_grid weft_gpt_cuda_threads(uint64_t threads) {
  return (struct weft_gpt_cuda_grid){.blocks = {(threads + 255) / 256}, .threads = {256}};
}

enum weft_status weft_gpt_cuda_launch(const struct weft_gpt_cuda *cuda,
                                      enum weft_gpt_cuda_kernel kernel,
                                      struct weft_gpt_cuda_grid grid, uint64_t *values,
                                      struct weft_stream *stream, struct weft_error *error) {
  void *parameters[VALUES_MAX];
  if (grid.blocks[0] > UINT32_MAX) { /* what fits the type is checked by weft_cuda_launch() */
    return weft_fail(error, WEFT_ERR_USAGE, "more microbatches are smaller",
                     "a microbatch needs %" PRIu64
                     " blocks of a kernel: CUDA's limit is 2147483647",
                     grid.blocks[0]);
  }
  assert(grid.blocks[0] > 0 && grid.blocks[1] <= UINT32_MAX && grid.blocks[2] <= UINT32_MAX);
  for (uint32_t k = 0; k < VALUES_MAX; k++) {
    parameters[k] = &values[k]; /* CUDA reads as many as the kernel has */
  }
  return weft_cuda_launch(
      cuda->kernels,
      &(struct weft_cuda_launch){
          .kernel = kernel,
          .blocks = {(uint32_t)grid.blocks[0], (uint32_t)grid.blocks[1], (uint32_t)grid.blocks[2]},
          .threads = {(uint32_t)grid.threads[0], (uint32_t)grid.threads[1]},
          .parameters = parameters},
      stream, error);
}

/* ---- Products ---- */

/* cublasLt stores matrices by columns: a row-major array is there the transposed matrix. */
struct weft_product_shape weft_gpt_cuda_product_shape(const struct weft_gpt_product_call *call) {
  assert(call->rows > 0 && call->in > 0 && call->out > 0);
  struct weft_product_shape shape = {
      .a = {.type = WEFT_PRODUCT_BF16},
      .b = {.type = WEFT_PRODUCT_BF16},
      .d = {.type = WEFT_PRODUCT_BF16},
      .bias_type = WEFT_PRODUCT_BF16,
      .align_bytes = 32, /* parameters are aligned to 16 numbers */
      .workspace_bytes = WEFT_GPT_CUDA_WORKSPACE,
  };
  switch (call->kind) {
    case WEFT_GPT_PRODUCT_FORWARD:
    case WEFT_GPT_PRODUCT_FORWARD_GELU:
    case WEFT_GPT_PRODUCT_FORWARD_BARE:
      shape.epilogue = call->kind == WEFT_GPT_PRODUCT_FORWARD        ? WEFT_EPILOGUE_BIAS
                       : call->kind == WEFT_GPT_PRODUCT_FORWARD_GELU ? WEFT_EPILOGUE_GELU_AUX_BIAS
                                                                     : WEFT_EPILOGUE_NONE;
      shape.m = call->out, shape.n = call->rows, shape.k = call->in;
      shape.a.transposed = true;
      break;
    case WEFT_GPT_PRODUCT_BACKWARD_INPUT:
    case WEFT_GPT_PRODUCT_BACKWARD_GELU:
      shape.epilogue =
          call->kind == WEFT_GPT_PRODUCT_BACKWARD_GELU ? WEFT_EPILOGUE_DGELU : WEFT_EPILOGUE_NONE;
      shape.m = call->in, shape.n = call->rows, shape.k = call->out;
      break;
    case WEFT_GPT_PRODUCT_BACKWARD_WEIGHT:
      shape.m = call->in, shape.n = call->out, shape.k = call->rows;
      shape.b.transposed = true;
      shape.d.type = WEFT_PRODUCT_F32;
      break;
  }
  return shape;
}

/* Made when it is first needed, which is in an evaluation or in the first step: not under
 * capture. */
static enum weft_status find_product(struct weft_gpt_products *products,
                                     const struct weft_gpt_product_call *call,
                                     struct weft_product **out, struct weft_error *error) {
  assert(products->count <= WEFT_GPT_CUDA_PRODUCTS_MAX);
  for (uint32_t k = 0; k < products->count; k++) {
    const struct weft_gpt_product *product = &products->items[k];
    if (product->kind == call->kind && product->rows == call->rows && product->in == call->in &&
        product->out == call->out) {
      *out = product->product;
      return WEFT_OK;
    }
  }
  if (products->count == WEFT_GPT_CUDA_PRODUCTS_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "microbatches of one shape need 13",
                     "more than %d shapes of matrix products", WEFT_GPT_CUDA_PRODUCTS_MAX);
  }
  struct weft_gpt_product *product = &products->items[products->count];
  *product = (struct weft_gpt_product){
      .kind = call->kind, .rows = call->rows, .in = call->in, .out = call->out};
  const struct weft_product_shape shape = weft_gpt_cuda_product_shape(call);
  WEFT_TRY(weft_product_create(products->lt, &shape, &product->product, error));
  products->count++;
  *out = product->product;
  return WEFT_OK;
}

struct weft_product_call weft_gpt_cuda_product_call(const struct weft_gpt_product_call *call,
                                                    void *workspace) {
  assert(call->x != NULL && call->w != NULL && call->y != NULL);
  return (struct weft_product_call){.alpha = 1,
                                    .beta = call->c != NULL ? 1 : 0,
                                    .a = call->w,
                                    .b = call->x,
                                    .c = call->c,
                                    .d = call->y,
                                    // NOLINTNEXTLINE(performance-no-int-to-ptr): only read
                                    .bias = (void *)(uintptr_t)call->bias,
                                    .aux = call->aux,
                                    .workspace = workspace};
}

enum weft_status weft_gpt_cuda_multiply(struct weft_gpt_cuda *cuda,
                                        const struct weft_gpt_product_call *call,
                                        struct weft_error *error) {
  const bool forward = call->kind <= WEFT_GPT_PRODUCT_FORWARD_BARE;
  const struct weft_product_call run = weft_gpt_cuda_product_call(call, cuda->workspaces[forward]);
  struct weft_product *product = NULL;
  (void)pthread_mutex_lock(&cuda->products->lock);
  enum weft_status status = find_product(cuda->products, call, &product, error);
  if (status == WEFT_OK) {
    status = weft_product_run(product, &run, call->stream, error);
  }
  (void)pthread_mutex_unlock(&cuda->products->lock);
  return status;
}

/* With a handle of the GPU, which is current. */
static enum weft_status open_products(struct weft_gpt_cuda *cuda, struct weft_error *error) {
  struct weft_gpt_products *products =
      weft_array_allocate_zero(cuda->allocator, 1, sizeof *products);
  if (products == NULL) {
    return weft_fail_memory(error, sizeof *products);
  }
  (void)pthread_mutex_init(&products->lock, NULL);
  products->users = 1;
  cuda->products = products;
  return weft_cublaslt_open(cuda->allocator, &products->lt, error);
}

static void close_products(struct weft_gpt_cuda *cuda) {
  struct weft_gpt_products *products = cuda->products;
  if (products == NULL || --products->users > 0) { /* ranks are made and destroyed by one thread */
    return;
  }
  for (uint32_t k = 0; k < products->count; k++) {
    weft_product_destroy(products->items[k].product);
  }
  weft_cublaslt_close(products->lt);
  (void)pthread_mutex_destroy(&products->lock);
  weft_array_free(cuda->allocator, products, 1, sizeof *products);
}

/* ---- Passes outside of a layer ---- */

static enum weft_status scale(struct weft_gpt_compute *compute, uint64_t count, float factor,
                              float *x, struct weft_stream *stream, struct weft_error *error) {
  assert(count % 4 == 0);
  if (factor == 1) {
    return WEFT_OK;
  }
  return weft_gpt_cuda_launch(
      weft_gpt_cuda_of(compute), WEFT_GPT_CUDA_scale, weft_gpt_cuda_threads(count / 4),
      (uint64_t[VALUES_MAX]){WEFT_GPT_ADDRESS(x), weft_gpt_cuda_number((double)factor), count},
      stream, error);
}

static enum weft_status tie(struct weft_gpt_compute *compute, uint64_t count, float *a, float *b,
                            struct weft_stream *stream, struct weft_error *error) {
  return weft_gpt_cuda_launch(
      weft_gpt_cuda_of(compute), WEFT_GPT_CUDA_tie, weft_gpt_cuda_threads(count),
      (uint64_t[VALUES_MAX]){WEFT_GPT_ADDRESS(a), WEFT_GPT_ADDRESS(b), count}, stream, error);
}

static enum weft_status sum(struct weft_gpt_compute *compute, uint64_t count, const void *a,
                            const void *b, void *c, struct weft_stream *stream,
                            struct weft_error *error) {
  assert(count % 8 == 0);
  return weft_gpt_cuda_launch(
      weft_gpt_cuda_of(compute), WEFT_GPT_CUDA_add_bf16, weft_gpt_cuda_threads(count / 8),
      (uint64_t[VALUES_MAX]){WEFT_GPT_ADDRESS(c), WEFT_GPT_ADDRESS(a), WEFT_GPT_ADDRESS(b), count},
      stream, error);
}

/* ---- Between steps ---- */

static enum weft_status begin(const struct weft_gpt_cuda *cuda, struct weft_error *error) {
  struct weft_device *device = cuda->compute.device;
  return device->ops->make_current(device, error);
}

static enum weft_status complete(const struct weft_gpt_cuda *cuda, struct weft_error *error) {
  struct weft_device *device = cuda->compute.device;
  WEFT_TRY(device->ops->event_record(device, cuda->event, cuda->stream, error));
  return device->ops->event_wait(device, cuda->event, NULL, error);
}

static enum weft_status sum_parts(const struct weft_gpt_cuda *cuda, double *parts,
                                  const struct weft_gpt_floats *array, struct weft_stream *stream,
                                  struct weft_error *error) {
  return weft_gpt_cuda_launch(
      cuda, WEFT_GPT_CUDA_square_sums,
      (struct weft_gpt_cuda_grid){.blocks = {SUM_PARTS}, .threads = {256}},
      (uint64_t[VALUES_MAX]){WEFT_GPT_ADDRESS(parts), WEFT_GPT_ADDRESS(array->data), array->count,
                             SUM_PARTS},
      stream, error);
}

/* Arrays first ... last - 1. */
static enum weft_status sum_some(struct weft_gpt_cuda *cuda, uint32_t first, uint32_t last,
                                 const struct weft_gpt_floats *arrays, double *sums,
                                 struct weft_error *error) {
  assert(first < last && last - first <= SUM_ARRAYS);
  for (uint32_t k = first; k < last; k++) {
    if (arrays[k].count > 0) {
      WEFT_TRY(
          sum_parts(cuda, cuda->sums + (k - first) * SUM_PARTS, &arrays[k], cuda->stream, error));
    }
  }
  WEFT_TRY(complete(cuda, error));
  for (uint32_t k = first; k < last; k++) {
    sums[k] = 0;
    for (uint32_t p = 0; arrays[k].count > 0 && p < SUM_PARTS; p++) {
      sums[k] += cuda->sums[(k - first) * SUM_PARTS + p];
    }
  }
  return WEFT_OK;
}

static enum weft_status square_sums(struct weft_gpt_compute *compute, uint32_t count,
                                    const struct weft_gpt_floats *arrays, double *sums,
                                    struct weft_error *error) {
  struct weft_gpt_cuda *cuda = weft_gpt_cuda_of(compute);
  WEFT_TRY(begin(cuda, error));
  for (uint32_t first = 0; first < count; first += SUM_ARRAYS) {
    const uint32_t last = count - first < SUM_ARRAYS ? count : first + SUM_ARRAYS;
    WEFT_TRY(sum_some(cuda, first, last, arrays, sums, error));
  }
  return WEFT_OK;
}

static enum weft_status enqueue_round(struct weft_gpt_compute *compute, uint64_t count,
                                      const float *parameters, void *rounded,
                                      struct weft_stream *stream, struct weft_error *error) {
  assert(count % 8 == 0);
  return weft_gpt_cuda_launch(
      weft_gpt_cuda_of(compute), WEFT_GPT_CUDA_to_bf16, weft_gpt_cuda_threads(count / 8),
      (uint64_t[VALUES_MAX]){WEFT_GPT_ADDRESS(rounded), WEFT_GPT_ADDRESS(parameters), count},
      stream, error);
}

static enum weft_status round_parameters(struct weft_gpt_compute *compute, uint64_t count,
                                         const float *parameters, void *rounded,
                                         struct weft_error *error) {
  struct weft_gpt_cuda *cuda = weft_gpt_cuda_of(compute);
  WEFT_TRY(begin(cuda, error));
  WEFT_TRY(enqueue_round(compute, count, parameters, rounded, cuda->stream, error));
  return complete(cuda, error);
}

/* ---- The end of a step ---- */

static void set_step(struct weft_gpt_compute *compute, const struct weft_gpt_adamw *adamw,
                     double clip, bool always) {
  double *step = weft_gpt_cuda_of(compute)->step;
  step[0] = (double)(1 - adamw->rate * adamw->decay);
  step[1] = (double)(adamw->rate / adamw->correction1);
  step[2] = (double)(1 / sqrtf(adamw->correction2));
  step[3] = (double)adamw->epsilon;
  step[4] = (double)adamw->beta1;
  step[5] = (double)adamw->beta2;
  step[STEP_CLIP] = clip;
  step[STEP_ALWAYS] = always ? 1 : 0;
}

static double norm_of(const struct weft_gpt_compute *compute) {
  return ((const struct weft_gpt_cuda *)compute)->step[STEP_NORM];
}

static enum weft_status add_up(const struct weft_gpt_cuda *cuda, uint32_t sum_count, double *sums,
                               const double *parts, uint64_t each, struct weft_stream *stream,
                               struct weft_error *error) {
  return weft_gpt_cuda_launch(
      cuda, WEFT_GPT_CUDA_sum_parts,
      (struct weft_gpt_cuda_grid){.blocks = {sum_count}, .threads = {256}},
      (uint64_t[VALUES_MAX]){WEFT_GPT_ADDRESS(sums), WEFT_GPT_ADDRESS(parts), each, sum_count},
      stream, error);
}

static enum weft_status sum_squares(struct weft_gpt_compute *compute, uint32_t first_layer,
                                    uint32_t count, const struct weft_gpt_floats *arrays,
                                    double *sums, struct weft_stream *stream,
                                    struct weft_error *error) {
  const struct weft_gpt_cuda *cuda = weft_gpt_cuda_of(compute);
  double *parts = cuda->parts + (uint64_t)first_layer * SUM_PARTS;
  assert(first_layer + count <= cuda->layer_count);
  for (uint32_t k = 0; k < count; k++) {
    WEFT_TRY(sum_parts(cuda, parts + (uint64_t)k * SUM_PARTS, &arrays[k], stream, error));
  }
  return add_up(cuda, count, sums, parts, SUM_PARTS, stream, error);
}

static enum weft_status sum_losses(struct weft_gpt_compute *compute, uint32_t count,
                                   const double *losses, double *sum, struct weft_stream *stream,
                                   struct weft_error *error) {
  return add_up(weft_gpt_cuda_of(compute), 1, sum, losses, count, stream, error);
}

static enum weft_status clip(struct weft_gpt_compute *compute, const double *sums, uint32_t layers,
                             uint32_t heads, uint32_t replicas, struct weft_stream *stream,
                             struct weft_error *error) {
  assert(sums != NULL && replicas > 0);
  const struct weft_gpt_cuda *cuda = weft_gpt_cuda_of(compute);
  return weft_gpt_cuda_launch(
      cuda, WEFT_GPT_CUDA_clip, (struct weft_gpt_cuda_grid){.blocks = {1}, .threads = {1024}},
      (uint64_t[VALUES_MAX]){WEFT_GPT_ADDRESS(cuda->settings),
                             WEFT_GPT_ADDRESS(cuda->step + STEP_NORM), WEFT_GPT_ADDRESS(sums),
                             WEFT_GPT_ADDRESS(cuda->step), layers, replicas,
                             (uint64_t)heads * replicas},
      stream, error);
}

static uint32_t kind_of(const struct weft_gpt_config *config, uint32_t layer) {
  return layer == 0 ? 0 : layer <= config->blocks ? 1 : 2;
}

static enum weft_status update_layer(struct weft_gpt_compute *compute,
                                     const struct weft_gpt_config *config,
                                     const struct weft_gpt_update *u, struct weft_stream *stream,
                                     struct weft_error *error) {
  const struct weft_gpt_cuda *cuda = weft_gpt_cuda_of(compute);
  const uint64_t floats = weft_gpt_layer_floats(config, u->layer); /* padding stays 0 */
  const uint64_t end = u->begin + u->count < floats ? u->begin + u->count : floats;
  assert(u->begin % 16 == 0);
  if (end <= u->begin) {
    return WEFT_OK;
  }
  return weft_gpt_cuda_launch(
      cuda, WEFT_GPT_CUDA_adamw, weft_gpt_cuda_threads((end - u->begin) / 4),
      (uint64_t[VALUES_MAX]){
          WEFT_GPT_ADDRESS(u->parameters), WEFT_GPT_ADDRESS(u->first_moment),
          WEFT_GPT_ADDRESS(u->second_moment), WEFT_GPT_ADDRESS(u->rounded),
          WEFT_GPT_ADDRESS(u->gradients),
          WEFT_GPT_ADDRESS(cuda->decays[kind_of(config, u->layer)] + u->begin / 16),
          WEFT_GPT_ADDRESS(cuda->settings), end - u->begin},
      stream, error);
}

static enum weft_status add_arrays(struct weft_gpt_compute *compute, uint64_t count, const float *a,
                                   const float *b, float *c, struct weft_stream *stream,
                                   struct weft_error *error) {
  assert(count % 4 == 0);
  return weft_gpt_cuda_launch(
      weft_gpt_cuda_of(compute), WEFT_GPT_CUDA_add, weft_gpt_cuda_threads(count / 4),
      (uint64_t[VALUES_MAX]){WEFT_GPT_ADDRESS(c), WEFT_GPT_ADDRESS(a), WEFT_GPT_ADDRESS(b), count},
      stream, error);
}

/* ---- Create and destroy ---- */

const struct weft_gpt_compute_ops *weft_gpt_compute_cuda_ops(void) {
  static const struct weft_gpt_compute_ops ops = {.dtype = WEFT_BF16,
                                                  .rounds = true,
                                                  .enqueues = true,
                                                  .saved_bytes = weft_gpt_cuda_saved_bytes,
                                                  .scratch_bytes = weft_gpt_cuda_scratch_bytes,
                                                  .forward = weft_gpt_cuda_forward,
                                                  .backward_input = weft_gpt_cuda_backward_input,
                                                  .backward_weight = weft_gpt_cuda_backward_weight,
                                                  .scale = scale,
                                                  .tie = tie,
                                                  .sum = sum,
                                                  .square_sums = square_sums,
                                                  .round = round_parameters,
                                                  .set_step = set_step,
                                                  .sum_squares = sum_squares,
                                                  .sum_losses = sum_losses,
                                                  .clip = clip,
                                                  .update_layer = update_layer,
                                                  .norm = norm_of,
                                                  .add = add_arrays,
                                                  .enqueue_round = enqueue_round};
  return &ops;
}

/* Of bf16 in mma instructions, and of copies to shared memory. */
enum { CAPABILITY_MIN = 80 };

static enum weft_status check_gpu(struct weft_cuda *gpus, uint32_t rank, struct weft_error *error) {
  const struct weft_cuda_gpu_info *gpu = weft_cuda_rank_gpu(gpus, rank);
  if (gpu->capability < CAPABILITY_MIN) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE,
                     "GPUs since Ampere (A100, RTX 30) have it; CUDA_VISIBLE_DEVICES chooses",
                     "%s: it has compute capability %" PRIu32 ".%" PRIu32
                     ", and the trainer's kernels need 8.0",
                     weft_cuda_location(gpus, rank), gpu->capability / 10, gpu->capability % 10);
  }
  return WEFT_OK;
}

/* Sequences and heads are the grid's z and y in attention; CUDA counts so far. */
enum { GRID_MAX = 65535 };

static enum weft_status check_config(const struct weft_gpt_config *config, uint64_t sequences_max,
                                     struct weft_error *error) {
  const uint32_t width = config->dim / config->heads;
  if (width != 16 && width != 32 && width != 64 && width != 128) {
    return weft_fail(error, WEFT_ERR_USAGE, "--dim divided by --heads must be 16, 32, 64 or 128",
                     "heads of %" PRIu32 " channels: the GPU's kernels have no such width", width);
  }
  if (config->vocabulary % 8 != 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "fill it up: GPT-2's 50,257 are usually 50,304",
                     "a vocabulary of %" PRIu32 " is not a multiple of 8", config->vocabulary);
  }
  if (sequences_max > GRID_MAX || config->heads > GRID_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     sequences_max > GRID_MAX ? "more microbatches have fewer sequences each"
                                              : "wider heads are fewer",
                     "microbatches of %" PRIu64 " sequences and %" PRIu32
                     " heads: the GPU's kernels take at most %d of each",
                     sequences_max, config->heads, GRID_MAX);
  }
  return WEFT_OK;
}

/* Which 16 floats of a layer decay: tensors begin at multiples of 16. */
static enum weft_status make_decays(struct weft_gpt_cuda *cuda,
                                    const struct weft_gpt_config *config, uint32_t kind,
                                    struct weft_error *error) {
  struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX];
  const uint32_t layer = kind == 0 ? 0 : kind == 1 ? 1 : config->blocks + 1;
  const uint32_t tensors = weft_gpt_layer_parameters(config, layer, parameters);
  const uint64_t count = weft_gpt_layer_floats(config, layer) / 16;
  WEFT_SCOPED_ARENA arena = {.allocator = cuda->allocator};
  unsigned char *flags = weft_arena_allocate(&arena, count, 1);
  WEFT_TRY(weft_arena_status(&arena, error));
  for (uint32_t n = 0; n < tensors; n++) {
    const uint64_t end = (parameters[n].offset + parameters[n].count + 15) / 16;
    for (uint64_t at = parameters[n].offset / 16; at < end; at++) {
      flags[at] = parameters[n].decays;
    }
  }
  cuda->decay_counts[kind] = count;
  cuda->decays[kind] = weft_device_allocate(cuda->compute.device, cuda->allocator, count);
  if (cuda->decays[kind] == NULL) {
    return weft_fail_memory(error, (size_t)count);
  }
  return weft_copy(&(struct weft_copy){.to = cuda->decays[kind],
                                       .to_device = cuda->compute.device,
                                       .from = flags,
                                       .row_bytes = count,
                                       .rows = 1},
                   NULL, error);
}

static uint64_t parts_bytes(const struct weft_gpt_cuda *cuda) {
  return cuda->layer_count * SUM_PARTS * sizeof(double);
}

static enum weft_status allocate(struct weft_gpt_cuda *cuda, const struct weft_gpt_config *config,
                                 struct weft_error *error) {
  struct weft_device *device = cuda->compute.device;
  WEFT_TRY(device->ops->stream_create(device, &cuda->stream, error));
  WEFT_TRY(device->ops->event_create(device, false, &cuda->event, error));
  for (uint32_t k = 0; k < 2; k++) {
    cuda->workspaces[k] = weft_device_allocate(device, cuda->allocator, WEFT_GPT_CUDA_WORKSPACE);
  }
  cuda->settings = weft_device_allocate(device, cuda->allocator, SETTINGS * sizeof(float));
  cuda->layer_count = weft_gpt_layer_count(config);
  cuda->parts = weft_device_allocate(device, cuda->allocator, parts_bytes(cuda));
  cuda->step = device->ops->allocate_host(device, STEP_NUMBERS * sizeof(double));
  cuda->sums = device->ops->allocate_host(device, SUM_ARRAYS * SUM_PARTS * sizeof(double));
  if (cuda->workspaces[0] == NULL || cuda->workspaces[1] == NULL || cuda->settings == NULL ||
      cuda->parts == NULL || cuda->step == NULL || cuda->sums == NULL) {
    return weft_fail_memory(error, WEFT_GPT_CUDA_WORKSPACE);
  }
  for (uint32_t kind = 0; kind < 3; kind++) {
    WEFT_TRY(make_decays(cuda, config, kind, error));
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_compute_cuda_create(const struct weft_allocator *allocator,
                                              struct weft_cuda *gpus, uint32_t rank,
                                              const struct weft_gpt_config *config,
                                              uint64_t sequences_max, struct weft_gpt_compute *peer,
                                              struct weft_gpt_compute **out,
                                              struct weft_error *error) {
  static const char *const names[WEFT_GPT_CUDA_KERNEL_COUNT] = {
#define NAME(name) "weft_gpt_" #name,
      WEFT_GPT_CUDA_KERNELS(NAME)
#undef NAME
  };
  struct weft_device *device = weft_cuda_device(gpus, rank);
  assert(device != NULL);
  WEFT_TRY(check_gpu(gpus, rank, error));
  WEFT_TRY(check_config(config, sequences_max, error));
  struct weft_gpt_cuda *cuda = weft_array_allocate_zero(allocator, 1, sizeof *cuda);
  if (cuda == NULL) {
    return weft_fail_memory(error, sizeof *cuda);
  }
  cuda->compute = (struct weft_gpt_compute){.ops = weft_gpt_compute_cuda_ops(), .device = device};
  cuda->allocator = allocator;
  cuda->hopper = weft_cuda_rank_gpu(gpus, rank)->capability == 90;
  cuda->compute.attention =
      weft_gpt_cuda_wide_attention(cuda, config, config->context) ? "wgmma" : "mma";
  enum weft_status status = begin(cuda, error);
  if (peer != NULL) {
    cuda->products = weft_gpt_cuda_of(peer)->products;
    cuda->products->users++;
  } else if (status == WEFT_OK) {
    status = open_products(cuda, error);
  }
  if (status == WEFT_OK) {
    status = weft_cuda_kernels_load(gpus, rank, weft_gpt_cuda_text, names,
                                    WEFT_GPT_CUDA_KERNEL_COUNT, &cuda->kernels, error);
  }
  if (status == WEFT_OK) {
    status = allocate(cuda, config, error);
  }
  if (status < 0) {
    weft_gpt_compute_cuda_destroy(&cuda->compute);
    return status;
  }
  *out = &cuda->compute;
  return WEFT_OK;
}

void weft_gpt_compute_cuda_destroy(struct weft_gpt_compute *compute) {
  struct weft_gpt_cuda *cuda = compute != NULL ? weft_gpt_cuda_of(compute) : NULL;
  if (cuda == NULL) {
    return;
  }
  struct weft_device *device = compute->device;
  (void)device->ops->make_current(device, NULL);
  close_products(cuda);
  weft_cuda_kernels_unload(cuda->kernels);
  for (uint32_t k = 0; k < 2; k++) {
    weft_device_free(device, cuda->allocator, cuda->workspaces[k], WEFT_GPT_CUDA_WORKSPACE);
  }
  for (uint32_t kind = 0; kind < 3; kind++) {
    weft_device_free(device, cuda->allocator, cuda->decays[kind], cuda->decay_counts[kind]);
  }
  weft_device_free(device, cuda->allocator, cuda->settings, SETTINGS * sizeof(float));
  weft_device_free(device, cuda->allocator, cuda->parts, parts_bytes(cuda));
  device->ops->free_host(device, cuda->step);
  device->ops->free_host(device, cuda->sums);
  device->ops->event_destroy(device, cuda->event);
  device->ops->stream_destroy(device, cuda->stream);
  weft_array_free(cuda->allocator, cuda, 1, sizeof *cuda);
}
