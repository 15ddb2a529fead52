/* Draws bytes from what the decoder says, and moves its context along. */
#include "gpt/infer/sampler.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

#include "gpt/infer/kv_cache.h"
#include "gpt/model/aligned_memory.h"

struct weft_gpt_sampler {
  const struct weft_allocator *allocator;
  struct weft_gpt_inference *inference;
  uint64_t context;
  uint8_t *window; /* [context]: what the decoder has read */
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
  *sampler = (struct weft_gpt_sampler){.allocator = allocator, .context = config->context};
  sampler->window = weft_gpt_allocate(allocator, sampler->context, 1);
  if (sampler->window == NULL) {
    return weft_fail_memory(error, sampler->context);
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
    weft_gpt_free(sampler->allocator, sampler);
  }
}

/* ---- The choice ---- */

struct candidate {
  float logit;
  uint8_t byte;
};

/* The likelier first; of equals the smaller byte, so that the order is one. */
static int compare_candidates(const void *left, const void *right) {
  const struct candidate *a = left;
  const struct candidate *b = right;
  if (a->logit != b->logit) {
    return a->logit > b->logit ? -1 : 1;
  }
  return a->byte < b->byte ? -1 : 1;
}

/* 0 <= ... < 1 */
static double uniform_at(uint64_t seed, uint64_t index) {
  return (double)(weft_splitmix(weft_splitmix(seed) + index) >> 11) * 0x1p-53;
}

/* Relative to the likeliest, so nothing overflows, however small the temperature. */
static double weight_of(const struct candidate *candidates, uint32_t k, double temperature) {
  return exp(((double)candidates[k].logit - (double)candidates[0].logit) / temperature);
}

int weft_gpt_sampler_choose(const float *logits, double temperature, uint32_t top_k, uint64_t seed,
                            uint64_t index) {
  assert(logits != NULL);
  struct candidate candidates[WEFT_GPT_VOCABULARY];
  const uint32_t count = top_k == 0 ? WEFT_GPT_VOCABULARY : top_k;
  double sum = 0;
  for (unsigned byte = 0; byte < WEFT_GPT_VOCABULARY; byte++) {
    if (!isfinite(logits[byte])) {
      return -1;
    }
    candidates[byte] = (struct candidate){.logit = logits[byte], .byte = (uint8_t)byte};
  }
  qsort(candidates, WEFT_GPT_VOCABULARY, sizeof *candidates, compare_candidates);
  if (temperature <= 0) {
    return candidates[0].byte;
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
  return candidates[k].byte;
}

/* ---- The context ---- */

/* Reads what the prompt ends with. */
static const float *begin(struct weft_gpt_sampler *sampler, const uint8_t *prompt, uint64_t size) {
  static const uint8_t empty_line[] = {'\n'};
  if (size == 0) {
    prompt = empty_line;
    size = sizeof empty_line;
  }
  const uint64_t used = size < sampler->context ? size : sampler->context;
  memcpy(sampler->window, prompt + size - used, used);
  weft_gpt_inference_rewind(sampler->inference);
  return weft_gpt_inference_read(sampler->inference, sampler->window, used);
}

static const float *go_on(struct weft_gpt_sampler *sampler, uint8_t byte) {
  uint64_t position = weft_gpt_inference_position(sampler->inference);
  if (position < sampler->context) {
    sampler->window[position] = byte;
    return weft_gpt_inference_read(sampler->inference, &byte, 1);
  }
  /* Positions are learned, so cached keys cannot be shifted: half of them are recomputed. */
  position = sampler->context / 2;
  memmove(sampler->window, sampler->window + sampler->context - position, position);
  sampler->window[position] = byte;
  weft_gpt_inference_rewind(sampler->inference);
  return weft_gpt_inference_read(sampler->inference, sampler->window, position + 1);
}

/* ---- Sampling ---- */

struct weft_gpt_sample_options weft_gpt_sample_options_default(void) {
  return (struct weft_gpt_sample_options){.count = 256, .temperature = 0.8};
}

static enum weft_status check_options(const struct weft_gpt_sample_options *options,
                                      struct weft_error *error) {
  if (!isfinite(options->temperature) || options->temperature < 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "", "the temperature is %g; expected 0 or more",
                     options->temperature);
  }
  if (options->top_k > WEFT_GPT_VOCABULARY) {
    return weft_fail(error, WEFT_ERR_USAGE, "",
                     "top-k is %" PRIu32 "; expected 1 to %d, or 0 for all", options->top_k,
                     WEFT_GPT_VOCABULARY);
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_sample(struct weft_gpt_sampler *sampler,
                                 const struct weft_gpt_sample_options *options,
                                 struct weft_text *text, struct weft_error *error) {
  assert(sampler != NULL && options != NULL);
  const float *logits = NULL;
  uint8_t byte = 0;
  WEFT_TRY(check_options(options, error));
  for (uint64_t index = 0; index < options->count; index++) {
    logits =
        index == 0 ? begin(sampler, options->prompt, options->prompt_size) : go_on(sampler, byte);
    const int choice =
        weft_gpt_sampler_choose(logits, options->temperature, options->top_k, options->seed, index);
    if (choice < 0) {
      return weft_fail(error, WEFT_ERR_INVALID,
                       "the training went wrong: use an earlier checkpoint, a lower rate",
                       "the model's answer for byte %" PRIu64 " is not made of numbers", index);
    }
    byte = (uint8_t)choice;
    if (text != NULL) {
      weft_text_append(text, (const char *)&byte, 1);
      WEFT_TRY(weft_text_status(text, error));
    }
    if (options->on_byte != NULL && !options->on_byte(options->context, byte)) {
      break;
    }
  }
  return WEFT_OK;
}
