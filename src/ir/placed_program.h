/* A program with the shape that it is understood to have, and the rank of each of its stages: what
 * the machine (ir/machine.h) steps. The parts of the program that are out of that shape are the
 * caller's to refuse first. */
#ifndef IR_PLACED_PROGRAM_H
#define IR_PLACED_PROGRAM_H

#include "ir/action.h"

struct weft_placed_program {
  const struct weft_program *program;
  const struct weft_graph *graph; /* the program's; NULL: a chain */
  uint32_t stage_count;
  uint32_t microbatch_count;
  const uint32_t *rank_of; /* [stage], or WEFT_RANK_NONE */
};

static inline uint64_t weft_placed_pair(const struct weft_placed_program *placed, uint32_t stage,
                                        uint32_t microbatch) {
  return (uint64_t)stage * placed->microbatch_count + microbatch;
}

/* Number of the directed boundary, or edge, that a SEND goes over (ir/action.h: channels; here a
 * channel is what the communication model makes one of). */
WEFT_GRAPH_INLINE uint32_t weft_edge_of_send(const struct weft_graph *graph,
                                             struct weft_action send) {
  return graph == NULL ? 2u * send.stage + (send.op == WEFT_OP_SEND_B)
                       : weft_channel_of_send(graph, send);
}

static inline uint32_t weft_placed_edge_count(const struct weft_placed_program *placed) {
  return weft_channel_count(placed->graph, placed->stage_count);
}

/* The ranks of the stages at its ends, WEFT_RANK_NONE where a stage is not there. */
static inline void weft_placed_edge_ranks(const struct weft_placed_program *placed, uint32_t edge,
                                          uint32_t *from, uint32_t *to) {
  uint32_t sender, receiver;
  weft_channel_ends(placed->graph, edge, &sender, &receiver);
  *from = placed->rank_of[sender];
  *to = receiver < placed->stage_count ? placed->rank_of[receiver] : WEFT_RANK_NONE;
}

#endif
