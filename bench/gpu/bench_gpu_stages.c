/* Stages of matrix products by cublasLt: see bench_gpu.h. Nothing but products runs on the GPU:
 * gelu and its gradient are their epilogues, and residuals are what they add to. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "bench/gpu/bench_gpu.h"
#include "cublaslt/cublaslt.h"

#define WORKSPACE_BYTES (UINT64_C(32) << 20)

enum plan {
  UP,          /* h = gelu(a), a = W1 x */
  DOWN,        /* y = x + W2 h */
  DOWN_INPUT,  /* da = gelu'(a) W2^T dy */
  UP_INPUT,    /* dx = dy + W1^T da */
  DOWN_WEIGHT, /* dW2 += dy h^T */
  UP_WEIGHT,   /* dW1 += da x^T */
  LOSS,        /* outputs times targets, of each row */
  PLANS
};

/* What all stages share. Sizes are in bytes. */
struct weft_bench_gpu_plans {
  struct weft_cublaslt *lt;
  struct weft_product *products[PLANS];
  uint64_t rows, width, wide;
  uint64_t tensor, inner; /* [rows][width], [rows][wide] */
  uint64_t matrix;        /* [width][wide] */
  uint64_t kept;          /* of a layer in call->saved */
  uint64_t workspace;
  uint32_t layers;
};

/* ---- Plans ---- */

static enum weft_status make_plans(struct weft_bench_gpu_plans *plans, uint32_t sms,
                                   struct weft_error *error) {
  const uint64_t rows = plans->rows, width = plans->width, wide = plans->wide;
  const struct {
    uint64_t m, n, k;
    bool a_transposed, b_transposed;
    enum weft_product_epilogue epilogue;
  } shapes[] = {
      [UP] = {wide, rows, width, true, false, WEFT_EPILOGUE_GELU_AUX},
      [DOWN] = {width, rows, wide, true, false, WEFT_EPILOGUE_NONE},
      [DOWN_INPUT] = {wide, rows, width, false, false, WEFT_EPILOGUE_DGELU},
      [UP_INPUT] = {width, rows, wide, false, false, WEFT_EPILOGUE_NONE},
      [DOWN_WEIGHT] = {wide, width, rows, false, true, WEFT_EPILOGUE_NONE},
      [UP_WEIGHT] = {width, wide, rows, false, true, WEFT_EPILOGUE_NONE},
      [LOSS] = {1, 1, width, false, false, WEFT_EPILOGUE_NONE},
  };
  for (int k = 0; k < PLANS; k++) {
    const bool loss = k == LOSS;
    const struct weft_product_shape shape = {
        .m = shapes[k].m,
        .n = shapes[k].n,
        .k = shapes[k].k,
        .a = {WEFT_PRODUCT_BF16, shapes[k].a_transposed, .batch_stride = loss ? width : 0},
        .b = {WEFT_PRODUCT_BF16, shapes[k].b_transposed, .batch_stride = loss ? width : 0},
        .d = {loss ? WEFT_PRODUCT_F32 : WEFT_PRODUCT_BF16, .batch_stride = loss ? 1 : 0},
        .batch = loss ? (uint32_t)rows : 1,
        .align_bytes = loss ? 4 : 256,
        .epilogue = shapes[k].epilogue,
        .sm_count = sms,
        .workspace_bytes = WORKSPACE_BYTES};
    WEFT_TRY(weft_product_create(plans->lt, &shape, &plans->products[k], error));
    const uint64_t needed = weft_product_workspace(plans->products[k]);
    plans->workspace = needed > plans->workspace ? needed : plans->workspace;
  }
  return WEFT_OK;
}

