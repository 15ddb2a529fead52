/* Converts the options into a search request. */
#include "cli/cmd/plan_command.h"
#include "cli/io/error_message.h"

static int check_shape(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  static const char example[] = "for example: weft plan -p 4 -m 8";
  if (!arguments->given[WEFT_CLI_OPTION_RANKS]) {
    return weft_cli_usage(cli, example, "plan needs -p, the number of ranks");
  }
  if (!arguments->given[WEFT_CLI_OPTION_MICROBATCHES] &&
      !arguments->given[WEFT_CLI_OPTION_GLOBAL_BATCH]) {
    return weft_cli_usage(cli, example,
                          "plan needs -m, the number of microbatches, or --global-batch");
  }
  return WEFT_CLI_OK;
}

static void read_effort(const struct weft_cli_arguments *arguments,
                        struct weft_search_request *request) {
  request->time_limit = weft_cli_real(arguments, WEFT_CLI_OPTION_TIME_LIMIT, 0);
  const double usual =
      request->time_limit > 0 ? WEFT_EFFORT_OF_LIMIT * request->time_limit : request->effort;
  request->effort = weft_cli_real(arguments, WEFT_CLI_OPTION_EFFORT, usual);
  request->use_time = request->time_limit > 0 && !arguments->given[WEFT_CLI_OPTION_EFFORT];
}

int weft_cli_plan_read_request(const struct weft_cli *cli,
                               const struct weft_cli_arguments *arguments,
                               struct weft_cli_costs *costs, struct weft_search_request *request) {
  int status = check_shape(cli, arguments);
  if (status == WEFT_CLI_OK) {
    /* The parser keeps numbers within 32 bits. */
    const uint64_t ranks = weft_cli_number(arguments, WEFT_CLI_OPTION_RANKS, 0);
    status = weft_cli_costs_fit_ranks(cli, costs, (uint32_t)ranks);
  }
  if (status != WEFT_CLI_OK) {
    return status;
  }
  const unsigned placement = arguments->choices[WEFT_CLI_OPTION_PLACEMENT];
  *request = weft_search_request_default();
  request->ranks = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_RANKS, 0);
  request->microbatches = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_MICROBATCHES, 0);
  request->stages_per_rank =
      (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_STAGES_PER_RANK, 0);
  request->any_placement = placement == 0;
  request->placement = placement == 2 ? WEFT_PLACEMENT_V : WEFT_PLACEMENT_LOOP;
  request->keep_partition = arguments->given[WEFT_CLI_OPTION_KEEP_PARTITION];
  request->whole_backward = arguments->given[WEFT_CLI_OPTION_NO_SPLIT];
  request->costs = costs->costs;
  request->rank_factors = costs->options.rank_factors;
  request->memory_limit = weft_cli_real(arguments, WEFT_CLI_OPTION_MEMORY, request->memory_limit);
  request->objective = arguments->choices[WEFT_CLI_OPTION_OBJECTIVE] == 1 ? WEFT_OBJECTIVE_SPAN
                                                                          : WEFT_OBJECTIVE_MAKESPAN;
  read_effort(arguments, request);
  request->seed = weft_cli_number(arguments, WEFT_CLI_OPTION_SEED, 0);
  request->threads = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_THREADS, 0);
  return WEFT_CLI_OK;
}
