/* `weft sim`: how long a table or program takes; and with --steps the untimed
 * dry run. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include <weft/inspect.h>
#include <weft/lower.h>
#include <weft/support.h>

#include "cli/args/cost_options.h"
#include "cli/cmd/commands.h"
#include "cli/cmd/validity.h"
#include "cli/io/error_message.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/io/text_columns.h"
#include "cli/report/program_json.h"
#include "cli/report/sim_report.h"

#define RUNS_DEFAULT 100

/* ---- --steps ---- */

/* As PyTorch does: SEND and RECV, and nothing else. */
static enum weft_status add_communication(const struct weft_cli *cli,
                                          const struct weft_program *table,
                                          struct weft_program **out, struct weft_error *error) {
  const struct weft_lower_options options = {.communicate = true, .unshard_window = 1};
  return weft_lower(cli->allocator, table, &options, out, error);
}

static int write_steps(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       const struct weft_program *input) {
  struct weft_program *lowered = NULL, *steps = NULL;
  struct weft_error error;
  enum weft_status result = WEFT_OK;
  if (input->level == WEFT_LEVEL_COMPUTE) {
    result = add_communication(cli, input, &lowered, &error);
  }
  if (result == WEFT_OK) {
    result = weft_dry_run(cli->allocator, lowered != NULL ? lowered : input, &steps, &error);
  }
  const int status = result < 0
                         ? weft_cli_fail(cli, weft_cli_input_name(arguments->operands[0]), &error)
                         : weft_cli_write_program(cli, arguments, steps);
  weft_program_destroy(steps);
  weft_program_destroy(lowered);
  return status;
}

/* ---- Options that do not go together ---- */

static int check_steps(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  static const enum weft_cli_option_id timed[] = {WEFT_CLI_OPTION_F,
                                                  WEFT_CLI_OPTION_B,
                                                  WEFT_CLI_OPTION_I,
                                                  WEFT_CLI_OPTION_W,
                                                  WEFT_CLI_OPTION_HOP,
                                                  WEFT_CLI_OPTION_COSTS,
                                                  WEFT_CLI_OPTION_CHANNEL,
                                                  WEFT_CLI_OPTION_SLOW,
                                                  WEFT_CLI_OPTION_JITTER,
                                                  WEFT_CLI_OPTION_RUNS,
                                                  WEFT_CLI_OPTION_SEED,
                                                  WEFT_CLI_OPTION_MEMORY,
                                                  WEFT_CLI_OPTION_CRITICAL_PATH};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(timed); k++) {
    if (arguments->given[timed[k]]) {
      return weft_cli_usage(cli, "leave one of them out",
                            "--steps is the untimed dry run, and --%s is about time",
                            weft_cli_option_at(timed[k])->name);
    }
  }
  return WEFT_CLI_OK;
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

static int find_path(const struct weft_cli *cli, struct weft_cli_sim_report *report) {
  struct weft_error error;
  uint64_t count = 0;
  const struct weft_simulation *simulation = report->simulation;
  if (weft_critical_path(cli->allocator, simulation, NULL, 0, &count, &error) < 0) {
    return weft_cli_fail(cli, report->name, &error);
  }
  report->has_path = true;
  if (count == 0) {
    return WEFT_CLI_OK;
  }
  report->path = weft_array_allocate(cli->allocator, count, sizeof report->path[0]);
  if (report->path == NULL) {
    return weft_cli_fail_memory(cli);
  }
  report->path_count = count;
  if (weft_critical_path(cli->allocator, simulation, report->path, count, &count, &error) < 0) {
    return weft_cli_fail(cli, report->name, &error);
  }
  return WEFT_CLI_OK;
}

static void release_path(const struct weft_cli *cli, struct weft_cli_sim_report *report) {
  weft_array_free(cli->allocator, report->path, report->path_count, sizeof report->path[0]);
}

/* Prints which rank needs the most, and returns the status for it. */
static int check_limit(const struct weft_cli *cli, const struct weft_cli_sim_report *report) {
  const struct weft_simulation *simulation = report->simulation;
  uint32_t most = 0, over = 0;
  for (uint32_t rank = 0; rank < simulation->program->rank_count; rank++) {
    const double memory = simulation->ranks[rank].peak_memory;
    over += weft_cli_is_over(memory, report->memory_limit) ? 1 : 0;
    most = memory > simulation->ranks[most].peak_memory ? rank : most;
  }
  if (!report->limited || over == 0) {
    return WEFT_CLI_OK;
  }
  char quoted[256], needed[40], limit[40];
  weft_cli_print(cli, "'weft compare' finds the schedules that fit",
                 "%s: rank %" PRIu32 " needs %s of memory, and the limit is %s; %" PRIu32
                 " of %" PRIu32 " ranks are over it",
                 weft_cli_quote(quoted, sizeof quoted, report->name), most,
                 weft_cli_amount(needed, sizeof needed, simulation->ranks[most].peak_memory),
                 weft_cli_amount(limit, sizeof limit, report->memory_limit), over,
                 simulation->program->rank_count);
  return WEFT_CLI_FOUND_BAD;
}

