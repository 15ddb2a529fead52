/* Weft run: executes a schedule on your stages.
 *
 * Each rank has a pipeline of its own, on a transport (weft/comm.h), and calls
 * weft_pipeline_step() once per training step:
 *
 *     #include <weft/run.h>
 *     #include <weft/source.h>                     // weft_source_named
 *     #include <weft/support.h>                    // WEFT_TRY
 *
 *     static enum weft_status rank_main(void *context, struct weft_transport *transport,
 *                                       struct weft_error *error) {
 *       struct weft_pipeline_options options = weft_pipeline_options_default();
 *       options.source = weft_source_named;        // a named schedule
 *       options.source_context = &my_schedule;
 *       options.microbatch_count = 8;
 *       options.stages = my_stages;                // your forward and backward
 *       options.stage_count = 4;
 *       options.boundaries = &my_boundary;         // what goes from stage to stage
 *       options.boundary_count = 1;
 *       struct weft_pipeline *pipeline;
 *       WEFT_TRY(weft_pipeline_create(NULL, transport, &options, &pipeline, error));
 *       enum weft_status status = weft_pipeline_step(pipeline, &my_batch, NULL, error);
 *       weft_pipeline_destroy(pipeline);           // after as many steps as you like
 *       return status;
 *     }
 *
 * docs/your-trainer.md explains a complete trainer.
 *
 * No call blocks forever: it succeeds, or it fails within the stall limit with an
 * error that is the same on all ranks and names the rank, the action and the
 * peer. After a failure a pipeline can only be queried and destroyed. A stage's function
 * that never returns keeps its own rank's call; the other ranks' calls fail, and
 * weft_comm_run() returns without that rank (weft/comm.h says what becomes of its thread). */
#ifndef WEFT_RUN_H
#define WEFT_RUN_H

#include <weft/channel_models.h>
#include <weft/event.h>
#include <weft/transport.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Stages ---- */

struct weft_stage;

/* The arguments of a stage's function. Pointers are valid for the call, and until the last
 * poll when it returns WEFT_IN_PROGRESS. The data of `inputs` stays valid and unchanged until
 * the last backward of that microbatch on the stage (B, or W) has returned; that of
 * `output_grads` between I and W. The data of `outputs` and `input_grads` goes to the
 * neighbour stage. Tensors are on the pipeline's device; those of a batch where the caller
 * put them. */
struct weft_stage_call {
  uint32_t stage;
  uint32_t microbatch;
  uint32_t microbatch_count; /* of this step */
  uint32_t slot;             /* one of the stage's slots, this microbatch's from its forward to its
                                last backward: index of what the stage keeps in between */
  void *saved;         /* stage->saved_bytes on the pipeline's device, this microbatch's for as
                                long; NULL in other functions and where that is 0 */
  uint64_t step;       /* from 1; evals count too */
  bool training;       /* false in eval: nothing need be kept for a backward */
  bool first_backward; /* of the stage in this step */
  bool last_backward;  /* the stage's last B or W of this step */
  bool again;          /* a poll: the previous call returned WEFT_IN_PROGRESS */
  bool recorded;       /* `stream` is being recorded */

  /* In a chain there is one of each. In a graph (weft/graph.h) these are arrays: inputs[k] and
   * input_grads[k] are of the k-th in-edge, outputs[k] and output_grads[k] of the k-th output, both
   * in ascending order of the stages at the other ends. All out-edges of a stage are one output,
   * as in a chain, but those whose boundary has own_output (struct weft_boundary); that one is at
   * the place of the first stage that it goes to. */
  uint32_t input_count;  /* of inputs and input_grads: at least 1 */
  uint32_t output_count; /* of outputs and output_grads: at least 1 */
  const struct weft_tensors
      *inputs;                  /* from stage - 1, or over the in-edges; of a stage without any:
                                        the microbatch */
  struct weft_tensors *outputs; /* forward writes them. Shapes are the boundary's largest; make
                                        them smaller where this microbatch is */
  const struct weft_tensors *targets;      /* of a loss (the last stage, or one without out-edges),
                                              in training or eval; else empty */
  const struct weft_tensors *output_grads; /* backward reads them: gradients of `outputs`, those
                                              tensors that need one; empty for an edge without
                                              gradients */
  struct weft_tensors *input_grads;        /* backward writes them, likewise of `inputs` and with
                                              their shapes; empty for stage 0 and where none is
                                              needed */
  double *loss;      /* of this microbatch; forward or loss of a loss stage adds to it. On a
                        device with streams the device may access it */
  double grad_scale; /* for scale_grads: 1 / microbatch_count */

