/* The benchmarks, and what they share: the schedules, their sizes, and how a
 * measurement begins and fails. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <weft/spec.h>
#include <weft/support.h>

#include "cli/args/option_parser.h"

/* Measures and appends the report: to `json`, or where that is NULL as text. Returns the exit
 * status; where it is not OK, a message was written. */
typedef int weft_bench_measurement(const struct weft_cli *cli,
                                   const struct weft_cli_arguments *arguments,
                                   struct weft_text *text, struct weft_json *json);

/* Runs the program weft-bench; as weft_cli_run(). */
int weft_bench_run(const struct weft_cli *cli, int argc, char **argv);

/* Runs one measurement and writes its report to standard output, or where -o says. */
int weft_bench_report(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                      weft_bench_measurement *measure);

weft_bench_measurement weft_bench_cmd_plan;
weft_bench_measurement weft_bench_cmd_plan_search;
weft_bench_measurement weft_bench_cmd_sim;
weft_bench_measurement weft_bench_cmd_run;
weft_bench_measurement weft_bench_cmd_gpu; /* WEFT_CLI_UNAVAILABLE without a GPU */
weft_bench_measurement weft_bench_cmd_gpu_blocks;
weft_bench_measurement weft_bench_cmd_mpi; /* WEFT_CLI_UNAVAILABLE without MPI */
/* `weft bench mpi` as a process that a launcher has started: measures messages of that job, and
 * rank 0 reports. */
int weft_bench_mpi_job(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);

/* ---- Cases ---- */

enum {
  WEFT_BENCH_SCHEDULES = 5,
  WEFT_BENCH_REPEATS_MAX = 99 /* as in the option table */
};

/* What is measured, and for how long. */
struct weft_bench_case {
  const char *schedule;
  struct weft_shape shape;
  uint64_t actions; /* of the lowered program */
  uint64_t repeats;
  uint64_t cpu_ns;   /* all repeats together */
  uint64_t clock_ns; /* wall time of the same */
};

/* The schedule with that number at the shape that the options give, or at the
 * default: p = 64, v = 2, m = 256. */
struct weft_bench_case weft_bench_small_case(const struct weft_cli_arguments *arguments,
                                             size_t schedule);

/* The same with about as many actions as the options give, or 5·10^7. */
struct weft_bench_case weft_bench_large_case(const struct weft_cli_arguments *arguments,
                                             const struct weft_bench_case *small);

/* Prints on a terminal what is being measured. */
void weft_bench_print_case(const struct weft_cli *cli, const struct weft_bench_case *at);

/* Prints that the answer is wrong; returns the exit status. */
int weft_bench_fail(const struct weft_cli *cli, const struct weft_bench_case *at, const char *what);

/* Schedule, shape, actions, repeats. */
void weft_bench_add_case(struct weft_json *json, const struct weft_bench_case *at);

double weft_bench_per_action(const struct weft_bench_case *at, uint64_t amount);

#endif
