/* `weft help --completion SHELL`: completion scripts for bash, zsh and fish. */
#include <assert.h>
#include <string.h>

#include <weft/gen.h>
#include <weft/support.h>

#include "cli/args/help.h"

/* "a b c" of "a|b|c". */
static void add_choices(struct weft_text *text, const char *choices) {
  const char *item;
  size_t size;
  bool first = true;
  while ((size = weft_cli_choice_next(&choices, &item)) > 0) {
    weft_text_add(text, first ? "" : " ");
    weft_text_append(text, item, size);
    first = false;
  }
}

static void add_command_names(struct weft_text *text) {
  for (size_t i = 0; i < weft_cli_command_count(); i++) {
    weft_text_addf(text, i > 0 ? " %s" : "%s", weft_cli_command_at(i)->name);
  }
}

static bool takes_files(const struct weft_cli_command *command) {
  return strcmp(command->operand_kind, "file") == 0;
}

/* Operands of the command that completion offers; nothing where it is a file. */
static void add_operands(struct weft_text *text, const struct weft_cli_command *command) {
  if (strcmp(command->operand_kind, "schedule") == 0) {
    for (size_t i = 0; i < weft_schedule_count(); i++) {
      weft_text_addf(text, i > 0 ? " %s" : "%s", weft_schedule_at(i)->name);
    }
  } else if (strcmp(command->operand_kind, "command") == 0) {
    add_command_names(text);
  } else if (!takes_files(command)) {
    add_choices(text, command->operand_kind);
  }
}

static bool names_file(const struct weft_cli_option *option) {
  return option->kind == WEFT_CLI_KIND_FILE ||
         (option->kind == WEFT_CLI_KIND_LIST && option->value != NULL &&
          strcmp(option->value, "FILE") == 0);
}

/* Words inside a single-quoted word of a shell: a quote ends it, stands for itself, and begins
 * another one. What is in `special` gets a backslash. */
static void add_quoted(struct weft_text *text, const char *words, const char *special) {
  for (; *words != '\0'; words++) {
    if (*words == '\'') {
      weft_text_add(text, "'\\''");
    } else {
      weft_text_add(text, strchr(special, *words) != NULL ? "\\" : "");
      weft_text_append(text, words, 1);
    }
  }
}

/* ---- bash ---- */

/* What may follow an option of one command, or of any ("*"). */
static void add_bash_value(struct weft_text *text, const char *command,
                           const struct weft_cli_option *option) {
  weft_text_addf(text, "    %s:--%s", command, option->name);
  if (option->letter != '\0') {
    weft_text_addf(text, "|%s:-%c", command, option->letter);
  }
  weft_text_add(text, ") ");
  if (option->choices != NULL) {
    weft_text_add(text, "COMPREPLY=($(compgen -W '");
    add_choices(text, option->choices);
    weft_text_add(text, "' -- \"$cur\")); return");
  } else if (names_file(option)) {
    weft_text_add(text, "COMPREPLY=($(compgen -f -- \"$cur\")); return");
  } else {
    weft_text_add(text, option->kind == WEFT_CLI_KIND_FLAG ? ":" : "return");
  }
  weft_text_add(text, " ;;\n");
}

/* A command's own row for an option comes before the general one. */
static void add_bash_values(struct weft_text *text) {
  const struct weft_cli_option *option;
  for (size_t i = 0; i < weft_cli_command_count(); i++) {
    const struct weft_cli_command *command = weft_cli_command_at(i);
    for (unsigned k = 0; (option = weft_cli_command_option_at(command, k, NULL)) != NULL; k++) {
      const struct weft_cli_option *general = weft_cli_option_at(option->id);
      if (option != general && (option->value != NULL || general->value != NULL)) {
        add_bash_value(text, command->name, option);
      }
    }
  }
  for (unsigned id = 0; id < WEFT_CLI_OPTION_COUNT; id++) {
    option = weft_cli_option_at((enum weft_cli_option_id)id);
    if (option->kind != WEFT_CLI_KIND_FLAG) {
      add_bash_value(text, "*", option);
    }
  }
}

static void add_bash_command(struct weft_text *text, const struct weft_cli_command *command) {
  const struct weft_cli_option *option;
  weft_text_addf(text, "    %s) options='", command->name);
  for (unsigned k = 0; (option = weft_cli_command_option_at(command, k, NULL)) != NULL; k++) {
    weft_text_addf(text, " --%s", option->name);
    if (option->letter != '\0') {
      weft_text_addf(text, " -%c", option->letter);
    }
  }
  weft_text_add(text, "' operands='");
  add_operands(text, command);
  weft_text_addf(text, "' files=%s ;;\n", takes_files(command) ? "yes" : "");
}

void weft_cli_completion_bash_add(struct weft_text *text) {
  assert(text != NULL);
  weft_text_add(text,
                "# bash completion for weft; made by 'weft help --completion bash'\n"
                "_weft() {\n"
                "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
                "  local options='' operands='' files=''\n"
                "  COMPREPLY=()\n"
                "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
                "    COMPREPLY=($(compgen -W '");
  add_command_names(text);
  weft_text_add(text,
                " --help --version' -- \"$cur\"))\n"
                "    return\n"
                "  fi\n"
                "  case ${COMP_WORDS[1]}:$prev in\n");
  add_bash_values(text);
  weft_text_add(text,
                "  esac\n"
                "  case ${COMP_WORDS[1]} in\n");
  for (size_t i = 0; i < weft_cli_command_count(); i++) {
    add_bash_command(text, weft_cli_command_at(i));
  }
  weft_text_add(text,
                "  esac\n"
                "  case $cur in\n"
                "    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$cur\")) ;;\n"
                "    *) COMPREPLY=($(compgen -W \"$operands\" -- \"$cur\"))\n"
                "       [ -z \"$files\" ] || COMPREPLY+=($(compgen -f -- \"$cur\")) ;;\n"
                "  esac\n"
                "}\n"
                "complete -o filenames -F _weft weft\n");
}

