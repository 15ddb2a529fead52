/* `weft verify`: the findings, as text and as "weft-verify/1". */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/inspect.h>
#include <weft/support.h>
#include <weft/verify.h>

#include "cli/cmd/commands.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/io/text_columns.h"
#include "cli/report/graph_summary.h"
#include "cli/report/program_json.h"
#include "cli/scoped.h"

/* ---- --list ---- */

static void list_models(struct weft_text *text) {
  const struct weft_send_model_info *send;
  const struct weft_channel_model_info *channel;
  weft_text_add(text, "--comm, when a SEND is done:\n");
  for (uint32_t k = 0; (send = weft_send_model_info((enum weft_send_model)k)) != NULL; k++) {
    weft_text_addf(text, "  %-15s%s\n", send->name, send->done);
  }
  weft_text_add(text, "\n--channel, what one channel carries:\n");
  for (uint32_t k = 0; (channel = weft_channel_model_info((enum weft_channel_model)k)) != NULL;
       k++) {
    weft_text_addf(text, "  %-15s%s\n", channel->name, channel->one_for);
  }
}

static void list_models_json(struct weft_text *text) {
  const struct weft_send_model_info *send;
  const struct weft_channel_model_info *channel;
  struct weft_json json = weft_json_begin(text, "weft-models/1");
  weft_json_open(&json, "comm", '[');
  for (uint32_t k = 0; (send = weft_send_model_info((enum weft_send_model)k)) != NULL; k++) {
    weft_json_open(&json, NULL, '{');
    weft_json_string(&json, "name", send->name);
    weft_json_string(&json, "done", send->done);
    weft_json_boolean(&json, "row_waits", send->row_waits);
    weft_json_close(&json, '}');
  }
  weft_json_close(&json, ']');
  weft_json_open(&json, "channel", '[');
  for (uint32_t k = 0; (channel = weft_channel_model_info((enum weft_channel_model)k)) != NULL;
       k++) {
    weft_json_open(&json, NULL, '{');
    weft_json_string(&json, "name", channel->name);
    weft_json_string(&json, "one_for", channel->one_for);
    weft_json_string(&json, "words", channel->words);
    weft_json_boolean(&json, "asynchronous", channel->asynchronous);
    weft_json_close(&json, '}');
  }
  weft_json_close(&json, ']');
  weft_json_end(&json);
}

/* ---- Options ---- */

static int read_options(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                        struct weft_verify_options *options) {
  *options = weft_verify_options_default();
  options->stage_count = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_STAGES, 0);
  const uint64_t microbatches = weft_cli_number(arguments, WEFT_CLI_OPTION_MICROBATCHES, 0);
  if (microbatches > WEFT_MICROBATCHES_MAX) {
    return weft_cli_usage(cli, "leave -m out to take the number from the table",
                          "-m %" PRIu64 " is over the limit of %" PRIu32 " microbatches",
                          microbatches, WEFT_MICROBATCHES_MAX);
  }
  options->microbatch_count = (uint32_t)microbatches;
  options->findings_max =
      (size_t)weft_cli_number(arguments, WEFT_CLI_OPTION_MAX_FINDINGS, options->findings_max);
  options->model.channel = (enum weft_channel_model)arguments->choices[WEFT_CLI_OPTION_CHANNEL];
  options->trace = arguments->given[WEFT_CLI_OPTION_TRACE];
  if (options->trace && !arguments->given[WEFT_CLI_OPTION_JSON]) {
    return weft_cli_usage(cli, "add --json", "--trace is a list for programs");
  }
  if (arguments->given[WEFT_CLI_OPTION_COMM]) {
    const enum weft_send_model model =
        (enum weft_send_model)arguments->choices[WEFT_CLI_OPTION_COMM];
    options->model.capacity = (uint32_t)arguments->numbers[WEFT_CLI_OPTION_COMM];
    options->model.posted = !weft_send_model_info(model)->row_waits;
  }
  return WEFT_CLI_OK;
}

struct result {
  const struct weft_program *program;
  const struct weft_verify_options *options;
  const struct weft_report *report;
  const char *name; /* of the input */
  bool colour;
};

/* ---- The part of the grid round a finding: few enough rows and columns to be read ---- */

enum { COLUMNS_MAX = 12, ROWS_MAX = 28, MARGIN = 3, WINDOWS_MAX = 4 };

