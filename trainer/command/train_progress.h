/* Progress of `weft train`: a progress line on a terminal, plain lines now and then, or a line of
 * JSON per step, also into a log; and the totals of all steps for the report. */
#ifndef GPT_TRAIN_PROGRESS_H
#define GPT_TRAIN_PROGRESS_H

#include "cli/io/progress_line.h"
#include "trainer/command/train_setup.h"

struct weft_train_progress {
  const struct weft_cli *cli;
  bool json, live;
  bool tunes; /* --schedule auto */
  enum weft_gpt_on_divergence on_divergence;
  bool is_virtual;      /* times are virtual */
  int log;              /* descriptor, or -1 */
  const char *log_path; /* for messages */
  uint64_t say_every;   /* steps from one plain line to the next */
  int failed;           /* exit status when writing failed; read by the threads of all ranks */
  struct weft_cli_progress_line line;
  struct weft_text text; /* of the line being written */

  uint64_t steps; /* of this run */
  uint64_t timed; /* of them all but the first */
  double seconds; /* of the timed ones */
  double tokens;  /* likewise */
  double bubble;  /* sum over the timed ones that have one */
  uint64_t bubbles;
  uint64_t bytes;                   /* of memory, of all ranks together */
  uint64_t bytes_max;               /* of the rank, or the process with all ranks, that has most */
  struct weft_gpt_step_report last; /* with the validation loss of the last evaluation */
  bool evaluated;                   /* there was one */
  bool warned;                      /* of a loss or a gradient norm that is not finite */
  bool withheld;                    /* has said that checkpoints are not written, */
  bool has_said_reason;             /* and that steps are not replayed */
  struct weft_gpt_tuning_report tuning; /* the last one of --schedule auto */
  bool has_tuned;                       /* there is one */
  bool has_news;                        /* not yet written to a line of JSON */
};

/* Before anything that may fail. */
void weft_train_progress_init(struct weft_train_progress *progress, const struct weft_cli *cli);
/* Opens --log and begins; WEFT_CLI_OK or another exit status after printing why.
 * Finish in either case. */
int weft_train_progress_begin(struct weft_train_progress *progress,
                              const struct weft_train_setup *setup);
/* Closes the log; the status, or WEFT_CLI_IO when that fails. */
int weft_train_progress_finish(struct weft_train_progress *progress, int status);

/* Callbacks of the trainer; `context` is the progress. Interrupted: a signal has come, or
 * progress could not be written. */
void weft_train_progress_step(void *context, const struct weft_gpt_step_report *report);
bool weft_train_progress_interrupted(void *context);
void weft_train_progress_tuning(void *context, const struct weft_gpt_tuning_report *report);

/* After the last step: memory of all ranks. All processes call it. WEFT_CLI_OK or another
 * exit status after printing why. */
int weft_train_progress_weigh(struct weft_train_progress *progress,
                              const struct weft_train_setup *setup,
                              const struct weft_gpt_trainer *trainer);

/* Clears the progress line, if there is one. */
void weft_train_progress_clear(struct weft_train_progress *progress);
/* Writes a line of JSON: to standard output with --json, and to the log. */
int weft_train_progress_write_json(struct weft_train_progress *progress,
                                   const struct weft_text *line);

/* Means over this run; NAN: none. */
double weft_train_progress_rate(const struct weft_train_progress *progress);
double weft_train_progress_bubble(const struct weft_train_progress *progress);

#endif
