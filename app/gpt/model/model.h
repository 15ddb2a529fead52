/* The reference model: a GPT, decoder only, as a chain of layers.
 *
 *   layer 0        embedding   tokens -> x
 *   layer 1 ... L  blocks      x -> x
 *   layer L + 1    head        x -> logits, loss
 *
 * A stage of the pipeline is a range of layers. Everything about a layer depends on
 * the layer, the configuration and the seed alone, never on how layers are split
 * into stages, so results are the same for every split.
 *
 * Letters in comments: B sequences of a microbatch, T tokens of a sequence, R = B T
 * rows, C channels (dim), H heads, D = C / H, V vocabulary, L blocks. */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include <weft/tensor.h>

struct weft_gpt_config {
  uint32_t blocks;     /* L >= 1 */
  uint32_t dim;        /* C, a multiple of heads */
  uint32_t heads;      /* H */
  uint32_t context;    /* T, of training; a microbatch may be shorter */
  uint32_t vocabulary; /* V: 256, tokens are bytes; or more, tokens have 16 bits */
  bool tied;           /* the head uses the embedding's weights */
  uint64_t seed;
};

#define WEFT_GPT_VOCABULARY 256
#define WEFT_GPT_VOCABULARY_MAX 65536
#define WEFT_GPT_BLOCKS_MAX 4096
#define WEFT_GPT_DIM_MAX 65536
#define WEFT_GPT_CONTEXT_MAX 1048576

/* WEFT_ERR_USAGE names what does not fit. */
enum weft_status weft_gpt_config_check(const struct weft_gpt_config *config,
                                       struct weft_error *error);

static inline uint32_t weft_gpt_layer_count(const struct weft_gpt_config *config) {
  return config->blocks + 2;
}

/* ---- Parameters: one flat array of floats per layer ---- */

/* A named tensor of a layer. Linear weights are [out, in], as in PyTorch's nn.Linear. */
struct weft_gpt_parameter {
  char name[48];      /* "block.3.attn.qkv.weight" */
  uint32_t dim_count; /* 1 or 2 */
  uint64_t dims[2];
  uint64_t offset; /* in floats */
  uint64_t count;  /* floats */
  bool decays;     /* weight decay applies: matrices, not biases and norms */
};

#define WEFT_GPT_PARAMETERS_MAX 12

/* Of a block, in this order: ln1.weight ln1.bias attn.qkv.weight [3C, C]
 * attn.qkv.bias attn.proj.weight [C, C] attn.proj.bias ln2.weight ln2.bias
 * mlp.fc.weight [4C, C] mlp.fc.bias mlp.proj.weight [C, 4C] mlp.proj.bias, each with
 * "block.K." in front. Of the embedding: wte.weight [V, C], wpe.weight [T, C]. Of
 * the head: lnf.weight lnf.bias lm_head.weight [V, C]; a tied head has the last one
 * too, as a copy of wte that always equals it. No biases in the head. */
uint32_t weft_gpt_layer_parameters(const struct weft_gpt_config *config, uint32_t layer,
                                   struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX]);
/* Their numbers in the embedding, in a block and in the head. */
enum { WEFT_GPT_WTE, WEFT_GPT_WPE };
enum {
  WEFT_GPT_LN1_WEIGHT,
  WEFT_GPT_LN1_BIAS,
  WEFT_GPT_QKV_WEIGHT,
  WEFT_GPT_QKV_BIAS,
  WEFT_GPT_ATTENTION_PROJ_WEIGHT,
  WEFT_GPT_ATTENTION_PROJ_BIAS,
  WEFT_GPT_LN2_WEIGHT,
  WEFT_GPT_LN2_BIAS,
  WEFT_GPT_FC_WEIGHT,
  WEFT_GPT_FC_BIAS,
  WEFT_GPT_MLP_PROJ_WEIGHT,
  WEFT_GPT_MLP_PROJ_BIAS
};
enum { WEFT_GPT_LNF_WEIGHT, WEFT_GPT_LNF_BIAS, WEFT_GPT_LM_HEAD_WEIGHT };

/* Floats of a layer; 64-byte aligned offsets, so there may be gaps, which are 0. */
uint64_t weft_gpt_layer_floats(const struct weft_gpt_config *config, uint32_t layer);
/* Parameters of all layers; a tied one counts once. */
uint64_t weft_gpt_parameter_count(const struct weft_gpt_config *config);

/* As GPT-2: normal(0, 0.02), the two projections onto the residual stream divided
 * by sqrt(2 L), biases 0, norms 1. From (seed, layer, tensor, index) alone. */
void weft_gpt_layer_initialize(const struct weft_gpt_config *config, uint32_t layer,
                               float *parameters);

/* ---- How layers become stages ---- */

/* Estimated work of a layer's forward for one token, in floating-point operations:
 * what the even split balances. */
double weft_gpt_layer_work(const struct weft_gpt_config *config, uint32_t layer);

/* Cuts layers into `stage_count` ranges, none empty, so that the heaviest is as light
 * as can be (exactly; costs[layer_count], or NULL: estimated work), and the others are as
 * equal as can be then (the least sum of squares): stage s has layers
 * first[s] ... first[s + 1] - 1. WEFT_ERR_USAGE when there are more stages than layers.
 * allocator NULL: the default. */
enum weft_status weft_gpt_split(const struct weft_allocator *allocator,
                                const struct weft_gpt_config *config, const double *costs,
                                uint32_t stage_count, uint32_t *first /* [stage_count + 1] */,
                                struct weft_error *error);
/* By given numbers of blocks per stage ("3,4,4,1"); the embedding goes to the first
 * stage, the head to the last. WEFT_ERR_USAGE when they do not add up to L. */
enum weft_status weft_gpt_split_counts(const struct weft_gpt_config *config, const uint32_t *blocks,
                                       uint32_t stage_count, uint32_t *first,
                                       struct weft_error *error);

#endif
