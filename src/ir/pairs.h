/* Tables that are indexed by (stage, microbatch) or by (channel, microbatch): their sizes, and the
 * numbers of sets of ops in them. */
#ifndef IR_PAIRS_H
#define IR_PAIRS_H

#include "ir/action.h"

/* WEFT_ERR_INVALID when stages x microbatches is far more than the program's actions could fill: a
 * table of that size would let a file of a few bytes take gigabytes. With `messages` the same for its
 * channels; in a table an action may have as many messages as its stage has edges. */
enum weft_status weft_pairs_check(const struct weft_program *program, uint32_t stages,
                                  uint32_t microbatches, bool messages, struct weft_error *error);

/* The same with the program's own counts. *pairs = stage_count x microbatch_count; *messages =
 * weft_channel_count() x microbatch_count, where it is asked for (not NULL). */
enum weft_status weft_pairs_count(const struct weft_program *program, size_t *pairs,
                                  size_t *messages, struct weft_error *error);

/* ---- Sets of ops F ... RECV_B ----
 *
 * One for each (stage, microbatch). In a chain that holds its transfers, too. In a graph a stage has
 * several messages for a microbatch: their sets come behind, one for each (channel, microbatch). */

#define WEFT_SET_NONE UINT64_MAX

static inline uint64_t weft_set_count(const struct weft_graph *graph, uint32_t stage_count,
                                      uint32_t microbatch_count) {
  const uint32_t channels = graph != NULL ? weft_channel_count(graph, stage_count) : 0;
  return ((uint64_t)stage_count + channels) * microbatch_count;
}

/* The number of the set that an action in range belongs to; WEFT_SET_NONE: it has no edge. */
WEFT_GRAPH_INLINE uint64_t weft_set_of(const struct weft_graph *graph, uint32_t stage_count,
                                       uint32_t microbatch_count, struct weft_action action) {
  uint64_t line = action.stage;
  if (graph != NULL && !weft_op_in(action.op, WEFT_OPS_COMPUTE)) {
    const uint32_t channel = weft_graph_channel_of(graph, action);
    if (channel == WEFT_EDGE_NONE) {
      return WEFT_SET_NONE;
    }
    line = (uint64_t)stage_count + channel;
  } else if (action.skip > 0) {
    return WEFT_SET_NONE;
  }
  return line * microbatch_count + action.microbatch;
}

#endif
