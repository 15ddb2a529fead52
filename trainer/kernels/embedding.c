/* The embedding: rows of the two tables, and their gradients in the order of tokens. */
#include <assert.h>

#include "trainer/kernels/kernels.h"
#include "trainer/kernels/simd.h"

WEFT_GPT_INLINE void embed_body(bool fused, uint64_t sequences, uint64_t tokens, uint64_t channels,
                                uint64_t token_bytes, const void *ids, const float *wte,
                                const float *wpe, float *restrict x) {
  (void)fused;
  for (uint64_t r = 0; r < sequences * tokens; r++, x += channels) {
    const float *token = wte + weft_gpt_token_at(ids, token_bytes, r) * channels;
    const float *place = wpe + r % tokens * channels;
    for (uint64_t i = 0; i < channels; i++) {
      x[i] = token[i] + place[i];
    }
  }
}
WEFT_GPT_VARIANTS(embed,
                  (uint64_t sequences, uint64_t tokens, uint64_t channels, uint64_t token_bytes,
                   const void *ids, const float *wte, const float *wpe, float *x),
                  sequences, tokens, channels, token_bytes, ids, wte, wpe, x)

void weft_gpt_embed(uint64_t sequences, uint64_t tokens, uint64_t channels, uint64_t token_bytes,
                    const void *ids, const float *wte, const float *wpe, float *x) {
  assert(ids != NULL);
  embed(sequences, tokens, channels, token_bytes, ids, wte, wpe, x);
}

void weft_gpt_embed_backward_weight(uint64_t sequences, uint64_t tokens, uint64_t channels,
                                    uint64_t token_bytes, const void *ids, const float *dx,
                                    float *dwte, float *dwpe) {
  for (uint64_t r = 0; r < sequences * tokens; r++) {
    const uint64_t token = weft_gpt_token_at(ids, token_bytes, r);
    weft_gpt_add(channels, dx + r * channels, dwte + token * channels);
    weft_gpt_add(channels, dx + r * channels, dwpe + r % tokens * channels);
  }
}
