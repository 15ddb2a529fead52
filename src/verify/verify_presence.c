/* Verify, structure: what is there. Ranges, one rank per stage, duplicates,
 * overlap parts, coverage, and the pairing of sends and receives. Fills
 * context->exists, on which the later parts rest. */
#include <assert.h>
#include <inttypes.h>

#include "verify/verify_context.h"

/* ---- Row by row: each action by itself ---- */

static void check_overlap(struct weft_verify_context *context, struct weft_place place) {
  const struct weft_action *cell = place.action;
  uint32_t forwards = 0, backwards = 0;
  for (uint32_t k = 1; k <= cell->parts; k++) {
    forwards += cell[k].op == WEFT_OP_F;
    backwards += cell[k].op == WEFT_OP_B;
  }
  if (cell->parts != 2 || forwards != 1 || backwards != 1 || cell[1].stage == cell[2].stage) {
    weft_findings_add(&context->findings, WEFT_RULE_OVERLAP_PARTS, place,
                      "an overlap must be one F and one B of different stages");
  }
}

/* Stage or microbatch do not exist. */
static void report_range(struct weft_verify_context *context, const struct weft_visit *visit) {
  const struct weft_action action = visit->action;
  if (action.stage >= context->stage_count) {
    weft_findings_add(&context->findings, WEFT_RULE_RANGE_STAGE, visit->place,
                      "stage %u is out of range: the pipeline's stages are 0 to %" PRIu32,
                      action.stage, context->stage_count - 1);
  } else {
    weft_findings_add(&context->findings, WEFT_RULE_RANGE_MICROBATCH, visit->place,
                      "microbatch %" PRIu32
                      " is out of range: the table's microbatches are 0 to %" PRIu32,
                      action.microbatch, context->microbatch_count - 1);
  }
}

/* On another rank than the stage's. */
static void report_placement(struct weft_verify_context *context, const struct weft_visit *visit) {
  const struct weft_action action = visit->action;
  const uint32_t owner = context->owner[action.stage], rank = visit->place.rank;
  if (weft_op_in(action.op, WEFT_OPS_COMPUTE)) {
    weft_findings_add(&context->findings, WEFT_RULE_PLACEMENT_SPLIT, visit->place,
                      "stage %u is computed on rank %" PRIu32 " here, and on rank %" PRIu32
                      " elsewhere; a stage lives on one rank",
                      action.stage, rank, owner);
  } else {
    weft_findings_add(&context->findings, WEFT_RULE_PLACEMENT_RANK, visit->place,
                      "stage %u lives on rank %" PRIu32 ", so its %s cannot be on rank %" PRIu32,
                      action.stage, owner, weft_op_info((enum weft_op)action.op)->text, rank);
  }
}

WEFT_GRAPH_INLINE void check_once(struct weft_verify_context *context,
                                  const struct weft_graph *graph, const struct weft_visit *visit) {
  const uint64_t set = weft_own_set(context, graph, visit->action);
  const uint8_t bit = weft_pair_bit(visit->action.op);
  if (set == WEFT_SET_NONE) { /* it has no edge, which is found later */
    return;
  }
  if ((context->exists[set] & bit) != 0) {
    weft_findings_add(&context->findings, WEFT_RULE_DUPLICATE, visit->place,
                      "this action is in the program already; take one of them out");
  }
  context->exists[set] |= bit;
}

WEFT_GRAPH_INLINE void visit(struct weft_verify_context *context, const struct weft_graph *graph,
                             const struct weft_visit *at) {
  if (at->action.op == WEFT_OP_OVERLAP_F_B) {
    check_overlap(context, at->place);
    return;
  }
  if (at->action.op == WEFT_OP_IDLE) {
    return;
  }
  if (!weft_in_range(context, at->action)) {
    report_range(context, at);
    return;
  }
  const uint32_t owner = context->owner[at->action.stage];
  if (owner != at->place.rank && owner != WEFT_RANK_NONE) {
    report_placement(context, at);
  }
  if (weft_op_in(at->action.op, WEFT_OPS_PAIRED)) {
    check_once(context, graph, at);
  }
}

WEFT_GRAPH_INLINE void visit_rows(struct weft_verify_context *context,
                                  const struct weft_graph *graph) {
  const struct weft_program *program = context->program;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    struct weft_visit at = {.place = {.rank = r}};
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; at.place.step++) {
      const uint32_t records = weft_cell_records(&program->actions[i]);
      for (uint32_t k = 0; k < records; k++) {
        at.place.action = &program->actions[i + k];
        at.action = program->actions[i + k];
        visit(context, graph, &at);
      }
      i += records;
    }
  }
}

/* ---- Pair by pair: coverage ---- */

