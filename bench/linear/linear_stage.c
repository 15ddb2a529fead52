/* The linear stage: see linear_stage.h. It keeps nothing of its own between forward and backward: the
 * input stays where it is until the last backward, and the gradient between I and W. In a graph it
 * adds its inputs up in the memory of the first, and its output gradients likewise: nobody else
 * reads what a stage has received. */
#include "bench/linear/linear_stage.h"

#include <assert.h>
#include <inttypes.h>

#include <weft/support.h>

#include "bench/linear/linear_kernels.h"

enum { BLOCK = 128 };

static struct weft_linear_stage *linear_of(struct weft_stage *stage) {
  return (struct weft_linear_stage *)stage;
}

/* Rows of a tensor [rows][columns]; UINT64_MAX: it is something else. */
static uint64_t rows_of(const struct weft_tensors *tensors, uint64_t columns) {
  assert(tensors != NULL);
  const struct weft_tensor_shape *shape = &tensors->items[0].shape;
  return tensors->count == 1 && shape->dtype == WEFT_F32 && shape->dim_count == 2 &&
                 shape->dims[1] == columns
             ? shape->dims[0]
             : UINT64_MAX;
}

static enum weft_status fail_shape(const struct weft_stage_call *call, const char *what,
                                   uint64_t columns, struct weft_error *error) {
  return weft_fail(error, WEFT_ERR_USAGE, "look at the boundary, the batch and the targets",
                   "the linear stage %" PRIu32 " needs %s of one f32 tensor [rows][%" PRIu64 "]",
                   call->stage, what, columns);
}

/* With at least one thread: on the call's stream, or complete at return on the host. */
static enum weft_status launch(const struct weft_linear_stage *linear,
                               const struct weft_stage_call *call,
                               enum weft_linear_kernel_id kernel, uint64_t threads,
                               void *const *parameters, struct weft_error *error) {
  if (threads == 0) {
    return WEFT_OK;
  }
  if (linear->kernels == NULL) {
    weft_linear_kernel_hosts[kernel](parameters, threads);
    return WEFT_OK;
  }
  const uint64_t block = threads < BLOCK ? threads : BLOCK, grid = (threads + block - 1) / block;
  assert(grid <= INT32_MAX);
  const struct weft_cuda_launch how = {.kernel = kernel,
                                       .blocks = {(uint32_t)grid},
                                       .threads = {(uint32_t)block},
                                       .parameters = parameters};
  return weft_cuda_launch(linear->kernels, &how, call->stream, error);
}

/* One of the three products: a matrix is written, two are read. */
static enum weft_status multiply(const struct weft_linear_stage *linear,
                                 const struct weft_stage_call *call,
                                 enum weft_linear_kernel_id kernel, uint64_t threads, void *to,
                                 const void *a, const void *b, uint64_t rows,
                                 struct weft_error *error) {
  uint64_t in = linear->in, out = linear->out;
  void *const parameters[] = {&to, &a, &b, &rows, &in, &out};
  return launch(linear, call, kernel, threads, parameters, error);
}

/* ---- Several edges ---- */

/* Adds the tensors of all edges up in the first, in their order; those without one are left out.
 * Returns the first in *sum, NULL: there is none. */
static enum weft_status add_up(const struct weft_linear_stage *linear,
                               const struct weft_stage_call *call,
                               const struct weft_tensors *tensors, uint32_t count, uint64_t columns,
                               const char *what, const struct weft_tensors **sum,
                               struct weft_error *error) {
  *sum = NULL;
  for (uint32_t k = 0; k < count; k++) {
    if (tensors[k].count == 0 && count > 1) {
      continue;
    }
    const uint64_t rows = rows_of(*sum != NULL ? *sum : &tensors[k], columns);
    if (rows == UINT64_MAX || rows_of(&tensors[k], columns) != rows) {
      return fail_shape(call, what, columns, error);
    }
    if (*sum == NULL) {
      *sum = &tensors[k];
      continue;
    }
    uint64_t numbers = rows * columns;
    void *to = (*sum)->items[0].data;
    const void *more = tensors[k].items[0].data;
    void *const parameters[] = {&to, &more, &numbers};
    WEFT_TRY(launch(linear, call, WEFT_LINEAR_ADD, numbers, parameters, error));
  }
  return *sum != NULL ? WEFT_OK : fail_shape(call, what, columns, error);
}