  struct weft_device *device; /* the pipeline's; NULL: host */
  struct weft_stream *stream; /* where a stage that enqueues puts its work; NULL on the host */

  int64_t now;      /* the transport's time */
  int64_t ready_at; /* may be set with WEFT_IN_PROGRESS: no need to ask before */

  /* On transports without asynchronous progress, a long-running function must call it
   * periodically. Never NULL. */
  void (*progress)(void *context);
  void *progress_context; /* NULL: progress is asynchronous, and calls do nothing */
};

/* A kind of stage. Every function gets the same arguments and returns WEFT_OK,
 * WEFT_IN_PROGRESS (it is then called again, with `again` set, until it is done), or a
 * failure with a reason in `error`, which ends the step on all ranks. No exception and no longjmp()
 * may leave it: Weft's frames are C. */
struct weft_stage_ops {
  const char *name;

  /* On a device with streams (weft/device.h): its functions enqueue on call->stream and return,
   * without waiting for the device. Everything that they need comes before in the stream; what
   * needs them comes after. All stages of such a pipeline must. */
  bool enqueues;
  /* It enqueues the same work in every step with the same shapes: no decision by the host,
   * nothing taken from call->step, no allocation, no collective or copy that the host takes part
   * in. Steps may then be recorded as a CUDA graph and replayed. */
  bool replays;

  /* Allocates for that many microbatches at once. Called again when a program needs more
   * slots, or another source (weft_pipeline_set_source) more or fewer. Not called during a
   * step. May be NULL. */
  enum weft_status (*prepare)(struct weft_stage *stage, uint32_t slot_count,
                              struct weft_error *error);

  enum weft_status (*forward)(struct weft_stage *stage, struct weft_stage_call *call,
                              struct weft_error *error);
  /* Computes the gradient of the input and adds to the gradient of the weights. NULL: Weft
   * calls the two functions below instead. */
  enum weft_status (*backward)(struct weft_stage *stage, struct weft_stage_call *call,
                               struct weft_error *error);
  /* The same in two functions. NULL for a stage that cannot split its backward: schedules
   * that need the split are then refused. */
  enum weft_status (*backward_input)(struct weft_stage *stage, struct weft_stage_call *call,
                                     struct weft_error *error);
  enum weft_status (*backward_weight)(struct weft_stage *stage, struct weft_stage_call *call,
                                      struct weft_error *error);

  /* All of these may be NULL. */
  /* Of a loss, after each forward: computes *loss and, in training, output_grads (writable
   * here) from outputs and targets. Without it forward computes the loss, and backward
   * starts from what it kept. */
  enum weft_status (*loss)(struct weft_stage *stage, struct weft_stage_call *call,
                           struct weft_error *error);
  enum weft_status (*unshard)(struct weft_stage *stage, struct weft_stage_call *call,
                              struct weft_error *error);
  enum weft_status (*reshard)(struct weft_stage *stage, struct weft_stage_call *call,
                              struct weft_error *error);
  enum weft_status (*reduce_grad)(struct weft_stage *stage, struct weft_stage_call *call,
                                  struct weft_error *error);
  /* TIE_GRAD: sums the gradients of weights that the first and the last stage share. After
   * the stage's last backward, before its REDUCE_GRAD. Only in programs lowered with
   * tie_grad. On a rank with both stages, that of the first stage is called first and must
   * be done before that of the last. */
  enum weft_status (*tie_grad)(struct weft_stage *stage, struct weft_stage_call *call,
                               struct weft_error *error);
  /* At the beginning of each training step. */
  enum weft_status (*zero_grad)(struct weft_stage *stage, struct weft_stage_call *call,
                                struct weft_error *error);
  /* Multiplies the gradients by call->grad_scale, after the stage's last
   * backward and before its REDUCE_GRAD. Needed when options.scale_grads. */
  enum weft_status (*scale_grads)(struct weft_stage *stage, struct weft_stage_call *call,
                                  struct weft_error *error);
};

