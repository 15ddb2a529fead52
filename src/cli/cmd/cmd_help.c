/* `weft help`: the verbs, one verb, the man page, the completions. */
#include <string.h>

#include "cli/args/help.h"
#include "cli/cmd/commands.h"
#include "cli/io/output_file.h"

#define LINE_COLUMNS 80

void weft_cli_wrap(struct weft_text *text, const char *words, size_t indent, size_t column) {
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
  weft_cli_wrap(text, option->summary, SUMMARY_COLUMN, width + blanks);
  if (option->choices != NULL) {
    weft_text_addf(text, "%*sone of %s\n", SUMMARY_COLUMN, "", option->choices);
  }
}

static void add_verb(struct weft_text *text, const struct weft_cli_verb *verb) {
  weft_text_addf(text, "Usage: weft %s [options]%s%s\n\n", verb->name,
                 verb->operands[0] != '\0' ? " " : "", verb->operands);
  weft_cli_wrap(text, verb->description, 0, 0);
  weft_text_add(text, "\nOptions:\n");
  for (unsigned id = 0; id < WEFT_CLI_OPTION_COUNT; id++) {
    if (weft_cli_verb_takes(verb, (enum weft_cli_option_id)id)) {
      add_option(text, weft_cli_option_at((enum weft_cli_option_id)id));
    }
  }
  if (strcmp(verb->operand_kind, "file") == 0 && verb->operands_max <= WEFT_CLI_OPERANDS_MAX) {
    weft_text_add(text, verb->operands_max == 1 ? "\nFILE - or none is standard input.\n"
                                                : "\nOne of the files may be -, standard input.\n");
  }
  weft_text_addf(text, "\nExample:\n  %s\n", verb->example);
}

static void add_overview(struct weft_text *text) {
  weft_text_add(text,
                "Usage: weft VERB [options] [FILE]\n\n"
                "Pipeline-parallel schedules: write them, prove them safe, look at them.\n\n"
                "Verbs:\n");
  for (size_t i = 0; i < weft_cli_verb_count(); i++) {
    const struct weft_cli_verb *verb = weft_cli_verb_at(i);
    weft_text_addf(text, "  %-13s%s\n", verb->name, verb->summary);
  }
  weft_text_add(text, "\nExit status:\n");
  for (const struct weft_cli_exit_text *exit = weft_cli_exit_texts(); exit->text != NULL; exit++) {
    weft_text_addf(text, "  %-10d%s\n", exit->status, exit->text);
  }
  weft_text_add(text,
                "\nData goes to standard output, messages to standard error.\n"
                "'weft help VERB' explains a verb; 'weft --version' prints the version.\n\n"
                "Example:\n"
                "  weft gen 1F1B -p 4 -m 8 | weft lower | weft verify\n");
}

static int deliver(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                   struct weft_text *text) {
  const int status = weft_cli_deliver(cli, arguments, text, WEFT_CLI_OK);
  weft_text_finish(text);
  return status;
}

int weft_cli_help_verb(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       const struct weft_cli_verb *verb) {
  struct weft_text text = {.allocator = cli->allocator};
  add_verb(&text, verb);
  return deliver(cli, arguments, &text);
}

static int help_on(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                   const char *name) {
  for (size_t i = 0; i < weft_cli_verb_count(); i++) {
    if (strcmp(weft_cli_verb_at(i)->name, name) == 0) {
      return weft_cli_help_verb(cli, arguments, weft_cli_verb_at(i));
    }
  }
  return weft_cli_unknown_verb(cli, name);
}

int weft_cli_verb_help(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  /* In the order of the option's choices. */
  static void (*const completions[])(struct weft_text *) = {
      weft_cli_completion_bash_add, weft_cli_completion_zsh_add, weft_cli_completion_fish_add};
  struct weft_text text = {.allocator = cli->allocator};
  if (arguments->given[WEFT_CLI_OPTION_MAN]) {
    weft_cli_man_add(&text);
  } else if (arguments->given[WEFT_CLI_OPTION_COMPLETION]) {
    completions[arguments->choices[WEFT_CLI_OPTION_COMPLETION]](&text);
  } else if (arguments->operand_count > 0) {
    return help_on(cli, arguments, arguments->operands[0]);
  } else {
    add_overview(&text);
  }
  return deliver(cli, arguments, &text);
}