enum weft_status weft_bench_gpu_plans_open(struct weft_device *device,
                                           const struct weft_bench_gpu_case *at,
                                           struct weft_bench_gpu_plans **out,
                                           struct weft_error *error) {
  struct weft_bench_gpu_plans *plans = weft_array_allocate_zero(NULL, 1, sizeof *plans);
  if (plans == NULL) {
    return weft_fail_memory(error, sizeof *plans);
  }
  *plans = (struct weft_bench_gpu_plans){.rows = at->rows,
                                         .width = at->width,
                                         .wide = at->wide,
                                         .tensor = 2 * at->rows * at->width,
                                         .inner = 2 * at->rows * at->wide,
                                         .matrix = 2 * at->width * at->wide,
                                         .layers = at->layers};
  plans->kept = 2 * plans->tensor + 3 * plans->inner;
  enum weft_status status = device->ops->make_current(device, error);
  if (status == WEFT_OK) {
    status = weft_cublaslt_open(NULL, &plans->lt, error);
  }
  if (status == WEFT_OK) {
    status = make_plans(plans, at->sms, error);
  }
  if (status < 0) {
    weft_bench_gpu_plans_close(plans);
    return status;
  }
  *out = plans;
  return WEFT_OK;
}

void weft_bench_gpu_plans_close(struct weft_bench_gpu_plans *plans) {
  if (plans != NULL) {
    for (int k = 0; k < PLANS; k++) {
      weft_product_destroy(plans->products[k]);
    }
    weft_cublaslt_close(plans->lt);
    weft_array_free(NULL, plans, 1, sizeof *plans);
  }
}

/* ---- A stage ---- */

struct weft_bench_gpu_stage {
  struct weft_stage stage; /* first */
  const struct weft_bench_gpu_plans *plans;
  struct weft_device *device;
  uint32_t number, microbatches;
  char *weights, *grads;  /* [layers]: W1 [wide][width], W2 [width][wide] */
  char *inputs, *targets; /* [microbatches], of the first and the last stage */
  char *workspaces[2];    /* forwards and backwards may run at the same time */
  char *losses;           /* [microbatches][rows], fp32 */
};

static struct weft_bench_gpu_stage *of(struct weft_stage *stage) {
  return (struct weft_bench_gpu_stage *)stage;
}

/* Of a layer in call->saved, [layers]: its input and the gradient of it, which the first layer has in messages;
 * and a, h, da. */
struct kept {
  char *x, *dx, *a, *h, *da;
};

static struct kept kept_of(const struct weft_bench_gpu_plans *plans,
                           const struct weft_stage_call *call, uint32_t layer) {
  char *x = (char *)call->saved + layer * plans->kept;
  char *a = x + 2 * plans->tensor;
  return (struct kept){x, x + plans->tensor, a, a + plans->inner, a + 2 * plans->inner};
}

static enum weft_status multiply(const struct weft_bench_gpu_stage *stage, enum plan plan,
                                 const void *a, const void *b, const void *c, void *d, void *aux,
                                 struct weft_stream *stream, struct weft_error *error) {
  const struct weft_product_call call = {
      .alpha = 1,
      .beta = c != NULL ? 1 : 0,
      .a = a,
      .b = b,
      .c = c,
      .d = d,
      .aux = aux,
      .workspace = stage->workspaces[plan == UP || plan == DOWN || plan == LOSS ? 0 : 1]};
  return weft_product_run(stage->plans->products[plan], &call, stream, error);
}

/* What a message has, except at the ends of the pipeline. */
static const char *input_of(const struct weft_bench_gpu_stage *stage,
                            const struct weft_stage_call *call) {
  return stage->inputs != NULL ? stage->inputs + call->microbatch * stage->plans->tensor
                               : call->inputs->items[0].data;
}
static const char *output_grad_of(const struct weft_bench_gpu_stage *stage,
                                  const struct weft_stage_call *call) {
  return stage->targets != NULL ? stage->targets + call->microbatch * stage->plans->tensor
                                : call->output_grads->items[0].data;
}

static enum weft_status forward(struct weft_stage *base, struct weft_stage_call *call,
                                struct weft_error *error) {
  const struct weft_bench_gpu_stage *stage = of(base);
  const struct weft_bench_gpu_plans *plans = stage->plans;
  const char *x = input_of(stage, call);
  for (uint32_t l = 0; l < plans->layers; l++) {
    const struct kept kept = kept_of(plans, call, l);
    char *y = l + 1 < plans->layers ? kept_of(plans, call, l + 1).x : call->outputs->items[0].data;
    const char *w = stage->weights + 2 * l * plans->matrix;
    WEFT_TRY(multiply(stage, UP, w, x, NULL, kept.h, kept.a, call->stream, error));
    WEFT_TRY(multiply(stage, DOWN, w + plans->matrix, kept.h, x, y, NULL, call->stream, error));
    x = y;
  }
  return stage->targets != NULL
             ? multiply(stage, LOSS, x, output_grad_of(stage, call), NULL,
                        stage->losses + call->microbatch * plans->rows * sizeof(float), NULL,
                        call->stream, error)
             : WEFT_OK;
}

