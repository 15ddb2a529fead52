/* `weft compare`: every schedule for a shape, simulated and ranked.
 *
 * Costs are of a stage, as everywhere, when v is given or the file has one entry
 * per stage. Otherwise schedules with different v cut the same model into more or
 * fewer stages: costs are then those of a rank's share of the model, and one of
 * its v stages takes 1/v of them. The simulation uses the undivided costs, with
 * transfers v times as long, and divides the result by v: so times that are
 * integers stay integers. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/args/cost_options.h"
#include "cli/cmd/commands.h"
#include "cli/io/error_message.h"
#include "cli/io/output_file.h"
#include "cli/report/compare_report.h"
#include "cli/report/sim_report.h"

struct compare_run {
  const struct weft_cli *cli;
  struct weft_cli_costs costs;
  struct weft_hop_costs hop; /* as given */
  struct weft_cli_comparison *comparison;
};

/* ---- One schedule ---- */

static void record(struct compare_run *run, const struct weft_simulation *simulation,
                   const struct weft_schedule_info *info, size_t order, uint32_t v) {
  struct weft_cli_comparison *comparison = run->comparison;
  const double scale = comparison->per_stage ? 1 : v;
  const uint32_t p = simulation->program->rank_count;
  struct weft_cli_entry entry = {.info = info,
                                 .v = v,
                                 .order = order,
                                 .makespan = simulation->makespan / scale,
                                 .span = simulation->span / scale,
                                 .bubble_ratio = simulation->bubble_ratio,
                                 .peak_activation = simulation->peak_activation / scale};
  for (uint32_t rank = 0; rank < p; rank++) {
    const struct weft_rank_times *times = &simulation->ranks[rank];
    entry.busy += times->busy / scale / p;
    for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES; cause++) {
      entry.idle_by_cause[cause] += times->idle_by_cause[cause] / scale / p;
    }
    if (times->peak_memory / scale > entry.peak_memory) {
      entry.peak_memory = times->peak_memory / scale;
    }
  }
  entry.fits =
      !comparison->limited || !weft_cli_is_over(entry.peak_memory, comparison->memory_limit);
  comparison->entries[comparison->entry_count++] = entry;
}

static void leave_out(struct weft_cli_comparison *comparison, const struct weft_schedule_info *info,
                      uint32_t v, const char *why) {
  struct weft_cli_omission *omission = &comparison->omissions[comparison->omission_count++];
  omission->info = info;
  omission->v = v;
  (void)snprintf(omission->why, sizeof omission->why, "%s", why);
}

static int simulate(struct compare_run *run, const struct weft_program *table,
                    const struct weft_schedule_info *info, size_t order, uint32_t v) {
  struct weft_cli_costs *costs = &run->costs;
  const double scale = run->comparison->per_stage ? 1 : v;
  costs->costs->hop = run->hop;
  costs->costs->hop.latency *= scale;
  costs->costs->hop.bytes *= scale;
  const int status = weft_cli_costs_fit(run->cli, costs, table, info->name);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  struct weft_simulation *simulation;
  struct weft_error error;
  costs->options.no_events = true;
  if (weft_simulate(run->cli->allocator, costs->program, costs->costs, &costs->options, &simulation,
                    &error) < 0) {
    return weft_cli_fail(run->cli, info->name, &error);
  }
  record(run, simulation, info, order, v);
  weft_simulation_destroy(simulation);
  return WEFT_CLI_OK;
}

static int try_schedule(struct compare_run *run, size_t order, uint32_t v) {
  const struct weft_schedule_info *info = weft_schedule_at(order);
  struct weft_cli_comparison *comparison = run->comparison;
  struct weft_shape shape = comparison->shape;
  struct weft_program *table = NULL;
  struct weft_error error;
  if (comparison->entry_count + comparison->omission_count == WEFT_CLI_ENTRIES_MAX) {
    return WEFT_CLI_OK;
  }
  shape.stages_per_rank = v;
  const enum weft_status made =
      weft_generate(run->cli->allocator, info->name, &shape, &table, &error);
  if (made == WEFT_ERR_USAGE || made == WEFT_ERR_LIMIT) {
    leave_out(comparison, info, v, error.message);
    return WEFT_CLI_OK;
  }
  if (made < 0) {
    return weft_cli_fail(run->cli, NULL, &error);
  }
  const int status = simulate(run, table, info, order, v);
  weft_program_destroy(table);
  return status;
}

/* ---- All schedules ---- */

