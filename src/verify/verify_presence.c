/* Verify, structure: what is there. Ranges, one rank per stage, duplicates,
 * overlap parts, coverage, and the pairing of sends and receives. Fills
 * context->exists, on which the later parts rest. */
#include <assert.h>
#include <inttypes.h>

#include "verify/verify_context.h"

/* ---- Row by row: each action by itself ---- */

static void check_overlap(struct weft_verify_context *context, const struct weft_location *at) {
  const struct weft_action *cell = at->action;
  uint32_t forwards = 0, backwards = 0;
  for (uint32_t k = 1; k <= cell->parts; k++) {
    forwards += cell[k].op == WEFT_OP_F;
    backwards += cell[k].op == WEFT_OP_B;
  }
  if (cell->parts != 2 || forwards != 1 || backwards != 1 || cell[1].stage == cell[2].stage) {
    weft_findings_add(&context->findings, WEFT_RULE_OVERLAP_PARTS, *at,
                      "an overlap must be one F and one B of different stages");
  }
}

/* Stage or microbatch do not exist. */
static void report_range(struct weft_verify_context *context, const struct weft_location *at) {
  const struct weft_action action = *at->action;
  if (action.stage >= context->stage_count) {
    weft_findings_add(&context->findings, WEFT_RULE_RANGE_STAGE, *at,
                      "stage %u is out of range: the pipeline's stages are 0 to %" PRIu32,
                      action.stage, context->stage_count - 1);
  } else {
    weft_findings_add(&context->findings, WEFT_RULE_RANGE_MICROBATCH, *at,
                      "microbatch %" PRIu32
                      " is out of range: the table's microbatches are 0 to %" PRIu32,
                      action.microbatch, context->microbatch_count - 1);
  }
}

/* On another rank than the stage's. */
static void report_placement(struct weft_verify_context *context, const struct weft_location *at) {
  const struct weft_action action = *at->action;
  const uint32_t owner = context->owner[action.stage], rank = at->rank;
  if (weft_op_in(action.op, WEFT_OPS_COMPUTE)) {
    weft_findings_add(&context->findings, WEFT_RULE_PLACEMENT_SPLIT, *at,
                      "stage %u is computed on rank %" PRIu32 " here, and on rank %" PRIu32
                      " elsewhere; a stage lives on one rank",
                      action.stage, rank, owner);
  } else {
    weft_findings_add(&context->findings, WEFT_RULE_PLACEMENT_RANK, *at,
                      "stage %u lives on rank %" PRIu32 ", so its %s cannot be on rank %" PRIu32,
                      action.stage, owner, weft_op_info((enum weft_op)action.op)->text, rank);
  }
}

WEFT_GRAPH_INLINE void check_once(struct weft_verify_context *context,
                                  const struct weft_graph *graph, const struct weft_location *at) {
  const uint64_t set = weft_own_set(context, graph, *at->action);
  const uint8_t bit = weft_pair_bit(at->action->op);
  if (set == WEFT_SET_NONE) { /* it has no edge, which is found later */
    return;
  }
  if ((context->exists[set] & bit) != 0) {
    weft_findings_add(&context->findings, WEFT_RULE_DUPLICATE, *at,
                      "this action is in the program already; take one of them out");
  }
  context->exists[set] |= bit;
}

WEFT_GRAPH_INLINE void check_record(void *of, const struct weft_graph *graph,
                                    const struct weft_location *at) {
  struct weft_verify_context *context = of;
  const struct weft_action action = *at->action;
  if (action.op == WEFT_OP_OVERLAP_F_B) {
    check_overlap(context, at);
    return;
  }
  if (action.op == WEFT_OP_IDLE) {
    return;
  }
  if (!weft_in_range(context, action)) {
    report_range(context, at);
    return;
  }
  const uint32_t owner = context->owner[action.stage];
  if (owner != at->rank && owner != WEFT_RANK_NONE) {
    report_placement(context, at);
  }
  if (weft_op_in(action.op, WEFT_OPS_PAIRED)) {
    check_once(context, graph, at);
  }
}

/* ---- Pair by pair: coverage ---- */

/* An action of this (stage, microbatch) to point at, or the owner's row. */
static struct weft_location find_location(const struct weft_verify_context *context, uint32_t ops,
                                          uint32_t stage, uint32_t microbatch) {
  const struct weft_program *program = context->program;
  const uint32_t owner = context->owner[stage];
  if (owner == WEFT_RANK_NONE) {
    return (struct weft_location){0};
  }
  for (uint64_t i = program->row_begin[owner]; i < program->row_begin[owner + 1]; i++) {
    const struct weft_action action = program->actions[i];
    if (weft_op_in(action.op, ops) && action.stage == stage && action.microbatch == microbatch) {
      return weft_location_of(program, owner, i);
    }
  }
  return (struct weft_location){.rank = owner};
}

