/* Guards the tables indexed by (stage, microbatch) against sparse programs. A
 * complete schedule has at least one action per pair, so nothing real comes
 * near the limit; hand-written fragments stay below its constant part. */
#include "analyze/pairs.h"

#include <inttypes.h>

#include "base/fail.h"

enum { PAIRS_PER_ACTION_MAX = 64, PAIRS_FREE = 65536 };

enum weft_status weft_pairs_count(const struct weft_program *program, size_t *count,
                                  struct weft_error *error) {
  /* 2^16 stages x 2^24 microbatches, 2^28 actions x 64: no overflow. */
  const uint64_t pairs = (uint64_t)program->stage_count * program->microbatch_count;
  const uint64_t limit = program->action_count * PAIRS_PER_ACTION_MAX + PAIRS_FREE;
  if (pairs > limit) {
    return weft_fail(error, WEFT_ERR_INVALID, "number stages and microbatches from 0, without gaps",
                     "too sparse: %" PRIu64 " actions, but stages up to %" PRIu32
                     " and microbatches up to %" PRIu32,
                     program->action_count, program->stage_count - 1,
                     program->microbatch_count - 1);
  }
  *count = (size_t)pairs;
  return WEFT_OK;
}
