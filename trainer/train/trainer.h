/* The trainer: a GPT trained on a pipeline.
 *
 * The world has replicas x pipeline ranks; rank d * P + r runs row r of replica d. Ranks share
 * nothing and exchange messages. All of them are threads of this process, or each is a process,
 * as the transport has it. loop.c is what every rank runs.
 *
 * In each step the replicas run their share of the batch through their pipelines, and their
 * gradients are summed in the order of replicas. Squared norms of gradients are gathered and
 * summed in the order of layers, so that clipping does not depend on the split. Then each rank
 * updates its own layers. So parameters are the same bit for bit for every number of pipeline
 * ranks, schedule, transport and way of sharding, given the same number of replicas and the same
 * order in which a stage accumulates its gradients. */
#ifndef GPT_TRAINER_H
#define GPT_TRAINER_H

#include <weft/costs.h>
#include <weft/cuda.h>
#include <weft/run.h>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/data/dataset.h"

/* What a trainer does with a step whose loss or gradient norm is not finite. Such a step stops the
 * training, does not change parameters and moments, or changes them like any other. Non-finite
 * parameters stop the training unless it continues; no checkpoint of them is ever written. */
enum weft_gpt_on_divergence {
  WEFT_GPT_ON_DIVERGENCE_STOP,
  WEFT_GPT_ON_DIVERGENCE_SKIP,
  WEFT_GPT_ON_DIVERGENCE_CONTINUE
};

/* After each step; NAN: not known. */
struct weft_gpt_step_report {
  uint64_t step;          /* done, or the one that diverged; from 1 */
  uint64_t steps;         /* in all */
  double loss;            /* of the next token: mean over the batch, nats per token */
  double second_loss;     /* of the token after it, without its weight; 0: there is one head */
  double validation_loss; /* of the next token */
  double gradient_norm;   /* before clipping */
  double rate;
  double seconds;          /* of this step */
  double tokens_per_s;     /* of this step */
  double seconds_so_far;   /* since run() */
  double bubble;           /* share of ranks x time without compute, measured */
  double predicted_bubble; /* simulated from measured costs */
  bool evaluated;          /* validation_loss is this step's, finite or not */
  bool checkpointed;
  bool skipped;             /* the step did not change parameters */
  bool checkpoint_withheld; /* one was due, but parameters are not finite */
  const char *schedule;     /* of this step: a name, or "searched" */
  const char *eager_reason; /* on GPUs: why the step was enqueued action by action; NULL: it was
                               replayed, or may be recorded later, or options.eager is set */
};

/* What auto-tuning has done. Times are those of the pipeline's part of a step, medians over
 * some steps; NAN: not known. */
enum weft_gpt_tuning_news {
  WEFT_GPT_TUNING_STAYED,   /* no schedule was found that is predicted to be faster */
  WEFT_GPT_TUNING_TRIES,    /* another schedule, from the next step on */
  WEFT_GPT_TUNING_KEPT,     /* it is faster */
  WEFT_GPT_TUNING_RETURNED, /* it is not: the schedule before runs again */
  WEFT_GPT_TUNING_DRIFTED   /* steps take another time than expected: it measures again */
};
struct weft_gpt_tuning_report {
  enum weft_gpt_tuning_news news;
  uint64_t step; /* done */
  const char *before_schedule, *schedule;
  double before_ms, promised_ms, after_ms;
  double promised_gain, gain;        /* shares of the time of a step */
  double memory;                     /* MiB that the schedule needs on the rank with the most */
  double memory_limit;               /* MiB; INFINITY: none */
  double planning_seconds;           /* that planning has taken */
  uint32_t plans, switches, returns; /* so far */
};

struct weft_gpt_trainer_options {
  const struct weft_allocator *allocator; /* thread-safe; NULL: the default */
  struct weft_gpt_training training;      /* model, data and optimizer; `step`: where to begin */
  const struct weft_gpt_dataset *dataset; /* borrowed */