/* The row is searched only for what is kept. */
static struct weft_location location_if_kept(const struct weft_verify_context *context,
                                             enum weft_rule rule, uint32_t stage,
                                             uint32_t microbatch) {
  const uint32_t ops = rule == WEFT_RULE_COVERAGE_FROZEN ? WEFT_OPS_BACKWARD : WEFT_OPS_COMPUTE;
  return context->findings.count[rule] < context->findings.max
             ? find_location(context, ops, stage, microbatch)
             : (struct weft_location){0};
}

static void check_backward(struct weft_verify_context *context, uint32_t stage, uint32_t mb,
                           uint32_t has) {
  struct weft_findings *findings = &context->findings;
  const bool has_b = weft_op_in(WEFT_OP_B, has), has_i = weft_op_in(WEFT_OP_I, has),
             has_w = weft_op_in(WEFT_OP_W, has);
  if (has_b && (has_i || has_w)) {
    weft_findings_add(findings, WEFT_RULE_COVERAGE_MIXED,
                      location_if_kept(context, WEFT_RULE_COVERAGE_MIXED, stage, mb),
                      "stage %" PRIu32 ", microbatch %" PRIu32
                      " has a full backward B and also %s; use B, or I and W",
                      stage, mb,
                      has_i && has_w ? "I and W"
                      : has_i        ? "I"
                                     : "W");
  } else if (!has_b && !(has_i && has_w)) {
    weft_findings_add(findings, WEFT_RULE_COVERAGE_BACKWARD,
                      location_if_kept(context, WEFT_RULE_COVERAGE_BACKWARD, stage, mb),
                      "stage %" PRIu32 ", microbatch %" PRIu32 " has no %s", stage, mb,
                      has_i   ? "W, though it has I"
                      : has_w ? "I, though it has W"
                              : "backward: neither B, nor I and W");
  }
}

/* A stage that no gradient comes to: whatever is there of a backward is wrong. */
static void check_frozen(struct weft_verify_context *context, uint32_t stage, uint32_t mb,
                         uint32_t has) {
  if ((has & WEFT_OPS_BACKWARD) != 0) {
    weft_findings_add(&context->findings, WEFT_RULE_COVERAGE_FROZEN,
                      location_if_kept(context, WEFT_RULE_COVERAGE_FROZEN, stage, mb),
                      "stage %" PRIu32
                      " is frozen: none of its edges brings it a gradient, so that "
                      "microbatch %" PRIu32
                      " has no backward there; take it out, or let an edge "
                      "from stage %" PRIu32 " carry gradients",
                      stage, mb, stage);
  }
}

static void check_stage_coverage(struct weft_verify_context *context, uint32_t stage) {
  const uint32_t full = WEFT_OP_BIT(WEFT_OP_F) | WEFT_OP_BIT(WEFT_OP_B);
  const uint32_t full_split = WEFT_OPS_COMPUTE & ~WEFT_OP_BIT(WEFT_OP_B);
  const bool frozen = !weft_graph_has_backward(context->graph, stage);
  const uint8_t *exists = &context->exists[weft_pair_index(context, stage, 0)];
  if (context->owner[stage] == WEFT_RANK_NONE) {
    weft_findings_add(&context->findings, WEFT_RULE_COVERAGE_FORWARD, (struct weft_location){0},
                      "no rank computes stage %" PRIu32, stage);
    return;
  }
  for (uint32_t mb = 0; mb < context->microbatch_count; mb++) {
    const uint32_t has = (uint32_t)exists[mb] << WEFT_OP_F & WEFT_OPS_COMPUTE;
    if (!frozen && (has == full || has == full_split)) {
      continue;
    }
    if (!weft_op_in(WEFT_OP_F, has)) {
      weft_findings_add(&context->findings, WEFT_RULE_COVERAGE_FORWARD,
                        location_if_kept(context, WEFT_RULE_COVERAGE_FORWARD, stage, mb),
                        "stage %" PRIu32 ", microbatch %" PRIu32 " has no F", stage, mb);
    }
    if (frozen) {
      check_frozen(context, stage, mb, has);
    } else if (weft_has_backward(context)) {
      check_backward(context, stage, mb, has);
    }
  }
}

