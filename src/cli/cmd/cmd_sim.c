/* `weft sim`: how long a table or program takes; and with --steps the untimed
 * dry run. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include <weft/lower.h>
#include <weft/support.h>

#include "cli/args/cost_options.h"
#include "cli/cmd/commands.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/io/text_columns.h"
#include "cli/report/program_json.h"
#include "cli/report/sim_report.h"
#include "cli/scoped.h"

/* ---- --jitter ---- */

static int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y ? 1 : 0;
}

/* The smallest of the makespans that `percent` of them do not exceed. */
static double percentile(const double *sorted, uint64_t count, uint64_t percent) {
  const uint64_t rank = (count * percent + 99) / 100;
  return sorted[rank > 0 ? rank - 1 : 0];
}

static void summarise_runs(double *makespans, uint64_t runs, struct weft_cli_jitter *jitter) {
  qsort(makespans, (size_t)runs, sizeof makespans[0], compare_doubles);
  double sum = 0;
  for (uint64_t k = 0; k < runs; k++) {
    sum += makespans[k];
  }
  jitter->runs = runs;
  jitter->mean = sum / (double)runs;
  jitter->least = makespans[0];
  jitter->p50 = percentile(makespans, runs, 50);
  jitter->p90 = percentile(makespans, runs, 90);
  jitter->p99 = percentile(makespans, runs, 99);
  jitter->most = makespans[runs - 1];
}

static int run_jitter(const struct weft_cli *cli, const struct weft_cli_costs *costs,
                      const char *name, uint64_t runs, struct weft_cli_jitter *jitter) {
  assert(cli != NULL && jitter != NULL);
  WEFT_SCOPED_ARENA arena = {.allocator = cli->allocator};
  double *makespans = weft_arena_allocate(&arena, runs, sizeof *makespans);
  if (makespans == NULL) {
    return weft_cli_fail_memory(cli);
  }
  struct weft_sim_options options = costs->options;
  for (uint64_t k = 0; k < runs; k++, options.seed++) {
    WEFT_CLI_CALL(cli, name,
                  weft_makespan(cli->allocator, costs->program, costs->costs, &options,
                                &makespans[k], &error));
  }
  summarise_runs(makespans, runs, jitter);
  jitter->share = options.jitter;
  return WEFT_CLI_OK;
}

#define RUNS_DEFAULT 100

/* ---- --steps ---- */

static int write_steps(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  const char *name = weft_cli_input_name(arguments->operands[0]);
  WEFT_SCOPED(weft_program) input = NULL;
  WEFT_SCOPED(weft_program) lowered = NULL;
  WEFT_SCOPED(weft_program) steps = NULL;
  WEFT_CLI_TRY(weft_cli_read_operand(cli, arguments, 0, &input));
  if (input->level == WEFT_LEVEL_COMPUTE) {
    WEFT_CLI_CALL(cli, name, weft_lower_transfers(cli->allocator, input, &lowered, &error));
  }
  const struct weft_program *program = lowered != NULL ? lowered : input;
  WEFT_CLI_CALL(cli, name, weft_dry_run(cli->allocator, program, &steps, &error));
  return weft_cli_write_program(cli, arguments, steps);
}

/* ---- Options that do not go together ---- */

static int check_steps(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  static const enum weft_cli_option_id reports[] = {WEFT_CLI_OPTION_RUNS, WEFT_CLI_OPTION_MEMORY,
                                                    WEFT_CLI_OPTION_CRITICAL_PATH};
  const char *name = weft_cli_costs_given(arguments);
  if (name == NULL) {
    name = weft_cli_first_given(arguments, reports, WEFT_ARRAY_LENGTH(reports));
  }
  return name != NULL
             ? weft_cli_usage(cli, "leave one of them out",
                              "--steps is the untimed dry run, and --%s is about time", name)
             : WEFT_CLI_OK;
}

static int check_jitter(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  const bool *given = arguments->given;
  if (!given[WEFT_CLI_OPTION_JITTER] &&
      (given[WEFT_CLI_OPTION_RUNS] || given[WEFT_CLI_OPTION_SEED])) {
    return weft_cli_usage(cli, "for example: --jitter 0.05",
                          "--%s needs --jitter, which is not given",
                          given[WEFT_CLI_OPTION_RUNS] ? "runs" : "seed");
  }
  return WEFT_CLI_OK;
}

/* ---- Simulation ---- */

