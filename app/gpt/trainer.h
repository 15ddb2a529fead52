/* The trainer: a GPT on a pipeline, step after step. All ranks live in this process,
 * as threads or in one thread on the loopback transport.
 *
 * Each step: the pipeline's; then gradients' norms of all parts are exchanged, in the
 * order of parts, so that clipping is the same for every split; then each rank updates
 * its own parts. So parameters after any number of steps are the same bit for bit for
 * every number of ranks, schedule and transport that adds up gradients in the same
 * order. */
#ifndef GPT_TRAINER_H
#define GPT_TRAINER_H

#include <weft/costs.h>
#include <weft/run.h>

#include "gpt/checkpoint.h"
#include "gpt/corpus.h"

enum weft_gpt_transport { WEFT_GPT_THREADS, WEFT_GPT_LOOPBACK };

/* After each step, from the rank with the last stage; NAN: not known. */
struct weft_gpt_step_report {
  uint64_t step;  /* done, from 1 */
  uint64_t steps; /* in all */
  double loss;    /* mean over the batch, nats per token */
  double validation_loss;
  double gradient_norm; /* before clipping */
  double rate;
  double seconds;          /* of this step */
  double tokens_per_s;     /* of this step */
  double seconds_so_far;   /* since run() */
  double bubble;           /* share of ranks x time without compute, measured */
  double predicted_bubble; /* simulated from measured costs */
  bool checkpointed;
};

struct weft_gpt_trainer_options {
  const struct weft_allocator *allocator; /* thread-safe; NULL: the default */
  struct weft_gpt_progress progress;      /* model, data and optimizer; `step`: where to begin */
  const struct weft_gpt_corpus *corpus;   /* borrowed */

  uint32_t ranks, stages_per_rank; /* 0 stages per rank: the schedule's default */
  const char *schedule;
  const struct weft_program *program; /* instead of a schedule; borrowed */
  const uint32_t *first_parts;        /* [stages + 1] the split; NULL: even */
  enum weft_gpt_transport transport;
  uint64_t loopback_seed;
  uint32_t threads_per_rank; /* of BLAS; 0: 1 */
  int64_t stall_limit;       /* ns; 0: never */

  const char *checkpoint_dir; /* NULL: none */
  uint64_t checkpoint_every;  /* steps; 0: at the end only */
  uint32_t checkpoint_keep;   /* 0: all */
  const struct weft_gpt_files *files;
  const struct weft_gpt_checkpoint *resume; /* weights and moments come from here */

  uint64_t eval_every; /* steps; 0: never */
  uint32_t eval_steps; /* batches of an evaluation; 0: 1 */

  /* Called by a rank's thread. Asked to stop: the step is finished, a checkpoint is
   * written if there is a folder for it, and run() returns WEFT_OK. */
  void (*on_step)(void *context, const struct weft_gpt_step_report *report);
  bool (*interrupted)(void *context);
  void *context;
};

struct weft_gpt_trainer;

enum weft_status weft_gpt_trainer_create(const struct weft_gpt_trainer_options *options,
                                         struct weft_gpt_trainer **out, struct weft_error *error);
/* To the last step, or until interrupted. Returns what all ranks agree on. */
enum weft_status weft_gpt_trainer_run(struct weft_gpt_trainer *trainer, struct weft_error *error);
void weft_gpt_trainer_destroy(struct weft_gpt_trainer *trainer);

uint64_t weft_gpt_trainer_steps_done(const struct weft_gpt_trainer *trainer);
double weft_gpt_trainer_loss(const struct weft_gpt_trainer *trainer); /* of the last step */
/* Of all parameters, part after part: the same for every split. */
uint64_t weft_gpt_trainer_hash(const struct weft_gpt_trainer *trainer);
/* A part's memory, on whatever rank it is. Valid until destroy; not while it runs. */
const struct weft_gpt_part_state *weft_gpt_trainer_part(const struct weft_gpt_trainer *trainer,
                                                        uint32_t part);
/* Stages, and where each begins: [stage_count + 1]. */
const uint32_t *weft_gpt_trainer_split(const struct weft_gpt_trainer *trainer,
                                       uint32_t *stage_count);
/* Bytes of parameters, gradients, moments, slots and scratch, of all ranks. */
uint64_t weft_gpt_trainer_bytes(const struct weft_gpt_trainer *trainer);

/* The last training step's program and events (all ranks, in the simulator's order;
 * the caller gives room, as with weft_pipeline_events). */
const struct weft_program *weft_gpt_trainer_program(const struct weft_gpt_trainer *trainer);
void weft_gpt_trainer_events(const struct weft_gpt_trainer *trainer, struct weft_event *events,
                             uint64_t room, uint64_t *count);

/* An endpoint of the ranks' transport, for weft_hang_dump(): after a failure too, until
 * destroy. */
struct weft_transport *weft_gpt_trainer_transport(const struct weft_gpt_trainer *trainer);

/* Measured costs, in ms, one entry per stage: means over the steps so far but the
 * first. To be destroyed by the caller. WEFT_ERR_USAGE before the second step. */
enum weft_status weft_gpt_trainer_costs(const struct weft_gpt_trainer *trainer,
                                        struct weft_costs **out, struct weft_error *error);

#endif
