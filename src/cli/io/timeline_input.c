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
  const struct weft_lower_options options = {.communicate = true, .unshard_window = 1};
  struct weft_error error;
  if (timeline->given->level != WEFT_LEVEL_COMPUTE ||
      (timeline->given->action_count > TRANSFERS_ACTIONS_MAX &&
       costs->options.channel == WEFT_CHANNEL_EDGE)) {
    return WEFT_CLI_OK;
  }
  return weft_cli_result(
      cli, name, weft_lower(cli->allocator, timeline->given, &options, &timeline->lowered, &error),
      &error);
}

static const struct weft_program *drawn(const struct weft_cli_timeline *timeline) {
  return timeline->lowered != NULL ? timeline->lowered : timeline->given;
}

/* The costs are fitted to one program after the other; a simulation stays valid,
 * because the program that it borrows is the timeline's own. */
static int simulate(const struct weft_cli *cli, struct weft_cli_costs *costs,
                    struct weft_cli_timeline *timeline, const char *name) {
  struct weft_costs *common = costs->costs;
  struct weft_error error;
  costs->costs = timeline->scaled != NULL ? timeline->scaled : common;
  int status = weft_cli_costs_fit(cli, costs, drawn(timeline), name);
  if (status == WEFT_CLI_OK && weft_simulate(cli->allocator, drawn(timeline), costs->costs,
                                             &costs->options, &timeline->simulation, &error) < 0) {
    status = weft_cli_fail(cli, name, &error);
  }
  costs->costs = common;
  return status;
}

static int read_timeline(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                         const struct weft_cli_costs *costs, unsigned index,
                         struct weft_cli_timeline *timeline) {
  const char *name = weft_cli_input_name(arguments->operands[index]);
  WEFT_CLI_TRY(weft_cli_read_operand(cli, arguments, index, &timeline->given));
  WEFT_CLI_TRY(weft_cli_check_valid(cli, timeline->given, name));
  return add_transfers(cli, costs, timeline, name);
}

/* ---- Costs of two tables that cut one model differently ---- */

static bool cuts_differ(const struct weft_cli_timelines *timelines,
                        const struct weft_costs *costs) {
  const struct weft_program *first = timelines->list[0].given, *second = timelines->list[1].given;
  return timelines->count == 2 && costs->stage_count == 1 &&
         first->rank_count == second->rank_count && first->stage_count != second->stage_count;
}

/* One of v stages per rank has 1/v of the times and sizes of the rank's share. A
 * transfer takes as long as before. */
static int scale_costs(const struct weft_cli *cli, const struct weft_costs *share,
                       struct weft_cli_timeline *timeline) {
  const double v = (double)timeline->given->stage_count / timeline->given->rank_count;
  struct weft_error error;
  WEFT_CLI_TRY(weft_cli_result(
      cli, NULL, weft_costs_create(cli->allocator, 1, &timeline->scaled, &error), &error));
  timeline->scaled->stages[0] = weft_stage_costs_divide(&share->stages[0], v);
  timeline->scaled->hop = share->hop;
  memcpy(timeline->scaled->unit, share->unit, sizeof share->unit);
  (void)snprintf(timeline->note, sizeof timeline->note,
                 v == 1 ? "costs are of a rank's share of the model, one stage"
                        : "costs are of a rank's share of the model: a stage takes 1/%.3g of it",
                 v);
  return WEFT_CLI_OK;
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
  const bool scale = cuts_differ(timelines, costs->costs);
  for (size_t i = 0; i < timelines->count; i++) {
    struct weft_cli_timeline *timeline = &timelines->list[i];
    const char *name = weft_cli_input_name(arguments->operands[i]);
    if (scale) {
      WEFT_CLI_TRY(scale_costs(cli, costs->costs, timeline));
    }
    WEFT_CLI_TRY(simulate(cli, costs, timeline, name));
    timelines->pictures[i] =
        (struct weft_picture){.name = name,
                              .note = timeline->note,
                              .simulation = timeline->simulation,
                              .costs = timeline->scaled != NULL ? timeline->scaled : costs->costs};
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
    weft_costs_destroy(timelines->list[i].scaled);
    weft_program_destroy(timelines->list[i].lowered);
    weft_program_destroy(timelines->list[i].given);
  }
  weft_costs_destroy(timelines->costs);
}
