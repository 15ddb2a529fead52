/* Phases, actions and times as text, for stall reports, dumps and explanations. */
#ifndef RUN_DIAGNOSIS_TEXT_H
#define RUN_DIAGNOSIS_TEXT_H

#include "run/hang/hang.h"

/* Room for any action ("65535REDUCE_GRAD", "65535SEND_F4294967295") or time. */
enum { WEFT_DIAGNOSIS_WORD = 48 };

/* A phase in a dump: "compute", "receive", ...; "unknown" after the last. */
const char *weft_diagnosis_phase(uint32_t phase);

/* "stopped" or "silent", from a rank's flags; NULL: nothing is known. */
const char *weft_diagnosis_flags(uint64_t flags);

/* An action without its sub-actions, so an overlap is "OVERLAP_F_B". "" for IDLE, "?" for what
 * is not an op. Returns buffer. */
char *weft_diagnosis_action(struct weft_action action, char buffer[WEFT_DIAGNOSIS_WORD]);

/* " in 2RECV_F5", " before 2F5", " in the handshake", or "": where a rank waits. */
char *weft_diagnosis_place(const struct weft_rank_state *state, char buffer[WEFT_DIAGNOSIS_WORD]);

/* Time from `since` to `now`; 0 when it is in the future. */
uint64_t weft_diagnosis_elapsed(int64_t now, int64_t since);

/* "31.2 s", or "31 ticks". Returns buffer. */
char *weft_diagnosis_time(uint64_t elapsed, bool nanoseconds, char buffer[WEFT_DIAGNOSIS_WORD]);

#endif
