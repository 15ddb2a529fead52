/* The passes of layers on a GPU. They compute what the host's layers do (gpt/model/layer_*.c), in
 * bf16 with fp32 sums; see those files for the model.
 *
 * backward_input goes all the way to dx, and leaves in `saved` what backward_weight needs: the
 * gradient of every linear's output, and partial sums of the norms' gradients. backward_weight is
 * then only products and sums. */
#include <assert.h>

#include <weft/support.h>

#include "trainer/cuda/gpt_kernels.h"

#define ADDRESS(pointer) WEFT_GPT_ADDRESS(pointer)
#define VALUES(...) ((uint64_t[10]){__VA_ARGS__})
#define LAUNCH(kernel, grid, ...)                                                           \
  WEFT_TRY(weft_gpt_cuda_launch(p->cuda, WEFT_GPT_CUDA_##kernel, grid, VALUES(__VA_ARGS__), \
                                p->stream, error))
#define GRID(...) ((struct weft_gpt_cuda_grid){__VA_ARGS__})

static uint64_t parts_of(uint64_t rows, uint64_t each) { return (rows + each - 1) / each; }

/* ---- What is saved ---- */

struct cuda_saved {
  /* Of a block. */
  void *ln1, *qkv, *attention, *xmid, *ln2, *fc,
      *gelu; /* [R, C]; qkv [R, 3 C]; fc, gelu [R, 4 C]; */
  void *dqkv, *dxmid, *dfc;
  float *log_sums; /* [B, H, T] */
  /* Of a head: normed, in ln1; logits, then their gradients. */
  void *logits;  /* [R, V] */
  float *losses; /* [R] */
  /* Of both: the norms' statistics [R], and their gradients [parts, 2 C]. */
  float *mean1, *rstd1, *mean2, *rstd2;
  float *parts1, *parts2;
};

/* A pass, and where everything of it is. */
struct pass {
  struct weft_gpt_cuda *cuda;
  struct weft_stream *stream;
  const struct weft_gpt_pass_call *call;
  uint64_t rows, channels, heads, tokens, vocabulary;
  uint64_t at[WEFT_GPT_PARAMETERS_MAX]; /* offsets of the parameters */
  struct cuda_saved saved;
};

static void *take_memory(uint64_t *at, char *base, uint64_t bytes) {
  void *taken = base + *at;
  *at += (bytes + 255) / 256 * 256;
  return taken;
}

/* NULL `base`: only the size. */
static uint64_t lay_out(const struct weft_gpt_config *config, uint32_t layer, uint64_t rows,
                        char *base, struct cuda_saved *saved) {
  const uint64_t c = config->dim, row = rows * c * 2;
  const uint64_t parts = parts_of(rows, WEFT_GPT_CUDA_NORM_ROWS) * 2 * c * sizeof(float);
  uint64_t at = 0;
  *saved = (struct cuda_saved){.ln1 = NULL};
  if (layer == 0) {
    return 0;
  }
  saved->ln1 = take_memory(&at, base, row);
  saved->mean1 = take_memory(&at, base, rows * sizeof(float));
  saved->rstd1 = take_memory(&at, base, rows * sizeof(float));
  saved->parts1 = take_memory(&at, base, parts);
  if (weft_gpt_is_head(config, layer)) {
    saved->logits = take_memory(&at, base, rows * config->vocabulary * 2);
    saved->losses = take_memory(&at, base, rows * sizeof(float));
    return at;
  }
  saved->qkv = take_memory(&at, base, 3 * row);
  saved->attention = take_memory(&at, base, row);
  saved->log_sums = take_memory(&at, base, rows * config->heads * sizeof(float));
  saved->xmid = take_memory(&at, base, row);
  saved->ln2 = take_memory(&at, base, row);
  saved->fc = take_memory(&at, base, 4 * row);
  saved->gelu = take_memory(&at, base, 4 * row);
  saved->dqkv = take_memory(&at, base, 3 * row);
  saved->dxmid = take_memory(&at, base, row);
  saved->dfc = take_memory(&at, base, 4 * row);
  saved->mean2 = take_memory(&at, base, rows * sizeof(float));
  saved->rstd2 = take_memory(&at, base, rows * sizeof(float));
  saved->parts2 = take_memory(&at, base, parts);
  return at;
}

