/* Help on the terminal: of a program, and of a command. */
#include "cli/args/help.h"

#include <assert.h>
#include <string.h>

#include "cli/io/output_file.h"
#include "cli/scoped.h"

/* Appends `words` broken into lines of at most 80 columns, each after `indent` blanks; the
 * first line continues where the text is, at column `column`. */
#define LINE_COLUMNS 80

static void add_wrapped(struct weft_text *text, const char *words, size_t indent, size_t column) {
  bool first = true;
  while (*words != '\0') {
    if (*words == '\n') {
      weft_text_addf(text, "\n\n%*s", (int)indent, "");
      column = indent;
      first = true;
      words++;
    }
    const size_t size = strcspn(words, " \n");
    if (!first && column + 1 + size > LINE_COLUMNS) {
      weft_text_addf(text, "\n%*s", (int)indent, "");
      column = indent;
    } else if (!first) {
      weft_text_add(text, " ");
      column++;
    }
    weft_text_append(text, words, size);
    column += size;
    words += size;
    words += *words == ' ' ? 1 : 0;
    first = false;
  }
  weft_text_add(text, "\n");
}

#define SUMMARY_COLUMN 28

/* "  -p, --ranks P" and its summary in a second column. */
static void add_option(struct weft_text *text, const struct weft_cli_option *option) {
  const size_t begin = text->size;
  if (option->letter != '\0') {
    weft_text_addf(text, "  -%c, --%s", option->letter, option->name);
  } else {
    weft_text_addf(text, "      --%s", option->name);
  }
  if (option->value != NULL) {
    weft_text_addf(text, " %s", option->value);
  }
  const size_t width = text->size - begin;
  const size_t blanks = width + 2 <= SUMMARY_COLUMN ? SUMMARY_COLUMN - width : 2;
  weft_text_addf(text, "%*s", (int)blanks, "");
  add_wrapped(text, option->summary, SUMMARY_COLUMN, width + blanks);
  if (option->choices != NULL) { /* a word, which cannot be broken: further left if it is long */
    const size_t size = strlen("one of ") + strlen(option->choices);
    const size_t most = LINE_COLUMNS > size ? LINE_COLUMNS - size : 0;
    weft_text_addf(text, "%*sone of %s\n", (int)(most < SUMMARY_COLUMN ? most : SUMMARY_COLUMN), "",
                   option->choices);
  }
}

static void add_command(struct weft_text *text, const struct weft_cli_command *command) {
  weft_text_addf(text, "Usage: weft %s [options]%s%s\n\n", command->name,
                 command->operands[0] != '\0' ? " " : "", command->operands);
  add_wrapped(text, command->description, 0, 0);
  const struct weft_cli_option *option;
  const char *heading;
  for (unsigned k = 0; (option = weft_cli_command_option_at(command, k, &heading)) != NULL; k++) {
    if (heading != NULL) {
      weft_text_addf(text, "\n%s:\n", heading);
    }
    add_option(text, option);
  }
  if (strcmp(command->operand_kind, "file") == 0 &&
      command->operands_max <= WEFT_CLI_OPERANDS_MAX) {
    weft_text_add(text, command->operands_max == 1
                            ? "\nFILE - or none is standard input.\n"
                            : "\nOne of the files may be -, standard input.\n");
  }
  weft_text_addf(text, "\nExample:\n  %s\n", command->example);
}

static void add_overview(struct weft_text *text, const struct weft_cli_program *program) {
  weft_text_addf(text,
                 "Usage: %s COMMAND [options] [FILE]\n\n"
                 "%s\n\n"
                 "Commands:\n",
                 program->name, program->summary);
  for (size_t i = 0; i < weft_cli_command_count(); i++) {
    const struct weft_cli_command *command = weft_cli_command_at(i);
    if (weft_cli_program_runs(program, command->name)) {
      weft_text_addf(text, "  %-13s%s\n", command->name, command->summary);
    }
  }
  weft_text_add(text, "\nExit status:\n");
  for (const struct weft_cli_exit_text *exit = weft_cli_exit_texts(); exit->text != NULL; exit++) {
    weft_text_addf(text, "  %-10d%s\n", exit->status, exit->text);
  }
  weft_text_addf(text,
                 "\nData goes to standard output, messages to standard error.\n"
                 "'weft help COMMAND' explains a command; '%s --version' prints the version.\n",
                 program->name);
  if (program->example != NULL) {
    weft_text_addf(text, "\nExample:\n  %s\n", program->example);
  }
}

int weft_cli_help_command(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                          const struct weft_cli_command *command) {
  assert(command != NULL);
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  add_command(&text, command);
  return weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
}

int weft_cli_help_program(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                          const struct weft_cli_program *program) {
  assert(program != NULL);
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  add_overview(&text, program);
  return weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
}
