/* The report of `weft run` as JSON, "weft-run/1". */
#include <assert.h>

#include <weft/support.h>

#include "cli/report/run_report.h"

static void add_whole(struct weft_json *json, const struct weft_cli_run_report *report) {
  const struct weft_cli_execution *execution = report->execution;
  const struct weft_program *program = execution->program;
  weft_json_string(json, "file", report->name);
  weft_json_number(json, "rank_count", program->rank_count);
  weft_json_number(json, "stage_count", program->stage_count);
  weft_json_number(json, "microbatch_count", program->microbatch_count);
  weft_json_number(json, "actions", execution->event_begin[program->rank_count]);
  weft_json_string(json, "transport", report->transport);
  weft_json_string(json, "stage", report->stage);
  weft_json_string(json, "comm", report->comm);
  weft_json_number(json, "steps", execution->step_count);
  weft_json_number(json, "steps_counted", execution->step_count - report->first_step);
  weft_json_string(json, "unit", report->unit);
}

/* Unknown values are null. */
static void add_times(struct weft_json *json, const struct weft_cli_run_report *report) {
  const double ratio = weft_cli_run_ratio(report);
  weft_json_exact(json, "measured_makespan", report->makespan);
  if (report->simulation != NULL) {
    weft_json_exact(json, "simulated_makespan", report->simulation->makespan);
  } else {
    weft_json_null(json, "simulated_makespan");
  }
  if (ratio >= 0) {
    weft_json_exact(json, "ratio", ratio);
  } else {
    weft_json_null(json, "ratio");
  }
  weft_json_real(json, "per_action_ns", weft_cli_run_per_action_ns(report));
  if (ratio >= 0 && !report->is_virtual) {
    weft_json_real(json, "overhead_per_action_ns", weft_cli_run_overhead_ns(report));
  } else {
    weft_json_null(json, "overhead_per_action_ns");
  }
  weft_json_open(json, "makespans", '[');
  for (uint32_t step = report->first_step; step < report->execution->step_count; step++) {
    weft_json_exact(json, NULL, (double)report->execution->makespans[step] / report->per_unit);
  }
  weft_json_close(json, ']');
}

static void add_ranks(struct weft_json *json, const struct weft_cli_run_report *report) {
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
  struct weft_json json = {.text = text};
  weft_json_open(&json, NULL, '{');
  weft_json_string(&json, "schema", "weft-run/1");
  add_whole(&json, report);
  add_times(&json, report);
  add_ranks(&json, report);
  weft_json_close(&json, '}');
  weft_json_finish(&json);
}