/* Base of every stage: put it first in a struct of your own. */
struct weft_stage {
  const struct weft_stage_ops *ops;

  /* What the stage saves of a microbatch for its backward; 0: nothing, or in memory of its own.
   * Weft allocates it when a program is made and passes it as call->saved: to forward with
   * unspecified content, then to loss and to the backwards of the same microbatch at the same
   * address, as they left it. A step with the same program has the same addresses. Memory is
   * shared by the microbatches, and by the stages of the rank: a rank has as much as it needs
   * at once, not every stage as much as it ever needs. Aligned as what weft_device_allocate()
   * returns. Set before weft_pipeline_create(). */
  uint64_t saved_bytes;
};

/* What one stage passes to the next, or over an edge of a graph: up to WEFT_TENSORS_MAX tensors,
 * each up to a largest shape; microbatches may be smaller. `needs_grad` false: the next stage sends
 * no gradient for it. A boundary on which no tensor needs a gradient carries none: its SEND_B and
 * RECV_B do nothing, and the backward of a stage that gets no gradient is not called (it is frozen).
 *
 * In a graph, the out-edges of a stage carry the same tensors: the stage writes them once, and the
 * runtime copies them to the other edges. It adds up the gradients that come back, in ascending
 * order of the stages that they come from: ((a + b) + c), with the same bits on every transport and
 * number of ranks; in f32 and f64, and in f16 and bf16 with each sum rounded to nearest even. An
 * edge with `own_output` does not take part: the stage has an output for it alone. */
struct weft_boundary_tensor {
  const char *name; /* may be NULL */
  struct weft_tensor_shape largest;
  bool needs_grad;
};

struct weft_boundary {
  uint32_t tensor_count;
  struct weft_boundary_tensor tensors[WEFT_TENSORS_MAX];
  bool own_output; /* in a graph: the stage has an output for this edge alone */
};

/* ---- Batches ---- */

/* How a tensor is split into microbatches: along a dimension, as evenly as possible, the
 * first chunks one longer (as torch.tensor_split); or not at all, each gets the tensor. */
enum weft_chunk_kind { WEFT_CHUNK_SPLIT = 0, WEFT_CHUNK_REPLICATE };
struct weft_chunk {
  enum weft_chunk_kind kind;
  uint32_t dim; /* default 0 */
};

/* How the outputs of microbatches are merged: concatenated along a dimension, or their sum or
 * mean (f32 and f64; in the order of microbatches). */
enum weft_merge_kind { WEFT_MERGE_CONCATENATE = 0, WEFT_MERGE_SUM, WEFT_MERGE_MEAN };
struct weft_merge {
  enum weft_merge_kind kind;
  uint32_t dim;
};

/* In a graph: data of one stage, instead of the batch's. Of inputs and targets those are read that
 * the stage has: a stage without in-edges reads inputs, one without out-edges targets. */
struct weft_stage_batch {
  uint32_t stage;
  const struct weft_tensor *inputs; /* these as in struct weft_batch */
  uint32_t input_count;
  const struct weft_chunk *input_chunks;
  const struct weft_tensor *targets;
  uint32_t target_count;
  const struct weft_chunk *target_chunks;
  const struct weft_tensors *microbatch_inputs;
  const struct weft_tensors *microbatch_targets;
  const struct weft_merge *merges;
};

/* The data of one step. Inputs are read on the rank with stage 0, targets on the rank with
 * the last stage; in a graph on the ranks with stages without in-edges, and without out-edges.
 * Other ranks may leave them out. Either a batch to be split, or ready-made microbatches. Data is
 * borrowed until the step ends. */
struct weft_batch {
  uint32_t microbatch_count; /* the same on all ranks */

  const struct weft_tensor *inputs; /* [input_count] */
  uint32_t input_count;
  const struct weft_chunk *input_chunks; /* [input_count]; NULL: all along dimension 0 */
  const struct weft_tensor *targets;
  uint32_t target_count;
  const struct weft_chunk *target_chunks;

  const struct weft_tensors *microbatch_inputs;  /* [microbatch_count], instead of inputs */
  const struct weft_tensors *microbatch_targets; /* [microbatch_count], instead of targets */