static int write_report(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                        const struct weft_cli_sim_report *report) {
  struct weft_text text = {.allocator = cli->allocator};
  if (arguments->given[WEFT_CLI_OPTION_JSON]) {
    weft_cli_sim_json(&text, report);
  } else {
    weft_cli_sim_text(&text, report);
  }
  int status = weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
  if (status == WEFT_CLI_OK) {
    status = check_limit(cli, report);
  }
  weft_text_finish(&text);
  return status;
}

/* The rest of what is asked for, once the simulation is there. */
static int complete(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                    const struct weft_cli_costs *costs, struct weft_cli_sim_report *report) {
  int status = WEFT_CLI_OK;
  if (arguments->given[WEFT_CLI_OPTION_JITTER]) {
    status = weft_cli_jitter_run(cli, costs, report->name,
                                 weft_cli_number(arguments, WEFT_CLI_OPTION_RUNS, RUNS_DEFAULT),
                                 &report->jitter);
  }
  if (status == WEFT_CLI_OK && arguments->given[WEFT_CLI_OPTION_CRITICAL_PATH]) {
    status = find_path(cli, report);
  }
  if (status == WEFT_CLI_OK) {
    status = write_report(cli, arguments, report);
  }
  release_path(cli, report);
  return status;
}

/* The totals are those of the given times; --jitter adds how they spread. */
static int predict(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                   const struct weft_cli_costs *costs, const char *name) {
  struct weft_simulation *simulation;
  struct weft_error error;
  struct weft_sim_options steady = costs->options;
  steady.jitter = 0;
  steady.no_events = !arguments->given[WEFT_CLI_OPTION_CRITICAL_PATH];
  struct weft_cli_sim_report report = {
      .name = name,
      .costs = costs->costs,
      .limited = arguments->given[WEFT_CLI_OPTION_MEMORY],
      .memory_limit = weft_cli_real(arguments, WEFT_CLI_OPTION_MEMORY, 0)};
  if (weft_simulate(cli->allocator, costs->program, costs->costs, &steady, &simulation, &error) <
      0) {
    return weft_cli_fail(cli, name, &error);
  }
  report.simulation = simulation;
  const int status =
      weft_period(cli->allocator, costs->program, costs->costs, &steady, &report.period, &error) < 0
          ? weft_cli_fail(cli, name, &error)
          : complete(cli, arguments, costs, &report);
  weft_simulation_destroy(simulation);
  return status;
}

static int simulate(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                    struct weft_cli_costs *costs) {
  const char *name = weft_cli_input_name(arguments->operands[0]);
  struct weft_program *input = NULL;
  int status = weft_cli_read_program(cli, arguments->operands[0], &input);
  if (status == WEFT_CLI_OK) {
    status = weft_cli_check_valid(cli, input, name);
  }
  if (status == WEFT_CLI_OK) {
    status = weft_cli_costs_fit(cli, costs, input, name);
  }
  if (status == WEFT_CLI_OK) {
    status = predict(cli, arguments, costs, name);
  }
  weft_program_destroy(input);
  return status;
}

/* ---- The command ---- */

static int run_steps(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  struct weft_program *input = NULL;
  int status = check_steps(cli, arguments);
  if (status == WEFT_CLI_OK) {
    status = weft_cli_read_program(cli, arguments->operands[0], &input);
  }
  if (status == WEFT_CLI_OK) {
    status = write_steps(cli, arguments, input);
  }
  weft_program_destroy(input);
  return status;
}

int weft_cli_cmd_sim(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  if (arguments->given[WEFT_CLI_OPTION_STEPS]) {
    return run_steps(cli, arguments);
  }
  struct weft_cli_costs costs;
  int status = check_jitter(cli, arguments);
  if (status == WEFT_CLI_OK) {
    status = weft_cli_costs_read(cli, arguments, &costs);
  }
  if (status == WEFT_CLI_OK) {
    status = simulate(cli, arguments, &costs);
    weft_cli_costs_finish(&costs);
  }
  return status;
}
