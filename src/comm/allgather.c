/* Blocking collectives over all ranks, on top of the transport's non-blocking exchange(). */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/comm.h>
#include <weft/support.h>

#include "comm/rank_status.h"

enum {
  REFRESH_NS = 500 * 1000 * 1000, /* for the statuses of other ranks */
  STACK_RANKS = 32                /* up to that many no memory is allocated */
};

uint32_t weft_missing_rank(struct weft_transport *transport, bool *stopped) {
  assert(transport != NULL && stopped != NULL);
  const struct weft_transport_ops *ops = transport->ops;
  uint32_t missing = UINT32_MAX;
  if (ops->refresh_status != NULL) {
    ops->refresh_status(transport, ops->now(transport) + REFRESH_NS);
  }
  for (uint32_t r = transport->rank_count; r-- > 0;) {
    const struct weft_rank_status *status = ops->rank_status(transport, r);
    const uint32_t phase = WEFT_STATUS_LOAD(status->phase);
    *stopped = (WEFT_STATUS_LOAD(status->flags) & WEFT_RANK_STOPPED) != 0;
    if (*stopped) {
      return r;
    }
    missing = phase != WEFT_PHASE_IDLE && phase != WEFT_PHASE_DONE ? r : missing;
  }
  return missing;
}

static enum weft_status fail_world(struct weft_transport *transport, uint32_t rank,
                                   const struct weft_error *reason, struct weft_error *error) {
  const struct weft_failure failure = {.rank = rank, .error = *reason};
  transport->ops->fail(transport, &failure);
  if (error != NULL) {
    *error = *reason;
  }
  return reason->status;
}

static enum weft_status fail_stalled(struct weft_transport *transport, int64_t limit,
                                     struct weft_error *error) {
  bool stopped = false;
  const uint32_t missing = weft_missing_rank(transport, &stopped);
  char name[WEFT_RANK_NAME_SIZE] = "another rank", waited[48];
  char hint[64] = "is its process stopped, or its host gone?";
  struct weft_error reason;
  if (missing < transport->rank_count) {
    (void)weft_rank_name(transport, missing, name);
  }
  if (transport->ops->virtual_time) {
    (void)snprintf(waited, sizeof waited, "%" PRId64 " ticks", limit);
  } else {
    (void)snprintf(waited, sizeof waited, "%.1f s", (double)limit / 1e9);
  }
  if (stopped) {
    (void)snprintf(hint, sizeof hint, "SIGCONT resumes rank %" PRIu32 "'s process", missing);
  }
  (void)weft_fail(
      &reason, WEFT_ERR_STALLED, hint,
      "%s%s has not come to the end of the step; rank %" PRIu32 " has waited there for %s", name,
      stopped ? ", which is stopped, by a signal or a debugger," : "", transport->rank, waited);
  return fail_world(transport, missing, &reason, error);
}

/* Repeats exchange() until all ranks have come. */
static enum weft_status exchange_within(struct weft_transport *transport, const void *mine,
                                        void *all, size_t size, int64_t limit,
                                        struct weft_error *error) {
  const struct weft_transport_ops *ops = transport->ops;
  const int64_t now = ops->now(transport);
  const int64_t until = limit > 0 && limit < WEFT_TIME_NEVER - now ? now + limit : WEFT_TIME_NEVER;
  for (;;) {
    WEFT_TRY(ops->progress(transport, error));
    const enum weft_status status = ops->exchange(transport, mine, all, size, error);
    if (status != WEFT_IN_PROGRESS) {
      return status;
    }
    WEFT_TRY(ops->wait(transport, until, error));
    if (until != WEFT_TIME_NEVER && ops->now(transport) >= until) {
      return fail_stalled(transport, limit, error);
    }
  }
}

/* `pieces` has room for one exchange: [rank_count][WEFT_EXCHANGE_MAX]. */
static enum weft_status gather_pieces(struct weft_transport *transport, const unsigned char *mine,
                                      unsigned char *all, size_t size, unsigned char *pieces,
                                      int64_t limit, struct weft_error *error) {
  for (size_t at = 0; at < size; at += WEFT_EXCHANGE_MAX) {
    const size_t piece = size - at < WEFT_EXCHANGE_MAX ? size - at : WEFT_EXCHANGE_MAX;
    WEFT_TRY(exchange_within(transport, mine + at, pieces, piece, limit, error));
    for (uint32_t r = 0; r < transport->rank_count; r++) {
      memcpy(all + r * size + at, pieces + r * piece, piece);
    }
  }
  return WEFT_OK;
}

enum weft_status weft_allgather(struct weft_transport *transport, const void *mine, void *all,
                                size_t size, int64_t stall_limit, struct weft_error *error) {
  WEFT_NEED(transport, error);
  if (size == 0) {
    return weft_barrier(transport, stall_limit, error);
  }
  WEFT_NEED(mine, error);
  WEFT_NEED(all, error);
  unsigned char stack[STACK_RANKS * WEFT_EXCHANGE_MAX];
  unsigned char *pieces = stack;
  if (size <= WEFT_EXCHANGE_MAX) {
    return exchange_within(transport, mine, all, size, stall_limit, error);
  }
  if (transport->rank_count > STACK_RANKS) {
    pieces = weft_array_allocate(NULL, transport->rank_count, WEFT_EXCHANGE_MAX);
    if (pieces == NULL) { /* the other ranks must not wait for this one */
      struct weft_error reason;
      (void)weft_fail_memory(&reason, (size_t)transport->rank_count * WEFT_EXCHANGE_MAX);
      return fail_world(transport, transport->rank, &reason, error);
    }
  }
  const enum weft_status status =
      gather_pieces(transport, mine, all, size, pieces, stall_limit, error);
  if (pieces != stack) {
    weft_array_free(NULL, pieces, transport->rank_count, WEFT_EXCHANGE_MAX);
  }
  return status;
}

enum weft_status weft_barrier(struct weft_transport *transport, int64_t stall_limit,
                              struct weft_error *error) {
  WEFT_NEED(transport, error);
  unsigned char nothing[1] = {0};
  return exchange_within(transport, nothing, nothing, 0, stall_limit, error);
}
