/* Inference with a KV cache, by the first head. It computes what the layers' forward does (layer_block.c), except
 * for attention, which takes one query at a time with all keys before it. */
#include "trainer/infer/kv_cache.h"

#include <assert.h>
#include <cblas.h>
#include <math.h>
#include <string.h>

#include <weft/support.h>

#include "trainer/kernels/kernels.h"
#include "trainer/model/aligned_memory.h"

/* Rows that are computed at once: enough for products of matrices to be fast. */
enum { ROWS_MAX = 128 };

struct weft_gpt_inference {
  const struct weft_allocator *allocator;
  const struct weft_gpt_config *config;
  const float **parameters; /* [layers] */
  uint64_t position;
  float *memory;        /* all of the following; R is ROWS_MAX, or T if that is less */
  float *qkv;           /* [L, T, 3 C] */
  float *x;             /* [R, C] */
  float *normed;        /* [R, C] */
  float *mixed;         /* [R, C], attention's output */
  float *hidden, *gelu; /* [R, 4 C] */
  float *skips;         /* [skips, R, C]: outputs of the first blocks */
  float *mean, *rstd;   /* [R] */
  float *scores;        /* [T] */
  float *logits;        /* [V] */
};

/* A layer's tensors. */
struct tensors {
  const float *at[WEFT_GPT_PARAMETERS_MAX];
};

static struct tensors tensors_of(const struct weft_gpt_inference *inference, uint32_t layer) {
  struct weft_gpt_parameter table[WEFT_GPT_PARAMETERS_MAX];
  struct tensors tensors = {0};
  const uint32_t count = weft_gpt_layer_parameters(inference->config, layer, table);
  for (uint32_t k = 0; k < count; k++) {
    tensors.at[k] = inference->parameters[layer] + table[k].offset;
  }
  return tensors;
}

/* ---- Memory ---- */

static float *take_floats(float *memory, uint64_t *used, uint64_t floats) {
  float *taken = memory != NULL ? memory + *used : NULL;
  *used += (floats + 15) / 16 * 16;
  return taken;
}

/* Puts everything into `memory`, which may be NULL; returns how many floats that takes.
 * The largest configuration takes 2^12 x 2^20 x 3 x 2^16, below 2^50. */
static uint64_t lay_out(struct weft_gpt_inference *inference, float *memory) {
  const struct weft_gpt_config *config = inference->config;
  const uint64_t c = config->dim, t = config->context;
  const uint64_t rows = t < ROWS_MAX ? t : ROWS_MAX;
  uint64_t used = 0;
  inference->memory = memory;
  inference->qkv = take_floats(memory, &used, config->blocks * t * 3 * c);
  inference->x = take_floats(memory, &used, rows * c);
  inference->normed = take_floats(memory, &used, rows * c);
  inference->mixed = take_floats(memory, &used, rows * c);
  inference->hidden = take_floats(memory, &used, rows * 4 * c);
  inference->gelu = take_floats(memory, &used, rows * 4 * c);
  inference->skips = take_floats(memory, &used, weft_gpt_skip_count(config) * rows * c);
  inference->mean = take_floats(memory, &used, rows);
  inference->rstd = take_floats(memory, &used, rows);
  inference->scores = take_floats(memory, &used, t);
  inference->logits = take_floats(memory, &used, config->vocabulary);
  return used;
}

static enum weft_status allocate(struct weft_gpt_inference *inference, struct weft_error *error) {
  const uint64_t floats = lay_out(inference, NULL);
  const uint32_t layers = weft_gpt_layer_count(inference->config);
  inference->parameters =
      weft_gpt_allocate(inference->allocator, layers, sizeof *inference->parameters);
  if (inference->parameters == NULL) {
    return weft_fail_memory(error, layers * sizeof *inference->parameters);
  }
  float *memory = weft_gpt_allocate(inference->allocator, floats, sizeof *memory);
  if (memory == NULL) {
    return weft_fail_memory(error, floats * sizeof *memory);
  }
  (void)lay_out(inference, memory);
  return WEFT_OK;
}

