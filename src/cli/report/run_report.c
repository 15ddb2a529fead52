/* The report of `weft run`: its numbers, as text, as "weft-run/1" and as a timeline. */
#include "cli/report/run_report.h"
#include "cli/io/output_file.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "cli/io/text_columns.h"
#include "cli/report/program_json.h"
#include "cli/report/sim_report.h"
#include "cli/scoped.h"

#define RANKS_SHOWN 32u

static bool is_virtual(const struct weft_cli_run_report *report) {
  return report->execution->transport->virtual_time;
}

/* ---- Reckoning ---- */

/* The counted step whose makespan has as many below it as above; of an even
 * number, the lower middle. Steps are few. */
static uint32_t median_step(const struct weft_cli_run_report *report) {
  const struct weft_cli_execution *execution = report->execution;
  const uint32_t count = execution->step_count - report->first_step;
  for (uint32_t a = report->first_step; a < execution->step_count; a++) {
    const int64_t makespan = execution->makespans[a];
    uint32_t before = 0;
    for (uint32_t b = report->first_step; b < execution->step_count; b++) {
      const int64_t other = execution->makespans[b];
      before += other < makespan || (other == makespan && b < a) ? 1 : 0;
    }
    if (before == (count - 1) / 2) {
      return a;
    }
  }
  return report->first_step;
}

static uint64_t count_actions(const struct weft_cli_run_report *report) {
  const uint64_t *begin = report->execution->event_begin;
  const uint32_t p = report->execution->program->rank_count;
  uint64_t most = 0;
  for (uint32_t r = 0; r < p; r++) {
    most = begin[r + 1] - begin[r] > most ? begin[r + 1] - begin[r] : most;
  }
  return is_virtual(report) ? begin[p] : most;
}

void weft_cli_run_report_compute(struct weft_cli_run_report *report) {
  assert(report != NULL);
  report->step = median_step(report);
  report->makespan = (double)report->execution->makespans[report->step] / report->per_unit;
  report->wall_ns = weft_cli_execution_wall_ns(report->execution, report->step);
  report->actions = count_actions(report);
}

/* Measured divided by simulated makespan; NAN when it is not defined. */
static double run_ratio(const struct weft_cli_run_report *report) {
  return report->simulation != NULL && report->simulation->makespan > 0 && !report->is_null
             ? report->makespan / report->simulation->makespan
             : NAN;
}

/* Wall time of the step per action. */
static double per_action_ns(const struct weft_cli_run_report *report) {
  return report->actions > 0 ? (double)report->wall_ns / (double)report->actions : 0;
}

/* What the run took longer than simulated, per action of the busiest rank. */
static double overhead_ns(const struct weft_cli_run_report *report) {
  return report->actions > 0 ? (report->makespan - report->simulation->makespan) *
                                   report->per_unit / (double)report->actions
                             : 0;
}

/* ---- Text ---- */

static void add_makespan(struct weft_text *text, const char *label, double amount,
                         const char *unit) {
  weft_text_addf(text, "%-10s makespan %s", label, weft_cli_amount_in(amount, unit).text);
}

static void add_head(struct weft_text *text, const struct weft_cli_run_report *report) {
  const struct weft_cli_execution *execution = report->execution;
  const struct weft_program *program = execution->program;
  weft_text_add_escaped(text, report->name, strlen(report->name));
  weft_text_addf(text, ": %s, %" PRIu64 " actions\n", weft_cli_size(program).text,
                 execution->event_begin[program->rank_count]);
  weft_text_addf(text, "%-10s on %s, %s, %s%s\n", "ran", report->execution->transport->name,
                 is_virtual(report)                     ? "in virtual time"
                 : report->is_null                      ? "stages that do nothing"
                 : strcmp(report->stage, "spin") == 0   ? "stages that compute"
                 : strcmp(report->stage, "device") == 0 ? "stages that keep the GPU busy"
                                                        : "stages that sleep",
                 weft_cli_count(execution->step_count, "step").text,
                 report->first_step > 0 ? "; the first is a warm-up and not counted" : "");
}