/* ---- Pairing of sends and receives ---- */

/* No boundary of the chain, or edge of the graph, goes where a transfer does. */
static void report_boundary(struct weft_verify_context *context, const struct weft_location *at) {
  const struct weft_action action = *at->action;
  const bool is_send = weft_op_in(action.op, WEFT_OPS_SEND);
  const bool forward = action.op == WEFT_OP_SEND_F || action.op == WEFT_OP_RECV_F;
  const bool up = action.op == WEFT_OP_SEND_F || action.op == WEFT_OP_RECV_B;
  const uint32_t other = weft_transfer_other(action);
  const uint32_t from = up ? action.stage : other, to = up ? other : action.stage;
  struct weft_findings *findings = &context->findings;
  if (action.skip == 0 && other >= context->stage_count) {
    weft_findings_add(findings, WEFT_RULE_COMM_BOUNDARY, *at, "stage %u has no %s stage to %s",
                      action.stage, up ? "next" : "previous", is_send ? "send to" : "receive from");
  } else if (context->graph == NULL) {
    weft_findings_add(findings, WEFT_RULE_COMM_BOUNDARY, *at,
                      "no edge goes from stage %" PRIu32 " to stage %" PRIu32
                      ": without a graph the pipeline is a chain, where every stage feeds the next "
                      "one alone; a first row such as #graph,0>1,1>2,0>2 lists other edges",
                      from, to);
  } else if (!forward && weft_graph_find(context->graph, from, to) != WEFT_EDGE_NONE) {
    weft_findings_add(findings, WEFT_RULE_COMM_BOUNDARY, *at,
                      "the edge from stage %" PRIu32 " to stage %" PRIu32
                      " carries no gradient; take this out, or write %" PRIu32 ">%" PRIu32
                      " without an F in the row #graph",
                      from, to, from, to);
  } else {
    weft_findings_add(findings, WEFT_RULE_COMM_BOUNDARY, *at,
                      "the graph has no edge from stage %" PRIu32 " to stage %" PRIu32
                      "; take this out, or add %" PRIu32 ">%" PRIu32 " to the row #graph",
                      from, to, from, to);
  }
}

WEFT_GRAPH_INLINE void check_transfer(void *of, const struct weft_graph *graph,
                                      const struct weft_location *at) {
  struct weft_verify_context *context = of;
  const struct weft_action action = *at->action;
  if (!weft_op_in(action.op, WEFT_OPS_SEND | WEFT_OPS_RECV) || !weft_in_range(context, action)) {
    return;
  }
  const bool is_send = weft_op_in(action.op, WEFT_OPS_SEND);
  struct weft_action partner;
  if (weft_channel_in(graph, context->stage_count, action) == WEFT_EDGE_NONE ||
      !weft_action_partner(action, context->stage_count, &partner)) {
    report_boundary(context, at);
    return;
  }
  const uint32_t other = context->owner[partner.stage];
  if (other == at->rank) {
    weft_findings_add(&context->findings, WEFT_RULE_COMM_SELF, *at,
                      "stages %u and %u both live on rank %" PRIu32
                      "; data between them is handed over without %s",
                      action.stage, partner.stage, other, is_send ? "a send" : "a receive");
    return;
  }
  if (!weft_action_exists(context, graph, partner)) {
    char text[32];
    weft_findings_add(&context->findings, is_send ? WEFT_RULE_PAIR_RECV : WEFT_RULE_PAIR_SEND, *at,
                      "its %s on rank %" PRIu32 " is missing: %s",
                      weft_action_format(&partner, text, sizeof text), other,
                      is_send ? "the message is never received"
                              : "the message is never sent, and the rank waits forever");
  }
}

/* Out of line: each keeps its own in registers. */
static __attribute__((noinline)) void check_records(struct weft_verify_context *context) {
  WEFT_TWICE(graph, context->graph,
             weft_visit_rows(context->program, graph, false, check_record, context));
}

static __attribute__((noinline)) void check_transfers(struct weft_verify_context *context) {
  WEFT_TWICE(graph, context->graph,
             weft_visit_rows(context->program, graph, true, check_transfer, context));
}

void weft_verify_presence(struct weft_verify_context *context) {
  assert(context->program != NULL && context->owner != NULL && context->exists != NULL);
  check_records(context);
  for (uint32_t stage = 0; stage < context->stage_count; stage++) {
    check_stage_coverage(context, stage);
  }
  if (weft_has_transfers(context)) {
    check_transfers(context);
  }
}
