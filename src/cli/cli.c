/* From the command line to a command. */
#include "cli/cli.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <weft/launch.h>

#include "cli/args/help.h"
#include "cli/args/option_parser.h"
#include "cli/cli_program.h"
#include "cli/io/output_file.h"
#include "cli/io/picture_file.h"
#include "cli/job.h"
#include "cli/scoped.h"

static const struct weft_cli_handler *find_handler(const struct weft_cli_program *program,
                                                   const char *command) {
  for (size_t i = 0; i < program->handler_count; i++) {
    if (strcmp(program->handlers[i].command, command) == 0) {
      return &program->handlers[i];
    }
  }
  return NULL;
}

bool weft_cli_program_runs(const struct weft_cli_program *program, const char *command) {
  return find_handler(program, command) != NULL;
}

int weft_cli_unknown_command(const struct weft_cli *cli, const struct weft_cli_program *program,
                             const char *name) {
  assert(cli != NULL && program != NULL);
  char hint[640];
  const struct weft_cli_words quoted = weft_cli_quoted(name);
  if (program->elsewhere != NULL && weft_cli_command_find(name) != NULL) {
    weft_cli_print(cli, program->elsewhere, "this installation has no '%s'", quoted.text);
    return WEFT_CLI_UNAVAILABLE;
  }
  if (weft_cli_program_runs(program, "show") && access(name, F_OK) == 0) {
    const struct weft_cli_words word = weft_cli_shell_word(name);
    (void)snprintf(hint, sizeof hint, "'%s show %s' draws a table, '%s verify %s' checks it",
                   program->name, word.text, program->name, word.text);
    return weft_cli_usage(cli, hint, "'%s' is a file: expected a command before it", quoted.text);
  }
  struct weft_cli_suggestion suggestion;
  weft_cli_suggestion_init(&suggestion, name, strlen(name));
  for (size_t i = 0; i < weft_cli_command_count(); i++) {
    const char *known = weft_cli_command_at(i)->name;
    if (weft_cli_program_runs(program, known)) {
      weft_cli_suggestion_offer(&suggestion, known, strlen(known));
    }
  }
  if (suggestion.best != NULL) {
    (void)snprintf(hint, sizeof hint, "did you mean '%s %s'?", program->name, suggestion.best);
  } else {
    (void)snprintf(hint, sizeof hint, "'%s --help' lists the commands", program->name);
  }
  return weft_cli_usage(cli, hint, "unknown command '%s': expected one like %s or %s", quoted.text,
                        program->handlers[0].command,
                        program->handlers[program->handler_count > 1].command);
}

/* Most commands write text, and only those that draw have an -o of their own. */
static int check_output(const struct weft_cli *cli, const struct weft_cli_command *command,
                        const struct weft_cli_arguments *arguments) {
  const char *path = weft_cli_output_path(arguments);
  const bool draws = weft_cli_command_option(command, WEFT_CLI_OPTION_OUTPUT) !=
                     weft_cli_option_at(WEFT_CLI_OPTION_OUTPUT);
  if (path == NULL || draws || !weft_cli_is_picture(path)) {
    return WEFT_CLI_OK;
  }
  return weft_cli_usage(cli, "give another name, such as x.txt; 'weft show' and 'weft run' draw",
                        "'%s' is the name of a picture or page, and 'weft %s' writes none",
                        weft_cli_quoted(path).text, command->name);
}

/* `usage`: where errors of the command line are printed. */
static int run_handler(const struct weft_cli *cli, const struct weft_cli *usage,
                       const struct weft_cli_handler *handler, int count, char **words) {
  const struct weft_cli_command *command = weft_cli_command_find(handler->command);
  struct weft_cli_arguments arguments;
  WEFT_CLI_TRY(weft_cli_parse(usage, command, count, words, &arguments));
  if (arguments.given[WEFT_CLI_OPTION_HELP]) {
    return weft_cli_help_command(cli, &arguments, command);
  }
  WEFT_CLI_TRY(check_output(usage, command, &arguments));
  return handler->run(cli, &arguments);
}

