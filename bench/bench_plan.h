/* What `weft bench plan` measures (bench_plan.c) and reports (bench_plan_report.c). */
#ifndef CLI_BENCH_PLAN_H
#define CLI_BENCH_PLAN_H

#include "bench/bench.h"

enum weft_bench_plan_phase {
  WEFT_BENCH_PLAN_GEN,
  WEFT_BENCH_PLAN_LOWER,
  WEFT_BENCH_PLAN_VERIFY,
  WEFT_BENCH_PLAN_PHASES
};

struct weft_bench_plan_measurement {
  struct weft_bench_case at;
  uint64_t times_ns[WEFT_BENCH_PLAN_PHASES]; /* medians of the CPU time */
  size_t held_bytes;                         /* by the program */
  size_t peak_bytes;                         /* over gen, lower and verify */
};

struct weft_bench_plan_results {
  uint64_t startup_ns; /* 0: not measured */
  struct weft_bench_plan_measurement small[WEFT_BENCH_SCHEDULES];
  struct weft_bench_plan_measurement large[WEFT_BENCH_SCHEDULES];
  bool has_large;
};

void weft_bench_add_plan_text(struct weft_text *text,
                              const struct weft_bench_plan_results *results);
void weft_bench_add_plan_json(struct weft_json *json,
                              const struct weft_bench_plan_results *results);

#endif