uint64_t weft_gpt_cuda_saved_bytes(const struct weft_gpt_config *config, uint32_t layer,
                                   uint64_t sequences, uint64_t tokens) {
  struct cuda_saved saved;
  char base; /* its address is not used */
  return lay_out(config, layer, sequences * tokens, &base, &saved);
}

/* backward_input: the gradient of a norm's or of attention's output [R, C], and the products of
 * attention. backward_weight: partial sums of columns. */
uint64_t weft_gpt_cuda_scratch_bytes(const struct weft_gpt_config *config, uint32_t layer,
                                     uint64_t sequences, uint64_t tokens) {
  const uint64_t rows = sequences * tokens, row = (rows * config->dim * 2 + 255) / 256 * 256;
  const uint64_t parts = parts_of(rows, WEFT_GPT_CUDA_PART_ROWS) * 4 * config->dim * sizeof(float);
  const uint64_t input = row + rows * config->heads * sizeof(float);
  return layer == 0 ? 0 : input > parts ? input : parts;
}

static struct pass open_pass(struct weft_gpt_compute *compute,
                             const struct weft_gpt_pass_call *call) {
  struct weft_gpt_parameter tensors[WEFT_GPT_PARAMETERS_MAX];
  struct pass pass = {.cuda = weft_gpt_cuda_of(compute),
                      .stream = call->stream,
                      .call = call,
                      .rows = call->sequences * call->tokens,
                      .channels = call->config->dim,
                      .heads = call->config->heads,
                      .tokens = call->tokens,
                      .vocabulary = call->config->vocabulary};
  const uint32_t count = weft_gpt_layer_parameters(call->config, call->layer, tensors);
  for (uint32_t i = 0; i < count; i++) {
    pass.at[i] = tensors[i].offset;
  }
  (void)lay_out(call->config, call->layer, pass.rows, call->saved, &pass.saved);
  assert(call->stream != NULL && call->tokens <= call->config->context);
  return pass;
}

/* A parameter in bf16, and the gradient of one. */
static const void *parameter(const struct pass *p, uint32_t tensor) {
  return (const uint16_t *)p->call->parameters + p->at[tensor];
}
static float *gradient(const struct pass *p, uint32_t tensor) {
  return p->call->gradients + p->at[tensor];
}

static uint64_t token_bytes(const struct pass *p) {
  return weft_dtype_size(weft_gpt_token_dtype(p->call->config));
}

/* ---- Parts of layers ---- */

/* y = x w^T + b, + residual if not NULL. */
static enum weft_status linear(const struct pass *p, uint64_t in, uint64_t out, const void *x,
                               uint32_t weight, uint32_t bias, const void *residual, void *y,
                               struct weft_error *error) {
  assert(x != NULL && y != NULL);
  return weft_gpt_cuda_multiply(p->cuda,
                                &(struct weft_gpt_product_call){.kind = WEFT_GPT_PRODUCT_FORWARD,
                                                                .rows = p->rows,
                                                                .in = in,
                                                                .out = out,
                                                                .x = x,
                                                                .w = parameter(p, weight),
                                                                .bias = parameter(p, bias),
                                                                .c = residual,
                                                                .y = y,
                                                                .stream = p->stream},
                                error);
}

static enum weft_status linear_backward_input(const struct pass *p, uint64_t in, uint64_t out,
                                              const void *dy, uint32_t weight, void *dx,
                                              struct weft_error *error) {
  return weft_gpt_cuda_multiply(
      p->cuda,
      &(struct weft_gpt_product_call){.kind = WEFT_GPT_PRODUCT_BACKWARD_INPUT,
                                      .rows = p->rows,
                                      .in = in,
                                      .out = out,
                                      .x = dy,
                                      .w = parameter(p, weight),
                                      .y = dx,
                                      .stream = p->stream},
      error);
}

enum { NO_BIAS = UINT32_MAX };

