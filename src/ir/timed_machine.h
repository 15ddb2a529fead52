/* The machine with a clock: when every action of a program begins, and every message arrives.
 * machine.h says what can happen at all; agents, queues and what an action waits for are the same.
 * The simulator, lowering by time and the runtime's estimate of a recorded step are uses of it.
 *
 *     weft_timed_init(&machine, &options, error)   ...   weft_timed_run(&machine, NULL)   ...
 *     weft_timed_finish(&machine)
 *
 * A compute action begins when its rank has finished the one before, its inputs have arrived and its
 * stage's parameters are there. A collective runs on a stream of its rank, after the collectives
 * and the compute before it. Transfers are asynchronous to the row: one starts when its data is made,
 * its SEND has been reached and its channel is free; it occupies the channel for a while, and
 * arrives after the hop. In a table data crosses as soon as it is made. Where channels share
 * queues at a rank, a transfer waits for both of its ends to be at the head of theirs, so a receive
 * that comes early holds up the sends behind it; with the NCCL models it also waits, at both ends, for
 * the compute before it in the row.
 *
 * All of these are maxima and sums, so the order in which ranks are looked at does not matter: a rank
 * is stepped until its next input's arrival is unknown, and again when that becomes known. No event
 * queue is needed, and the cost is linear. */
#ifndef IR_TIMED_MACHINE_H
#define IR_TIMED_MACHINE_H

#include <assert.h>

#include "ir/lifetimes.h"
#include "ir/machine_agents.h"

/* A message is an input of a (stage, microbatch), and one number: from 0 up the time at which it
 * arrives, known once its transfer has started; below 0 the complement of the time at which it was
 * made, while its SEND is still to come; WEFT_TIME_UNKNOWN before that. Times are never negative. */
#define WEFT_TIME_UNKNOWN INT64_MIN

/* A channel (ir/action.h) with what goes over it. */
struct weft_timed_channel {
  int64_t *inputs;   /* [microbatch] when its messages arrive */
  int64_t free_at;   /* when its last transfer left it */
  int64_t occupancy; /* of it by one transfer */
  int64_t hop;       /* from the start of a transfer to the arrival; 0: both ends on one rank */
  double bytes;      /* of a message */
  uint32_t from;     /* rank of the stage that sends; rank_count: none */
  uint32_t to;       /* and of the one that receives */
};

/* What takes how long. Times are whole ticks, and no sum of them overflows. */
struct weft_timing {
  const void *context;
  /* Of F, B, I and W, asked once for each stage, and of a collective whenever one begins. */
  int64_t (*action)(const void *context, enum weft_op op, uint32_t stage);
  int64_t (*overlap)(const void *context, const struct weft_action *cell);
  /* Sets occupancy and bytes of a channel, and its hop as if it crossed ranks, which it need not. */
  void (*channel)(const void *context, uint32_t number, struct weft_timed_channel *channel);
  /* How long compute takes instead; NULL: as long as its stage says. */
  int64_t (*adjust)(const void *context, uint32_t rank, uint64_t record, int64_t duration);
};

/* F, I and W take 1, B 2; all else takes no time. */
extern const struct weft_timing weft_unit_timing;

struct weft_timed_rank {
  uint64_t at; /* record */
  uint64_t end;
  int64_t clock;            /* end of its last compute */
  int64_t stream;           /* end of its last collective */
  const int64_t *waits_for; /* the input, while it is stuck; NULL: it is to be stepped */
};

/* A compute op of a stage, as the run needs it: no look-up of neighbours or times is left to do per
 * action, and 64 bytes hold it all. Where stages have several inputs or outputs (see `single`), the
 * run asks the graph for those. */
struct weft_timed_work {
  int64_t *inputs;                     /* [microbatch] of the channel `in` */
  int64_t *outputs;                    /* [microbatch] of the channel `out` */
  const struct weft_timed_channel *in; /* NULL: it needs none */
  struct weft_timed_channel *out;      /* NULL: its output has no consumer */
  int64_t duration;
  uint32_t from;           /* their ranks: of the stage that makes the inputs, */
  uint32_t to;             /* and of the one that takes the outputs */
  struct weft_saved saved; /* set and read by the caller alone */
};

/* [op - WEFT_OP_F] */
struct weft_timed_stage {
  struct weft_timed_work works[4];
};

/* The transfers of an agent that is a queue: into its records. */
struct weft_timed_queue {
  uint64_t head, end;
  int64_t free_at;
};

/* What is borrowed must outlive the machine. Programs need not be valid: a rank that waits for what
 * never comes does not finish, and a transfer that leads nowhere is passed by. */
struct weft_timed_options {
  const struct weft_allocator *allocator;
  const struct weft_placed_program *placed;
  const struct weft_timing *timing;
  bool has_transfers; /* else data crosses ranks as it is made, and SEND and RECV do nothing */
  enum weft_channel_model channel; /* edge without transfers */
  bool keeps_waits;
};

struct weft_timed_machine {
  struct weft_timed_options options;
  struct weft_placed_program placed;
  bool single;             /* every action has at most one input, and one output, of neighbours */
  struct weft_arena arena; /* owns the arrays below, but for inputs and waits */
  size_t input_count;
  int64_t *inputs; /* [channel][microbatch] */
  int64_t *waits;  /* as inputs: of a transfer for its channel, if asked for; NULL: none did */
  bool lacks_memory;
  uint32_t channel_count;
  struct weft_timed_channel *channels; /* [channel] */
  int64_t *unsharded_at;               /* [stage] when its parameters are there */
  struct weft_timed_stage *stages;     /* [stage] */
  struct weft_timed_rank *ranks;       /* [rank + 1] the last is for stages without a rank */
  uint32_t *work;                      /* ranks to look at, a stack */
  uint32_t work_count;