  uint32_t ranks, stages_per_rank; /* of a pipeline; 0 stages per rank: the schedule's default */
  const char *schedule;
  const struct weft_program *program; /* instead of a schedule; borrowed. A program with SEND and
                                         RECV must also have what the options below need */
  /* Begins with `schedule`, and searches a faster one while it trains (autotune_policy.h). */
  bool tunes;
  double memory_limit; /* MiB that a rank may have for weights, gradients, moments, activations
                          and what it computes with; where `schedule` needs more, another one is
                          searched for the first step too. 0: none. For `tunes` alone, and the
                          same on all ranks */
  double memory_free;  /* MiB that a rank has if no limit is given; ranks may differ. 0: unknown */
  double plan_effort;  /* of the search (weft/search.h); 0: about ten
                          steps, a third at most */
  const uint32_t *first_layers; /* [stages + 1] the split; NULL: even */
  /* A world of replicas x ranks is opened by name (weft/comm.h); or it is open already, and this
   * process runs the rank of `endpoint`, which is borrowed. */
  const char *transport; /* NULL: "threads" */
  struct weft_transport *endpoint;
  uint64_t loopback_seed;
  int64_t stall_limit; /* ns; 0: never */
  /* GPUs that are open for all ranks of all replicas; borrowed. On the transport "cuda". NULL: the
   * host computes. */
  struct weft_cuda *cuda;
  bool eager; /* on GPUs: enqueue every step anew */
  bool
      times_layers; /* on GPUs: layers are measured before the first step; the host measures them in
                        every step */

  uint32_t replicas;         /* 0: 1. training.batch is divided among them; training.microbatches
                                are those of each */
  enum weft_gpt_shard shard; /* what is sharded over replicas; default: nothing */
  uint32_t unshard_window;   /* stages of a rank that are unsharded at once; 0: 3 */

  const char *checkpoint_dir; /* NULL: none */
  uint64_t checkpoint_every;  /* steps; 0: at the end only */
  uint32_t checkpoint_keep;   /* 0: all */
  const struct weft_gpt_files *files;
  const struct weft_gpt_checkpoint *resume; /* weights and moments come from here */

  uint64_t eval_every; /* steps; 0: never */
  uint32_t eval_steps; /* batches of an evaluation; 0: 1 */

  enum weft_gpt_on_divergence on_divergence;

  /* At the end of run(), to the process with rank 0; the same on all processes. */
  bool gather_events; /* of the other ranks of its pipeline: weft_gpt_trainer_events() */
  bool gather_model;  /* all parameters: weft_gpt_trainer_model() */

  /* Called in a rank's thread; NULL: not. on_step and on_tuning: on rank 0 of the world only.
   * interrupted: on all ranks; when it is true on one, all finish the step, write a checkpoint if
   * there is a folder for it, and run() returns WEFT_OK. */
  void (*on_step)(void *context, const struct weft_gpt_step_report *report);
  void (*on_tuning)(void *context, const struct weft_gpt_tuning_report *report);
  bool (*interrupted)(void *context);
  /* Called in the thread that is about to allocate what a rank of the world owns, or to run it.
   * create() allocates all ranks of this process in the caller's thread; run() runs each in a
   * thread of its own, unless each is a process. NULL: not. */
  void (*on_rank)(void *context, uint32_t rank);
  /* By all ranks, each before every step and once after the last: `step` are done. NULL: not. */
  void (*between_steps)(void *context, uint32_t rank, uint64_t step);
  /* In every forward of training, whose time it is part of: for tests. NULL: not. */
  void (*before_forward)(void *context, uint32_t stage, uint64_t step);
  void *context;
};

struct weft_gpt_trainer;

/* With an endpoint given, a failure is sent to the other processes. */
enum weft_status weft_gpt_trainer_create(const struct weft_gpt_trainer_options *options,
                                         struct weft_gpt_trainer **out, struct weft_error *error);
/* To the last step, or until interrupted or diverged. Returns what all ranks agree on; WEFT_OK after
 * a divergence too. */
enum weft_status weft_gpt_trainer_run(struct weft_gpt_trainer *trainer, struct weft_error *error);
void weft_gpt_trainer_destroy(struct weft_gpt_trainer *trainer);

/* ---- Results: the same in all processes, unless it says otherwise ---- */

uint64_t weft_gpt_trainer_steps_done(const struct weft_gpt_trainer *trainer);

/* What stopped the training: nothing, the loss or gradient norm of step steps_done + 1, or the
 * parameters or the validation loss after step steps_done. */
enum weft_gpt_divergence {
  WEFT_GPT_NOT_DIVERGED,
  WEFT_GPT_DIVERGED_STEP,
  WEFT_GPT_DIVERGED_PARAMETERS,
  WEFT_GPT_DIVERGED_VALIDATION
};
enum weft_gpt_divergence weft_gpt_trainer_divergence(const struct weft_gpt_trainer *trainer);
uint64_t weft_gpt_trainer_steps_skipped(const struct weft_gpt_trainer *trainer);