/* With v given, that one; else 1, 2 and 4 as far as the recipe goes. */
static int try_values(struct compare_run *run, size_t order) {
  const struct weft_schedule_info *info = weft_schedule_at(order);
  if (run->comparison->shape.stages_per_rank != 0) {
    return try_schedule(run, order, run->comparison->shape.stages_per_rank);
  }
  int status = WEFT_CLI_OK;
  for (uint32_t v = 1; v <= 4 && status == WEFT_CLI_OK; v *= 2) {
    if (v >= info->stages_per_rank_min && v <= info->stages_per_rank_max) {
      status = try_schedule(run, order, v);
    }
  }
  return status;
}

static int try_all(struct compare_run *run) {
  int status = WEFT_CLI_OK;
  for (size_t order = 0; order < weft_schedule_count() && status == WEFT_CLI_OK; order++) {
    const struct weft_schedule_info *info = weft_schedule_at(order);
    if (info->trains && !info->fixed) {
      status = try_values(run, order);
    }
  }
  if (status == WEFT_CLI_OK && run->comparison->entry_count == 0) {
    const struct weft_cli_omission *first = &run->comparison->omissions[0];
    return weft_cli_usage(run->cli, "choose another shape; 'weft gen --list' has the limits",
                          "no schedule has this shape; %s: %s", first->info->name, first->why);
  }
  return status;
}

/* Costs of each stage fit only the v that makes as many stages. */
static int fix_stages(const struct weft_cli *cli, const struct weft_costs *costs,
                      struct weft_cli_comparison *comparison) {
  struct weft_shape *shape = &comparison->shape;
  comparison->per_stage = costs->stage_count != 1 || shape->stages_per_rank != 0;
  if (costs->stage_count == 1) {
    return WEFT_CLI_OK;
  }
  if (costs->stage_count % shape->ranks != 0 ||
      (shape->stages_per_rank != 0 &&
       costs->stage_count != (uint64_t)shape->ranks * shape->stages_per_rank)) {
    char v[32] = "v";
    if (shape->stages_per_rank != 0) {
      (void)snprintf(v, sizeof v, "%" PRIu32, shape->stages_per_rank);
    }
    return weft_cli_usage(cli, "give one entry that serves all stages, or one for each stage",
                          "the costs have %" PRIu32 " entries in stages, which is not %" PRIu32
                          " ranks with %s stages each",
                          costs->stage_count, shape->ranks, v);
  }
  shape->stages_per_rank = costs->stage_count / shape->ranks;
  return WEFT_CLI_OK;
}

/* ---- The command ---- */

static int read_shape(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                      struct weft_shape *shape) {
  static const char example[] = "for example: weft compare -p 4 -m 8";
  if (!arguments->given[WEFT_CLI_OPTION_RANKS]) {
    return weft_cli_usage(cli, example, "compare needs -p, the number of ranks");
  }
  if (!arguments->given[WEFT_CLI_OPTION_MICROBATCHES]) {
    return weft_cli_usage(cli, example, "compare needs -m, the number of microbatches");
  }
  /* The parser keeps numbers within 32 bits. */
  *shape = (struct weft_shape){
      .ranks = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_RANKS, 0),
      .stages_per_rank = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_STAGES_PER_RANK, 0),
      .microbatches = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_MICROBATCHES, 0)};
  return WEFT_CLI_OK;
}

static int write_report(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                        const struct weft_cli_comparison *comparison) {
  struct weft_text text = {.allocator = cli->allocator};
  if (arguments->given[WEFT_CLI_OPTION_JSON]) {
    weft_cli_compare_json(&text, comparison);
  } else {
    weft_cli_compare_text(&text, comparison);
  }
  const int status = weft_cli_write_output(
      cli, arguments, &text, comparison->fitting > 0 ? WEFT_CLI_OK : WEFT_CLI_FOUND_BAD);
  weft_text_finish(&text);
  return status;
}

static int compare(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                   struct weft_cli_comparison *comparison) {
  struct compare_run run = {.cli = cli, .comparison = comparison};
  int status = weft_cli_costs_read(cli, arguments, &run.costs);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  run.hop = run.costs.costs->hop;
  comparison->unit = run.costs.costs->unit;
  comparison->limited = arguments->given[WEFT_CLI_OPTION_MEMORY];
  comparison->memory_limit = weft_cli_real(arguments, WEFT_CLI_OPTION_MEMORY, 0);
  status = fix_stages(cli, run.costs.costs, comparison);
  if (status == WEFT_CLI_OK) {
    status = try_all(&run);
  }
  if (status == WEFT_CLI_OK) {
    weft_cli_comparison_sort(comparison);
    status = write_report(cli, arguments, comparison);
  }
  weft_cli_costs_finish(&run.costs);
  return status;
}

int weft_cli_cmd_compare(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  struct weft_cli_comparison comparison = {.entry_count = 0};
  const int status = read_shape(cli, arguments, &comparison.shape);
  return status != WEFT_CLI_OK ? status : compare(cli, arguments, &comparison);
}
