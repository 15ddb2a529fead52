/* `weft train`: the reference trainer, from the command line to its report. */
#include "trainer/command/train_commands.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <weft/launch.h>
#include <weft/support.h>

#include "cli/args/option_parser.h"
#include "cli/gpus.h"
#include "cli/io/error_message.h"
#include "cli/io/output_file.h"
#include "cli/scoped.h"
#include "trainer/command/sample_text.h"
#include "trainer/command/train_files.h"
#include "trainer/command/train_report.h"

enum { SAMPLE_BYTES = 400 };
#define SAMPLE_TEMPERATURE 0.8

/* ---- What is said ---- */

static int say_plan(const struct weft_train_setup *setup, const struct weft_gpt_trainer *trainer) {
  WEFT_SCOPED_TEXT text = {.allocator = setup->cli->allocator};
  if (setup->arguments->given[WEFT_CLI_OPTION_JSON] || !weft_train_setup_reports(setup)) {
    return WEFT_CLI_OK;
  }
  weft_train_add_plan(&text, setup, trainer);
  return weft_cli_write_descriptor(setup->cli, setup->cli->output, "standard output", &text);
}

static int say_outcome(const struct weft_train_setup *setup, struct weft_train_progress *progress,
                       const struct weft_gpt_trainer *trainer, const char *stopped_by) {
  WEFT_SCOPED_TEXT text = {.allocator = setup->cli->allocator};
  weft_train_add_json(&text, setup, progress, trainer, stopped_by);
  WEFT_CLI_TRY(weft_train_progress_write_json(progress, &text));
  if (progress->json) {
    return WEFT_CLI_OK;
  }
  text.size = 0;
  weft_train_add_summary(&text, setup, progress, trainer);
  return weft_cli_write_descriptor(setup->cli, setup->cli->output, "standard output", &text);
}

/* ---- A sample ---- */

static int say_sample(const struct weft_train_setup *setup,
                      const struct weft_gpt_trainer *trainer) {
  const struct weft_gpt_layer_state *layers = weft_gpt_trainer_model(trainer);
  WEFT_SCOPED_TEXT sample = {.allocator = setup->cli->allocator};
  WEFT_SCOPED_TEXT text = {.allocator = setup->cli->allocator};
  if (layers == NULL) { /* not requested */
    return WEFT_CLI_OK;
  }
  struct weft_gpt_sample_options options = weft_gpt_sample_options_default();
  options.count = SAMPLE_BYTES;
  options.temperature = SAMPLE_TEMPERATURE;
  options.seed = setup->options.training.data_seed;
  WEFT_CLI_TRY(
      weft_train_sample(setup->cli, &setup->options.training.config, layers, options, &sample));
  weft_text_add(&text, "\nSample:\n\n");
  weft_train_add_printable(&text, sample.data, sample.size);
  weft_text_add(&text, "\n");
  text.failed = text.failed || sample.failed;
  return weft_cli_write_descriptor(setup->cli, setup->cli->output, "standard output", &text);
}

/* ---- When it ends early ---- */

static int say_stopped(const struct weft_train_setup *setup, const struct weft_gpt_trainer *trainer,
                       int number) {
  const char *dir = setup->options.checkpoint_dir;
  const uint64_t done = weft_gpt_trainer_steps_done(trainer);
  char hint[640];
  if (dir != NULL) {
    const struct weft_cli_words word = weft_cli_shell_word(dir);
    (void)snprintf(hint, sizeof hint,
                   "'weft train --resume %s --checkpoint %s', with the same --data, continues from "
                   "there",
                   word.text, word.text);
  } else {
    (void)snprintf(hint, sizeof hint, "--checkpoint DIR would have kept what was trained");
  }
  weft_cli_print(setup->cli, hint, "stopped by %s after step %" PRIu64 " of %" PRIu64 "; %s",
                 weft_launch_signal_name(number), done, setup->options.training.total_steps,
                 dir != NULL ? "a checkpoint is written" : "nothing was saved");
  return 128 + number;
}

/* "the loss is nan, the gradient norm inf" */
static void describe_divergence(enum weft_gpt_divergence divergence,
                                const struct weft_gpt_step_report *last, char *text, size_t size) {
  if (divergence == WEFT_GPT_DIVERGED_STEP) {
    (void)snprintf(text, size, "the loss is %g, the gradient norm %g", last->loss,
                   last->gradient_norm);
  } else if (divergence == WEFT_GPT_DIVERGED_VALIDATION) {
    (void)snprintf(text, size, "the validation loss is %g", last->validation_loss);
  } else {
    (void)snprintf(text, size, "after it parameters or moments are not finite");
  }
}

