/* Steps of a program whose ranks all run in one thread, on loopback: what they cost is the
 * executor's alone, without switching threads. */
#ifndef BENCH_STEPS_H
#define BENCH_STEPS_H

#include <weft/source.h>

#include "cli/cmd/timed_stages.h"

struct weft_bench_steps {
  const struct weft_allocator *allocator; /* of the runtime */
  const struct weft_named_source *source;
  uint32_t rank_count, microbatch_count;
  struct weft_cli_stages *stages;
  uint32_t step_count;
  bool no_events;
  /* Called before each step, and once after the last. */
  void (*between)(void *context, uint32_t step);
  void *context;
};

enum weft_status weft_bench_steps(const struct weft_bench_steps *steps, struct weft_error *error);

#endif
