/* The messages of a program whose stages form a graph: a number for each channel (ir/action.h) and
 * microbatch. Only channels that a SEND or RECV of the program uses have messages, so that what is
 * indexed by message is as large as the program, however many edges the graph has. */
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

#endif
