/* `weft compare`: every schedule for a shape, and tables from files, simulated and ranked by
 * weft_compare(). */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <weft/compare.h>

#include "cli/args/cost_options.h"
#include "cli/cmd/commands.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/io/text_columns.h"
#include "cli/report/program_json.h"
#include "cli/report/sim_report.h"
#include "cli/scoped.h"

WEFT_SCOPED_TYPE(weft_comparison)

/* ---- Text ---- */

enum { NAME_WIDTH_MIN = 22, NAME_WIDTH_MAX = 60 };

/* The width of the names' column. */
static int name_width(const struct weft_comparison *comparison) {
  size_t width = NAME_WIDTH_MIN;
  for (uint32_t k = 0; k < comparison->entry_count; k++) {
    const struct weft_cli_words name = weft_cli_quoted(comparison->entries[k].name);
    const size_t length = weft_count_characters(name.text, strlen(name.text));
    width = length > width && length <= NAME_WIDTH_MAX ? length : width;
  }
  return (int)width;
}

/* Name, v, and the numbers, each in its column. */
static void add_row(struct weft_text *text, const struct weft_comparison_entry *entry, int width,
                    bool wins, bool memory) {
  weft_text_add(text, wins ? "* " : "  ");
  const size_t begin = text->size;
  weft_text_add_escaped(text, entry->name, strlen(entry->name));
  const size_t used =
      text->failed ? 0 : weft_count_characters(text->data + begin, text->size - begin);
  weft_text_addf(text, "%*s %3s  %10s  %10s  %6.2f %%  %10s",
                 used < (size_t)width ? width - (int)used : 0, "",
                 weft_cli_amount(entry->stages_per_rank).text,
                 weft_cli_amount(entry->makespan).text, weft_cli_amount(entry->span).text,
                 100 * entry->bubble_ratio, weft_cli_amount(entry->peak_activation).text);
  if (memory) {
    weft_text_addf(text, "  %10s", weft_cli_amount(entry->peak_memory).text);
  }
  weft_text_add(text, "\n");
}

/* More than activations, because the costs have sizes of parameters. */
static bool has_memory(const struct weft_comparison *comparison) {
  for (uint32_t k = 0; k < comparison->entry_count; k++) {
    if (comparison->entries[k].peak_memory > comparison->entries[k].peak_activation) {
      return true;
    }
  }
  return false;
}

static void add_omissions(struct weft_text *text, const struct weft_comparison *comparison,
                          int width) {
  weft_text_add(text, comparison->omission_count > 0 ? "\nleft out:\n" : "");
  for (uint32_t k = 0; k < comparison->omission_count; k++) {
    const struct weft_comparison_omission *omission = &comparison->omissions[k];
    weft_text_addf(text, "  %-*s %3" PRIu32 "  %s\n", width, omission->info->name,
                   omission->stages_per_rank, omission->why);
  }
}

static void add_text(struct weft_text *text, const struct weft_compare_request *request,
                     const struct weft_comparison *comparison) {
  const bool memory = has_memory(comparison);
  const int width = name_width(comparison);
  weft_cli_heading_add(text, comparison->shape.ranks, comparison->shape.microbatches,
                       request->costs, comparison->graph, false);
  weft_text_addf(text, "  %-*s %3s  %10s  %10s  %8s  %10s%s\n", width, "name", "v", "makespan",
                 "span", "bubble", "activation", memory ? "      memory" : "");
  for (uint32_t k = 0; k < comparison->entry_count; k++) {
    if (k == comparison->fitting) {
      weft_text_addf(text, "%sover the memory limit of %s:\n", k > 0 ? "\n" : "",
                     weft_cli_amount(request->memory_limit).text);
    }
    add_row(text, &comparison->entries[k], width, k == 0 && comparison->fitting > 0, memory);
  }
  add_omissions(text, comparison, width);
  weft_text_addf(text, "\n%s.\n", comparison->why);
}

/* ---- JSON, "weft-compare/1" ---- */

static void add_json_entry(struct weft_json *json, const struct weft_comparison_entry *entry) {
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "name", entry->name);
  weft_json_boolean(json, "file", entry->info == NULL);
  weft_json_exact(json, "v", entry->stages_per_rank);
  weft_json_exact(json, "makespan", entry->makespan);
  weft_json_exact(json, "span", entry->span);
  weft_json_exact(json, "bubble_ratio", entry->bubble_ratio);
  weft_json_exact(json, "peak_activation", entry->peak_activation);
  weft_json_exact(json, "peak_memory", entry->peak_memory);
  weft_json_boolean(json, "fits", entry->fits);
  weft_json_close(json, '}');
}

static void add_json_omission(struct weft_json *json,
                              const struct weft_comparison_omission *omission) {
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "name", omission->info->name);
  weft_json_number(json, "v", omission->stages_per_rank);
  weft_json_string(json, "why", omission->why);
  weft_json_close(json, '}');
}

static void add_json_winner(struct weft_json *json, const struct weft_comparison *comparison) {
  if (comparison->fitting == 0) {
    weft_json_null(json, "winner");
    return;
  }
  weft_json_open(json, "winner", '{');
  weft_json_string(json, "name", comparison->entries[0].name);
  weft_json_exact(json, "v", comparison->entries[0].stages_per_rank);
  weft_json_close(json, '}');
}