enum { HAS_F = 1 << 0, HAS_B = 1 << 1, HAS_I = 1 << 2, HAS_W = 1 << 3 };

/* An action of this (stage, microbatch) to point at, or the owner's row. */
static struct weft_place place_of_pair(const struct weft_verify_context *context, uint32_t ops,
                                       uint32_t stage, uint32_t microbatch) {
  const struct weft_program *program = context->program;
  const uint32_t owner = context->owner[stage];
  if (owner == WEFT_RANK_NONE) {
    return (struct weft_place){0};
  }
  for (uint64_t i = program->row_begin[owner]; i < program->row_begin[owner + 1]; i++) {
    const struct weft_action action = program->actions[i];
    if (weft_op_in(action.op, ops) && action.stage == stage && action.microbatch == microbatch) {
      return weft_place_of(program, owner, i);
    }
  }
  return (struct weft_place){.rank = owner};
}

/* Finding the place costs a walk over the row: only for what is kept. */
static struct weft_place place_if_kept(const struct weft_verify_context *context,
                                       enum weft_rule rule, uint32_t stage, uint32_t microbatch) {
  const uint32_t ops = rule == WEFT_RULE_COVERAGE_FROZEN ? WEFT_OPS_BACKWARD : WEFT_OPS_COMPUTE;
  return context->findings.count[rule] < context->findings.max
             ? place_of_pair(context, ops, stage, microbatch)
             : (struct weft_place){0};
}

static void check_backward(struct weft_verify_context *context, uint32_t stage, uint32_t mb,
                           unsigned has) {
  struct weft_findings *findings = &context->findings;
  if ((has & HAS_B) != 0 && (has & (HAS_I | HAS_W)) != 0) {
    weft_findings_add(findings, WEFT_RULE_COVERAGE_MIXED,
                      place_if_kept(context, WEFT_RULE_COVERAGE_MIXED, stage, mb),
                      "stage %" PRIu32 ", microbatch %" PRIu32
                      " has a full backward B and also %s; use B, or I and W",
                      stage, mb,
                      (has & HAS_I) == 0   ? "W"
                      : (has & HAS_W) == 0 ? "I"
                                           : "I and W");
  } else if ((has & HAS_B) == 0 && (has & (HAS_I | HAS_W)) != (HAS_I | HAS_W)) {
    const char *missing = (has & HAS_I) != 0   ? "W, though it has I"
                          : (has & HAS_W) != 0 ? "I, though it has W"
                                               : "backward: neither B, nor I and W";
    weft_findings_add(findings, WEFT_RULE_COVERAGE_BACKWARD,
                      place_if_kept(context, WEFT_RULE_COVERAGE_BACKWARD, stage, mb),
                      "stage %" PRIu32 ", microbatch %" PRIu32 " has no %s", stage, mb, missing);
  }
}

/* A stage that no gradient comes to: whatever is there of a backward is wrong. */
static void check_frozen(struct weft_verify_context *context, uint32_t stage, uint32_t mb,
                         unsigned has) {
  if ((has & (HAS_B | HAS_I | HAS_W)) != 0) {
    weft_findings_add(&context->findings, WEFT_RULE_COVERAGE_FROZEN,
                      place_if_kept(context, WEFT_RULE_COVERAGE_FROZEN, stage, mb),
                      "stage %" PRIu32
                      " is frozen: none of its edges brings it a gradient, so that "
                      "microbatch %" PRIu32
                      " has no backward there; take it out, or let an edge "
                      "from stage %" PRIu32 " carry gradients",
                      stage, mb, stage);
  }
}

