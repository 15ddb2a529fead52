/* How long a stage keeps what its forward has saved of a microbatch: from the begin of F, in part
 * from the end of I, to the end of B or W; without a backward to the end of F. Said once, for the
 * simulator's memory, measured timelines, and the memory that the runtime lends to stages. The
 * planner has its own, whose answers these check. */
#ifndef IR_LIFETIMES_H
#define IR_LIFETIMES_H

#include "ir/action.h"

/* Whether a stage keeps anything after F. `trains`: the program has a backward at all. */
static inline bool weft_saves_for_backward(const struct weft_graph *graph, bool trains,
                                           uint32_t stage) {
  return trains && weft_graph_has_backward(graph, stage);
}

/* What an action of compute takes when it begins, and when it ends: negative if it gives back. */
struct weft_saved {
  double from_begin, from_end;
};

/* `whole` is the size that F saves, `after_i` what I leaves of it. */
static inline struct weft_saved weft_saved_by(struct weft_action action, double whole,
                                              double after_i, const struct weft_graph *graph,
                                              bool trains) {
  switch (action.op) {
    case WEFT_OP_F:
      return (struct weft_saved){whole,
                                 weft_saves_for_backward(graph, trains, action.stage) ? 0 : -whole};
    case WEFT_OP_B: return (struct weft_saved){0, -whole};
    case WEFT_OP_I: return (struct weft_saved){0, after_i - whole};
    case WEFT_OP_W: return (struct weft_saved){0, -after_i};
    default: return (struct weft_saved){0, 0};
  }
}

/* Whether nothing is kept when it has ended. */
static inline bool weft_ends_saved(uint32_t op, bool has_backward) {
  return op == WEFT_OP_F ? !has_backward : op == WEFT_OP_B || op == WEFT_OP_W;
}

#endif
