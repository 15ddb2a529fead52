/* Progress of a training. Called by the thread of rank 0, while the others wait or continue. */
#include "cli/args/option_parser.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <weft/launch.h>
#include <weft/support.h>

#include "cli/io/error_message.h"
#include "cli/io/output_file.h"
#include "cli/scoped.h"
#include "trainer/command/train_auto.h"
#include "trainer/command/train_progress.h"

enum { LINES_DEFAULT = 20 };

/* ---- Beginning and end ---- */

static int open_log(struct weft_train_progress *progress, bool appends) {
  if (progress->log_path == NULL) {
    return WEFT_CLI_OK;
  }
  do {
    progress->log = open(progress->log_path,
                         O_WRONLY | O_CREAT | O_CLOEXEC | (appends ? O_APPEND : O_TRUNC), 0666);
  } while (progress->log < 0 && errno == EINTR);
  if (progress->log >= 0) {
    return WEFT_CLI_OK;
  }
  const int code = errno;
  weft_cli_print(
      progress->cli, "--log FILE must be in a folder that is there and can be written to",
      "cannot open the log '%s': %s", weft_cli_quoted(progress->log_path).text, strerror(code));
  return WEFT_CLI_IO;
}

void weft_train_progress_init(struct weft_train_progress *progress, const struct weft_cli *cli) {
  assert(progress != NULL && cli != NULL);
  memset(progress, 0, sizeof *progress);
  progress->cli = cli;
  progress->line.cli = cli;
  progress->log = -1;
  progress->text.allocator = cli->allocator;
}

int weft_train_progress_begin(struct weft_train_progress *progress,
                              const struct weft_train_setup *setup) {
  assert(progress != NULL && setup != NULL);
  const struct weft_cli *cli = setup->cli;
  const uint64_t steps = setup->options.training.total_steps;
  const bool json = setup->arguments->given[WEFT_CLI_OPTION_JSON];
  if (!weft_train_setup_reports(setup)) {
    return WEFT_CLI_OK;
  }
  progress->json = json;
  progress->tunes = setup->options.tunes;
  progress->on_divergence = setup->options.on_divergence;
  progress->live = !json && weft_cli_progress_line_is_wanted(cli);
  progress->is_virtual = weft_comm_find(setup->options.transport)->virtual_time;
  progress->log_path = setup->arguments->texts[WEFT_CLI_OPTION_LOG];
  progress->say_every = steps > LINES_DEFAULT ? steps / LINES_DEFAULT : 1;
  progress->last = (struct weft_gpt_step_report){
      .loss = NAN, .validation_loss = NAN, .bubble = NAN, .predicted_bubble = NAN};
  return open_log(progress, setup->resume != NULL);
}

int weft_train_progress_finish(struct weft_train_progress *progress, int status) {
  assert(progress != NULL);
  weft_text_finish(&progress->text);
  if (progress->log < 0 || close(progress->log) == 0 || errno == EINTR) {
    return status;
  }
  const int code = errno;
  weft_cli_print(progress->cli, "make room on the disk", "cannot write the log '%s': %s",
                 weft_cli_quoted(progress->log_path).text, strerror(code));
  return WEFT_CLI_IO;
}

/* ---- Lines ---- */

/* "1:23 h", "4:05 min" or "12 s". */
static void add_duration(struct weft_text *text, double seconds) {
  const uint64_t whole = seconds > 0 ? (uint64_t)fmin(seconds, 1e9) : 0;
  if (whole >= 3600) {
    weft_text_addf(text, "%" PRIu64 ":%02" PRIu64 " h", whole / 3600, whole / 60 % 60);
  } else if (whole >= 60) {
    weft_text_addf(text, "%" PRIu64 ":%02" PRIu64 " min", whole / 60, whole % 60);
  } else {
    weft_text_addf(text, "%" PRIu64 " s", whole);
  }
}

static void add_bubble(struct weft_text *text, const struct weft_gpt_step_report *report) {
  if (isfinite(report->bubble)) {
    weft_text_addf(text, "  bubble %4.1f %%", 100 * report->bubble);
  }
  if (isfinite(report->predicted_bubble)) {
    weft_text_addf(text, " (predicted %.1f %%)", 100 * report->predicted_bubble);
  }
}

static void add_plain(struct weft_text *text, const struct weft_gpt_step_report *report) {
  char steps[24];
  const int digits = snprintf(steps, sizeof steps, "%" PRIu64, report->steps);
  weft_text_addf(text, "step %*" PRIu64 "/%s  loss %.4f", digits, report->step, steps,
                 report->loss);
  if (report->evaluated) {
    weft_text_addf(text, "  validation %.4f", report->validation_loss);
  }
  weft_text_addf(text, "  %6.0f tokens/s", report->tokens_per_s);
  add_bubble(text, report);
  weft_text_add(text, report->skipped ? "  skipped" : "");
  weft_text_add(text, report->checkpointed ? "  checkpoint\n" : "\n");
}

