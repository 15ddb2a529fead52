/* The timeline of a run as a file. */
#include "cli/report/run_picture.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "cli/io/error_message.h"
#include "cli/io/output_file.h"
#include "cli/report/sim_report.h"
#include "cli/scoped.h"

enum weft_cli_picture weft_cli_run_picture_of(const struct weft_cli_arguments *arguments) {
  assert(arguments != NULL);
  const char *path = arguments->texts[WEFT_CLI_OPTION_OUTPUT];
  const enum weft_cli_picture kind = path != NULL ? weft_cli_picture_of(path) : WEFT_CLI_NO_PICTURE;
  const bool is_report = kind == WEFT_CLI_TRACE && arguments->given[WEFT_CLI_OPTION_JSON];
  return is_report ? WEFT_CLI_NO_PICTURE : kind;
}

int weft_cli_timeline_write(const struct weft_cli *cli, const char *path,
                            const struct weft_cli_run_timeline *timeline) {
  assert(cli != NULL && timeline != NULL);
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  const struct weft_render_options options = weft_render_options_default();
  char names[2][160];
  (void)snprintf(names[0], sizeof names[0], "%.100s, measured on %s", timeline->name,
                 timeline->transport);
  (void)snprintf(names[1], sizeof names[1], "%.100s, predicted", timeline->name);
  const struct weft_picture pictures[] = {{.name = names[0],
                                           .simulation = timeline->measured,
                                           .costs = timeline->costs,
                                           .note = timeline->step},
                                          {.name = names[1],
                                           .simulation = timeline->predicted,
                                           .costs = timeline->costs,
                                           .note = timeline->source}};
  WEFT_CLI_CALL(cli, NULL,
                weft_cli_render(weft_cli_picture_of(path), pictures,
                                timeline->predicted != NULL ? 2 : 1, &options, &text, &error));
  return weft_cli_write_file(cli, path, &text);
}

int weft_cli_run_draw(const struct weft_cli *cli, const char *path, const struct weft_costs *costs,
                      const struct weft_cli_run_report *report) {
  assert(cli != NULL && report != NULL);
  const struct weft_cli_execution *execution = report->execution;
  const struct weft_program *program = execution->program;
  WEFT_SCOPED(weft_simulation) measured = NULL;
  WEFT_CLI_CALL(cli, report->name,
                weft_simulation_measured(cli->allocator, program, costs,
                                         weft_cli_execution_events(execution, report->step),
                                         execution->event_begin[program->rank_count],
                                         report->per_unit, &measured, &error));
  char step[64], source[160];
  (void)snprintf(source, sizeof source, "from the costs that the run was given; %s",
                 weft_cli_scope_text(costs, program).text);
  (void)snprintf(step, sizeof step, "step %" PRIu32 " of %" PRIu32 "%s", report->step + 1,
                 execution->step_count, execution->step_count > 2 ? ", the median" : "");
  const struct weft_cli_run_timeline timeline = {.name = report->name,
                                                 .transport = report->transport,
                                                 .step = step,
                                                 .source = source,
                                                 .measured = measured,
                                                 .predicted = report->simulation,
                                                 .costs = costs};
  return weft_cli_timeline_write(cli, path, &timeline);
}
