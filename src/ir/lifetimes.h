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

/* What an action takes when it begins; `whole` is the size that F saves. */
static inline double weft_saved_from_begin(uint32_t op, double whole) {
  return op == WEFT_OP_F ? whole : 0;
}

/* What it takes when it ends, so negative; `after_i` is the size that I leaves. */
static inline double weft_saved_from_end(uint32_t op, double whole, double after_i,
                                         bool has_backward) {
  switch (op) {
    case WEFT_OP_F: return has_backward ? 0 : -whole;
    case WEFT_OP_B: return -whole;
    case WEFT_OP_I: return after_i - whole;
    case WEFT_OP_W: return -after_i;
    default: return 0;
  }
}

/* Whether nothing is kept when it has ended. */
static inline bool weft_ends_saved(uint32_t op, bool has_backward) {
  return op == WEFT_OP_F ? !has_backward : op == WEFT_OP_B || op == WEFT_OP_W;
}

#endif
