/* Random numbers that are the same everywhere for a seed (splitmix64). */
#ifndef BASE_RANDOM_H
#define BASE_RANDOM_H

#include <stdint.h>

struct weft_random {
  uint64_t state; /* any value is a seed */
};

uint64_t weft_random_next(struct weft_random *random);
/* Uniform in 0 ... bound-1; bound > 0. */
uint32_t weft_random_below(struct weft_random *random, uint32_t bound);
/* Uniform in [0, 1). */
double weft_random_share(struct weft_random *random);

#endif
