/* What benchmarks measure with: clocks, and an allocator that counts. */
#ifndef BENCH_CLOCK_H
#define BENCH_CLOCK_H

#include "cli/io/clock.h"

/* CPU time of this process. */
uint64_t weft_cli_cpu_ns(void);
/* The part of it that the system took, above all to hand out memory. */
uint64_t weft_cli_system_ns(void);

/* What the host has given to others while this machine's processors wanted to run, all
 * of them together, since it started, in ms; 0 where that is not told. In steps of 10. */
uint64_t weft_cli_stolen_ms(void);

/* Passes everything on to `inner` and remembers the most that was held. */
struct weft_cli_counter {
  struct weft_allocator allocator; /* hand this one out */
  const struct weft_allocator *inner;
  size_t bytes_now;
  size_t bytes_peak;
};

void weft_cli_counter_init(struct weft_cli_counter *counter, const struct weft_allocator *inner);

/* Median time in which `program --version` starts and ends; 0 when it cannot be
 * started. */
uint64_t weft_cli_startup_ns(const char *program);

#endif
