/* splitmix64: small, fast, the same on every machine; good enough for tests,
 * jitter and search, not for secrets. */
#include <assert.h>

#include <weft/support.h>

uint64_t weft_splitmix(uint64_t state) {
  uint64_t z = state + WEFT_SPLITMIX_STEP;
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

uint64_t weft_random_next(struct weft_random *random) {
  const uint64_t number = weft_splitmix(random->state);
  random->state += WEFT_SPLITMIX_STEP;
  return number;
}

uint32_t weft_random_below(struct weft_random *random, uint32_t bound) {
  assert(bound > 0);
  /* Multiply-shift; the bias is below 2^-32 and of no matter here. */
  return (uint32_t)(((weft_random_next(random) >> 32) * bound) >> 32);
}

double weft_random_share(struct weft_random *random) {
  return (double)(weft_random_next(random) >> 11) * 0x1p-53;
}
