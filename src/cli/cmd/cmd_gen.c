/* `weft gen`: the table of a named schedule, and the list of them. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/gen.h>

#include "cli/cmd/commands.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/io/text_columns.h"
#include "cli/report/program_json.h"
#include "cli/report/target_report.h"
#include "cli/scoped.h"

static int find_schedule(const struct weft_cli *cli, const char *name,
                         const struct weft_schedule_info **info) {
  struct weft_error error;
  *info = weft_schedule_find(name, &error);
  return *info != NULL ? WEFT_CLI_OK : weft_cli_fail_schedule(cli, &error);
}

/* ---- The list ---- */

/* Cells of a row, each padded to the width of its column. */
static void add_cells(struct weft_text *text, const char *const cells[7]) {
  static const size_t widths[7] = {23, 13, 10, 11, 42, 23, 0};
  for (unsigned column = 0; column < 7; column++) {
    const size_t begin = text->size;
    weft_text_add(text, cells[column] != NULL && cells[column][0] != '\0' ? cells[column] : "-");
    weft_cli_pad(text, begin, widths[column]);
  }
  weft_cli_trim(text);
  weft_text_add(text, "\n");
}

/* A schedule, and below it what it is. */
static void add_row(struct weft_text *text, const struct weft_schedule_info *info) {
  char stages[32];
  (void)snprintf(stages, sizeof stages, "%" PRIu32, info->stages_per_rank_min);
  const size_t size = strlen(stages);
  if (info->stages_per_rank_max == UINT32_MAX) {
    (void)snprintf(stages + size, sizeof stages - size, " or more");
  } else if (info->stages_per_rank_max != info->stages_per_rank_min) {
    (void)snprintf(stages + size, sizeof stages - size, " to %" PRIu32, info->stages_per_rank_max);
  }
  const char *const cells[7] = {info->name, stages,
                                !info->trains           ? "none"
                                : info->splits_backward ? "split"
                                                        : "full",
                                /* The placement of ForwardOnly is the caller's. */
                                info->trains ? weft_placement_name(info->placement) : "any",
                                info->bubble, info->peak_activation, info->paper};
  add_cells(text, cells);
  weft_text_addf(text, "    %s\n", info->summary);
}

/* All schedules, or `only` one; tables of one shape, which are for tests, come last. */
static void add_list(struct weft_text *text, const struct weft_schedule_info *only) {
  static const char *const headings[7] = {"NAME",   "STAGES/RANK", "BACKWARD", "PLACEMENT",
                                          "BUBBLE", "PEAK",        "PAPER"};
  add_cells(text, headings);
  for (unsigned fixed = 0; fixed < 2; fixed++) {
    if (fixed == 1 && only == NULL) {
      weft_text_add(text, "\nTables of one shape, for tests:\n");
    }
    for (size_t k = 0; k < weft_schedule_count(); k++) {
      const struct weft_schedule_info *info = weft_schedule_at(k);
      if (info->fixed == (fixed == 1) && (only == NULL || info == only)) {
        add_row(text, info);
      }
    }
  }
}

static void add_schedule(struct weft_json *json, const struct weft_schedule_info *info) {
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "name", info->name);
  weft_json_string(json, "summary", info->summary);
  weft_json_string(json, "placement", weft_placement_name(info->placement));
  weft_json_number(json, "stages_per_rank_min", info->stages_per_rank_min);
  weft_json_optional(json, "stages_per_rank_max", info->stages_per_rank_max != UINT32_MAX,
                     info->stages_per_rank_max);
  weft_json_number(json, "stages_per_rank_default", info->stages_per_rank_default);
  weft_json_boolean(json, "splits_backward", info->splits_backward);
  weft_json_boolean(json, "trains", info->trains);
  weft_json_boolean(json, "in_pytorch", info->in_pytorch);
  weft_json_boolean(json, "fixed", info->fixed);
  weft_json_string(json, "bubble", info->bubble);
  weft_json_string(json, "peak_activation", info->peak_activation);
  weft_json_string(json, "limits", info->limits);
  weft_json_string(json, "paper", info->paper);
  weft_json_close(json, '}');
}

static void add_list_json(struct weft_text *text, const struct weft_schedule_info *only) {
  struct weft_json json = weft_json_begin(text, "weft-schedules/1");
  weft_json_open(&json, "schedules", '[');
  for (size_t i = 0; i < weft_schedule_count(); i++) {
    if (only == NULL || weft_schedule_at(i) == only) {
      add_schedule(&json, weft_schedule_at(i));
    }
  }
  weft_json_close(&json, ']');
  weft_json_end(&json);
}

/* ---- A table ---- */

