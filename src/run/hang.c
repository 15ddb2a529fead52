/* A picture of all ranks' boards. Boards are read field by field while their
 * ranks go on writing them: a rank may be seen between two moments, which is
 * good enough, because a rank that hangs writes nothing. */
#include "run/hang.h"

#include <string.h>

#include <weft/support.h>

#include "base/memory.h"
#include "run/diagnosis_text.h"
#include "run/wait_graph.h"

enum { REFRESH_NS = 500 * 1000 * 1000, REFRESH_LATE_NS = 100 * 1000 * 1000 };

bool weft_hang_is_real_time(const struct weft_transport *transport) {
  return !transport->ops->virtual_time;
}

void weft_rank_state_read(const struct weft_rank_status *status, struct weft_rank_state *stand) {
  const uint32_t phase = __atomic_load_n(&status->phase, __ATOMIC_RELAXED);
  stand->phase = phase < WEFT_PHASE_COUNT ? (enum weft_rank_phase)phase : WEFT_PHASE_IDLE;
  stand->peer = __atomic_load_n(&status->peer, __ATOMIC_RELAXED);
  stand->step = __atomic_load_n(&status->step, __ATOMIC_RELAXED);
  stand->cell = __atomic_load_n(&status->cell, __ATOMIC_RELAXED);
  stand->action = weft_hang_action_of(__atomic_load_n(&status->action, __ATOMIC_RELAXED));
  stand->wants = weft_hang_action_of(__atomic_load_n(&status->wants, __ATOMIC_RELAXED));
  stand->since = __atomic_load_n(&status->since, __ATOMIC_RELAXED);
  stand->flags =
      __atomic_load_n(&status->flags, __ATOMIC_RELAXED) & (WEFT_RANK_STOPPED | WEFT_RANK_SILENT);
  stand->has_acted = __atomic_load_n(&status->recent_count, __ATOMIC_RELAXED) > 0;
}

/* The ring, oldest first. */
static void take_recent(const struct weft_rank_status *status, struct weft_hang_rank *rank) {
  const uint64_t count = __atomic_load_n(&status->recent_count, __ATOMIC_RELAXED);
  const uint32_t kept = count < WEFT_STATUS_RECENT ? (uint32_t)count : WEFT_STATUS_RECENT;
  for (uint32_t k = 0; k < kept; k++) {
    const struct weft_recent_action *entry =
        &status->recent[(count - kept + k) % WEFT_STATUS_RECENT];
    rank->recent[k] =
        (struct weft_recent_action){.action = __atomic_load_n(&entry->action, __ATOMIC_RELAXED),
                                    .begin = __atomic_load_n(&entry->begin, __ATOMIC_RELAXED),
                                    .end = __atomic_load_n(&entry->end, __ATOMIC_RELAXED)};
  }
  rank->recent_count = kept;
}

static void take_rank(const struct weft_rank_status *status, struct weft_hang_rank *rank) {
  struct weft_rank_state stand;
  weft_rank_state_read(status, &stand);
  *rank = (struct weft_hang_rank){.phase = stand.phase,
                                  .peer = stand.peer,
                                  .step = stand.step,
                                  .cell = stand.cell,
                                  .action = stand.action,
                                  .wants = stand.wants,
                                  .since = stand.since,
                                  .flags = stand.flags};
  take_recent(status, rank);
}

void weft_hang_refresh(struct weft_transport *transport) {
  const struct weft_transport_ops *ops = transport->ops;
  if (ops->refresh_status != NULL) {
    struct weft_failure failure;
    const bool is_over = ops->get_failure(transport, &failure); /* processes are about to end */
    ops->refresh_status(transport, ops->now(transport) + (is_over ? REFRESH_LATE_NS : REFRESH_NS));
  }
}

enum weft_status weft_hang_take(const struct weft_allocator *allocator,
                                struct weft_transport *transport, struct weft_hang *hang,
                                struct weft_error *error) {
  const struct weft_transport_ops *ops = transport->ops;
  const uint32_t p = transport->rank_count;
  struct weft_hang_rank *ranks = weft_array_allocate(allocator, p, sizeof *ranks);
  if (ranks == NULL) {
    return weft_fail_memory(error, p * sizeof *ranks);
  }
  *hang = (struct weft_hang){.allocator = allocator,
                             .nanoseconds = weft_hang_is_real_time(transport),
                             .rank_count = p,
                             .ranks = ranks};
  for (uint32_t r = 0; r < p; r++) {
    take_rank(ops->rank_status(transport, r), &ranks[r]);
  }
  hang->has_failure = ops->get_failure(transport, &hang->failure);
  hang->now = ops->now(transport); /* after the boards, so that no wait is negative */
  return WEFT_OK;
}

void weft_hang_finish(struct weft_hang *hang) {
  weft_array_free(hang->allocator, hang->ranks, hang->rank_count, sizeof *hang->ranks);
  *hang = (struct weft_hang){.allocator = hang->allocator};
}
