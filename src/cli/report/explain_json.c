/* The report as JSON, "weft-explain/1". */
#include <assert.h>

#include <weft/lower.h>
#include <weft/spec.h>

#include "cli/report/explain_report.h"
#include "cli/report/program_json.h"

static void add_owner(struct weft_json *json, const char *key,
                      const struct weft_cli_explain_report *report, int64_t stage) {
  const uint32_t rank = weft_cli_channel_rank(report->links, stage);
  if (rank == WEFT_RANK_NONE) {
    weft_json_null(json, key);
  } else {
    weft_json_number(json, key, rank);
  }
}

static void add_channel(struct weft_json *json, const struct weft_cli_explain_report *report,
                        const struct weft_action *action) {
  struct weft_cli_channel channel;
  if (!weft_cli_channel_of(action, &channel)) {
    return;
  }
  const char kind[2] = {channel.kind, '\0'};
  weft_json_open(json, "channel", '{');
  weft_json_string(json, "kind", kind);
  /* A stage before the first is wrong, and has no number. */
  if (channel.from_stage < 0 || channel.to_stage < 0) {
    weft_json_null(json, channel.from_stage < 0 ? "from_stage" : "to_stage");
  }
  if (channel.from_stage >= 0) {
    weft_json_number(json, "from_stage", (uint64_t)channel.from_stage);
  }
  if (channel.to_stage >= 0) {
    weft_json_number(json, "to_stage", (uint64_t)channel.to_stage);
  }
  add_owner(json, "from_rank", report, channel.from_stage);
  add_owner(json, "to_rank", report, channel.to_stage);
  weft_json_close(json, '}');
}

static void add_reference(struct weft_json *json, const char *key,
                          const struct weft_program *program, uint64_t index) {
  const uint32_t rank = weft_program_rank_at(program, index);
  weft_json_open(json, key, '{');
  weft_json_number(json, "rank", rank);
  weft_json_number(json, "index", index - program->row_begin[rank]);
  weft_json_action(json, "action", &program->actions[index]);
  weft_json_close(json, '}');
}

static void add_ties(struct weft_json *json, const struct weft_cli_explain_report *report,
                     uint64_t index) {
  const struct weft_program *program = report->program;
  uint64_t needs[WEFT_NEEDS_MAX];
  if (weft_links_peer(report->links, index) != WEFT_MATCH_NONE) {
    add_reference(json, "peer", program, weft_links_peer(report->links, index));
  }
  const unsigned count = weft_links_needs(report->links, index, needs);
  weft_json_open(json, "needs", '[');
  for (unsigned i = 0; i < count; i++) {
    add_reference(json, NULL, program, needs[i]);
  }
  weft_json_close(json, ']');
}

static void add_record(struct weft_json *json, const struct weft_cli_explain_report *report,
                       uint64_t row_begin, uint64_t step, uint64_t index) {
  const struct weft_program *program = report->program;
  const struct weft_action *action = &program->actions[index];
  const struct weft_op_info *info = weft_op_info((enum weft_op)action->op);
  weft_json_open(json, NULL, '{');
  weft_json_number(json, "index", index - row_begin);
  weft_json_number(json, "step", step);
  weft_json_action(json, "action", action);
  weft_json_string(json, "op", info->text);
  if (info->kind != WEFT_KIND_IDLE && info->kind != WEFT_KIND_GROUP) {
    weft_json_number(json, "stage", action->stage);
  }
  if (info->has_microbatch) {
    weft_json_number(json, "microbatch", action->microbatch);
  }
  weft_json_string(json, "does", info->summary);
  add_channel(json, report, action);
  if (program->slots != NULL && program->slots[index] != WEFT_SLOT_NONE) {
    weft_json_number(json, info->kind == WEFT_KIND_RECV ? "receive_slot" : "activation_slot",
                     program->slots[index]);
  }
  add_ties(json, report, index);
  weft_json_close(json, '}');
}

static void add_row(struct weft_json *json, const struct weft_cli_explain_report *report,
                    uint32_t rank) {
  const struct weft_program *program = report->program;
  const uint64_t begin = program->row_begin[rank];
  uint64_t step = 0;
  weft_json_open(json, NULL, '{');
  weft_json_number(json, "rank", rank);
  if (program->slots != NULL) {
    weft_json_number(json, "receive_slots", program->receive_slots[rank]);
    weft_json_number(json, "activation_slots", program->activation_slots[rank]);
  }
  weft_json_open(json, "instructions", '[');
  for (uint64_t i = begin; i < program->row_begin[rank + 1] && !json->text->failed; step++) {
    const uint64_t cell_end = i + weft_cli_cell_size(&program->actions[i]);
    for (; i < cell_end; i++) {
      add_record(json, report, begin, step, i);
    }
  }
  weft_json_close(json, ']');
  weft_json_close(json, '}');
}

void weft_cli_explain_json(struct weft_text *text, const struct weft_cli_explain_report *report) {
  assert(text != NULL && report != NULL);
  struct weft_json json = {.text = text};
  const struct weft_program *program = report->program;
  weft_json_open(&json, NULL, '{');
  weft_json_string(&json, "schema", "weft-explain/1");
  weft_json_string(&json, "level", weft_cli_level_name(program->level));
  weft_json_number(&json, "ranks", program->rank_count);
  weft_json_number(&json, "stages", program->stage_count);
  weft_json_number(&json, "microbatches", program->microbatch_count);
  weft_json_open(&json, "rows", '[');
  for (uint32_t rank = report->rank_first; rank < report->rank_end; rank++) {
    add_row(&json, report, rank);
  }
  weft_json_close(&json, ']');
  weft_json_close(&json, '}');
  weft_json_finish(&json);
}
