/* The run that decides liveness: what its parts share. verify_liveness.c runs it, and
 * deadlock_report.c says who waits for whom where it gets stuck. */
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
  uint8_t *made;   /* [n][m] bit 0 activation, bit 1 gradient. Tables: made; with queues: received
                      by the stage */
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

/* ---- Channels ---- */

static inline uint32_t weft_run_channel(const struct weft_liveness_run *run,
                                        struct weft_action send) {
  return run->queue.channel_of[weft_edge_of_send(send)];
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
static inline uint32_t weft_run_receiver(const struct weft_liveness_run *run,
                                         struct weft_action send) {
  struct weft_action recv;
  if (run->has_queues) {
    return run->agents.of_receiver[weft_edge_of_send(send)];
  }
  return weft_action_partner(send, run->context->stage_count, &recv)
             ? run->context->owner[recv.stage]
             : WEFT_RANK_NONE;
}

static inline uint32_t weft_run_sender(const struct weft_liveness_run *run,
                                       struct weft_action send) {
  return run->has_queues ? run->agents.of_sender[weft_edge_of_send(send)]
                         : run->context->owner[send.stage];
}

/* ---- Tables ---- */

static inline uint8_t weft_run_made_bit(struct weft_action action) {
  return action.op == WEFT_OP_F ? 1 : 2;
}

/* The rank an action waits for, or WEFT_RANK_NONE if its input is there. */
static inline uint32_t weft_run_missing_input(const struct weft_liveness_run *run,
                                              struct weft_action action, uint32_t rank) {
  uint32_t producer;
  if (!weft_op_in(action.op, WEFT_OPS_COMPUTE) ||
      !weft_action_input(action, run->context->stage_count, &producer)) {
    return WEFT_RANK_NONE;
  }
  const uint32_t from = run->context->owner[producer];
  const uint64_t pair = weft_pair_index(run->context, producer, action.microbatch);
  /* Order on the rank itself is the order check's business. */
  return from == rank || (run->made[pair] & weft_run_made_bit(action)) != 0 ? WEFT_RANK_NONE : from;
}

/* ---- Queues ---- */

/* Whether a compute action waits for the RECV of its input from another rank. */
static inline bool weft_run_lacks_receive(const struct weft_liveness_run *run,
                                          struct weft_action action, uint32_t rank) {
  uint32_t producer;
  return weft_op_in(action.op, WEFT_OPS_COMPUTE) &&
         weft_action_input(action, run->context->stage_count, &producer) &&
         run->context->owner[producer] != rank &&
         (run->made[weft_pair_index(run->context, action.stage, action.microbatch)] &
          weft_run_made_bit(action)) == 0;
}

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
