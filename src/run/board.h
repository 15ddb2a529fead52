/* Writing this rank's board: what it is doing, for the others to see. Each field
 * by a relaxed atomic store, which costs as much as a plain one. */
#ifndef RUN_BOARD_H
#define RUN_BOARD_H

#include <string.h>

#include <weft/ir.h>
#include <weft/transport.h>

#define WEFT_BOARD_STORE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELAXED)
#define WEFT_BOARD_LOAD(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)

static inline uint64_t weft_board_pack(struct weft_action action) {
  uint64_t packed;
  _Static_assert(sizeof action == sizeof packed, "an action is 8 bytes");
  memcpy(&packed, &action, sizeof packed);
  return packed;
}

static inline struct weft_action weft_board_unpack(uint64_t packed) {
  struct weft_action action;
  memcpy(&action, &packed, sizeof action);
  return action;
}

/* A finished cell, into the ring of recent ones. */
static inline void weft_board_remember(struct weft_rank_status *board, struct weft_action action,
                                       int64_t begin, int64_t end) {
  const uint64_t count = WEFT_BOARD_LOAD(board->recent_count);
  struct weft_recent_action *entry = &board->recent[count % WEFT_STATUS_RECENT];
  WEFT_BOARD_STORE(entry->action, weft_board_pack(action));
  WEFT_BOARD_STORE(entry->begin, begin);
  WEFT_BOARD_STORE(entry->end, end);
  WEFT_BOARD_STORE(board->recent_count, count + 1);
}

#endif
