/* From the command line to a verb. */
#include <weft/launch.h>

#include "cli/cli.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/args/help.h"
#include "cli/args/option_parser.h"
#include "cli/args/suggest.h"
#include "cli/io/error_message.h"
#include "cli/io/output_file.h"
#include "cli/job.h"

static const struct weft_cli_verb *find_verb(const char *name) {
  for (size_t i = 0; i < weft_cli_verb_count(); i++) {
    if (strcmp(weft_cli_verb_at(i)->name, name) == 0) {
      return weft_cli_verb_at(i);
    }
  }
  return NULL;
}

static int print_version(const struct weft_cli *cli) {
  struct weft_text text = {.allocator = cli->allocator};
  const struct weft_cli_arguments nowhere = {.operand_count = 0};
  weft_text_addf(&text, "weft %s\n", weft_version());
  const int status = weft_cli_deliver(cli, &nowhere, &text, WEFT_CLI_OK);
  weft_text_finish(&text);
  return status;
}

int weft_cli_unknown_verb(const struct weft_cli *cli, const char *name) {
  char quoted[80], hint[128];
  weft_cli_quote(quoted, sizeof quoted, name);
  struct weft_cli_guess guess;
  weft_cli_guess_init(&guess, name, strlen(name));
  for (size_t i = 0; i < weft_cli_verb_count(); i++) {
    const char *known = weft_cli_verb_at(i)->name;
    weft_cli_guess_offer(&guess, known, strlen(known));
  }
  (void)snprintf(hint, sizeof hint, "did you mean 'weft %s'?",
                 guess.best != NULL ? guess.best : "");
  return weft_cli_usage(cli, guess.best != NULL ? hint : "'weft help' lists the verbs",
                        "unknown verb '%s': expected one like gen, lower or verify", quoted);
}

/* `speaker`: for what is wrong with the command line. */
static int run_verb(const struct weft_cli *cli, const struct weft_cli *speaker, const char *name,
                    int count, char **words) {
  const struct weft_cli_verb *verb = find_verb(name);
  if (verb == NULL) {
    return weft_cli_unknown_verb(speaker, name);
  }
  struct weft_cli_arguments arguments;
  const int status = weft_cli_parse(speaker, verb, count, words, &arguments);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  if (arguments.given[WEFT_CLI_OPTION_HELP]) {
    return weft_cli_help_verb(cli, &arguments, verb);
  }
  return verb->run(cli, &arguments);
}

static int dispatch(const struct weft_cli *cli, const struct weft_cli *speaker, int argc,
                    char **argv) {
  if (argc < 2) {
    return weft_cli_usage(speaker, "'weft help' lists the verbs; 'weft gen --list' the schedules",
                          "no verb given: expected weft VERB [options] [FILE]");
  }
  const char *first = argv[1];
  if (strcmp(first, "--version") == 0) {
    return print_version(cli);
  }
  if (strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0) {
    return run_verb(cli, speaker, "help", argc - 2, argv + 2);
  }
  if (first[0] == '-') {
    char quoted[80];
    return weft_cli_usage(speaker, "'weft help' lists the verbs; options come after the verb",
                          "'%s' stands where a verb was expected",
                          weft_cli_quote(quoted, sizeof quoted, first));
  }
  return run_verb(cli, speaker, first, argc - 2, argv + 2);
}

/* Whether a process with that verb, started by a launcher, is one rank of a job. A wrong name
 * may stand for one that is. */
static bool is_of_job(int argc, char **argv) {
  const struct weft_cli_verb *verb = argc > 1 ? find_verb(argv[1]) : NULL;
  return verb == NULL || weft_cli_verb_takes(verb, WEFT_CLI_OPTION_PROGRESS) ||
         strcmp(verb->name, "doctor") == 0 || strcmp(verb->name, "bench") == 0;
}

/* Processes of one launcher mostly have the same command line, and find the same mistakes in
 * it. Their messages are held back until the ranks have compared them. */
static int run_as_rank(const struct weft_cli *cli, int argc, char **argv) {
  struct weft_cli speaker = *cli;
  char text[4096];
  int ends[2];
  if (pipe(ends) != 0) {
    return dispatch(cli, cli, argc, argv);
  }
  for (int k = 0; k < 2; k++) {
    (void)fcntl(ends[k], F_SETFD, FD_CLOEXEC);
    (void)fcntl(ends[k], F_SETFL, O_NONBLOCK);
  }
  speaker.messages = ends[1];
  const int status = dispatch(cli, &speaker, argc, argv);
  const ssize_t size = read(ends[0], text, sizeof text);
  (void)close(ends[0]);
  (void)close(ends[1]);
  if (size <= 0) {
    return status;
  }
  const struct weft_cli_refusal refusal = {.status = status, .text = text, .size = (size_t)size};
  if (is_of_job(argc, argv)) {
    return weft_cli_job_refuse(cli, &refusal);
  }
  weft_cli_say_as(cli, "", text, (size_t)size);
  return status;
}

int weft_cli_run(const struct weft_cli *cli, int argc, char **argv) {
  const struct weft_launch_info launch = weft_launch_info();
  struct weft_cli complete = *cli;
  if (complete.allocator == NULL) {
    complete.allocator = weft_allocator_default();
  }
  if (launch.launcher != NULL && cli->words != NULL && is_of_job(argc, argv)) {
    weft_launch_begin("weft");
  }
  return launch.rank > 0 || launch.rank_count > 1 ? run_as_rank(&complete, argc, argv)
                                                  : dispatch(&complete, &complete, argc, argv);
}