/* ---- zsh ---- */

/* `dashes`, `name` and `joint` ("=", "+" where a value follows) spell the option. */
static void add_zsh_spec(struct weft_text *text, const char *dashes, const char *name,
                         const char *joint, const struct weft_cli_option *option) {
  weft_text_addf(text, " \\\n        '%s%s%s[", dashes, name, option->value != NULL ? joint : "");
  add_quoted(text, option->summary, "[]:"); /* which _arguments takes for itself */
  weft_text_add(text, "]");
  if (names_file(option)) {
    weft_text_addf(text, ":%s:_files", option->value);
  } else if (option->choices != NULL) {
    weft_text_addf(text, ":%s:(", option->value);
    for (const char *at = option->choices; *at != '\0'; at++) {
      if (*at == '|') {
        weft_text_add(text, " ");
      } else {
        weft_text_add(text, *at == ':' ? "\\" : "");
        weft_text_append(text, at, 1);
      }
    }
    weft_text_add(text, ")");
  } else if (option->value != NULL) {
    weft_text_addf(text, ":%s: ", option->value);
  }
  weft_text_add(text, "'");
}

static void add_zsh_command(struct weft_text *text, const struct weft_cli_command *command) {
  const struct weft_cli_option *option;
  weft_text_addf(text, "    %s)\n      _arguments", command->name);
  for (unsigned k = 0; (option = weft_cli_command_option_at(command, k, NULL)) != NULL; k++) {
    const char letter[2] = {option->letter, '\0'};
    add_zsh_spec(text, "--", option->name, "=", option);
    if (option->letter != '\0') {
      add_zsh_spec(text, "-", letter, "+", option);
    }
  }
  if (takes_files(command)) {
    weft_text_add(text, " \\\n        '*:file:_files'");
  } else if (command->operands_max > 0) {
    weft_text_addf(text, " \\\n        '1:%s:(", command->operand_kind);
    add_operands(text, command);
    weft_text_add(text, ")'");
  }
  weft_text_add(text, " ;;\n");
}

void weft_cli_completion_zsh_add(struct weft_text *text) {
  assert(text != NULL);
  weft_text_add(text,
                "#compdef weft\n"
                "# zsh completion for weft; made by 'weft help --completion zsh'\n"
                "_weft() {\n"
                "  if (( CURRENT == 2 )); then\n"
                "    local -a commands=(\n");
  for (size_t i = 0; i < weft_cli_command_count(); i++) {
    weft_text_addf(text, "      '%s:", weft_cli_command_at(i)->name);
    add_quoted(text, weft_cli_command_at(i)->summary, "");
    weft_text_add(text, "'\n");
  }
  weft_text_add(text,
                "    )\n"
                "    _describe command commands\n"
                "    return\n"
                "  fi\n"
                "  local command=${words[2]}\n"
                "  shift words; (( CURRENT-- ))\n"
                "  case $command in\n");
  for (size_t i = 0; i < weft_cli_command_count(); i++) {
    add_zsh_command(text, weft_cli_command_at(i));
  }
  weft_text_add(
      text,
      "  esac\n"
      "}\n"
      "if [ \"$funcstack[1]\" = _weft ]; then _weft \"$@\"; else compdef _weft weft; fi\n");
}

/* ---- fish ---- */

static void add_fish_option(struct weft_text *text, const struct weft_cli_command *command,
                            const struct weft_cli_option *option) {
  weft_text_addf(text, "complete -c weft -n '__fish_seen_subcommand_from %s' -l %s", command->name,
                 option->name);
  if (option->letter != '\0') {
    weft_text_addf(text, " -s %c", option->letter);
  }
  if (names_file(option)) {
    weft_text_add(text, " -r -F");
  } else if (option->value != NULL) {
    weft_text_add(text, " -x");
  }
  if (option->choices != NULL) {
    weft_text_add(text, " -a '");
    add_choices(text, option->choices);
    weft_text_add(text, "'");
  }
  weft_text_add(text, " -d '");
  add_quoted(text, option->summary, "");
  weft_text_add(text, "'\n");
}

static void add_fish_command(struct weft_text *text, const struct weft_cli_command *command) {
  weft_text_addf(text, "complete -c weft -n __fish_use_subcommand -f -a %s -d '", command->name);
  add_quoted(text, command->summary, "");
  weft_text_add(text, "'\n");
  const struct weft_cli_option *option;
  for (unsigned k = 0; (option = weft_cli_command_option_at(command, k, NULL)) != NULL; k++) {
    add_fish_option(text, command, option);
  }
  if (!takes_files(command) && command->operands_max > 0) {
    weft_text_addf(text, "complete -c weft -n '__fish_seen_subcommand_from %s' -f -a '",
                   command->name);
    add_operands(text, command);
    weft_text_add(text, "'\n");
  }
}

void weft_cli_completion_fish_add(struct weft_text *text) {
  assert(text != NULL);
  weft_text_add(text, "# fish completion for weft; made by 'weft help --completion fish'\n");
  for (size_t i = 0; i < weft_cli_command_count(); i++) {
    add_fish_command(text, weft_cli_command_at(i));
  }
}
