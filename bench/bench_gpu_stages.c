/* Stages of matrix products by cublasLt: see bench_gpu.h. Nothing but products runs on the GPU:
 * gelu and its gradient are their epilogues, and residuals are what they add to. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "bench/bench_gpu.h"
#include "cuda/cublaslt.h"

#define WORKSPACE_BYTES (UINT64_C(32) << 20)

enum plan {
  UP_FORWARD,   /* h = gelu(a), a = W1 x; without gelu in a layer of one product */
  DOWN_FORWARD, /* y = x + W2 h */
  DOWN_INPUT,   /* da = gelu'(a) W2^T dy */
  UP_INPUT,     /* dx = dy + W1^T da; in a layer of one product dx = W^T dy */
  DOWN_WEIGHT,  /* dW2 += dy h^T */
  UP_WEIGHT,    /* dW1 += da x^T */
  ROW_DOTS,     /* outputs times targets, of each row */
  SUM,          /* of those */
  PLANS
};

struct weft_bench_gpu_products {
  struct weft_cublaslt *lt;
  struct weft_product *plans[PLANS];
  uint64_t rows, width, wide, inner; /* inner: of an UP product, wide or width */
  uint32_t layers;
  bool has_loss;
};

/* ---- Plans ---- */

static enum weft_status plan(struct weft_bench_gpu_products *products, enum plan number, uint64_t m,
                             uint64_t n, uint64_t k, bool a_transposed, bool b_transposed,
                             enum weft_product_epilogue epilogue, uint32_t sms,
                             struct weft_error *error) {
  const struct weft_product_shape shape = {
      .m = m,
      .n = n,
      .k = k,
      .a = {.type = WEFT_PRODUCT_BF16, .transposed = a_transposed},
      .b = {.type = WEFT_PRODUCT_BF16, .transposed = b_transposed},
      .d = {.type = WEFT_PRODUCT_BF16},
      .epilogue = epilogue,
      .sm_count = sms,
      .workspace_bytes = WORKSPACE_BYTES};
  return weft_product_create(products->lt, &shape, &products->plans[number], error);
}

/* The loss: a number per row, and their sum. */
static enum weft_status plan_loss(struct weft_bench_gpu_products *products,
                                  struct weft_error *error) {
  const struct weft_product_shape dots = {
      .m = 1,
      .n = 1,
      .k = products->width,
      .a = {.type = WEFT_PRODUCT_BF16, .batch_stride = products->width},
      .b = {.type = WEFT_PRODUCT_BF16, .batch_stride = products->width},
      .d = {.type = WEFT_PRODUCT_F32, .batch_stride = 1},
      .batch = (uint32_t)products->rows,
      .align_bytes = 4,
      .workspace_bytes = WORKSPACE_BYTES};
  const struct weft_product_shape sum = {.m = 1,
                                         .n = 1,
                                         .k = products->rows,
                                         .a = {.type = WEFT_PRODUCT_F32},
                                         .b = {.type = WEFT_PRODUCT_F32},
                                         .d = {.type = WEFT_PRODUCT_F32},
                                         .align_bytes = 4,
                                         .workspace_bytes = WORKSPACE_BYTES};
  WEFT_TRY(weft_product_create(products->lt, &dots, &products->plans[ROW_DOTS], error));
  return weft_product_create(products->lt, &sum, &products->plans[SUM], error);
}

