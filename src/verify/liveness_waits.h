/* Who waits for whom where a run got stuck. */
#ifndef VERIFY_LIVENESS_WAITS_H
#define VERIFY_LIVENESS_WAITS_H

#include "ir/machine.h"
#include "verify/verify_context.h"

/* A run of the machine that has got stuck, or not. */
struct weft_liveness_run {
  struct weft_verify_context *context;
  struct weft_arena *arena; /* for what is needed as long as the run */
  struct weft_machine machine;
};

enum weft_wait_reason {
  WEFT_WAIT_NOT_RECEIVED, /* a SEND: its message has not been received */
  WEFT_WAIT_FULL,         /* a SEND: its channel is full */
  WEFT_WAIT_NOT_SENT,     /* a RECV: its message has not been sent */
  WEFT_WAIT_BEHIND,       /* a RECV: its message is on the channel behind another */
  WEFT_WAIT_NOT_MADE,     /* compute of a table: its input has not been made */
  WEFT_WAIT_INPUT,        /* compute beside queues: its input has not been received */
  WEFT_WAIT_ENQUEUED      /* a transfer in a queue: the compute before it is not done */
};

/* What a stuck agent needs: another one to do something. */
struct weft_wait {
  uint32_t agent;
  struct weft_action action; /* what that one must do */
  enum weft_wait_reason reason;
  struct weft_action older; /* WEFT_WAIT_BEHIND: the SEND of the message before it */
};

/* Goes through the waits of an agent; begins as {0}. */
struct weft_wait_cursor {
  uint32_t part, input;
  bool past; /* the only one has been reported */
};

/* The next wait of a stuck agent; false: no more. There is at least one, and only compute with
 * several inputs has more. */
bool weft_wait_next(const struct weft_liveness_run *run, uint32_t agent,
                    struct weft_wait_cursor *cursor, struct weft_wait *wait);

/* A deadlock for each cycle of agents that are stuck. False when out of memory. */
bool weft_report_deadlocks(struct weft_liveness_run *run);

#endif