static enum weft_status linear_backward_weight(const struct pass *p, uint64_t in, uint64_t out,
                                               const void *x, const void *dy, uint32_t weight,
                                               uint32_t bias, struct weft_error *error) {
  WEFT_TRY(weft_gpt_cuda_multiply(
      p->cuda,
      &(struct weft_gpt_product_call){.kind = WEFT_GPT_PRODUCT_BACKWARD_WEIGHT,
                                      .rows = p->rows,
                                      .in = in,
                                      .out = out,
                                      .x = dy,
                                      .w = x,
                                      .c = gradient(p, weight),
                                      .y = gradient(p, weight),
                                      .stream = p->stream},
      error));
  if (bias == NO_BIAS) {
    return WEFT_OK;
  }
  const uint64_t parts = parts_of(p->rows, WEFT_GPT_CUDA_PART_ROWS);
  LAUNCH(column_parts, GRID(.blocks = {(out + 255) / 256 * parts}, .threads = {32, 8}),
         ADDRESS(p->call->scratch), ADDRESS(dy), p->rows, out, WEFT_GPT_CUDA_PART_ROWS);
  LAUNCH(add_parts, GRID(.blocks = {(out + 31) / 32}, .threads = {32, 32}),
         ADDRESS(gradient(p, bias)), ADDRESS(p->call->scratch), parts, out, out);
  return WEFT_OK;
}

static enum weft_status norm(const struct pass *p, const void *x, uint32_t weight, uint32_t bias,
                             void *y, float *mean, float *rstd, struct weft_error *error) {
  assert(x != NULL && y != NULL);
  LAUNCH(norm, GRID(.blocks = {(p->rows + 7) / 8}, .threads = {256}), ADDRESS(y), ADDRESS(mean),
         ADDRESS(rstd), ADDRESS(x), ADDRESS(parameter(p, weight)), ADDRESS(parameter(p, bias)),
         p->rows, p->channels);
  return WEFT_OK;
}

/* dx = residual, if there is one, + the gradient through the norm. */
static enum weft_status norm_backward_input(const struct pass *p, const void *x, uint32_t weight,
                                            const float *mean, const float *rstd, const void *dy,
                                            const void *residual, void *dx, float *parts,
                                            struct weft_error *error) {
  LAUNCH(norm_backward,
         GRID(.blocks = {parts_of(p->rows, WEFT_GPT_CUDA_NORM_ROWS)}, .threads = {256}),
         ADDRESS(dx), ADDRESS(parts), ADDRESS(residual), ADDRESS(x), ADDRESS(parameter(p, weight)),
         ADDRESS(mean), ADDRESS(rstd), ADDRESS(dy), p->rows, p->channels);
  return WEFT_OK;
}

/* Weight and bias of a norm, at once where they are beside each other. */
static enum weft_status norm_backward_weight(const struct pass *p, const float *parts,
                                             uint32_t weight, uint32_t bias,
                                             struct weft_error *error) {
  const uint64_t c = p->channels, count = parts_of(p->rows, WEFT_GPT_CUDA_NORM_ROWS);
  const uint64_t together = p->at[bias] == p->at[weight] + c ? 2 : 1;
  const struct weft_gpt_cuda_grid grid = {.blocks = {(together * c + 31) / 32},
                                          .threads = {32, 32}};
  LAUNCH(add_parts, grid, ADDRESS(gradient(p, weight)), ADDRESS(parts), count, together * c, 2 * c);
  if (together == 1) {
    LAUNCH(add_parts, grid, ADDRESS(gradient(p, bias)), ADDRESS(parts + c), count, c, 2 * c);
  }
  return WEFT_OK;
}

/* ---- Attention ---- */

bool weft_gpt_cuda_wide_attention(const struct weft_gpt_cuda *cuda,
                                  const struct weft_gpt_config *config, uint64_t tokens) {
  return cuda->hopper && config->dim / config->heads == 64 && tokens % 64 == 0;
}

/* Which of the kernels for heads of 16, 32, 64 and 128 channels, and blocks for all rows. */
static uint32_t width_index(const struct pass *p) {
  const uint64_t width = p->channels / p->heads;
  return width == 16 ? 0 : width == 32 ? 1 : width == 64 ? 2 : 3;
}

static struct weft_gpt_cuda_grid attention_grid(const struct pass *p) {
  const uint64_t rows = width_index(p) < 3 ? 128 : 64; /* as weft_attention_size */
  return GRID(.blocks = {parts_of(p->tokens, rows), p->heads, p->call->sequences},
              .threads = {128});
}

/* A kernel of attention with the values that all of its kind take. `hopper`: the one for Hopper,
 * whose blocks have so many warpgroups of 64 rows. */