static void add_comparison(struct weft_text *text, const struct weft_cli_run_report *report) {
  const double ratio = run_ratio(report);
  if (!report->is_null) {
    weft_text_addf(text, "%-10s %s\n", "costs",
                   weft_cli_scope_text(report->costs, report->execution->program).text);
  }
  add_makespan(text, "measured", report->makespan, report->costs->unit);
  weft_text_addf(text, ", of step %" PRIu32 ", the median\n", report->step + 1);
  if (report->simulation == NULL) {
    weft_text_addf(text, "%-10s nothing: it cannot finish in a simulation\n", "simulated");
    return;
  }
  add_makespan(text, "simulated", report->simulation->makespan, report->costs->unit);
  if (!isnan(ratio)) {
    weft_text_addf(text, "; measured / simulated = %.4f", ratio);
  }
  weft_text_add(text, "\n");
}

static void add_overhead(struct weft_text *text, const struct weft_cli_run_report *report) {
  if (is_virtual(report)) {
    weft_text_addf(text, "%-10s %.0f ns of real time, %" PRIu64 " actions in one thread\n",
                   "per action", per_action_ns(report), report->actions);
  } else if (report->is_null) {
    weft_text_addf(text,
                   "%-10s %.0f ns: wall time of the step by the %" PRIu64
                   " actions of the busiest rank\n",
                   "per action", per_action_ns(report), report->actions);
  } else if (report->simulation != NULL) {
    weft_text_addf(
        text, "%-10s %.0f ns more than simulated, of the %" PRIu64 " actions of the busiest rank\n",
        "per action", overhead_ns(report), report->actions);
  }
}

static void add_ranks(struct weft_text *text, const struct weft_cli_run_report *report) {
  const uint32_t p = report->execution->program->rank_count;
  const uint32_t shown = p <= RANKS_SHOWN ? p : RANKS_SHOWN;
  const struct weft_cli_rank_step *ranks =
      &report->execution->rank_steps[(uint64_t)report->step * p];
  weft_text_addf(text, "\n rank %12s %12s%s\n", "busy", "idle",
                 report->simulation != NULL ? "    simulated busy         idle" : "");
  for (uint32_t r = 0; r < shown; r++) {
    const double time = (double)ranks[r].busy / report->per_unit;
    weft_text_addf(text, "%5" PRIu32 " %12s %12s", r, weft_cli_amount(time).text,
                   weft_cli_amount(report->makespan - time).text);
    if (report->simulation != NULL) {
      const struct weft_rank_times *times = &report->simulation->ranks[r];
      weft_text_addf(text, " %17s %12s", weft_cli_amount(times->busy).text,
                     weft_cli_amount(times->idle).text);
    }
    weft_text_add(text, "\n");
  }
  if (shown < p) {
    weft_text_addf(text, "  ... %" PRIu32 " more ranks; --json has them all\n", p - shown);
  }
}

void weft_cli_run_add_text(struct weft_text *text, const struct weft_cli_run_report *report) {
  assert(text != NULL && report != NULL);
  add_head(text, report);
  add_comparison(text, report);
  add_overhead(text, report);
  weft_cli_note_text(text, report->execution->program);
  add_ranks(text, report);
}

/* ---- JSON ---- */

static void add_whole(struct weft_json *json, const struct weft_cli_run_report *report) {
  const struct weft_cli_execution *execution = report->execution;
  const struct weft_program *program = execution->program;
  weft_json_string(json, "file", report->name);
  weft_json_number(json, "rank_count", program->rank_count);
  weft_json_number(json, "stage_count", program->stage_count);
  weft_json_number(json, "microbatch_count", program->microbatch_count);
  weft_json_number(json, "actions", execution->event_begin[program->rank_count]);
  weft_json_string(json, "transport", report->execution->transport->name);
  weft_json_string(json, "stage", report->stage);
  weft_json_string(json, "comm", report->comm);
  weft_json_number(json, "steps", execution->step_count);
  weft_json_number(json, "steps_counted", execution->step_count - report->first_step);
  weft_json_string(json, "unit", report->costs->unit);
  weft_cli_scope_json(json, report->costs, report->execution->program);
  if (execution->cuda != NULL) {
    weft_json_number(json, "graph_steps", execution->replayed_steps);
  }
  if (execution->eager_reason != NULL) {
    weft_json_string(json, "no_graph", execution->eager_reason);
  }
}

