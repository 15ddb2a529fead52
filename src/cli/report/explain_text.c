/* The report as text: a line per instruction, the parts of an overlap below it,
 * and at the end what the ops mean. */
#include <assert.h>
#include <inttypes.h>

#include <weft/lower.h>
#include <weft/spec.h>

#include "cli/io/text_columns.h"
#include "cli/report/explain_report.h"
#include "cli/report/program_json.h"

enum { ACTION_WIDTH = 18, CHANNEL_WIDTH = 20, BUFFER_WIDTH = 8 };

static void add_owner(struct weft_text *text, const struct weft_cli_explain_report *report,
                      int64_t stage) {
  const uint32_t rank = weft_cli_channel_rank(report->links, stage);
  if (rank == WEFT_RANK_NONE) {
    weft_text_add(text, "?");
  } else {
    weft_text_add_number(text, rank);
  }
}

/* "F 0>1 (rank 0>1)" */
static void add_channel(struct weft_text *text, const struct weft_cli_explain_report *report,
                        const struct weft_action *action) {
  struct weft_cli_channel channel;
  if (!weft_cli_channel_of(action, &channel)) {
    weft_text_add(text, "-");
    return;
  }
  weft_text_addf(text, "%c %" PRId64 ">%" PRId64 " (rank ", channel.kind, channel.from_stage,
                 channel.to_stage);
  add_owner(text, report, channel.from_stage);
  weft_text_add(text, ">");
  add_owner(text, report, channel.to_stage);
  weft_text_add(text, ")");
}

static void add_buffer(struct weft_text *text, const struct weft_program *program, uint64_t index) {
  if (program->slots == NULL || program->slots[index] == WEFT_SLOT_NONE) {
    weft_text_add(text, "-");
    return;
  }
  const enum weft_op op = (enum weft_op)program->actions[index].op;
  weft_text_addf(text, "%c%" PRIu32, weft_op_info(op)->kind == WEFT_KIND_RECV ? 'r' : 'a',
                 program->slots[index]);
}

/* "#12 1RECV_F0", with the rank before it where it is another one. */
static void add_reference(struct weft_text *text, const struct weft_program *program, uint32_t here,
                          uint64_t index) {
  const uint32_t rank = weft_program_rank_at(program, index);
  if (rank != here) {
    weft_text_addf(text, "rank %" PRIu32 " ", rank);
  }
  weft_text_addf(text, "#%" PRIu64 " ", index - program->row_begin[rank]);
  weft_action_print(&program->actions[index], text);
}

static void add_peer(struct weft_text *text, const struct weft_cli_explain_report *report,
                     uint32_t rank, uint64_t index) {
  const struct weft_action action = report->program->actions[index];
  const struct weft_op_info *info = weft_op_info((enum weft_op)action.op);
  const uint32_t match = weft_links_peer(report->links, index);
  const bool alone = info->kind == WEFT_KIND_SHARD && report->program->stage_count == 1;
  if (info->peer_word[0] == '\0' || alone) {
    return;
  }
  weft_text_addf(text, "%s ", info->peer_word);
  if (match == WEFT_MATCH_NONE) {
    weft_text_add(text, "nobody");
  } else {
    add_reference(text, report->program, rank, match);
  }
}

static void add_ties(struct weft_text *text, const struct weft_cli_explain_report *report,
                     uint32_t rank, uint64_t index) {
  const size_t begin = text->size;
  uint64_t needs[WEFT_NEEDS_MAX];
  add_peer(text, report, rank, index);
  const unsigned count = weft_links_needs(report->links, index, needs);
  for (unsigned i = 0; i < count; i++) {
    const char *before = i > 0 ? ", " : text->size > begin ? ", after " : "after ";
    weft_text_add(text, before);
    add_reference(text, report->program, rank, needs[i]);
  }
  if (text->size == begin) {
    weft_text_add(text, "-");
  }
}

static void add_record(struct weft_text *text, const struct weft_cli_explain_report *report,
                       uint32_t rank, uint64_t index, const char *indent) {
  const struct weft_action *action = &report->program->actions[index];
  size_t begin = text->size;
  weft_text_add(text, indent);
  if (action->op == WEFT_OP_IDLE) {
    weft_text_add(text, "(bubble)\n");
    return;
  }
  weft_action_print(action, text);
  weft_cli_pad(text, begin, ACTION_WIDTH);
  begin = text->size;
  add_channel(text, report, action);
  weft_cli_pad(text, begin, CHANNEL_WIDTH);
  begin = text->size;
  add_buffer(text, report->program, index);
  weft_cli_pad(text, begin, BUFFER_WIDTH);
  add_ties(text, report, rank, index);
  weft_text_add(text, "\n");
}

static void add_heading(struct weft_text *text, const struct weft_program *program, uint32_t rank) {
  const uint64_t records = program->row_begin[rank + 1] - program->row_begin[rank];
  const uint64_t steps = weft_program_row_steps(program, rank);
  weft_text_addf(text, "rank %" PRIu32 ": %" PRIu64 " instruction%s, %" PRIu64 " step%s", rank,
                 records, weft_cli_plural(records), steps, weft_cli_plural(steps));
  if (program->slots != NULL) {
    weft_text_addf(text, ", %" PRIu32 " receive and %" PRIu32 " activation buffers",
                   program->receive_slots[rank], program->activation_slots[rank]);
  }
  weft_text_add(text, "\n");
  if (records > 0) {
    weft_text_addf(text, "%6s %6s  %-*s%-*s%-*s%s\n", "#", "step", (int)ACTION_WIDTH, "action",
                   (int)CHANNEL_WIDTH, "channel", (int)BUFFER_WIDTH, "buffer",
                   program->level == WEFT_LEVEL_COMPUTE ? "waits for" : "peer, waits for");
  }
}

static void add_row(struct weft_text *text, const struct weft_cli_explain_report *report,
                    uint32_t rank) {
  const struct weft_program *program = report->program;
  const uint64_t begin = program->row_begin[rank];
  uint64_t step = 0;
  add_heading(text, program, rank);
  for (uint64_t i = begin; i < program->row_begin[rank + 1] && !text->failed; step++) {
    const uint64_t size = weft_cli_cell_size(&program->actions[i]);
    for (uint64_t part = 0; part < size; part++, i++) {
      weft_text_addf(text, "%6" PRIu64 " %6" PRIu64 "  ", i - begin, step);
      add_record(text, report, rank, i, part > 0 ? "  " : "");
    }
  }
}

/* The summaries of the op table, for the ops that occur. */
static void add_legend(struct weft_text *text, const struct weft_cli_explain_report *report) {
  const struct weft_program *program = report->program;
  bool occurs[WEFT_OP_COUNT] = {false};
  for (uint64_t i = program->row_begin[report->rank_first];
       i < program->row_begin[report->rank_end]; i++) {
    occurs[program->actions[i].op] = true;
  }
  for (unsigned op = WEFT_OP_IDLE + 1; op < WEFT_OP_COUNT; op++) {
    const struct weft_op_info *info = weft_op_info((enum weft_op)op);
    if (occurs[op]) {
      weft_text_addf(text, "%-12s %s; waits for: %s\n", info->text, info->summary, info->waits_for);
    }
  }
}

void weft_cli_explain_text(struct weft_text *text, const struct weft_cli_explain_report *report) {
  assert(text != NULL && report != NULL);
  for (uint32_t rank = report->rank_first; rank < report->rank_end; rank++) {
    add_row(text, report, rank);
    weft_text_add(text, "\n");
  }
  add_legend(text, report);
}
