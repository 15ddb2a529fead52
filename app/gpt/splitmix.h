/* Numbers at random that depend on what they are for, not on what was drawn before:
 * the same everywhere (splitmix64). */
#ifndef GPT_SPLITMIX_H
#define GPT_SPLITMIX_H

#include <stdint.h>

/* What the state is moved by from number to number: the n-th of a stream, from 0, is
 * weft_gpt_splitmix(stream + n * WEFT_GPT_SPLITMIX_STEP). */
#define WEFT_GPT_SPLITMIX_STEP UINT64_C(0x9e3779b97f4a7c15)

/* Also good for making a stream from a seed and something else: splitmix(splitmix(seed)
 * + something). */
static inline uint64_t weft_gpt_splitmix(uint64_t state) {
  uint64_t z = state + WEFT_GPT_SPLITMIX_STEP;
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

#endif
