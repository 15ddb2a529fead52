/* What `weft bench plan` measures (bench_plan.c) and reports (bench_plan_report.c). */
#ifndef CLI_BENCH_PLAN_H
#define CLI_BENCH_PLAN_H

#include "bench/bench.h"

enum weft_cli_bench_phase {
  WEFT_CLI_BENCH_GEN,
  WEFT_CLI_BENCH_LOWER,
  WEFT_CLI_BENCH_VERIFY,
  WEFT_CLI_BENCH_PHASES
};

struct weft_cli_measurement {
  struct weft_cli_bench_case at;
  uint64_t times_ns[WEFT_CLI_BENCH_PHASES]; /* medians of the CPU time */
  size_t held_bytes;                        /* by the program */
  size_t peak_bytes;                        /* over gen, lower and verify */
};

struct weft_cli_bench_results {
  uint64_t startup_ns; /* 0: not measured */
  struct weft_cli_measurement small[WEFT_CLI_BENCH_SCHEDULES];
  struct weft_cli_measurement large[WEFT_CLI_BENCH_SCHEDULES];
  bool has_large;
};

void weft_cli_bench_add_text(struct weft_text *text, const struct weft_cli_bench_results *results);
void weft_cli_bench_add_plan_json(struct weft_json *json,
                                  const struct weft_cli_bench_results *results);

#endif
