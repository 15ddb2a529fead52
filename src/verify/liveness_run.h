/* The run that decides liveness: what its parts share. verify_liveness.c runs it; where it gets
 * stuck, liveness_waits.c finds who waits for whom, and deadlock_report.c says so. */
#ifndef VERIFY_LIVENESS_RUN_H
#define VERIFY_LIVENESS_RUN_H

#include "verify/agents.h"
#include "verify/message_queue.h"

struct weft_agent_state {
  uint64_t at; /* see weft_agent_record() */
  uint64_t end;
  uint32_t message; /* number on its channel of the SEND it is at */
  bool offered;     /* that SEND's message is in the channel */
  bool queued;      /* in the work list */
};

struct weft_liveness_run {
  struct weft_verify_context *context;
  bool has_transfers;
  bool has_queues;   /* transfers are agents of their own */
  uint32_t capacity; /* of a channel */
  struct weft_message_queue queue;
  struct weft_agents agents;
  uint32_t *sent;  /* [channel] messages put in */
  uint32_t *taken; /* [channel] messages received */
  uint8_t *made;   /* Tables: [n][m] made, bit 0 activation, bit 1 gradient. With queues: received
                      by the stage, likewise; in a graph [message], bit 0 */
  struct weft_agent_state *states; /* [agent] */
  uint32_t *work;                  /* agents to look at, a stack */
  uint32_t work_count;
};

static inline const struct weft_action *weft_run_record(const struct weft_liveness_run *run,
                                                        uint64_t i) {
  return &run->context->program->actions[i];
}

static inline uint64_t weft_run_record_number(const struct weft_liveness_run *run, uint32_t agent) {
  return weft_agent_record(&run->agents, run->states[agent].at);
}

/* What an agent does next; it has not finished. */
static inline const struct weft_action *weft_run_next(const struct weft_liveness_run *run,
                                                      uint32_t agent) {
  return weft_run_record(run, weft_run_record_number(run, agent));
}

/* ---- Channels ----
 *
 * As in verify_context.h, `graph` is the context's. */

WEFT_GRAPH_INLINE uint32_t weft_run_channel(const struct weft_liveness_run *run,
                                            const struct weft_graph *graph,
                                            struct weft_action send) {
  return run->queue.channel_of[weft_edge_of_send(graph, send)];
}

/* The oldest message of a channel, or NULL. */
static inline const struct weft_action *weft_run_oldest(const struct weft_liveness_run *run,
                                                        uint32_t channel) {
  if (run->taken[channel] == run->sent[channel]) {
    return NULL;
  }
  return weft_run_record(run, run->queue.messages[run->queue.first[channel] + run->taken[channel]]);
}

/* The agents at the two ends of a message. */
WEFT_GRAPH_INLINE uint32_t weft_run_receiver(const struct weft_liveness_run *run,
                                             const struct weft_graph *graph,
                                             struct weft_action send) {
  struct weft_action recv;
  if (run->has_queues) {
    return run->agents.of_receiver[weft_edge_of_send(graph, send)];
  }
  return weft_action_partner(send, run->context->stage_count, &recv)
             ? run->context->owner[recv.stage]
             : WEFT_RANK_NONE;
}

WEFT_GRAPH_INLINE uint32_t weft_run_sender(const struct weft_liveness_run *run,
                                           const struct weft_graph *graph,
                                           struct weft_action send) {
  return run->has_queues ? run->agents.of_sender[weft_edge_of_send(graph, send)]
                         : run->context->owner[send.stage];
}

/* ---- Inputs ---- */

static inline uint8_t weft_run_made_bit(struct weft_action action) {
  return action.op == WEFT_OP_F ? 1 : 2;
}

/* The RECV of an input that a stage of another rank makes. */
WEFT_GRAPH_INLINE struct weft_action weft_run_receive_of(const struct weft_graph *graph,
                                                         struct weft_action action,
                                                         uint32_t producer) {
  return weft_action_transfer_in(graph, action.op == WEFT_OP_F ? WEFT_OP_RECV_F : WEFT_OP_RECV_B,
                                 action.stage, producer, action.microbatch);
}

/* With queues: where it is noted that a message has been received, and the bit for it; NULL: the
 * program has no such message. */
WEFT_GRAPH_INLINE uint8_t *weft_run_received(const struct weft_liveness_run *run,
                                             const struct weft_graph *graph,
                                             struct weft_action recv, uint8_t *bit) {
  const struct weft_verify_context *context = run->context;
  if (graph == NULL) {
    *bit = recv.op == WEFT_OP_RECV_F ? 1 : 2;
    return &run->made[weft_pair_index(context, recv.stage, recv.microbatch)];
  }
  const uint64_t message = weft_transfer_message(context, recv);
  *bit = 1;
  return message != WEFT_MESSAGE_NONE ? &run->made[message] : NULL;
}

/* Whether an action waits for what a stage makes: in a table until it is made, with queues until
 * it has been received. Order on the rank itself is the order check's business. */
WEFT_GRAPH_INLINE bool weft_run_lacks(const struct weft_liveness_run *run,
                                      const struct weft_graph *graph, struct weft_action action,
                                      uint32_t rank, uint32_t producer) {
  if (run->context->owner[producer] == rank) {
    return false;
  }
  if (!run->has_queues) {
    const uint64_t pair = weft_pair_index(run->context, producer, action.microbatch);
    return (run->made[pair] & weft_run_made_bit(action)) == 0;
  }
  uint8_t bit;
  const uint8_t *received =
      weft_run_received(run, graph, weft_run_receive_of(graph, action, producer), &bit);
  return received != NULL && (*received & bit) == 0;
}

/* The first stage from input number *k on whose result an action lacks; false: none. *k is then
 * behind it. */
WEFT_GRAPH_INLINE bool weft_run_next_lacking(const struct weft_liveness_run *run,
                                             const struct weft_graph *graph,
                                             struct weft_action action, uint32_t rank, uint32_t *k,
                                             uint32_t *producer) {
  const uint32_t inputs = weft_action_input_count(graph, action, run->context->stage_count);
  while (*k < inputs) {
    *producer = weft_action_input_at(graph, action, (*k)++);
    if (weft_run_lacks(run, graph, action, rank, *producer)) {
      return true;
    }
  }
  return false;
}

/* ---- Queues ---- */

/* Whether the compute before a transfer in its row is done. */
static inline bool weft_run_is_issued(const struct weft_liveness_run *run, uint32_t rank,
                                      uint64_t transfer) {
  return run->states[rank].at == run->states[rank].end ||
         weft_run_record_number(run, rank) > transfer;
}

/* Whether an agent has not finished. */
static inline bool weft_run_is_stuck(const struct weft_liveness_run *run, uint32_t agent) {
  return run->states[agent].at < run->states[agent].end;
}

/* A deadlock for each cycle of agents that are stuck. False when out of memory. */
bool weft_report_deadlocks(struct weft_liveness_run *run);

#endif
