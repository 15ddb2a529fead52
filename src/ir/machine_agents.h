/* What takes actions in order: a rank; or, where a rank's transfers are in queues of their own (the
 * asynchronous models), its compute, and each of its queues.
 *
 *     0F0,0SEND_F0,0F1,0RECV_B0,...   agent 0: 0F0 0F1 ...   agent 2, "0 to 1": 0SEND_F0 ...
 *                                                            agent 3, "1 to 0": 0RECV_B0 ...
 *
 * Agents 0 to rank_count - 1 are the ranks, the queues of rank 0 come next, then those of rank 1. */
#ifndef IR_MACHINE_AGENTS_H
#define IR_MACHINE_AGENTS_H

#include <weft/channel_models.h>
#include <weft/support.h>

#include "ir/placed_program.h"

#define WEFT_AGENT_NONE UINT32_MAX

struct weft_agents {
  uint32_t count, rank_count;
  uint32_t edge_count;     /* weft_placed_edge_count() */
  const uint64_t *of_rows; /* [count + 1] without queues: the program's row_begin */
  uint64_t *begin;         /* [count + 1] with queues: into records; else NULL */
  uint32_t *records;       /* cells, agent after agent, in the order of the row */
  uint64_t record_count;
  uint32_t *ranks;       /* [count] with queues */
  uint32_t *first_queue; /* [rank + 1] with queues: the agents of a rank's queues */
  uint32_t *of_sender;   /* [edge] with queues: the queue at either end of a stage boundary, or
                            WEFT_AGENT_NONE */
  uint32_t *of_receiver;
};

/* `scope` says which transfers of a rank share a queue. Transfers that lead nowhere, or to another
 * stage of the rank, are of no agent. The arena owns them. False when out of memory. */
bool weft_agents_init(struct weft_agents *agents, struct weft_arena *arena,
                      const struct weft_placed_program *placed, enum weft_channel_scope scope,
                      bool has_queues);

static inline uint64_t weft_agent_begin(const struct weft_agents *agents, uint32_t agent) {
  return agents->begin != NULL ? agents->begin[agent] : agents->of_rows[agent];
}

static inline uint32_t weft_agent_rank(const struct weft_agents *agents, uint32_t agent) {
  return agents->ranks != NULL ? agents->ranks[agent] : agent;
}

/* The record of an agent's cell number `at`, which counts from its begin; of a rank: from the
 * beginning of the program, in records. */
static inline uint64_t weft_agent_record(const struct weft_agents *agents, uint64_t at) {
  return agents->records != NULL ? agents->records[at] : at;
}

#endif
