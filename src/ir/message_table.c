/* Numbers for messages; see message_table.h. */
#include "ir/message_table.h"

#include <assert.h>
#include <string.h>

#include <weft/support.h>

#include "ir/pairs.h"

enum weft_status weft_message_table_init(struct weft_message_table *table,
                                         const struct weft_allocator *allocator,
                                         const struct weft_program *program,
                                         uint32_t microbatch_count, struct weft_error *error) {
  assert(table != NULL && program != NULL);
  *table =
      (struct weft_message_table){.allocator = allocator, .microbatch_count = microbatch_count};
  if (program->graph == NULL) {
    return WEFT_OK;
  }
  const uint32_t channels = weft_channel_count(program->graph, program->stage_count);
  *table = (struct weft_message_table){
      .allocator = allocator,
      .microbatch_count = microbatch_count,
      .channel_count = channels,
      .used = weft_array_allocate(allocator, channels, sizeof *table->used)};
  if (table->used == NULL) {
    return weft_fail_memory(error, channels * sizeof *table->used);
  }
  memset(table->used, 0xff, channels * sizeof *table->used); /* WEFT_EDGE_NONE */
  for (uint64_t i = 0; i < program->action_count; i++) {
    const struct weft_action action = program->actions[i];
    if (!weft_op_in(action.op, WEFT_OPS_SEND | WEFT_OPS_RECV)) {
      continue;
    }
    const uint32_t channel = weft_graph_channel_of(program->graph, action);
    if (channel != WEFT_EDGE_NONE && table->used[channel] == WEFT_EDGE_NONE) {
      table->used[channel] = table->used_count++;
    }
  }
  const enum weft_status status =
      weft_pairs_check(table->used_count, microbatch_count, program->action_count, error);
  if (status < 0) {
    weft_message_table_finish(table);
  }
  return status;
}

void weft_message_table_finish(struct weft_message_table *table) {
  weft_array_free(table->allocator, table->used, table->channel_count, sizeof *table->used);
  *table = (struct weft_message_table){.allocator = table->allocator};
}
