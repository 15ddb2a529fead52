/* A rank's transfers one after the other: the machine with one communicator for all ranks and
 * rendezvous sends; see transfer_chain.h. */
#include "run/device/transfer_chain.h"

#include <assert.h>
#include <math.h>

#include "ir/machine.h"

/* An unverified program may have a transfer over no edge, or of a stage of another rank. */
static bool can_run(const struct weft_placed_program *placed) {
  const struct weft_program *program = placed->program;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      const struct weft_action action = program->actions[i];
      if (weft_op_in(action.op, WEFT_OPS_SEND | WEFT_OPS_RECV) &&
          (placed->rank_of[action.stage] != r ||
           weft_channel_of(program, action) == WEFT_EDGE_NONE)) {
        return false;
      }
    }
  }
  return true;
}

/* How long all rows take; < 0: they do not end. */
static enum weft_status run(const struct weft_machine_options *options, int64_t *end,
                            struct weft_error *error) {
  struct weft_machine machine;
  const bool enough = weft_machine_init(&machine, options);
  if (enough) {
    weft_machine_run(&machine);
    *end = weft_machine_end(&machine);
  }
  weft_machine_finish(&machine);
  return enough ? WEFT_OK
                : weft_fail_memory(error, options->placed->program->action_count * sizeof *end);
}

enum weft_status weft_transfer_chain_check(const struct weft_allocator *allocator,
                                           const struct weft_program *program,
                                           const uint32_t *rank_of, double *slowdown,
                                           struct weft_error *error) {
  assert(program != NULL && rank_of != NULL && slowdown != NULL);
  const struct weft_placed_program placed = {.program = program,
                                             .graph = program->graph,
                                             .stage_count = program->stage_count,
                                             .microbatch_count = program->microbatch_count,
                                             .rank_of = rank_of};
  struct weft_message_table messages = {.allocator = allocator};
  struct weft_machine_options options = {.allocator = allocator,
                                         .placed = &placed,
                                         .messages = &messages,
                                         .model = {.channel = WEFT_CHANNEL_NCCL_WORLD},
                                         .timed = true};
  int64_t free_end = -1, end = -1;
  if (!can_run(&placed)) {
    *slowdown = INFINITY;
    return WEFT_OK;
  }
  if (program->graph != NULL) {
    WEFT_TRY(
        weft_message_table_init(&messages, allocator, program, program->microbatch_count, error));
  }
  enum weft_status status = run(&options, &free_end, error);
  if (status == WEFT_OK) {
    options.has_transfers = true;
    status = run(&options, &end, error);
  }
  weft_message_table_finish(&messages);
  WEFT_TRY(status);
  *slowdown = end < 0 ? INFINITY : free_end <= 0 ? (double)end : (double)end / (double)free_end;
  return WEFT_OK;
}
