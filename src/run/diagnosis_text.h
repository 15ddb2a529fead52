/* The words that stall reports, dumps and explanations share. */
#ifndef RUN_DIAGNOSIS_TEXT_H
#define RUN_DIAGNOSIS_TEXT_H

#include "run/hang.h"

/* Room for any action ("65535REDUCE_GRAD", "65535SEND_F4294967295") or time. */
enum { WEFT_DIAGNOSIS_WORD = 48 };

/* "compute", "receive", ...; "unknown" beyond the last. */
const char *weft_hang_phase_name(uint32_t phase);

/* "stopped" or "silent", of a board's flags; NULL: nothing is known. */
const char *weft_hang_flags_name(uint64_t flags);

/* An action on its own; an OVERLAP_F_B has no parts here, so it is "OVERLAP_F_B".
 * "" for a bubble, "?" for what is no op. Returns buffer. */
char *weft_hang_action(struct weft_action action, char buffer[WEFT_DIAGNOSIS_WORD]);

/* The eight bytes of a board's action, and back. What is no op becomes IDLE. */
struct weft_action weft_hang_action_of(uint64_t bits);

/* Whether the rank stands inside a SEND or RECV, or before another action. */
const char *weft_hang_preposition(struct weft_action action);

/* How long ago `since` was; 0 when it lies ahead. */
uint64_t weft_hang_elapsed(int64_t now, int64_t since);

/* "31.2 s", or "31 ticks". Returns buffer. */
char *weft_hang_time(uint64_t elapsed, bool nanoseconds, char buffer[WEFT_DIAGNOSIS_WORD]);

/* A JSON string of text from anywhere: what cannot be shown becomes \xNN, as on a
 * terminal, and then quotes and backslashes are escaped. */
void weft_hang_add_string(struct weft_text *text, const char *string);

#endif
