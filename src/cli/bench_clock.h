/* What benchmarks measure with: a clock, a median, an allocator that counts
 * and one that keeps memory. */
#ifndef CLI_BENCH_CLOCK_H
#define CLI_BENCH_CLOCK_H

#include <weft/base.h>

/* Of the clock on the wall, and the time this process was given. */
uint64_t weft_cli_clock_ns(void);
uint64_t weft_cli_cpu_ns(void);
/* The part of it that the system took, above all to hand out memory. */
uint64_t weft_cli_system_ns(void);

/* Sorts the samples; of an even number, the lower middle. */
uint64_t weft_cli_median(uint64_t *samples, size_t count);

/* Passes everything on to `inner` and remembers the most that was held. */
struct weft_cli_counter {
  struct weft_allocator allocator; /* hand this one out */
  const struct weft_allocator *inner;
  size_t bytes_now;
  size_t bytes_peak;
};

void weft_cli_counter_init(struct weft_cli_counter *counter, const struct weft_allocator *inner);

/* An allocator that keeps large blocks for the next that asks for their size, as
 * malloc() does with smaller ones: what runs in them a second time does not wait
 * for the system, or for the host of a virtual machine, to find memory. */
enum { WEFT_CLI_KEPT_MAX = 8, WEFT_CLI_KEPT_BYTES_MIN = 1024 * 1024 };

struct weft_cli_kept_block {
  void *data;
  size_t size; /* 0: none */
};

struct weft_cli_recycler {
  struct weft_allocator allocator;
  const struct weft_allocator *inner;
  struct weft_cli_kept_block kept[WEFT_CLI_KEPT_MAX];
};

void weft_cli_recycler_init(struct weft_cli_recycler *recycler, const struct weft_allocator *inner);
void weft_cli_recycler_finish(struct weft_cli_recycler *recycler);

/* Median time in which `program --version` starts and ends; 0 when it cannot be
 * started. */
uint64_t weft_cli_startup_ns(const char *program);

#endif
