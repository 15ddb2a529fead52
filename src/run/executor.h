/* The executor: runs one rank's row, action by action, as a step function. It
 * has no thread and no clock of its own (time is the transport's), and allocates
 * nothing: rows, buffers and slots are made before a step (executor_setup.c).
 *
 *   executor.c             the loop, waiting, failing, the end of a step
 *   executor_compute.c     F B I W and overlaps
 *   executor_transfer.c    SEND and RECV
 *   executor_collective.c  UNSHARD RESHARD REDUCE_GRAD TIE_GRAD, on a queue of their own
 *   executor_setup.c       stages, pools and channels of a rank */
#ifndef RUN_EXECUTOR_H
#define RUN_EXECUTOR_H

#include <weft/run.h>
#include <weft/spec.h>

#include "ir/action.h"
#include "run/batch_merge.h"
#include "run/buffer_pool.h"
#include "run/rank_status.h"
#include "run/row.h"

/* One of the rank's stages. */
struct weft_executor_stage {
  uint32_t stage;
  bool is_first, is_last; /* of the pipeline */
  bool wants_backward;    /* false: nothing above it needs a gradient, it is frozen */
  struct weft_stage *impl;
  const struct weft_row_stage *needs;        /* of the row that runs */
  struct weft_held *held;                    /* [microbatch] of the row that runs */
  struct weft_executor_stage *below, *above; /* neighbour stages on this rank; NULL: elsewhere */
  uint32_t below_rank, above_rank;

  /* Where buffers come from; NULL where nothing crosses. Neighbours on this rank
   * share them: `out` is above->in, `grad_in` is above->grad_out. */
  struct weft_buffer_pool *in, *out, *grad_in, *grad_out;
  struct weft_buffer_pool own_pools[4];
  /* Messages so far on the four channels. */
  uint64_t sent_forward, sent_backward, received_forward, received_backward;

  uint32_t *free_slots; /* a stack */
  uint32_t free_slot_count;
  uint32_t slot_count;
  bool unsharded;            /* its parameters are unsharded, in program order */
  uint64_t unsharded_ticket; /* ... once that many collectives are done */
  bool reduced;              /* its gradients are, in this step */
  bool tied;                 /* likewise, with those of the stage that shares weights */
};

/* A compute action that is being executed. */
struct weft_sub_action {
  const struct weft_action *action;
  uint32_t record;
  struct weft_executor_stage *stage;
  struct weft_held *held;
  struct weft_buffer *made;      /* output of F, gradient of B and I */
  struct weft_buffer *loss_grad; /* the last stage's F */
  struct weft_stage_call call;
  /* What is to be called: first the op itself (`op_count` of them), then loss or
   * scale_grads. */
  enum weft_status (*functions[3])(struct weft_stage *, struct weft_stage_call *,
                                   struct weft_error *);
  uint32_t function_count, op_count, function_at;
};

struct weft_custom {
  enum weft_status (*function)(void *context, const struct weft_custom_call *call,
                               struct weft_error *error);
  void *context;
};

/* How far the cell at `at` is. */
enum weft_cell_step { WEFT_CELL_NEW, WEFT_CELL_PREPARING, WEFT_CELL_CALLING };

struct weft_executor {
  const struct weft_allocator *allocator;
  struct weft_transport *transport;
  const struct weft_pipeline_options *options;
  struct weft_rank_status *status;
  void (*progress)(void *context); /* for the stages' calls; its context is the transport, */
  void *progress_context;          /* or NULL: nobody need poke */
  struct weft_custom custom[WEFT_OP_COUNT];

  struct weft_executor_stage *stages; /* [own_count] */
  uint32_t own_count;
  struct weft_executor_stage **of_stage; /* [stage_count]; NULL: another rank's */
  uint32_t stage_count;
  uint32_t *rank_of; /* [stage_count]: row of the program */

  struct weft_sub_action *sub_actions; /* [sub_action_capacity] */
  uint32_t sub_action_capacity;
  /* The same as pointers, for custom functions. */
  const struct weft_action **custom_actions;
  struct weft_stage **custom_stages;
  struct weft_stage_call **custom_calls;

  /* The step that runs. */
  struct weft_row *row;
  uint64_t step;
  bool training;                      /* the plan has a backward to keep things for */
  const struct weft_tensors *inputs;  /* [microbatch], on the rank with stage 0 */
  const struct weft_tensors *targets; /* [microbatch] or NULL, with the last stage */
  double *losses;                     /* [microbatch], with the last stage */
  struct weft_batch_merge *outputs;   /* NULL: not wanted */
  uint64_t at;                        /* record */
  uint64_t cell;                      /* number of the cell, for people */
  uint32_t zeroed;                    /* stages whose gradients are zero */
  enum weft_cell_step cell_step;
  uint32_t sub_action_at, sub_action_count;
  bool custom_again;
  int64_t cell_begin;
  uint64_t actions_done;

  /* Collectives: records of the row, in order; `done` of them are. */
  uint32_t *collectives;
  uint32_t collective_capacity;
  uint64_t collective_count, collective_done;
  bool collective_running;
  int64_t collective_begin, collective_ready_at;
  struct weft_stage_call collective_call;

  /* Time. */
  int64_t now;           /* as last read */
  int64_t last_progress; /* when something was last done */
  int64_t wake_at;       /* when to look again, if nothing comes */

  uint32_t blamed_rank; /* of a failure: this rank, unless a message of another was wrong */
};

/* ---- Setting up (executor_setup.c) ---- */