static enum weft_status launch_attention(const struct pass *p, enum weft_gpt_cuda_kernel first,
                                         enum weft_gpt_cuda_kernel hopper, uint64_t groups,
                                         uint64_t *values, struct weft_error *error) {
  const bool wide = weft_gpt_cuda_wide_attention(p->cuda, p->call->config, p->tokens);
  const struct weft_gpt_cuda_grid grid =
      GRID(.blocks = {parts_of(p->tokens, 64 * groups), p->heads, p->call->sequences},
           .threads = {128 * groups});
  return weft_gpt_cuda_launch(p->cuda, wide ? hopper : first + width_index(p),
                              wide ? grid : attention_grid(p), values, p->stream, error);
}

/* Warpgroups of a block, as gpt_attention_hopper.cu has them. */
enum { FORWARD_GROUPS = 2, QUERIES_GROUPS = 1, KEYS_GROUPS = 1 };

static enum weft_status attention(const struct pass *p, struct weft_error *error) {
  const struct cuda_saved *k = &p->saved;
  return launch_attention(p, WEFT_GPT_CUDA_attention_forward_16,
                          WEFT_GPT_CUDA_attention_forward_hopper, FORWARD_GROUPS,
                          VALUES(ADDRESS(k->attention), ADDRESS(k->log_sums), ADDRESS(k->qkv),
                                 p->call->sequences, p->tokens, p->heads),
                          error);
}

static enum weft_status attention_backward(const struct pass *p, const void *dy, float *products,
                                           struct weft_error *error) {
  const struct cuda_saved *k = &p->saved;
  uint64_t *const values =
      VALUES(ADDRESS(k->dqkv), ADDRESS(k->qkv), ADDRESS(dy), ADDRESS(k->log_sums),
             ADDRESS(products), p->call->sequences, p->tokens, p->heads);
  LAUNCH(attention_products, weft_gpt_cuda_threads(p->rows * p->channels / 8), ADDRESS(products),
         ADDRESS(k->attention), ADDRESS(dy), p->rows, p->tokens, p->heads, p->channels);
  WEFT_TRY(launch_attention(p, WEFT_GPT_CUDA_attention_backward_queries_16,
                            WEFT_GPT_CUDA_attention_backward_queries_hopper, QUERIES_GROUPS, values,
                            error));
  return launch_attention(p, WEFT_GPT_CUDA_attention_backward_keys_16,
                          WEFT_GPT_CUDA_attention_backward_keys_hopper, KEYS_GROUPS, values, error);
}

/* ---- Embedding ---- */

static enum weft_status embedding_forward(const struct pass *p, struct weft_error *error) {
  LAUNCH(embed, weft_gpt_cuda_threads(p->rows * p->channels / 8), ADDRESS(p->call->y),
         ADDRESS(p->call->x), ADDRESS(parameter(p, WEFT_GPT_WTE)),
         ADDRESS(parameter(p, WEFT_GPT_WPE)), p->rows, p->tokens, p->channels, token_bytes(p));
  return WEFT_OK;
}

static enum weft_status embedding_backward_weight(const struct pass *p, struct weft_error *error) {
  const uint64_t each = parts_of(p->vocabulary, 1024); /* tokens per block */
  LAUNCH(embed_backward_positions, weft_gpt_cuda_threads(p->tokens * p->channels),
         ADDRESS(gradient(p, WEFT_GPT_WPE)), ADDRESS(p->call->dy), p->rows, p->tokens, p->channels);
  LAUNCH(embed_backward_tokens, GRID(.blocks = {parts_of(p->vocabulary, each)}, .threads = {256}),
         ADDRESS(gradient(p, WEFT_GPT_WTE)), ADDRESS(p->call->x), ADDRESS(p->call->dy), p->rows,
         p->channels, each, token_bytes(p), p->vocabulary);
  return WEFT_OK;
}

/* ---- Block ---- */

