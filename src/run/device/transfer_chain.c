/* A rank's transfers one after the other: the machine with a clock and one queue for all transfers of
 * a rank; see recording.h. */
#include "run/step/recording.h"

#include <assert.h>
#include <math.h>

#include "ir/timed_machine.h"

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
static enum weft_status find_end(const struct weft_timed_options *options, int64_t *end,
                                 struct weft_error *error) {
  struct weft_timed_machine machine;
  const enum weft_status status = weft_timed_init(&machine, options, error);
  if (status == WEFT_OK) {
    (void)weft_timed_run(&machine, NULL); /* it allocates nothing where no waits are kept */
    *end = weft_timed_end(&machine);
  }
  weft_timed_finish(&machine);
  return status;
}

enum weft_status weft_transfer_chain_check(const struct weft_allocator *allocator,
                                           const struct weft_program *program,
                                           const uint32_t *rank_of, double *slowdown,
                                           struct weft_error *error) {
  assert(program != NULL && rank_of != NULL && slowdown != NULL);
  const struct weft_placed_program placed = {.program = program,
                                             .stage_count = program->stage_count,
                                             .microbatch_count = program->microbatch_count,
                                             .rank_of = rank_of};
  struct weft_timed_options options = {
      .allocator = allocator, .placed = &placed, .timing = &weft_unit_timing};
  int64_t free_end = -1, end = -1;
  if (!can_run(&placed)) {
    *slowdown = INFINITY;
    return WEFT_OK;
  }
  WEFT_TRY(find_end(&options, &free_end, error));
  options.has_transfers = true;
  options.channel = WEFT_CHANNEL_RANK; /* a transfer waits for what it sends, not for its row */
  WEFT_TRY(find_end(&options, &end, error));
  *slowdown = end < 0 ? INFINITY : free_end <= 0 ? (double)end : (double)end / (double)free_end;
  return WEFT_OK;
}
