/* The options of `weft train`: from the command line, the data, and the checkpoint to resume
 * from, to the options of the trainer (trainer/train/trainer.h). */
#ifndef GPT_TRAIN_SETUP_H
#define GPT_TRAIN_SETUP_H

#include "cli/job.h"
#include "trainer/checkpoint/checkpoint_lock.h"
#include "trainer/train/trainer.h"

/* What decided which layers are on which stage. */
enum weft_train_split {
  WEFT_TRAIN_SPLIT_WORK,
  WEFT_TRAIN_SPLIT_GIVEN,
  WEFT_TRAIN_SPLIT_MEASURED,
  WEFT_TRAIN_SPLIT_PLANNED
};

struct weft_train_setup {
  const struct weft_cli *cli;
  const struct weft_cli_arguments *arguments;
  struct weft_cli_job *job;                /* on mpi; or NULL */
  struct weft_gpt_trainer_options options; /* all but the callbacks */
  struct weft_arena arena;                 /* of first_layers */
  struct weft_gpt_dataset dataset;
  struct weft_cuda *cuda;               /* of --device cuda; or NULL */
  struct weft_gpt_checkpoint *resume;   /* or NULL */
  struct weft_gpt_checkpoint_lock lock; /* of --checkpoint, where rank 0 is */
  struct weft_program *program;         /* of --schedule FILE or of a fixed table; or NULL */
  uint32_t *first_layers;               /* of --split, or planned; or NULL */
  double split_gain;                    /* that the planned split promises */
  enum weft_train_split split_by;
  uint32_t stage_count;
};

/* Fills it from scratch; `job` on mpi, else NULL. Returns WEFT_CLI_OK, or another exit status
 * after printing what is wrong. Finish in either case. */
int weft_train_setup_read(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                          struct weft_cli_job *job, struct weft_train_setup *setup);
void weft_train_setup_finish(struct weft_train_setup *setup);

/* Whether this process reports: it has rank 0. */
bool weft_train_setup_reports(const struct weft_train_setup *setup);

/* Model and optimizer of a new training from options and defaults; `named`: without --model, and
 * but for other options, the first of its models. */
struct weft_gpt_training weft_train_new_training(const struct weft_cli_arguments *arguments,
                                                 bool named);

/* ---- Between train_*.c ---- */

/* Opens --resume, if given; then model, data and optimizer from it, or from options and
 * defaults; then, when the data has been read, whether it is the checkpoint's,
 * and whether --checkpoint is free for this training (train_resume.c). */
int weft_train_setup_open(struct weft_train_setup *setup);
int weft_train_setup_read_training(struct weft_train_setup *setup);
int weft_train_setup_check_data(struct weft_train_setup *setup);
/* The schedule (train_schedule.c), which needs the training, and the split into stages
 * (train_split.c), which needs both. */
int weft_train_setup_read_schedule(struct weft_train_setup *setup);
int weft_train_setup_read_split(struct weft_train_setup *setup);
/* For --schedule auto: measures some steps of a trial, whose weights are thrown away, and plans the
 * split from them. Keeps it where that is not worth it. The callbacks must be set. */
int weft_train_setup_plan_split(struct weft_train_setup *setup);
/* The number of replicas, and of ranks of a pipeline where no option gives it. */
uint32_t weft_train_setup_ranks(const struct weft_train_setup *setup);
int weft_train_setup_read_world(struct weft_train_setup *setup);

#endif
