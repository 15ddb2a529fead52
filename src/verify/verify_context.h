/* What the parts of the verifier share: the program and its inferred shape. */
#ifndef VERIFY_CONTEXT_H
#define VERIFY_CONTEXT_H

#include <weft/spec.h>

#include "ir/machine_agents.h"
#include "ir/pairs.h"
#include "verify/findings.h"

struct weft_verify_context {
  const struct weft_allocator *allocator;
  const struct weft_program *program;
  const struct weft_graph *graph; /* the program's; NULL: a chain */
  struct weft_comm_model model;
  bool trace;
  struct weft_findings findings;
  struct weft_error *error;

  uint32_t ops;              /* set of the ops that occur */
  uint32_t stage_count;      /* n; n × m never exceeds the number of actions by much */
  uint32_t microbatch_count; /* m */
  uint32_t *owner;           /* [n] the rank that computes most of the stage, or WEFT_RANK_NONE */
  uint8_t *exists;           /* [weft_set_count()] first [n][m]; see weft_pair_bit() */
};

/* F ... RECV_B have numbers 1 ... 8: a byte per (stage, microbatch) holds the set of those that
 * occur. The bits of a set of ops, and of one. */
static inline uint8_t weft_pair_bits(uint32_t ops) { return (uint8_t)(ops >> WEFT_OP_F); }
static inline uint8_t weft_pair_bit(uint32_t op) { return weft_pair_bits(WEFT_OP_BIT(op)); }

#define WEFT_OPS_PAIRED (WEFT_OPS_COMPUTE | WEFT_OPS_SEND | WEFT_OPS_RECV)

static inline uint64_t weft_pair_index(const struct weft_verify_context *context, uint32_t stage,
                                       uint32_t microbatch) {
  return (uint64_t)stage * context->microbatch_count + microbatch;
}

static inline bool weft_pair_has(const struct weft_verify_context *context, uint32_t op,
                                 uint32_t stage, uint32_t microbatch) {
  return (context->exists[weft_pair_index(context, stage, microbatch)] & weft_pair_bit(op)) != 0;
}

/* Stage and microbatch are within the inferred shape. */
static inline bool weft_in_range(const struct weft_verify_context *context,
                                 struct weft_action action) {
  return action.stage < context->stage_count &&
         (!weft_op_in(action.op, weft_ops_with_microbatch()) ||
          action.microbatch < context->microbatch_count);
}

/* Whether the program moves data by SEND and RECV; if not, it is a table, and
 * data is there when it is made. */
static inline bool weft_has_transfers(const struct weft_verify_context *context) {
  return (context->ops & (WEFT_OPS_SEND | WEFT_OPS_RECV)) != 0;
}

static inline bool weft_has_backward(const struct weft_verify_context *context) {
  return (context->ops & WEFT_OPS_BACKWARD) != 0;
}

/* ---- Graphs ----
 *
 * What follows takes the context's graph, so that loops can be compiled for chains alone. */

/* The number of an action's set in `exists`. */
WEFT_GRAPH_INLINE uint64_t weft_own_set(const struct weft_verify_context *context,
                                        const struct weft_graph *graph, struct weft_action action) {
  return weft_set_of(graph, context->stage_count, context->microbatch_count, action);
}

/* Whether an action F ... RECV_B occurs. */
WEFT_GRAPH_INLINE bool weft_action_exists(const struct weft_verify_context *context,
                                          const struct weft_graph *graph,
                                          struct weft_action action) {
  const uint64_t set = weft_own_set(context, graph, action);
  return set != WEFT_SET_NONE && (context->exists[set] & weft_pair_bit(action.op)) != 0;
}

static inline struct weft_placed_program weft_placed(const struct weft_verify_context *context) {
  return (struct weft_placed_program){.program = context->program,
                                      .stage_count = context->stage_count,
                                      .microbatch_count = context->microbatch_count,
                                      .rank_of = context->owner};
}

/* ---- Rows ---- */

typedef void weft_location_visitor(void *context, const struct weft_graph *graph,
                                   const struct weft_location *at);

/* Calls the function with all records of all rows in turn; with `cells` not with the parts of an
 * overlap. */
WEFT_GRAPH_INLINE void weft_visit_rows(const struct weft_program *program,
                                       const struct weft_graph *graph, bool cells,
                                       weft_location_visitor *visit, void *context) {
  for (uint32_t r = 0; r < program->rank_count; r++) {
    struct weft_location at = {.rank = r};
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; at.step++) {
      const uint64_t end = i + weft_cell_records(&program->actions[i]);
      for (uint64_t k = i; k < (cells ? i + 1 : end); k++) {
        at.action = &program->actions[k];
        visit(context, graph, &at);
      }
      i = end;
    }
  }
}

/* Of a record: counts the cells of the row, so only for what is reported. */
struct weft_location weft_location_of(const struct weft_program *program, uint32_t rank,
                                      uint64_t record);

/* The parts, in the order in which they run. Each adds findings; the status
 * is for running out of memory alone. */
void weft_verify_presence(struct weft_verify_context *context); /* fills exists */
enum weft_status weft_verify_order(struct weft_verify_context *context);
enum weft_status weft_verify_channels(struct weft_verify_context *context);
enum weft_status weft_verify_shards(struct weft_verify_context *context);
enum weft_status weft_verify_liveness(struct weft_verify_context *context,
                                      uint32_t *least_capacity);
enum weft_status weft_verify_trace(struct weft_verify_context *context, struct weft_report *report);

#endif
