/* See diagnosis_text.h. Another process may have written a rank's status, so nothing here
 * relies on its values. */
#include "run/hang/diagnosis_text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "ir/action.h"

/* The names are part of the schema weft-hang/1. */
const char *weft_diagnosis_phase(uint32_t phase) {
  static const char *const names[WEFT_PHASE_COUNT] = {"away", "greeting", "compute", "receive",
                                                      "send", "done",     "failed"};
  return phase < WEFT_PHASE_COUNT ? names[phase] : "unknown";
}

const char *weft_diagnosis_flags(uint64_t flags) {
  if ((flags & WEFT_RANK_DEAD) != 0) {
    return "dead";
  }
  if ((flags & WEFT_RANK_STOPPED) != 0) {
    return "stopped";
  }
  return (flags & WEFT_RANK_SILENT) != 0 ? "silent" : NULL;
}

char *weft_diagnosis_action(struct weft_action action, char buffer[WEFT_DIAGNOSIS_WORD]) {
  if (action.op >= WEFT_OP_COUNT) {
    (void)snprintf(buffer, WEFT_DIAGNOSIS_WORD, "?");
  } else if (action.op == WEFT_OP_OVERLAP_F_B) {
    (void)snprintf(buffer, WEFT_DIAGNOSIS_WORD, "%s", weft_op_info(WEFT_OP_OVERLAP_F_B)->text);
  } else {
    if (!weft_op_in(action.op, WEFT_OPS_SEND | WEFT_OPS_RECV) ||
        weft_transfer_other(action) >= WEFT_STAGES_MAX) {
      action.parts = 0; /* no sub-actions follow it in memory, and there is no such stage */
    }
    (void)weft_action_format(&action, buffer, WEFT_DIAGNOSIS_WORD);
  }
  return buffer;
}

char *weft_diagnosis_place(const struct weft_rank_state *state, char buffer[WEFT_DIAGNOSIS_WORD]) {
  assert(state != NULL);
  char action[WEFT_DIAGNOSIS_WORD];
  const bool in_transfer = weft_op_in(state->action.op, WEFT_OPS_SEND | WEFT_OPS_RECV);
  buffer[0] = '\0';
  if (state->phase == WEFT_PHASE_HANDSHAKE) {
    (void)snprintf(buffer, WEFT_DIAGNOSIS_WORD, " in the handshake");
  } else if (state->action.op != WEFT_OP_IDLE) {
    (void)snprintf(buffer, WEFT_DIAGNOSIS_WORD, " %s %.32s", in_transfer ? "in" : "before",
                   weft_diagnosis_action(state->action, action));
  }
  return buffer;
}

uint64_t weft_diagnosis_elapsed(int64_t now, int64_t since) {
  return since < now ? (uint64_t)now - (uint64_t)since : 0;
}

char *weft_diagnosis_time(uint64_t elapsed, bool nanoseconds, char buffer[WEFT_DIAGNOSIS_WORD]) {
  if (nanoseconds) {
    const uint64_t tenths = elapsed / 100000000 + (elapsed % 100000000 >= 50000000);
    (void)snprintf(buffer, WEFT_DIAGNOSIS_WORD, "%" PRIu64 ".%" PRIu64 " s", tenths / 10,
                   tenths % 10);
  } else {
    (void)snprintf(buffer, WEFT_DIAGNOSIS_WORD, "%" PRIu64 " tick%s", elapsed,
                   elapsed == 1 ? "" : "s");
  }
  return buffer;
}
