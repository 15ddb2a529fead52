/* Draws tokens from what the decoder says, and moves its context along. */
#include "trainer/infer/sampler.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

#include "trainer/infer/kv_cache.h"
#include "trainer/kernels/kernels.h"
#include "trainer/model/aligned_memory.h"

struct weft_gpt_sampler {
  const struct weft_allocator *allocator;
  struct weft_gpt_inference *inference;
  uint64_t context, token_bytes;
  uint32_t vocabulary;
  char *window;                          /* [context] tokens: what the decoder has read */
  struct weft_gpt_candidate *candidates; /* [vocabulary] */
};

WEFT_SCOPED_TYPE(weft_gpt_sampler)

enum weft_status weft_gpt_sampler_create(const struct weft_allocator *allocator,
                                         const struct weft_gpt_config *config,
                                         const struct weft_gpt_layer_state *layers,
                                         struct weft_gpt_sampler **out, struct weft_error *error) {
  assert(config != NULL && layers != NULL && out != NULL);
  WEFT_SCOPED(weft_gpt_sampler) sampler = weft_gpt_allocate(allocator, 1, sizeof *sampler);
  if (sampler == NULL) {
    return weft_fail_memory(error, sizeof *sampler);
  }
  *sampler = (struct weft_gpt_sampler){.allocator = allocator,
                                       .context = config->context,
                                       .token_bytes = weft_gpt_token_bytes(config->vocabulary),
                                       .vocabulary = config->vocabulary};
  sampler->window = weft_gpt_allocate(allocator, sampler->context, sampler->token_bytes);
  sampler->candidates =
      weft_gpt_allocate(allocator, sampler->vocabulary, sizeof *sampler->candidates);
  if (sampler->window == NULL || sampler->candidates == NULL) {
    return weft_fail_memory(error, sampler->context * sampler->token_bytes);
  }
  WEFT_TRY(weft_gpt_inference_create(allocator, config, layers, &sampler->inference, error));
  *out = sampler;
  sampler = NULL;
  return WEFT_OK;
}

void weft_gpt_sampler_destroy(struct weft_gpt_sampler *sampler) {
  if (sampler != NULL) {
    weft_gpt_inference_destroy(sampler->inference);
    weft_gpt_free(sampler->allocator, sampler->window);
    weft_gpt_free(sampler->allocator, sampler->candidates);
    weft_gpt_free(sampler->allocator, sampler);
  }
}

/* ---- The choice ---- */

/* The likelier first; of equals the smaller token, so that the order is one. */
static int compare_candidates(const void *left, const void *right) {
  const struct weft_gpt_candidate *a = left;
  const struct weft_gpt_candidate *b = right;
  if (a->logit != b->logit) {
    return a->logit > b->logit ? -1 : 1;
  }
  return a->token < b->token ? -1 : 1;
}

/* 0 <= ... < 1 */
static double uniform_at(uint64_t seed, uint64_t index) {
  return (double)(weft_splitmix(weft_splitmix(seed) + index) >> 11) * 0x1p-53;
}

/* Relative to the likeliest, so nothing overflows, however small the temperature. */
static double weight_of(const struct weft_gpt_candidate *candidates, uint32_t k,
                        double temperature) {
  return exp(((double)candidates[k].logit - (double)candidates[0].logit) / temperature);
}

int weft_gpt_sampler_choose(const float *logits, uint32_t vocabulary,
                            struct weft_gpt_candidate *candidates, double temperature,
                            uint32_t top_k, uint64_t seed, uint64_t index) {
  assert(logits != NULL && top_k <= vocabulary);
  const uint32_t count = top_k == 0 ? vocabulary : top_k;
  double sum = 0;
  for (uint32_t token = 0; token < vocabulary; token++) {
    if (!isfinite(logits[token])) {
      return -1;
    }
    candidates[token] = (struct weft_gpt_candidate){.logit = logits[token], .token = token};
  }
  qsort(candidates, vocabulary, sizeof *candidates, compare_candidates);
  if (temperature <= 0) {
    return (int)candidates[0].token;
  }
  for (uint32_t k = 0; k < count; k++) {
    sum += weight_of(candidates, k, temperature);
  }
  double rest = uniform_at(seed, index) * sum;
  uint32_t k = 0;
  for (; k + 1 < count; k++) {
    rest -= weight_of(candidates, k, temperature);
    if (rest < 0) {
      break;
    }
  }
  return (int)candidates[k].token;
}

