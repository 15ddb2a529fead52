/* The timed run that simulation, makespan and period share. */
#ifndef SIM_RUN_H
#define SIM_RUN_H

#include <weft/support.h>

#include "sim/rank_record.h"
#include "sim/sim_ticks.h"

/* A message is an input of a (stage, microbatch) in one direction, and one number: from 0 up
 * the time at which it arrives, known once its transfer has started; below 0
 * the complement of the time at which it was made, while its SEND is still to
 * come; WEFT_TIME_UNKNOWN before that. Times are never negative. In a chain a
 * stage has at most one per microbatch and direction, in a graph one per edge. */
#define WEFT_TIME_UNKNOWN INT64_MIN

struct weft_rank_run {
  uint64_t at; /* record */
  uint64_t end;
  int64_t clock;            /* end of its last compute */
  int64_t stream;           /* end of its last collective */
  const int64_t *waits_for; /* the input, while it is stuck; NULL: it is to be walked */
};

/* A queue that transfers of one rank go through, where channels are shared. */
struct weft_transfer_queue {
  uint32_t head; /* into entries */
  uint32_t end;
  int64_t free; /* when its last transfer left it */
};

/* A channel (ir/action.h) with what goes over it: of graphs, and of shared queues. */
struct weft_sim_channel {
  int64_t *inputs;   /* [microbatch] when its messages arrive; NULL: it leads nowhere */
  int64_t *free;     /* when it is free */
  int64_t occupancy; /* of it by one transfer */
  int64_t hop;       /* from the start of a transfer to the arrival; 0: both ends on one rank */
  double bytes;      /* of a message */
  uint32_t from;     /* rank of the stage that sends; rank_count: none */
  uint32_t to;       /* and of the one that receives */
};

/* A compute op of a stage, as the walk needs it: no look-up of neighbours or
 * costs is left to do per action, and 64 bytes hold it all. Stages of a graph have
 * only times and memory here; what they consume and make is in the channels. */
struct weft_work {
  int64_t *inputs;  /* [microbatch] when they arrive; NULL: it needs none */
  int64_t *outputs; /* [microbatch] the inputs of the neighbour it feeds; NULL: it has none */
  int64_t *channel; /* when the boundary that the outputs cross is free */
  int64_t duration;
  int64_t hop;            /* from the start of an input's transfer to its arrival */
  uint32_t from;          /* rank of the stage that makes the inputs */
  uint32_t to;            /* rank of the stage that takes the outputs; rank_count: none */
  double held_from_begin; /* activation memory taken when it begins, */
  double held_from_end;   /* and when it ends */
};

/* [op - WEFT_OP_F] */
struct weft_sim_stage {
  struct weft_work works[4];
};

struct weft_sim_run {
  const struct weft_allocator *allocator;
  const struct weft_program *program;
  const struct weft_graph *graph; /* the program's; NULL: a chain */
  const struct weft_costs *costs; /* of stages: the caller's, or in `view` */
  struct weft_costs_view view;
  const struct weft_sim_options *options;
  struct weft_ticks ticks;
  bool has_backward;       /* of any stage; else activations are free after F */
  bool adjusts;            /* times differ by rank or by chance */
  struct weft_arena arena; /* owns the arrays below */
  bool has_transfers;      /* SEND and RECV, not a table */
  uint32_t *rank_of;       /* [stage] */
  size_t pairs;            /* stages x microbatches */
  int64_t *inputs;         /* [direction][stage][microbatch]: of F, then of B and I; in a
                                    graph [channel][microbatch] */
  size_t input_count;
  int64_t *channel_free;             /* [channel] when it is free */
  struct weft_sim_channel *channels; /* [channel] in a graph, or with shared queues */
  int64_t *unsharded_at;             /* [stage] when its parameters are there */
  struct weft_sim_stage *stages;     /* [stage] */
  struct weft_rank_run *ranks;       /* [rank + 1] the last is for stages without a rank */
  uint32_t *work;                    /* ranks to look at, a stack */
  uint32_t work_count;

  /* Shared channels only. */
  struct weft_transfer_queue *queues;
  uint32_t queue_count;
  uint32_t *entries;           /* records, queue after queue, in program order */
  uint32_t *queue_of_sender;   /* [channel] */
  uint32_t *queue_of_receiver; /* [channel] */
  uint32_t *queue_work;        /* queues to look at, a stack; may hold one more than once */
  uint32_t queue_work_count;
  uint32_t *queue_of_record; /* [record]; NCCL models only, once the run begins */
  int64_t *issued; /* NCCL models only, [record]: when the compute before a transfer was done */

  /* Where causes are asked for. */
  bool keeps_waits;
  bool lacks_memory; /* for this: */
  int64_t *waits;    /* as inputs: of a transfer for its channel; NULL: none did */
};

enum weft_status weft_sim_run_init(struct weft_sim_run *run, const struct weft_allocator *allocator,
                                   const struct weft_program *program,
                                   const struct weft_costs *costs,
                                   const struct weft_sim_options *options,
                                   struct weft_error *error);
void weft_sim_run_finish(struct weft_sim_run *run);

