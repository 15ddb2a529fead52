/* The executor runs one rank's row, action by action, as a step function. It has no thread
 * and no clock of its own (time is the transport's), and allocates nothing: rows, buffers and
 * slots are made before a step (executor_setup.c).
 *
 *   executor.c             the loop, waits, failures, the end of a step
 *   executor_compute.c     F B I W and OVERLAP_F_B
 *   executor_shared.c      outputs that several edges of a graph share
 *   executor_transfer.c    SEND and RECV
 *   executor_collective.c  UNSHARD RESHARD REDUCE_GRAD TIE_GRAD, on a queue of their own
 *   executor_setup.c       stages of a rank, and what a row needs of them
 *   executor_ports.c       their edges: pools and channels
 *   device_transfer.c        where messages travel between ranks on different devices
 *   device_work.c          streams and events; device_times.c: when they ran */
#ifndef RUN_EXECUTOR_H
#define RUN_EXECUTOR_H

#include <weft/run.h>
#include <weft/spec.h>

#include "comm/rank_status.h"
#include "ir/action.h"
#include "run/batch/batch_out.h"
#include "run/executor/buffer_pool.h"
#include "run/executor/row.h"

/* Returns the status of a call that is not done, WEFT_IN_PROGRESS or a failure, to the caller. */
#define WEFT_AWAIT(call)                               \
  do {                                                 \
    const enum weft_status weft_await_status = (call); \
    if (weft_await_status != WEFT_OK) {                \
      return weft_await_status;                        \
    }                                                  \
  } while (0)

typedef enum weft_status weft_stage_function(struct weft_stage *stage, struct weft_stage_call *call,
                                             struct weft_error *error);

/* What an action calls: the functions of its op (`op_count`), then loss or scale_grads. */
struct weft_stage_functions {
  weft_stage_function *items[3];
  uint32_t op_count, count;
};

/* An edge at one of its ends, a stage of this rank; as in the row. */
struct weft_port {
  uint32_t other; /* the stage at the other end; WEFT_STAGE_NONE: a source's input (which has no
                     pools), or a loss's output */
  uint32_t rank;  /* the transport's that runs it; UINT32_MAX: none but this one */
  /* Where buffers come from; `gradients` NULL where none cross. The two ports of an edge inside the
   * rank share them. */
  struct weft_buffer_pool *activations, *gradients;
  struct weft_executor_stage *near;       /* the other stage, on this rank; NULL: it is elsewhere */
  uint16_t near_port;                     /* and the edge's port there */
  uint16_t output;                        /* of an out-edge: which of call->outputs; edges that
                                             share one have the same */
  uint32_t boundary;                      /* of options.boundaries */
  uint32_t send_channel, receive_channel; /* of the transport */
  uint64_t sent, received;                /* messages so far */
};
_Static_assert(sizeof(struct weft_port) == 64, "an action touches few cache lines");
_Static_assert(2 * (WEFT_SKIP_MAX + 1) <= UINT16_MAX, "ports of a stage have small numbers");

/* One of the rank's stages; in the order of use, as the executor is. */
struct weft_executor_stage {
  uint32_t stage;
  bool is_source, is_loss; /* no edge leads to it, or from it */
  bool wants_backward;     /* false: frozen, because no gradient comes to it */
  bool shares;             /* several out-edges share an output */
  struct weft_stage *impl;
  const struct weft_row_stage *needs; /* of the row that runs */
  unsigned char *held;                /* likewise: weft_executor_held() */
  uint64_t held_bytes;
  const uint64_t *saved_at; /* [microbatch], likewise; NULL: the stage saves nothing */
  uint32_t *free_slots;     /* a stack */
  uint32_t free_slot_count;
  uint32_t slot_count;
  bool
      unsharded; /* its parameters are, at this place of the program: the UNSHARD has been started */
  bool reduced;  /* its gradients are, in this step */
  bool tied;     /* likewise, with those of the stage that shares weights */