/* What can be resumed from: checkpoints are finite. */
static void describe_checkpoint(const struct weft_train_setup *setup, char *text, size_t size) {
  const char *dir = setup->options.checkpoint_dir;
  struct weft_gpt_checkpoint *checkpoint;
  struct weft_error error;
  if (dir == NULL ||
      weft_gpt_checkpoint_open(setup->cli->allocator, dir, &checkpoint, &error) < 0) {
    (void)snprintf(text, size, "there is no checkpoint");
    return;
  }
  (void)snprintf(text, size, "'--resume %s' continues from the checkpoint after step %" PRIu64,
                 weft_cli_shell_word(dir).text, weft_gpt_checkpoint_training(checkpoint)->step);
  weft_gpt_checkpoint_close(checkpoint);
}

static int say_diverged(const struct weft_train_setup *setup,
                        const struct weft_train_progress *progress,
                        enum weft_gpt_divergence divergence) {
  char found[160], checkpoint[400], hint[640];
  describe_divergence(divergence, &progress->last, found, sizeof found);
  describe_checkpoint(setup, checkpoint, sizeof checkpoint);
  (void)snprintf(hint, sizeof hint,
                 "lower --lr or --weight-decay, or clip gradients (--clip); %s; --on-divergence "
                 "has other ways",
                 checkpoint);
  weft_cli_print(setup->cli, hint, "training has diverged at step %" PRIu64 " of %" PRIu64 ": %s",
                 progress->last.step, progress->last.steps, found);
  return WEFT_CLI_FOUND_BAD;
}

/* On mpi all ranks get here, and one of them reports. */
static int fail_training(const struct weft_train_setup *setup,
                         const struct weft_gpt_trainer *trainer, const struct weft_error *error) {
  if (setup->job != NULL) {
    weft_cli_job_fail(setup->job, error);
  }
  if (setup->job != NULL && !weft_launch_is_reporter(setup->job->transport)) {
    weft_cli_job_report_activity(setup->job);
    return weft_cli_exit_status(NULL, error);
  }
  struct weft_error said = *error;
  if (setup->job != NULL) {
    weft_launch_add_last_activity(setup->job->transport, &said);
  }
  const int status = weft_cli_fail(setup->cli, NULL, &said);
  if (status == WEFT_CLI_PEER) {
    weft_cli_write_hang(setup->cli, setup->arguments, weft_gpt_trainer_transport(trainer));
  }
  return status;
}

/* ---- The whole ---- */

/* The signal that ended the training before its last step; 0: none. It may have reached another
 * process. */
static int ended_by(const struct weft_train_setup *setup, const struct weft_gpt_trainer *trainer) {
  const int number = weft_launch_signal();
  const bool is_over = weft_gpt_trainer_steps_done(trainer) >= setup->options.training.total_steps;
  return is_over ? 0 : (number != 0 ? number : SIGTERM);
}

static int conclude(const struct weft_train_setup *setup, struct weft_train_progress *progress,
                    const struct weft_gpt_trainer *trainer) {
  const enum weft_gpt_divergence divergence = weft_gpt_trainer_divergence(trainer);
  const bool diverged = divergence != WEFT_GPT_NOT_DIVERGED;
  const int number = diverged ? 0 : ended_by(setup, trainer);
  if (!weft_train_setup_reports(setup)) {
    return diverged                                   ? WEFT_CLI_FOUND_BAD
           : number != 0 && weft_launch_signal() != 0 ? 128 + number
                                                      : WEFT_CLI_OK;
  }
  int status = weft_train_write_files(setup, progress, trainer);
  if (status == WEFT_CLI_OK) {
    status = say_outcome(setup, progress, trainer,
                         diverged      ? "divergence"
                         : number != 0 ? weft_launch_signal_name(number)
                                       : NULL);
  }
  if (diverged) {
    const int ended = say_diverged(setup, progress, divergence);
    return status == WEFT_CLI_OK ? ended : status;
  }
  if (number != 0) {
    const int ended = say_stopped(setup, trainer, number);
    return status == WEFT_CLI_OK ? ended : status;
  }
  const bool finite = isfinite(progress->last.loss) &&
                      (!progress->evaluated || isfinite(progress->last.validation_loss));
  return status == WEFT_CLI_OK && (finite || progress->steps == 0) ? say_sample(setup, trainer)
                                                                   : status;
}

/* Tells the other ranks that this one, which has reported the reason itself, cannot go on. */
static void leave(const struct weft_train_setup *setup, int status) {
  struct weft_error error;
  if (setup->job != NULL) {
    (void)weft_fail(&error, WEFT_ERR_PEER, "its own message says why",
                    "rank %" PRIu32 " has ended with status %d", setup->job->transport->rank,
                    status);
    weft_cli_job_fail(setup->job, &error);
  }
}

