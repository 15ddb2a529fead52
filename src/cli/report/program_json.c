/* The JSON document of a program: what CSV says, and its size, hash, graph and buffers. */
#include "cli/report/program_json.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/lower.h>
#include <weft/spec.h>

#include "cli/io/error_message.h"
#include "cli/io/output_file.h"
#include "cli/io/text_columns.h"

const char *weft_cli_level_name(enum weft_level level) {
  return level == WEFT_LEVEL_COMPUTE ? "compute" : "comms";
}

uint64_t weft_cli_cell_size(const struct weft_action *action) {
  return 1 + (uint64_t)(action->op == WEFT_OP_OVERLAP_F_B ? action->parts : 0);
}

struct weft_cli_words weft_cli_size(const struct weft_program *program) {
  struct weft_cli_words size;
  (void)snprintf(size.text, sizeof size.text, "%.30s, %.30s, %.30s",
                 weft_cli_count(program->rank_count, "rank").text,
                 weft_cli_count(program->stage_count, "stage").text,
                 weft_cli_count(program->microbatch_count, "microbatch").text);
  return size;
}

void weft_cli_note_text(struct weft_text *text, const struct weft_program *program) {
  assert(text != NULL && program != NULL);
  WEFT_SCOPED_TEXT note = {.allocator = text->allocator};
  weft_program_note(program, &note);
  text->failed = text->failed || note.failed;
  if (note.size > 0 && !note.failed) {
    weft_text_addf(text, "note: %s\n", note.data);
  }
}

void weft_cli_note_json(struct weft_json *json, const struct weft_program *program) {
  assert(json != NULL && program != NULL);
  WEFT_SCOPED_TEXT note = {.allocator = json->text->allocator};
  weft_program_note(program, &note);
  json->text->failed = json->text->failed || note.failed;
  if (note.size > 0) {
    weft_json_open(json, "notes", '[');
    weft_json_string(json, NULL, note.data);
    weft_json_close(json, ']');
  }
}

void weft_cli_print_note(const struct weft_cli *cli, const char *name,
                         const struct weft_program *program) {
  assert(cli != NULL && program != NULL);
  WEFT_SCOPED_TEXT note = {.allocator = cli->allocator};
  weft_program_note(program, &note);
  if (note.size > 0 && !note.failed) {
    weft_cli_print(cli, NULL, "note: %s%s%s", name != NULL ? weft_cli_quoted(name).text : "",
                   name != NULL ? ": " : "", note.data);
  }
}

/* An overlap of 255 parts is longer than any buffer worth having; it goes into
 * the text directly. Actions hold nothing that JSON would escape. */
void weft_json_action(struct weft_json *json, const char *key, const struct weft_action *action) {
  if (action == NULL) {
    weft_json_null(json, key);
    return;
  }
  weft_json_string(json, key, "");
  if (!json->text->failed) {
    json->text->size--; /* reopen the empty string */
    weft_action_print(action, json->text);
    weft_text_append(json->text, "\"", 1);
  }
}

static void add_rows(struct weft_json *json, const struct weft_program *program) {
  weft_json_open(json, "rows", '[');
  for (uint32_t rank = 0; rank < program->rank_count; rank++) {
    weft_json_open(json, NULL, '[');
    const uint64_t end = program->row_begin[rank + 1];
    for (uint64_t i = program->row_begin[rank]; i < end;
         i += weft_cli_cell_size(&program->actions[i])) {
      weft_json_action(json, NULL, &program->actions[i]);
    }
    weft_json_close(json, ']');
  }
  weft_json_close(json, ']');
}

static void add_json(struct weft_text *text, const struct weft_program *program) {
  struct weft_json json = weft_json_begin(text, "weft-program/1");
  char hash[17];
  (void)snprintf(hash, sizeof hash, "%016" PRIx64, weft_program_hash(program));
  weft_json_string(&json, "level", weft_cli_level_name(program->level));
  weft_json_number(&json, "ranks", program->rank_count);
  weft_json_number(&json, "stages", program->stage_count);
  weft_json_number(&json, "microbatches", program->microbatch_count);
  weft_json_number(&json, "actions", program->action_count);
  weft_json_string(&json, "hash", hash);
  weft_graph_print(program->graph, &json, "graph");
  add_rows(&json, program);
  weft_json_end(&json);
}

int weft_cli_write_program(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                           const struct weft_program *program) {
  assert(cli != NULL && arguments != NULL && program != NULL);
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  if (arguments->given[WEFT_CLI_OPTION_JSON]) {
    add_json(&text, program);
  } else {
    weft_program_print(program, &text);
  }
  return weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
}