  uint32_t in_count, port_count;
  struct weft_port *ports; /* [port_count]: in-edges, then out-edges, as in the row */
  struct weft_stage_functions functions[WEFT_OP_COUNT];
  uint32_t output_count; /* of call->outputs */

  /* Of the step that runs, [microbatch] each. */
  const struct weft_tensors *inputs;  /* of a source */
  const struct weft_tensors *targets; /* of a loss, like the next two; NULL: none */
  double *losses;
  struct weft_batch_out *outputs; /* NULL: not wanted */
};

/* A compute action in progress: the cell's own, or a sub-action of an OVERLAP_F_B. */
struct weft_sub_action {
  struct weft_stage_call call;
  const struct weft_action *action;
  struct weft_executor_stage *stage;
  struct weft_held *held;
  struct weft_tensors *views; /* of the call, where a stage has several inputs or outputs */
  const struct weft_stage_functions *functions;
  uint32_t record;
  uint32_t function_count, function_at;
};

struct weft_custom {
  enum weft_status (*function)(void *context, const struct weft_custom_call *call,
                               struct weft_error *error);
  void *context;
};

/* How far the cell at `at` is. */
enum weft_cell_step { WEFT_CELL_NEW, WEFT_CELL_PREPARING, WEFT_CELL_CALLING };

/* What every action uses comes first, and what none does last: one thread may run many ranks in
 * turn, and finds little of each in its cache. */
struct weft_executor {
  struct weft_transport *transport;
  struct weft_rank_status *status;
  struct weft_device_work *device; /* of a device with streams; NULL: stages are done at return */
  const struct weft_pipeline_options *options;
  uint32_t send_capacity;   /* messages that a channel buffers before a SEND holds up the row */
  bool row_waits;           /* for its RECVs */
  bool has_pairs;           /* every own stage has two ports, as in a chain */
  struct weft_graph *graph; /* held; NULL: a chain */
  struct weft_executor_stage *stages;  /* [own_count], ascending; weft_executor_own_stage() */
  struct weft_sub_action *sub_actions; /* [sub_action_capacity] */

  /* The step that runs. */
  struct weft_row *row;
  uint64_t step;
  uint64_t at;   /* record */
  uint64_t cell; /* number of the cell in the row, for messages */
  uint32_t own_count;
  enum weft_cell_step cell_step;
  uint32_t sub_action_at, sub_action_count;
  int64_t now;           /* as last read */
  int64_t last_progress; /* when an action last ended */
  int64_t wake_at;       /* when to advance again at the latest */
  int64_t cell_begin;
  uint64_t actions_done;
  uint64_t collective_count, collective_done; /* see below */
  uint32_t zeroed;                            /* stages whose gradients have been zeroed */
  uint32_t blamed_rank; /* in a failure: this rank, or the sender of a wrong message */
  bool custom_again;
  struct weft_stage_call call; /* what each call of the step begins with */
  uint64_t round;              /* counts beginnings of a row; the same on all ranks */
  bool connected;              /* its pools have the memory that messages travel in */

  struct weft_custom custom[WEFT_OP_COUNT];
  /* The sub-actions as pointers, for custom functions. */
  const struct weft_action **custom_actions;
  struct weft_stage **custom_stages;
  struct weft_stage_call **custom_calls;

  /* Collectives: records of the row, in order; the first collective_done are complete. */
  uint32_t *collectives;
  uint32_t collective_capacity;
  bool collective_running;
  int64_t collective_begin, collective_ready_at;
  struct weft_stage_call collective_call;

