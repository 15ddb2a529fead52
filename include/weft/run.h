/* Weft run: a schedule executed for real, on your stages.
 *
 * Each rank has a pipeline of its own, on a transport (weft/comm.h), and calls
 * step() as often as it likes; ranks in threads look like this:
 *
 *     static enum weft_status rank_main(void *context, struct weft_transport *transport,
 *                                       struct weft_error *error) {
 *       struct weft_pipeline_options options = weft_pipeline_options_default();
 *       options.source = weft_source_named;          // a named schedule (weft/source.h)
 *       options.source_context = &my_schedule;
 *       options.microbatch_count = 8;
 *       options.stages = my_stages;              // your forward and backward
 *       options.stage_count = 4;
 *       options.boundaries = &my_boundary;       // what goes from stage to stage
 *       options.boundary_count = 1;
 *       struct weft_pipeline *pipeline;
 *       WEFT_TRY(weft_pipeline_create(NULL, transport, &options, &pipeline, error));
 *       enum weft_status status = weft_pipeline_step(pipeline, &batch, &result, error);
 *       ...
 *     }
 *
 * docs/your-trainer.md walks through a whole trainer.
 *
 * No call blocks forever: it succeeds, or it fails within the stall limit with an
 * error that is the same on all ranks and names the rank, the action and the
 * peer. After a failure a pipeline can only be asked and destroyed. */
#ifndef WEFT_RUN_H
#define WEFT_RUN_H

#include <weft/event.h>
#include <weft/transport.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Stages ---- */

struct weft_stage;

/* What a stage's function is told, and where it writes. Pointers are valid for
 * the call, and until the last poll where it answers WEFT_IN_PROGRESS. Data of
 * `inputs` stays where it is, unchanged, until the last backward of that
 * microbatch on the stage has returned (B, or W); that of `output_grads` too,
 * between I and W. That of `outputs` and `input_grads` goes to the neighbour. */
struct weft_stage_call {
  uint32_t stage;
  uint32_t microbatch;
  uint32_t microbatch_count; /* of this step */
  uint32_t slot;             /* one of the stage's slots, this microbatch's from its forward to its
                                last backward: index of what the stage keeps in between */
  uint64_t step;             /* from 0 */
  bool training;             /* false in eval: nothing need be kept for a backward */
  bool first_backward;       /* of the stage in this step */
  bool last_backward;        /* the stage's last B or W of this step */
  bool again;                /* a poll: the call before answered WEFT_IN_PROGRESS */

  const struct weft_tensors *inputs; /* from stage - 1; of stage 0: the microbatch */
  struct weft_tensors *outputs;      /* forward writes them. Shapes are the boundary's largest; make
                                        them smaller where this microbatch is */
  const struct weft_tensors *targets;      /* of the last stage, in training or eval; else empty */
  const struct weft_tensors *output_grads; /* backward reads them: gradients of `outputs`, those
                                              tensors that need one */
  struct weft_tensors *input_grads;        /* backward writes them, likewise of `inputs` and with
                                              their shapes; empty for stage 0 and where none is
                                              needed */
  double *loss;      /* of this microbatch; forward or loss of the last stage adds to it */
  double grad_scale; /* for scale_grads: 1 / microbatch_count */

  int64_t now;      /* the transport's time */
  int64_t ready_at; /* may be set with WEFT_IN_PROGRESS: no need to ask before */

  /* To be called now and then by a function that computes for long: messages move on
   * meanwhile, on transports that have nobody else to see to them. Never NULL. */
  void (*progress)(void *context);
  void *progress_context; /* NULL: the transport moves alone, and poke does nothing */
};

/* A kind of stage. Every function gets the same arguments and answers WEFT_OK,
 * WEFT_IN_PROGRESS (it is called again, with `again`, until it is done: this
 * is how GPUs fit in), or a failure, which ends the step on all ranks; then
 * `error` says why. */
struct weft_stage_ops {
  const char *name;

  /* Room for that many microbatches at once; again when it becomes more, and when
   * another plan (weft_pipeline_set_source) needs more or fewer. Not called between two
   * advance() of a step. May be NULL. */
  enum weft_status (*prepare)(struct weft_stage *stage, uint32_t slot_count,
                              struct weft_error *error);

