/* Reads the status of ranks, and says it in words; see hang.h. */
#include "run/hang/hang.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include <weft/support.h>

#include "comm/rank_status.h"
#include "ir/action.h"

enum { REFRESH_NS = 500 * 1000 * 1000, REFRESH_LATE_NS = 100 * 1000 * 1000 };

void weft_hang_refresh(struct weft_transport *transport) {
  const struct weft_transport_ops *ops = transport->ops;
  if (ops->refresh_status != NULL) {
    struct weft_failure failure;
    const bool has_failed = ops->get_failure(transport, &failure); /* processes will end soon */
    ops->refresh_status(transport,
                        ops->now(transport) + (has_failed ? REFRESH_LATE_NS : REFRESH_NS));
  }
}

struct weft_hang weft_hang_of(struct weft_transport *transport) {
  assert(transport->rank_count > 0);
  struct weft_hang hang = {.transport = transport, .now = transport->ops->now(transport)};
  hang.has_failure = transport->ops->get_failure(transport, &hang.failure);
  return hang;
}

void weft_hang_read(const struct weft_hang *hang, uint32_t rank, struct weft_rank_state *state) {
  assert(rank < hang->transport->rank_count);
  const struct weft_rank_status *status = hang->transport->ops->rank_status(hang->transport, rank);
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
  if (hang->has_failure && hang->failure.rank == rank &&
      hang->failure.error.status == WEFT_ERR_PEER && /* its status is of before */
      (state->phase == WEFT_PHASE_DONE || state->phase == WEFT_PHASE_IDLE)) {
    state->phase = WEFT_PHASE_FAILED;
  }
}

/* ---- Words ---- */

char *weft_hang_action(struct weft_action action, char buffer[WEFT_HANG_WORD]) {
  if (action.op >= WEFT_OP_COUNT) {
    (void)snprintf(buffer, WEFT_HANG_WORD, "?");
  } else if (action.op == WEFT_OP_OVERLAP_F_B) {
    (void)snprintf(buffer, WEFT_HANG_WORD, "%s", weft_op_info(WEFT_OP_OVERLAP_F_B)->text);
  } else {
    if (!weft_op_in(action.op, WEFT_OPS_SEND | WEFT_OPS_RECV) ||
        weft_transfer_other(action) >= WEFT_STAGES_MAX) {
      action.parts = 0; /* no sub-actions follow it in memory, and there is no such stage */
    }
    (void)weft_action_format(&action, buffer, WEFT_HANG_WORD);
  }
  return buffer;
}

char *weft_hang_location(const struct weft_rank_state *state, char buffer[WEFT_HANG_WORD]) {
  assert(state != NULL);
  char action[WEFT_HANG_WORD];
  const bool in_transfer = weft_op_in(state->action.op, WEFT_OPS_SEND | WEFT_OPS_RECV);
  buffer[0] = '\0';
  if (state->phase == WEFT_PHASE_HANDSHAKE) {
    (void)snprintf(buffer, WEFT_HANG_WORD, " in the handshake");
  } else if (state->action.op != WEFT_OP_IDLE) {
    (void)snprintf(buffer, WEFT_HANG_WORD, " %s %.32s", in_transfer ? "in" : "before",
                   weft_hang_action(state->action, action));
  }
  return buffer;
}

char *weft_hang_wait(const struct weft_rank_state *state, uint32_t rank, uint32_t peer,
                     char buffer[WEFT_HANG_WAIT]) {
  char location[WEFT_HANG_WORD], whom[WEFT_HANG_WORD] = "", wanted[WEFT_HANG_WORD];
  if (peer == rank) {
    (void)snprintf(whom, sizeof whom, " for itself");
  } else if (peer != UINT32_MAX) {
    (void)snprintf(whom, sizeof whom, " for rank %" PRIu32, peer);
  }
  const bool wants = state->wants.op != WEFT_OP_IDLE;
  (void)snprintf(buffer, WEFT_HANG_WAIT, "waits%s%s%s%s%s", weft_hang_location(state, location),
                 whom, wants ? " (" : "", wants ? weft_hang_action(state->wants, wanted) : "",
                 wants ? ")" : "");
  return buffer;
}

uint64_t weft_hang_elapsed(const struct weft_hang *hang, int64_t since) {
  return since < hang->now ? (uint64_t)hang->now - (uint64_t)since : 0;
}

char *weft_hang_time(const struct weft_hang *hang, int64_t since, char buffer[WEFT_HANG_WORD]) {
  const uint64_t elapsed = weft_hang_elapsed(hang, since);
  if (hang->transport->ops->virtual_time) {
    (void)snprintf(buffer, WEFT_HANG_WORD, "%" PRIu64 " tick%s", elapsed, elapsed == 1 ? "" : "s");
  } else {
    const uint64_t tenths = elapsed / 100000000 + (elapsed % 100000000 >= 50000000);
    (void)snprintf(buffer, WEFT_HANG_WORD, "%" PRIu64 ".%" PRIu64 " s", tenths / 10, tenths % 10);
  }
  return buffer;
}