  const struct weft_allocator *allocator;
  uint32_t stage_count;
  uint32_t sub_action_capacity;
  uint32_t view_count;             /* tensors of a sub-action's views: 0 where no stage needs any */
  struct weft_arena memory;        /* of stages, ports and pools */
  struct weft_arena action_memory; /* of sub-actions, their views, pointers to them; collectives */
  uint32_t port_count;
  struct weft_port *ports;        /* [port_count]: of own stages */
  struct weft_buffer_pool *pools; /* [port_count][2]: of activations and of gradients; that of an
                                     edge inside the rank is at its out-port */
  uint64_t placement_hash;        /* as a row's */
  char *saved; /* on the device: what the stages save for backwards (saved_layout.c) */
  uint64_t saved_bytes;
};

/* ---- Setting up (executor_setup.c) ---- */

/* `first` determines the placement of stages. */
enum weft_status weft_executor_init(struct weft_executor *executor,
                                    const struct weft_allocator *allocator,
                                    struct weft_transport *transport,
                                    const struct weft_pipeline_options *options,
                                    const struct weft_row *first, struct weft_error *error);
void weft_executor_finish(struct weft_executor *executor);
/* Adds the buffers and slots that another row needs. */
enum weft_status weft_executor_fit(struct weft_executor *executor, const struct weft_row *row,
                                   struct weft_error *error);
/* Whether a row fits: WEFT_ERR_USAGE says why not. */
enum weft_status weft_executor_check(const struct weft_executor *executor,
                                     const struct weft_row *row, struct weft_error *error);
/* Replaces all rows so far, between steps, possibly with fewer slots. Buffers stay. */
enum weft_status weft_executor_refit(struct weft_executor *executor, const struct weft_row *row,
                                     struct weft_error *error);

/* ---- Edges (executor_ports.c) ---- */

/* Finds the functions of a stage of `first`, and the ends of its edges. */
void weft_executor_link_stage(const struct weft_executor *executor, const struct weft_row *first,
                              struct weft_executor_stage *stage);
/* Pools of its ports; in ascending order of stages. */
enum weft_status weft_executor_open_pools(const struct weft_executor *executor,
                                          const struct weft_row *first,
                                          struct weft_executor_stage *stage,
                                          struct weft_error *error);
enum weft_status weft_executor_open_channels(struct weft_executor *executor,
                                             const struct weft_row *row, struct weft_error *error);

/* ---- Messages between devices (device_transfer.c) ---- */

/* After the handshake: gives the pools of boundaries to other ranks of the process the memory in
 * which both ends can take part. Once. WEFT_ERR_MEMORY. */
enum weft_status weft_executor_connect(struct weft_executor *executor, struct weft_error *error);
/* Streams and events for copies between devices, where there are any. */
enum weft_status weft_executor_fit_copies(struct weft_executor *executor, struct weft_error *error);
void weft_executor_free_copies(struct weft_executor *executor);
/* Copies a buffer that will be sent, and one that was received. */
enum weft_status weft_executor_transfer_out(struct weft_executor *executor,
                                            struct weft_buffer *buffer,
                                            const struct weft_buffer_pool *pool,
                                            struct weft_error *error);
enum weft_status weft_executor_transfer_in(struct weft_executor *executor,
                                           struct weft_buffer *buffer,
                                           const struct weft_buffer_pool *pool,
                                           struct weft_error *error);
/* A buffer of a streamed pool is written again: after the copy that still reads it. */
enum weft_status weft_executor_await_copy(struct weft_executor *executor,
                                          const struct weft_buffer *buffer,
                                          struct weft_error *error);
/* Where the transport enqueues, around a send or a receive of a buffer: its stream waits for the last
 * cell that used the buffer; the transfer's event is recorded; and the cell that is enqueued next
 * waits for it. */
enum weft_status weft_executor_begin_transfer(struct weft_executor *executor,
                                              struct weft_buffer *buffer, bool outgoing,
                                              struct weft_error *error);
enum weft_status weft_executor_end_transfer(struct weft_executor *executor,
                                            struct weft_buffer *buffer, uint32_t peer,
                                            bool outgoing, struct weft_error *error);
enum weft_status weft_executor_await_transfer(struct weft_executor *executor,
                                              struct weft_buffer *buffer, struct weft_error *error);