enum weft_status weft_gpt_inference_create(const struct weft_allocator *allocator,
                                           const struct weft_gpt_config *config,
                                           const struct weft_gpt_layer_state *layers,
                                           struct weft_gpt_inference **out,
                                           struct weft_error *error) {
  assert(config != NULL && layers != NULL && out != NULL);
  struct weft_gpt_inference *inference = weft_gpt_allocate(allocator, 1, sizeof *inference);
  if (inference == NULL) {
    return weft_fail_memory(error, sizeof *inference);
  }
  *inference = (struct weft_gpt_inference){.allocator = allocator, .config = config};
  const enum weft_status status = allocate(inference, error);
  if (status != WEFT_OK) {
    weft_gpt_inference_destroy(inference);
    return status;
  }
  for (uint32_t layer = 0; layer < weft_gpt_layer_count(config); layer++) {
    assert(layers[layer].layer == layer);
    inference->parameters[layer] = layers[layer].parameters;
  }
  *out = inference;
  return WEFT_OK;
}

void weft_gpt_inference_destroy(struct weft_gpt_inference *inference) {
  if (inference == NULL) {
    return;
  }
  weft_gpt_free(inference->allocator, inference->memory);
  weft_gpt_free(inference->allocator, (void *)inference->parameters);
  weft_gpt_free(inference->allocator, inference);
}

/* ---- Products ---- */

/* y = x w^T + b, added to y if `add`; b may be NULL. A single row is a matrix by a
 * vector, which reads the weights once and does not pack them: twice as fast. */
static void product(uint64_t rows, uint64_t in, uint64_t out, const float *x, const float *w,
                    const float *b, bool add, float *y) {
  if (rows > 1 && add) {
    weft_gpt_linear_residual(rows, in, out, x, w, b, y, y);
    return;
  }
  if (rows > 1) {
    weft_gpt_linear(rows, in, out, x, w, b, y);
    return;
  }
  if (b != NULL && add) {
    weft_gpt_add(out, b, y);
  } else if (b != NULL) {
    memcpy(y, b, out * sizeof *y);
  }
  cblas_sgemv(CblasRowMajor, CblasNoTrans, (blasint)out, (blasint)in, 1, w, (blasint)in, x, 1,
              add || b != NULL ? 1 : 0, y, 1);
}

/* ---- Attention ---- */

/* Scores become weights: positive, of sum 1. */
static void softmax(uint64_t count, float *x) {
  float max = x[0];
  float sum = 0;
  for (uint64_t k = 1; k < count; k++) {
    max = fmaxf(max, x[k]);
  }
  for (uint64_t k = 0; k < count; k++) {
    x[k] = expf(x[k] - max);
    sum += x[k];
  }
  weft_gpt_scale(count, 1 / sum, x);
}

/* One head's query at `position` against all keys up to there; qkv is [T, 3 C] from the
 * head's first channel on. */
static void attend_head(const struct weft_gpt_inference *inference, const float *qkv,
                        uint64_t position, float *y) {
  const uint64_t c = inference->config->dim;
  const uint64_t width = c / inference->config->heads;
  const blasint stride = (blasint)(3 * c), keys = (blasint)(position + 1);
  const float scale = 1 / sqrtf((float)width);
  cblas_sgemv(CblasRowMajor, CblasNoTrans, keys, (blasint)width, scale, qkv + c, stride,
              qkv + position * 3 * c, 1, 0, inference->scores, 1);
  softmax(position + 1, inference->scores);
  cblas_sgemv(CblasRowMajor, CblasTrans, keys, (blasint)width, 1, qkv + 2 * c, stride,
              inference->scores, 1, 0, y, 1);
}

static void attend(const struct weft_gpt_inference *inference, const float *qkv, uint64_t rows) {
  const uint64_t c = inference->config->dim;
  const uint64_t width = c / inference->config->heads;
  for (uint64_t row = 0; row < rows; row++) {
    for (uint64_t channel = 0; channel < c; channel += width) {
      attend_head(inference, qkv + channel, inference->position + row,
                  inference->mixed + row * c + channel);
    }
  }
}

/* ---- Layers ---- */

