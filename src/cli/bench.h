/* The benchmarks, and what they share: the schedules, their sizes, and how a
 * measurement begins and fails. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include <weft/spec.h>
#include <weft/support.h>

#include "cli/args/option_parser.h"

struct weft_cli_benchmark {
  const char *name;
  const char *summary;
  /* Measures and appends the report: to `json`, or where that is NULL as text.
   * Returns the exit status; where it is not OK, something was said. */
  int (*run)(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
             struct weft_text *text, struct weft_json *json);
};

size_t weft_cli_benchmark_count(void);
const struct weft_cli_benchmark *weft_cli_benchmark_at(size_t index);

int weft_cli_bench_plan(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                        struct weft_text *text, struct weft_json *json);
int weft_cli_bench_plan_search(const struct weft_cli *cli,
                               const struct weft_cli_arguments *arguments, struct weft_text *text,
                               struct weft_json *json);
int weft_cli_bench_sim(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       struct weft_text *text, struct weft_json *json);
int weft_cli_bench_run(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       struct weft_text *text, struct weft_json *json);
/* Where the trainer is not built: WEFT_CLI_UNAVAILABLE. */
int weft_cli_bench_train(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                         struct weft_text *text, struct weft_json *json);
/* Without MPI: WEFT_CLI_UNAVAILABLE. */
int weft_cli_bench_mpi(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       struct weft_text *text, struct weft_json *json);

/* ---- Cases ---- */

enum {
  WEFT_CLI_BENCH_SCHEDULES = 5,
  WEFT_CLI_BENCH_REPEATS_MAX = 99 /* as in the option table */
};

/* What is measured, and for how long. */
struct weft_cli_bench_case {
  const char *schedule;
  struct weft_shape shape;
  uint64_t actions; /* of the lowered program */
  uint64_t repeats;
  uint64_t cpu_ns;   /* all repeats together */
  uint64_t clock_ns; /* the same on the wall */
};

/* The schedule with that number at the shape that the options give, or at the
 * default: p = 64, v = 2, m = 256. */
struct weft_cli_bench_case weft_cli_bench_small(const struct weft_cli_arguments *arguments,
                                                size_t schedule);

/* The same with about as many actions as the options give, or 5·10^7. */
struct weft_cli_bench_case weft_cli_bench_large(const struct weft_cli_arguments *arguments,
                                                const struct weft_cli_bench_case *small);

/* Says on a terminal what is being measured. */
void weft_cli_bench_say(const struct weft_cli *cli, const struct weft_cli_bench_case *at);

/* Says that the answer is wrong; returns the exit status. */
int weft_cli_bench_fail(const struct weft_cli *cli, const struct weft_cli_bench_case *at,
                        const char *what);

/* Schedule, shape, actions, repeats. */
void weft_cli_bench_add_case(struct weft_json *json, const struct weft_cli_bench_case *at);

double weft_cli_per_action(const struct weft_cli_bench_case *at, uint64_t amount);

#endif