static enum weft_status backward_input(struct weft_stage *base, struct weft_stage_call *call,
                                       struct weft_error *error) {
  const struct weft_bench_gpu_stage *stage = of(base);
  const struct weft_bench_gpu_plans *plans = stage->plans;
  const char *dy = output_grad_of(stage, call);
  for (uint32_t l = plans->layers; l-- > 0;) {
    const struct kept kept = kept_of(plans, call, l);
    const char *w = stage->weights + 2 * l * plans->matrix;
    WEFT_TRY(multiply(stage, DOWN_INPUT, w + plans->matrix, dy, NULL, kept.da, kept.a, call->stream,
                      error));
    if (l == 0 && call->input_grads->count == 0) {
      return WEFT_OK; /* nobody needs it */
    }
    char *dx = l > 0 ? kept.dx : call->input_grads->items[0].data;
    WEFT_TRY(multiply(stage, UP_INPUT, w, kept.da, dy, dx, NULL, call->stream, error));
    dy = dx;
  }
  return WEFT_OK;
}

static enum weft_status backward_weight(struct weft_stage *base, struct weft_stage_call *call,
                                        struct weft_error *error) {
  const struct weft_bench_gpu_stage *stage = of(base);
  const struct weft_bench_gpu_plans *plans = stage->plans;
  const char *dy = output_grad_of(stage, call);
  for (uint32_t l = plans->layers; l-- > 0;) {
    const struct kept kept = kept_of(plans, call, l);
    char *up = stage->grads + 2 * l * plans->matrix, *down = up + plans->matrix;
    WEFT_TRY(multiply(stage, DOWN_WEIGHT, kept.h, dy, down, down, NULL, call->stream, error));
    WEFT_TRY(multiply(stage, UP_WEIGHT, l > 0 ? kept.x : input_of(stage, call), kept.da, up, up,
                      NULL, call->stream, error));
    dy = kept.dx;
  }
  return WEFT_OK;
}

static uint64_t weight_bytes(const struct weft_bench_gpu_stage *stage) {
  return 2 * stage->plans->layers * stage->plans->matrix;
}

