/* The result of `weft verify` as text. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "cli/io/text_columns.h"
#include "cli/report/finding_grid.h"
#include "cli/report/graph_summary.h"
#include "cli/report/program_json.h"
#include "cli/report/verify_report.h"

const char *weft_cli_wait_words(const char *words) {
  static const char prefix[] = "waits for ";
  return strncmp(words, prefix, strlen(prefix)) == 0 ? words + strlen(prefix) : words;
}

/* Bubbles and the headers of overlaps are records, but no actions. */
static uint64_t count_actions(const struct weft_program *program) {
  uint64_t count = 0;
  for (uint64_t i = 0; i < program->action_count; i++) {
    const uint8_t op = program->actions[i].op;
    count += op != WEFT_OP_IDLE && op != WEFT_OP_OVERLAP_F_B ? 1 : 0;
  }
  return count;
}

static void add_coloured(struct weft_text *text, const struct weft_cli_verify_result *result,
                         const char *code, const char *words) {
  if (result->colour) {
    weft_text_addf(text, "\033[%sm%s\033[0m", code, words);
  } else {
    weft_text_add(text, words);
  }
}

static void add_ok(struct weft_text *text, const struct weft_cli_verify_result *result) {
  const struct weft_program *program = result->program;
  const struct weft_report *report = result->report;
  const uint64_t actions = count_actions(program);
  add_coloured(text, result, "32", "ok");
  weft_text_addf(text,
                 ": %" PRIu32 " rank%s, %" PRIu32 " stage%s, %" PRIu32 " microbatch%s, %" PRIu64
                 " action%s; complete%s, in order, ",
                 program->rank_count, weft_cli_plural(program->rank_count), report->stage_count,
                 weft_cli_plural(report->stage_count), report->microbatch_count,
                 report->microbatch_count == 1 ? "" : "es", actions, weft_cli_plural(actions),
                 report->has_backward ? "" : " (forward only)");
  if (program->level == WEFT_LEVEL_COMPUTE) {
    weft_text_add(text,
                  "every input is there in time on all ranks (compute-only table: 'weft lower' "
                  "makes it a program)\n");
  } else {
    weft_text_add(text, "cannot hang (");
    weft_comm_model_print(&result->options->model, text);
    weft_text_addf(text, " sends, %s)\n",
                   weft_channel_model_info(result->options->model.channel)->words);
  }
  if (!weft_graph_is_chain(program->graph)) {
    weft_text_add(text, "graph: ");
    weft_cli_graph_text(text, program->graph);
    weft_text_add(text, "\n");
  }
}

static void add_location(struct weft_text *text, const struct weft_location *location) {
  weft_text_addf(text, "rank %" PRIu32, location->rank);
  if (location->action != NULL) {
    weft_text_addf(text, " step %" PRIu64 " ", location->step);
    weft_action_print(location->action, text);
  }
}

static void add_finding(struct weft_text *text, const struct weft_cli_verify_result *result,
                        const struct weft_finding *finding) {
  add_location(text, &finding->location);
  weft_text_addf(text, ": %s [", finding->message);
  add_coloured(text, result, "31", weft_rule_id(finding->rule));
  weft_text_add(text, "]\n");
  for (size_t i = 0; i < finding->cycle_length; i++) {
    weft_text_add(text, "    ");
    add_location(text, &finding->cycle[i]);
    weft_text_addf(text, " waits for %s\n", weft_cli_wait_words(finding->cycle_waits[i]));
  }
}

/* A deadlock's cycle says most; without one, the first finding does. */
static const struct weft_finding *drawn_finding(const struct weft_report *report) {
  for (size_t i = 0; i < report->finding_count; i++) {
    if (report->findings[i].cycle_length > 0) {
      return &report->findings[i];
    }
  }
  return &report->findings[0];
}

static void add_capacity_hint(struct weft_text *text, uint32_t capacity) {
  if (capacity == WEFT_CAPACITY_UNLIMITED) {
    weft_text_add(text, "  hint: no number of buffers helps, not even --comm eager\n");
    return;
  }
  weft_text_addf(text, "  hint: --comm slots:%" PRIu32 " is the smallest without a deadlock\n",
                 capacity);
}

static enum weft_status add_findings(struct weft_text *text,
                                     const struct weft_cli_verify_result *result,
                                     struct weft_error *error) {
  const struct weft_report *report = result->report;
  const uint64_t count = report->finding_count + report->findings_left_out;
  for (size_t i = 0; i < report->finding_count; i++) {
    add_finding(text, result, &report->findings[i]);
  }
  if (report->findings_left_out > 0) {
    weft_text_addf(text, "and %" PRIu64 " more; --max-findings shows them\n",
                   report->findings_left_out);
  }
  weft_text_add(text, "\n");
  const size_t before = text->size;
  const enum weft_status status =
      weft_cli_finding_grid_add(text, result->program, drawn_finding(report), error);
  weft_text_add(text, text->size > before ? "\n" : "");
  weft_text_addf(text, "%" PRIu64 " finding%s in ", count, weft_cli_plural(count));
  weft_text_add_escaped(text, result->name, strlen(result->name));
  if (!report->liveness_checked) {
    weft_text_addf(text, "; whether it can hang was not checked, because of %s",
                   count == 1 ? "it" : "them");
  }
  weft_text_add(text, "\n");
  if (drawn_finding(report)->cycle_length > 0 && result->program->level == WEFT_LEVEL_COMMS) {
    add_capacity_hint(text, report->least_capacity);
  }
  return status;
}

enum weft_status weft_cli_verify_text(struct weft_text *text,
                                      const struct weft_cli_verify_result *result,
                                      struct weft_error *error) {
  assert(text != NULL && result != NULL);
  if (result->report->ok) {
    add_ok(text, result);
  } else {
    WEFT_TRY(add_findings(text, result, error));
  }
  weft_cli_note_text(text, result->program);
  return WEFT_OK;
}
