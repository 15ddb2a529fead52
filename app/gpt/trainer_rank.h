/* One rank of the trainer, as a step function: what it does next, and what ranks
 * share. For trainer*.c alone. */
#ifndef GPT_TRAINER_RANK_H
#define GPT_TRAINER_RANK_H

#include <weft/net.h>

#include "gpt/trainer.h"

/* Means of what a stage's actions took. Written by its rank after each step; read by
 * the rank with the last stage before the next one ends anywhere, which needs it. */
struct weft_gpt_stage_times {
  double total_ns[WEFT_OP_COUNT];
  uint64_t count[WEFT_OP_COUNT];
  double transfer_ns; /* of its shortest RECV */
  uint64_t transfer_count;
};

enum weft_gpt_rank_state {
  WEFT_GPT_RANK_NEXT,  /* begin a step, or end */
  WEFT_GPT_RANK_STEP,  /* the pipeline's */
  WEFT_GPT_RANK_TIE,   /* tied weights: all gradients are complete */
  WEFT_GPT_RANK_UNTIE, /* ... and have been read by the other side */
  WEFT_GPT_RANK_NORMS, /* exchange norms, a few parts at a time */
  WEFT_GPT_RANK_UPDATE,
  WEFT_GPT_RANK_EVALUATE, /* begin an evaluation batch, or go on */
  WEFT_GPT_RANK_EVALUATING,
  WEFT_GPT_RANK_SAVE,  /* write own parts */
  WEFT_GPT_RANK_SAVED, /* all have */
  WEFT_GPT_RANK_COMMITTED,
  WEFT_GPT_RANK_DONE
};

/* What ranks tell each other at a meeting. */
enum { WEFT_GPT_NORMS_PER_MEETING = 10 };
struct weft_gpt_meeting {
  double norms[WEFT_GPT_NORMS_PER_MEETING];
  int64_t busy_ns, begin, end; /* of the step */
  uint64_t stop;
};

struct weft_gpt_rank {
  struct weft_gpt_trainer *trainer;
  struct weft_transport *transport;
  struct weft_pipeline *pipeline;
  enum weft_gpt_rank_state state;
  uint64_t step;       /* done */
  uint32_t *own_parts; /* ascending */
  uint32_t own_part_count;
  bool has_first, has_last;

  uint8_t *inputs, *targets; /* [batch][context] */
  struct weft_gpt_meeting mine;
  struct weft_gpt_meeting *all; /* [rank_count] */
  uint32_t meeting;             /* of this step */
  double *norms;                /* [part_count] squares */
  float *tied_sum;              /* [V, C] where a tied weight is */
  int64_t wait_since;           /* in an exchange */
  bool waits;                   /* the transport must be waited for, not the pipeline */
  bool stop;
  int64_t busy_ns, first_begin, last_end; /* of the step, over all ranks where it says */
  double bubble, norm;
  uint32_t eval_at;
  double eval_sum;
  const struct weft_program *program; /* of the last training step, and its events */
  struct weft_event *events;
  uint64_t event_room, event_count;
  struct weft_gpt_step_report report;  /* with the last stage */
  int64_t step_begin_ns, run_begin_ns; /* of the clock */
};

struct weft_gpt_trainer {
  struct weft_gpt_trainer_options options;
  const struct weft_allocator *allocator;
  struct weft_gpt_config config;
  uint32_t part_count, stage_count, meetings;
  uint32_t *first_parts;          /* [stage_count + 1] */
  uint32_t *rank_of;              /* [stage_count] */
  struct weft_gpt_stage **stages; /* [stage_count] */
  struct weft_stage **bases;
  struct weft_boundary *boundaries;
  struct weft_gpt_stage_times *times; /* [stage_count] */
  struct weft_gpt_part_file *files;   /* [part_count], written by their ranks */
  struct weft_threads *threads;
  struct weft_loopback *loopback;
  struct weft_gpt_rank *ranks;
  double loss; /* of the last step */
};

/* Goes on as far as it can: WEFT_OK when training is over, WEFT_IN_PROGRESS when it has
 * to wait (weft_gpt_rank_wait), or an error that is the same on all ranks. */
enum weft_status weft_gpt_rank_advance(struct weft_gpt_rank *rank, struct weft_error *error);
enum weft_status weft_gpt_rank_wait(struct weft_gpt_rank *rank, struct weft_error *error);

struct weft_gpt_part_state *weft_gpt_rank_part(const struct weft_gpt_trainer *trainer,
                                               uint32_t part);

/* Adds the last step's events to the stages' times (trainer_profile.c). */
void weft_gpt_rank_measure(struct weft_gpt_rank *rank);
/* Bubble ratio that the simulator predicts for the program from the times so far; NAN
 * if it cannot. */
double weft_gpt_trainer_predict(const struct weft_gpt_trainer *trainer,
                                const struct weft_program *program);

#endif
