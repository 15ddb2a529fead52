/* The linear stage: y = x W + b, and half the squared error as the loss of the
 * last one. The smallest stage that really learns, for tests of the runtime and
 * for the example.
 *
 * R rows of a microbatch, C columns (the width):
 *   x, dx, y, dy, t   R x C   input, output, target and gradients, row-major
 *   W, dW             C x C   from column of x to column of y
 *   b, db             C
 *
 * Tensors may be on the tests' protected device: this is a kernel of its own.
 *
 * It keeps nothing between calls but its parameters and their gradients: x and dy
 * are still there when the backward wants them (weft/run.h). */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <weft/run.h>
#include <weft/support.h>

#include "support_linear_stage.h"
#include "support_protected_device.h"

struct test_linear_stage {
  struct weft_stage stage;
  struct weft_arena arena; /* of what follows */
  uint32_t width;
  uint32_t count;    /* C x C + C */
  float *parameters; /* W, b */
  float *gradients;  /* dW, db, of all microbatches so far */
  double *share;     /* the same of one microbatch, while it is computed */
};

/* ---- Checks ---- */

static enum weft_status refuse(const struct test_linear_stage *linear,
                               const struct weft_stage_call *call, const char *what,
                               const struct weft_tensor_shape *shape, struct weft_error *error) {
  return weft_fail(
      error, WEFT_ERR_STAGE, "give the boundary and the batch this width",
      "stage %" PRIu32 ", microbatch %" PRIu32 ": %s is %s with %u dimensions, %" PRIu64
      " x %" PRIu64 "; expected f32, rows x %" PRIu32,
      call->stage, call->microbatch, what, weft_dtype_name((enum weft_dtype)shape->dtype),
      shape->dim_count, shape->dims[0], shape->dims[1], linear->width);
}

/* One tensor of R x C, and its R. */
static enum weft_status take_matrix(const struct test_linear_stage *linear,
                                    const struct weft_stage_call *call,
                                    const struct weft_tensors *tensors, const char *what,
                                    uint64_t *rows, struct weft_error *error) {
  if (tensors->count != 1) {
    return weft_fail(error, WEFT_ERR_STAGE, "a linear stage takes one tensor and gives one",
                     "stage %" PRIu32 ", microbatch %" PRIu32 ": %s has %" PRIu32
                     " tensors; expected 1",
                     call->stage, call->microbatch, what, tensors->count);
  }
  const struct weft_tensor_shape *shape = &tensors->items[0].shape;
  if (shape->dtype != WEFT_F32 || shape->dim_count != 2 || shape->dims[1] != linear->width) {
    return refuse(linear, call, what, shape, error);
  }
  *rows = shape->dims[0];
  return WEFT_OK;
}

/* The same, which has to have as many rows as another one. */
static enum weft_status match_matrix(const struct test_linear_stage *linear,
                                     const struct weft_stage_call *call,
                                     const struct weft_tensors *tensors, const char *what,
                                     uint64_t rows_expected, struct weft_error *error) {
  uint64_t rows = 0;
  WEFT_TRY(take_matrix(linear, call, tensors, what, &rows, error));
  if (rows != rows_expected) {
    return weft_fail(error, WEFT_ERR_STAGE, "",
                     "stage %" PRIu32 ", microbatch %" PRIu32 ": %s has %" PRIu64
                     " rows; expected %" PRIu64,
                     call->stage, call->microbatch, what, rows, rows_expected);
  }
  return WEFT_OK;
}

/* Where R x C numbers go: the tensor becomes as small as this microbatch is. */
static enum weft_status shape_matrix(const struct test_linear_stage *linear,
                                     const struct weft_stage_call *call,
                                     struct weft_tensors *tensors, const char *what, uint64_t rows,
                                     struct weft_error *error) {
  uint64_t rows_max = 0;
  WEFT_TRY(take_matrix(linear, call, tensors, what, &rows_max, error));
  if (rows > rows_max) {
    return weft_fail(error, WEFT_ERR_STAGE, "make the boundary's largest shape larger",
                     "stage %" PRIu32 ", microbatch %" PRIu32 ": %s has room for %" PRIu64
                     " rows, and the input has %" PRIu64,
                     call->stage, call->microbatch, what, rows_max, rows);
  }
  tensors->items[0].shape.dims[0] = rows;
  return WEFT_OK;
}

/* ---- Arithmetic ---- */

