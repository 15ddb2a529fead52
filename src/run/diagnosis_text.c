/* The words of stall reports: phases, actions, times. Boards may be anything at
 * all (another process writes them), so nothing here trusts what it is given. */
#include "run/diagnosis_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ir/action.h"

const char *weft_hang_phase_name(uint32_t phase) {
  static const char *const names[WEFT_PHASE_COUNT] = {"away", "greeting", "compute", "receive",
                                                      "send", "done",     "failed"};
  return phase < WEFT_PHASE_COUNT ? names[phase] : "unknown";
}

const char *weft_hang_flags_name(uint64_t flags) {
  if ((flags & WEFT_RANK_STOPPED) != 0) {
    return "stopped";
  }
  return (flags & WEFT_RANK_SILENT) != 0 ? "silent" : NULL;
}

char *weft_hang_action(struct weft_action action, char buffer[WEFT_DIAGNOSIS_WORD]) {
  if (action.op >= WEFT_OP_COUNT) {
    (void)snprintf(buffer, WEFT_DIAGNOSIS_WORD, "?");
  } else if (action.op == WEFT_OP_OVERLAP_F_B) {
    (void)snprintf(buffer, WEFT_DIAGNOSIS_WORD, "%s", weft_op_info(WEFT_OP_OVERLAP_F_B)->text);
  } else {
    action.parts = 0; /* none stand behind it */
    (void)weft_action_format(&action, buffer, WEFT_DIAGNOSIS_WORD);
  }
  return buffer;
}

struct weft_action weft_hang_action_of(uint64_t bits) {
  struct weft_action action;
  memcpy(&action, &bits, sizeof action);
  return action.op < WEFT_OP_COUNT ? action : weft_action_idle();
}

const char *weft_hang_preposition(struct weft_action action) {
  return weft_op_in(action.op, WEFT_OPS_SEND | WEFT_OPS_RECV) ? "in" : "before";
}

uint64_t weft_hang_elapsed(int64_t now, int64_t since) {
  return since < now ? (uint64_t)now - (uint64_t)since : 0;
}

char *weft_hang_time(uint64_t elapsed, bool nanoseconds, char buffer[WEFT_DIAGNOSIS_WORD]) {
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
