/* The machine that steps a program: who takes actions in order, what an action waits for, and what
 * goes through channels. This is the machine without a clock, which says what can happen at all;
 * timed_machine.h says when. Verify's liveness and the playground's stepper are uses of it.
 * docs/architecture.md lists what steps programs by itself, and why.
 *
 *     weft_machine_init(&machine, ...)   ...   weft_machine_run(&machine)
 *
 * Agents (machine_agents.h) are the ranks, or with an asynchronous model the compute of each rank and
 * the queues of its transfers. Every agent takes its actions in order, every channel has one sender
 * and carries messages in order, and what an action waits for stays true once it is true. So
 * whichever agent moves first, the same actions become possible in the end: one run decides all
 * interleavings. The run moves an agent until it must wait, and looks
 * at a waiting agent again only when the channel or the data it waits for has changed; that makes it
 * linear.
 *
 * A SEND puts its message into the channel when it is reached; message j is done with when taken +
 * capacity > j. With capacity 0 that is when it has been received (rendezvous), with K when fewer than
 * K older ones wait, with no limit at once. A full channel's newest message is never its oldest, so
 * putting it in early changes nothing.
 *
 * A table without SEND and RECV waits for data alone: it is there as soon as it is made. */
#ifndef IR_MACHINE_H
#define IR_MACHINE_H

#include <assert.h>

#include "ir/machine_agents.h"

struct weft_agent_state {
  uint64_t at; /* see weft_agent_record() */
  uint64_t end;
  uint32_t message; /* number on its channel of the SEND it is at */
  bool offered;     /* that SEND's message is in the channel */
  bool queued;      /* in the work list */
};

struct weft_machine {
  struct weft_placed_program placed;
  bool has_transfers;
  bool has_queues;   /* transfers are agents of their own */
  uint32_t capacity; /* of a channel */
  struct weft_message_queue queue;
  struct weft_agents agents;
  uint32_t *sent;  /* [channel] messages put in */
  uint32_t *taken; /* [channel] messages received */
  uint8_t *there; /* [edge][microbatch] bit 0: the message is made (tables), or received (queues) */
  struct weft_agent_state *states; /* [agent] */
  uint32_t *work;                  /* agents to look at, a stack; behind it room for a turn's */
  uint32_t work_count;
};

/* Of a program whose transfers are in range, on their stages' ranks, over edges that exist, and in
 * pairs; without transfers data crosses ranks as it is made, and SEND and RECV do nothing. The program
 * must outlive the machine; the arena owns all that this one needs. False when out of memory. */
bool weft_machine_init(struct weft_machine *machine, struct weft_arena *arena,
                       const struct weft_placed_program *placed, struct weft_comm_model model,
                       bool has_transfers);
/* From the beginning, until every agent has finished or must wait. */
void weft_machine_run(struct weft_machine *machine);
/* The same in turns: one cell of every agent that can go on, in their order, again and again. */
struct weft_machine_watch {
  void *context;
  void (*moved)(void *context, uint32_t agent, uint64_t record); /* its cell is done */
  void (*waits)(void *context, uint32_t agent);                  /* its next one cannot be yet */
};
void weft_machine_take_turns(struct weft_machine *machine, const struct weft_machine_watch *watch);
/* Goes on from where agents got stuck, with a larger capacity of the channels. What was possible with
 * the smaller one is possible with the larger, so a run with that comes by here too. */
void weft_machine_go_on(struct weft_machine *machine, uint32_t capacity);
static inline const struct weft_action *weft_machine_record(const struct weft_machine *machine,
                                                            uint64_t i) {
  return &machine->placed.program->actions[i];
}

static inline uint64_t weft_machine_record_number(const struct weft_machine *machine,
                                                  uint32_t agent) {
  return weft_agent_record(&machine->agents, machine->states[agent].at);
}

/* What an agent does next; it has not finished. */
static inline const struct weft_action *weft_machine_next(const struct weft_machine *machine,
                                                          uint32_t agent) {
  return weft_machine_record(machine, weft_machine_record_number(machine, agent));
}

/* ---- Channels ----
 *
 * `graph` is the program's, so that loops can be compiled for chains alone. */

WEFT_GRAPH_INLINE uint32_t weft_machine_channel(const struct weft_machine *machine,
                                                const struct weft_graph *graph,
                                                struct weft_action send) {
  return machine->queue.channel_of[weft_channel_of_send(graph, send)];
}

/* The oldest message of a channel, or NULL. */
static inline const struct weft_action *weft_machine_oldest(const struct weft_machine *machine,
                                                            uint32_t channel) {
  assert(machine->taken[channel] <= machine->sent[channel]);
  if (machine->taken[channel] == machine->sent[channel]) {
    return NULL;
  }
  return weft_machine_record(
      machine, machine->queue.messages[machine->queue.first[channel] + machine->taken[channel]]);
}

/* The agents at the two ends of a message. */
WEFT_GRAPH_INLINE uint32_t weft_machine_receiver(const struct weft_machine *machine,
                                                 const struct weft_graph *graph,
                                                 struct weft_action send) {
  struct weft_action recv;
  if (machine->has_queues) {
    return machine->agents.of_receiver[weft_channel_of_send(graph, send)];
  }
  return weft_action_partner(send, machine->placed.stage_count, &recv)
             ? machine->placed.rank_of[recv.stage]
             : WEFT_RANK_NONE;
}

WEFT_GRAPH_INLINE uint32_t weft_machine_sender(const struct weft_machine *machine,
                                               const struct weft_graph *graph,
                                               struct weft_action send) {
  return machine->has_queues ? machine->agents.of_sender[weft_channel_of_send(graph, send)]
                             : machine->placed.rank_of[send.stage];
}

/* ---- Inputs ---- */

/* Where it is recorded that a message can be used (bit 0); the numbers are those of ir/action.h. */
static inline uint8_t *weft_machine_message(const struct weft_machine *machine, uint32_t edge,
                                            uint32_t microbatch) {
  return &machine->there[(size_t)edge * machine->placed.microbatch_count + microbatch];
}

/* The first stage from input number *k on whose result is not there; false: none. *k is then behind
 * it. What comes from its own rank always counts as there: order is the caller's business. */
static inline bool weft_machine_next_lacking(const struct weft_machine *machine,
                                             struct weft_action action, uint32_t rank, uint32_t *k,
                                             uint32_t *producer) {
  const struct weft_graph *graph = machine->placed.program->graph;
  const uint32_t inputs = weft_action_input_count(graph, action, machine->placed.stage_count);
  while (*k < inputs) {
    const uint32_t edge = weft_action_input_channel(graph, action, *k);
    *producer = weft_action_input_at(graph, action, (*k)++);
    if (machine->placed.rank_of[*producer] != rank &&
        (*weft_machine_message(machine, edge, action.microbatch) & 1) == 0) {
      return true;
    }
  }
  return false;
}

/* ---- Queues ---- */

/* Whether the compute before a transfer in its row is done. */
static inline bool weft_machine_is_issued(const struct weft_machine *machine, uint32_t rank,
                                          uint64_t transfer) {
  return machine->states[rank].at == machine->states[rank].end ||
         weft_machine_record_number(machine, rank) > transfer;
}

/* Whether an agent has not finished. */
static inline bool weft_machine_is_stuck(const struct weft_machine *machine, uint32_t agent) {
  return machine->states[agent].at < machine->states[agent].end;
}

#endif
