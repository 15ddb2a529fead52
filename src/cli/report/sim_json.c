/* The report as JSON, "weft-sim/1". */
#include <assert.h>

#include <weft/support.h>

#include "cli/report/program_json.h"
#include "cli/report/sim_report.h"

static void add_rank(struct weft_json *json, const struct weft_rank_times *rank) {
  weft_json_open(json, NULL, '{');
  weft_json_exact(json, "busy", rank->busy);
  weft_json_exact(json, "idle", rank->idle);
  weft_json_exact(json, "span", rank->span);
  weft_json_exact(json, "first_start", rank->first_start);
  weft_json_exact(json, "last_end", rank->last_end);
  weft_json_exact(json, "peak_activation", rank->peak_activation);
  weft_json_exact(json, "peak_at", rank->peak_at);
  weft_json_exact(json, "peak_memory", rank->peak_memory);
  weft_json_exact(json, "peak_parameters", rank->peak_parameters);
  weft_json_exact(json, "peak_gradients", rank->peak_gradients);
  weft_json_number(json, "receive_buffers", rank->receive_buffers_peak);
  weft_json_open(json, "idle_by_cause", '{');
  for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES; cause++) {
    weft_json_exact(json, weft_idle_cause_name((enum weft_idle_cause)cause),
                    rank->idle_by_cause[cause]);
  }
  weft_json_close(json, '}');
  weft_json_close(json, '}');
}

/* When the rank with the largest peak has it first. */
static double peak_at(const struct weft_simulation *simulation) {
  for (uint32_t rank = 0; rank < simulation->program->rank_count; rank++) {
    if (simulation->ranks[rank].peak_activation >= simulation->peak_activation) {
      return simulation->ranks[rank].peak_at;
    }
  }
  return 0;
}

static void add_jitter(struct weft_json *json, const struct weft_cli_jitter *jitter) {
  if (jitter->runs == 0) {
    return;
  }
  weft_json_open(json, "jitter", '{');
  weft_json_exact(json, "share", jitter->share);
  weft_json_number(json, "runs", jitter->runs);
  weft_json_exact(json, "mean", jitter->mean);
  weft_json_exact(json, "min", jitter->least);
  weft_json_exact(json, "p50", jitter->p50);
  weft_json_exact(json, "p90", jitter->p90);
  weft_json_exact(json, "p99", jitter->p99);
  weft_json_exact(json, "max", jitter->most);
  weft_json_close(json, '}');
}

static void add_limit(struct weft_json *json, const struct weft_cli_sim_report *report) {
  if (!report->limited) {
    return;
  }
  weft_json_exact(json, "memory_limit", report->memory_limit);
  weft_json_open(json, "over_limit", '[');
  for (uint32_t rank = 0; rank < report->simulation->program->rank_count; rank++) {
    if (weft_cli_is_over(report->simulation->ranks[rank].peak_memory, report->memory_limit)) {
      weft_json_number(json, NULL, rank);
    }
  }
  weft_json_close(json, ']');
}

static void add_path(struct weft_json *json, const struct weft_cli_sim_report *report) {
  const struct weft_simulation *simulation = report->simulation;
  if (!report->has_path) {
    return;
  }
  weft_json_open(json, "critical_path", '[');
  for (uint64_t k = 0; k < report->path_count; k++) {
    const struct weft_event *event = &simulation->events[report->path[k]];
    weft_json_open(json, NULL, '{');
    weft_json_number(json, "rank", event->rank);
    weft_json_action(json, "action", &simulation->program->actions[event->record]);
    weft_json_exact(json, "begin", (double)event->begin / simulation->ticks_per_unit);
    weft_json_exact(json, "end", (double)event->end / simulation->ticks_per_unit);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
}

void weft_cli_sim_json_members(struct weft_json *json, const struct weft_cli_sim_report *report) {
  assert(report != NULL);
  const struct weft_simulation *simulation = report->simulation;
  weft_json_string(json, "unit", report->costs->unit);
  weft_json_exact(json, "makespan", simulation->makespan);
  weft_json_exact(json, "span", simulation->span);
  weft_json_exact(json, "bubble_ratio", simulation->bubble_ratio);
  weft_json_exact(json, "span_bubble_ratio", simulation->span_bubble_ratio);
  weft_json_exact(json, "period", report->period);
  weft_json_exact(json, "peak_activation", simulation->peak_activation);
  weft_json_exact(json, "peak_at", peak_at(simulation));
  add_limit(json, report);
  add_jitter(json, &report->jitter);
  weft_json_open(json, "ranks", '[');
  for (uint32_t rank = 0; rank < simulation->program->rank_count; rank++) {
    add_rank(json, &simulation->ranks[rank]);
  }
  weft_json_close(json, ']');
  add_path(json, report);
}

void weft_cli_sim_json(struct weft_text *text, const struct weft_cli_sim_report *report) {
  assert(text != NULL && report != NULL);
  struct weft_json json = {.text = text};
  weft_json_open(&json, NULL, '{');
  weft_json_string(&json, "schema", "weft-sim/1");
  weft_cli_sim_json_members(&json, report);
  weft_json_close(&json, '}');
  weft_json_finish(&json);
}
