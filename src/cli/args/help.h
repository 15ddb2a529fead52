/* Help in its four shapes, all made from the option table. */
#ifndef CLI_HELP_H
#define CLI_HELP_H

#include "cli/args/option_parser.h"

/* `weft VERB --help`. */
int weft_cli_help_verb(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       const struct weft_cli_verb *verb);

/* Says that there is no such verb, or that it comes later; returns the exit status (cli.c). */
int weft_cli_unknown_verb(const struct weft_cli *cli, const char *name);

void weft_cli_man_add(struct weft_text *text);
void weft_cli_completion_bash_add(struct weft_text *text);
void weft_cli_completion_zsh_add(struct weft_text *text);
void weft_cli_completion_fish_add(struct weft_text *text);

/* Appends `words` broken into lines of at most 80 columns, each after `indent`
 * blanks; the first line continues where the text is, at column `column`. */
void weft_cli_wrap(struct weft_text *text, const char *words, size_t indent, size_t column);

#endif
