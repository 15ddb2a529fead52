/* Costs as whole ticks, so that simulated times are exact and fast to add. */
#ifndef SIM_TICKS_H
#define SIM_TICKS_H

#include <weft/sim.h>
#include <weft/support.h>

#include "ir/action.h"

struct weft_stage_ticks {
  int64_t compute[WEFT_OP_COUNT - WEFT_OP_F]; /* by op - WEFT_OP_F; also of asynchronous ones */
  int64_t overlap;                            /* of an F of this stage; -1: the sum of the parts */
};

struct weft_ticks {
  double per_unit;
  uint32_t stage_count; /* entries: 1 or one per stage */
  struct weft_stage_ticks *stages;
  int64_t latency;
  int64_t occupancy; /* of the channel by one transfer */
};

/* The number of ticks to a unit is the smallest that makes every time whole; a
 * billion where there is none. The arena owns the ticks. WEFT_ERR_LIMIT when times would overflow. */
enum weft_status weft_ticks_init(struct weft_ticks *ticks, struct weft_arena *arena,
                                 const struct weft_program *program, const struct weft_costs *costs,
                                 const struct weft_sim_options *options, struct weft_error *error);

/* How long a message of an edge occupies its channel. `bytes` as in struct weft_edge: negative,
 * those of the hop. */
int64_t weft_ticks_occupancy(const struct weft_ticks *ticks, const struct weft_hop_costs *hop,
                             double bytes);

static inline const struct weft_stage_ticks *weft_ticks_of(const struct weft_ticks *ticks,
                                                           uint32_t stage) {
  return &ticks->stages[ticks->stage_count == 1 ? 0 : stage];
}

#endif