/* `weft --help [COMMAND]`. */
static int show_help(const struct weft_cli *cli, const struct weft_cli *usage,
                     const struct weft_cli_program *program, int count, char **words) {
  const struct weft_cli_handler *help = find_handler(program, "help");
  const struct weft_cli_command *command = weft_cli_command_find("help");
  struct weft_cli_arguments arguments;
  WEFT_CLI_TRY(weft_cli_parse(usage, command, count, words, &arguments));
  return help != NULL ? help->run(cli, &arguments)
                      : weft_cli_help_program(cli, &arguments, program);
}

static int dispatch(const struct weft_cli *cli, const struct weft_cli *usage,
                    const struct weft_cli_program *program, int argc, char **argv) {
  char hint[128];
  (void)snprintf(hint, sizeof hint, "'%s --help' lists the commands", program->name);
  if (program->handler_count == 1 &&
      (argc < 2 ||
       (strcmp(argv[1], "--version") != 0 && strcmp(argv[1], program->handlers[0].command) != 0))) {
    return run_handler(cli, usage, &program->handlers[0], argc > 0 ? argc - 1 : 0, argv + 1);
  }
  if (argc < 2) {
    return weft_cli_usage(usage, hint, "no command given: expected %s COMMAND [options] [FILE]",
                          program->name);
  }
  const char *first = argv[1];
  if (strcmp(first, "--version") == 0) {
    WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
    weft_text_addf(&text, "%s %s\n", program->name, weft_version());
    return weft_cli_write_stdout(cli, &text);
  }
  if (strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0) {
    return show_help(cli, usage, program, argc - 2, argv + 2);
  }
  if (first[0] == '-') {
    (void)snprintf(hint, sizeof hint,
                   "'%s --help' lists the commands; options come after the command", program->name);
    return weft_cli_usage(usage, hint, "found '%s', expected a command first",
                          weft_cli_quoted(first).text);
  }
  const struct weft_cli_handler *handler = find_handler(program, first);
  return handler != NULL ? run_handler(cli, usage, handler, argc - 2, argv + 2)
                         : weft_cli_unknown_command(usage, program, first);
}

/* Whether a process with that command, started by a launcher, is one rank of a job. A wrong
 * name may be a misspelt one that is. */
static bool is_of_job(int argc, char **argv) {
  const struct weft_cli_command *command = argc > 1 ? weft_cli_command_find(argv[1]) : NULL;
  return command == NULL || weft_cli_command_option(command, WEFT_CLI_OPTION_TRANSPORT) != NULL ||
         strcmp(command->name, "bench") == 0 || strcmp(command->name, "doctor") == 0;
}

/* Processes of one launcher mostly have the same command line, and find the same mistakes in
 * it. Their messages are held back until the ranks have compared them. */
static int run_as_rank(const struct weft_cli *cli, const struct weft_cli_program *program, int argc,
                       char **argv) {
  struct weft_cli usage = *cli;
  char text[4096];
  int ends[2];
  if (pipe(ends) != 0) {
    return dispatch(cli, cli, program, argc, argv);
  }
  for (int k = 0; k < 2; k++) {
    (void)fcntl(ends[k], F_SETFD, FD_CLOEXEC);
    (void)fcntl(ends[k], F_SETFL, O_NONBLOCK);
  }
  usage.messages = ends[1];
  const int status = dispatch(cli, &usage, program, argc, argv);
  const ssize_t size = read(ends[0], text, sizeof text);
  (void)close(ends[0]);
  (void)close(ends[1]);
  if (size <= 0) {
    return status;
  }
  const struct weft_cli_reason reason = {.status = status, .text = text, .size = (size_t)size};
  if (is_of_job(argc, argv)) {
    return weft_cli_job_report_reason(cli, &reason);
  }
  weft_cli_print_as(cli, "", text, (size_t)size);
  return status;
}

int weft_cli_run(const struct weft_cli *cli, const struct weft_cli_program *program, int argc,
                 char **argv) {
  const struct weft_launch_info launch = weft_launch_info();
  struct weft_cli complete = *cli;
  assert(program != NULL && program->handler_count > 0);
  if (complete.allocator == NULL) {
    complete.allocator = weft_allocator_default();
  }
  if (launch.launcher != NULL && cli->words != NULL && is_of_job(argc, argv)) {
    weft_launch_begin("weft");
  }
  const int status = launch.rank > 0 || launch.rank_count > 1
                         ? run_as_rank(&complete, program, argc, argv)
                         : dispatch(&complete, &complete, program, argc, argv);
  weft_launch_leave();
  return status;
}