/* Unknown values are null. */
static void add_times(struct weft_json *json, const struct weft_cli_run_report *report) {
  const double ratio = run_ratio(report);
  weft_json_exact(json, "measured_makespan", report->makespan);
  weft_json_exact(json, "simulated_makespan",
                  report->simulation != NULL ? report->simulation->makespan : NAN);
  weft_json_exact(json, "ratio", ratio);
  weft_json_real(json, "per_action_ns", per_action_ns(report));
  weft_json_real(json, "overhead_per_action_ns",
                 isnan(ratio) || is_virtual(report) ? NAN : overhead_ns(report));
  weft_json_open(json, "makespans", '[');
  for (uint32_t step = report->first_step; step < report->execution->step_count; step++) {
    weft_json_exact(json, NULL, (double)report->execution->makespans[step] / report->per_unit);
  }
  weft_json_close(json, ']');
}

static void add_json_ranks(struct weft_json *json, const struct weft_cli_run_report *report) {
  const uint32_t p = report->execution->program->rank_count;
  const struct weft_cli_rank_step *ranks =
      &report->execution->rank_steps[(uint64_t)report->step * p];
  weft_json_open(json, "ranks", '[');
  for (uint32_t r = 0; r < p; r++) {
    const double busy = (double)ranks[r].busy / report->per_unit;
    weft_json_open(json, NULL, '{');
    weft_json_exact(json, "busy", busy);
    weft_json_exact(json, "idle", report->makespan - busy);
    if (report->simulation != NULL) {
      weft_json_exact(json, "simulated_busy", report->simulation->ranks[r].busy);
      weft_json_exact(json, "simulated_idle", report->simulation->ranks[r].idle);
    }
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
}

void weft_cli_run_add_json(struct weft_text *text, const struct weft_cli_run_report *report) {
  assert(text != NULL && report != NULL);
  struct weft_json json = weft_json_begin(text, "weft-run/1");
  add_whole(&json, report);
  weft_cli_note_json(&json, report->execution->program);
  add_times(&json, report);
  add_json_ranks(&json, report);
  weft_json_end(&json);
}

/* ---- The timeline as a file ---- */

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

int weft_cli_run_draw(const struct weft_cli *cli, const char *path,
                      const struct weft_cli_run_report *report) {
  assert(cli != NULL && report != NULL);
  const struct weft_costs *costs = report->costs;
  const struct weft_cli_execution *execution = report->execution;
  const struct weft_program *program = execution->program;
  WEFT_SCOPED(weft_simulation) measured = NULL;
  WEFT_CLI_CALL(cli, report->name,
                weft_simulation_measured(cli->allocator, program, costs,
                                         weft_cli_execution_events(execution, report->step),
                                         execution->event_begin[program->rank_count],
                                         report->per_unit, &measured, &error));
  char step[64], source[320];
  (void)snprintf(source, sizeof source, "from the costs that the run was given; %s",
                 weft_cli_scope_text(costs, program).text);
  (void)snprintf(step, sizeof step, "step %" PRIu32 " of %" PRIu32 "%s", report->step + 1,
                 execution->step_count, execution->step_count > 2 ? ", the median" : "");
  const struct weft_cli_run_timeline timeline = {.name = report->name,
                                                 .transport = report->execution->transport->name,
                                                 .step = step,
                                                 .source = source,
                                                 .measured = measured,
                                                 .predicted = report->simulation,
                                                 .costs = costs};
  return weft_cli_timeline_write(cli, path, &timeline);
}