/* ---- The context ---- */

/* Reads what the prompt ends with. */
static const float *begin(struct weft_gpt_sampler *sampler, const void *prompt, uint64_t size) {
  const uint64_t each = sampler->token_bytes,
                 used = size < sampler->context ? size : sampler->context;
  memcpy(sampler->window, (const char *)prompt + (size - used) * each, used * each);
  weft_gpt_inference_rewind(sampler->inference);
  return weft_gpt_inference_read(sampler->inference, sampler->window, used);
}

static const float *go_on(struct weft_gpt_sampler *sampler, uint16_t token) {
  const uint64_t each = sampler->token_bytes; /* the lower byte comes first */
  uint64_t position = weft_gpt_inference_position(sampler->inference);
  if (position < sampler->context) {
    memcpy(sampler->window + position * each, &token, each);
    return weft_gpt_inference_read(sampler->inference, sampler->window + position * each, 1);
  }
  /* Positions are learned, so cached keys cannot be shifted: half of them are recomputed. */
  position = sampler->context / 2;
  memmove(sampler->window, sampler->window + (sampler->context - position) * each, position * each);
  memcpy(sampler->window + position * each, &token, each);
  weft_gpt_inference_rewind(sampler->inference);
  return weft_gpt_inference_read(sampler->inference, sampler->window, position + 1);
}

/* ---- Sampling ---- */

struct weft_gpt_sample_options weft_gpt_sample_options_default(void) {
  return (struct weft_gpt_sample_options){.count = 256, .temperature = 0.8};
}

static enum weft_status check_options(const struct weft_gpt_sampler *sampler,
                                      const struct weft_gpt_sample_options *options,
                                      struct weft_error *error) {
  if (!isfinite(options->temperature) || options->temperature < 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "", "the temperature is %g; expected 0 or more",
                     options->temperature);
  }
  if (options->top_k > sampler->vocabulary) {
    return weft_fail(error, WEFT_ERR_USAGE, "",
                     "top-k is %" PRIu32 "; expected 1 to %" PRIu32 ", or 0 for all",
                     options->top_k, sampler->vocabulary);
  }
  if (options->prompt_size == 0 && sampler->token_bytes > 1) {
    return weft_fail(error, WEFT_ERR_USAGE, "give it the numbers of some tokens",
                     "there is no prompt: the model's tokens are %" PRIu32
                     " numbers, and none is an empty line",
                     sampler->vocabulary);
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_sample(struct weft_gpt_sampler *sampler,
                                 const struct weft_gpt_sample_options *options,
                                 struct weft_text *text, struct weft_error *error) {
  assert(sampler != NULL && options != NULL);
  const bool bytes = sampler->token_bytes == 1, empty = options->prompt_size == 0;
  const float *logits = NULL;
  uint32_t token = 0;
  WEFT_TRY(check_options(sampler, options, error));
  for (uint64_t index = 0; index < options->count; index++) {
    logits = index == 0
                 ? begin(sampler, empty ? "\n" : options->prompt, empty ? 1 : options->prompt_size)
                 : go_on(sampler, (uint16_t)token);
    const int choice =
        weft_gpt_sampler_choose(logits, sampler->vocabulary, sampler->candidates,
                                options->temperature, options->top_k, options->seed, index);
    if (choice < 0) {
      return weft_fail(error, WEFT_ERR_INVALID,
                       "the training went wrong: use an earlier checkpoint, a lower rate",
                       "the model's answer for %s %" PRIu64 " is not made of numbers",
                       bytes ? "byte" : "token", index);
    }
    token = (uint32_t)choice;
    if (text != NULL) {
      if (bytes) {
        weft_text_append(text, &(char){(char)token}, 1);
      } else {
        weft_text_addf(text, " %" PRIu32, token);
      }
      WEFT_TRY(weft_text_status(text, error));
    }
    if (options->on_token != NULL && !options->on_token(options->context, token)) {
      break;
    }
  }
  return WEFT_OK;
}