static int check_given(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       const struct weft_schedule_info *info) {
  const char *missing = NULL;
  const bool has_graph = arguments->given[WEFT_CLI_OPTION_GRAPH];
  if (!arguments->given[WEFT_CLI_OPTION_RANKS] && !has_graph) {
    missing = "-p, the number of ranks";
  } else if (!arguments->given[WEFT_CLI_OPTION_MICROBATCHES]) {
    missing = "-m, the number of microbatches";
  }
  if (missing != NULL && !info->fixed) {
    return weft_cli_usage(cli, "for example: weft gen 1F1B -p 4 -m 8", "%s needs %s", info->name,
                          missing);
  }
  if (arguments->given[WEFT_CLI_OPTION_PLACEMENT] && (info->trains || info->fixed)) {
    return weft_cli_usage(cli, "leave --placement out; only ForwardOnly lets you choose",
                          "the placement of %s is always '%s'", info->name,
                          weft_placement_name(info->placement));
  }
  if (arguments->given[WEFT_CLI_OPTION_STAGES_PER_RANK] && info->fixed) {
    return weft_cli_usage(cli, "leave -v out", "%s is a fixed table (%s)", info->name,
                          info->limits);
  }
  const bool has_target = arguments->given[WEFT_CLI_OPTION_FOR];
  if (has_target && has_graph) {
    return weft_cli_usage(cli, "leave one of them out",
                          "PyTorch's schedules are for chains: --for does not go with --graph");
  }
  if (has_target && (info->fixed || !info->trains)) {
    return weft_cli_usage(cli, "choose a schedule that trains, for any shape",
                          "%s is %s, and --for tells how to train with a schedule", info->name,
                          info->fixed ? "a fixed table" : "for evaluation");
  }
  return has_target && arguments->given[WEFT_CLI_OPTION_JSON]
             ? weft_cli_usage(cli, "leave one of them out", "--for and --json do not go together")
             : WEFT_CLI_OK;
}

/* --for: the table, and what another program needs to run it: on standard output where the table
 * is in a file, else with the messages. */
static int write_for_target(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                            const struct weft_program *table) {
  const char *path = weft_cli_output_path(arguments);
  const struct weft_target_request request = {
      .kind = (enum weft_target_kind)arguments->choices[WEFT_CLI_OPTION_FOR],
      .table = table,
      .file = path != NULL ? path : "table.csv"};
  WEFT_SCOPED_TEXT needs = {.allocator = cli->allocator};
  WEFT_SCOPED(weft_target) target = NULL;
  WEFT_CLI_CALL(cli, NULL, weft_target(cli->allocator, &request, &target, &error));
  weft_cli_target_text(&needs, request.kind, target);
  WEFT_CLI_TRY(weft_cli_write_program(cli, arguments, target->table));
  return path != NULL ? weft_cli_write_stdout(cli, &needs)
                      : weft_cli_write_descriptor(cli, cli->messages, "standard error", &needs);
}

static int generate_table(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  WEFT_SCOPED(weft_program) table = NULL;
  WEFT_SCOPED(weft_graph) graph = NULL;
  const char *name = arguments->operands[0];
  const struct weft_schedule_info *info = NULL;
  WEFT_CLI_TRY(find_schedule(cli, name, &info));
  WEFT_CLI_TRY(check_given(cli, arguments, info));
  WEFT_CLI_TRY(weft_cli_read_graph(cli, arguments, &graph));
  /* The parser keeps numbers within 32 bits. */
  const struct weft_shape shape = {
      .ranks = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_RANKS, 0),
      .stages_per_rank = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_STAGES_PER_RANK, 0),
      .microbatches = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_MICROBATCHES, 0),
      .placement = arguments->choices[WEFT_CLI_OPTION_PLACEMENT] == 1 ? WEFT_PLACEMENT_V
                                                                      : WEFT_PLACEMENT_LOOP,
      .graph = graph};
  WEFT_CLI_CALL(cli, NULL, weft_generate(cli->allocator, name, &shape, &table, &error));
  return arguments->given[WEFT_CLI_OPTION_FOR] ? write_for_target(cli, arguments, table)
                                               : weft_cli_write_program(cli, arguments, table);
}

int weft_cli_cmd_gen(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  if (arguments->given[WEFT_CLI_OPTION_LIST]) {
    const struct weft_schedule_info *only = NULL;
    if (arguments->operand_count > 0) {
      WEFT_CLI_TRY(find_schedule(cli, arguments->operands[0], &only));
    }
    (arguments->given[WEFT_CLI_OPTION_JSON] ? add_list_json : add_list)(&text, only);
    return weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
  }
  if (arguments->operand_count == 0) {
    return weft_cli_usage(cli, "'weft gen --list' lists the schedules",
                          "no schedule named: expected weft gen NAME -p P -m M");
  }
  return generate_table(cli, arguments);
}