/* What follows in the rank's stream comes after all copies that it sends. */
enum weft_status weft_executor_join_copies(struct weft_executor *executor,
                                           struct weft_error *error);
/* On a rank on the host, after a failure: until no device uses its messages any more, at most so long
 * (0: without limit). A device that still does is abandoned. */
void weft_executor_await_devices(const struct weft_executor *executor, int64_t limit);

/* ---- Work on a device with streams (device_work.c) ---- */

/* A cell waits for a cell of another rank. */
struct weft_device_wait {
  uint32_t cell, rank, for_cell;
  struct weft_device_event *transfer; /* where the transport enqueues: of the RECV; else NULL */
  uint32_t number;                    /* of that transfer in the row */
};

/* A SEND or RECV that the transport has enqueued. */
struct weft_device_transfer {
  uint32_t record, peer;
  int64_t end; /* in a replay, in the host's time */
};

/* Rows that are recorded, and not run. After a failure the executor still visits their actions, so
 * that buffers and messages are where they are after a step, but enqueues nothing and calls no
 * stage. */
struct weft_recording {
  bool failed;
  struct weft_error error;
};

/* What the executor has counted in a row that was recorded. */
struct weft_recorded_row {
  uint32_t cells, waits, transfers;
  uint64_t actions;
};

struct weft_device_work {
  struct weft_device *device;
  struct weft_stream *stream;   /* of everything that the stages enqueue, */
  struct weft_stream *second;   /* but for the backward of an OVERLAP_F_B; */
  struct weft_stream *incoming; /* copies of messages from other devices, */
  struct weft_stream *outgoing; /* and to them: NULL where there are none */
  struct weft_stream
      *watch; /* in a recording: notes how far the device is; else the begin of times */
  struct weft_device_event *fork; /* from the stream to the second one, */
  struct weft_device_event *join; /* and back */
  struct weft_device_event *end;  /* of the row */

  struct weft_arena memory; /* of what has event_room or wait_room entries */
  /* One event per compute cell of the row, recorded after it. */
  struct weft_device_event **events; /* [event_room] */
  uint32_t *records;                 /* [event_room]: the cell's first record */
  uint32_t event_room;
  uint32_t enqueued; /* cells of this step so far */

  /* One event per copy of a message, recorded after it in `incoming` or `outgoing`. */
  struct weft_arena copy_memory;          /* of what has copy_room entries */
  struct weft_device_event **copies;      /* [copy_room] */
  uint32_t copy_room, copy_count;         /* copy_count: of this step so far */
  uint32_t transfer_count;                /* SEND and RECV of the longest row so far */
  struct weft_device_transfer *transfers; /* [copy_room], where the transport enqueues; else NULL */
  uint64_t cell_before[2];            /* the last own cell that incoming, outgoing wait for, + 1 */
  struct weft_device_event *departed; /* the last copy of `outgoing` that `stream` does not wait
                                         for; NULL: it waits for all */

  /* When the cells ended, where times are wanted. A cell begins when the one before it and those
   * that it waits for have ended. Reading an event's time takes longer than anything else in a step,
   * so events are read when the times are asked for; and no other rank's, which may be gone. */
  struct weft_device_event *base;    /* timed, as the events are: the step's beginning, */
  int64_t base_ns;                   /* and when that was, in the host's time */
  struct weft_device_event **begins; /* [event_room]: after a cell's waits; not in a recording */
  int64_t *starts;       /* [event_room], in the host's time; -1: the cell waits for nothing */
  int64_t *ends;         /* [event_room], likewise; NULL: times are not wanted */
  bool has_unread_times; /* of the last step, if it was launched action by action */
  struct weft_device_wait *waits; /* [wait_room] of this step */
  uint32_t wait_count, wait_room;
  uint64_t *waited_for; /* [rank_count]: the last event of that rank that the stream waits for */

