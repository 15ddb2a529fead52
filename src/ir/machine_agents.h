/* What the machines step (ir/machine.h, ir/timed_machine.h): a program whose stages have ranks, the
 * messages of its channels, and what takes actions in order.
 *
 * A channel of ir/action.h, one direction of an edge or stage boundary, is called an edge here: a
 * channel is what the communication model makes one of. */
#ifndef IR_MACHINE_AGENTS_H
#define IR_MACHINE_AGENTS_H

#include <weft/channel_models.h>
#include <weft/support.h>

#include "ir/action.h"

/* A program with the shape that it is understood to have, and the rank of each of its stages. The
 * parts of the program that are out of that shape are the caller's to refuse first. */
struct weft_placed_program {
  const struct weft_program *program;
  uint32_t stage_count;
  uint32_t microbatch_count;
  const uint32_t *rank_of; /* [stage], or WEFT_RANK_NONE */
};

static inline uint32_t weft_placed_edge_count(const struct weft_placed_program *placed) {
  return weft_channel_count(placed->program->graph, placed->stage_count);
}

/* ---- Messages, in the order in which each channel carries them ----
 *
 * A channel of any kind has one sending rank, so the order of its messages is the order of that
 * rank's SENDs: known before anything runs. */

struct weft_message_queue {
  uint32_t *channel_of; /* [edge] */
  uint32_t channel_count;
  uint64_t *first;    /* [channel + 1] into messages */
  uint32_t *messages; /* [message] record of the SEND */
};

/* Of a program whose SENDs are in range, outside overlaps and on their stage's rank; `scope` is that
 * of a channel's messages. The arena owns it. False when out of memory. */
bool weft_message_queue_init(struct weft_message_queue *queue, struct weft_arena *arena,
                             const struct weft_placed_program *placed,
                             enum weft_channel_scope scope);

/* ---- Agents: ranks; or, where a rank's transfers are in queues of their own (the asynchronous
 * models), its compute, and each of its queues ----
 *
 *     0F0,0SEND_F0,0F1,0RECV_B0,...   agent 0: 0F0 0F1 ...   agent 2, "0 to 1": 0SEND_F0 ...
 *                                                            agent 3, "1 to 0": 0RECV_B0 ...
 *
 * Agents 0 to rank_count - 1 are the ranks, the queues of rank 0 come next, then those of rank 1. */

#define WEFT_AGENT_NONE UINT32_MAX

struct weft_agents {
  uint32_t count, rank_count;
  const uint64_t *begin; /* [count + 1] into records; without queues the program's row_begin */
  uint32_t *records; /* cells, agent after agent, in the order of the row; NULL: all in theirs */
  uint32_t *ranks;   /* [count] with queues */
  uint32_t *first_queue; /* [rank + 1] with queues: the agents of a rank's queues */
  uint32_t *of_sender;   /* [edge] with queues: the queue at either end, or WEFT_AGENT_NONE */
  uint32_t *of_receiver;
};

/* `scope` says which transfers of a rank share a queue. Transfers that lead nowhere, or to another
 * stage of the rank, are of no agent. The arena owns them. False when out of memory. */
bool weft_agents_init(struct weft_agents *agents, struct weft_arena *arena,
                      const struct weft_placed_program *placed, enum weft_channel_scope scope,
                      bool has_queues);

static inline uint32_t weft_agent_rank(const struct weft_agents *agents, uint32_t agent) {
  return agents->ranks != NULL ? agents->ranks[agent] : agent;
}

/* The record of an agent's cell number `at`, which counts from its begin; of a rank: from the
 * beginning of the program, in records. */
static inline uint64_t weft_agent_record(const struct weft_agents *agents, uint64_t at) {
  return agents->records != NULL ? agents->records[at] : at;
}

#endif
