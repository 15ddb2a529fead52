/* Text from a model: token after token, each drawn from what the model says of the next. Tokens are
 * bytes, or numbers of 16 bits where the vocabulary has more than 256.
 *
 *   struct weft_gpt_sampler *sampler;
 *   weft_gpt_sampler_create(NULL, &config, layers, &sampler, &error);
 *   struct weft_gpt_sample_options options = weft_gpt_sample_options_default();
 *   options.prompt = "int main", options.prompt_size = 8;
 *   weft_gpt_sample(sampler, &options, &text, &error);
 */
#ifndef GPT_SAMPLER_H
#define GPT_SAMPLER_H

#include "trainer/train/stage.h"

struct weft_gpt_sampler;

/* layers[weft_gpt_layer_count()], in order; only their parameters are read, while
 * sampling. config and parameters are borrowed until destroy. allocator NULL: the
 * default. */
enum weft_status weft_gpt_sampler_create(const struct weft_allocator *allocator,
                                         const struct weft_gpt_config *config,
                                         const struct weft_gpt_layer_state *layers,
                                         struct weft_gpt_sampler **out, struct weft_error *error);
/* NULL is fine. */
void weft_gpt_sampler_destroy(struct weft_gpt_sampler *sampler);

struct weft_gpt_sample_options {
  const void *prompt;   /* tokens, of which the last config->context are read */
  uint64_t prompt_size; /* in tokens; 0: as after an empty line, where tokens are bytes */
  uint64_t count;       /* tokens to generate */
  double temperature;   /* 1: as the model says; less: the likelier; 0: always the likeliest */
  uint32_t top_k;       /* from the k likeliest only; 0: from all */
  uint64_t seed;
  /* Called with each token, if given; false ends the sample without a failure. */
  bool (*on_token)(void *context, uint32_t token);
  void *context;
};
/* 256 tokens, temperature 0.8, from all. */
struct weft_gpt_sample_options weft_gpt_sample_options_default(void);

/* Appends what it generates to `text` (may be NULL), without the prompt: bytes, or decimal numbers
 * with a space in front of each. The same for the same parameters, options and machine.
 *
 * When the context is full, its later half becomes the beginning of a new one: a token
 * is drawn knowing at least half a context, if there was so much.
 *
 * WEFT_ERR_USAGE: an option that cannot be. WEFT_ERR_INVALID: the model answers with
 * what is no number. */
enum weft_status weft_gpt_sample(struct weft_gpt_sampler *sampler,
                                 const struct weft_gpt_sample_options *options,
                                 struct weft_text *text, struct weft_error *error);

/* Draws from logits[vocabulary] as weft_gpt_sample() does for token number `index`: for tests.
 * `candidates` is room for as many. Returns -1 when they are no numbers. */
struct weft_gpt_candidate {
  float logit;
  uint32_t token;
};
int weft_gpt_sampler_choose(const float *logits, uint32_t vocabulary,
                            struct weft_gpt_candidate *candidates, double temperature,
                            uint32_t top_k, uint64_t seed, uint64_t index);

#endif