struct excerpt {
  const struct weft_program *program;
  const struct weft_location *marks;
  size_t mark_count;
  uint32_t ranks[COLUMNS_MAX]; /* ascending */
  uint32_t rank_count;
};

static void add_rank(struct excerpt *excerpt, uint32_t rank) {
  uint32_t at = 0;
  while (at < excerpt->rank_count && excerpt->ranks[at] < rank) {
    at++;
  }
  const bool known = at < excerpt->rank_count && excerpt->ranks[at] == rank;
  if (known || excerpt->rank_count == COLUMNS_MAX || rank >= excerpt->program->rank_count) {
    return;
  }
  for (uint32_t i = excerpt->rank_count; i > at; i--) {
    excerpt->ranks[i] = excerpt->ranks[i - 1];
  }
  excerpt->ranks[at] = rank;
  excerpt->rank_count++;
}

/* The marked ranks first, then their neighbours, nearest first. */
static void choose_ranks(struct excerpt *excerpt) {
  for (uint32_t distance = 0; distance <= COLUMNS_MAX; distance++) {
    for (size_t i = 0; i < excerpt->mark_count && excerpt->rank_count < COLUMNS_MAX; i++) {
      const uint32_t rank = excerpt->marks[i].rank;
      if (rank >= distance) {
        add_rank(excerpt, rank - distance);
      }
      add_rank(excerpt, rank + distance);
    }
  }
}

static enum weft_status print_window(const struct excerpt *excerpt, uint64_t first, uint64_t last,
                                     struct weft_text *text, struct weft_error *error) {
  const struct weft_grid_options options = {
      .step_first = first > MARGIN ? first - MARGIN : 0,
      .step_count = last - first + 1 + (first > MARGIN ? MARGIN : first) + MARGIN,
      .ranks = excerpt->ranks,
      .rank_count = excerpt->rank_count,
      .marks = excerpt->marks,
      .mark_count = excerpt->mark_count};
  return weft_grid_print(excerpt->program, &options, text, error);
}

/* One window over all marks, or, where they lie far apart, one for each of the
 * first few. */
static enum weft_status print_windows(const struct excerpt *excerpt, struct weft_text *text,
                                      struct weft_error *error) {
  uint64_t first = UINT64_MAX, last = 0;
  for (size_t i = 0; i < excerpt->mark_count; i++) {
    const uint64_t step = excerpt->marks[i].step;
    first = step < first ? step : first;
    last = step > last ? step : last;
  }
  if (last - first < ROWS_MAX - 2 * MARGIN) {
    return print_window(excerpt, first, last, text, error);
  }
  enum weft_status status = WEFT_OK;
  for (size_t i = 0; i < excerpt->mark_count && i < WINDOWS_MAX && status == WEFT_OK; i++) {
    const uint64_t step = excerpt->marks[i].step;
    weft_text_add(text, i > 0 ? "...\n" : "");
    status = print_window(excerpt, step, step, text, error);
  }
  return status;
}

/* Appends an excerpt of the grid of the program with the place of the finding, or all members of
 * its cycle, marked; nothing when the finding has no place in it. */
static enum weft_status add_grid(struct weft_text *text, const struct weft_program *program,
                                 const struct weft_finding *finding, struct weft_error *error) {
  const bool cycle = finding->cycle_length > 0;
  struct excerpt excerpt = {.program = program,
                            .marks = cycle ? finding->cycle : &finding->location,
                            .mark_count = cycle ? finding->cycle_length : 1};
  if (!cycle &&
      (finding->location.action == NULL || finding->location.rank >= program->rank_count)) {
    return WEFT_OK;
  }
  choose_ranks(&excerpt);
  return print_windows(&excerpt, text, error);
}

/* ---- Text ---- */

