/* The sparse side of struct weft_bits: climb until a level shows a member
 * further on, then descend to it. */
#include "base/bits.h"

#include <weft/support.h>

static uint32_t words_for(uint32_t size) { return (size >> 6) + 1; }

bool weft_bits_init(struct weft_bits *bits, const struct weft_allocator *allocator, uint32_t size) {
  const uint32_t counts[WEFT_BITS_LEVELS] = {words_for(size), words_for(size >> 6),
                                             words_for(size >> 12)};
  *bits = (struct weft_bits){
      .allocator = allocator, .size = size, .word_count = counts[0] + counts[1] + counts[2]};
  bits->words = weft_array_allocate_zero(allocator, bits->word_count, sizeof *bits->words);
  if (bits->words == NULL) {
    return false;
  }
  bits->level[0] = bits->words;
  bits->level[1] = bits->level[0] + counts[0];
  bits->level[2] = bits->level[1] + counts[1];
  return true;
}

void weft_bits_finish(struct weft_bits *bits) {
  weft_array_free(bits->allocator, bits->words, bits->word_count, sizeof *bits->words);
  bits->words = NULL;
}

static uint32_t descend(const struct weft_bits *bits, unsigned level, uint32_t number) {
  while (level > 0) {
    level--;
    number = number * 64 + (uint32_t)__builtin_ctzll(bits->level[level][number]);
  }
  return number;
}

uint32_t weft_bits_next_slow(const struct weft_bits *bits, uint32_t from) {
  for (unsigned k = 0; k < WEFT_BITS_LEVELS; k++) {
    if ((from >> 6) >= words_for(bits->size >> (6 * k))) {
      return WEFT_BITS_NONE;
    }
    const uint64_t word = bits->level[k][from >> 6] >> (from & 63);
    if (word != 0) {
      return descend(bits, k, from + (uint32_t)__builtin_ctzll(word));
    }
    from = (from >> 6) + 1;
  }
  return WEFT_BITS_NONE;
}