  bool trails;    /* a collective may have enqueued something behind the last cell's event */
  bool abandoned; /* it never ends */
  bool finishing; /* the whole row is enqueued, */
  bool held;      /* and the step's end not yet */
  bool replaying; /* the recording runs, not the executor */
  uint32_t
      *done; /* cells that the device has done; a recording writes it, in memory of the host, */
  uint64_t *clocks; /* [event_room + 1] and when: the beginning, and the end of each cell */
  const uint64_t *begin_clock; /* in a replay: the beginning, of a rank on the same GPU */
  uint32_t seen;               /* *done, as last read */
  /* Likewise of transfers, where a recording has them, one after the other in `incoming`; `outgoing`
   * notes them. Else NULL. */
  uint32_t *moved;
  uint64_t *move_clocks; /* [copy_room]: the end of each */
  uint32_t seen_moved;
  struct weft_recording *recording; /* that all ranks share; NULL: the row runs */
  /* [rank_count] during a step that one thread does for all of them; else NULL. */
  const struct weft_executor *const *ranks;
};

/* Makes it, on a rank whose device has streams. */
enum weft_status weft_executor_open_device(struct weft_executor *executor,
                                           struct weft_error *error);
/* Adds the events that another row needs. */
enum weft_status weft_executor_fit_device(struct weft_executor *executor,
                                          const struct weft_row *row, struct weft_error *error);
void weft_executor_close_device(struct weft_executor *executor);
void weft_executor_begin_device(struct weft_executor *executor);
/* Where the times of the step count from, if they are wanted: before anything waits. */
enum weft_status weft_executor_begin_times(const struct weft_executor *executor,
                                           struct weft_error *error);

/* The transport puts messages of this rank's device into streams. */
static inline bool weft_executor_is_enqueued(const struct weft_executor *executor) {
  return executor->device != NULL && executor->transport->ops->enqueues;
}

/* Whether a recording has failed: the rest of the row enqueues nothing and calls no stage. */
static inline bool weft_executor_recording_failed(const struct weft_executor *executor) {
  const struct weft_device_work *work = executor->device;
  return work != NULL && work->recording != NULL && work->recording->failed;
}
/* From here on the row is recorded, and not run; NULL: it is run again. On a device. */
static inline void weft_executor_record(struct weft_executor *executor,
                                        struct weft_recording *recording) {
  executor->device->recording = recording;
  executor->call.recorded = recording != NULL;
}
/* The row has been recorded, and is still to be done: actions_done was `before`. */
struct weft_recorded_row weft_executor_end_record(struct weft_executor *executor, uint64_t before);
/* The recording runs, not the executor; `begin_clock` as in struct weft_device_work. */
void weft_executor_replay(struct weft_executor *executor, const struct weft_recorded_row *recorded,
                          int64_t now, const uint64_t *begin_clock);
/* What comes in one stream comes after all that is in the other, by an event. */
enum weft_status weft_device_order(struct weft_device *device, struct weft_device_event *event,
                                   struct weft_stream *before, struct weft_stream *after,
                                   struct weft_error *error);
/* The rank's stream comes after the one that watches it, and after those of copies. */
enum weft_status weft_device_join(const struct weft_device_work *work, struct weft_error *error);
/* In a recording, a failure becomes the recording's, and WEFT_OK; else returns it. */
enum weft_status weft_executor_record_error(const struct weft_executor *executor,
                                            enum weft_status status,
                                            const struct weft_error *error);
/* A call that enqueues something, as rows have them: not made once a recording has failed. */
#define WEFT_ENQUEUE(executor, call, error) \
  (weft_executor_recording_failed(executor) \
       ? WEFT_OK                            \
       : weft_executor_record_error((executor), (call), (error)))

/* What the rank enqueues next comes after the last work on the buffer, whoever enqueued that. On the
 * host, WEFT_IN_PROGRESS: that work is not done. */
enum weft_status weft_executor_order_after(struct weft_executor *executor,
                                           struct weft_message *message, struct weft_error *error);
