/* `weft bench`: the list of benchmarks, and running them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/launch.h>

#include "cli/args/suggest.h"
#include "cli/bench_mpi.h"
#include "cli/cmd/commands.h"
#include "cli/io/error_message.h"
#include "cli/io/output_file.h"

static const struct weft_cli_benchmark benchmarks[] = {
    {"plan", "time and memory of gen, lower and verify per action", weft_cli_bench_plan},
    {"plan-search", "how long the planner takes to be as good as what has been published",
     weft_cli_bench_plan_search},
    {"sim", "time and memory of the simulation per action", weft_cli_bench_sim},
    {"run", "what the runtime adds to an action, and how near a run comes to its prediction",
     weft_cli_bench_run},
    {"train", "the trainer on one rank and on two, beside bare products and its prediction",
     weft_cli_bench_train},
    {"mpi", "two processes beside two threads, messages beside bare MPI, and overlap",
     weft_cli_bench_mpi},
};

size_t weft_cli_benchmark_count(void) { return sizeof benchmarks / sizeof benchmarks[0]; }

const struct weft_cli_benchmark *weft_cli_benchmark_at(size_t index) { return &benchmarks[index]; }

static int list(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  struct weft_text text = {.allocator = cli->allocator};
  for (size_t i = 0; i < weft_cli_benchmark_count(); i++) {
    weft_text_addf(&text, "%-11s %s\n", benchmarks[i].name, benchmarks[i].summary);
  }
  const int status = weft_cli_deliver(cli, arguments, &text, WEFT_CLI_OK);
  weft_text_finish(&text);
  return status;
}

/* Training, MPI and searches take longer, and are measured when they are asked for. */
static bool runs_unasked(const struct weft_cli_benchmark *benchmark) {
  return benchmark->run != weft_cli_bench_plan_search && benchmark->run != weft_cli_bench_train &&
         benchmark->run != weft_cli_bench_mpi;
}

static int run_all(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                   struct weft_text *text, struct weft_json *json) {
  int status = WEFT_CLI_OK;
  for (size_t i = 0; i < weft_cli_benchmark_count() && status == WEFT_CLI_OK; i++) {
    if (!runs_unasked(&benchmarks[i])) {
      continue;
    }
    if (json == NULL && i > 0) {
      weft_text_add(text, "\n");
    }
    status = benchmarks[i].run(cli, arguments, text, json);
  }
  return status;
}

/* One benchmark gives its own document, several a document with a list. */
static int measure(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                   const struct weft_cli_benchmark *benchmark, struct weft_text *text) {
  struct weft_json writer = {.text = text};
  struct weft_json *json = arguments->given[WEFT_CLI_OPTION_JSON] ? &writer : NULL;
  int status;
  if (benchmark == NULL && json != NULL) {
    weft_json_open(json, NULL, '{');
    weft_json_string(json, "schema", "weft-bench/1");
    weft_json_open(json, "benchmarks", '[');
    status = run_all(cli, arguments, text, json);
    weft_json_close(json, ']');
    weft_json_close(json, '}');
  } else if (benchmark == NULL) {
    status = run_all(cli, arguments, text, NULL);
  } else {
    status = benchmark->run(cli, arguments, text, json);
  }
  if (json != NULL) {
    weft_json_finish(json);
  }
  return status;
}

static int fail_name(const struct weft_cli *cli, const char *name) {
  char quoted[80], hint[80];
  struct weft_cli_guess guess;
  weft_cli_guess_init(&guess, name, strlen(name));
  for (size_t i = 0; i < weft_cli_benchmark_count(); i++) {
    weft_cli_guess_offer(&guess, benchmarks[i].name, strlen(benchmarks[i].name));
  }
  (void)snprintf(hint, sizeof hint, "did you mean '%s'?", guess.best != NULL ? guess.best : "");
  return weft_cli_usage(cli, guess.best != NULL ? hint : "'weft bench --list' lists the benchmarks",
                        "unknown benchmark '%s': expected plan, sim, run, train or mpi",
                        weft_cli_quote(quoted, sizeof quoted, name));
}

int weft_cli_verb_bench(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  const struct weft_cli_benchmark *benchmark = NULL;
  if (arguments->given[WEFT_CLI_OPTION_LIST]) {
    return list(cli, arguments);
  }
  if (arguments->given[WEFT_CLI_OPTION_ACTIONS] && !arguments->given[WEFT_CLI_OPTION_LARGE]) {
    return weft_cli_usage(cli, "add --large", "--actions is the size of the large programs");
  }
  for (size_t i = 0; i < weft_cli_benchmark_count() && arguments->operand_count > 0; i++) {
    if (strcmp(arguments->operands[0], benchmarks[i].name) == 0) {
      benchmark = &benchmarks[i];
    }
  }
  if (arguments->operand_count > 0 && benchmark == NULL) {
    return fail_name(cli, arguments->operands[0]);
  }
  if (benchmark != NULL && benchmark->run == weft_cli_bench_mpi &&
      (weft_launch_info().launcher != NULL || getenv(WEFT_CLI_MPI_TASK) != NULL)) {
    return weft_cli_bench_mpi_job(cli, arguments);
  }
  struct weft_text text = {.allocator = cli->allocator};
  int status = measure(cli, arguments, benchmark, &text);
  if (status == WEFT_CLI_OK) {
    status = weft_cli_deliver(cli, arguments, &text, WEFT_CLI_OK);
  }
  weft_text_finish(&text);
  return status;
}