  bool want_losses;                /* refused on a rank without the last stage, or any loss */
  bool want_outputs;               /* of the last stage, or of all losses of the rank; likewise */
  const struct weft_merge *merges; /* [tensors of the last boundary]; NULL: all along dimension 0 */

  /* Stages with data of their own, such as a second encoder's input or another head's targets: in
   * ascending order. Stages that are not listed use the fields above. NULL and 0: none. */
  const struct weft_stage_batch *stages; /* [stage_count]; other ranks' are not read */
  uint32_t stage_count;
};

/* What a loss of the rank has made: the last stage of a chain, in a graph a stage without
 * out-edges. */
struct weft_head_result {
  uint32_t stage;
  const double *losses;        /* [loss_count] by microbatch; NULL when not wanted */
  struct weft_tensors outputs; /* merged, on the host; count 0 when not wanted */
};

/* The result of a step; the pipeline owns it, and it is valid until the next step. The loss of a
 * microbatch is the sum over all losses in ascending order of their stages. Where one rank has all
 * of them it is in `losses`; else the caller adds up heads[].losses in that order. */
struct weft_step_result {
  uint32_t loss_count;                  /* microbatch_count, or 0 */
  const double *losses;                 /* by microbatch: the sum over heads */
  struct weft_tensors outputs;          /* of heads[0] */
  uint32_t head_count;                  /* losses on this rank; 0 when nothing was wanted */
  const struct weft_head_result *heads; /* ascending by stage */
};

/* ---- Pipelines ---- */

struct weft_pipeline_options {
  /* Makes the program for a number of microbatches, for training or forward only. Called
   * once for each; the pipeline keeps and destroys the program. weft/source.h has such
   * functions, for a named schedule and for a given program. */
  enum weft_status (*source)(void *context, uint32_t microbatch_count, bool training,
                             struct weft_program **out, struct weft_error *error);
  void *source_context;
  uint32_t microbatch_count; /* of the program that is made at create; steps may have another.
                                Channels are sized for it: with far more, a rank may have to
                                wait for a neighbour to receive */

  struct weft_stage *const *stages; /* [stage_count]; only this rank's are read */
  uint32_t stage_count;
  /* Of stage s to s+1; the last: the outputs. If the program has a graph: of its edges, as they are
   * numbered there, ascending by `from`, then `to`; then of the outputs of its losses, ascending by
   * stage. Copied. */
  const struct weft_boundary *boundaries;
  uint32_t boundary_count; /* 1: serves all; or stage_count, or edges and losses of the graph */

  struct weft_device *device; /* where this rank's boundary tensors are, inputs and outputs of its
                                 stages; must outlive the pipeline. NULL: host, which on the
                                 transport cuda other ranks need not be */

  /* Replicas: several pipelines on one transport. Row r of the program runs on the
   * transport's rank first_rank + r, and its channels are numbered from first_channel, which
   * differs by at least 2 x stage_count, in a graph 2 x its edges. All ranks of the transport take part in the
   * handshake. Default 0. */
  uint32_t first_rank;
  uint32_t first_channel;

  bool scale_grads;          /* gradients times 1 / microbatch_count, by the stages' scale_grads,
                              which all of them must then have; default true */
  enum weft_send_model comm; /* when a rank goes on after SEND and RECV; default posted */
  uint32_t slots;            /* of WEFT_COMM_SLOTS */
  int64_t stall_limit;       /* how long a rank may wait without progress, or be in one call of a
                              stage's function; in the transport's time; default 30 s; 0: never */
  uint32_t forward_ahead;    /* sends under way at once per boundary when there is no backward to
                              bound them; default 8; 0: as many as there are microbatches */
  bool no_events;            /* no event log: for measuring its cost */
  bool eager;       /* on a device: enqueue every step anew, instead of recording the work of
                              all ranks, or of each rank that is a process, once and replaying it */
  bool record_slow; /* where each rank is a process on a device: also record a step that gets slower
                       by that, because a recording has one transfer at a time; default false */
  /* On a device: enqueues what ends a training step, such as an optimizer that needs the norm of
   * all gradients; recordings have it, so it takes nothing from the host by value. Called after the
   * rows of all ranks are enqueued, by one thread, pass after pass (from 0) until none of the
   * ranks returns WEFT_IN_PROGRESS: what a pass enqueues comes after everything that the ranks on
   * devices have enqueued before it. Not called on the host. Refused where ranks on devices do not
   * end a step together, in several processes. May be NULL. */
  enum weft_status (*finish)(void *context, uint32_t pass, struct weft_stream *stream,
                             struct weft_error *error);
  void *finish_context;
  bool check_payloads;    /* checksums over payloads too; default false */
  uint64_t configuration; /* hash of whatever else ranks must agree on; default 0 */

