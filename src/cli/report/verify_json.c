/* The result of `weft verify` as JSON. */
#include <assert.h>

#include "cli/report/graph_summary.h"
#include "cli/report/program_json.h"
#include "cli/report/verify_report.h"

static void add_json_location(struct weft_json *json, const struct weft_location *location) {
  weft_json_number(json, "rank", location->rank);
  weft_json_optional(json, "step", location->action != NULL, location->step);
  weft_json_action(json, "action", location->action);
}

static void add_json_cycle(struct weft_json *json, const struct weft_finding *finding) {
  weft_json_open(json, "cycle", '[');
  for (size_t i = 0; i < finding->cycle_length; i++) {
    weft_json_open(json, NULL, '{');
    add_json_location(json, &finding->cycle[i]);
    weft_json_string(json, "waits_for", weft_cli_wait_words(finding->cycle_waits[i]));
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
}

static void add_json_findings(struct weft_json *json, const struct weft_report *report) {
  const struct weft_finding *deadlock = NULL;
  weft_json_open(json, "findings", '[');
  for (size_t i = 0; i < report->finding_count; i++) {
    const struct weft_finding *finding = &report->findings[i];
    weft_json_open(json, NULL, '{');
    weft_json_string(json, "rule", weft_rule_id(finding->rule));
    weft_json_string(json, "message", finding->message);
    add_json_location(json, &finding->location);
    if (finding->cycle_length > 0) {
      add_json_cycle(json, finding);
      deadlock = deadlock == NULL ? finding : deadlock;
    }
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
  weft_json_number(json, "findings_left_out", report->findings_left_out);
  if (deadlock != NULL) {
    add_json_cycle(json, deadlock);
    weft_json_optional(json, "smallest_slots", report->least_capacity != WEFT_CAPACITY_UNLIMITED,
                       report->least_capacity);
  }
}

static void add_json_moves(struct weft_json *json, const char *key, const struct weft_turn *moves,
                           uint64_t count) {
  weft_json_open(json, key, '[');
  for (uint64_t k = 0; k < count; k++) {
    const struct weft_turn *move = &moves[k];
    weft_json_open(json, NULL, '{');
    add_json_location(json, &move->location);
    if (move->after_rank != WEFT_RANK_NONE) {
      weft_json_open(json, "after", '{');
      weft_json_number(json, "rank", move->after_rank);
      weft_json_action(json, "action", &move->after);
      weft_json_close(json, '}');
    }
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
}

static void add_json_model(struct weft_json *json, const struct weft_comm_model *model) {
  WEFT_SCOPED_TEXT comm = {.allocator = json->text->allocator};
  weft_comm_model_print(model, &comm);
  json->text->failed = json->text->failed || comm.failed;
  weft_json_open(json, "model", '{');
  weft_json_string(json, "comm", comm.failed ? "" : comm.data);
  weft_json_string(json, "channel", weft_channel_model_info(model->channel)->name);
  weft_json_close(json, '}');
}

void weft_cli_verify_json(struct weft_text *text, const struct weft_cli_verify_result *result) {
  assert(text != NULL && result != NULL);
  struct weft_json json = weft_json_begin(text, "weft-verify/1");
  const struct weft_report *report = result->report;
  weft_json_boolean(&json, "ok", report->ok);
  weft_json_string(&json, "level", weft_cli_level_name(result->program->level));
  add_json_model(&json, &result->options->model);
  weft_json_number(&json, "ranks", result->program->rank_count);
  weft_json_number(&json, "stages", report->stage_count);
  weft_json_number(&json, "microbatches", report->microbatch_count);
  weft_json_number(&json, "actions", result->program->action_count);
  weft_cli_graph_json(&json, result->program->graph);
  weft_json_boolean(&json, "has_backward", report->has_backward);
  weft_json_boolean(&json, "liveness_checked", report->liveness_checked);
  add_json_findings(&json, report);
  if (result->options->trace && report->moves != NULL) {
    add_json_moves(&json, "moves", report->moves, report->move_count);
    add_json_moves(&json, "waits", report->waits, report->wait_count);
  }
  weft_cli_note_json(&json, result->program);
  weft_json_end(&json);
}
