/* A program: its name, and the commands that it runs. All three programs read their command
 * line with the same tables (args/option_table.h) and the same code (cli.c). */
#ifndef CLI_CLI_PROGRAM_H
#define CLI_CLI_PROGRAM_H

#include "cli/args/option_parser.h"

typedef int weft_cli_command_function(const struct weft_cli *cli,
                                      const struct weft_cli_arguments *arguments);

struct weft_cli_handler {
  const char *command; /* as in the table of commands */
  weft_cli_command_function *run;
};

struct weft_cli_program {
  const char *name;
  const char *summary;
  const char *example; /* or NULL */
  const char
      *elsewhere; /* where to find commands of Weft that this program does not run; or NULL */
  const struct weft_cli_handler *handlers;
  size_t handler_count;
};

bool weft_cli_program_runs(const struct weft_cli_program *program, const char *command);

/* Runs `program argv[1] ...`; returns the exit status. Never exits. The name of the command
 * may be left out where there is only one. */
int weft_cli_run(const struct weft_cli *cli, const struct weft_cli_program *program, int argc,
                 char **argv);

/* Reports that the program has no such command, or that it is elsewhere; returns the exit status. */
int weft_cli_unknown_command(const struct weft_cli *cli, const struct weft_cli_program *program,
                             const char *name);

/* The command weft. */
extern const struct weft_cli_program weft_program;

#endif
