/* The schedule of a training, by name or from a file. */
#include "cli/args/option_parser.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <weft/source.h>
#include <weft/verify.h>

#include "cli/io/error_message.h"
#include "cli/io/input_file.h"
#include "cli/scoped.h"
#include "trainer/command/train_auto.h"
#include "trainer/command/train_setup.h"

#define SCHEDULE_DEFAULT "1F1B"

/* ---- A table or program ---- */

static int verify(const struct weft_cli *cli, const char *name,
                  const struct weft_program *program) {
  WEFT_SCOPED(weft_report) report = NULL;
  struct weft_error error;
  WEFT_CLI_TRY(weft_cli_result(
      cli, name, weft_verify(cli->allocator, program, NULL, &report, &error), &error));
  if (report->ok) {
    return WEFT_CLI_OK;
  }
  char hint[320];
  (void)snprintf(hint, sizeof hint, "'weft verify %s' shows all that is wrong with it",
                 weft_cli_shell_word(name).text);
  return weft_cli_fail_finding(cli, name, report, hint, false);
}

static bool trains(const struct weft_program *program) {
  for (uint64_t k = 0; k < program->action_count; k++) {
    if (program->actions[k].op == WEFT_OP_B || program->actions[k].op == WEFT_OP_I) {
      return true;
    }
  }
  return false;
}

static int check_given(const struct weft_train_setup *setup, enum weft_cli_option_id option,
                       const char *name, uint64_t has) {
  const struct weft_cli_arguments *arguments = setup->arguments;
  if (!arguments->given[option] || arguments->numbers[option] == has) {
    return WEFT_CLI_OK;
  }
  return weft_cli_usage(setup->cli, "a table has its own ranks, stages and microbatches",
                        "--%s %" PRIu64 " does not fit '%s': that has %" PRIu64,
                        weft_cli_option_at(option)->name, arguments->numbers[option],
                        weft_cli_quoted(name).text, has);
}

/* The numbers of the program count; given options must agree with them. */
static int take_program(struct weft_train_setup *setup, const char *name) {
  const struct weft_program *program = setup->program;
  struct weft_gpt_training *training = &setup->options.training;
  if (!trains(program)) {
    weft_cli_print(setup->cli, "a schedule to train with has a backward for every forward",
                   "there is no backward in '%s'", weft_cli_quoted(name).text);
    return WEFT_CLI_FOUND_BAD;
  }
  WEFT_CLI_TRY(check_given(setup, WEFT_CLI_OPTION_RANKS, name, program->rank_count));
  WEFT_CLI_TRY(check_given(setup, WEFT_CLI_OPTION_STAGES_PER_RANK, name,
                           program->stage_count / program->rank_count));
  WEFT_CLI_TRY(check_given(setup, WEFT_CLI_OPTION_MICROBATCHES, name, program->microbatch_count));
  if (setup->resume == NULL) {
    training->microbatches = program->microbatch_count;
  }
  setup->options.program = program;
  setup->options.ranks = program->rank_count;
  setup->stage_count = program->stage_count;
  return WEFT_CLI_OK;
}

static int read_file(struct weft_train_setup *setup, const char *path) {
  WEFT_CLI_TRY(weft_cli_read_program(setup->cli, path, &setup->program));
  WEFT_CLI_TRY(verify(setup->cli, path, setup->program));
  return take_program(setup, path);
}

/* ---- A name ---- */

static int read_named(struct weft_train_setup *setup, const struct weft_schedule_info *info) {
  const struct weft_cli_arguments *arguments = setup->arguments;
  struct weft_gpt_trainer_options *options = &setup->options;
  WEFT_SCOPED(weft_program) program = NULL;
  struct weft_error error;
  options->schedule = info->name;
  options->ranks = weft_train_setup_ranks(setup);
  options->stages_per_rank =
      (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_STAGES_PER_RANK, 0);
  const struct weft_shape shape = {.ranks = options->ranks,
                                   .stages_per_rank = options->stages_per_rank,
                                   .microbatches = options->training.microbatches};
  WEFT_CLI_TRY(weft_cli_result(
      setup->cli, NULL, weft_generate(setup->cli->allocator, info->name, &shape, &program, &error),
      &error));
  setup->stage_count = program->stage_count;
  return WEFT_CLI_OK;
}

/* A fixed table has its own shape. */
static int read_fixed(struct weft_train_setup *setup, const struct weft_schedule_info *info) {
  const struct weft_shape shape = {.ranks = 0};
  struct weft_error error;
  WEFT_CLI_TRY(weft_cli_result(
      setup->cli, NULL,
      weft_generate(setup->cli->allocator, info->name, &shape, &setup->program, &error), &error));
  setup->options.schedule = info->name;
  return take_program(setup, info->name);
}

static bool is_path(const char *text) {
  const size_t size = strlen(text);
  return strchr(text, '/') != NULL || strcmp(text, "-") == 0 ||
         (size > 4 && strcmp(text + size - 4, ".csv") == 0) || access(text, F_OK) == 0;
}

int weft_train_setup_read_schedule(struct weft_train_setup *setup) {
  assert(setup != NULL);
  const char *wanted = setup->arguments->texts[WEFT_CLI_OPTION_SCHEDULE];
  const char *name = wanted != NULL ? wanted : SCHEDULE_DEFAULT;
  struct weft_error error;
  if (weft_train_setup_is_auto(setup->arguments)) {
    return weft_train_setup_read_auto(setup);
  }
  const struct weft_schedule_info *info = weft_schedule_find(name, &error);
  if (info == NULL) {
    setup->options.schedule = name;
    return is_path(name) ? read_file(setup, name) : weft_cli_fail_schedule(setup->cli, &error);
  }
  if (!info->trains) {
    return weft_cli_usage(setup->cli, "'weft gen --list' lists the schedules",
                          "%s has no backward: it is for evaluation", info->name);
  }
  return info->fixed ? read_fixed(setup, info) : read_named(setup, info);
}