static inline enum weft_status weft_executor_order(struct weft_executor *executor,
                                                   struct weft_buffer *buffer,
                                                   struct weft_error *error) {
  return buffer->message.event == NULL
             ? WEFT_OK
             : weft_executor_order_after(executor, &buffer->message, error);
}
/* Other ranks that get the buffer, or the copy of it, wait for the cell that is being enqueued; on
 * the host it is done. */
static inline void weft_executor_publish(const struct weft_executor *executor,
                                         const struct weft_buffer_pool *pool,
                                         struct weft_buffer *buffer) {
  const struct weft_device_work *work = executor->device;
  if (work == NULL) {
    buffer->message.event = NULL;
    return;
  }
  const uint64_t number = (executor->round << 32) + work->enqueued;
  if (pool->streamed) {
    buffer->last_use = work->events[work->enqueued];
    buffer->last_use_number = number;
  } else {
    buffer->message.event = work->events[work->enqueued];
    buffer->message.event_number = number;
    buffer->message.event_rank = executor->transport->rank;
  }
}
/* The cell that is enqueued next waits for that cell of another rank. */
static inline void weft_executor_record_wait(struct weft_device_work *work, uint32_t rank,
                                             uint64_t number) {
  if (work->wait_count < work->wait_room) {
    work->waits[work->wait_count++] =
        (struct weft_device_wait){.cell = work->enqueued,
                                  .rank = rank,
                                  .for_cell = (uint32_t)(number & (WEFT_EVENT_COPY - 1))};
  }
}
/* Before and after the functions of a compute cell, on a device with streams. */
enum weft_status weft_executor_begin_cell(struct weft_executor *executor,
                                          const struct weft_action *cell, struct weft_error *error);
enum weft_status weft_executor_end_cell(struct weft_executor *executor,
                                        const struct weft_action *cell, struct weft_error *error);

/* Whether the device has done all of the row: WEFT_OK, WEFT_IN_PROGRESS. */
enum weft_status weft_executor_await_device(struct weft_executor *executor,
                                            struct weft_error *error);
/* While a row is being enqueued: how far the device is, in case that it fails. */
void weft_executor_poll_device(struct weft_executor *executor);
/* The row runs on the device: as block(), while it does. */
enum weft_status weft_executor_watch_device(struct weft_executor *executor,
                                            struct weft_error *error);
/* After a failure on a rank with a device: if the device is lost, the error also names the actions
 * that may have caused it, most likely ones first, and blamed_rank is the rank of the first; if it
 * is not, and the driver has refused a call, the action that was being enqueued. Returns its status. */
enum weft_status weft_executor_fail_device(struct weft_executor *executor,
                                           struct weft_error *error);
/* In a recording: notes its beginning, before anything else in the rank's stream. */
enum weft_status weft_executor_record_begin(const struct weft_executor *executor,
                                            struct weft_error *error);
/* After a replay: when each cell ended; and the times of the row's records. `ranks`: [rank_count]
 * executors, by rank of the transport, none NULL, of a replay of them all; NULL: of other steps. */
void weft_executor_read_clocks(struct weft_executor *executor);
void weft_executor_write_times(const struct weft_executor *executor,
                               const struct weft_executor *const *ranks);
/* After another step: the same, if it has not been done yet, before the events are used again. */
enum weft_status weft_executor_read_times(const struct weft_executor *executor,
                                          struct weft_error *error);
/* Somebody wants the step to end. */
static inline bool weft_executor_is_interrupted(const struct weft_executor *executor) {
  const struct weft_pipeline_options *options = executor->options;
  return options->interrupted != NULL && options->interrupted(options->interrupted_context);
}
/* The device may use nothing of the pipeline any more: waits for it, at most so long (0: without
 * limit), and once interrupted WEFT_CANCEL_NS at most. False: it still works. Its memory then
 * cannot be freed, which waits for it as well. */
