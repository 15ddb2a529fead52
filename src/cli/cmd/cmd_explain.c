/* `weft explain`: every instruction of a program, what it does and waits for; as text and as
 * "weft-explain/1". */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/lower.h>
#include <weft/spec.h>

#include "cli/cmd/commands.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/io/text_columns.h"
#include "cli/report/program_json.h"
#include "cli/scoped.h"

/* Rows rank_first ... rank_end - 1. */
struct listing {
  const struct weft_program *program;
  const struct weft_links *links;
  bool of_graph; /* stages are named by their numbers, not as stage+1 */
  uint32_t rank_first;
  uint32_t rank_end;
};

/* ---- Channels ---- */

/* The stages at the two ends of a SEND's or RECV's channel; the numbers may lie
 * outside the pipeline where the program is wrong. */
struct channel {
  char kind; /* 'F' activations, 'B' gradients */
  int64_t from_stage;
  int64_t to_stage;
};

/* False for what is neither SEND nor RECV. */
static bool channel_of(const struct weft_action *action, struct channel *channel) {
  const int64_t stage = action->stage, hop = 1 + action->skip;
  switch (action->op) {
    case WEFT_OP_SEND_F: *channel = (struct channel){'F', stage, stage + hop}; return true;
    case WEFT_OP_RECV_F: *channel = (struct channel){'F', stage - hop, stage}; return true;
    case WEFT_OP_SEND_B: *channel = (struct channel){'B', stage, stage - hop}; return true;
    case WEFT_OP_RECV_B: *channel = (struct channel){'B', stage + hop, stage}; return true;
    default: return false;
  }
}

/* The rank that owns a stage; WEFT_RANK_NONE when none does. */
static uint32_t channel_rank(const struct weft_links *links, int64_t stage) {
  return stage < 0 ? WEFT_RANK_NONE : weft_links_owner(links, (uint32_t)stage);
}

enum { ACTION_WIDTH = 18, CHANNEL_WIDTH = 20 };

