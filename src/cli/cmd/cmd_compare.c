/* `weft compare`: every schedule for a shape, and tables from files, simulated and ranked. Costs are
 * of a rank's share of the model by default, so that schedules with different v cut the same model
 * into more or fewer stages. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "cli/args/cost_options.h"
#include "cli/cmd/commands.h"
#include "cli/io/error_message.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/report/compare_report.h"
#include "cli/report/sim_report.h"
#include "cli/scoped.h"

struct compare_run {
  const struct weft_cli *cli;
  struct weft_cli_costs costs;
  const struct weft_cli_arguments *arguments;
  struct weft_program *files[WEFT_CLI_OPERANDS_MAX]; /* [operand_count] */
  struct weft_graph *graph; /* of the stages, held; NULL: chains of any length */
  struct weft_cli_comparison *comparison;
};

static double stages_per_rank(const struct weft_program *program) {
  return (double)program->stage_count / program->rank_count;
}

/* ---- One schedule or file ---- */

static void record(struct compare_run *run, const struct weft_simulation *simulation,
                   struct weft_cli_entry entry) {
  struct weft_cli_comparison *comparison = run->comparison;
  const uint32_t p = simulation->program->rank_count;
  entry.makespan = simulation->makespan;
  entry.span = simulation->span;
  entry.bubble_ratio = simulation->bubble_ratio;
  entry.peak_activation = simulation->peak_activation;
  entry.order = comparison->entry_count;
  for (uint32_t rank = 0; rank < p; rank++) {
    const struct weft_rank_times *times = &simulation->ranks[rank];
    entry.busy += times->busy / p;
    for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES; cause++) {
      entry.idle_by_cause[cause] += times->idle_by_cause[cause] / p;
    }
    if (times->peak_memory > entry.peak_memory) {
      entry.peak_memory = times->peak_memory;
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

/* `entry` has the name and where it comes from. */
static int simulate(struct compare_run *run, const struct weft_program *table,
                    struct weft_cli_entry entry) {
  struct weft_cli_costs *costs = &run->costs;
  entry.v = stages_per_rank(table);
  WEFT_CLI_TRY(weft_cli_costs_fit(run->cli, costs, table, entry.name));
  WEFT_SCOPED(weft_simulation) simulation = NULL;
  struct weft_error error;
  costs->options.no_events = true;
  WEFT_CLI_TRY(weft_cli_result(run->cli, entry.name,
                               weft_simulate(run->cli->allocator, costs->program, costs->costs,
                                             &costs->options, &simulation, &error),
                               &error));
  record(run, simulation, entry);
  return WEFT_CLI_OK;
}

static int try_schedule(struct compare_run *run, size_t order, uint32_t v) {
  const struct weft_schedule_info *info = weft_schedule_at(order);
  struct weft_cli_comparison *comparison = run->comparison;
  struct weft_shape shape = comparison->shape;
  WEFT_SCOPED(weft_program) table = NULL;
  struct weft_error error;
  if (comparison->entry_count + comparison->omission_count == WEFT_CLI_ENTRIES_MAX) {
    return WEFT_CLI_OK;
  }
  shape.stages_per_rank = v;
  const enum weft_status made =
      weft_generate_graph(run->cli->allocator, info->name, &shape, run->graph, &table, &error);
  if (made == WEFT_ERR_USAGE || made == WEFT_ERR_LIMIT) {
    leave_out(comparison, info, v, error.message);
    return WEFT_CLI_OK;
  }
  WEFT_CLI_TRY(weft_cli_result(run->cli, NULL, made, &error));
  return simulate(
      run, table,
      (struct weft_cli_entry){.name = info->name,
                              .one_v = info->stages_per_rank_min == info->stages_per_rank_max});
}

/* ---- All schedules ---- */

/* Whether one of the first `end` files has v stages per rank. */
static bool has_file_of(const struct compare_run *run, double v, unsigned end) {
  for (unsigned k = 0; k < end; k++) {
    if (stages_per_rank(run->files[k]) == v) {
      return true;
    }
  }
  return false;
}

static int try_value(struct compare_run *run, size_t order, uint32_t v) {
  const struct weft_schedule_info *info = weft_schedule_at(order);
  return v < info->stages_per_rank_min || v > info->stages_per_rank_max
             ? WEFT_CLI_OK
             : try_schedule(run, order, v);
}

/* With v given, that one; else 1, 2, 4 and those of the files, as far as the recipe goes. */
static int try_values(struct compare_run *run, size_t order) {
  if (run->comparison->shape.stages_per_rank != 0) {
    return try_schedule(run, order, run->comparison->shape.stages_per_rank);
  }
  for (uint32_t v = 1; v <= 4; v *= 2) {
    WEFT_CLI_TRY(try_value(run, order, v));
  }
  for (unsigned k = 0; k < run->arguments->operand_count; k++) {
    const struct weft_program *file = run->files[k];
    const uint32_t v = file->stage_count / file->rank_count;
    if (file->stage_count % file->rank_count == 0 && v != 1 && v != 2 && v != 4 &&
        !has_file_of(run, v, k)) {
      WEFT_CLI_TRY(try_value(run, order, v));
    }
  }
  return WEFT_CLI_OK;
}

static int try_all(struct compare_run *run) {
  for (unsigned k = 0; k < run->arguments->operand_count; k++) {
    const char *name = weft_cli_input_name(run->arguments->operands[k]);
    WEFT_CLI_TRY(simulate(run, run->files[k],
                          (struct weft_cli_entry){.name = name, .file = true, .one_v = true}));
  }
  /* No named schedule has ranks with different numbers of stages. */
  const bool uneven = run->graph != NULL && run->comparison->shape.stages_per_rank == 0;
  for (size_t order = 0; order < weft_schedule_count(); order++) {
    const struct weft_schedule_info *info = weft_schedule_at(order);
    if (info->trains && !info->fixed && !uneven) {
      WEFT_CLI_TRY(try_values(run, order));
    }
  }
  if (run->comparison->entry_count == 0) {
    const struct weft_cli_omission *first = &run->comparison->omissions[0];
    return weft_cli_usage(run->cli, "choose another shape; 'weft gen --list' has the limits",
                          "no schedule has this shape; %s: %s", first->info->name, first->why);
  }
  return WEFT_CLI_OK;
}

struct v_text {
  char text[16];
};

/* The number of stages per rank, for messages. */
static struct v_text v_text(const struct weft_shape *shape) {
  struct v_text v = {"v"};
  if (shape->stages_per_rank != 0) {
    (void)snprintf(v.text, sizeof v.text, "%" PRIu32, shape->stages_per_rank);
  }
  return v;
}

/* The stages of a graph are as many as they are: the shape follows. With files alone v may stay 0, where ranks have different numbers of stages. */
static int fix_graph(struct compare_run *run) {
  const struct weft_cli_arguments *arguments = run->arguments;
  struct weft_shape *shape = &run->comparison->shape;
  if (arguments->operand_count == 0) {
    WEFT_CLI_TRY(weft_cli_read_graph(run->cli, arguments, &run->graph));
  } else if (arguments->given[WEFT_CLI_OPTION_GRAPH] ||
             !weft_graph_is_chain(run->files[0]->graph)) {
    run->graph = weft_graph_hold(run->files[0]->graph);
  }
  if (run->graph == NULL) {
    return WEFT_CLI_OK;
  }
  const uint32_t stages = run->graph->stage_count, v = shape->stages_per_rank;
  if (shape->ranks == 0) {
    shape->ranks = v > 1 && stages % v == 0 ? stages / v : stages;
  }
  if (v == 0 && stages % shape->ranks == 0) {
    shape->stages_per_rank = stages / shape->ranks;
  } else if (arguments->operand_count == 0 && stages != (uint64_t)shape->ranks * v) {
    return weft_cli_usage(run->cli,
                          "leave -p and -v out: then there are as many ranks as stages; 'weft plan "
                          "--graph' takes any number of ranks",
                          "the graph has %" PRIu32 " stages, which is not %" PRIu32
                          " ranks with %s stages each",
                          stages, shape->ranks, v_text(shape).text);
  }
  return WEFT_CLI_OK;
}

/* Costs of each stage fit only the v that makes as many stages. */
static int fix_stages(const struct weft_cli *cli, const struct weft_costs *costs,
                      const struct weft_graph *graph, struct weft_shape *shape) {
  const bool uneven = graph != NULL && shape->stages_per_rank == 0;
  if (costs->stage_count == 1 || uneven) {
    return WEFT_CLI_OK;
  }
  if (costs->stage_count % shape->ranks != 0 ||
      (shape->stages_per_rank != 0 &&
       costs->stage_count != (uint64_t)shape->ranks * shape->stages_per_rank)) {
    return weft_cli_usage(cli, "give one entry that serves all stages, or one for each stage",
                          "the costs have %" PRIu32 " entries in stages, which is not %" PRIu32
                          " ranks with %s stages each",
                          costs->stage_count, shape->ranks, v_text(shape).text);
  }
  shape->stages_per_rank = costs->stage_count / shape->ranks;
  return WEFT_CLI_OK;
}

/* ---- Files ---- */

/* Another number of ranks or microbatches, or another graph, is other work, and a forward pass is
 * less. */
static int check_file(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                      unsigned index, struct weft_program *const *files,
                      const struct weft_shape *shape) {
  const struct weft_program *file = files[index], *first = files[0];
  char quoted[256];
  (void)weft_cli_quote(quoted, sizeof quoted, weft_cli_input_name(arguments->operands[index]));
  if (file->rank_count != shape->ranks || file->microbatch_count != shape->microbatches) {
    return weft_cli_usage(
        cli,
        index == 0 ? "leave -p and -m out: the file has them"
                   : "schedules are comparable when they do the same work on as many ranks",
        "%s has %" PRIu32 " ranks and %" PRIu32 " microbatches, not %" PRIu32 " and %" PRIu32
        " as %s",
        quoted, file->rank_count, file->microbatch_count, shape->ranks, shape->microbatches,
        index == 0 ? "asked for" : "the first file");
  }
  if (shape->stages_per_rank != 0 &&
      file->stage_count != (uint64_t)shape->ranks * shape->stages_per_rank) {
    return weft_cli_usage(cli, "leave -v out: then schedules with any v are compared",
                          "%s has %" PRIu32 " stages, which is not %" PRIu32 " ranks with %" PRIu32
                          " stages each",
                          quoted, file->stage_count, shape->ranks, shape->stages_per_rank);
  }
  if (!weft_graph_equal(file->graph, first->graph)) {
    return weft_cli_usage(cli, "'weft diff' lists their edges",
                          "%s has other edges between stages than the first file", quoted);
  }
  for (uint64_t k = 0; k < file->action_count; k++) {
    if (file->actions[k].op == WEFT_OP_B || file->actions[k].op == WEFT_OP_I) {
      return WEFT_CLI_OK;
    }
  }
  return weft_cli_usage(cli, "'weft sim' predicts its time",
                        "%s has no backward; compare ranks schedules that train", quoted);
}

static int read_file(struct compare_run *run, unsigned index) {
  const struct weft_cli *cli = run->cli;
  const char *path = run->arguments->operands[index];
  struct weft_shape *shape = &run->comparison->shape;
  for (unsigned k = 0; k < index; k++) {
    if (weft_cli_is_standard_input(path) &&
        weft_cli_is_standard_input(run->arguments->operands[k])) {
      return weft_cli_usage(cli, "give the others as files",
                            "standard input can be read only once");
    }
  }
  WEFT_CLI_TRY(weft_cli_read_operand(cli, run->arguments, index, &run->files[index]));
  WEFT_CLI_TRY(weft_cli_check_valid(cli, run->files[index], weft_cli_input_name(path)));
  const struct weft_program *file = run->files[index];
  shape->ranks = shape->ranks == 0 ? file->rank_count : shape->ranks;
  shape->microbatches = shape->microbatches == 0 ? file->microbatch_count : shape->microbatches;
  return check_file(cli, run->arguments, index, run->files, shape);
}

/* ---- The command ---- */

/* What is not given is 0 and taken from the first file, or from the graph. */
static int read_shape(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                      struct weft_shape *shape) {
  static const char example[] = "for example: weft compare -p 4 -m 8, or weft compare FILE";
  if (!arguments->given[WEFT_CLI_OPTION_RANKS] && !arguments->given[WEFT_CLI_OPTION_GRAPH] &&
      arguments->operand_count == 0) {
    return weft_cli_usage(cli, example, "compare needs -p, the number of ranks");
  }
  if (!arguments->given[WEFT_CLI_OPTION_MICROBATCHES] && arguments->operand_count == 0) {
    return weft_cli_usage(cli, example, "compare needs -m, the number of microbatches");
  }
  /* The parser keeps numbers within 32 bits. */
  *shape = (struct weft_shape){
      .ranks = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_RANKS, 0),
      .stages_per_rank = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_STAGES_PER_RANK, 0),
      .microbatches = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_MICROBATCHES, 0)};
  return WEFT_CLI_OK;
}