static void add_json(struct weft_text *text, const struct weft_gpt_step_report *report,
                     const struct weft_train_progress *progress) {
  struct weft_json json = weft_json_begin(text, NULL);
  weft_json_number(&json, "step", report->step);
  weft_json_exact(&json, "loss", report->loss);
  if (report->second_loss != 0) {
    weft_json_exact(&json, "second_loss", report->second_loss);
  }
  weft_json_real(&json, "tokens_per_s", report->tokens_per_s);
  weft_json_exact(&json, "rate", report->rate);
  weft_json_exact(&json, "gradient_norm", report->gradient_norm);
  weft_json_real(&json, "bubble", report->bubble);
  weft_json_real(&json, "predicted_bubble", report->predicted_bubble);
  if (report->evaluated) {
    weft_json_exact(&json, "validation_loss", report->validation_loss);
  }
  if (report->skipped) {
    weft_json_boolean(&json, "skipped", true);
  }
  if (report->checkpointed) {
    weft_json_boolean(&json, "checkpoint", true);
  }
  if (progress->tunes) {
    weft_json_string(&json, "schedule", report->schedule);
  }
  if (report->eager_reason != NULL) {
    weft_json_string(&json, "no_graph", report->eager_reason);
  }
  if (progress->has_news) {
    weft_train_tuning_add_json(&json, &progress->tuning);
  }
  weft_json_end(&json);
}

int weft_train_progress_write_json(struct weft_train_progress *progress,
                                   const struct weft_text *line) {
  assert(progress != NULL && line != NULL);
  if (progress->log >= 0) {
    WEFT_CLI_TRY(weft_cli_write_descriptor(progress->cli, progress->log, progress->log_path, line));
  }
  return progress->json ? weft_cli_write_descriptor(progress->cli, progress->cli->output,
                                                    "standard output", line)
                        : WEFT_CLI_OK;
}

static int write_plain(struct weft_train_progress *progress,
                       const struct weft_gpt_step_report *report) {
  weft_train_progress_clear(progress);
  progress->text.size = 0;
  add_plain(&progress->text, report);
  return weft_cli_write_descriptor(progress->cli, progress->cli->output, "standard output",
                                   &progress->text);
}

/* ---- The line that renews itself ---- */

void weft_train_progress_clear(struct weft_train_progress *progress) {
  weft_cli_progress_line_clear(&progress->line);
}

static void renew(struct weft_train_progress *progress, const struct weft_gpt_step_report *report) {
  if (!weft_cli_progress_line_is_due(&progress->line)) {
    return;
  }
  struct weft_text *text = &progress->text;
  const uint64_t left = report->steps - report->step;
  text->size = 0;
  weft_text_addf(text, "step %" PRIu64 "/%" PRIu64 "  loss %.4f  %.0f tokens/s  ", report->step,
                 report->steps, report->loss, report->tokens_per_s);
  add_duration(text, (double)left * report->seconds_so_far / (double)progress->steps);
  weft_text_add(text, " left");
  add_bubble(text, report);
  weft_cli_progress_line_update(&progress->line, text);
}

/* ---- A step ---- */

static void remember(struct weft_train_progress *progress,
                     const struct weft_gpt_step_report *report) {
  const double validation =
      report->evaluated ? report->validation_loss : progress->last.validation_loss;
  if (progress->steps++ > 0) { /* the first one also touches all memory for the first time */
    progress->timed++;
    progress->seconds += report->seconds;
    progress->tokens += report->tokens_per_s * report->seconds;
    progress->bubble += isfinite(report->bubble) ? report->bubble : 0;
    progress->bubbles += isfinite(report->bubble) ? 1 : 0;
  }
  progress->last = *report;
  progress->last.validation_loss = validation;
  progress->evaluated = progress->evaluated || report->evaluated;
}

/* Once each: when numbers stop being finite and the training continues, when no checkpoint can be
 * written, and when steps on GPUs are not replayed. */