/* Of the backward of the weights: what add_up() has found before. */
static const struct weft_tensors *first_of(const struct weft_tensors *tensors, uint32_t count) {
  assert(tensors != NULL && count > 0);
  uint32_t k = 0;
  while (k + 1 < count && tensors[k].count == 0) {
    k++;
  }
  return &tensors[k];
}

/* The same to all edges that need it, from the one that has it. */
static enum weft_status copy_to_others(const struct weft_stage_call *call,
                                       struct weft_tensors *tensors, uint32_t count,
                                       const struct weft_tensors *made, struct weft_error *error) {
  for (uint32_t k = 0; k < count; k++) {
    uint64_t bytes;
    if (&tensors[k] == made || tensors[k].count == 0 ||
        !weft_shape_bytes(&made->items[0].shape, &bytes)) {
      continue;
    }
    struct weft_tensor *to = &tensors[k].items[0];
    const struct weft_tensor *from = &made->items[0];
    to->shape = from->shape;
    WEFT_TRY(weft_copy_bytes(to->data, to->device, from->data, from->device, bytes, call->stream,
                             error));
  }
  return WEFT_OK;
}

/* ---- The functions ---- */

static enum weft_status forward(struct weft_stage *stage, struct weft_stage_call *call,
                                struct weft_error *error) {
  const struct weft_linear_stage *linear = linear_of(stage);
  const struct weft_tensors *x;
  WEFT_TRY(add_up(linear, call, call->inputs, call->input_count, linear->in, "inputs", &x, error));
  const uint64_t rows = rows_of(x, linear->in);
  for (uint32_t k = 0; k < call->output_count; k++) {
    if (rows_of(&call->outputs[k], linear->out) == UINT64_MAX) {
      return fail_shape(call, "outputs", linear->out, error);
    }
  }
  call->outputs->items[0].shape.dims[0] = rows;
  WEFT_TRY(multiply(linear, call, WEFT_LINEAR_FORWARD, rows * linear->out,
                    call->outputs->items[0].data, x->items[0].data, linear->weights, rows, error));
  return copy_to_others(call, call->outputs, call->output_count, call->outputs, error);
}

static enum weft_status backward_input(struct weft_stage *stage, struct weft_stage_call *call,
                                       struct weft_error *error) {
  const struct weft_linear_stage *linear = linear_of(stage);
  const struct weft_tensors *dy;
  WEFT_TRY(add_up(linear, call, call->output_grads, call->output_count, linear->out,
                  "output gradients", &dy, error));
  const uint64_t rows = rows_of(dy, linear->out);
  struct weft_tensors *dx = call->input_grads;
  while (dx < call->input_grads + call->input_count - 1 && dx->count == 0) {
    dx++;
  }
  if (dx->count == 0) {
    return WEFT_OK; /* nobody needs it */
  }
  WEFT_TRY(multiply(linear, call, WEFT_LINEAR_BACKWARD_INPUT, rows * linear->in, dx->items[0].data,
                    dy->items[0].data, linear->weights, rows, error));
  return copy_to_others(call, call->input_grads, call->input_count, dx, error);
}

static enum weft_status backward_weight(struct weft_stage *stage, struct weft_stage_call *call,
                                        struct weft_error *error) {
  const struct weft_linear_stage *linear = linear_of(stage);
  const struct weft_tensors *dy = first_of(call->output_grads, call->output_count);
  const uint64_t rows = rows_of(dy, linear->out);
  if (rows == UINT64_MAX) {
    return fail_shape(call, "output gradients", linear->out, error);
  }
  return multiply(linear, call, WEFT_LINEAR_BACKWARD_WEIGHT, linear->out * linear->in,
                  linear->grads, dy->items[0].data, call->inputs->items[0].data, rows, error);
}

static enum weft_status loss(struct weft_stage *stage, struct weft_stage_call *call,
                             struct weft_error *error) {
  const struct weft_linear_stage *linear = linear_of(stage);
  const uint64_t rows = rows_of(call->targets, linear->out);
  if (rows == UINT64_MAX || rows != call->outputs->items[0].shape.dims[0]) {
    return fail_shape(call, "targets", linear->out, error);
  }
  uint64_t count = rows * linear->out;
  double *sum = call->loss;
  const void *y = call->outputs->items[0].data, *target = call->targets->items[0].data;
  void *const parameters[] = {&sum, &y, &target, &count};
  WEFT_TRY(launch(linear, call, WEFT_LINEAR_SQUARE_LOSS, count > 0, parameters, error));
  if (call->output_grads->count == 0) {
    return WEFT_OK;
  }
  void *difference = call->output_grads->items[0].data;
  void *const subtract[] = {&difference, &y, &target, &count};
  return launch(linear, call, WEFT_LINEAR_SUBTRACT, count, subtract, error);
}