static enum weft_status zero_grad(struct weft_stage *base, struct weft_stage_call *call,
                                  struct weft_error *error) {
  const struct weft_bench_gpu_stage *stage = of(base);
  return weft_device_fill(stage->device, stage->grads, 0, weight_bytes(stage), call->stream, error);
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

/* A power of two, so that scaling is exact, near what keeps a sum of that many products as large as
 * they are. */
static float scale_of(uint64_t count) {
  return ldexpf(1, -(int)floor(log2((double)count / 12) / 2 + 0.5));
}

static enum weft_status fill(const struct weft_bench_gpu_stage *stage, void *to, uint64_t bytes,
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

static enum weft_status fill_all(const struct weft_bench_gpu_stage *stage,
                                 struct weft_error *error) {
  const struct weft_bench_gpu_plans *plans = stage->plans;
  for (uint32_t k = 0; k < 2 * plans->layers; k++) {
    WEFT_TRY(fill(stage, stage->weights + k * plans->matrix, plans->matrix,
                  2 * stage->number * plans->layers + k + 1,
                  k % 2 == 0 ? scale_of(plans->width) : scale_of(plans->wide) / 2, error));
  }
  for (uint32_t m = 0; m < stage->microbatches; m++) {
    if (stage->inputs != NULL) {
      WEFT_TRY(fill(stage, stage->inputs + m * plans->tensor, plans->tensor, 1000 + m, 2, error));
    }
    if (stage->targets != NULL) {
      WEFT_TRY(
          fill(stage, stage->targets + m * plans->tensor, plans->tensor, 2000 + m, 0.125F, error));
    }
  }
  return WEFT_OK;
}

/* ---- Making it ---- */

enum weft_status weft_bench_gpu_stage_create(struct weft_bench_gpu_plans *plans,
                                             struct weft_device *device, uint32_t number,
                                             uint32_t stage_count, uint32_t microbatches,
                                             struct weft_bench_gpu_stage **out,
                                             struct weft_error *error) {
  static const struct weft_stage_ops ops = {.name = "products",
                                            .enqueues = true,
                                            .replays = true,
                                            .forward = forward,
                                            .backward_input = backward_input,
                                            .backward_weight = backward_weight,
                                            .zero_grad = zero_grad};
  struct weft_bench_gpu_stage *stage = weft_array_allocate_zero(NULL, 1, sizeof *stage);
  if (stage == NULL) {
    return weft_fail_memory(error, sizeof *stage);
  }
  *stage = (struct weft_bench_gpu_stage){
      .stage = {.ops = &ops, .saved_bytes = plans->layers * plans->kept},
      .plans = plans,
      .device = device,
      .number = number,
      .microbatches = microbatches};
  const bool is_last = number + 1 == stage_count;
  const struct {
    char **to;
    uint64_t bytes;
  } parts[] = {{&stage->weights, weight_bytes(stage)},
               {&stage->grads, weight_bytes(stage)},
               {&stage->workspaces[0], plans->workspace},
               {&stage->workspaces[1], plans->workspace},
               {&stage->inputs, number == 0 ? microbatches * plans->tensor : 0},
               {&stage->targets, is_last ? microbatches * plans->tensor : 0},
               {&stage->losses, is_last ? microbatches * plans->rows * sizeof(float) : 0}};
  enum weft_status status = WEFT_OK;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(parts) && status == WEFT_OK; k++) {
    if (parts[k].bytes > 0) {
      *parts[k].to = weft_device_allocate(device, NULL, parts[k].bytes);
      status = *parts[k].to != NULL ? WEFT_OK : weft_fail_memory(error, (size_t)parts[k].bytes);
    }
  }
  if (status == WEFT_OK) {
    status = fill_all(stage, error);
  }
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
  void *const all[] = {stage->weights, stage->grads,   stage->workspaces[0], stage->workspaces[1],
                       stage->inputs,  stage->targets, stage->losses};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(all); k++) {
    weft_device_free(stage->device, NULL, all[k], 0);
  }
  weft_array_free(NULL, stage, 1, sizeof *stage);
}

struct weft_stage *weft_bench_gpu_stage_base(struct weft_bench_gpu_stage *stage) {
  return &stage->stage;
}

void weft_bench_gpu_stage_sizes(const struct weft_bench_gpu_stage *stage,
                                struct weft_stage_costs *costs, uint64_t *bytes) {
  const uint64_t weights = weight_bytes(stage);
  costs->activation = costs->activation_after_i = (double)stage->stage.saved_bytes;
  costs->parameters = costs->gradients = costs->gradients_sharded = (double)weights;
  *bytes = 2 * weights;
}

enum weft_status weft_bench_gpu_stage_read(const struct weft_bench_gpu_stage *stage,
                                           uint64_t *checksum, double *losses,
                                           struct weft_error *error) {
  const size_t count = (size_t)(stage->microbatches * stage->plans->rows);
  if (stage->targets != NULL) {
    float *host = weft_array_allocate(NULL, count, sizeof *host);
    if (host == NULL) {
      return weft_fail_memory(error, count * sizeof *host);
    }
    const struct weft_copy copy = {.to = host,
                                   .from = stage->losses,
                                   .from_device = stage->device,
                                   .row_bytes = count * sizeof *host,
                                   .rows = 1};
    const enum weft_status status = weft_copy(&copy, NULL, error);
    for (size_t k = 0; k < count && status == WEFT_OK; k++) {
      losses[k / stage->plans->rows] += (double)host[k];
    }
    weft_array_free(NULL, host, count, sizeof *host);
    WEFT_TRY(status);
  }
  return weft_device_checksum(stage->device, stage->grads, weight_bytes(stage), checksum, error);
}