/* What a member of a cycle waits for, without "waits for" before it. */
static const char *wait_words(const char *words) {
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

static void add_coloured(struct weft_text *text, const struct result *result, const char *code,
                         const char *words) {
  if (result->colour) {
    weft_text_addf(text, "\033[%sm%s\033[0m", code, words);
  } else {
    weft_text_add(text, words);
  }
}

static void add_ok(struct weft_text *text, const struct result *result) {
  const struct weft_program *program = result->program;
  const struct weft_report *report = result->report;
  add_coloured(text, result, "32", "ok");
  weft_text_addf(text, ": %s, %s, %s, %s; complete%s, in order, ",
                 weft_cli_count(program->rank_count, "rank").text,
                 weft_cli_count(report->stage_count, "stage").text,
                 weft_cli_count(report->microbatch_count, "microbatch").text,
                 weft_cli_count(count_actions(program), "action").text,
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
  weft_cli_graph_text(text, "graph: ", program->graph);
}

static void add_location(struct weft_text *text, const struct weft_location *location) {
  weft_text_addf(text, "rank %" PRIu32, location->rank);
  if (location->action != NULL) {
    weft_text_addf(text, " step %" PRIu64 " ", location->step);
    weft_action_print(location->action, text);
  }
}

static void add_finding(struct weft_text *text, const struct result *result,
                        const struct weft_finding *finding) {
  add_location(text, &finding->location);
  weft_text_addf(text, ": %s [", finding->message);
  add_coloured(text, result, "31", weft_rule_id(finding->rule));
  weft_text_add(text, "]\n");
  for (size_t i = 0; i < finding->cycle_length; i++) {
    weft_text_add(text, "    ");
    add_location(text, &finding->cycle[i]);
    weft_text_addf(text, " waits for %s\n", wait_words(finding->cycle_waits[i]));
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

static enum weft_status add_findings(struct weft_text *text, const struct result *result,
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
  const enum weft_status status = add_grid(text, result->program, drawn_finding(report), error);
  weft_text_add(text, text->size > before ? "\n" : "");
  weft_text_addf(text, "%s in ", weft_cli_count(count, "finding").text);
  weft_text_add_escaped(text, result->name, strlen(result->name));
  if (!report->liveness_checked) {
    weft_text_addf(text, "; whether it can hang was not checked, because of %s",
                   count == 1 ? "it" : "them");
  }
  weft_text_add(text, "\n");
  if (drawn_finding(report)->cycle_length > 0 && result->program->level == WEFT_LEVEL_COMMS) {
    const struct weft_comm_model least = {.capacity = report->least_capacity};
    const bool helps = least.capacity != WEFT_CAPACITY_UNLIMITED;
    weft_text_add(
        text, helps ? "  hint: --comm " : "  hint: no number of buffers helps, not even --comm ");
    weft_comm_model_print(&least, text);
    weft_text_add(text, helps ? " is the smallest without a deadlock\n" : "\n");
  }
  return status;
}

/* One line when all is well, and one on the graph of the stages; else the findings, the grid around
 * one of them, and their number. */
static enum weft_status add_text(struct weft_text *text, const struct result *result,
                                 struct weft_error *error) {
  if (result->report->ok) {
    add_ok(text, result);
  } else {
    WEFT_TRY(add_findings(text, result, error));
  }
  weft_cli_note_text(text, result->program);
  return WEFT_OK;
}

/* ---- JSON, "weft-verify/1" ---- */

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
    weft_json_string(json, "waits_for", wait_words(finding->cycle_waits[i]));
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

static void add_json(struct weft_text *text, const struct result *result) {
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

/* ---- The command ---- */

int weft_cli_cmd_verify(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  const char *name = weft_cli_input_name(arguments->operands[0]);
  WEFT_SCOPED(weft_program) program = NULL;
  WEFT_SCOPED(weft_report) report = NULL;
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  struct weft_verify_options options;
  if (arguments->given[WEFT_CLI_OPTION_LIST]) {
    (arguments->given[WEFT_CLI_OPTION_JSON] ? list_models_json : list_models)(&text);
    return weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
  }
  WEFT_CLI_TRY(read_options(cli, arguments, &options));
  WEFT_CLI_TRY(weft_cli_read_operand(cli, arguments, 0, &program));
  WEFT_CLI_CALL(cli, name, weft_verify(cli->allocator, program, &options, &report, &error));
  const struct result result = {.program = program,
                                .options = &options,
                                .report = report,
                                .name = name,
                                .colour = weft_cli_colours_data(cli, arguments)};
  if (arguments->given[WEFT_CLI_OPTION_JSON]) {
    add_json(&text, &result);
  } else {
    WEFT_CLI_CALL(cli, name, add_text(&text, &result, &error));
  }
  return weft_cli_write_output(cli, arguments, &text,
                               report->ok ? WEFT_CLI_OK : WEFT_CLI_FOUND_BAD);
}
