/* A block: attention and the MLP, each behind a norm and beside a residual.
 *
 *   xmid = x + proj(attention(qkv(ln1(x))))
 *   y    = xmid + proj(gelu(fc(ln2(xmid))))
 *
 * backward_input goes all the way to dx and leaves in `saved` the gradient of every linear's
 * output, mostly in place of the output itself; backward_weight is then only products and
 * sums, and repeats nothing. */
#include <assert.h>
#include <string.h>

#include "trainer/kernels/kernels.h"
#include "trainer/model/layer.h"

/* What forward saves. An arrow: what backward_input writes there for backward_weight, once the
 * first is used up. */
struct block_saved {
  float *ln1;       /* [R, C] */
  float *qkv;       /* [R, 3 C] -> its gradient */
  float *attention; /* [R, C] */
  float *log_sums;  /* [B, H, T] */
  float *xmid;      /* [R, C] -> its gradient, that of the attention's projection */
  float *ln2;       /* [R, C] */
  float *fc;        /* [R, 4 C] before GELU -> its gradient */
  float *gelu;      /* [R, 4 C] */
  float *mean1, *rstd1, *mean2, *rstd2; /* [R] */
  float *share1, *share2;               /* [2 C], written by backward_input */
};

struct block {
  uint64_t sequences, tokens, rows, channels, heads;
  const float *parameters;
  uint64_t at[WEFT_GPT_PARAMETERS_MAX]; /* offsets of the tensors */
  struct block_saved saved;
  float *scratch;
};

static float *take_floats(float **next, uint64_t floats) {
  float *taken = *next;
  *next += floats;
  return taken;
}

static struct block_saved lay_out(float *saved, uint64_t rows, uint64_t channels, uint64_t heads) {
  struct block_saved at;
  at.ln1 = take_floats(&saved, rows * channels);
  at.qkv = take_floats(&saved, rows * 3 * channels);
  at.attention = take_floats(&saved, rows * channels);
  at.xmid = take_floats(&saved, rows * channels);
  at.ln2 = take_floats(&saved, rows * channels);
  at.fc = take_floats(&saved, rows * 4 * channels);
  at.gelu = take_floats(&saved, rows * 4 * channels);
  at.share1 = take_floats(&saved, 2 * channels);
  at.share2 = take_floats(&saved, 2 * channels);
  at.log_sums = take_floats(&saved, rows * heads);
  at.mean1 = take_floats(&saved, rows);
  at.rstd1 = take_floats(&saved, rows);
  at.mean2 = take_floats(&saved, rows);
  at.rstd2 = take_floats(&saved, rows);
  return at;
}

uint64_t weft_gpt_block_saved(const struct weft_gpt_config *config, uint64_t sequences,
                              uint64_t tokens) {
  return sequences * tokens * (15 * (uint64_t)config->dim + config->heads + 4) +
         4 * (uint64_t)config->dim;
}

/* backward_input needs the gradient of GELU's output [R, 4 C]; later, in its place, that of the
 * attention's output [R, C] and attention's own scratch. */
uint64_t weft_gpt_block_scratch(const struct weft_gpt_config *config, uint64_t sequences,
                                uint64_t tokens) {
  const uint64_t values = sequences * tokens * config->dim;
  const uint64_t attention = weft_gpt_attention_scratch(tokens, config->dim, config->heads);
  return 4 * values > values + attention ? 4 * values : values + attention;
}

static struct block open_block(const struct weft_gpt_layer_call *call) {
  struct weft_gpt_parameter tensors[WEFT_GPT_PARAMETERS_MAX];
  struct block block = {.sequences = call->sequences,
                        .tokens = call->tokens,
                        .rows = call->sequences * call->tokens,
                        .channels = call->config->dim,
                        .heads = call->config->heads,
                        .parameters = call->parameters,
                        .scratch = call->scratch};
  const uint32_t count = weft_gpt_layer_parameters(call->config, call->layer, tensors);
  for (uint32_t i = 0; i < count; i++) {
    block.at[i] = tensors[i].offset;
  }
  block.saved = lay_out(call->saved, block.rows, block.channels, block.heads);
  return block;
}

static const float *parameter(const struct block *block, int tensor) {
  return block->parameters + block->at[tensor];
}

void weft_gpt_block_forward(const struct weft_gpt_layer_call *call, const float *x, float *y) {
  assert(x != y && call->tokens <= call->config->context);
  const struct block b = open_block(call);
  const struct block_saved *k = &b.saved;
  const uint64_t rows = b.rows, c = b.channels;
  weft_gpt_layernorm(rows, c, x, parameter(&b, WEFT_GPT_LN1_WEIGHT),
                     parameter(&b, WEFT_GPT_LN1_BIAS), k->ln1, k->mean1, k->rstd1);
  weft_gpt_linear(rows, c, 3 * c, k->ln1, parameter(&b, WEFT_GPT_QKV_WEIGHT),
                  parameter(&b, WEFT_GPT_QKV_BIAS), k->qkv);
  weft_gpt_attention(b.sequences, b.tokens, c, b.heads, k->qkv, k->attention, k->log_sums,
                     b.scratch);
  weft_gpt_linear_residual(rows, c, c, k->attention, parameter(&b, WEFT_GPT_ATTENTION_PROJ_WEIGHT),
                           parameter(&b, WEFT_GPT_ATTENTION_PROJ_BIAS), x, k->xmid);
  weft_gpt_layernorm(rows, c, k->xmid, parameter(&b, WEFT_GPT_LN2_WEIGHT),
                     parameter(&b, WEFT_GPT_LN2_BIAS), k->ln2, k->mean2, k->rstd2);
  weft_gpt_linear(rows, c, 4 * c, k->ln2, parameter(&b, WEFT_GPT_FC_WEIGHT),
                  parameter(&b, WEFT_GPT_FC_BIAS), k->fc);
  weft_gpt_gelu(rows * 4 * c, k->fc, k->gelu);
  weft_gpt_linear_residual(rows, 4 * c, c, k->gelu, parameter(&b, WEFT_GPT_MLP_PROJ_WEIGHT),
                           parameter(&b, WEFT_GPT_MLP_PROJ_BIAS), k->xmid, y);
}

