/* What `weft bench sim` measures (bench_sim.c), checks (bench_sim_check.c) and
 * reports (bench_sim_report.c). */
#ifndef CLI_BENCH_SIM_H
#define CLI_BENCH_SIM_H

#include <weft/sim.h>

#include "bench/bench.h"

enum weft_bench_sim_phase {
  WEFT_BENCH_SIM_NUMBERS,        /* weft_simulate() of the program without events */
  WEFT_BENCH_SIM_NUMBERS_SYSTEM, /* the system's part of it */
  WEFT_BENCH_SIM_EVENTS,         /* weft_simulate() with events */
  WEFT_BENCH_SIM_EVENTS_SYSTEM,
  WEFT_BENCH_SIM_MAKESPAN, /* weft_makespan() of the program */
  WEFT_BENCH_SIM_TABLE,    /* weft_makespan() of the table */
  WEFT_BENCH_SIM_PHASES
};

struct weft_bench_sim_measurement {
  struct weft_bench_case at;
  uint64_t table_actions;
  uint64_t plan_ns;                         /* gen and lower, once */
  uint64_t times_ns[WEFT_BENCH_SIM_PHASES]; /* medians of the CPU time */
  size_t numbers_bytes;                     /* held at most, with the program: without events, */
  size_t events_bytes;                      /* with them, */
  size_t makespan_bytes;                    /* and for the makespan alone */
};

struct weft_bench_sim_results {
  struct weft_bench_sim_measurement small[WEFT_BENCH_SCHEDULES];
  struct weft_bench_sim_measurement large[WEFT_BENCH_SCHEDULES];
  struct weft_bench_sim_measurement wide; /* 1,024 ranks */
  struct weft_bench_case svg_at;
  uint64_t svg_ns;
  size_t svg_bytes;
  bool has_large;
  bool has_wide;
};

/* Whether simulation, makespan alone and a plain evaluation of the table agree,
 * the closed forms are met, and each rank's time adds up. OK, or another exit
 * status after printing what is wrong. */
int weft_bench_check_sim(const struct weft_cli *cli, const struct weft_bench_case *at,
                         const struct weft_program *table, const struct weft_program *program);

void weft_bench_add_sim_text(struct weft_text *text, const struct weft_bench_sim_results *results);
void weft_bench_add_sim_json(struct weft_json *json, const struct weft_bench_sim_results *results);

#endif
