/* Where a rank stands, for blaming: what is read off a status or out of a
 * picture, without its recent actions. */
#ifndef RUN_WAIT_GRAPH_H
#define RUN_WAIT_GRAPH_H

#include "run/hang.h"

struct weft_rank_state {
  enum weft_rank_phase phase;
  uint32_t peer;
  uint64_t step;
  uint64_t cell;
  struct weft_action action;
  struct weft_action wants;
  int64_t since;
  bool has_acted; /* an action of its has ended */
  uint64_t flags; /* WEFT_BOARD_... */
};

/* One relaxed load per field. */
void weft_rank_state_read(const struct weft_rank_status *status, struct weft_rank_state *stand);

/* Whether now() counts nanoseconds; else virtual ticks. */
bool weft_hang_is_real_time(const struct weft_transport *transport);

/* What following the waits from `reporter` leads to. */
struct weft_wait_graph_end {
  uint32_t culprit;      /* where it ends; the circle's smallest rank */
  uint32_t cycle_length; /* ranks on the circle; 0: none */
  uint32_t moves;        /* from the reporter to the culprit, or to the circle's first rank */
};

/* As weft_hang_diagnose(), and how it came to it. */
struct weft_wait_graph_end weft_wait_graph_follow(const struct weft_hang *hang, uint32_t reporter,
                                                  struct weft_failure *failure);

/* Calls `each` for the members of the verdict's circle, from its smallest rank
 * round. */
void weft_wait_graph_cycle(const struct weft_hang *hang, const struct weft_wait_graph_end *verdict,
                           void (*each)(void *context, uint32_t rank), void *context);

#endif