  enum weft_status (*forward)(struct weft_stage *stage, struct weft_stage_call *call,
                              struct weft_error *error);
  /* Gradients of input and weights in one go: adds to the weights' gradient.
   * NULL: the two parts below, one after the other. */
  enum weft_status (*backward)(struct weft_stage *stage, struct weft_stage_call *call,
                               struct weft_error *error);
  /* The same in two parts; NULL for a stage that cannot: schedules that split
   * the backward are refused then. */
  enum weft_status (*backward_input)(struct weft_stage *stage, struct weft_stage_call *call,
                                     struct weft_error *error);
  enum weft_status (*backward_weight)(struct weft_stage *stage, struct weft_stage_call *call,
                                      struct weft_error *error);

  /* All of these may be NULL. */
  /* Last stage, after each forward: from outputs and targets to *loss and, in
   * training, output_grads (writable here). Without it forward computes the
   * loss, and backward begins from what it kept. */
  enum weft_status (*loss)(struct weft_stage *stage, struct weft_stage_call *call,
                           struct weft_error *error);
  enum weft_status (*unshard)(struct weft_stage *stage, struct weft_stage_call *call,
                              struct weft_error *error);
  enum weft_status (*reshard)(struct weft_stage *stage, struct weft_stage_call *call,
                              struct weft_error *error);
  enum weft_status (*reduce_grad)(struct weft_stage *stage, struct weft_stage_call *call,
                                  struct weft_error *error);
  /* TIE_GRAD: sums gradients of weights that this stage shares with another one:
   * the first with the last. After the stage's last backward, before its
   * REDUCE_GRAD. Only in programs lowered with tie_grad. Where one rank has both
   * stages, the first's is called first, and must be done before the last's is. */
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
};

/* What one stage gives to the next: up to WEFT_TENSORS_MAX tensors, each up to a
 * largest shape; microbatches may be smaller. `needs_grad` false: the next stage
 * sends no gradient for it. A boundary without any that needs one (the stages
 * above are frozen) carries no gradients at all: its SEND_B and RECV_B do
 * nothing, and the backward of the stage above is not called. */
struct weft_boundary_tensor {
  const char *name; /* may be NULL */
  struct weft_tensor_shape largest;
  bool needs_grad;
};

struct weft_boundary {
  uint32_t tensor_count;
  struct weft_boundary_tensor tensors[WEFT_TENSORS_MAX];
};

/* ---- Batches ---- */

/* How a tensor becomes microbatches: along a dimension, as even as can be, the
 * first ones one longer (as torch.tensor_split); or whole for each of them. */
enum weft_chunk_kind { WEFT_CHUNK_SPLIT = 0, WEFT_CHUNK_REPLICATE };
struct weft_chunk {
  enum weft_chunk_kind kind;
  uint32_t dim; /* default 0 */
};

/* How outputs of microbatches become one: one after the other along a
 * dimension, or added up, or their mean (f32 and f64; in the order of
 * microbatches). */
enum weft_merge_kind { WEFT_MERGE_CONCATENATE = 0, WEFT_MERGE_SUM, WEFT_MERGE_MEAN };
struct weft_merge {
  enum weft_merge_kind kind;
  uint32_t dim;
};

/* One step's data. Inputs are read on the rank with stage 0, targets on the
 * rank with the last stage; elsewhere they may be left out, and are ignored.
 * Either a whole batch or ready-made microbatches. Data is borrowed until the
 * step is over. */
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

  bool want_losses;                /* refused on a rank without the last stage */
  bool want_outputs;               /* of the last stage; likewise */
  const struct weft_merge *merges; /* [tensors of the last boundary]; NULL: all along dimension 0 */
};

/* What came out; belongs to the pipeline and is valid until its next step. */
struct weft_step_result {
  uint32_t loss_count;         /* microbatch_count, or 0 */
  const double *losses;        /* by microbatch */
  struct weft_tensors outputs; /* merged, on the host; count 0 when not wanted */
};

/* ---- Pipelines ---- */