/* y = x W + b, one row. */
static void forward_row(const struct test_linear_stage *linear, const float *x, float *y) {
  const uint32_t width = linear->width;
  const float *weights = linear->parameters;
  memcpy(y, weights + (size_t)width * width, width * sizeof *y);
  for (uint32_t i = 0; i < width; i++, weights += width) {
    for (uint32_t j = 0; j < width; j++) {
      y[j] += x[i] * weights[j];
    }
  }
}

/* dx = dy W^T, one row. */
static void input_grad_row(const struct test_linear_stage *linear, const float *dy, float *dx) {
  const uint32_t width = linear->width;
  const float *weights = linear->parameters;
  for (uint32_t i = 0; i < width; i++, weights += width) {
    float sum = 0;
    for (uint32_t j = 0; j < width; j++) {
      sum += dy[j] * weights[j];
    }
    dx[i] = sum;
  }
}

/* share += x^T dy and the sum of dy, one row. */
static void weight_grad_row(struct test_linear_stage *linear, const float *x, const float *dy) {
  const uint32_t width = linear->width;
  double *share = linear->share;
  for (uint32_t i = 0; i < width; i++, share += width) {
    for (uint32_t j = 0; j < width; j++) {
      share[j] += (double)x[i] * (double)dy[j];
    }
  }
  for (uint32_t j = 0; j < width; j++) {
    share[j] += (double)dy[j];
  }
}

/* ---- The stage's functions ---- */

static enum weft_status forward(struct weft_stage *stage, struct weft_stage_call *call,
                                struct weft_error *error) {
  const struct test_linear_stage *linear = (struct test_linear_stage *)stage;
  uint64_t rows = 0;
  WEFT_TRY(take_matrix(linear, call, call->inputs, "the input", &rows, error));
  WEFT_TRY(shape_matrix(linear, call, call->outputs, "the output", rows, error));
  const float *x = test_tensor_view(&call->inputs->items[0]);
  float *y = test_tensor_view(&call->outputs->items[0]);
  for (uint64_t r = 0; r < rows; r++) {
    forward_row(linear, x + r * linear->width, y + r * linear->width);
  }
  return WEFT_OK;
}

/* Half the squared error, added up over the microbatch. */
static enum weft_status loss(struct weft_stage *stage, struct weft_stage_call *call,
                             struct weft_error *error) {
  const struct test_linear_stage *linear = (struct test_linear_stage *)stage;
  uint64_t rows = 0;
  if (!call->training && call->targets->count == 0) {
    return WEFT_OK; /* outputs are all that is wanted */
  }
  WEFT_TRY(take_matrix(linear, call, call->outputs, "the output", &rows, error));
  WEFT_TRY(match_matrix(linear, call, call->targets, "the target", rows, error));
  const float *y = test_tensor_view(&call->outputs->items[0]);
  const float *t = test_tensor_view(&call->targets->items[0]);
  float *dy = call->training && call->output_grads->count > 0
                  ? test_tensor_view(&call->output_grads->items[0])
                  : NULL;
  double sum = 0;
  for (uint64_t k = 0; k < rows * linear->width; k++) {
    const double difference = (double)y[k] - (double)t[k];
    sum += difference * difference;
    if (dy != NULL) {
      dy[k] = y[k] - t[k];
    }
  }
  *call->loss += 0.5 * sum;
  return WEFT_OK;
}

static enum weft_status backward_input(struct weft_stage *stage, struct weft_stage_call *call,
                                       struct weft_error *error) {
  const struct test_linear_stage *linear = (struct test_linear_stage *)stage;
  uint64_t rows = 0;
  if (call->input_grads->count == 0) {
    return WEFT_OK;
  }
  WEFT_TRY(take_matrix(linear, call, call->output_grads, "the output's gradient", &rows, error));
  WEFT_TRY(shape_matrix(linear, call, call->input_grads, "the input's gradient", rows, error));
  const float *dy = test_tensor_view(&call->output_grads->items[0]);
  float *dx = test_tensor_view(&call->input_grads->items[0]);
  for (uint64_t r = 0; r < rows; r++) {
    input_grad_row(linear, dy + r * linear->width, dx + r * linear->width);
  }
  return WEFT_OK;
}

/* The microbatch's share is complete before it is added, so that the sum depends
 * on the order of microbatches and on nothing else. */
