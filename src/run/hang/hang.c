/* The snapshot. Status is read field by field while its rank may be writing it, so two
 * moments may be mixed; that is good enough, because a rank that hangs writes nothing. */
#include "run/hang/hang.h"

#include <assert.h>
#include <unistd.h>

#include <weft/support.h>

#include "run/rank_status.h"

enum { REFRESH_NS = 500 * 1000 * 1000, REFRESH_LATE_NS = 100 * 1000 * 1000 };

void weft_rank_state_read(const struct weft_rank_status *status, struct weft_rank_state *state) {
  const uint32_t phase = WEFT_STATUS_LOAD(status->phase);
  *state = (struct weft_rank_state){
      .phase = phase < WEFT_PHASE_COUNT ? (enum weft_rank_phase)phase : WEFT_PHASE_IDLE,
      .peer = WEFT_STATUS_LOAD(status->peer),
      .step = WEFT_STATUS_LOAD(status->step),
      .cell = WEFT_STATUS_LOAD(status->cell),
      .action = weft_action_unpack(WEFT_STATUS_LOAD(status->action)),
      .wants = weft_action_unpack(WEFT_STATUS_LOAD(status->wants)),
      .since = WEFT_STATUS_LOAD(status->since),
      .flags =
          WEFT_STATUS_LOAD(status->flags) & (WEFT_RANK_STOPPED | WEFT_RANK_SILENT | WEFT_RANK_DEAD),
      .has_acted = WEFT_STATUS_LOAD(status->recent_count) > 0,
      .on_device = (WEFT_STATUS_LOAD(status->flags) & WEFT_RANK_ON_DEVICE) != 0,
      .has_gpu = (WEFT_STATUS_LOAD(status->flags) & WEFT_RANK_HAS_GPU) != 0,
      .gpu = WEFT_STATUS_LOAD(status->gpu)};
}

void weft_rank_status_stop(const struct weft_rank_status *status) {
  while ((WEFT_STATUS_LOAD(status->flags) & WEFT_RANK_LEFT_BEHIND) != 0) {
    (void)pause();
  }
}

/* Copies the ring, oldest first. */
static void take_recent(const struct weft_rank_status *status, struct weft_hang_rank *rank) {
  const uint64_t count = WEFT_STATUS_LOAD(status->recent_count);
  const uint32_t kept = count < WEFT_STATUS_RECENT ? (uint32_t)count : WEFT_STATUS_RECENT;
  for (uint32_t k = 0; k < kept; k++) {
    const struct weft_recent_action *entry =
        &status->recent[(count - kept + k) % WEFT_STATUS_RECENT];
    rank->recent[k] = (struct weft_recent_action){.action = WEFT_STATUS_LOAD(entry->action),
                                                  .begin = WEFT_STATUS_LOAD(entry->begin),
                                                  .end = WEFT_STATUS_LOAD(entry->end)};
  }
  rank->recent_count = kept;
}

void weft_hang_refresh(struct weft_transport *transport) {
  const struct weft_transport_ops *ops = transport->ops;
  if (ops->refresh_status != NULL) {
    struct weft_failure failure;
    const bool has_failed = ops->get_failure(transport, &failure); /* processes will end soon */
    ops->refresh_status(transport,
                        ops->now(transport) + (has_failed ? REFRESH_LATE_NS : REFRESH_NS));
  }
}

enum weft_status weft_hang_take(const struct weft_allocator *allocator,
                                struct weft_transport *transport, struct weft_hang *hang,
                                struct weft_error *error) {
  assert(transport->rank_count > 0);
  const struct weft_transport_ops *ops = transport->ops;
  const uint32_t p = transport->rank_count;
  assert(p > 0);
  struct weft_hang_rank *ranks = weft_array_allocate(allocator, p, sizeof *ranks);
  if (ranks == NULL) {
    return weft_fail_memory(error, p * sizeof *ranks);
  }
  *hang = (struct weft_hang){
      .allocator = allocator, .nanoseconds = !ops->virtual_time, .rank_count = p, .ranks = ranks};
  for (uint32_t r = 0; r < p; r++) {
    const struct weft_rank_status *status = ops->rank_status(transport, r);
    weft_rank_state_read(status, &ranks[r].state);
    take_recent(status, &ranks[r]);
  }
  hang->has_failure = ops->get_failure(transport, &hang->failure);
  if (hang->has_failure && hang->failure.rank < p && hang->failure.error.status == WEFT_ERR_PEER) {
    /* It is gone, and its status is of before. */
    enum weft_rank_phase *phase = &ranks[hang->failure.rank].state.phase;
    *phase = *phase == WEFT_PHASE_DONE || *phase == WEFT_PHASE_IDLE ? WEFT_PHASE_FAILED : *phase;
  }
  hang->now = ops->now(transport); /* after the status, so that no wait is negative */
  return WEFT_OK;
}

void weft_hang_finish(struct weft_hang *hang) {
  weft_array_free(hang->allocator, hang->ranks, hang->rank_count, sizeof *hang->ranks);
  *hang = (struct weft_hang){.allocator = hang->allocator};
}