enum { WEFT_CANCEL_NS = 500 * 1000 * 1000 };
bool weft_executor_drain_device(struct weft_executor *executor, int64_t limit);
void weft_executor_abandon_device(struct weft_executor *executor);

/* ---- A step (executor.c) ---- */

void weft_executor_begin(struct weft_executor *executor, struct weft_row *row, uint64_t step);
/* WEFT_OK: the row is done. WEFT_IN_PROGRESS: call again at wake_at, or when the transport
 * has something. An error is this rank's own; the ranks have not agreed on it yet. */
enum weft_status weft_executor_advance(struct weft_executor *executor, struct weft_error *error);

/* ---- Between these files ---- */

/* The transport's rank that runs a stage; UINT32_MAX: none does. */
static inline uint32_t weft_executor_rank_of(const struct weft_executor *executor,
                                             const struct weft_row *row, uint32_t stage) {
  const uint32_t rank = row->rank_of[stage];
  return rank != WEFT_RANK_NONE ? executor->options->first_rank + rank : UINT32_MAX;
}

/* A stage of this rank. No table of all stages: each of many ranks would have one. */
static inline struct weft_executor_stage *weft_executor_own_stage(
    const struct weft_executor *executor, uint32_t stage) {
  struct weft_executor_stage *low = executor->stages;
  for (uint32_t count = executor->own_count; count > 1; count -= count / 2) {
    low += low[count / 2].stage <= stage ? count / 2 : 0;
  }
  return low;
}

/* NULL: another rank's. */
static inline struct weft_executor_stage *weft_executor_find_stage(
    const struct weft_executor *executor, uint32_t stage) {
  struct weft_executor_stage *found = weft_executor_own_stage(executor, stage);
  return executor->own_count > 0 && found->stage == stage ? found : NULL;
}

/* What the rank holds of a microbatch. */
static inline struct weft_held *weft_executor_held(const struct weft_executor_stage *stage,
                                                   uint32_t microbatch) {
  return (void *)(stage->held + microbatch * stage->held_bytes);
}

/* The port that a SEND or RECV is about, and its number in weft_executor_held(); NULL: the stage has
 * no such edge to another rank. */
static inline struct weft_port *weft_executor_find_port(struct weft_executor_stage *stage,
                                                        struct weft_action transfer, bool in,
                                                        uint32_t *number) {
  const uint32_t other = weft_transfer_other(transfer);
  const uint32_t end = in ? stage->in_count : stage->port_count;
  uint32_t n = in ? 0 : stage->in_count;
  while (n < end && stage->ports[n].other != other) {
    n++;
  }
  *number = n;
  return n < end && stage->ports[n].rank != UINT32_MAX ? &stage->ports[n] : NULL;
}

static inline void weft_executor_record_time(struct weft_executor *executor, uint32_t record,
                                             int64_t begin, int64_t end) {
  if (executor->row->times != NULL) {
    executor->row->times[record - executor->row->begin] = (struct weft_row_time){begin, end};
  }
}

static inline void weft_executor_read_clock(struct weft_executor *executor) {
  executor->now = executor->transport->ops->now(executor->transport);
}

/* When to poll again what does not say when it will be done: at intervals that grow, so that
 * its end is noticed at most 1/64 of its duration late. */
static inline int64_t weft_executor_ask_at(const struct weft_executor *executor, int64_t begin) {
  return executor->now + 1 + (executor->now - begin) / 64;
}

/* What the rank is at; the caller says since when. */
static inline void weft_executor_show(const struct weft_executor *executor,
                                      enum weft_rank_phase phase, uint32_t peer,
                                      struct weft_action action, struct weft_action wants) {
  struct weft_rank_status *status = executor->status;
  WEFT_STATUS_STORE(status->phase, (uint32_t)phase);
  WEFT_STATUS_STORE(status->peer, peer);
  WEFT_STATUS_STORE(status->step, executor->step);
  WEFT_STATUS_STORE(status->cell, executor->cell);
  WEFT_STATUS_STORE(status->action, weft_action_pack(action));
  WEFT_STATUS_STORE(status->wants, weft_action_pack(wants));
}

