/* The status of a rank: what it is doing, for other ranks to read. Each field is a relaxed
 * atomic access of its own, which costs as much as a plain one. */
#ifndef COMM_RANK_STATUS_H
#define COMM_RANK_STATUS_H

#include <string.h>

#include <weft/ir.h>
#include <weft/transport.h>

#include "ir/action.h"

#define WEFT_STATUS_STORE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELAXED)
#define WEFT_STATUS_LOAD(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)

static inline uint64_t weft_action_pack(struct weft_action action) {
  uint64_t packed;
  _Static_assert(sizeof action == sizeof packed, "an action is 8 bytes");
  memcpy(&packed, &action, sizeof packed);
  return packed;
}

/* What is not an op becomes IDLE: another process may have written it. */
static inline struct weft_action weft_action_unpack(uint64_t packed) {
  struct weft_action action;
  memcpy(&action, &packed, sizeof action);
  return action.op < WEFT_OP_COUNT ? action : weft_action_idle();
}

/* Around every call of a function that Weft was given: weft_comm_run() sees when one does not
 * return. A rank that it has left behind meanwhile never comes back from leave(). */
static inline void weft_rank_status_enter(struct weft_rank_status *status) {
  WEFT_STATUS_STORE(status->calls, WEFT_STATUS_LOAD(status->calls) + 1);
}

/* Never returns to a rank that has been left behind (rank_threads.c). */
void weft_rank_status_stop(const struct weft_rank_status *status);

static inline void weft_rank_status_stop_if_left(const struct weft_rank_status *status) {
  if ((WEFT_STATUS_LOAD(status->flags) & WEFT_RANK_LEFT_BEHIND) != 0) {
    weft_rank_status_stop(status);
  }
}

static inline void weft_rank_status_leave(struct weft_rank_status *status) {
  WEFT_STATUS_STORE(status->calls, WEFT_STATUS_LOAD(status->calls) + 1);
  weft_rank_status_stop_if_left(status);
}

/* Adds a finished cell to the ring of recent ones. */
static inline void weft_rank_status_remember(struct weft_rank_status *status,
                                             struct weft_action action, int64_t begin,
                                             int64_t end) {
  const uint64_t count = WEFT_STATUS_LOAD(status->recent_count);
  struct weft_recent_action *entry = &status->recent[count % WEFT_STATUS_RECENT];
  WEFT_STATUS_STORE(entry->action, weft_action_pack(action));
  WEFT_STATUS_STORE(entry->begin, begin);
  WEFT_STATUS_STORE(entry->end, end);
  WEFT_STATUS_STORE(status->recent_count, count + 1);
}

#endif