static int find_path(const struct weft_cli *cli, struct weft_arena *arena,
                     struct weft_cli_sim_report *report) {
  const uint64_t most = report->simulation->event_count;
  report->has_path = true;
  report->path = weft_arena_allocate(arena, most, sizeof report->path[0]);
  WEFT_CLI_CALL(cli, report->name, weft_arena_status(arena, &error));
  WEFT_CLI_CALL(cli, report->name,
                weft_critical_path(cli->allocator, report->simulation, report->path, most,
                                   &report->path_count, &error));
  return WEFT_CLI_OK;
}

/* Prints which rank needs the most, and returns the status for it. */
static int check_limit(const struct weft_cli *cli, const struct weft_cli_sim_report *report) {
  assert(report->simulation != NULL);
  const struct weft_simulation *simulation = report->simulation;
  uint32_t most = 0, over = 0;
  for (uint32_t rank = 0; rank < simulation->program->rank_count; rank++) {
    const double memory = simulation->ranks[rank].peak_memory;
    over += weft_memory_fits(memory, report->memory_limit) ? 0 : 1;
    most = memory > simulation->ranks[most].peak_memory ? rank : most;
  }
  if (!report->limited || over == 0) {
    return WEFT_CLI_OK;
  }
  weft_cli_print(cli, "'weft compare' finds the schedules that fit",
                 "%s: rank %" PRIu32 " needs %s of memory, and the limit is %s; %" PRIu32
                 " of %" PRIu32 " ranks are over it",
                 weft_cli_quoted(report->name).text, most,
                 weft_cli_amount(simulation->ranks[most].peak_memory).text,
                 weft_cli_amount(report->memory_limit).text, over, simulation->program->rank_count);
  return WEFT_CLI_FOUND_BAD;
}

/* Everything that is asked for, once the simulation is there. */
static int write_prediction(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                            const struct weft_cli_costs *costs,
                            struct weft_cli_sim_report *report) {
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  WEFT_SCOPED_ARENA arena = {.allocator = cli->allocator};
  if (arguments->given[WEFT_CLI_OPTION_JITTER]) {
    WEFT_CLI_TRY(run_jitter(cli, costs, report->name,
                            weft_cli_number(arguments, WEFT_CLI_OPTION_RUNS, RUNS_DEFAULT),
                            &report->jitter));
  }
  if (arguments->given[WEFT_CLI_OPTION_CRITICAL_PATH]) {
    WEFT_CLI_TRY(find_path(cli, &arena, report));
  }
  (arguments->given[WEFT_CLI_OPTION_JSON] ? weft_cli_sim_json : weft_cli_sim_text)(&text, report);
  WEFT_CLI_TRY(weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK));
  return check_limit(cli, report);
}

/* The totals are those of the given times; --jitter adds how they spread. */
static int predict_step(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                        const struct weft_cli_costs *costs, const char *name) {
  WEFT_SCOPED(weft_simulation) simulation = NULL;
  struct weft_sim_options steady = costs->options;
  steady.jitter = 0;
  steady.no_events = !arguments->given[WEFT_CLI_OPTION_CRITICAL_PATH];
  WEFT_CLI_CALL(
      cli, name,
      weft_simulate(cli->allocator, costs->program, costs->costs, &steady, &simulation, &error));
  struct weft_cli_sim_report report = {
      .name = name,
      .costs = costs->costs,
      .simulation = simulation,
      .limited = arguments->given[WEFT_CLI_OPTION_MEMORY],
      .memory_limit = weft_cli_real(arguments, WEFT_CLI_OPTION_MEMORY, 0)};
  WEFT_CLI_CALL(
      cli, name,
      weft_period(cli->allocator, costs->program, costs->costs, &steady, &report.period, &error));
  return write_prediction(cli, arguments, costs, &report);
}

/* ---- The command ---- */

int weft_cli_cmd_sim(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  const char *name = weft_cli_input_name(arguments->operands[0]);
  WEFT_SCOPED(weft_program) input = NULL;
  WEFT_SCOPED_BY(weft_cli_costs_finish) struct weft_cli_costs costs = {.costs = NULL};
  if (arguments->given[WEFT_CLI_OPTION_STEPS]) {
    WEFT_CLI_TRY(check_steps(cli, arguments));
    return write_steps(cli, arguments);
  }
  WEFT_CLI_TRY(check_jitter(cli, arguments));
  WEFT_CLI_TRY(weft_cli_costs_read(cli, arguments, &costs));
  WEFT_CLI_TRY(weft_cli_read_operand(cli, arguments, 0, &input));
  WEFT_CLI_TRY(weft_cli_check_valid(cli, input, name));
  WEFT_CLI_TRY(weft_cli_costs_fit(cli, &costs, input, name));
  return predict_step(cli, arguments, &costs, name);
}