/* Runs all ranks from the given start times (NULL: all 0). Channels are free at
 * the beginning. WEFT_ERR_INVALID when some rank cannot finish. */
enum weft_status weft_sim_run_all(struct weft_sim_run *run, const int64_t *starts,
                                  struct weft_error *error);

/* A collective of a rank begins; returns when, and state->stream is when it ends. */
int64_t weft_sim_collective(struct weft_sim_run *run, struct weft_rank_run *state,
                            struct weft_action action);

/* How long a cell takes, where times differ by rank or by chance, and how long an
 * overlap does. */
int64_t weft_sim_adjust(const struct weft_sim_run *run, uint32_t rank, uint64_t record,
                        int64_t duration);
int64_t weft_sim_overlap_duration(const struct weft_sim_run *run, uint32_t rank,
                                  const struct weft_action *cell);

/* sim_channels.c: what goes over channels. */
enum weft_status weft_sim_channels_init(struct weft_sim_run *run, struct weft_error *error);
/* In a graph: the message of an action's input edge number k, < weft_sim_input_count(). */
const int64_t *weft_sim_edge_input(const struct weft_sim_run *run, struct weft_action action,
                                   uint32_t k, const struct weft_sim_channel **channel);
/* In a graph: moves `begin` on to where all inputs are there; the first that is not known yet,
 * or NULL. */
const int64_t *weft_sim_await_edges(const struct weft_sim_run *run, struct weft_action action,
                                    int64_t *begin);
/* In a graph: an action has made something, and a SEND sends it. */
void weft_sim_publish_edges(struct weft_sim_run *run, uint32_t rank, struct weft_action action,
                            int64_t end);
void weft_sim_send_edge(struct weft_sim_run *run, struct weft_action send);

/* sim_queues.c: shared channels. */
enum weft_status weft_sim_queues_init(struct weft_sim_run *run, struct weft_error *error);
void weft_sim_queues_reset(struct weft_sim_run *run);
/* An action has made what goes over the channel. */
void weft_sim_queues_produced(struct weft_sim_run *run, uint32_t channel);
/* NCCL models: a rank has come to a transfer of its row. */
void weft_sim_queues_issue(struct weft_sim_run *run, const struct weft_action *transfer,
                           int64_t time);

/* The transfer of a message over a channel starts: writes its arrival down and wakes
 * the rank that may wait for it. */
void weft_sim_deliver(struct weft_sim_run *run, const struct weft_sim_channel *channel,
                      int64_t *input, int64_t produced, int64_t start);

static inline const struct weft_work *weft_sim_work(const struct weft_sim_run *run,
                                                    struct weft_action compute) {
  return &run->stages[compute.stage].works[compute.op - WEFT_OP_F];
}

/* Of a SEND or RECV; NULL: there is no such edge. */
static inline struct weft_sim_channel *weft_sim_channel_of(const struct weft_sim_run *run,
                                                           struct weft_action transfer) {
  const uint32_t number = weft_channel_of(run->program, transfer);
  return number != WEFT_EDGE_NONE ? &run->channels[number] : NULL;
}

/* How many messages an action of a graph's stage consumes. */
static inline uint32_t weft_sim_input_count(const struct weft_sim_run *run,
                                            struct weft_action action) {
  return weft_edge_list_count(weft_action_edges(run->graph, action, true), action.stage);
}

/* Whether an input carries an activation. */
static inline bool weft_sim_is_forward(const struct weft_sim_run *run, size_t input) {
  return run->graph == NULL ? input < run->pairs : input / run->program->microbatch_count % 2 == 0;
}

/* Number of the input of a (stage, microbatch), in a chain. */
static inline size_t weft_sim_input(const struct weft_sim_run *run, bool forward, uint32_t stage,
                                    uint32_t microbatch) {
  const size_t pair = (size_t)stage * run->program->microbatch_count + microbatch;
  return forward ? pair : run->pairs + pair;
}

struct weft_sim_recorder {
  struct weft_sim_run *run;           /* that all ranks have finished, from 0 */
  struct weft_rank_record *records;   /* [rank] */
  bool *has_gradients;                /* [stage] its first backward has begun */
  int64_t *taken;                     /* [buffer] of one rank: when they are taken, ascending, */
  int64_t *freed;                     /* and given back */
  size_t buffers_max;                 /* of any rank */
  struct weft_bytes_change *messages; /* [2 x messages_max] in a graph with sizes; else NULL */
  size_t messages_max;                /* of any rank, those within it included */
  struct weft_memory_change *changes; /* of one rank's memory; NULL: only activations count */
  struct weft_event *events;          /* NULL: not to be written */
  const uint64_t *event_begin;        /* [rank + 1] into events */
};

/* Memory for everything but events. */
enum weft_status weft_sim_recorder_init(struct weft_sim_recorder *recorder,
                                        struct weft_sim_run *run, struct weft_error *error);
void weft_sim_recorder_finish(struct weft_sim_recorder *recorder);

/* Fills the records, and writes the events where there is room for them. */
void weft_sim_record_all(struct weft_sim_recorder *recorder);

#endif