/* Of all parameters, layer after layer: the same for every split, transport and way of
 * sharding. 0 before run() is over. */
uint64_t weft_gpt_trainer_hash(const struct weft_gpt_trainer *trainer);
/* Stages, and where each begins: [stage_count + 1]. */
const uint32_t *weft_gpt_trainer_split(const struct weft_gpt_trainer *trainer,
                                       uint32_t *stage_count);
/* Which stages pass something on; NULL: a chain. The trainer owns it. */
const struct weft_graph *weft_gpt_trainer_graph(const struct weft_gpt_trainer *trainer);

/* A layer's memory in the first replica that this process has; NULL when the layer is not here, or
 * not in memory of the host. Arrays that are sharded are NULL. Valid until destroy; not while it runs. */
const struct weft_gpt_layer_state *weft_gpt_trainer_layer(const struct weft_gpt_trainer *trainer,
                                                          uint32_t layer);
/* Copies a layer from the replicas that this process has: unsharded->layer says which, arrays
 * of weft_gpt_layer_floats() or NULL where to. False when a replica of it is not here. */
bool weft_gpt_trainer_copy_layer(const struct weft_gpt_trainer *trainer,
                                 struct weft_gpt_layer_state *unsharded);
/* Parameters of all layers [layer_count], for the sampler: in the process with rank 0 after
 * run() with gather_model, else NULL. Valid until destroy. */
const struct weft_gpt_layer_state *weft_gpt_trainer_model(const struct weft_gpt_trainer *trainer);

/* ---- Memory, in bytes ---- */

struct weft_gpt_memory {
  uint64_t parameters, gradients; /* with the buffers for unsharded stages */
  uint64_t moments;
  uint64_t activations; /* what stages save */
  uint64_t scratch;
  uint64_t peak; /* of parameters and gradients in use at once: shards, and unsharded stages */
};

/* Of a rank of the world; false when it is not in this process. */
bool weft_gpt_trainer_memory(const struct weft_gpt_trainer *trainer, uint32_t world_rank,
                             struct weft_gpt_memory *memory);
/* Of all ranks in this process, all of it. */
uint64_t weft_gpt_trainer_bytes(const struct weft_gpt_trainer *trainer);

/* ---- The last step ---- */

/* The last training step's program, and events of the first replica (all its ranks, in the
 * simulator's order; the caller gives room, as with weft_pipeline_events): of the ranks in
 * this process, and in the process with rank 0 of all, if they were gathered. */
const struct weft_program *weft_gpt_trainer_program(const struct weft_gpt_trainer *trainer);
void weft_gpt_trainer_events(const struct weft_gpt_trainer *trainer, struct weft_event *events,
                             uint64_t room, uint64_t *count);

/* An endpoint of the ranks' transport, for weft_hang_dump(): after a failure too, until
 * destroy. */
struct weft_transport *weft_gpt_trainer_transport(const struct weft_gpt_trainer *trainer);

/* The schedule of the last step, in the process with rank 0. */
const char *weft_gpt_trainer_schedule(const struct weft_gpt_trainer *trainer);

/* The kernels that compute attention, on GPUs (trainer/model/compute.h); NULL on the host. */
const char *weft_gpt_trainer_attention(const struct weft_gpt_trainer *trainer);

/* The split into stages that the planner chooses together with the order, for the measured times
 * of layers and the memory limit of the options: first_layers [stage_count + 1], and the share of
 * the time of a step that it promises to save. Without a promise of WEFT_GPT_SPLIT_GAIN_MIN, where
 * nothing fits, and for layers that are no chain, first_layers is the present split and the gain 0. The same in all processes.
 * WEFT_ERR_USAGE before the second step. */
#define WEFT_GPT_SPLIT_GAIN_MIN 0.03
enum weft_status weft_gpt_trainer_plan_split(const struct weft_gpt_trainer *trainer,
                                             uint32_t *first_layers, double *gain,
                                             struct weft_error *error);

/* Measured costs, in ms and MiB, one entry per stage and one per layer: means over
 * replicas and over the steps but the first, or since auto-tuning last dropped its measurements.
 * The caller destroys them. WEFT_ERR_USAGE before the second step. */
enum weft_status weft_gpt_trainer_costs(const struct weft_gpt_trainer *trainer,
                                        struct weft_costs **out, struct weft_error *error);

#endif
