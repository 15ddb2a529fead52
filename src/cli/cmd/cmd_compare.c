/* `weft compare`: every schedule for a shape, simulated and ranked.
 *
 * Costs are of a stage, as everywhere, when v is given or the file has one entry
 * per stage. Otherwise schedules with different v cut the same model into more or
 * fewer stages: to be fair, costs are those of a rank's whole share then, and one
 * of its v stages takes 1/v of them. Simulated is the other way round, with
 * whole stages and transfers v times as long, and the result is divided by v:
 * so times stay whole where they were. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/args/cost_options.h"
#include "cli/cmd/commands.h"
#include "cli/io/error_message.h"
#include "cli/io/output_file.h"
#include "cli/report/compare_report.h"
#include "cli/report/sim_report.h"

struct contest {
  const struct weft_cli *cli;
  struct weft_cli_costs costs;
  struct weft_hop_costs hop; /* as given */
  struct weft_cli_ranking *ranking;
};

/* ---- One schedule ---- */

static void record(struct contest *contest, const struct weft_simulation *simulation,
                   const struct weft_schedule_info *info, size_t order, uint32_t v) {
  struct weft_cli_ranking *ranking = contest->ranking;
  const double scale = ranking->per_stage ? 1 : v;
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
  entry.fits = !ranking->limited || !weft_cli_is_over(entry.peak_memory, ranking->memory_limit);
  ranking->entries[ranking->entry_count++] = entry;
}

static void leave_out(struct weft_cli_ranking *ranking, const struct weft_schedule_info *info,
                      uint32_t v, const char *why) {
  struct weft_cli_omission *omission = &ranking->omissions[ranking->omission_count++];
  omission->info = info;
  omission->v = v;
  (void)snprintf(omission->why, sizeof omission->why, "%s", why);
}

static int simulate(struct contest *contest, const struct weft_program *table,
                    const struct weft_schedule_info *info, size_t order, uint32_t v) {
  struct weft_cli_costs *costs = &contest->costs;
  const double scale = contest->ranking->per_stage ? 1 : v;
  costs->costs->hop = contest->hop;
  costs->costs->hop.latency *= scale;
  costs->costs->hop.bytes *= scale;
  const int status = weft_cli_costs_fit(contest->cli, costs, table, info->name);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  struct weft_simulation *simulation;
  struct weft_error error;
  costs->options.no_events = true;
  if (weft_simulate(contest->cli->allocator, costs->program, costs->costs, &costs->options,
                    &simulation, &error) < 0) {
    return weft_cli_fail(contest->cli, info->name, &error);
  }
  record(contest, simulation, info, order, v);
  weft_simulation_destroy(simulation);
  return WEFT_CLI_OK;
}

static int try_schedule(struct contest *contest, size_t order, uint32_t v) {
  const struct weft_schedule_info *info = weft_schedule_at(order);
  struct weft_cli_ranking *ranking = contest->ranking;
  struct weft_shape shape = ranking->shape;
  struct weft_program *table = NULL;
  struct weft_error error;
  if (ranking->entry_count + ranking->omission_count == WEFT_CLI_ENTRIES_MAX) {
    return WEFT_CLI_OK;
  }
  shape.stages_per_rank = v;
  const enum weft_status made =
      weft_generate(contest->cli->allocator, info->name, &shape, &table, &error);
  if (made == WEFT_ERR_USAGE || made == WEFT_ERR_LIMIT) {
    leave_out(ranking, info, v, error.message);
    return WEFT_CLI_OK;
  }
  if (made < 0) {
    return weft_cli_fail(contest->cli, NULL, &error);
  }
  const int status = simulate(contest, table, info, order, v);
  weft_program_destroy(table);
  return status;
}

/* ---- All schedules ---- */

/* With v given, that one; else 1, 2 and 4 as far as the recipe goes. */
static int try_values(struct contest *contest, size_t order) {
  const struct weft_schedule_info *info = weft_schedule_at(order);
  if (contest->ranking->shape.stages_per_rank != 0) {
    return try_schedule(contest, order, contest->ranking->shape.stages_per_rank);
  }
  int status = WEFT_CLI_OK;
  for (uint32_t v = 1; v <= 4 && status == WEFT_CLI_OK; v *= 2) {
    if (v >= info->stages_per_rank_min && v <= info->stages_per_rank_max) {
      status = try_schedule(contest, order, v);
    }
  }
  return status;
}

static int try_all(struct contest *contest) {
  int status = WEFT_CLI_OK;
  for (size_t order = 0; order < weft_schedule_count() && status == WEFT_CLI_OK; order++) {
    const struct weft_schedule_info *info = weft_schedule_at(order);
    if (info->trains && !info->fixed) {
      status = try_values(contest, order);
    }
  }
  if (status == WEFT_CLI_OK && contest->ranking->entry_count == 0) {
    const struct weft_cli_omission *first = &contest->ranking->omissions[0];
    return weft_cli_usage(contest->cli, "choose another shape; 'weft gen --list' has the limits",
                          "no schedule has this shape; %s: %s", first->info->name, first->why);
  }
  return status;
}

/* Costs of each stage fit only the v that makes as many stages. */
static int fix_stages(const struct weft_cli *cli, const struct weft_costs *costs,
                      struct weft_cli_ranking *ranking) {
  struct weft_shape *shape = &ranking->shape;
  ranking->per_stage = costs->stage_count != 1 || shape->stages_per_rank != 0;
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

static int deliver(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                   const struct weft_cli_ranking *ranking) {
  struct weft_text text = {.allocator = cli->allocator};
  if (arguments->given[WEFT_CLI_OPTION_JSON]) {
    weft_cli_ranking_add_document(&text, ranking);
  } else {
    weft_cli_ranking_add(&text, ranking);
  }
  const int status = weft_cli_deliver(cli, arguments, &text,
                                      ranking->fitting > 0 ? WEFT_CLI_OK : WEFT_CLI_FOUND_BAD);
  weft_text_finish(&text);
  return status;
}

static int compare(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                   struct weft_cli_ranking *ranking) {
  struct contest contest = {.cli = cli, .ranking = ranking};
  int status = weft_cli_costs_read(cli, arguments, &contest.costs);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  contest.hop = contest.costs.costs->hop;
  ranking->unit = contest.costs.costs->unit;
  ranking->limited = arguments->given[WEFT_CLI_OPTION_MEMORY];
  ranking->memory_limit = weft_cli_real(arguments, WEFT_CLI_OPTION_MEMORY, 0);
  status = fix_stages(cli, contest.costs.costs, ranking);
  if (status == WEFT_CLI_OK) {
    status = try_all(&contest);
  }
  if (status == WEFT_CLI_OK) {
    weft_cli_ranking_sort(ranking);
    status = deliver(cli, arguments, ranking);
  }
  weft_cli_costs_finish(&contest.costs);
  return status;
}

int weft_cli_cmd_compare(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  struct weft_cli_ranking ranking = {.entry_count = 0};
  const int status = read_shape(cli, arguments, &ranking.shape);
  return status != WEFT_CLI_OK ? status : compare(cli, arguments, &ranking);
}