static void warn(struct weft_train_progress *progress, const struct weft_gpt_step_report *report) {
  if (report->eager_reason != NULL && !progress->has_said_reason) {
    progress->has_said_reason = true;
    weft_train_progress_clear(progress);
    weft_cli_print(progress->cli, NULL, "step %" PRIu64 " was enqueued action by action: %s",
                   report->step, report->eager_reason);
  }
  if (report->checkpoint_withheld && !progress->withheld) {
    progress->withheld = true;
    weft_train_progress_clear(progress);
    weft_cli_print(progress->cli, "checkpoints written before are untouched",
                   "no checkpoint is written from step %" PRIu64
                   " on: parameters or moments are not finite",
                   report->step);
  }
  const bool continues = progress->on_divergence == WEFT_GPT_ON_DIVERGENCE_CONTINUE;
  const bool finite =
      isfinite(report->loss) && isfinite(report->second_loss) && isfinite(report->gradient_norm);
  if (finite || progress->warned || !(report->skipped || continues)) {
    return;
  }
  progress->warned = true;
  weft_train_progress_clear(progress);
  weft_cli_print(progress->cli,
                 continues ? "the default, --on-divergence stop, would have ended here"
                           : "a smaller --lr or --clip may help when many steps are skipped",
                 "step %" PRIu64 " has loss %g and gradient norm %g: %s", report->step,
                 report->loss, report->gradient_norm,
                 continues ? "training continues all the same"
                           : "it does not change parameters; such steps are skipped");
}

static int say(struct weft_train_progress *progress, const struct weft_gpt_step_report *report) {
  int status = WEFT_CLI_OK;
  if (progress->json || progress->log >= 0) {
    progress->text.size = 0;
    add_json(&progress->text, report, progress);
    progress->has_news = false;
    status = weft_train_progress_write_json(progress, &progress->text);
  }
  const bool is_due = report->step % progress->say_every == 0 || progress->steps == 1 ||
                      report->step == report->steps || report->evaluated;
  if (status == WEFT_CLI_OK && !progress->json && is_due) {
    status = write_plain(progress, report);
  }
  if (progress->live && report->step < report->steps) {
    renew(progress, report);
  }
  return status;
}

void weft_train_progress_step(void *context, const struct weft_gpt_step_report *report) {
  assert(report != NULL);
  struct weft_train_progress *progress = context;
  struct weft_gpt_step_report known = *report;
  if (progress->is_virtual) {
    known.bubble = known.predicted_bubble = NAN;
  }
  remember(progress, &known);
  warn(progress, &known);
  if (progress->failed == WEFT_CLI_OK) {
    const int status = say(progress, &known);
    __atomic_store_n(&progress->failed, status, __ATOMIC_RELAXED);
  }
}

void weft_train_progress_tuning(void *context, const struct weft_gpt_tuning_report *report) {
  assert(report != NULL);
  struct weft_train_progress *progress = context;
  progress->tuning = *report;
  progress->has_tuned = progress->has_news = true;
  if (progress->json || progress->failed != WEFT_CLI_OK) {
    return;
  }
  weft_train_progress_clear(progress);
  progress->text.size = 0;
  weft_train_tuning_add(&progress->text, report);
  const int status = weft_cli_write_descriptor(progress->cli, progress->cli->output,
                                               "standard output", &progress->text);
  __atomic_store_n(&progress->failed, status, __ATOMIC_RELAXED);
}

bool weft_train_progress_interrupted(void *context) {
  const struct weft_train_progress *progress = context;
  return weft_launch_signal() != 0 ||
         __atomic_load_n(&progress->failed, __ATOMIC_RELAXED) != WEFT_CLI_OK;
}

/* ---- Memory ---- */

int weft_train_progress_weigh(struct weft_train_progress *progress,
                              const struct weft_train_setup *setup,
                              const struct weft_gpt_trainer *trainer) {
  assert(progress != NULL && setup != NULL && trainer != NULL);
  const uint64_t mine = weft_gpt_trainer_bytes(trainer);
  if (setup->job == NULL) {
    progress->bytes = progress->bytes_max = mine;
    return WEFT_CLI_OK;
  }
  struct weft_transport *transport = setup->job->transport;
  struct weft_error error;
  WEFT_SCOPED_ARENA arena = {.allocator = setup->cli->allocator};
  uint64_t *all = weft_arena_allocate(&arena, transport->rank_count, sizeof *all);
  if (all == NULL) {
    return weft_cli_fail_memory(setup->cli);
  }
  if (weft_allgather(transport, &mine, all, sizeof mine, 0, &error) < 0) {
    return weft_launch_is_reporter(transport) ? weft_cli_fail(setup->cli, NULL, &error)
                                              : weft_cli_exit_status(NULL, &error);
  }
  for (uint32_t r = 0; r < transport->rank_count; r++) {
    progress->bytes += all[r];
    progress->bytes_max = all[r] > progress->bytes_max ? all[r] : progress->bytes_max;
  }
  return WEFT_CLI_OK;
}

/* ---- Means ---- */

double weft_train_progress_rate(const struct weft_train_progress *progress) {
  return progress->seconds > 0 ? progress->tokens / progress->seconds : NAN;
}

double weft_train_progress_bubble(const struct weft_train_progress *progress) {
  return progress->bubbles > 0 ? progress->bubble / (double)progress->bubbles : NAN;
}