/* `first` decides the placement, for good. */
enum weft_status weft_executor_init(struct weft_executor *executor,
                                    const struct weft_allocator *allocator,
                                    struct weft_transport *transport,
                                    const struct weft_pipeline_options *options,
                                    const struct weft_row *first, struct weft_error *error);
void weft_executor_finish(struct weft_executor *executor);
/* Buffers and slots for one more row. */
enum weft_status weft_executor_fit(struct weft_executor *executor, const struct weft_row *row,
                                   struct weft_error *error);
/* Whether a row could be fitted: WEFT_ERR_USAGE says why not. */
enum weft_status weft_executor_check(const struct weft_executor *executor,
                                     const struct weft_row *row, struct weft_error *error);
/* Instead of all rows so far, between steps: also fewer slots. Buffers stay. */
enum weft_status weft_executor_refit(struct weft_executor *executor, const struct weft_row *row,
                                     struct weft_error *error);

/* ---- A step (executor.c) ---- */

void weft_executor_begin(struct weft_executor *executor, struct weft_row *row, uint64_t step);
/* WEFT_OK: the row is done. WEFT_IN_PROGRESS: not before wake_at, or something
 * comes. An error is this rank's own and not agreed on yet. */
enum weft_status weft_executor_advance(struct weft_executor *executor, struct weft_error *error);

/* ---- Between these files ---- */

static inline bool weft_executor_reads_time(const struct weft_executor *executor) {
  return executor->row->times != NULL;
}

/* The transport's rank that runs a stage; UINT32_MAX: none does. */
static inline uint32_t weft_executor_rank_of(const struct weft_executor *executor, uint32_t stage) {
  const uint32_t row = executor->rank_of[stage];
  return row != WEFT_RANK_NONE ? executor->options->first_rank + row : UINT32_MAX;
}

/* The transport's channel for what a stage sends. */
static inline uint32_t weft_executor_channel(const struct weft_executor *executor, uint32_t sender,
                                             enum weft_message_kind kind) {
  return executor->options->first_channel + 2 * sender + (uint32_t)kind;
}

static inline void weft_executor_note_time(struct weft_executor *executor, uint32_t record,
                                           int64_t begin, int64_t end) {
  if (executor->row->times != NULL) {
    executor->row->times[record - executor->row->begin] = (struct weft_row_time){begin, end};
  }
}

static inline void weft_executor_read_clock(struct weft_executor *executor) {
  executor->now = executor->transport->ops->now(executor->transport);
}

/* When to ask again what does not say when it will be done: often at first, then
 * ever less, so that it is noticed at most 1/64 of its time too late. */
static inline int64_t weft_executor_ask_at(const struct weft_executor *executor, int64_t begin) {
  return executor->now + 1 + (executor->now - begin) / 64;
}

/* The rank has to wait: says so on its board, and when to look again. Returns
 * WEFT_IN_PROGRESS, or the error of a stall. `wants` is what would end it;
 * `ready_at` when it will be over, 0: not known. */
enum weft_status weft_executor_block(struct weft_executor *executor, enum weft_rank_phase phase,
                                     uint32_t peer, struct weft_action wants, int64_t ready_at,
                                     struct weft_error *error);

/* A stage's function has failed, and may have said why in *error: WEFT_ERR_STAGE
 * with that reason and the action (NULL: zero_grad). */
enum weft_status weft_executor_fail_stage(const struct weft_executor *executor,
                                          const struct weft_action *action,
                                          struct weft_error *error);

/* The program is wrong at this action: WEFT_ERR_INVALID. */
enum weft_status weft_executor_fail_action(const struct weft_executor *executor,
                                           const struct weft_action *action, const char *what,
                                           struct weft_error *error);

/* One cell each; WEFT_IN_PROGRESS: call again. */
enum weft_status weft_executor_compute(struct weft_executor *executor,
                                       const struct weft_action *cell, struct weft_error *error);
enum weft_status weft_executor_send(struct weft_executor *executor,
                                    const struct weft_action *action, struct weft_error *error);
enum weft_status weft_executor_receive(struct weft_executor *executor,
                                       const struct weft_action *action, struct weft_error *error);

/* A received buffer that is not complete: WEFT_OK once it is, checked and
 * unpacked. `forward`: an activation. */
enum weft_status weft_executor_await(struct weft_executor *executor,
                                     struct weft_executor_stage *stage, struct weft_buffer *buffer,
                                     uint32_t microbatch, bool forward, struct weft_error *error);
/* A free buffer, if need be after waiting for a send. */
enum weft_status weft_executor_take(struct weft_executor *executor, struct weft_buffer_pool *pool,
                                    uint32_t peer, struct weft_buffer **out,
                                    struct weft_error *error);
/* Gives back the buffers of sends that are done. */
enum weft_status weft_executor_collect(struct weft_executor *executor,
                                       struct weft_buffer_pool *pool, struct weft_error *error);

/* Puts a collective on the queue; runs what is on it as far as it goes. */
enum weft_status weft_executor_enqueue(struct weft_executor *executor,
                                       const struct weft_action *action, struct weft_error *error);
enum weft_status weft_executor_poll_collectives(struct weft_executor *executor,
                                                struct weft_error *error);
/* The row cannot go on before the first one on the queue is done: as block(). */
enum weft_status weft_executor_await_collective(struct weft_executor *executor,
                                                struct weft_error *error);

/* A call with everything set that does not depend on the op. */
void weft_executor_fill_call(const struct weft_executor *executor, uint32_t stage,
                             uint32_t microbatch, struct weft_stage_call *call);

#endif
