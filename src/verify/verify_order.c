/* Verify, structure: the order on each rank. What an action needs from its own
 * rank (its F, its I, the results of stages that feed it, its RECVs) must come
 * before it. Rows are scanned with the set of what has been done so far; an
 * overlap's parts run together, so none may need another. */
#include <assert.h>
#include <inttypes.h>

#include <weft/support.h>

#include "verify/verify_context.h"

struct order_check {
  struct weft_verify_context *context;
  uint8_t *done; /* sets, as context->exists */
};

/* The action is somewhere on the rank, but not done yet. What is nowhere has been
 * reported as missing. */
WEFT_GRAPH_INLINE bool comes_later(const struct order_check *check, const struct weft_graph *graph,
                                   struct weft_action action) {
  const uint64_t set = weft_own_set(check->context, graph, action);
  const uint8_t bit = weft_pair_bit(action.op);
  return set != WEFT_SET_NONE && (check->context->exists[set] & bit) != 0 &&
         (check->done[set] & bit) == 0;
}

/* Another op of the same stage and microbatch, likewise. */
static inline bool comes_later_here(const struct order_check *check, enum weft_op op,
                                    struct weft_action action) {
  return comes_later(check, NULL, weft_action_make(op, action.stage, action.microbatch));
}

WEFT_GRAPH_INLINE void check_own_stage(const struct order_check *check,
                                       const struct weft_location *at) {
  const struct weft_action action = *at->action;
  struct weft_findings *findings = &check->context->findings;
  if (weft_op_in(action.op, WEFT_OPS_BACKWARD) && comes_later_here(check, WEFT_OP_F, action)) {
    weft_findings_add(findings, WEFT_RULE_ORDER_BACKWARD, *at,
                      "precedes %uF%" PRIu32 ", whose activations it needs", action.stage,
                      action.microbatch);
  }
  if (action.op == WEFT_OP_W && comes_later_here(check, WEFT_OP_I, action)) {
    weft_findings_add(findings, WEFT_RULE_ORDER_WEIGHT, *at,
                      "precedes %uI%" PRIu32 "; the input gradient comes first", action.stage,
                      action.microbatch);
  }
}

/* Input from a stage of the same rank. */
static void check_neighbour(const struct order_check *check, const struct weft_location *at,
                            uint32_t producer) {
  const uint32_t mb = at->action->microbatch;
  const bool forward = at->action->op == WEFT_OP_F;
  const uint64_t pair = weft_pair_index(check->context, producer, mb);
  const uint8_t makes = weft_pair_bits(forward ? WEFT_OP_BIT(WEFT_OP_F) : WEFT_OPS_GRADIENT);
  if ((check->context->exists[pair] & makes) != 0 && (check->done[pair] & makes) == 0) {
    weft_findings_add(&check->context->findings, WEFT_RULE_ORDER_NEIGHBOUR, *at,
                      "precedes the %s of stage %" PRIu32 ", microbatch %" PRIu32
                      " on the same rank, which makes its input",
                      forward ? "F" : "B or I", producer, mb);
  }
}

/* Input from another rank, in a program with communication. */
WEFT_GRAPH_INLINE void check_receive(const struct order_check *check,
                                     const struct weft_graph *graph, const struct weft_location *at,
                                     uint32_t producer) {
  const struct weft_action action = *at->action;
  const bool forward = action.op == WEFT_OP_F;
  const struct weft_action recv = weft_action_transfer_in(
      graph, forward ? WEFT_OP_RECV_F : WEFT_OP_RECV_B, action.stage, producer, action.microbatch);
  const struct weft_action send = weft_action_transfer_in(
      graph, forward ? WEFT_OP_SEND_F : WEFT_OP_SEND_B, producer, action.stage, action.microbatch);
  struct weft_verify_context *context = check->context;
  if (comes_later(check, graph, recv)) {
    char text[32];
    weft_findings_add(&context->findings, WEFT_RULE_ORDER_RECEIVE, *at,
                      "precedes %s, which receives its input",
                      weft_action_format(&recv, text, sizeof text));
  } else if (!weft_action_exists(context, graph, recv) &&
             !weft_action_exists(context, graph, send)) {
    weft_findings_add(&context->findings, WEFT_RULE_COMM_MISSING, *at,
                      "its input comes from stage %" PRIu32 " on rank %" PRIu32
                      ", and no SEND and RECV transfer it; take out those that are there and let "
                      "lowering place all",
                      producer, context->owner[producer]);
  }
}

