/* What `weft bench run` measures (bench_run.c, bench_handover.c) and reports
 * (bench_run_report.c). */
#ifndef CLI_BENCH_RUN_H
#define CLI_BENCH_RUN_H

#include "bench/bench.h"

enum { WEFT_BENCH_EXECUTOR_MAX = 14, WEFT_BENCH_SLEEP_MAX = 32 };

/* Stages that do nothing, all ranks in one thread: what is left is the executor. */
struct weft_bench_executor_measurement {
  struct weft_bench_case at;
  uint64_t compute_actions;     /* F, B, I, W of the program */
  uint64_t with_ns, without_ns; /* CPU time of a step, with the event log and without: median of
                                   the fastest round */
  uint64_t allocations;         /* by all steps but the first */
};

/* Stages that sleep, a thread per rank. */
struct weft_bench_sleep_measurement {
  struct weft_bench_case at;
  double measured_ms, fastest_ms; /* of the median step, and of the fastest */
  double simulated_ms;
  uint64_t stolen_ms; /* by others on the host, while it was measured */
};

struct weft_bench_handover {
  uint64_t one_way_ns; /* median of the fastest block */
  uint64_t round_trips, block;
  uint64_t processors;
};

struct weft_bench_run_results {
  struct weft_bench_executor_measurement executor[WEFT_BENCH_EXECUTOR_MAX];
  size_t executor_count;
  struct weft_bench_sleep_measurement sleep[WEFT_BENCH_SLEEP_MAX];
  size_t sleep_count;
  struct weft_bench_handover handover;
};

/* A message there and back between two threads, again and again, after checking
 * that it arrives whole. OK, or another exit status after printing why. */
int weft_bench_handover(const struct weft_cli *cli, uint64_t repeats,
                        struct weft_bench_handover *handover);

void weft_bench_add_run_text(struct weft_text *text, const struct weft_bench_run_results *results);
void weft_bench_add_run_json(struct weft_json *json, const struct weft_bench_run_results *results);

#endif