static int run_steps(const struct weft_train_setup *setup, struct weft_train_progress *progress,
                     struct weft_gpt_trainer *trainer) {
  struct weft_error error;
  int status = say_plan(setup, trainer);
  if (status != WEFT_CLI_OK) {
    leave(setup, status);
    return status;
  }
  const enum weft_status result = weft_gpt_trainer_run(trainer, &error);
  weft_train_progress_clear(progress);
  if (result < 0) {
    return fail_training(setup, trainer, &error);
  }
  status = weft_train_progress_weigh(progress, setup, trainer);
  if (status != WEFT_CLI_OK) {
    leave(setup, status);
    return status;
  }
  status = progress->failed;
  return status == WEFT_CLI_OK ? conclude(setup, progress, trainer) : status;
}

/* Signals are noted from here on, for a checkpoint: before, they end the process, whatever it reads. */
static int run_trainer(const struct weft_train_setup *setup, struct weft_train_progress *progress,
                       struct weft_gpt_trainer *trainer) {
  weft_launch_signals_begin();
  const int status = run_steps(setup, progress, trainer);
  weft_launch_signals_end();
  return status;
}

/* Everything that can fail before the ranks start. */
static int prepare_files(struct weft_train_setup *setup, struct weft_train_progress *progress,
                         struct weft_gpt_trainer **trainer) {
  struct weft_error error;
  int status = weft_train_check_files(setup);
  if (status == WEFT_CLI_OK) {
    status = weft_train_progress_begin(progress, setup);
  }
  setup->options.on_step = weft_train_progress_step;
  setup->options.on_tuning = weft_train_progress_tuning;
  setup->options.interrupted = weft_train_progress_interrupted;
  setup->options.context = progress;
  if (status == WEFT_CLI_OK) {
    status = weft_train_setup_plan_split(setup);
  }
  if (status == WEFT_CLI_OK && weft_gpt_trainer_create(&setup->options, trainer, &error) < 0) {
    if (setup->job != NULL && error.status != WEFT_ERR_USAGE) {
      /* It opens channels, in which the others may wait for this rank. What is wrong with the
       * options is the same on all ranks, and found before. */
      weft_cli_job_fail(setup->job, &error);
      return WEFT_CLI_PEER;
    }
    status = weft_cli_fail(setup->cli, NULL, &error);
  }
  return status;
}

static int train(struct weft_train_setup *setup, struct weft_train_progress *progress, int status) {
  struct weft_gpt_trainer *trainer = NULL;
  if (setup->job != NULL && weft_cli_is_on_gpus(setup->arguments)) {
    /* Ranks on GPUs connect when they are made: all are, or none is. */
    status = weft_cli_job_agree_so_far(setup->job, status);
  }
  if (status == WEFT_CLI_OK) {
    status = prepare_files(setup, progress, &trainer);
  }
  if (setup->job != NULL) {
    status = weft_cli_job_agree(setup->job, status);
  }
  if (status == WEFT_CLI_OK) {
    status = run_trainer(setup, progress, trainer);
  }
  if (trainer != NULL) {
    weft_gpt_trainer_destroy(trainer);
  }
  return weft_train_progress_finish(progress, status);
}

/* As one of several processes, or as all ranks. */
static int train_as(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                    struct weft_cli_job *job) {
  const struct weft_allocator *allocator = cli->allocator;
  struct weft_train_setup setup;
  struct weft_train_progress *progress = weft_array_allocate(allocator, 1, sizeof *progress);
  if (progress == NULL) {
    return weft_cli_fail_memory(cli);
  }
  weft_train_progress_init(progress, cli);
  const int read = weft_train_setup_read(cli, arguments, job, &setup);
  const int status = train(&setup, progress, read);
  weft_train_setup_finish(&setup);
  weft_array_free(allocator, progress, 1, sizeof *progress);
  return status;
}

static int train_as_rank(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  struct weft_comm_options options = weft_comm_options_default();
  options.sums = (enum weft_comm_sums)arguments->choices[WEFT_CLI_OPTION_SUM_ORDER];
  struct weft_cli_job job;
  int status = weft_cli_job_begin(&job, cli, weft_cli_chosen_transport(arguments)->name, &options);
  if (status == WEFT_CLI_OK) {
    status = train_as(&job.cli, arguments, &job);
  }
  return weft_cli_job_end(&job, status);
}

int weft_train_cmd_train(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  const bool is_rank = weft_cli_chosen_transport(arguments)->process_per_rank;
  weft_train_choose_kernels(cli);
  return is_rank ? train_as_rank(cli, arguments) : train_as(cli, arguments, NULL);
}
