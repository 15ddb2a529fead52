/* The wall clock, and the median of what was measured with it. */
#ifndef CLI_WALL_CLOCK_H
#define CLI_WALL_CLOCK_H

#include <weft/base.h>

uint64_t weft_cli_clock_ns(void);

/* Sorts the samples; of an even number, the lower middle. */
uint64_t weft_cli_median(uint64_t *samples, size_t count);

#endif