  /* The log, if given: one line, without newline. */
  void (*log)(void *context, const char *line);
  void *log_context;
  /* Polled, if given: true ends the step on all ranks. */
  bool (*interrupted)(void *context);
  void *interrupted_context;
};

WEFT_API struct weft_pipeline_options weft_pipeline_options_default(void);

struct weft_pipeline;

/* NULL allocator: the default. Stages, device and transport are borrowed and must outlive the
 * pipeline. Sends nothing yet. WEFT_ERR_USAGE names what is missing or does not fit: a stage
 * of this rank, a stage that cannot split its backward on a schedule that does, ... */
WEFT_API enum weft_status weft_pipeline_create(const struct weft_allocator *allocator,
                                               struct weft_transport *transport,
                                               const struct weft_pipeline_options *options,
                                               struct weft_pipeline **out,
                                               struct weft_error *error);
/* NULL is fine. After the last step or a failure: another rank may still receive a buffer of
 * this one before. */
WEFT_API void weft_pipeline_destroy(struct weft_pipeline *pipeline);

/* Another source, for the same stages on the same ranks, from the next step on. Between steps,
 * on all ranks before the same step: they compare programs again when it begins. Destroys
 * the programs so far, and the results of weft_pipeline_program() and
 * weft_pipeline_events(). Prepares stages again whose number of slots changes.
 * WEFT_ERR_USAGE, with nothing changed, for a program that does not fit; after any other
 * failure the pipeline can only be queried and destroyed. */
WEFT_API enum weft_status weft_pipeline_set_source(
    struct weft_pipeline *pipeline,
    enum weft_status (*source)(void *context, uint32_t microbatch_count, bool training,
                               struct weft_program **out, struct weft_error *error),
    void *source_context, struct weft_error *error);

/* A training step, and a forward-only step. Blocks. All ranks call the same one with the same
 * number of microbatches. The result may be NULL. */
WEFT_API enum weft_status weft_pipeline_step(struct weft_pipeline *pipeline,
                                             const struct weft_batch *batch,
                                             struct weft_step_result *result,
                                             struct weft_error *error);
WEFT_API enum weft_status weft_pipeline_eval(struct weft_pipeline *pipeline,
                                             const struct weft_batch *batch,
                                             struct weft_step_result *result,
                                             struct weft_error *error);

/* The same in pieces, for many ranks in one thread. advance() never blocks: it runs until it
 * has to wait (WEFT_IN_PROGRESS), until the step is done (WEFT_OK), or fails. wait() blocks
 * until there may be something to do; on a transport with virtual time it only sets the
 * deadline. */
WEFT_API enum weft_status weft_pipeline_begin(struct weft_pipeline *pipeline, bool training,
                                              const struct weft_batch *batch,
                                              struct weft_error *error);
WEFT_API enum weft_status weft_pipeline_advance(struct weft_pipeline *pipeline,
                                                struct weft_error *error);
WEFT_API enum weft_status weft_pipeline_wait(struct weft_pipeline *pipeline,
                                             struct weft_error *error);
WEFT_API void weft_pipeline_result(const struct weft_pipeline *pipeline,
                                   struct weft_step_result *result);

/* ---- Custom functions ---- */

/* The arguments of a custom function: the cell, and for each sub-action its stage and a call
 * that can be passed to the stage's own function. An OVERLAP_F_B has its sub-actions, in
 * order; every other cell has one. */
struct weft_custom_call {
  const struct weft_action *cell;
  uint32_t sub_action_count;
  const struct weft_action *const *actions; /* [sub_action_count] */
  struct weft_stage *const *stages;         /* [sub_action_count] */
  struct weft_stage_call *const *calls;     /* [sub_action_count] */
};

