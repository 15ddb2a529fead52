/* The messages of a program: a number for each channel (ir/action.h) and microbatch. Only channels
 * that a SEND or RECV of the program uses have messages, so that what is indexed by message is as
 * large as the program, however many edges the graph has.
 *
 * The messages of a chain are computed: a stage has one of each kind for a microbatch. So where sets
 * of ops are kept for each (stage, microbatch), its SEND and RECV are in them, and the table is
 * empty. */
#ifndef IR_MESSAGE_TABLE_H
#define IR_MESSAGE_TABLE_H

#include "ir/action.h"

#define WEFT_MESSAGE_NONE UINT64_MAX

struct weft_message_table {
  const struct weft_allocator *allocator;
  uint32_t microbatch_count;
  uint32_t channel_count;
  uint32_t used_count; /* channels that have messages */
  uint32_t *used;      /* [channel] its number among those, or WEFT_EDGE_NONE */
};

/* WEFT_ERR_INVALID when there would be far more messages than actions (ir/pairs.h). */
enum weft_status weft_message_table_init(struct weft_message_table *table,
                                         const struct weft_allocator *allocator,
                                         const struct weft_program *program,
                                         uint32_t microbatch_count, struct weft_error *error);
void weft_message_table_finish(struct weft_message_table *table);

static inline uint64_t weft_message_count(const struct weft_message_table *table) {
  return (uint64_t)table->used_count * table->microbatch_count;
}

/* Of a channel, or of none (WEFT_EDGE_NONE), and a microbatch below the table's count. */
static inline uint64_t weft_message_number(const struct weft_message_table *table, uint32_t channel,
                                           uint32_t microbatch) {
  if (channel == WEFT_EDGE_NONE || table->used[channel] == WEFT_EDGE_NONE) {
    return WEFT_MESSAGE_NONE;
  }
  return (uint64_t)table->used[channel] * table->microbatch_count + microbatch;
}

/* ---- Sets of ops F ... RECV_B ----
 *
 * One for each (stage, microbatch). In a graph a stage has several messages for a microbatch: a SEND
 * or RECV is in the set of its message, and those come behind. */

#define WEFT_SET_NONE UINT64_MAX

static inline uint64_t weft_set_count(const struct weft_message_table *table,
                                      uint32_t stage_count) {
  return (uint64_t)(stage_count + table->used_count) * table->microbatch_count;
}

/* The number of the set that an action in range belongs to; WEFT_SET_NONE: it has no edge. The
 * table's microbatch_count comes from the caller, who has it in a register. */
WEFT_GRAPH_INLINE uint64_t weft_set_of(const struct weft_message_table *table,
                                       const struct weft_graph *graph, uint32_t stage_count,
                                       uint32_t microbatch_count, struct weft_action action) {
  if (graph == NULL || weft_op_in(action.op, WEFT_OPS_COMPUTE)) {
    return action.skip == 0 ? (uint64_t)action.stage * microbatch_count + action.microbatch
                            : WEFT_SET_NONE;
  }
  const uint64_t message =
      weft_message_number(table, weft_graph_channel_of(graph, action), action.microbatch);
  return message != WEFT_MESSAGE_NONE ? (uint64_t)stage_count * microbatch_count + message
                                      : WEFT_SET_NONE;
}

#endif