  /* Where channels share queues. */
  struct weft_agents agents;
  struct weft_timed_queue *queues; /* [agent]; NULL: they do not */
  uint32_t *queue_work;            /* queues to look at, a stack; may hold one more than once */
  uint32_t queue_work_count;
  int64_t *issued; /* [record], NCCL models: when the compute before a transfer was done */
};

/* WEFT_ERR_INVALID when the program is too sparse (ir/pairs.h). The machine can be finished then,
 * too. */
enum weft_status weft_timed_init(struct weft_timed_machine *machine,
                                 const struct weft_timed_options *options,
                                 struct weft_error *error);
void weft_timed_finish(struct weft_timed_machine *machine);

/* Runs all ranks from the given start times (NULL: all 0), until each has finished or must wait.
 * Channels are free at the beginning. False when out of memory. */
bool weft_timed_run(struct weft_timed_machine *machine, const int64_t *starts);

/* Nothing asynchronous has been done; a run begins like that, and so does who goes through the rows
 * again. */
void weft_timed_forget_awaited(struct weft_timed_machine *machine);

/* Whether all ranks have finished. */
bool weft_timed_is_over(const struct weft_timed_machine *machine);

/* When the last rank has finished; < 0: a rank never does, or a transfer waits in a queue for ever. */
int64_t weft_timed_end(const struct weft_timed_machine *machine);

static inline const struct weft_timed_work *weft_timed_work_of(
    const struct weft_timed_machine *machine, struct weft_action compute) {
  assert(weft_op_in(compute.op, WEFT_OPS_COMPUTE));
  return &machine->stages[compute.stage].works[compute.op - WEFT_OP_F];
}

/* ---- Asynchronous actions: on a stream of their rank, after the compute before them ---- */

/* When those that an action of compute awaits (ir/action.h) have ended. */
static inline int64_t weft_timed_awaited_at(const struct weft_timed_machine *machine,
                                            struct weft_action compute) {
  return machine->unsharded_at[compute.stage];
}

/* One begins; returns when, and state->stream is when it ends. */
static inline int64_t weft_timed_collective(struct weft_timed_machine *machine,
                                            struct weft_timed_rank *state,
                                            struct weft_action action) {
  assert(weft_op_in(action.op, WEFT_OPS_SHARD) && action.stage < machine->placed.stage_count);
  const int64_t begin = state->clock > state->stream ? state->clock : state->stream;
  state->stream = begin + machine->options.timing->action(machine->options.timing->context,
                                                          (enum weft_op)action.op, action.stage);
  if (action.op == WEFT_OP_UNSHARD) {
    machine->unsharded_at[action.stage] = state->stream;
  }
  return begin;
}

/* How many times there are in unsharded_at. */
static inline size_t weft_timed_awaited_count(const struct weft_placed_program *placed) {
  return placed->stage_count;
}

/* ---- Compute and its inputs ---- */

/* How long compute takes on a rank, and an overlap. */
static inline int64_t weft_timed_adjust(const struct weft_timed_machine *machine, uint32_t rank,
                                        uint64_t record, int64_t duration) {
  const struct weft_timing *timing = machine->options.timing;
  return timing->adjust != NULL ? timing->adjust(timing->context, rank, record, duration)
                                : duration;
}

static inline int64_t weft_timed_overlap(const struct weft_timed_machine *machine, uint32_t rank,
                                         const struct weft_action *cell) {
  const uint64_t record = (uint64_t)(cell - machine->placed.program->actions);
  return weft_timed_adjust(
      machine, rank, record,
      machine->options.timing->overlap(machine->options.timing->context, cell));
}

/* Of a SEND or RECV; NULL: there is no such channel. */
static inline struct weft_timed_channel *weft_timed_channel_of(
    const struct weft_timed_machine *machine, struct weft_action transfer) {
  const uint32_t number = weft_channel_of(machine->placed.program, transfer);
  return number != WEFT_EDGE_NONE ? &machine->channels[number] : NULL;
}

/* How many inputs an action has, the channel of one of them, and when it arrives there. `single` is
 * that of the machine, given as a constant where it shall cost nothing. */
WEFT_GRAPH_INLINE uint32_t weft_timed_input_count(const struct weft_timed_machine *machine,
                                                  struct weft_action action, bool single) {
  return single ? weft_timed_work_of(machine, action)->inputs != NULL
                : weft_action_input_count(machine->placed.program->graph, action,
                                          machine->placed.stage_count);
}

WEFT_GRAPH_INLINE const struct weft_timed_channel *weft_timed_channel_in(
    const struct weft_timed_machine *machine, struct weft_action action, uint32_t k, bool single) {
  return single ? weft_timed_work_of(machine, action)->in
                : &machine->channels[weft_action_input_channel(machine->placed.program->graph,
                                                               action, k)];
}

WEFT_GRAPH_INLINE const int64_t *weft_timed_input(const struct weft_timed_machine *machine,
                                                  struct weft_action action, uint32_t k,
                                                  bool single) {
  return single ? &weft_timed_work_of(machine, action)->inputs[action.microbatch]
                : &weft_timed_channel_in(machine, action, k, false)->inputs[action.microbatch];
}

/* Whether an input is an activation. */
static inline bool weft_timed_is_forward(const struct weft_timed_machine *machine,
                                         const int64_t *input) {
  assert(input >= machine->inputs && input < machine->inputs + machine->input_count);
  return (size_t)(input - machine->inputs) / machine->placed.microbatch_count % 2 == 0;
}

#endif