static void check_send(const struct order_check *check, const struct weft_location *at) {
  const struct weft_action action = *at->action;
  const uint64_t pair = weft_pair_index(check->context, action.stage, action.microbatch);
  const bool forward = action.op == WEFT_OP_SEND_F;
  const uint8_t makes = weft_pair_bits(forward ? WEFT_OP_BIT(WEFT_OP_F) : WEFT_OPS_GRADIENT);
  if ((check->done[pair] & makes) == 0) {
    weft_findings_add(&check->context->findings, WEFT_RULE_ORDER_SEND, *at,
                      "precedes the %s of its stage and microbatch, which makes the data",
                      forward ? "F" : "B or I");
  }
}

WEFT_GRAPH_INLINE void check_action(const struct order_check *check, const struct weft_graph *graph,
                                    const struct weft_location *at) {
  const struct weft_action action = *at->action;
  const struct weft_verify_context *context = check->context;
  if (weft_op_in(action.op, WEFT_OPS_SEND)) {
    check_send(check, at);
    return;
  }
  if (!weft_op_in(action.op, WEFT_OPS_COMPUTE)) {
    return;
  }
  check_own_stage(check, at);
  const uint32_t inputs = weft_action_input_count(graph, action, context->stage_count);
  for (uint32_t k = 0; k < inputs; k++) {
    const uint32_t producer = weft_action_input_at(graph, action, k);
    if (context->owner[producer] == at->rank) {
      check_neighbour(check, at, producer);
    } else if (weft_has_transfers(context) && context->owner[producer] != WEFT_RANK_NONE) {
      check_receive(check, graph, at, producer);
    }
  }
}

/* Only actions on their stage's rank are judged: the others have
 * been reported, and say nothing about order. */
static inline bool is_judged(const struct weft_verify_context *context,
                             const struct weft_location *at) {
  return weft_op_in(at->action->op, WEFT_OPS_PAIRED) && weft_in_range(context, *at->action) &&
         context->owner[at->action->stage] == at->rank;
}

WEFT_GRAPH_INLINE void check_row(const struct order_check *check, const struct weft_graph *graph,
                                 uint32_t rank) {
  const struct weft_program *program = check->context->program;
  struct weft_location at = {.rank = rank};
  for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1]; at.step++) {
    const uint64_t begin = i, end = i + weft_cell_records(&program->actions[i]);
    for (; i < end; i++) {
      at.action = &program->actions[i];
      if (is_judged(check->context, &at)) {
        check_action(check, graph, &at);
      }
    }
    for (i = begin; i < end; i++) {
      at.action = &program->actions[i];
      if (is_judged(check->context, &at)) {
        const uint64_t set = weft_own_set(check->context, graph, *at.action);
        if (set != WEFT_SET_NONE) {
          check->done[set] |= weft_pair_bit(at.action->op);
        }
      }
    }
  }
}

enum weft_status weft_verify_order(struct weft_verify_context *context) {
  assert(context->owner != NULL);
  WEFT_SCOPED_ARENA arena = {.allocator = context->allocator};
  const uint64_t sets =
      weft_set_count(context->graph, context->stage_count, context->microbatch_count);
  const struct order_check check = {.context = context,
                                    .done = weft_arena_allocate(&arena, sets, 1)};
  WEFT_TRY(weft_arena_status(&arena, context->error));
  for (uint32_t r = 0; r < context->program->rank_count; r++) {
    WEFT_TWICE(graph, context->graph, check_row(&check, graph, r));
  }
  return WEFT_OK;
}