static void check_stage_coverage(struct weft_verify_context *context, uint32_t stage) {
  const unsigned full_split = HAS_F | HAS_I | HAS_W, full = HAS_F | HAS_B;
  const bool frozen = !weft_graph_has_backward(context->graph, stage);
  const uint8_t *exists = &context->exists[weft_pair_index(context, stage, 0)];
  if (context->owner[stage] == WEFT_RANK_NONE) {
    weft_findings_add(&context->findings, WEFT_RULE_COVERAGE_FORWARD, (struct weft_place){0},
                      "no rank computes stage %" PRIu32, stage);
    return;
  }
  for (uint32_t mb = 0; mb < context->microbatch_count; mb++) {
    const unsigned has = exists[mb] & 0xfu;
    if (!frozen && (has == full || has == full_split)) {
      continue;
    }
    if ((has & HAS_F) == 0) {
      weft_findings_add(&context->findings, WEFT_RULE_COVERAGE_FORWARD,
                        place_if_kept(context, WEFT_RULE_COVERAGE_FORWARD, stage, mb),
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
static void report_boundary(struct weft_verify_context *context, const struct weft_visit *at) {
  const struct weft_action action = at->action;
  const bool is_send = weft_op_in(action.op, WEFT_OPS_SEND);
  const bool forward = action.op == WEFT_OP_SEND_F || action.op == WEFT_OP_RECV_F;
  const bool up = action.op == WEFT_OP_SEND_F || action.op == WEFT_OP_RECV_B;
  const uint32_t other = weft_transfer_other(action);
  const uint32_t from = up ? action.stage : other, to = up ? other : action.stage;
  struct weft_findings *findings = &context->findings;
  if (action.skip == 0 && other >= context->stage_count) {
    weft_findings_add(findings, WEFT_RULE_COMM_BOUNDARY, at->place,
                      "stage %u has no %s stage to %s", action.stage, up ? "next" : "previous",
                      is_send ? "send to" : "receive from");
  } else if (context->graph == NULL) {
    weft_findings_add(findings, WEFT_RULE_COMM_BOUNDARY, at->place,
                      "no edge goes from stage %" PRIu32 " to stage %" PRIu32
                      ": without a graph the pipeline is a chain, where every stage feeds the next "
                      "one alone; a first row such as #graph,0>1,1>2,0>2 lists other edges",
                      from, to);
  } else if (!forward && weft_graph_find(context->graph, from, to) != WEFT_EDGE_NONE) {
    weft_findings_add(findings, WEFT_RULE_COMM_BOUNDARY, at->place,
                      "the edge from stage %" PRIu32 " to stage %" PRIu32
                      " carries no gradient; take this out, or write %" PRIu32 ">%" PRIu32
                      " without an F in the row #graph",
                      from, to, from, to);
  } else {
    weft_findings_add(findings, WEFT_RULE_COMM_BOUNDARY, at->place,
                      "the graph has no edge from stage %" PRIu32 " to stage %" PRIu32
                      "; take this out, or add %" PRIu32 ">%" PRIu32 " to the row #graph",
                      from, to, from, to);
  }
}

WEFT_GRAPH_INLINE void check_transfer(struct weft_verify_context *context,
                                      const struct weft_graph *graph, const struct weft_visit *at) {
  const struct weft_action action = at->action;
  const bool is_send = weft_op_in(action.op, WEFT_OPS_SEND);
  struct weft_action partner;
  if (weft_channel_in(graph, context->stage_count, action) == WEFT_EDGE_NONE ||
      !weft_action_partner(action, context->stage_count, &partner)) {
    report_boundary(context, at);
    return;
  }
  const uint32_t other = context->owner[partner.stage];
  if (other == at->place.rank) {
    weft_findings_add(&context->findings, WEFT_RULE_COMM_SELF, at->place,
                      "stages %u and %u both live on rank %" PRIu32
                      "; data between them is handed over without %s",
                      action.stage, partner.stage, other, is_send ? "a send" : "a receive");
    return;
  }
  if (!weft_action_exists(context, graph, partner)) {
    char text[32];
    weft_findings_add(&context->findings, is_send ? WEFT_RULE_PAIR_RECV : WEFT_RULE_PAIR_SEND,
                      at->place, "its %s on rank %" PRIu32 " is missing: %s",
                      weft_action_format(&partner, text, sizeof text), other,
                      is_send ? "the message is never received"
                              : "the message is never sent, and the rank waits forever");
  }
}

WEFT_GRAPH_INLINE void check_transfers(struct weft_verify_context *context,
                                       const struct weft_graph *graph) {
  const struct weft_program *program = context->program;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    struct weft_visit at = {.place = {.rank = r}};
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; at.place.step++) {
      const uint32_t records = weft_cell_records(&program->actions[i]);
      at.place.action = &program->actions[i];
      at.action = program->actions[i];
      if (weft_op_in(at.action.op, WEFT_OPS_SEND | WEFT_OPS_RECV) &&
          weft_in_range(context, at.action)) {
        check_transfer(context, graph, &at);
      }
      i += records;
    }
  }
}

/* Out of line: each keeps its own in registers. */
static __attribute__((noinline)) void visit_all(struct weft_verify_context *context) {
  WEFT_TWICE(graph, context->graph, visit_rows(context, graph));
}

static __attribute__((noinline)) void check_all_transfers(struct weft_verify_context *context) {
  WEFT_TWICE(graph, context->graph, check_transfers(context, graph));
}

void weft_verify_presence(struct weft_verify_context *context) {
  assert(context->program != NULL && context->owner != NULL && context->exists != NULL);
  visit_all(context);
  for (uint32_t stage = 0; stage < context->stage_count; stage++) {
    check_stage_coverage(context, stage);
  }
  if (weft_has_transfers(context)) {
    check_all_transfers(context);
  }
}
