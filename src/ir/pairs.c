/* Guards the tables indexed by (stage, microbatch) against sparse programs. A
 * complete schedule has at least one action per pair, so nothing real comes
 * near the limit; hand-written fragments stay below its constant part. */
#include "ir/pairs.h"

#include <assert.h>
#include <inttypes.h>

#include <weft/support.h>

#include "ir/action.h"

enum { PAIRS_PER_ACTION_MAX = 64, PAIRS_FREE = 65536 };

enum weft_status weft_pairs_check(uint32_t stages, uint32_t microbatches, uint64_t actions,
                                  struct weft_error *error) {
  /* 2^32 x 2^32, 2^28 actions x 64: no overflow. */
  if ((uint64_t)stages * microbatches <= actions * PAIRS_PER_ACTION_MAX + PAIRS_FREE) {
    return WEFT_OK;
  }
  return weft_fail(error, WEFT_ERR_INVALID,
                   "number stages and microbatches from 0, without gaps; verify the program to see "
                   "which are out of range",
                   "too sparse: %" PRIu64 " actions for %" PRIu32 " stages and %" PRIu32
                   " microbatches",
                   actions, stages, microbatches);
}

enum weft_status weft_pairs_count(const struct weft_program *program, size_t *count,
                                  struct weft_error *error) {
  assert(program != NULL && count != NULL);
  WEFT_TRY(weft_pairs_check(program->stage_count, program->microbatch_count, program->action_count,
                            error));
  *count = (size_t)program->stage_count * program->microbatch_count;
  return WEFT_OK;
}

enum weft_status weft_messages_count(const struct weft_program *program, size_t *count,
                                     struct weft_error *error) {
  assert(program != NULL && count != NULL);
  const uint32_t channels = weft_channel_count(program->graph, program->stage_count);
  if (program->graph == NULL) {
    WEFT_TRY(weft_pairs_count(program, count, error));
    *count *= 2;
    return WEFT_OK;
  }
  const uint64_t per_stage = channels / program->graph->stage_count + 1;
  WEFT_TRY(weft_pairs_check(channels, program->microbatch_count, program->action_count * per_stage,
                            error));
  *count = (size_t)channels * program->microbatch_count;
  return WEFT_OK;
}