/* "F 0>1 (rank 0>1)" */
static void add_channel(struct weft_text *text, const struct listing *report,
                        const struct weft_action *action) {
  struct channel channel;
  if (!channel_of(action, &channel)) {
    weft_text_add(text, "-");
    return;
  }
  const int64_t stages[2] = {channel.from_stage, channel.to_stage};
  weft_text_addf(text, "%c %" PRId64 ">%" PRId64 " (rank ", channel.kind, stages[0], stages[1]);
  for (unsigned k = 0; k < 2; k++) {
    const uint32_t rank = channel_rank(report->links, stages[k]);
    if (rank == WEFT_RANK_NONE) {
      weft_text_add(text, "?");
    } else {
      weft_text_add_number(text, rank);
    }
    weft_text_add(text, k == 0 ? ">" : ")");
  }
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

static void add_peer(struct weft_text *text, const struct listing *report, uint32_t rank,
                     uint64_t index) {
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

static void add_ties(struct weft_text *text, const struct listing *report, uint32_t rank,
                     uint64_t index) {
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

static void add_record(struct weft_text *text, const struct listing *report, uint32_t rank,
                       uint64_t index, const char *indent) {
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
  add_ties(text, report, rank, index);
  weft_text_add(text, "\n");
}

/* "; stage 0 'down', stage 3 'up'": those of the rank, where they have names. */
static void add_stages(struct weft_text *text, const struct listing *report, uint32_t rank) {
  const struct weft_graph *graph = report->program->graph;
  unsigned count = 0;
  for (uint32_t s = 0; weft_graph_has_names(graph) && s < graph->stage_count; s++) {
    if (weft_links_owner(report->links, s) == rank) {
      weft_text_add(text, count++ > 0 ? ", stage " : "; stage ");
      weft_graph_add_stage(graph, s, text);
    }
  }
}

static void add_heading(struct weft_text *text, const struct listing *report, uint32_t rank) {
  const struct weft_program *program = report->program;
  const uint64_t records = program->row_begin[rank + 1] - program->row_begin[rank];
  const uint64_t steps = weft_program_row_steps(program, rank);
  weft_text_addf(text, "rank %" PRIu32 ": %s, %s", rank,
                 weft_cli_count(records, "instruction").text, weft_cli_count(steps, "step").text);
  add_stages(text, report, rank);
  weft_text_add(text, "\n");
  if (records > 0) {
    weft_text_addf(text, "%6s %6s  %-*s%-*s%s\n", "#", "step", (int)ACTION_WIDTH, "action",
                   (int)CHANNEL_WIDTH, "channel",
                   program->level == WEFT_LEVEL_COMPUTE ? "waits for" : "peer, waits for");
  }
}

static void add_row(struct weft_text *text, const struct listing *report, uint32_t rank) {
  const struct weft_program *program = report->program;
  const uint64_t begin = program->row_begin[rank];
  uint64_t step = 0;
  add_heading(text, report, rank);
  for (uint64_t i = begin; i < program->row_begin[rank + 1] && !text->failed; step++) {
    const uint64_t size = weft_cli_cell_size(&program->actions[i]);
    for (uint64_t part = 0; part < size; part++, i++) {
      weft_text_addf(text, "%6" PRIu64 " %6" PRIu64 "  ", i - begin, step);
      add_record(text, report, rank, i, part > 0 ? "  " : "");
    }
  }
}

/* The summaries of the op table, for the ops that occur. */
static void add_legend(struct weft_text *text, const struct listing *report) {
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
  if (report->of_graph) {
    weft_text_add(text,
                  "The stages form a graph: stage-1 stands for all stages that feed a stage, "
                  "stage+1 for all that it feeds.\n");
  }
}

static void add_text(struct weft_text *text, const struct listing *report) {
  for (uint32_t rank = report->rank_first; rank < report->rank_end; rank++) {
    add_row(text, report, rank);
    weft_text_add(text, "\n");
  }
  add_legend(text, report);
}

/* ---- JSON ---- */

static void add_json_channel(struct weft_json *json, const struct listing *report,
                             const struct weft_action *action) {
  struct channel channel;
  if (!channel_of(action, &channel)) {
    return;
  }
  weft_json_open(json, "channel", '{');
  weft_json_string(json, "kind", (const char[2]){channel.kind, '\0'});
  /* A stage before the first is wrong, and has no number. */
  weft_json_optional(json, "from_stage", channel.from_stage >= 0, (uint64_t)channel.from_stage);
  weft_json_optional(json, "to_stage", channel.to_stage >= 0, (uint64_t)channel.to_stage);
  const uint32_t from = channel_rank(report->links, channel.from_stage);
  const uint32_t to = channel_rank(report->links, channel.to_stage);
  weft_json_optional(json, "from_rank", from != WEFT_RANK_NONE, from);
  weft_json_optional(json, "to_rank", to != WEFT_RANK_NONE, to);
  weft_json_close(json, '}');
}

/* What the op does; where stages form a graph, with the number of the other stage. */
static void add_json_summary(struct weft_json *json, const struct listing *report,
                             const struct weft_action *action) {
  const char *summary = weft_op_info((enum weft_op)action->op)->summary;
  struct channel channel;
  if (!report->of_graph || !channel_of(action, &channel)) {
    weft_json_string(json, "does", summary);
    return;
  }
  const char *end = strstr(summary, "stage+1") != NULL ? "+1" : "-1";
  const char *formula = strstr(summary, end);
  const int64_t other = channel.from_stage + channel.to_stage - action->stage;
  char does[96];
  assert(formula != NULL && formula[2] == '\0');
  (void)snprintf(does, sizeof does, "%.*s %" PRId64, (int)(formula - summary), summary, other);
  weft_json_string(json, "does", does);
}

static void add_json_reference(struct weft_json *json, const char *key,
                               const struct weft_program *program, uint64_t index) {
  const uint32_t rank = weft_program_rank_at(program, index);
  weft_json_open(json, key, '{');
  weft_json_number(json, "rank", rank);
  weft_json_number(json, "index", index - program->row_begin[rank]);
  weft_json_action(json, "action", &program->actions[index]);
  weft_json_close(json, '}');
}

static void add_json_ties(struct weft_json *json, const struct listing *report, uint64_t index) {
  const struct weft_program *program = report->program;
  uint64_t needs[WEFT_NEEDS_MAX];
  if (weft_links_peer(report->links, index) != WEFT_MATCH_NONE) {
    add_json_reference(json, "peer", program, weft_links_peer(report->links, index));
  }
  const unsigned count = weft_links_needs(report->links, index, needs);
  weft_json_open(json, "needs", '[');
  for (unsigned i = 0; i < count; i++) {
    add_json_reference(json, NULL, program, needs[i]);
  }
  weft_json_close(json, ']');
}

static void add_json_record(struct weft_json *json, const struct listing *report,
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
    if (weft_graph_name(program->graph, action->stage) != NULL) {
      weft_json_string(json, "stage_name", weft_graph_name(program->graph, action->stage));
    }
  }
  if (info->has_microbatch) {
    weft_json_number(json, "microbatch", action->microbatch);
  }
  add_json_summary(json, report, action);
  add_json_channel(json, report, action);
  add_json_ties(json, report, index);
  weft_json_close(json, '}');
}

static void add_json_row(struct weft_json *json, const struct listing *report, uint32_t rank) {
  const struct weft_program *program = report->program;
  const uint64_t begin = program->row_begin[rank];
  uint64_t step = 0;
  weft_json_open(json, NULL, '{');
  weft_json_number(json, "rank", rank);
  weft_json_open(json, "instructions", '[');
  for (uint64_t i = begin; i < program->row_begin[rank + 1] && !json->text->failed; step++) {
    const uint64_t cell_end = i + weft_cli_cell_size(&program->actions[i]);
    for (; i < cell_end; i++) {
      add_json_record(json, report, begin, step, i);
    }
  }
  weft_json_close(json, ']');
  weft_json_close(json, '}');
}

static void add_json(struct weft_text *text, const struct listing *report) {
  struct weft_json json = weft_json_begin(text, "weft-explain/1");
  const struct weft_program *program = report->program;
  weft_json_string(&json, "level", weft_cli_level_name(program->level));
  weft_json_number(&json, "ranks", program->rank_count);
  weft_json_number(&json, "stages", program->stage_count);
  weft_json_number(&json, "microbatches", program->microbatch_count);
  weft_graph_print(program->graph, &json, "graph");
  weft_json_open(&json, "rows", '[');
  for (uint32_t rank = report->rank_first; rank < report->rank_end; rank++) {
    add_json_row(&json, report, rank);
  }
  weft_json_close(&json, ']');
  weft_json_end(&json);
}

/* ---- The command ---- */

int weft_cli_cmd_explain(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  const char *name = weft_cli_input_name(arguments->operands[0]);
  const bool one = arguments->given[WEFT_CLI_OPTION_RANK];
  const uint64_t rank = weft_cli_number(arguments, WEFT_CLI_OPTION_RANK, 0);
  WEFT_SCOPED(weft_program) program = NULL;
  WEFT_SCOPED(weft_links) links = NULL;
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  WEFT_CLI_TRY(weft_cli_read_operand(cli, arguments, 0, &program));
  if (rank >= program->rank_count) {
    return weft_cli_usage(cli, "ranks count from 0",
                          "--rank %" PRIu64 " is not there: the program has %" PRIu32 " ranks",
                          rank, program->rank_count);
  }
  if (program->level == WEFT_LEVEL_COMPUTE) {
    weft_cli_print(cli, NULL,
                   "note: a compute-only table, listed as it is; 'weft lower' adds channels");
  }
  WEFT_CLI_CALL(cli, name, weft_links_create(cli->allocator, program, &links, &error));
  const struct listing report = {.program = program,
                                 .links = links,
                                 .of_graph = !weft_graph_is_chain(program->graph),
                                 .rank_first = (uint32_t)rank,
                                 .rank_end = one ? (uint32_t)rank + 1 : program->rank_count};
  (arguments->given[WEFT_CLI_OPTION_JSON] ? add_json : add_text)(&text, &report);
  return weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
}