static enum weft_status block_forward(const struct pass *p, struct weft_error *error) {
  const struct cuda_saved *k = &p->saved;
  const void *x = p->call->x;
  const uint64_t c = p->channels;
  WEFT_TRY(norm(p, x, WEFT_GPT_LN1_WEIGHT, WEFT_GPT_LN1_BIAS, k->ln1, k->mean1, k->rstd1, error));
  WEFT_TRY(
      linear(p, c, 3 * c, k->ln1, WEFT_GPT_QKV_WEIGHT, WEFT_GPT_QKV_BIAS, NULL, k->qkv, error));
  WEFT_TRY(attention(p, error));
  WEFT_TRY(linear(p, c, c, k->attention, WEFT_GPT_ATTENTION_PROJ_WEIGHT,
                  WEFT_GPT_ATTENTION_PROJ_BIAS, x, k->xmid, error));
  WEFT_TRY(
      norm(p, k->xmid, WEFT_GPT_LN2_WEIGHT, WEFT_GPT_LN2_BIAS, k->ln2, k->mean2, k->rstd2, error));
  WEFT_TRY(
      weft_gpt_cuda_multiply(p->cuda,
                             &(struct weft_gpt_product_call){.kind = WEFT_GPT_PRODUCT_FORWARD_GELU,
                                                             .rows = p->rows,
                                                             .in = c,
                                                             .out = 4 * c,
                                                             .x = k->ln2,
                                                             .w = parameter(p, WEFT_GPT_FC_WEIGHT),
                                                             .bias = parameter(p, WEFT_GPT_FC_BIAS),
                                                             .y = k->gelu,
                                                             .aux = k->fc,
                                                             .stream = p->stream},
                             error));
  return linear(p, 4 * c, c, k->gelu, WEFT_GPT_MLP_PROJ_WEIGHT, WEFT_GPT_MLP_PROJ_BIAS, k->xmid,
                p->call->y, error);
}

static enum weft_status block_backward_input(const struct pass *p, struct weft_error *error) {
  const struct cuda_saved *k = &p->saved;
  const void *dy = p->call->dy;
  void *scratch = p->call->scratch; /* [R, C] */
  const uint64_t c = p->channels;
  float *products = (float *)((char *)scratch + (p->rows * c * 2 + 255) / 256 * 256);
  WEFT_TRY(weft_gpt_cuda_multiply(
      p->cuda,
      &(struct weft_gpt_product_call){.kind = WEFT_GPT_PRODUCT_BACKWARD_GELU,
                                      .rows = p->rows,
                                      .in = 4 * c,
                                      .out = c,
                                      .x = dy,
                                      .w = parameter(p, WEFT_GPT_MLP_PROJ_WEIGHT),
                                      .y = k->dfc,
                                      .aux = k->fc,
                                      .stream = p->stream},
      error));
  WEFT_TRY(linear_backward_input(p, c, 4 * c, k->dfc, WEFT_GPT_FC_WEIGHT, scratch, error));
  WEFT_TRY(norm_backward_input(p, k->xmid, WEFT_GPT_LN2_WEIGHT, k->mean2, k->rstd2, scratch, dy,
                               k->dxmid, k->parts2, error));
  WEFT_TRY(
      linear_backward_input(p, c, c, k->dxmid, WEFT_GPT_ATTENTION_PROJ_WEIGHT, scratch, error));
  WEFT_TRY(attention_backward(p, scratch, products, error));
  WEFT_TRY(linear_backward_input(p, c, 3 * c, k->dqkv, WEFT_GPT_QKV_WEIGHT, scratch, error));
  return norm_backward_input(p, p->call->x, WEFT_GPT_LN1_WEIGHT, k->mean1, k->rstd1, scratch,
                             k->dxmid, p->call->dx, k->parts1, error);
}

static enum weft_status block_backward_weight(const struct pass *p, struct weft_error *error) {
  const struct cuda_saved *k = &p->saved;
  const uint64_t c = p->channels;
  WEFT_TRY(linear_backward_weight(p, 4 * c, c, k->gelu, p->call->dy, WEFT_GPT_MLP_PROJ_WEIGHT,
                                  WEFT_GPT_MLP_PROJ_BIAS, error));
  WEFT_TRY(linear_backward_weight(p, c, 4 * c, k->ln2, k->dfc, WEFT_GPT_FC_WEIGHT, WEFT_GPT_FC_BIAS,
                                  error));
  WEFT_TRY(linear_backward_weight(p, c, c, k->attention, k->dxmid, WEFT_GPT_ATTENTION_PROJ_WEIGHT,
                                  WEFT_GPT_ATTENTION_PROJ_BIAS, error));
  WEFT_TRY(linear_backward_weight(p, c, 3 * c, k->ln1, k->dqkv, WEFT_GPT_QKV_WEIGHT,
                                  WEFT_GPT_QKV_BIAS, error));
  WEFT_TRY(norm_backward_weight(p, k->parts1, WEFT_GPT_LN1_WEIGHT, WEFT_GPT_LN1_BIAS, error));
  return norm_backward_weight(p, k->parts2, WEFT_GPT_LN2_WEIGHT, WEFT_GPT_LN2_BIAS, error);
}

