/* The wall clock and medians. */
#include "cli/io/wall_clock.h"

#include <assert.h>

#include <weft/support.h>

uint64_t weft_cli_clock_ns(void) { return (uint64_t)weft_clock_ns(); }

uint64_t weft_cli_median(uint64_t *samples, size_t count) {
  assert(samples != NULL || count == 0);
  for (size_t i = 1; i < count; i++) {
    const uint64_t sample = samples[i];
    size_t at = i;
    for (; at > 0 && samples[at - 1] > sample; at--) {
      samples[at] = samples[at - 1];
    }
    samples[at] = sample;
  }
  return count > 0 ? samples[(count - 1) / 2] : 0;
}
