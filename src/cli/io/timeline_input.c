/* What `weft show` draws. */
#include "cli/io/timeline_input.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include <weft/lower.h>

#include "cli/args/cost_options.h"
#include "cli/io/error_message.h"
#include "cli/io/input_file.h"
#include "cli/scoped.h"

/* Of a longer table transfers could not be seen, and three times the events are more
 * than a page can hold. Without SEND and RECV they take the same time, unless channels
 * are shared. */
#define TRANSFERS_ACTIONS_MAX 2500000u

/* A table gets SEND and RECV, and nothing else, so that transfers can be seen;
 * a program is drawn as it is. */
static int add_transfers(const struct weft_cli *cli, const struct weft_cli_costs *costs,
                         struct weft_cli_timeline *timeline, const char *name) {
  struct weft_error error;
  if (timeline->given->level != WEFT_LEVEL_COMPUTE ||
      (timeline->given->action_count > TRANSFERS_ACTIONS_MAX &&
       costs->options.channel == WEFT_CHANNEL_EDGE)) {
    return WEFT_CLI_OK;
  }
  return weft_cli_result(
      cli, name, weft_lower_transfers(cli->allocator, timeline->given, &timeline->lowered, &error),
      &error);
}

static const struct weft_program *drawn(const struct weft_cli_timeline *timeline) {
  return timeline->lowered != NULL ? timeline->lowered : timeline->given;
}

/* The costs are fitted to one program after the other; a simulation stays valid,
 * because the program that it borrows is the timeline's own. */
static int simulate(const struct weft_cli *cli, struct weft_cli_costs *costs,
                    struct weft_cli_timeline *timeline, const char *name) {
  struct weft_error error;
  WEFT_CLI_TRY(weft_cli_costs_fit(cli, costs, drawn(timeline), name));
  return weft_cli_result(cli, name,
                         weft_simulate(cli->allocator, drawn(timeline), costs->costs,
                                       &costs->options, &timeline->simulation, &error),
                         &error);
}

static int read_timeline(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                         const struct weft_cli_costs *costs, unsigned index,
                         struct weft_cli_timeline *timeline) {
  const char *name = weft_cli_input_name(arguments->operands[index]);
  WEFT_CLI_TRY(weft_cli_read_operand(cli, arguments, index, &timeline->given));
  WEFT_CLI_TRY(weft_cli_check_valid(cli, timeline->given, name));
  return add_transfers(cli, costs, timeline, name);
}

static int check_operands(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  if (arguments->operand_count == 2 && strcmp(arguments->operands[0], "-") == 0 &&
      strcmp(arguments->operands[1], "-") == 0) {
    return weft_cli_usage(cli, "give one of the two as a file",
                          "standard input can be read only once");
  }
  return WEFT_CLI_OK;
}

static int simulate_all(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                        struct weft_cli_costs *costs, struct weft_cli_timelines *timelines) {
  for (size_t i = 0; i < timelines->count; i++) {
    struct weft_cli_timeline *timeline = &timelines->list[i];
    const char *name = weft_cli_input_name(arguments->operands[i]);
    WEFT_CLI_TRY(simulate(cli, costs, timeline, name));
    timelines->pictures[i] = (struct weft_picture){
        .name = name, .simulation = timeline->simulation, .costs = costs->costs};
  }
  return WEFT_CLI_OK;
}

int weft_cli_timelines_read(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                            struct weft_cli_timelines *timelines) {
  assert(cli != NULL && arguments != NULL);
  struct weft_cli_costs costs;
  WEFT_CLI_TRY(check_operands(cli, arguments));
  WEFT_CLI_TRY(weft_cli_costs_read(cli, arguments, &costs));
  int status = WEFT_CLI_OK;
  const size_t count = arguments->operand_count > 0 ? arguments->operand_count : 1;
  for (size_t i = 0; i < count && status == WEFT_CLI_OK; i++) {
    timelines->count = i + 1;
    status = read_timeline(cli, arguments, &costs, (unsigned)i, &timelines->list[i]);
  }
  if (status == WEFT_CLI_OK) {
    status = simulate_all(cli, arguments, &costs, timelines);
  }
  timelines->costs = costs.costs; /* kept beyond the rest of it */
  costs.costs = NULL;
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