/* dx gets the gradient of xmid, which stays in `saved` for backward_weight too. */
static void mlp_backward_input(const struct block *b, const float *dy, float *dx) {
  const struct block_saved *k = &b->saved;
  const uint64_t rows = b->rows, c = b->channels;
  float *hidden = b->scratch; /* [R, 4 C] */
  weft_gpt_linear_backward_input(rows, 4 * c, c, dy, parameter(b, WEFT_GPT_MLP_PROJ_WEIGHT), hidden,
                                 false);
  weft_gpt_gelu_backward(rows * 4 * c, k->fc, hidden, k->fc);
  float *normed = b->scratch; /* [R, C] */
  weft_gpt_linear_backward_input(rows, c, 4 * c, k->fc, parameter(b, WEFT_GPT_FC_WEIGHT), normed,
                                 false);
  memcpy(dx, dy, rows * c * sizeof *dx);
  weft_gpt_layernorm_backward_input(rows, c, k->xmid, parameter(b, WEFT_GPT_LN2_WEIGHT), k->mean2,
                                    k->rstd2, normed, dx, k->share2);
  memcpy(k->xmid, dx, rows * c * sizeof *dx);
}

/* dx has the gradient of xmid, and gets that of x. */
static void attention_backward_input(const struct block *b, const float *x, float *dx) {
  const struct block_saved *k = &b->saved;
  const uint64_t rows = b->rows, c = b->channels;
  float *mixed = b->scratch; /* [R, C] */
  weft_gpt_linear_backward_input(rows, c, c, dx, parameter(b, WEFT_GPT_ATTENTION_PROJ_WEIGHT),
                                 mixed, false);
  weft_gpt_attention_backward(b->sequences, b->tokens, c, b->heads, k->qkv, k->attention,
                              k->log_sums, mixed, k->qkv, b->scratch + rows * c);
  float *normed = b->scratch; /* [R, C] */
  weft_gpt_linear_backward_input(rows, c, 3 * c, k->qkv, parameter(b, WEFT_GPT_QKV_WEIGHT), normed,
                                 false);
  weft_gpt_layernorm_backward_input(rows, c, x, parameter(b, WEFT_GPT_LN1_WEIGHT), k->mean1,
                                    k->rstd1, normed, dx, k->share1);
}

void weft_gpt_block_backward_input(const struct weft_gpt_layer_call *call, const float *x,
                                   const float *dy, float *dx) {
  assert(dy != NULL && dx != dy);
  const struct block b = open_block(call);
  mlp_backward_input(&b, dy, dx);
  attention_backward_input(&b, x, dx);
}

void weft_gpt_block_backward_weight(const struct weft_gpt_layer_call *call, const float *x,
                                    const float *dy, float *gradients) {
  assert(dy != NULL && gradients != NULL);
  (void)x; /* its norm is saved */
  const struct block b = open_block(call);
  const struct block_saved *k = &b.saved;
  const uint64_t rows = b.rows, c = b.channels;
  weft_gpt_linear_backward_weight(rows, 4 * c, c, k->gelu, dy,
                                  gradients + b.at[WEFT_GPT_MLP_PROJ_WEIGHT],
                                  gradients + b.at[WEFT_GPT_MLP_PROJ_BIAS]);
  weft_gpt_linear_backward_weight(rows, c, 4 * c, k->ln2, k->fc,
                                  gradients + b.at[WEFT_GPT_FC_WEIGHT],
                                  gradients + b.at[WEFT_GPT_FC_BIAS]);
  weft_gpt_linear_backward_weight(rows, c, c, k->attention, k->xmid,
                                  gradients + b.at[WEFT_GPT_ATTENTION_PROJ_WEIGHT],
                                  gradients + b.at[WEFT_GPT_ATTENTION_PROJ_BIAS]);
  weft_gpt_linear_backward_weight(rows, c, 3 * c, k->ln1, k->qkv,
                                  gradients + b.at[WEFT_GPT_QKV_WEIGHT],
                                  gradients + b.at[WEFT_GPT_QKV_BIAS]);
  weft_gpt_add(c, k->share1, gradients + b.at[WEFT_GPT_LN1_WEIGHT]);
  weft_gpt_add(c, k->share1 + c, gradients + b.at[WEFT_GPT_LN1_BIAS]);
  weft_gpt_add(c, k->share2, gradients + b.at[WEFT_GPT_LN2_WEIGHT]);
  weft_gpt_add(c, k->share2 + c, gradients + b.at[WEFT_GPT_LN2_BIAS]);
}