/* Replaces what an op does on this rank: F, B, I, W, OVERLAP_F_B, UNSHARD, RESHARD,
 * REDUCE_GRAD or TIE_GRAD; others are refused. Inputs have arrived when it is called. NULL
 * function: restores the built-in one. Between steps. */
WEFT_API enum weft_status weft_pipeline_set_function(
    struct weft_pipeline *pipeline, enum weft_op op,
    enum weft_status (*function)(void *context, const struct weft_custom_call *call,
                                 struct weft_error *error),
    void *context, struct weft_error *error);

/* ---- The last step ---- */

/* Its program; NULL before the first. */
WEFT_API const struct weft_program *weft_pipeline_program(const struct weft_pipeline *pipeline);

/* Its events on this rank, in program order as the simulator's; *count is their number, and
 * at most `room` are written. A step that failed has those up to the failure. On a device, the
 * first call after a step that was not replayed reads the times, which takes some microseconds for each
 * action; none are there if the device fails meanwhile. */
WEFT_API void weft_pipeline_events(const struct weft_pipeline *pipeline, struct weft_event *events,
                                   uint64_t room, uint64_t *count);

/* What is allocated for the call->saved of this rank's stages, in bytes: the most that is in use
 * at once in a program so far, with each saved_bytes rounded up to 256, as the simulator counts
 * activations. Stages of a rank with different sizes may leave gaps; then it is at most the sum
 * over the sizes of the most that stages of that size use. */
WEFT_API uint64_t weft_pipeline_saved_bytes(const struct weft_pipeline *pipeline);

/* Actions since create. */
WEFT_API uint64_t weft_pipeline_actions_done(const struct weft_pipeline *pipeline);

/* On devices: why the last step was enqueued action by action; NULL: it was replayed, or is the
 * first of its kind. Of the pipeline of the first rank on a device, whose log has it too; where each
 * rank is a process, of any. Valid until its next step. */
WEFT_API const char *weft_pipeline_eager_reason(const struct weft_pipeline *pipeline);
/* Steps so far that were replayed. */
WEFT_API uint64_t weft_pipeline_replayed_steps(const struct weft_pipeline *pipeline);

/* ---- Hangs ---- */

/* Writes what all ranks are doing as JSON ("weft-hang/2"): phase, action, since when, the rank
 * each waits for, its last actions, and the agreed error if there is one; the same in a sentence
 * for each rank, and a diagnosis: the culprit or the cycle. Any thread. */
WEFT_API enum weft_status weft_hang_dump(struct weft_transport *transport, struct weft_text *text,
                                         struct weft_error *error);

/* Prints the sentences and the diagnosis of such a dump, of a file `name` (NULL: "dump").
 * WEFT_ERR_FORMAT when it is not a dump. */
WEFT_API enum weft_status weft_hang_explain(const char *dump, size_t size, const char *name,
                                            struct weft_text *text, struct weft_error *error);

/* The same as JSON: {"schema": "weft-explain-hang/1", "culprit": rank or null,
 * "cycle": [ranks], "message", "hint"}. */
WEFT_API enum weft_status weft_hang_explain_json(const char *dump, size_t size, const char *name,
                                                 struct weft_text *text, struct weft_error *error);

/* ---- Built-in stages ---- */

/* Does nothing; outputs have the boundary's largest shape and unspecified content. */
WEFT_API const struct weft_stage_ops *weft_null_stage_ops(void);

/* Takes a given time per op. */
enum weft_cost_mode {
  WEFT_COST_VIRTUAL, /* returns WEFT_IN_PROGRESS until the time has passed */
  WEFT_COST_SLEEP,   /* sleeps, and yields at the end: exact to microseconds */
  WEFT_COST_SPIN,    /* spins */
  WEFT_COST_DEVICE   /* keeps the device busy: one thread of it spins */
};
struct weft_cost_stage {
  struct weft_stage stage;
  enum weft_cost_mode mode;
  int64_t times[WEFT_OP_COUNT]; /* by op: F, B, I, W, UNSHARD, REDUCE_GRAD; the transport's time */
  int64_t until;                /* its own */
};
WEFT_API void weft_cost_stage_init(struct weft_cost_stage *stage, enum weft_cost_mode mode);

#ifdef __cplusplus
}
#endif
#endif