static int compare(struct compare_run *run) {
  const struct weft_cli_arguments *arguments = run->arguments;
  struct weft_cli_comparison *comparison = run->comparison;
  WEFT_SCOPED_TEXT text = {.allocator = run->cli->allocator};
  for (unsigned k = 0; k < arguments->operand_count; k++) {
    WEFT_CLI_TRY(read_file(run, k));
  }
  comparison->costs = run->costs.costs;
  comparison->limited = arguments->given[WEFT_CLI_OPTION_MEMORY];
  comparison->memory_limit = weft_cli_real(arguments, WEFT_CLI_OPTION_MEMORY, 0);
  WEFT_CLI_TRY(fix_graph(run));
  WEFT_CLI_TRY(fix_stages(run->cli, run->costs.costs, run->graph, &comparison->shape));
  comparison->graph = run->graph;
  WEFT_CLI_TRY(try_all(run));
  weft_cli_comparison_sort(comparison);
  (arguments->given[WEFT_CLI_OPTION_JSON] ? weft_cli_compare_json : weft_cli_compare_text)(
      &text, comparison);
  return weft_cli_write_output(run->cli, arguments, &text,
                               comparison->fitting > 0 ? WEFT_CLI_OK : WEFT_CLI_FOUND_BAD);
}

int weft_cli_cmd_compare(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  struct weft_cli_comparison comparison = {.entry_count = 0};
  struct compare_run run = {.cli = cli, .arguments = arguments, .comparison = &comparison};
  WEFT_CLI_TRY(read_shape(cli, arguments, &comparison.shape));
  WEFT_CLI_TRY(weft_cli_costs_read(cli, arguments, &run.costs));
  const int status = compare(&run);
  weft_cli_costs_finish(&run.costs);
  weft_graph_destroy(run.graph);
  for (unsigned k = 0; k < arguments->operand_count; k++) {
    weft_program_destroy(run.files[k]);
  }
  return status;
}