/* When SEND and RECV let the rank go on. */
enum weft_run_comm {
  WEFT_COMM_POSTED = 0, /* at once; compute waits for its own input */
  WEFT_COMM_EAGER,      /* a SEND at once, a RECV when its message is there */
  WEFT_COMM_RENDEZVOUS  /* a SEND when it has been received: as on the weakest network, and the
                           model that verify proves a program in */
};

struct weft_pipeline_options {
  /* Makes the program for a number of microbatches, for training or forward
   * only; asked once for each and kept, and the program destroyed with the
   * pipeline. weft/source.h has such functions: for a named schedule, and for a
   * program as it is. */
  enum weft_status (*source)(void *context, uint32_t microbatch_count, bool training,
                             struct weft_program **out, struct weft_error *error);
  void *source_context;
  uint32_t microbatch_count; /* of the plan that is made at create; steps may have another. Channels
                                are made for it: with far more, a rank may have to wait for a
                                neighbour to take a message */

  struct weft_stage *const *stages; /* [stage_count]; only this rank's are looked at */
  uint32_t stage_count;
  const struct weft_boundary *boundaries; /* of stage s to s+1; the last: the outputs. Copied. */
  uint32_t boundary_count;                /* 1: serves all; or stage_count */

  struct weft_device *device; /* where this rank's boundary tensors are, inputs and outputs of its
                                 stages; must outlive the pipeline. NULL: host */

  /* Several pipelines on one transport, replicas of each other: row r of the program
   * runs on the transport's rank first_rank + r, and its channels are numbered from
   * first_channel, which differs by 2 x stage_count at least. All ranks of the
   * transport take part in the handshake. Default 0. */
  uint32_t first_rank;
  uint32_t first_channel;

  bool scale_grads;        /* gradients times 1 / microbatch_count; default true */
  enum weft_run_comm comm; /* default posted */
  int64_t stall_limit;     /* in the transport's time; default 30 s; 0: never */
  uint32_t forward_ahead;  /* sends under way at once per boundary when there is no backward to
                              bound them; default 8; 0: as many as there are microbatches */
  bool no_events;          /* no event log: for measuring what it costs */
  bool check_payloads;     /* checksums over payloads too; default false */
  uint64_t configuration;  /* hash of all else that ranks must agree on; default 0 */

  /* Tells what happens, if given: one line, without newline. */
  void (*log)(void *context, const char *line);
  void *log_context;
  /* Asked now and then, if given: true abandons the step, on all ranks. */
  bool (*interrupted)(void *context);
  void *interrupted_context;
};

WEFT_API struct weft_pipeline_options weft_pipeline_options_default(void);

struct weft_pipeline;

/* NULL allocator: the default. Stages and transport are borrowed and must
 * outlive the pipeline. No message is sent yet. WEFT_ERR_USAGE names what is
 * missing or does not fit: a stage of this rank that is not given, one that
 * cannot split its backward on a schedule that does, ... */
WEFT_API enum weft_status weft_pipeline_create(const struct weft_allocator *allocator,
                                               struct weft_transport *transport,
                                               const struct weft_pipeline_options *options,
                                               struct weft_pipeline **out,
                                               struct weft_error *error);
/* NULL is fine. Not while another rank may still take a buffer of this one:
 * after the last step, or after a failure. */
WEFT_API void weft_pipeline_destroy(struct weft_pipeline *pipeline);

/* Other programs from the next step on, for the same stages on the same ranks. Between
 * steps, on all ranks before the same step: ranks compare programs again at its begin.
 * Programs that were made so far are destroyed, and with them what
 * weft_pipeline_program() and weft_pipeline_events() told of the last step. Stages are
 * prepared anew where the number of microbatches that they hold at once changes.
 * WEFT_ERR_USAGE, with nothing changed, for a program that does not fit; after any other
 * failure the pipeline can only be asked and destroyed. */
WEFT_API enum weft_status weft_pipeline_set_source(
    struct weft_pipeline *pipeline,
    enum weft_status (*source)(void *context, uint32_t microbatch_count, bool training,
                               struct weft_program **out, struct weft_error *error),
    void *source_context, struct weft_error *error);