static enum weft_status plan_all(struct weft_bench_gpu_products *products, uint32_t sms,
                                 struct weft_error *error) {
  const uint64_t rows = products->rows, width = products->width, inner = products->inner;
  const bool blocks = products->wide > 0;
  WEFT_TRY(plan(products, UP_FORWARD, inner, rows, width, true, false,
                blocks ? WEFT_EPILOGUE_GELU_AUX : WEFT_EPILOGUE_NONE, sms, error));
  WEFT_TRY(
      plan(products, UP_INPUT, width, rows, inner, false, false, WEFT_EPILOGUE_NONE, sms, error));
  WEFT_TRY(
      plan(products, UP_WEIGHT, width, inner, rows, false, true, WEFT_EPILOGUE_NONE, sms, error));
  if (!blocks) {
    return WEFT_OK;
  }
  WEFT_TRY(plan(products, DOWN_FORWARD, width, rows, inner, true, false, WEFT_EPILOGUE_NONE, sms,
                error));
  WEFT_TRY(plan(products, DOWN_INPUT, inner, rows, width, false, false, WEFT_EPILOGUE_DGELU, sms,
                error));
  WEFT_TRY(
      plan(products, DOWN_WEIGHT, inner, width, rows, false, true, WEFT_EPILOGUE_NONE, sms, error));
  products->has_loss = true;
  return plan_loss(products, error);
}

enum weft_status weft_bench_gpu_products_open(struct weft_device *device,
                                              const struct weft_bench_gpu_case *at,
                                              struct weft_bench_gpu_products **out,
                                              struct weft_error *error) {
  struct weft_bench_gpu_products *products = weft_array_allocate_zero(NULL, 1, sizeof *products);
  if (products == NULL) {
    return weft_fail_memory(error, sizeof *products);
  }
  products->rows = at->rows;
  products->width = at->width;
  products->wide = at->wide;
  products->inner = at->wide > 0 ? at->wide : at->width;
  products->layers = at->layers;
  enum weft_status status = device->ops->make_current(device, error);
  if (status == WEFT_OK) {
    status = weft_cublaslt_open(NULL, &products->lt, error);
  }
  if (status == WEFT_OK) {
    status = plan_all(products, at->sms, error);
  }
  if (status < 0) {
    weft_bench_gpu_products_close(products);
    return status;
  }
  *out = products;
  return WEFT_OK;
}

void weft_bench_gpu_products_close(struct weft_bench_gpu_products *products) {
  if (products != NULL) {
    for (int k = 0; k < PLANS; k++) {
      weft_product_destroy(products->plans[k]);
    }
    weft_cublaslt_close(products->lt);
    weft_array_free(NULL, products, 1, sizeof *products);
  }
}

/* ---- A stage ---- */

struct weft_bench_gpu_stage {
  struct weft_stage stage; /* first */
  const struct weft_bench_gpu_products *products;
  struct weft_device *device;
  uint32_t number, stage_count, microbatches;
  char *weights, *grads; /* [layers]: W1 [inner][width], W2 [width][inner] */
  char *slots;           /* [slot_count] */
  uint64_t slot_count;
  char *inputs, *targets;   /* [microbatches][rows][width], of the first and the last stage */
  char *workspaces[2];      /* forwards and backwards may run at the same time */
  float *ones, *dots, *sum; /* of the loss; sum [microbatches] is memory of the host */
};

static struct weft_bench_gpu_stage *of(struct weft_stage *stage) {
  return (struct weft_bench_gpu_stage *)stage;
}

static uint64_t tensor_bytes(const struct weft_bench_gpu_products *products) {
  return 2 * products->rows * products->width;
}
static uint64_t inner_bytes(const struct weft_bench_gpu_products *products) {
  return 2 * products->rows * products->inner;
}
static uint64_t matrix_bytes(const struct weft_bench_gpu_products *products) {
  return 2 * products->width * products->inner;
}
static uint64_t weight_bytes(const struct weft_bench_gpu_products *products) {
  return products->layers * matrix_bytes(products) * (products->wide > 0 ? 2 : 1);
}
static uint64_t layer_bytes(const struct weft_bench_gpu_products *products) {
  return 2 * tensor_bytes(products) + (products->wide > 0 ? 3 * inner_bytes(products) : 0);
}

/* Of a layer in a slot: its input x and the gradient of it, which the first layer has in messages;
 * and a, h, da. */
struct kept {
  char *x, *dx, *a, *h, *da;
};

