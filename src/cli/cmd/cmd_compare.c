/* `weft compare`: every schedule for a shape, and tables from files, simulated and ranked by
 * weft_compare(). */
#include <assert.h>
#include <math.h>

#include "cli/args/cost_options.h"
#include "cli/cmd/commands.h"
#include "cli/io/error_message.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/report/compare_report.h"
#include "cli/report/program_json.h"
#include "cli/scoped.h"

WEFT_SCOPED_TYPE(weft_comparison)

struct compare_run {
  const struct weft_cli *cli;
  const struct weft_cli_arguments *arguments;
  struct weft_cli_costs costs;
  struct weft_program *files[WEFT_CLI_OPERANDS_MAX];          /* [operand_count] */
  const struct weft_program *programs[WEFT_CLI_OPERANDS_MAX]; /* the same */
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
    run->programs[k] = run->files[k];
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
  request.programs = run->programs;
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

static int compare(struct compare_run *run) {
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
  (run->arguments->given[WEFT_CLI_OPTION_JSON] ? weft_cli_compare_json : weft_cli_compare_text)(
      &text, &request, comparison);
  return weft_cli_write_output(cli, run->arguments, &text,
                               comparison->fitting > 0 ? WEFT_CLI_OK : WEFT_CLI_FOUND_BAD);
}

int weft_cli_cmd_compare(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  struct compare_run run = {.cli = cli, .arguments = arguments};
  WEFT_CLI_TRY(check_shape(cli, arguments));
  WEFT_CLI_TRY(weft_cli_costs_read(cli, arguments, &run.costs));
  const int status = compare(&run);
  weft_cli_costs_finish(&run.costs);
  weft_graph_destroy(run.graph);
  for (unsigned k = 0; k < arguments->operand_count; k++) {
    weft_program_destroy(run.files[k]);
  }
  return status;
}
