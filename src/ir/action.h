/* Actions in the hot loops: constructors, classes of ops, and the data
 * dependencies, written once and used by lowering, verification, dry run,
 * simulation and execution. Inline because they run once per action
 * over hundreds of millions of actions. */
#ifndef IR_ACTION_H
#define IR_ACTION_H

#include <string.h>

#include <weft/ir.h>

static inline struct weft_action weft_action_make(enum weft_op op, uint32_t stage,
                                                  uint32_t microbatch) {
  return (struct weft_action){
      .op = (uint8_t)op, .parts = 0, .stage = (uint16_t)stage, .microbatch = microbatch};
}

static inline struct weft_action weft_action_idle(void) {
  return (struct weft_action){.op = WEFT_OP_IDLE};
}

static inline struct weft_action weft_action_overlap(uint32_t parts) {
  return (struct weft_action){.op = WEFT_OP_OVERLAP_F_B, .parts = (uint8_t)parts};
}

static inline bool weft_action_equal(struct weft_action a, struct weft_action b) {
  return memcmp(&a, &b, sizeof a) == 0;
}

/* Sets of ops as bit masks. */
#define WEFT_OP_BIT(op) (1u << (op))
#define WEFT_OPS_COMPUTE weft_ops_of_kind(WEFT_KIND_COMPUTE)
#define WEFT_OPS_SEND weft_ops_of_kind(WEFT_KIND_SEND)
#define WEFT_OPS_RECV weft_ops_of_kind(WEFT_KIND_RECV)
#define WEFT_OPS_SHARD weft_ops_of_kind(WEFT_KIND_SHARD)

/* The ops of a kind, from the op table; a constant after inlining. */
static inline uint32_t weft_ops_of_kind(enum weft_op_kind kind) {
  return 0
#define WEFT_OP(NAME, text, KIND, ...) \
  | (kind == WEFT_KIND_##KIND ? WEFT_OP_BIT(WEFT_OP_##NAME) : 0)
#include "ir/ops.def"
#undef WEFT_OP
      ;
}

/* Ops whose result crosses to the neighbour stage: F downwards, B and I upwards. */
#define WEFT_OPS_GRADIENT (WEFT_OP_BIT(WEFT_OP_B) | WEFT_OP_BIT(WEFT_OP_I))

/* All of the backward. */
#define WEFT_OPS_BACKWARD (WEFT_OPS_GRADIENT | WEFT_OP_BIT(WEFT_OP_W))

static inline bool weft_op_in(uint32_t op, uint32_t set) { return (set >> op) & 1u; }

/* Records of the cell that starts at `action`. */
static inline uint32_t weft_cell_records(const struct weft_action *action) {
  return 1u + action->parts;
}

/* Whether an action consumes what a neighbour stage made, and which stage that
 * is: F of stage s consumes the activation of s-1, B and I the gradient of s+1. */
static inline bool weft_action_input(struct weft_action action, uint32_t stage_count,
                                     uint32_t *producer_stage) {
  if (action.op == WEFT_OP_F && action.stage > 0) {
    *producer_stage = action.stage - 1u;
    return true;
  }
  if (weft_op_in(action.op, WEFT_OPS_GRADIENT) && action.stage + 1u < stage_count) {
    *producer_stage = action.stage + 1u;
    return true;
  }
  return false;
}

/* The stage that consumes what the action made, likewise. */
static inline bool weft_action_output(struct weft_action action, uint32_t stage_count,
                                      uint32_t *consumer_stage) {
  if (action.op == WEFT_OP_F && action.stage + 1u < stage_count) {
    *consumer_stage = action.stage + 1u;
    return true;
  }
  if (weft_op_in(action.op, WEFT_OPS_GRADIENT) && action.stage > 0) {
    *consumer_stage = action.stage - 1u;
    return true;
  }
  return false;
}

/* The other end of a transfer: SEND_F of s <-> RECV_F of s+1, SEND_B of s <->
 * RECV_B of s-1. False where that stage does not exist. */
static inline bool weft_action_partner(struct weft_action action, uint32_t stage_count,
                                       struct weft_action *partner) {
  uint32_t stage = action.stage;
  uint8_t op;
  switch (action.op) {
    case WEFT_OP_SEND_F:
      stage = stage + 1u;
      op = WEFT_OP_RECV_F;
      break;
    case WEFT_OP_RECV_F:
      stage = stage - 1u;
      op = WEFT_OP_SEND_F;
      break;
    case WEFT_OP_SEND_B:
      stage = stage - 1u;
      op = WEFT_OP_RECV_B;
      break;
    case WEFT_OP_RECV_B:
      stage = stage + 1u;
      op = WEFT_OP_SEND_B;
      break;
    default: return false;
  }
  if (stage >= stage_count) { /* also "stage -1" */
    return false;
  }
  *partner =
      (struct weft_action){.op = op, .stage = (uint16_t)stage, .microbatch = action.microbatch};
  return true;
}

#endif
