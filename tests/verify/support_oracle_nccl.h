/* The oracle for the asynchronous models, with nothing of the verifier in it. The semantics are
 * those of weft/channel_models.h:
 *
 *   A transfer starts when the compute before it in its row is done and everything before it in
 *   the queue of its communicator, sends and receives alike. Compute waits for the compute before
 *   it, and for the RECVs of its inputs. A started SEND puts its message on the channel of its two
 *   ranks, and is done when it has been received (capacity 0), when fewer than K older messages
 *   wait there (capacity K), or at once. A started RECV is done when its message is the oldest.
 *   Posted transfers are the same, at once, with a queue at either end of each channel.
 *
 * Every cell is its own: there is no agent and no cursor, only the set of cells that are done. */
#ifndef TESTS_SUPPORT_ORACLE_NCCL_H
#define TESTS_SUPPORT_ORACLE_NCCL_H

#include "support_oracle.h"

/* Four capacities by three communicators, then posted by three channels. */
#define ORACLE_NCCL_MODELS 15u
struct weft_comm_model oracle_nccl_model(uint32_t index);
/* "rendezvous/nccl-directed", ...; static storage. */
const char *oracle_nccl_model_name(uint32_t index);

/* A program made ready: beside the oracle's cells, the RECVs that a cell waits for. */
struct oracle_nccl {
  const struct oracle *oracle;
  struct weft_comm_model model;
  uint32_t *receives; /* [cells][ORACLE_NEEDS_MAX] cells of the same row + 1; 0: none */
  uint32_t *queue;    /* [cells] the communicator's number at its rank + 1; 0: compute */
  uint32_t cell_count;
};
void oracle_nccl_init(struct oracle_nccl *nccl, const struct oracle *oracle,
                      const struct weft_program *program, struct weft_comm_model model);
void oracle_nccl_finish(struct oracle_nccl *nccl);

/* One maximal run: all that can be done, until nothing can. */
struct oracle_nccl_run {
  bool complete;
  uint8_t *done;    /* [cells] */
  uint8_t *out;     /* [cells] a SEND whose message is on the channel, and that is not done */
  uint32_t *flight; /* [message_count] messages on channels, oldest first */
  uint32_t in_flight;
};
void oracle_nccl_run(const struct oracle_nccl *nccl, struct oracle_nccl_run *run);
void oracle_nccl_run_finish(struct oracle_nccl_run *run);

/* Every interleaving of a small program, each state once: at most 3 ranks, 64 cells a row and 25
 * messages. */
struct oracle_nccl_exploration {
  uint32_t states; /* 0: there are too many */
  uint32_t ends;   /* different states without a next one */
  bool agrees;     /* the first has the run's cells done */
};
struct oracle_nccl_exploration oracle_nccl_explore(const struct oracle_nccl *nccl,
                                                   const struct oracle_nccl_run *run);

/* As oracle_replay(): each member is the next of its queue, or of its rank's compute, and waits for
 * something that comes at or behind the next member in that one's. */
const char *oracle_nccl_replay(const struct oracle_nccl *nccl, const struct oracle_nccl_run *run,
                               const struct weft_finding *finding);

#endif
