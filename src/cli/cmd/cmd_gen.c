/* `weft gen`: the table of a named schedule, and the list of them. */
#include <assert.h>
#include <string.h>

#include <weft/gen.h>

#include "cli/cmd/commands.h"
#include "cli/io/error_message.h"
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

enum { COLUMN_COUNT = 7 };

static const char *const headings[COLUMN_COUNT] = {"NAME",   "STAGES/RANK", "BACKWARD", "PLACEMENT",
                                                   "BUBBLE", "PEAK",        "PAPER"};

static const char *or_dash(const char *words) {
  return words != NULL && words[0] != '\0' ? words : "-";
}

static void add_stages_per_rank(struct weft_text *text, const struct weft_schedule_info *info) {
  weft_text_add_number(text, info->stages_per_rank_min);
  if (info->stages_per_rank_max == UINT32_MAX) {
    weft_text_add(text, " or more");
  } else if (info->stages_per_rank_max != info->stages_per_rank_min) {
    weft_text_addf(text, " to %u", (unsigned)info->stages_per_rank_max);
  }
}

static const char *backward_name(const struct weft_schedule_info *info) {
  if (!info->trains) {
    return "none";
  }
  return info->splits_backward ? "split" : "full";
}

static void add_cell(struct weft_text *text, const struct weft_schedule_info *info,
                     unsigned column) {
  switch (column) {
    case 0: weft_text_add(text, info->name); break;
    case 1: add_stages_per_rank(text, info); break;
    case 2: weft_text_add(text, backward_name(info)); break;
    case 3:
      /* The placement of ForwardOnly is the caller's. */
      weft_text_add(text, info->trains ? weft_placement_name(info->placement) : "any");
      break;
    case 4: weft_text_add(text, or_dash(info->bubble)); break;
    case 5: weft_text_add(text, or_dash(info->peak_activation)); break;
    default: weft_text_add(text, or_dash(info->paper));
  }
}

/* The widest cell of a column, measured by writing it after the text's end. */
static size_t column_width(struct weft_text *text, unsigned column) {
  size_t width = strlen(headings[column]);
  for (size_t i = 0; i < weft_schedule_count() && !text->failed; i++) {
    const size_t begin = text->size;
    add_cell(text, weft_schedule_at(i), column);
    const size_t cell = text->failed ? 0 : weft_cli_width(text->data + begin, text->size - begin);
    width = cell > width ? cell : width;
    text->size = begin;
  }
  return width + 2;
}

/* The headings, or a schedule and what it is. */
static void add_row(struct weft_text *text, const struct weft_schedule_info *info,
                    const size_t widths[COLUMN_COUNT]) {
  for (unsigned column = 0; column < COLUMN_COUNT; column++) {
    const size_t begin = text->size;
    if (info == NULL) {
      weft_text_add(text, headings[column]);
    } else {
      add_cell(text, info, column);
    }
    weft_cli_pad(text, begin, widths[column]);
  }
  weft_cli_trim(text);
  weft_text_addf(text, "\n%s%s%s", info != NULL ? "    " : "", info != NULL ? info->summary : "",
                 info != NULL ? "\n" : "");
}

/* All schedules, or `only` one; tables of one shape, which are for tests, come last. */
static void add_list(struct weft_text *text, const struct weft_schedule_info *only) {
  size_t widths[COLUMN_COUNT];
  for (unsigned column = 0; column < COLUMN_COUNT; column++) {
    widths[column] = column_width(text, column);
  }
  add_row(text, NULL, widths);
  for (unsigned fixed = 0; fixed < 2; fixed++) {
    if (fixed == 1 && only == NULL) {
      weft_text_add(text, "\nTables of one shape, for tests:\n");
    }
    for (size_t k = 0; k < weft_schedule_count(); k++) {
      const struct weft_schedule_info *info = weft_schedule_at(k);
      if (info->fixed == (fixed == 1) && (only == NULL || info == only)) {
        add_row(text, info, widths);
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
  const bool in_file = path != NULL;
  const struct weft_target_request request = {
      .kind = (enum weft_target_kind)arguments->choices[WEFT_CLI_OPTION_FOR],
      .table = table,
      .file = in_file ? path : "table.csv"};
  WEFT_SCOPED_TEXT needs = {.allocator = cli->allocator};
  WEFT_SCOPED(weft_target) target = NULL;
  WEFT_CLI_CALL(cli, NULL, weft_target(cli->allocator, &request, &target, &error));
  weft_cli_target_text(&needs, request.kind, target);
  WEFT_CLI_TRY(weft_cli_write_program(cli, arguments, target->table));
  return weft_cli_write_descriptor(cli, in_file ? cli->output : cli->messages,
                                   in_file ? "standard output" : "standard error", &needs);
}

static int generate(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
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
  return generate(cli, arguments);
}
