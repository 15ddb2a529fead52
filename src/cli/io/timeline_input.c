/* What `weft show` draws. */
#include "cli/io/timeline_input.h"

#include <string.h>

#include <weft/lower.h>

#include "cli/args/cost_options.h"
#include "cli/cmd/validity.h"
#include "cli/io/error_message.h"
#include "cli/io/input_file.h"

/* A table gets SEND and RECV, and nothing else, so that transfers can be seen;
 * a program is drawn as it is. */
static int add_transfers(const struct weft_cli *cli, struct weft_cli_timeline *timeline,
                         const char *name) {
  const struct weft_lower_options options = {.communicate = true, .unshard_window = 1};
  struct weft_error error;
  if (timeline->given->level != WEFT_LEVEL_COMPUTE) {
    return WEFT_CLI_OK;
  }
  if (weft_lower(cli->allocator, timeline->given, &options, &timeline->lowered, &error) < 0) {
    return weft_cli_fail(cli, name, &error);
  }
  return WEFT_CLI_OK;
}

/* The costs are fitted to one program after the other; a simulation stays valid,
 * because the program that it borrows is the timeline's own. */
static int simulate(const struct weft_cli *cli, struct weft_cli_costs *costs,
                    struct weft_cli_timeline *timeline, const char *name) {
  const struct weft_program *program =
      timeline->lowered != NULL ? timeline->lowered : timeline->given;
  struct weft_error error;
  const int status = weft_cli_costs_fit(cli, costs, program, name);
  if (status == WEFT_CLI_OK && weft_simulate(cli->allocator, program, costs->costs, &costs->options,
                                             &timeline->simulation, &error) < 0) {
    return weft_cli_fail(cli, name, &error);
  }
  return status;
}

static int read_timeline(const struct weft_cli *cli, const char *path, struct weft_cli_costs *costs,
                         struct weft_cli_timeline *timeline) {
  const char *name = weft_cli_input_name(path);
  int status = weft_cli_read_program(cli, path, &timeline->given);
  if (status == WEFT_CLI_OK) {
    status = weft_cli_check_valid(cli, timeline->given, name);
  }
  if (status == WEFT_CLI_OK) {
    status = add_transfers(cli, timeline, name);
  }
  if (status == WEFT_CLI_OK) {
    status = simulate(cli, costs, timeline, name);
  }
  return status;
}

static int check_operands(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  if (arguments->operand_count == 2 && strcmp(arguments->operands[0], "-") == 0 &&
      strcmp(arguments->operands[1], "-") == 0) {
    return weft_cli_usage(cli, "give one of the two as a file",
                          "standard input can be read only once");
  }
  return WEFT_CLI_OK;
}

int weft_cli_timelines_read(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                            struct weft_cli_timelines *timelines) {
  struct weft_cli_costs costs;
  int status = check_operands(cli, arguments);
  if (status == WEFT_CLI_OK) {
    status = weft_cli_costs_read(cli, arguments, &costs);
  }
  if (status != WEFT_CLI_OK) {
    return status;
  }
  const size_t count = arguments->operand_count > 0 ? arguments->operand_count : 1;
  for (size_t i = 0; i < count && status == WEFT_CLI_OK; i++) {
    struct weft_cli_timeline *timeline = &timelines->list[i];
    status = read_timeline(cli, arguments->operands[i], &costs, timeline);
    timelines->pictures[i] = (struct weft_picture){
        .name = weft_cli_input_name(arguments->operands[i]), .simulation = timeline->simulation};
    timelines->count = i + 1;
  }
  timelines->costs = costs.costs; /* kept beyond the rest of it */
  costs.costs = NULL;
  for (size_t i = 0; i < timelines->count; i++) {
    timelines->pictures[i].costs = timelines->costs;
  }
  weft_cli_costs_finish(&costs);
  return status;
}

void weft_cli_timelines_finish(struct weft_cli_timelines *timelines) {
  for (size_t i = 0; i < timelines->count; i++) {
    weft_simulation_destroy(timelines->list[i].simulation);
    weft_program_destroy(timelines->list[i].lowered);
    weft_program_destroy(timelines->list[i].given);
  }
  weft_costs_destroy(timelines->costs);
}