/* ---- Head ---- */

/* Logits are bf16, and become their gradients in the same place. */
static enum weft_status head_forward(const struct pass *p, struct weft_error *error) {
  const struct cuda_saved *k = &p->saved;
  const double weight = weft_gpt_head_weight(p->call->config, p->call->layer);
  WEFT_TRY(norm(p, p->call->x, WEFT_GPT_LNF_WEIGHT, WEFT_GPT_LNF_BIAS, k->ln1, k->mean1, k->rstd1,
                error));
  if (p->call->targets == NULL) {
    return WEFT_OK;
  }
  WEFT_TRY(weft_gpt_cuda_multiply(
      p->cuda,
      &(struct weft_gpt_product_call){.kind = WEFT_GPT_PRODUCT_FORWARD_BARE,
                                      .rows = p->rows,
                                      .in = p->channels,
                                      .out = p->vocabulary,
                                      .x = k->ln1,
                                      .w = parameter(p, WEFT_GPT_LM_HEAD_WEIGHT),
                                      .y = k->logits,
                                      .stream = p->stream},
      error));
  LAUNCH(cross_entropy, GRID(.blocks = {p->rows}, .threads = {1024}), ADDRESS(k->logits),
         ADDRESS(k->losses), ADDRESS(p->call->targets), p->rows, p->vocabulary,
         weft_gpt_cuda_number(weight / (double)p->rows), p->call->training ? 0 : 1, token_bytes(p));
  LAUNCH(mean_loss, GRID(.blocks = {1}, .threads = {1024}), ADDRESS(p->call->loss),
         ADDRESS(p->call->head_loss), ADDRESS(k->losses), p->rows, weft_gpt_cuda_number(weight));
  return WEFT_OK;
}

static enum weft_status head_backward_input(const struct pass *p, struct weft_error *error) {
  assert(p->saved.logits != NULL && p->call->dx != NULL);
  const struct cuda_saved *k = &p->saved;
  WEFT_TRY(linear_backward_input(p, p->channels, p->vocabulary, k->logits, WEFT_GPT_LM_HEAD_WEIGHT,
                                 p->call->scratch, error));
  return norm_backward_input(p, p->call->x, WEFT_GPT_LNF_WEIGHT, k->mean1, k->rstd1,
                             p->call->scratch, NULL, p->call->dx, k->parts1, error);
}

static enum weft_status head_backward_weight(const struct pass *p, struct weft_error *error) {
  const struct cuda_saved *k = &p->saved;
  WEFT_TRY(linear_backward_weight(p, p->channels, p->vocabulary, k->ln1, k->logits,
                                  WEFT_GPT_LM_HEAD_WEIGHT, NO_BIAS, error));
  return norm_backward_weight(p, k->parts1, WEFT_GPT_LNF_WEIGHT, WEFT_GPT_LNF_BIAS, error);
}

/* ---- Any layer ---- */

static bool is_head(const struct weft_gpt_pass_call *call) {
  return weft_gpt_is_head(call->config, call->layer);
}

enum weft_status weft_gpt_cuda_forward(struct weft_gpt_compute *compute,
                                       const struct weft_gpt_pass_call *call,
                                       struct weft_error *error) {
  const struct pass pass = open_pass(compute, call);
  return call->layer == 0 ? embedding_forward(&pass, error)
         : is_head(call)  ? head_forward(&pass, error)
                          : block_forward(&pass, error);
}

enum weft_status weft_gpt_cuda_backward_input(struct weft_gpt_compute *compute,
                                              const struct weft_gpt_pass_call *call,
                                              struct weft_error *error) {
  const struct pass pass = open_pass(compute, call);
  assert(call->layer > 0);
  return is_head(call) ? head_backward_input(&pass, error) : block_backward_input(&pass, error);
}

enum weft_status weft_gpt_cuda_backward_weight(struct weft_gpt_compute *compute,
                                               const struct weft_gpt_pass_call *call,
                                               struct weft_error *error) {
  const struct pass pass = open_pass(compute, call);
  return call->layer == 0 ? embedding_backward_weight(&pass, error)
         : is_head(call)  ? head_backward_weight(&pass, error)
                          : block_backward_weight(&pass, error);
}
