/* The sparse side of struct weft_bits: climb until a level shows a member
 * further on, then descend to it. */
#include "base/bits.h"

#include <assert.h>
#include <string.h>

static uint32_t words_for(uint32_t size) { return (size >> 6) + 1; }

static uint32_t word_count(uint32_t size) {
  return words_for(size) + words_for(size >> 6) + words_for(size >> 12);
}

bool weft_bits_init(struct weft_bits *bits, struct weft_arena *arena, uint32_t size) {
  assert(size <= WEFT_BITS_SIZE_MAX);
  *bits = (struct weft_bits){.size = size, .word_count = word_count(size)};
  uint64_t *words = weft_arena_allocate(arena, bits->word_count, sizeof *words);
  if (words == NULL) {
    return false;
  }
  bits->level[0] = words;
  bits->level[1] = bits->level[0] + words_for(size);
  bits->level[2] = bits->level[1] + words_for(size >> 6);
  return true;
}

void weft_bits_clear(struct weft_bits *bits) {
  assert(bits->level[0] != NULL);
  memset(bits->level[0], 0, bits->word_count * sizeof *bits->level[0]);
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
