/* `weft explain-hang`: the dump of a run that hangs, in words. The library says
 * it all; for --json the lines at the end of its words are taken apart. */
#include <stdlib.h>
#include <string.h>

#include "cli/input_file.h"
#include "cli/json_writer.h"
#include "cli/message.h"
#include "cli/output_file.h"
#include "cli/verbs.h"

/* Cuts the line that begins with `label` out of the words: what stands behind
 * the label, NUL-terminated; NULL where there is no such line. Control bytes are
 * escaped in the words, so a line is a line. */
static char *take_line(struct weft_text *words, const char *label) {
  const size_t size = strlen(label);
  char *line = words->data;
  while (line != NULL && strncmp(line, label, size) != 0) {
    line = strchr(line, '\n');
    line += line != NULL;
  }
  if (line != NULL) {
    line[strcspn(line, "\n")] = '\0';
    line += size;
  }
  return line;
}

static void add_ranks(struct weft_cli_json *json, char *ranks) {
  while (*ranks != '\0') {
    weft_cli_json_number(json, NULL, strtoull(ranks, &ranks, 10));
  }
}

/* Takes the lines from the last to the first, because each cut ends the text. */
static void add_document(struct weft_text *text, struct weft_text *words) {
  struct weft_cli_json json = {.text = text};
  const char *hint = take_line(words, "hint: ");
  char *circle = take_line(words, "circle: ranks");
  char *culprit = take_line(words, "culprit: rank ");
  const char *message = take_line(words, "verdict: ");
  weft_cli_json_open(&json, NULL, '{');
  weft_cli_json_string(&json, "schema", "weft-explain-hang/1");
  if (culprit != NULL) {
    weft_cli_json_number(&json, "culprit", strtoull(culprit, NULL, 10));
  } else {
    weft_cli_json_null(&json, "culprit");
  }
  weft_cli_json_open(&json, "cycle", '[');
  if (circle != NULL) {
    add_ranks(&json, circle);
  }
  weft_cli_json_close(&json, ']');
  weft_cli_json_string(&json, "message", message != NULL ? message : "");
  weft_cli_json_string(&json, "hint", hint != NULL ? hint : "");
  weft_cli_json_close(&json, '}');
  weft_cli_json_finish(&json);
}

int weft_cli_verb_explain_hang(const struct weft_cli *cli,
                               const struct weft_cli_arguments *arguments) {
  struct weft_text words = {.allocator = cli->allocator};
  struct weft_text document = {.allocator = cli->allocator};
  int status = weft_cli_read_hang(cli, arguments->operands[0], &words);
  if (status == WEFT_CLI_OK && arguments->given[WEFT_CLI_OPTION_JSON]) {
    add_document(&document, &words);
    status = weft_cli_deliver(cli, arguments, &document, WEFT_CLI_OK);
  } else if (status == WEFT_CLI_OK) {
    status = weft_cli_deliver(cli, arguments, &words, WEFT_CLI_OK);
  }
  weft_text_finish(&words);
  weft_text_finish(&document);
  return status;
}
