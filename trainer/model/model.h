/* The reference model: a GPT, decoder only, as layers.
 *
 *   layer 0        embedding   tokens -> x
 *   layer 1 ... L  blocks      x -> x
 *   layer L + 1    head        x -> logits, loss of the next token
 *   layer L + 2    head        x -> logits, loss of the token after it; if there is one
 *
 * They form a chain, but for two things (layer_graph.c). With `skips` the output of block k, from
 * 0, is also added to the input of block L - 1 - k, as in a U-Net. Both heads read the last block.
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
  bool tied;           /* the (first) head uses the embedding's weights */
  bool skips;          /* U-shaped residuals between blocks; L >= 3 */
  uint32_t predict;    /* tokens that heads predict at once: 0 or 1: the next one; 2: two heads */
  uint64_t seed;
};

#define WEFT_GPT_VOCABULARY 256
#define WEFT_GPT_VOCABULARY_MAX 65536
#define WEFT_GPT_BLOCKS_MAX 4096
#define WEFT_GPT_DIM_MAX 65536
#define WEFT_GPT_CONTEXT_MAX 1048576
#define WEFT_GPT_HEADS_MAX 2 /* that predict */

/* The loss is that of the first head plus so much of the second one's. */
#define WEFT_GPT_SECOND_WEIGHT 0.3

/* WEFT_ERR_USAGE names what does not fit. */
enum weft_status weft_gpt_config_check(const struct weft_gpt_config *config,
                                       struct weft_error *error);

static inline uint32_t weft_gpt_head_count(const struct weft_gpt_config *config) {
  return config->predict > 1 ? config->predict : 1;
}
static inline uint32_t weft_gpt_layer_count(const struct weft_gpt_config *config) {
  return config->blocks + 1 + weft_gpt_head_count(config);
}
static inline bool weft_gpt_is_head(const struct weft_gpt_config *config, uint32_t layer) {
  return layer > config->blocks;
}
/* What the loss of a head counts. */
static inline double weft_gpt_head_weight(const struct weft_gpt_config *config, uint32_t layer) {
  return layer > config->blocks + 1 ? WEFT_GPT_SECOND_WEIGHT : 1;
}

/* ---- Which layers read which ---- */

/* Ascending. A layer reads the embedding's tokens or one or two outputs, whose sum is its input;
 * an output has one or two readers. So no sum here has more than two terms, and its bits do not
 * depend on their order. */
struct weft_gpt_links {
  uint32_t count;
  uint32_t layers[2];
};
struct weft_gpt_links weft_gpt_layer_inputs(const struct weft_gpt_config *config, uint32_t layer);
struct weft_gpt_links weft_gpt_layer_readers(const struct weft_gpt_config *config, uint32_t layer);
/* How many skips there are: the first so many blocks have one. */
uint32_t weft_gpt_skip_count(const struct weft_gpt_config *config);

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
 * too, as a copy of wte that always equals it. No biases in the head. The second head's are the
 * same with "mtp." in front, and never tied. */
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
 * equal as can be then (the least sum of squares), under the rule of weft_gpt_split_check():
 * stage s has layers first[s] ... first[s + 1] - 1. WEFT_ERR_USAGE when there are more stages than layers.
 * allocator NULL: the default. */
enum weft_status weft_gpt_split(const struct weft_allocator *allocator,
                                const struct weft_gpt_config *config, const double *costs,
                                uint32_t stage_count, uint32_t *first /* [stage_count + 1] */,
                                struct weft_error *error);
/* By given numbers of blocks per stage ("3,4,4,1"); the embedding goes to the first
 * stage, the head to the last, two heads to the last two if these have no blocks. WEFT_ERR_USAGE
 * when they do not add up to L. */
enum weft_status weft_gpt_split_counts(const struct weft_gpt_config *config, const uint32_t *blocks,
                                       uint32_t stage_count, uint32_t *first,
                                       struct weft_error *error);
/* Two heads are together on the last stage, or each is a stage of its own: a stage with a loss has
 * nothing to pass on. Tied, they are together. WEFT_ERR_USAGE for another split. */
enum weft_status weft_gpt_split_check(const struct weft_gpt_config *config, uint32_t stage_count,
                                      const uint32_t *first, struct weft_error *error);

#endif
