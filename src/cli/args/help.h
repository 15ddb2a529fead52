/* Help as text, as the man page and as completions, all made from the tables. */
#ifndef CLI_HELP_H
#define CLI_HELP_H

#include "cli/args/option_parser.h"
#include "cli/cli_program.h"

/* `weft COMMAND --help`, `weft help COMMAND`. */
int weft_cli_help_command(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                          const struct weft_cli_command *command);

/* `weft --help`: the commands of a program. */
int weft_cli_help_program(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                          const struct weft_cli_program *program);

void weft_cli_man_add(struct weft_text *text);
void weft_cli_completion_bash_add(struct weft_text *text);
void weft_cli_completion_zsh_add(struct weft_text *text);
void weft_cli_completion_fish_add(struct weft_text *text);

#endif
