/* What benchmarks measure with: clocks, and an allocator that counts. */
#ifndef BENCH_CLOCK_H
#define BENCH_CLOCK_H

#include <weft/base.h>

/* Nanoseconds of the monotonic clock. */
uint64_t weft_bench_now_ns(void);
/* Sorts the samples; of an even number, the lower middle. */
uint64_t weft_bench_median(uint64_t *samples, size_t count);
/* CPU time of this process. */
uint64_t weft_bench_cpu_ns(void);
/* The part of it that the system took, above all to hand out memory. */
uint64_t weft_bench_system_ns(void);

/* Time stolen by the host from this machine's processors, all of them together, since it started,
 * in ms; 0 where that is unknown. In steps of 10. */
uint64_t weft_bench_stolen_ms(void);

/* Forwards everything to `inner` and records the peak. */
struct weft_bench_counter {
  struct weft_allocator allocator; /* pass this one on */
  const struct weft_allocator *inner;
  size_t bytes_now;
  size_t bytes_peak;
};

void weft_bench_counter_init(struct weft_bench_counter *counter,
                             const struct weft_allocator *inner);

/* Median time in which `program --version` starts and ends; 0 when it cannot be
 * started. */
uint64_t weft_bench_startup_ns(const char *program);

#endif