static struct kept kept_of(const struct weft_bench_gpu_stage *stage, uint32_t slot,
                           uint32_t layer) {
  const struct weft_bench_gpu_products *products = stage->products;
  char *at = stage->slots + (slot * (uint64_t)products->layers + layer) * layer_bytes(products);
  char *inner = at + 2 * tensor_bytes(products);
  return (struct kept){at, at + tensor_bytes(products), inner, inner + inner_bytes(products),
                       inner + 2 * inner_bytes(products)};
}

static char *matrix(const struct weft_bench_gpu_stage *stage, char *from, uint32_t layer,
                    bool down) {
  const uint64_t each = stage->products->wide > 0 ? 2 : 1;
  return from + (layer * each + (down ? 1 : 0)) * matrix_bytes(stage->products);
}

static enum weft_status multiply(const struct weft_bench_gpu_stage *stage, enum plan number,
                                 const void *a, const void *b, const void *c, void *d, void *aux,
                                 bool backward, struct weft_stream *stream,
                                 struct weft_error *error) {
  const struct weft_product_call call = {.alpha = 1,
                                         .beta = c != NULL ? 1 : 0,
                                         .a = a,
                                         .b = b,
                                         .c = c,
                                         .d = d,
                                         .aux = aux,
                                         .workspace = stage->workspaces[backward]};
  return weft_product_run(stage->products->plans[number], &call, stream, error);
}

static bool is_last(const struct weft_bench_gpu_stage *stage) {
  return stage->number + 1 == stage->stage_count;
}

static char *microbatch(const struct weft_bench_gpu_stage *stage, char *from, uint32_t number) {
  return from + (number % stage->microbatches) * tensor_bytes(stage->products);
}

static const char *input_of(const struct weft_bench_gpu_stage *stage,
                            const struct weft_stage_call *call) {
  return stage->number == 0 ? microbatch(stage, stage->inputs, call->microbatch)
                            : call->inputs->items[0].data;
}

static enum weft_status forward(struct weft_stage *base, struct weft_stage_call *call,
                                struct weft_error *error) {
  const struct weft_bench_gpu_stage *stage = of(base);
  const struct weft_bench_gpu_products *products = stage->products;
  const char *x = input_of(stage, call);
  char *const output = call->outputs->items[0].data;
  for (uint32_t l = 0; l < products->layers; l++) {
    const struct kept kept = kept_of(stage, call->slot, l);
    char *y = l + 1 < products->layers ? kept_of(stage, call->slot, l + 1).x : output;
    const char *w1 = matrix(stage, stage->weights, l, false);
    if (products->wide == 0) {
      WEFT_TRY(multiply(stage, UP_FORWARD, w1, x, NULL, y, NULL, false, call->stream, error));
    } else {
      WEFT_TRY(
          multiply(stage, UP_FORWARD, w1, x, NULL, kept.h, kept.a, false, call->stream, error));
      WEFT_TRY(multiply(stage, DOWN_FORWARD, matrix(stage, stage->weights, l, true), kept.h, x, y,
                        NULL, false, call->stream, error));
    }
    x = y;
  }
  if (!is_last(stage) || !products->has_loss) {
    return WEFT_OK;
  }
  WEFT_TRY(multiply(stage, ROW_DOTS, output, microbatch(stage, stage->targets, call->microbatch),
                    NULL, stage->dots, NULL, false, call->stream, error));
  return multiply(stage, SUM, stage->dots, stage->ones, NULL, stage->sum + call->microbatch, NULL,
                  false, call->stream, error);
}

/* The gradient of the last layer's output. */
static const char *output_grad(const struct weft_bench_gpu_stage *stage,
                               const struct weft_stage_call *call) {
  return is_last(stage) ? microbatch(stage, stage->targets, call->microbatch)
                        : call->output_grads->items[0].data;
}