static void add_json(struct weft_text *text, const struct weft_compare_request *request,
                     const struct weft_comparison *comparison) {
  struct weft_json json = weft_json_begin(text, "weft-compare/1");
  const struct weft_costs *costs = request->costs;
  weft_json_string(&json, "unit", costs->unit);
  weft_json_string(&json, "costs_of", weft_cli_scope_name(costs));
  weft_json_number(&json, "ranks", comparison->shape.ranks);
  weft_json_number(&json, "microbatches", comparison->shape.microbatches);
  weft_json_exact(&json, "memory_limit", request->memory_limit); /* null: none */
  weft_json_open(&json, "schedules", '[');
  for (uint32_t k = 0; k < comparison->entry_count; k++) {
    add_json_entry(&json, &comparison->entries[k]);
  }
  weft_json_close(&json, ']');
  weft_json_open(&json, "left_out", '[');
  for (uint32_t k = 0; k < comparison->omission_count; k++) {
    add_json_omission(&json, &comparison->omissions[k]);
  }
  weft_json_close(&json, ']');
  add_json_winner(&json, comparison);
  weft_json_string(&json, "why", comparison->why);
  weft_json_end(&json);
}

/* ---- The command ---- */

struct compare_run {
  const struct weft_cli *cli;
  const struct weft_cli_arguments *arguments;
  struct weft_cli_costs costs;
  struct weft_program *files[WEFT_CLI_OPERANDS_MAX]; /* [operand_count] */
  const char *names[WEFT_CLI_OPERANDS_MAX];
  struct weft_graph *graph; /* of --graph without files */
};

static int read_files(struct compare_run *run) {
  const struct weft_cli_arguments *arguments = run->arguments;
  bool has_read_input = false;
  for (unsigned k = 0; k < arguments->operand_count; k++) {
    const char *path = arguments->operands[k];
    if (weft_cli_is_standard_input(path)) {
      if (has_read_input) {
        return weft_cli_usage(run->cli, "give the others as files",
                              "standard input can be read only once");
      }
      has_read_input = true;
    }
    run->names[k] = weft_cli_input_name(path);
    WEFT_CLI_TRY(weft_cli_read_operand(run->cli, arguments, k, &run->files[k]));
    WEFT_CLI_TRY(weft_cli_check_valid(run->cli, run->files[k], run->names[k]));
    weft_cli_print_note(run->cli, run->names[k], run->files[k]);
  }
  return WEFT_CLI_OK;
}

/* What is not given is 0 and taken from the first file, or from the graph. */
static int check_shape(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  static const char example[] = "for example: weft compare -p 4 -m 8, or weft compare FILE";
  if (!arguments->given[WEFT_CLI_OPTION_RANKS] && !arguments->given[WEFT_CLI_OPTION_GRAPH] &&
      arguments->operand_count == 0) {
    return weft_cli_usage(cli, example, "compare needs -p, the number of ranks");
  }
  if (!arguments->given[WEFT_CLI_OPTION_MICROBATCHES] && arguments->operand_count == 0) {
    return weft_cli_usage(cli, example, "compare needs -m, the number of microbatches");
  }
  return WEFT_CLI_OK;
}

/* The files are checked, and with --graph have its edges. The parser keeps numbers within 32 bits. */
static struct weft_compare_request request_of(const struct compare_run *run) {
  const struct weft_cli_arguments *arguments = run->arguments;
  struct weft_compare_request request = weft_compare_request_default();
  request.ranks = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_RANKS, 0);
  request.stages_per_rank =
      (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_STAGES_PER_RANK, 0);
  request.microbatches = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_MICROBATCHES, 0);
  request.graph = run->graph;
  request.programs = (const struct weft_program *const *)run->files;
  request.names = run->names;
  request.program_count = arguments->operand_count;
  if (request.program_count > 0 && arguments->given[WEFT_CLI_OPTION_GRAPH]) {
    request.graph = run->files[0]->graph;
  }
  request.costs = run->costs.costs;
  request.channel = run->costs.options.channel;
  request.memory_limit = weft_cli_real(arguments, WEFT_CLI_OPTION_MEMORY, INFINITY);
  return request;
}

static int compare_files(struct compare_run *run) {
  const struct weft_cli *cli = run->cli;
  WEFT_SCOPED(weft_comparison) comparison = NULL;
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  struct weft_shape shape;
  WEFT_CLI_TRY(read_files(run));
  if (run->arguments->operand_count == 0) {
    WEFT_CLI_TRY(weft_cli_read_graph(cli, run->arguments, &run->graph));
  }
  struct weft_compare_request request = request_of(run);
  WEFT_CLI_CALL(cli, NULL, weft_compare_shape(&request, &shape, &error));
  WEFT_CLI_TRY(weft_cli_costs_fit_ranks(cli, &run->costs, shape.ranks));
  request.rank_factors = run->costs.options.rank_factors;
  WEFT_CLI_CALL(cli, NULL, weft_compare(cli->allocator, &request, &comparison, &error));
  (run->arguments->given[WEFT_CLI_OPTION_JSON] ? add_json : add_text)(&text, &request, comparison);
  return weft_cli_write_output(cli, run->arguments, &text,
                               comparison->fitting > 0 ? WEFT_CLI_OK : WEFT_CLI_FOUND_BAD);
}

int weft_cli_cmd_compare(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  struct compare_run run = {.cli = cli, .arguments = arguments};
  WEFT_CLI_TRY(check_shape(cli, arguments));
  int status = weft_cli_costs_read(cli, arguments, &run.costs);
  status = status == WEFT_CLI_OK ? compare_files(&run) : status;
  weft_cli_costs_finish(&run.costs);
  weft_graph_destroy(run.graph);
  for (unsigned k = 0; k < arguments->operand_count; k++) {
    weft_program_destroy(run.files[k]);
  }
  return status;
}
