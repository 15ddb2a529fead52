/* The files that a training writes. */
#include "cli/args/option_parser.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <weft/sim.h>
#include <weft/support.h>

#include "cli/io/error_message.h"
#include "cli/io/output_file.h"
#include "cli/report/run_report.h"
#include "cli/scoped.h"
#include "trainer/command/train_files.h"
#include "trainer/command/train_report.h"

#define NS_PER_MS 1e6

/* ---- Before ---- */

static int fail_path(const struct weft_cli *cli, enum weft_cli_option_id option, const char *path,
                     int code) {
  weft_cli_print(cli, "nothing has been trained yet; give another place, or make the folder first",
                 "--%s '%s' cannot be written: %s", weft_cli_option_at(option)->name,
                 weft_cli_quoted(path).text, strerror(code));
  return WEFT_CLI_IO;
}

/* The folder that a file is in; "" when its name is too long, which no system opens. */
static void folder_of(const char *path, char folder[PATH_MAX]) {
  const char *slash = strrchr(path, '/');
  const size_t size = slash != NULL ? (size_t)(slash - path) + 1 : 0;
  const int written = size == 0 ? snprintf(folder, PATH_MAX, ".")
                                : snprintf(folder, PATH_MAX, "%.*s", (int)size, path);
  if (written >= PATH_MAX) {
    folder[0] = '\0';
  }
}

int weft_train_check_files(const struct weft_train_setup *setup) {
  assert(setup != NULL);
  const struct weft_cli *cli = setup->cli;
  const struct weft_cli_arguments *arguments = setup->arguments;
  static const enum weft_cli_option_id files[] = {WEFT_CLI_OPTION_PROFILE, WEFT_CLI_OPTION_OUTPUT};
  const char *dir = arguments->texts[WEFT_CLI_OPTION_CHECKPOINT];
  char folder[PATH_MAX];
  if (dir != NULL) {
    (void)snprintf(folder, sizeof folder, "%s/.", dir); /* an error when it is a file */
    if ((mkdir(dir, 0777) != 0 && errno != EEXIST) || access(folder, W_OK) != 0) {
      return fail_path(cli, WEFT_CLI_OPTION_CHECKPOINT, dir, errno);
    }
  }
  for (size_t i = 0; i < WEFT_ARRAY_LENGTH(files) && weft_train_setup_reports(setup); i++) {
    const char *path = arguments->texts[files[i]];
    if (path != NULL) {
      folder_of(path, folder);
      if (access(folder, X_OK) != 0) {
        return fail_path(cli, files[i], path, errno);
      }
    }
  }
  return WEFT_CLI_OK;
}

/* "GPT, 6 blocks, 1F1B on 2 ranks" */
static void name_it(const struct weft_train_setup *setup, char *name, size_t size) {
  const struct weft_gpt_trainer_options *options = &setup->options;
  char quoted[64];
  char times[24] = "";
  if (options->replicas > 1) {
    (void)snprintf(times, sizeof times, "%" PRIu32 " x ", options->replicas);
  }
  const char *schedule = options->tunes ? "auto" : options->schedule;
  (void)snprintf(name, size, "GPT of %" PRIu32 " blocks, %s on %s%" PRIu32 " rank%s",
                 options->training.config.blocks,
                 weft_escape(quoted, sizeof quoted, schedule, strlen(schedule)), times,
                 options->ranks, options->ranks == 1 ? "" : "s");
}

/* ---- Measured costs ---- */

static int write_profile(const struct weft_train_setup *setup, const struct weft_costs *costs) {
  const char *path = setup->arguments->texts[WEFT_CLI_OPTION_PROFILE];
  WEFT_SCOPED_TEXT text = {.allocator = setup->cli->allocator};
  struct weft_json json = {.text = &text};
  weft_costs_print(costs, &json, NULL);
  weft_json_finish(&json);
  return weft_cli_write_file(setup->cli, path, &text);
}

/* ---- The last step ---- */

static int write_timeline(const struct weft_train_setup *setup,
                          const struct weft_train_progress *progress,
                          const struct weft_costs *costs, const struct weft_gpt_trainer *trainer) {
  const struct weft_cli *cli = setup->cli;
  const struct weft_program *program = weft_gpt_trainer_program(trainer);
  WEFT_SCOPED_ARENA arena = {.allocator = cli->allocator};
  WEFT_SCOPED(weft_simulation) measured = NULL;
  WEFT_SCOPED(weft_simulation) predicted = NULL;
  struct weft_error error;
  uint64_t count;
  char name[128], step[64], source[96];
  weft_gpt_trainer_events(trainer, NULL, 0, &count);
  struct weft_event *events = weft_arena_allocate(&arena, count, sizeof *events);
  if (events == NULL) {
    return weft_cli_fail_memory(cli);
  }
  weft_gpt_trainer_events(trainer, events, count, &count);
  WEFT_CLI_TRY(weft_cli_result(cli, NULL,
                               weft_simulation_measured(cli->allocator, program, costs, events,
                                                        count, NS_PER_MS, &measured, &error),
                               &error));
  WEFT_CLI_TRY(weft_cli_result(
      cli, NULL, weft_simulate(cli->allocator, program, costs, NULL, &predicted, &error), &error));
  name_it(setup, name, sizeof name);
  (void)snprintf(step, sizeof step, "step %" PRIu64 ", the last; memory in MiB",
                 progress->last.step);
  (void)snprintf(source, sizeof source, "from the mean times of %s%" PRIu64 " step%s",
                 setup->options.tunes ? "up to " : "", progress->timed,
                 progress->timed == 1 ? "" : "s");
  const struct weft_cli_run_timeline timeline = {.name = name,
                                                 .transport = weft_train_transport(setup),
                                                 .step = step,
                                                 .source = source,
                                                 .measured = measured,
                                                 .predicted = predicted,
                                                 .costs = costs};
  return weft_cli_timeline_write(cli, setup->arguments->texts[WEFT_CLI_OPTION_OUTPUT], &timeline);
}

static int write_measured(const struct weft_train_setup *setup,
                          const struct weft_train_progress *progress,
                          const struct weft_gpt_trainer *trainer) {
  const bool *given = setup->arguments->given;
  WEFT_SCOPED(weft_costs) costs = NULL;
  struct weft_error error;
  if (!given[WEFT_CLI_OPTION_PROFILE] && !given[WEFT_CLI_OPTION_OUTPUT]) {
    return WEFT_CLI_OK;
  }
  if (progress->timed == 0) { /* stopped early, or nothing was left to train */
    weft_cli_print(setup->cli, NULL,
                   "no timeline and no costs are written: the first step is a warm-up, and there "
                   "was no second");
    return WEFT_CLI_OK;
  }
  WEFT_CLI_TRY(
      weft_cli_result(setup->cli, NULL, weft_gpt_trainer_costs(trainer, &costs, &error), &error));
  if (given[WEFT_CLI_OPTION_PROFILE]) {
    WEFT_CLI_TRY(write_profile(setup, costs));
  }
  return given[WEFT_CLI_OPTION_OUTPUT] ? write_timeline(setup, progress, costs, trainer)
                                       : WEFT_CLI_OK;
}

int weft_train_write_files(const struct weft_train_setup *setup,
                           const struct weft_train_progress *progress,
                           const struct weft_gpt_trainer *trainer) {
  assert(setup != NULL && progress != NULL && trainer != NULL);
  return write_measured(setup, progress, trainer);
}