/* The rank has to wait: sets its status and wake_at. Returns WEFT_IN_PROGRESS, or the error
 * of a stall. `wants` is the action that would end the wait; `ready_at` when it will end, 0:
 * not known. */
enum weft_status weft_executor_block(struct weft_executor *executor, enum weft_rank_phase phase,
                                     uint32_t peer, struct weft_action wants, int64_t ready_at,
                                     struct weft_error *error);

/* A stage's function has failed, perhaps with a reason in *error: WEFT_ERR_STAGE with that
 * reason and the action (NULL: zero_grad). */
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

/* Completes a posted receive of a port: WEFT_OK once it has arrived, is checked and unpacked.
 * `forward`: an activation. */
enum weft_status weft_executor_await(struct weft_executor *executor,
                                     const struct weft_executor_stage *stage,
                                     const struct weft_port *port, struct weft_buffer *buffer,
                                     uint32_t microbatch, bool forward, struct weft_error *error);
/* Takes a free buffer of a port of that stage, after waiting for a send if there is none. */
enum weft_status weft_executor_await_buffer(struct weft_executor *executor, uint32_t stage,
                                            const struct weft_port *port,
                                            struct weft_buffer_pool *pool, struct weft_buffer **out,
                                            struct weft_error *error);
static inline enum weft_status weft_executor_take(struct weft_executor *executor, uint32_t stage,
                                                  const struct weft_port *port,
                                                  struct weft_buffer_pool *pool,
                                                  struct weft_buffer **out,
                                                  struct weft_error *error) {
  *out = weft_buffer_pool_take(pool);
  return *out != NULL ? WEFT_OK
                      : weft_executor_await_buffer(executor, stage, port, pool, out, error);
}
/* Returns the buffers of completed sends to the pool. */
enum weft_status weft_executor_collect(struct weft_executor *executor,
                                       struct weft_buffer_pool *pool, struct weft_error *error);

/* Outputs that several out-edges share (executor_shared.c). Before a forward's outputs are passed
 * on: copies them to the other edges. */
enum weft_status weft_executor_copy_outputs(struct weft_executor *executor,
                                            const struct weft_sub_action *sub,
                                            struct weft_error *error);
/* Before a backward: adds up their gradients, in ascending order of the stages that they come
 * from. */
enum weft_status weft_executor_sum_gradients(struct weft_executor *executor,
                                             const struct weft_sub_action *sub,
                                             struct weft_error *error);
/* Whether a stage's edges can: WEFT_ERR_USAGE says why not. */
enum weft_status weft_executor_check_shared(const struct weft_executor *executor,
                                            const struct weft_executor_stage *stage,
                                            struct weft_error *error);

/* Adds a collective to the queue; polls the queue. */
enum weft_status weft_executor_enqueue(struct weft_executor *executor,
                                       const struct weft_action *action, struct weft_error *error);
enum weft_status weft_executor_poll_collectives(struct weft_executor *executor,
                                                struct weft_error *error);
/* Until those that an action of compute waits for (ir/action.h) are done: as block(). */
enum weft_status weft_executor_await_collectives(struct weft_executor *executor,
                                                 struct weft_action compute,
                                                 struct weft_error *error);
/* The row waits for the first collective of the queue: as block(). */
enum weft_status weft_executor_await_collective(struct weft_executor *executor,
                                                struct weft_error *error);

/* Sets everything in a call that does not depend on the op. */
static inline void weft_executor_fill_call(const struct weft_executor *executor, uint32_t stage,
                                           uint32_t microbatch, struct weft_stage_call *call) {
  *call = executor->call;
  call->stage = stage;
  call->microbatch = microbatch;
  call->now = executor->now;
}

#endif