static enum weft_status backward_input(struct weft_stage *base, struct weft_stage_call *call,
                                       struct weft_error *error) {
  const struct weft_bench_gpu_stage *stage = of(base);
  const struct weft_bench_gpu_products *products = stage->products;
  const char *dy = output_grad(stage, call);
  for (uint32_t l = products->layers; l-- > 0;) {
    const struct kept kept = kept_of(stage, call->slot, l);
    char *dx = l > 0                          ? kept.dx
               : call->input_grads->count > 0 ? call->input_grads->items[0].data
                                              : NULL;
    const char *w1 = matrix(stage, stage->weights, l, false);
    const char *da = dy;
    if (products->wide > 0) {
      WEFT_TRY(multiply(stage, DOWN_INPUT, matrix(stage, stage->weights, l, true), dy, NULL,
                        kept.da, kept.a, true, call->stream, error));
      da = kept.da;
    }
    if (dx != NULL) {
      WEFT_TRY(multiply(stage, UP_INPUT, w1, da, products->wide > 0 ? dy : NULL, dx, NULL, true,
                        call->stream, error));
    }
    dy = dx;
  }
  return WEFT_OK;
}

static enum weft_status backward_weight(struct weft_stage *base, struct weft_stage_call *call,
                                        struct weft_error *error) {
  const struct weft_bench_gpu_stage *stage = of(base);
  const struct weft_bench_gpu_products *products = stage->products;
  const char *dy = output_grad(stage, call);
  for (uint32_t l = products->layers; l-- > 0;) {
    const struct kept kept = kept_of(stage, call->slot, l);
    const char *x = l > 0 ? kept.x : input_of(stage, call);
    char *dw = matrix(stage, stage->grads, l, false);
    const char *da = products->wide > 0 ? kept.da : dy;
    if (products->wide > 0) {
      char *down = matrix(stage, stage->grads, l, true);
      WEFT_TRY(
          multiply(stage, DOWN_WEIGHT, kept.h, dy, down, down, NULL, true, call->stream, error));
    }
    WEFT_TRY(multiply(stage, UP_WEIGHT, x, da, dw, dw, NULL, true, call->stream, error));
    dy = kept.dx;
  }
  return WEFT_OK;
}

static enum weft_status zero_grad(struct weft_stage *base, struct weft_stage_call *call,
                                  struct weft_error *error) {
  const struct weft_bench_gpu_stage *stage = of(base);
  return weft_device_fill(stage->device, stage->grads, 0, weight_bytes(stage->products),
                          call->stream, error);
}

static enum weft_status prepare(struct weft_stage *base, uint32_t slot_count,
                                struct weft_error *error) {
  struct weft_bench_gpu_stage *stage = of(base);
  const uint64_t each = stage->products->layers * layer_bytes(stage->products);
  weft_device_free(stage->device, NULL, stage->slots, stage->slot_count * each);
  stage->slot_count = slot_count;
  stage->slots = weft_device_allocate(stage->device, NULL, slot_count * each);
  return stage->slots != NULL ? WEFT_OK : weft_fail_memory(error, (size_t)(slot_count * each));
}

/* ---- Numbers ---- */

enum { TABLE = 1 << 24 }; /* numbers; a sequence begins anywhere in them */

