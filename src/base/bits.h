/* A set of small numbers in which the next member from a point on is found
 * quickly, however sparse the set: one bit per number, and above it, level by
 * level, one bit per non-empty word. Inline: passes ask it once per action. */
#ifndef BASE_BITS_H
#define BASE_BITS_H

#include <weft/base.h>
#include <weft/support.h>

enum { WEFT_BITS_LEVELS = 3 }; /* 64^3 = 262144 numbers */
#define WEFT_BITS_SIZE_MAX UINT32_C(262144)
#define WEFT_BITS_NONE UINT32_MAX

struct weft_bits {
  uint64_t *level[WEFT_BITS_LEVELS]; /* one after the other, in one block */
  uint32_t word_count;
  uint32_t size;
};

/* All of 0 ... size-1 are outside. The arena gives it back; false when out of memory. */
bool weft_bits_init(struct weft_bits *bits, struct weft_arena *arena, uint32_t size);
/* All are outside again. */
void weft_bits_clear(struct weft_bits *bits);

static inline void weft_bits_insert(struct weft_bits *bits, uint32_t number) {
  for (unsigned k = 0; k < WEFT_BITS_LEVELS; k++) {
    uint64_t *word = &bits->level[k][number >> 6];
    const bool was_empty = *word == 0;
    *word |= UINT64_C(1) << (number & 63);
    if (!was_empty) {
      return;
    }
    number >>= 6;
  }
}

static inline void weft_bits_remove(struct weft_bits *bits, uint32_t number) {
  for (unsigned k = 0; k < WEFT_BITS_LEVELS; k++) {
    uint64_t *word = &bits->level[k][number >> 6];
    *word &= ~(UINT64_C(1) << (number & 63));
    if (*word != 0) {
      return;
    }
    number >>= 6;
  }
}

/* The smallest member that is >= from, or WEFT_BITS_NONE. */
uint32_t weft_bits_next_slow(const struct weft_bits *bits, uint32_t from);

static inline uint32_t weft_bits_next(const struct weft_bits *bits, uint32_t from) {
  if (from < bits->size) {
    const uint64_t word = bits->level[0][from >> 6] >> (from & 63);
    if (word != 0) {
      return from + (uint32_t)__builtin_ctzll(word);
    }
  }
  return weft_bits_next_slow(bits, from);
}

#endif