/* x, [rows, C], goes through a block. */
static void run_block(const struct weft_gpt_inference *inference, uint32_t layer, uint64_t rows) {
  const struct tensors w = tensors_of(inference, layer);
  const struct weft_gpt_inference *d = inference;
  const uint64_t c = d->config->dim;
  float *qkv = d->qkv + (layer - 1) * d->config->context * 3 * c; /* of this block */
  weft_gpt_layernorm(rows, c, d->x, w.at[WEFT_GPT_LN1_WEIGHT], w.at[WEFT_GPT_LN1_BIAS], d->normed,
                     d->mean, d->rstd);
  product(rows, c, 3 * c, d->normed, w.at[WEFT_GPT_QKV_WEIGHT], w.at[WEFT_GPT_QKV_BIAS], false,
          qkv + d->position * 3 * c);
  attend(d, qkv, rows);
  product(rows, c, c, d->mixed, w.at[WEFT_GPT_ATTENTION_PROJ_WEIGHT],
          w.at[WEFT_GPT_ATTENTION_PROJ_BIAS], true, d->x);
  weft_gpt_layernorm(rows, c, d->x, w.at[WEFT_GPT_LN2_WEIGHT], w.at[WEFT_GPT_LN2_BIAS], d->normed,
                     d->mean, d->rstd);
  product(rows, c, 4 * c, d->normed, w.at[WEFT_GPT_FC_WEIGHT], w.at[WEFT_GPT_FC_BIAS], false,
          d->hidden);
  weft_gpt_gelu(rows * 4 * c, d->hidden, d->gelu);
  product(rows, 4 * c, c, d->gelu, w.at[WEFT_GPT_MLP_PROJ_WEIGHT], w.at[WEFT_GPT_MLP_PROJ_BIAS],
          true, d->x);
}

/* Of one row. */
static void run_head(const struct weft_gpt_inference *inference, const float *x) {
  const struct weft_gpt_inference *d = inference;
  const struct tensors w = tensors_of(d, d->config->blocks + 1);
  weft_gpt_layernorm(1, d->config->dim, x, w.at[WEFT_GPT_LNF_WEIGHT], w.at[WEFT_GPT_LNF_BIAS],
                     d->normed, d->mean, d->rstd);
  product(1, d->config->dim, d->config->vocabulary, d->normed, w.at[WEFT_GPT_LM_HEAD_WEIGHT], NULL,
          false, d->logits);
}

/* The output of a block that a later one reads, from its layer. */
static float *skip_of(const struct weft_gpt_inference *inference, uint32_t layer) {
  const uint64_t t = inference->config->context, rows = t < ROWS_MAX ? t : ROWS_MAX;
  return inference->skips + (layer - 1) * rows * inference->config->dim;
}

/* With its skip, to or from it. */
static void run_layer(const struct weft_gpt_inference *inference, uint32_t layer, uint64_t rows) {
  const struct weft_gpt_config *config = inference->config;
  const struct weft_gpt_links inputs = weft_gpt_layer_inputs(config, layer);
  const uint64_t floats = rows * config->dim;
  if (inputs.count > 1) {
    weft_gpt_add(floats, skip_of(inference, inputs.layers[0]), inference->x);
  }
  run_block(inference, layer, rows);
  if (layer <= weft_gpt_skip_count(config)) {
    memcpy(skip_of(inference, layer), inference->x, floats * sizeof *inference->x);
  }
}

static void read_rows(struct weft_gpt_inference *inference, const void *tokens, uint64_t rows) {
  const struct tensors w = tensors_of(inference, 0);
  const uint64_t c = inference->config->dim;
  weft_gpt_embed(1, rows, c, weft_gpt_token_bytes(inference->config->vocabulary), tokens,
                 w.at[WEFT_GPT_WTE], w.at[WEFT_GPT_WPE] + inference->position * c, inference->x);
  for (uint32_t layer = 1; layer <= inference->config->blocks; layer++) {
    run_layer(inference, layer, rows);
  }
  inference->position += rows;
}

void weft_gpt_inference_rewind(struct weft_gpt_inference *inference) { inference->position = 0; }

uint64_t weft_gpt_inference_position(const struct weft_gpt_inference *inference) {
  return inference->position;
}

const float *weft_gpt_inference_read(struct weft_gpt_inference *inference, const void *tokens,
                                     uint64_t count) {
  const uint64_t each = weft_gpt_token_bytes(inference->config->vocabulary);
  uint64_t rows = 0;
  assert(count > 0 && count <= inference->config->context - inference->position);
  for (uint64_t done = 0; done < count; done += rows) {
    rows = count - done < ROWS_MAX ? count - done : ROWS_MAX;
    read_rows(inference, (const char *)tokens + done * each, rows);
  }
  run_head(inference, inference->x + (rows - 1) * inference->config->dim);
  return inference->logits;
}