/* Number k of the table, between -1/2 and 1/2, as bf16 rounded to even. */
static uint16_t table_number(uint32_t k) {
  uint32_t x = k * UINT32_C(2654435761), bits;
  x = (x ^ (x >> 15)) * UINT32_C(2246822519);
  x = (x ^ (x >> 13)) * UINT32_C(3266489917);
  x ^= x >> 16;
  const float value = (float)(x >> 8) / 16777216.0F - 0.5F;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* A power of two, so that scaling is exact, near 1 / sqrt(the variance of a sum of that many). */
static float scale_of(uint64_t count) {
  return ldexpf(1, -(int)lround(log2((double)count / 12) / 2));
}

static enum weft_status fill(const struct weft_bench_gpu_stage *stage, char *to, uint64_t bytes,
                             uint32_t seed, float scale, struct weft_error *error) {
  static uint16_t *table; /* made once; one thread makes stages */
  uint16_t *host = weft_array_allocate(NULL, (size_t)bytes, 1);
  const bool has_table = table != NULL;
  table = has_table ? table : weft_array_allocate(NULL, TABLE, sizeof *table);
  if (host == NULL || table == NULL) {
    weft_array_free(NULL, host, (size_t)bytes, 1);
    return weft_fail_memory(error, (size_t)bytes);
  }
  for (uint32_t k = 0; !has_table && k < TABLE; k++) {
    table[k] = table_number(k);
  }
  for (uint64_t k = 0; k < bytes / 2; k++) {
    uint32_t bits = (uint32_t)table[(k + seed * UINT64_C(1234577)) % TABLE] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    value *= scale;
    memcpy(&bits, &value, sizeof bits);
    host[k] = (uint16_t)(bits >> 16);
  }
  const struct weft_copy copy = {
      .to = to, .to_device = stage->device, .from = host, .row_bytes = bytes, .rows = 1};
  const enum weft_status status = weft_copy(&copy, NULL, error);
  weft_array_free(NULL, host, (size_t)bytes, 1);
  return status;
}

static enum weft_status fill_batch(const struct weft_bench_gpu_stage *stage, char *to,
                                   uint32_t seed, float scale, struct weft_error *error) {
  for (uint32_t m = 0; m < stage->microbatches; m++) {
    WEFT_TRY(fill(stage, microbatch(stage, to, m), tensor_bytes(stage->products), seed + m, scale,
                  error));
  }
  return WEFT_OK;
}

static enum weft_status fill_all(const struct weft_bench_gpu_stage *stage,
                                 struct weft_error *error) {
  const struct weft_bench_gpu_products *products = stage->products;
  const float up = scale_of(products->width), down = scale_of(products->inner) / 2;
  for (uint32_t l = 0; l < products->layers; l++) {
    const uint32_t layer = stage->number * products->layers + l;
    WEFT_TRY(fill(stage, matrix(stage, stage->weights, l, false), matrix_bytes(products),
                  2 * layer + 1, up, error));
    if (products->wide > 0) {
      WEFT_TRY(fill(stage, matrix(stage, stage->weights, l, true), matrix_bytes(products),
                    2 * layer + 2, down, error));
    }
  }
  if (stage->inputs != NULL) {
    WEFT_TRY(fill_batch(stage, stage->inputs, 1000, 2, error));
  }
  if (stage->targets != NULL) {
    WEFT_TRY(fill_batch(stage, stage->targets, 2000, 0.125F, error));
  }
  if (stage->ones == NULL) {
    return WEFT_OK;
  }
  float *host = weft_array_allocate(NULL, (size_t)products->rows, sizeof *host);
  for (uint64_t k = 0; host != NULL && k < products->rows; k++) {
    host[k] = 1;
  }
  const struct weft_copy copy = {.to = stage->ones,
                                 .to_device = stage->device,
                                 .from = host,
                                 .row_bytes = products->rows * sizeof *host,
                                 .rows = 1};
  const enum weft_status status = host != NULL
                                      ? weft_copy(&copy, NULL, error)
                                      : weft_fail_memory(error, (size_t)products->rows * 4);
  weft_array_free(NULL, host, (size_t)products->rows, sizeof *host);
  return status;
}

/* ---- Making it ---- */

static bool allocate_all(struct weft_bench_gpu_stage *stage) {
  const struct weft_bench_gpu_products *products = stage->products;
  struct weft_device *device = stage->device;
  const uint64_t batch = stage->microbatches * tensor_bytes(products);
  const bool loss = is_last(stage) && products->has_loss;
  stage->weights = weft_device_allocate(device, NULL, weight_bytes(products));
  stage->grads = weft_device_allocate(device, NULL, weight_bytes(products));
  stage->workspaces[0] = weft_device_allocate(device, NULL, WORKSPACE_BYTES);
  stage->workspaces[1] = weft_device_allocate(device, NULL, WORKSPACE_BYTES);
  stage->inputs = stage->number == 0 ? weft_device_allocate(device, NULL, batch) : NULL;
  stage->targets = is_last(stage) ? weft_device_allocate(device, NULL, batch) : NULL;
  stage->ones = loss ? weft_device_allocate(device, NULL, products->rows * 4) : NULL;
  stage->dots = loss ? weft_device_allocate(device, NULL, products->rows * 4) : NULL;
  stage->sum =
      loss ? device->ops->allocate_host(device, stage->microbatches * sizeof(float)) : NULL;
  return stage->weights != NULL && stage->grads != NULL && stage->workspaces[0] != NULL &&
         stage->workspaces[1] != NULL && (stage->number > 0 || stage->inputs != NULL) &&
         (!is_last(stage) || stage->targets != NULL) &&
         (!loss || (stage->ones != NULL && stage->dots != NULL && stage->sum != NULL));
}

enum weft_status weft_bench_gpu_stage_create(struct weft_bench_gpu_products *products,
                                             struct weft_device *device, uint32_t number,
                                             uint32_t stage_count, uint32_t microbatches,
                                             struct weft_bench_gpu_stage **out,
                                             struct weft_error *error) {
  static const struct weft_stage_ops ops = {.name = "products",
                                            .enqueues = true,
                                            .replays = true,
                                            .prepare = prepare,
                                            .forward = forward,
                                            .backward_input = backward_input,
                                            .backward_weight = backward_weight,
                                            .zero_grad = zero_grad};
  struct weft_bench_gpu_stage *stage = weft_array_allocate_zero(NULL, 1, sizeof *stage);
  if (stage == NULL) {
    return weft_fail_memory(error, sizeof *stage);
  }
  stage->stage.ops = &ops;
  stage->products = products;
  stage->device = device;
  stage->number = number;
  stage->stage_count = stage_count;
  stage->microbatches = products->has_loss ? microbatches : 1;
  const enum weft_status status = allocate_all(stage)
                                      ? fill_all(stage, error)
                                      : weft_fail_memory(error, (size_t)weight_bytes(products));
  if (status < 0) {
    weft_bench_gpu_stage_destroy(stage);
    return status;
  }
  *out = stage;
  return WEFT_OK;
}

void weft_bench_gpu_stage_destroy(struct weft_bench_gpu_stage *stage) {
  if (stage == NULL) {
    return;
  }
  void *const all[] = {stage->weights,       stage->grads,         stage->slots,
                       stage->workspaces[0], stage->workspaces[1], stage->inputs,
                       stage->targets,       stage->ones,          stage->dots};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(all); k++) {
    weft_device_free(stage->device, NULL, all[k], 0);
  }
  stage->device->ops->free_host(stage->device, stage->sum);
  weft_array_free(NULL, stage, 1, sizeof *stage);
}

struct weft_stage *weft_bench_gpu_stage_base(struct weft_bench_gpu_stage *stage) {
  return &stage->stage;
}

void weft_bench_gpu_stage_sizes(const struct weft_bench_gpu_stage *stage,
                                struct weft_stage_costs *costs) {
  costs->activation = (double)(stage->products->layers * layer_bytes(stage->products));
  costs->activation_after_i = costs->activation;
  costs->parameters = costs->gradients = (double)weight_bytes(stage->products);
  costs->gradients_sharded = costs->gradients;
}

uint64_t weft_bench_gpu_stage_bytes(const struct weft_bench_gpu_stage *stage) {
  return 2 * weight_bytes(stage->products) +
         stage->slot_count * stage->products->layers * layer_bytes(stage->products);
}

enum weft_status weft_bench_gpu_stage_read(const struct weft_bench_gpu_stage *stage,
                                           uint64_t *checksum, double *losses,
                                           struct weft_error *error) {
  for (uint32_t m = 0; is_last(stage) && stage->sum != NULL && m < stage->microbatches; m++) {
    losses[m] = (double)stage->sum[m];
  }
  return weft_device_checksum(stage->device, stage->grads, weight_bytes(stage->products), checksum,
                              error);
}