static enum weft_status backward_weight(struct weft_stage *stage, struct weft_stage_call *call,
                                        struct weft_error *error) {
  struct test_linear_stage *linear = (struct test_linear_stage *)stage;
  uint64_t rows = 0;
  WEFT_TRY(take_matrix(linear, call, call->inputs, "the input", &rows, error));
  WEFT_TRY(match_matrix(linear, call, call->output_grads, "the output's gradient", rows, error));
  const float *x = test_tensor_view(&call->inputs->items[0]);
  const float *dy = test_tensor_view(&call->output_grads->items[0]);
  memset(linear->share, 0, linear->count * sizeof *linear->share);
  for (uint64_t r = 0; r < rows; r++) {
    weight_grad_row(linear, x + r * linear->width, dy + r * linear->width);
  }
  for (uint32_t k = 0; k < linear->count; k++) {
    linear->gradients[k] += (float)linear->share[k];
  }
  return WEFT_OK;
}

static enum weft_status backward(struct weft_stage *stage, struct weft_stage_call *call,
                                 struct weft_error *error) {
  WEFT_TRY(backward_input(stage, call, error));
  return backward_weight(stage, call, error);
}

static enum weft_status zero_grad(struct weft_stage *stage, struct weft_stage_call *call,
                                  struct weft_error *error) {
  struct test_linear_stage *linear = (struct test_linear_stage *)stage;
  (void)call;
  (void)error;
  memset(linear->gradients, 0, linear->count * sizeof *linear->gradients);
  return WEFT_OK;
}

static enum weft_status scale_grads(struct weft_stage *stage, struct weft_stage_call *call,
                                    struct weft_error *error) {
  struct test_linear_stage *linear = (struct test_linear_stage *)stage;
  const float scale = (float)call->grad_scale;
  (void)error;
  for (uint32_t k = 0; k < linear->count; k++) {
    linear->gradients[k] *= scale;
  }
  return WEFT_OK;
}

/* ---- Create and destroy ---- */

/* Uniform, such that x W is about as large as x. */
static void draw_parameters(struct test_linear_stage *linear, uint32_t stage, uint64_t seed) {
  struct weft_random random = {.state = seed};
  const double largest = sqrt(3.0 / linear->width);
  random.state = weft_random_next(&random) ^ stage;
  for (uint32_t k = 0; k < linear->count; k++) {
    const double unit = weft_random_share(&random);
    linear->parameters[k] = (float)(largest * (2 * unit - 1));
  }
}

static bool allocate(struct test_linear_stage *linear) {
  linear->parameters = weft_arena_allocate(&linear->arena, linear->count, sizeof(float));
  linear->gradients = weft_arena_allocate(&linear->arena, linear->count, sizeof(float));
  linear->share = weft_arena_allocate(&linear->arena, linear->count, sizeof(double));
  return linear->parameters != NULL && linear->gradients != NULL && linear->share != NULL;
}

static const struct weft_stage_ops linear_ops = {
    .name = "linear",
    .forward = forward,
    .backward = backward,
    .backward_input = backward_input,
    .backward_weight = backward_weight,
    .loss = loss,
    .zero_grad = zero_grad,
    .scale_grads = scale_grads,
};

enum weft_status test_linear_stage_create(const struct weft_allocator *allocator, uint32_t stage,
                                          uint32_t width, uint64_t seed,
                                          struct test_linear_stage **out,
                                          struct weft_error *error) {
  if (width == 0 || width > UINT16_MAX) { /* so that 32 bits count the parameters */
    return weft_fail(error, WEFT_ERR_USAGE, "", "a linear stage has 1 to %d columns, not %" PRIu32,
                     UINT16_MAX, width);
  }
  struct test_linear_stage *linear = weft_array_allocate_zero(allocator, 1, sizeof *linear);
  if (linear == NULL) {
    return weft_fail_memory(error, sizeof *linear);
  }
  linear->stage.ops = &linear_ops;
  linear->arena.allocator = allocator;
  linear->width = width;
  linear->count = width * width + width;
  if (!allocate(linear)) {
    const size_t bytes = (size_t)linear->count * (2 * sizeof(float) + sizeof(double));
    test_linear_stage_destroy(linear);
    return weft_fail_memory(error, bytes);
  }
  draw_parameters(linear, stage, seed);
  *out = linear;
  return WEFT_OK;
}

void test_linear_stage_destroy(struct test_linear_stage *stage) {
  if (stage != NULL) {
    const struct weft_allocator *allocator = stage->arena.allocator;
    weft_arena_finish(&stage->arena);
    weft_array_free(allocator, stage, 1, sizeof *stage);
  }
}

struct weft_stage *test_linear_stage_base(struct test_linear_stage *stage) {
  return &stage->stage;
}

float *test_linear_stage_parameters(struct test_linear_stage *stage, uint32_t *count) {
  *count = stage->count;
  return stage->parameters;
}

float *test_linear_stage_gradients(struct test_linear_stage *stage, uint32_t *count) {
  *count = stage->count;
  return stage->gradients;
}