static enum weft_status zero_grad(struct weft_stage *stage, struct weft_stage_call *call,
                                  struct weft_error *error) {
  const struct weft_linear_stage *linear = linear_of(stage);
  return weft_device_fill(linear->device, linear->grads, 0,
                          linear->out * linear->in * sizeof *linear->grads, call->stream, error);
}

static enum weft_status scale_grads(struct weft_stage *stage, struct weft_stage_call *call,
                                    struct weft_error *error) {
  const struct weft_linear_stage *linear = linear_of(stage);
  uint64_t count = linear->out * linear->in;
  void *grads = linear->grads;
  double scale = call->grad_scale;
  void *const parameters[] = {&grads, &scale, &count};
  return launch(linear, call, WEFT_LINEAR_SCALE, count, parameters, error);
}

/* ---- Making it ---- */

/* Drawn between -1 and 1, divided by `in`: outputs keep the inputs' size. */
static enum weft_status draw_weights(const struct weft_linear_stage *stage, uint64_t seed,
                                     struct weft_error *error) {
  const size_t count = (size_t)(stage->in * stage->out);
  float *host = weft_array_allocate(NULL, count, sizeof *host);
  if (host == NULL) {
    return weft_fail_memory(error, count * sizeof *host);
  }
  struct weft_random random = {.state = seed};
  for (size_t k = 0; k < count; k++) {
    host[k] = (float)((2 * weft_random_share(&random) - 1) / (double)stage->in);
  }
  const enum weft_status status =
      weft_copy_bytes(stage->weights, stage->device, host, NULL, count * sizeof *host, NULL, error);
  weft_array_free(NULL, host, count, sizeof *host);
  return status;
}

static enum weft_status fill(struct weft_linear_stage *stage, struct weft_cuda *cuda, uint32_t rank,
                             uint64_t seed, struct weft_error *error) {
  const uint64_t bytes = stage->in * stage->out * sizeof(float);
  if (cuda != NULL) {
    WEFT_TRY(weft_cuda_kernels_load(cuda, rank, weft_linear_kernels_text, weft_linear_kernel_names,
                                    WEFT_LINEAR_KERNELS, &stage->kernels, error));
  }
  stage->weights = weft_device_allocate(stage->device, NULL, bytes);
  stage->grads = weft_device_allocate(stage->device, NULL, bytes);
  return stage->weights != NULL && stage->grads != NULL
             ? draw_weights(stage, seed, error)
             : weft_device_fail_allocation(stage->device, bytes, error);
}

enum weft_status weft_linear_stage_init(struct weft_linear_stage *stage, struct weft_cuda *cuda,
                                        uint32_t rank, uint64_t in, uint64_t out, uint64_t seed,
                                        struct weft_error *error) {
  static const struct weft_stage_ops ops = {
      .name = "linear",
      .enqueues = true,
      .replays = true,
      .forward = forward,
      .backward_input = backward_input,
      .backward_weight = backward_weight,
      .loss = loss,
      .zero_grad = zero_grad,
      .scale_grads = scale_grads,
  };
  assert(stage != NULL && in > 0 && out > 0);
  *stage = (struct weft_linear_stage){.stage = {.ops = &ops},
                                      .device = cuda != NULL ? weft_cuda_device(cuda, rank) : NULL,
                                      .in = in,
                                      .out = out};
  const enum weft_status status = fill(stage, cuda, rank, seed, error);
  if (status < 0) {
    weft_linear_stage_finish(stage);
  }
  return status;
}

void weft_linear_stage_finish(struct weft_linear_stage *stage) {
  const uint64_t bytes = stage->in * stage->out * sizeof(float);
  weft_device_free(stage->device, NULL, stage->weights, bytes);
  weft_device_free(stage->device, NULL, stage->grads, bytes);
  weft_cuda_kernels_unload(stage->kernels);
  stage->weights = stage->grads = NULL;
  stage->kernels = NULL;
}

enum weft_status weft_linear_stage_read(const struct weft_linear_stage *stage, bool grads,
                                        float *host, struct weft_error *error) {
  assert(stage != NULL && host != NULL);
  return weft_copy_bytes(host, NULL, grads ? stage->grads : stage->weights, stage->device,
                         stage->in * stage->out * sizeof *host, NULL, error);
}
