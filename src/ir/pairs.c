/* Guards the tables indexed by (stage, microbatch) against sparse programs. A
 * complete schedule has at least one action per pair, so nothing real comes
 * near the limit; hand-written fragments stay below its constant part. */
#include "ir/pairs.h"

#include <assert.h>
#include <inttypes.h>

#include <weft/support.h>

enum { PAIRS_PER_ACTION_MAX = 64, PAIRS_FREE = 65536 };

static enum weft_status check_count(uint32_t stages, uint32_t microbatches, uint64_t actions,
                                    struct weft_error *error) {
  /* 2^32 x 2^32, 2^28 actions x 2^9 edges x 64: no overflow. */
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

enum weft_status weft_pairs_check(const struct weft_program *program, uint32_t stages,
                                  uint32_t microbatches, bool messages, struct weft_error *error) {
  assert(program != NULL);
  WEFT_TRY(check_count(stages, microbatches, program->action_count, error));
  if (!messages || program->graph == NULL) {
    return WEFT_OK; /* a chain has two messages for each pair */
  }
  const uint32_t channels = weft_channel_count(program->graph, stages);
  const uint64_t per_stage = channels / program->graph->stage_count + 1;
  return check_count(channels, microbatches, program->action_count * per_stage, error);
}

enum weft_status weft_pairs_count(const struct weft_program *program, size_t *pairs,
                                  size_t *messages, struct weft_error *error) {
  const uint32_t stages = program->stage_count, microbatches = program->microbatch_count;
  assert(pairs != NULL);
  WEFT_TRY(weft_pairs_check(program, stages, microbatches, messages != NULL, error));
  *pairs = (size_t)stages * microbatches;
  if (messages != NULL) {
    *messages = (size_t)weft_channel_count(program->graph, stages) * microbatches;
  }
  return WEFT_OK;
}
