/* Inference with a KV cache: the model, forward only, byte after byte. Keys and values of all
 * bytes so far are cached, so another byte costs one row. One thread, no pipeline. */
#ifndef GPT_KV_CACHE_H
#define GPT_KV_CACHE_H

#include "trainer/train/stage.h"

struct weft_gpt_inference;

/* layers[weft_gpt_layer_count()], in order; only their parameters are read, at every
 * call. config and parameters are borrowed until destroy. allocator NULL: the default. */
enum weft_status weft_gpt_inference_create(const struct weft_allocator *allocator,
                                           const struct weft_gpt_config *config,
                                           const struct weft_gpt_layer_state *layers,
                                           struct weft_gpt_inference **out,
                                           struct weft_error *error);
/* NULL is fine. */
void weft_gpt_inference_destroy(struct weft_gpt_inference *inference);

/* Forgets what was read. */
void weft_gpt_inference_rewind(struct weft_gpt_inference *inference);
/* How many tokens it has read since. */
uint64_t weft_gpt_inference_position(const struct weft_gpt_inference *inference);

/* Reads `count` >= 1 tokens more, bytes or 16 bits; there may be config->context in all. Returns the
 * logits [V] of the token that follows, valid until the next call. */
const float *weft_gpt_inference_read(struct weft_gpt_inference *inference, const void *tokens,
                                     uint64_t count);

#endif