/* A training step: all of the program; and a forward-only one. Blocks. All ranks
 * call the same with the same number of microbatches. The result is optional. */
WEFT_API enum weft_status weft_pipeline_step(struct weft_pipeline *pipeline,
                                             const struct weft_batch *batch,
                                             struct weft_step_result *result,
                                             struct weft_error *error);
WEFT_API enum weft_status weft_pipeline_eval(struct weft_pipeline *pipeline,
                                             const struct weft_batch *batch,
                                             struct weft_step_result *result,
                                             struct weft_error *error);

/* The same in pieces, for many ranks in one thread. advance() never blocks: it
 * runs until it has to wait (WEFT_IN_PROGRESS), until the step is done (WEFT_OK),
 * or fails. wait() waits as long as there is nothing to do: it blocks, or tells
 * a transport with virtual time until when. */
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

/* What a custom function gets: the cell, and for each of its compute parts the
 * stage and a call, ready to be handed to the stage's own function. For
 * OVERLAP_F_B these are its parts, in order; for all else one. */
struct weft_custom_call {
  const struct weft_action *cell;
  uint32_t sub_action_count;
  const struct weft_action *const *actions; /* [sub_action_count] */
  struct weft_stage *const *stages;         /* [sub_action_count] */
  struct weft_stage_call *const *calls;     /* [sub_action_count] */
};

/* Replaces what an op does on this rank: F, B, I, W, OVERLAP_F_B, UNSHARD,
 * RESHARD, REDUCE_GRAD or TIE_GRAD; any other is refused by name. Inputs have
 * arrived when it is called. NULL function: the built-in again. Between steps. */
WEFT_API enum weft_status weft_pipeline_set_function(
    struct weft_pipeline *pipeline, enum weft_op op,
    enum weft_status (*function)(void *context, const struct weft_custom_call *call,
                                 struct weft_error *error),
    void *context, struct weft_error *error);

/* ---- What happened ---- */

/* The program of the last step, NULL before. */
WEFT_API const struct weft_program *weft_pipeline_program(const struct weft_pipeline *pipeline);

/* Events of the last step on this rank, in program order as the simulator's are;
 * *count is how many there are, `room` of them are written. Those of a step that
 * was cut short end where it was cut. */
WEFT_API void weft_pipeline_events(const struct weft_pipeline *pipeline, struct weft_event *events,
                                   uint64_t room, uint64_t *count);

/* Actions done since create. */
WEFT_API uint64_t weft_pipeline_actions_done(const struct weft_pipeline *pipeline);

/* ---- When it hangs ---- */

/* What all ranks are doing, as JSON ("weft-hang/1"): phase, action, how long,
 * whom each waits for, its last actions, and the agreed error if there is one.
 * Any thread. */
WEFT_API enum weft_status weft_hang_dump(struct weft_transport *transport, struct weft_text *text,
                                         struct weft_error *error);

/* Reads such a dump and says in words who is stuck on what, and who or which
 * circle is to blame. WEFT_ERR_FORMAT when it is not one. */
WEFT_API enum weft_status weft_hang_explain(const struct weft_allocator *allocator,
                                            const char *dump, size_t size, const char *name,
                                            struct weft_text *text, struct weft_error *error);

/* The same for programs: {"schema": "weft-explain-hang/1", "culprit": rank or null,
 * "cycle": [ranks], "message", "hint"}. */
WEFT_API enum weft_status weft_hang_explain_json(const struct weft_allocator *allocator,
                                                 const char *dump, size_t size, const char *name,
                                                 struct weft_text *text, struct weft_error *error);

/* ---- Built-in stages ---- */

/* Does nothing; outputs have the boundary's largest shape and whatever content. */
WEFT_API const struct weft_stage_ops *weft_null_stage_ops(void);

/* Takes time. */
enum weft_cost_mode {
  WEFT_COST_VIRTUAL, /* answers "in progress" until it is over: virtual time, or asynchronous */
  WEFT_COST_SLEEP,   /* the thread sleeps, and yields for the last bit: exact to microseconds */
  WEFT_COST_SPIN     /* the thread computes */
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
