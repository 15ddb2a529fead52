/* The program weft-bench: the list of benchmarks, and running them. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include <weft/launch.h>

#include "bench/bench.h"
#include "cli/cli_program.h"
#include "cli/io/error_message.h"
#include "cli/io/output_file.h"
#include "cli/scoped.h"

/* Of the trainer: the program weft-train, which has BLAS. */
static int measure_train(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                         struct weft_text *text, struct weft_json *json) {
  (void)arguments, (void)text, (void)json;
  return weft_cli_process_become(cli, "weft-train");
}

static const struct benchmark {
  const char *name;
  const char *summary;
  weft_bench_measurement *measure;
  bool on_request; /* takes longer, and is not part of `weft bench` without a name */
} benchmarks[] = {
    {"plan", "time and memory of gen, lower and verify per action", weft_bench_cmd_plan, false},
    {"plan-search", "time that the planner needs to match published schedules",
     weft_bench_cmd_plan_search, true},
    {"sim", "time and memory of the simulation per action", weft_bench_cmd_sim, false},
    {"run", "overhead of the runtime per action, and measured against simulated time",
     weft_bench_cmd_run, false},
    {"train", "the trainer on one rank and on two, against bare matrix products and its simulation",
     measure_train, true},
    {"mpi", "messages against bare MPI, and steps of two processes against two threads",
     weft_bench_cmd_mpi, true},
    {"gpu", "the runtime on a GPU, against bare calls of the driver and its simulation",
     weft_bench_cmd_gpu, true},
    {"gpu-blocks", "steps of eight MLP blocks on a GPU, to be compared with another program",
     weft_bench_cmd_gpu_blocks, true},
};

static int list(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  struct weft_text text = {.allocator = cli->allocator};
  for (size_t i = 0; i < WEFT_ARRAY_LENGTH(benchmarks); i++) {
    weft_text_addf(&text, "%-11s %s\n", benchmarks[i].name, benchmarks[i].summary);
  }
  const int status = weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
  weft_text_finish(&text);
  return status;
}

static int run_all(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                   struct weft_text *text, struct weft_json *json) {
  int status = WEFT_CLI_OK;
  for (size_t i = 0; i < WEFT_ARRAY_LENGTH(benchmarks) && status == WEFT_CLI_OK; i++) {
    if (benchmarks[i].on_request) {
      continue;
    }
    if (json == NULL && i > 0) {
      weft_text_add(text, "\n");
    }
    status = benchmarks[i].measure(cli, arguments, text, json);
  }
  return status;
}

static int measure_all(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       struct weft_text *text, struct weft_json *json) {
  if (json == NULL) {
    return run_all(cli, arguments, text, NULL);
  }
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "schema", "weft-bench/1");
  weft_json_open(json, "benchmarks", '[');
  const int status = run_all(cli, arguments, text, json);
  weft_json_close(json, ']');
  weft_json_close(json, '}');
  return status;
}

int weft_bench_report(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                      weft_bench_measurement *measure) {
  assert(cli != NULL && arguments != NULL);
  struct weft_text text = {.allocator = cli->allocator};
  struct weft_json json = {.text = &text};
  const bool as_json = arguments->given[WEFT_CLI_OPTION_JSON];
  int status = measure(cli, arguments, &text, as_json ? &json : NULL);
  if (status == WEFT_CLI_OK) {
    if (as_json) {
      weft_json_finish(&json);
    }
    status = weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
  }
  weft_text_finish(&text);
  return status;
}

static int fail_name(const struct weft_cli *cli, const char *name) {
  char hint[80];
  struct weft_cli_suggestion suggestion;
  weft_cli_suggestion_init(&suggestion, name, strlen(name));
  for (size_t i = 0; i < WEFT_ARRAY_LENGTH(benchmarks); i++) {
    weft_cli_suggestion_offer(&suggestion, benchmarks[i].name, strlen(benchmarks[i].name));
  }
  (void)snprintf(hint, sizeof hint, "did you mean '%s'?",
                 suggestion.best != NULL ? suggestion.best : "");
  return weft_cli_usage(cli,
                        suggestion.best != NULL ? hint : "'weft bench --list' lists the benchmarks",
                        "unknown benchmark '%s': expected plan, plan-search, sim, run, "
                        "train, mpi, gpu or gpu-blocks",
                        weft_cli_quoted(name).text);
}

/* The model is for training, most of it for that on GPUs; blocks have a width, too. */
static int refuse_model(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  static const enum weft_cli_option_id options[] = {
      WEFT_CLI_OPTION_DEVICE,     WEFT_CLI_OPTION_MODEL, WEFT_CLI_OPTION_LAYERS,
      WEFT_CLI_OPTION_DIM,        WEFT_CLI_OPTION_HEADS, WEFT_CLI_OPTION_CONTEXT,
      WEFT_CLI_OPTION_VOCABULARY, WEFT_CLI_OPTION_BATCH};
  const char *name = arguments->operand_count > 0 ? arguments->operands[0] : "";
  const bool trains = strcmp(name, "train") == 0, blocks = strcmp(name, "gpu-blocks") == 0;
  for (size_t i = 0; i < WEFT_ARRAY_LENGTH(options); i++) {
    const bool is_device = options[i] == WEFT_CLI_OPTION_DEVICE;
    const bool is_of_host =
        is_device || options[i] == WEFT_CLI_OPTION_LAYERS || options[i] == WEFT_CLI_OPTION_DIM;
    if (arguments->given[options[i]] && !(blocks && options[i] == WEFT_CLI_OPTION_DIM) &&
        !(trains && (is_of_host || weft_cli_is_on_gpus(arguments)))) {
      return weft_cli_usage(cli, "weft bench train --device cuda",
                            "--%s has no effect: it is for the benchmark train%s",
                            weft_cli_option_at(options[i])->name, is_of_host ? "" : " on GPUs");
    }
  }
  return WEFT_CLI_OK;
}

static int bench(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  const struct benchmark *benchmark = NULL;
  if (arguments->given[WEFT_CLI_OPTION_LIST]) {
    return list(cli, arguments);
  }
  if (arguments->given[WEFT_CLI_OPTION_ACTIONS] && !arguments->given[WEFT_CLI_OPTION_LARGE]) {
    return weft_cli_usage(cli, "add --large", "--actions is the size of the large programs");
  }
  WEFT_CLI_TRY(refuse_model(cli, arguments));
  for (size_t i = 0; i < WEFT_ARRAY_LENGTH(benchmarks) && arguments->operand_count > 0; i++) {
    if (strcmp(arguments->operands[0], benchmarks[i].name) == 0) {
      benchmark = &benchmarks[i];
    }
  }
  if (arguments->operand_count > 0 && benchmark == NULL) {
    return fail_name(cli, arguments->operands[0]);
  }
  if (benchmark != NULL && benchmark->measure == weft_bench_cmd_mpi &&
      weft_launch_info().launcher != NULL) {
    return weft_bench_mpi_job(cli, arguments);
  }
  return weft_bench_report(cli, arguments, benchmark != NULL ? benchmark->measure : measure_all);
}

int weft_bench_run(const struct weft_cli *cli, int argc, char **argv) {
  assert(cli != NULL);
  static const struct weft_cli_handler handlers[] = {{"bench", bench}};
  static const struct weft_cli_program program = {.name = "weft-bench",
                                                  .summary = "The benchmarks of Weft.",
                                                  .handlers = handlers,
                                                  .handler_count = WEFT_ARRAY_LENGTH(handlers)};
  return weft_cli_run(cli, &program, argc, argv);
}
