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

/* Those that belong to a microbatch, likewise. */
static inline uint32_t weft_ops_with_microbatch(void) {
  return 0
#define WEFT_OP(NAME, text, KIND, has_microbatch, ...) \
  | (has_microbatch ? WEFT_OP_BIT(WEFT_OP_##NAME) : 0)
#include "ir/ops.def"
#undef WEFT_OP
      ;
}

/* Ops whose result crosses to the neighbour stage: F downwards, B and I upwards. */
#define WEFT_OPS_GRADIENT (WEFT_OP_BIT(WEFT_OP_B) | WEFT_OP_BIT(WEFT_OP_I))

/* Ops of cells that compute. */
#define WEFT_OPS_COMPUTE_CELL (WEFT_OPS_COMPUTE | WEFT_OP_BIT(WEFT_OP_OVERLAP_F_B))

/* All of the backward. */
#define WEFT_OPS_BACKWARD (WEFT_OPS_GRADIENT | WEFT_OP_BIT(WEFT_OP_W))

static inline bool weft_op_in(uint32_t op, uint32_t set) { return (set >> op) & 1u; }

/* Parts of the cell that starts at `action`: 0, unless it is an overlap. */
static inline uint32_t weft_cell_parts(const struct weft_action *action) {
  return action->op == WEFT_OP_OVERLAP_F_B ? action->parts : 0u;
}

/* Its records. */
static inline uint32_t weft_cell_records(const struct weft_action *action) {
  return 1u + weft_cell_parts(action);
}

/* How long a cell takes where nothing says it: F, I and W as long as each other, B as I and W. */
static inline int64_t weft_cell_work(const struct weft_action *cell) {
  int64_t work = 0;
  for (uint32_t k = 0; k <= weft_cell_parts(cell); k++) {
    const bool computes = weft_op_in(cell[k].op, WEFT_OPS_COMPUTE);
    work += cell[k].op == WEFT_OP_B ? 2 : computes ? 1 : 0;
  }
  return work;
}

/* For functions of hot loops that take a graph: a call with NULL is compiled for chains alone. */
#define WEFT_GRAPH_INLINE static inline __attribute__((always_inline))

/* A statement with such calls, compiled once for chains and once for graphs; in it `graph` is the
 * graph, or NULL. */
#define WEFT_TWICE(graph, of, statement)           \
  do {                                             \
    if ((of) == NULL) {                            \
      const struct weft_graph *const graph = NULL; \
      statement;                                   \
    } else {                                       \
      const struct weft_graph *const graph = (of); \
      statement;                                   \
    }                                              \
  } while (0)

/* ---- Data dependencies ----
 *
 * F of a stage consumes the activations of the stages before it, B and I the gradients of those
 * behind it: in a chain (graph NULL) of s-1 and of s+1, else those at the other ends of its edges.
 * `stage_count` is that of the chain. */

/* The edges that bring an action of a graph its input, or take its output away; NULL: it has none. */
static inline const struct weft_edge_list *weft_action_edges(const struct weft_graph *graph,
                                                             struct weft_action action,
                                                             bool input) {
  if (action.stage >= graph->stage_count) {
    return NULL;
  }
  if (action.op == WEFT_OP_F) {
    return input ? &graph->in : &graph->out;
  }
  return !weft_op_in(action.op, WEFT_OPS_GRADIENT) ? NULL
         : input                                   ? &graph->gradient_in
                                                   : &graph->gradient_out;
}

/* How many there are. */
WEFT_GRAPH_INLINE uint32_t weft_action_edge_count(const struct weft_graph *graph,
                                                  struct weft_action action, uint32_t stage_count,
                                                  bool input) {
  if (graph == NULL) {
    const bool below = action.stage > 0, above = action.stage + 1u < stage_count;
    return (action.op == WEFT_OP_F && (input ? below : above)) ||
           (weft_op_in(action.op, WEFT_OPS_GRADIENT) && (input ? above : below));
  }
  const struct weft_edge_list *list = weft_action_edges(graph, action, input);
  return list != NULL ? list->begin[action.stage + 1] - list->begin[action.stage] : 0;
}

/* The number of the k-th; of a chain the stage at its lower end. */
WEFT_GRAPH_INLINE uint32_t weft_action_edge(const struct weft_graph *graph,
                                            struct weft_action action, uint32_t k, bool input) {
  if (graph == NULL) {
    return (action.op == WEFT_OP_F) == input ? action.stage - 1u : action.stage;
  }
  const struct weft_edge_list *list = weft_action_edges(graph, action, input);
  return list->edges[list->begin[action.stage] + k];
}

/* The stage at its other end. */
WEFT_GRAPH_INLINE uint32_t weft_action_edge_stage(const struct weft_graph *graph,
                                                  struct weft_action action, uint32_t k,
                                                  bool input) {
  const bool below = (action.op == WEFT_OP_F) == input;
  if (graph == NULL) {
    return below ? action.stage - 1u : action.stage + 1u;
  }
  const struct weft_edge *edge = &graph->edges[weft_action_edge(graph, action, k, input)];
  return below ? edge->from : edge->to;
}

/* The stages that make what an action consumes, ascending. */
static inline uint32_t weft_action_input_count(const struct weft_graph *graph,
                                               struct weft_action action, uint32_t stage_count) {
  return weft_action_edge_count(graph, action, stage_count, true);
}

static inline uint32_t weft_action_input_at(const struct weft_graph *graph,
                                            struct weft_action action, uint32_t k) {
  return weft_action_edge_stage(graph, action, k, true);
}

/* Whether a test holds for each of them. */
typedef bool weft_stage_test(const void *context, struct weft_action action, uint32_t stage);
WEFT_GRAPH_INLINE bool weft_action_inputs_all(const struct weft_graph *graph,
                                              struct weft_action action, uint32_t stage_count,
                                              weft_stage_test *test, const void *context) {
  const uint32_t count = weft_action_input_count(graph, action, stage_count);
  if (graph == NULL) { /* one at most: no loop */
    return count == 0 || test(context, action, weft_action_input_at(NULL, action, 0));
  }
  for (uint32_t k = 0; k < count; k++) {
    if (!test(context, action, weft_action_input_at(graph, action, k))) {
      return false;
    }
  }
  return true;
}

/* The stages that consume what it makes, ascending. */
static inline uint32_t weft_action_output_count(const struct weft_graph *graph,
                                                struct weft_action action, uint32_t stage_count) {
  return weft_action_edge_count(graph, action, stage_count, false);
}

static inline uint32_t weft_action_output_at(const struct weft_graph *graph,
                                             struct weft_action action, uint32_t k) {
  return weft_action_edge_stage(graph, action, k, false);
}

/* Whether compute waits for the end of an asynchronous action before it in its row. */
static inline bool weft_action_awaits(struct weft_action compute, struct weft_action asynchronous) {
  return asynchronous.op == WEFT_OP_UNSHARD && asynchronous.stage == compute.stage;
}

/* ---- Transfers ---- */

/* A SEND or RECV of `stage` whose other end is `other`, at most WEFT_SKIP_MAX stages beyond the
 * neighbour. */
static inline struct weft_action weft_action_transfer(enum weft_op op, uint32_t stage,
                                                      uint32_t other, uint32_t microbatch) {
  struct weft_action action = weft_action_make(op, stage, microbatch);
  action.skip = (uint8_t)((other > stage ? other - stage : stage - other) - 1u);
  return action;
}

/* The same in a graph; of a chain (NULL), where the other end is the neighbour. */
WEFT_GRAPH_INLINE struct weft_action weft_action_transfer_in(const struct weft_graph *graph,
                                                             enum weft_op op, uint32_t stage,
                                                             uint32_t other, uint32_t microbatch) {
  return graph == NULL ? weft_action_make(op, stage, microbatch)
                       : weft_action_transfer(op, stage, other, microbatch);
}

/* The stage at the other end of a SEND or RECV; beyond all stages where there is none. */
static inline uint32_t weft_transfer_other(struct weft_action action) {
  const bool up = action.op == WEFT_OP_SEND_F || action.op == WEFT_OP_RECV_B;
  return up ? action.stage + 1u + action.skip : action.stage - 1u - action.skip;
}

/* The other end of a transfer: SEND_F of s <-> RECV_F of s+1, SEND_B of s <->
 * RECV_B of s-1; or further, with a skip. False where that stage does not exist. */
static inline bool weft_action_partner(struct weft_action action, uint32_t stage_count,
                                       struct weft_action *partner) {
  _Static_assert(WEFT_OP_SEND_F % 2 == 1 && WEFT_OP_RECV_F == WEFT_OP_SEND_F + 1 &&
                     WEFT_OP_SEND_B == WEFT_OP_SEND_F + 2 && WEFT_OP_RECV_B == WEFT_OP_SEND_B + 1,
                 "SEND and RECV are neighbours");
  const uint32_t stage = weft_transfer_other(action);
  if (!weft_op_in(action.op, WEFT_OPS_SEND | WEFT_OPS_RECV) ||
      stage >= stage_count) { /* also "stage -1" */
    return false;
  }
  *partner = (struct weft_action){.op = (uint8_t)(((action.op - 1u) ^ 1u) + 1u),
                                  .skip = action.skip,
                                  .stage = (uint16_t)stage,
                                  .microbatch = action.microbatch};
  return true;
}

/* ---- Channels ----
 *
 * Both directions of an edge have a number: activations of edge e are 2e, gradients 2e + 1. In a
 * chain, activations that stage s sends are 2s, gradients that it sends 2s + 1. */

static inline uint32_t weft_channel_count(const struct weft_graph *graph, uint32_t stage_count) {
  return 2 * (graph != NULL ? graph->edge_count : stage_count);
}

/* Of a SEND or RECV of a graph (graph.c); see weft_channel_of(). */
uint32_t weft_graph_channel_of(const struct weft_graph *graph, struct weft_action transfer);

/* The same; the stages of a chain are `stage_count`. */
static inline uint32_t weft_channel_in(const struct weft_graph *graph, uint32_t stage_count,
                                       struct weft_action transfer) {
  if (graph != NULL) {
    return weft_graph_channel_of(graph, transfer);
  }
  const bool gradient = transfer.op == WEFT_OP_SEND_B || transfer.op == WEFT_OP_RECV_B;
  const bool sends = transfer.op == WEFT_OP_SEND_F || transfer.op == WEFT_OP_SEND_B;
  const uint32_t stage = transfer.stage, other = sends == gradient ? stage - 1 : stage + 1;
  const bool exists = other < stage_count && transfer.skip == 0;
  return exists ? 2 * (sends ? stage : other) + gradient : WEFT_EDGE_NONE;
}

/* Of a SEND or RECV; WEFT_EDGE_NONE where its ends have no edge, or the other one no stage. */
static inline uint32_t weft_channel_of(const struct weft_program *program,
                                       struct weft_action transfer) {
  return weft_channel_in(program->graph, program->stage_count, transfer);
}

/* Of a SEND over an edge that exists. */
static inline uint32_t weft_channel_of_send(const struct weft_graph *graph,
                                            struct weft_action send) {
  return graph != NULL ? weft_graph_channel_of(graph, send)
                       : 2u * send.stage + (send.op == WEFT_OP_SEND_B);
}

/* That brings input number k of an action, < weft_action_input_count(). */
static inline uint32_t weft_action_input_channel(const struct weft_graph *graph,
                                                 struct weft_action action, uint32_t k) {
  const uint32_t gradient = action.op != WEFT_OP_F;
  return 2 * (graph == NULL ? weft_action_input_at(NULL, action, k)
                            : weft_action_edge(graph, action, k, true)) +
         gradient;
}

/* That takes output number k of an action away, < weft_action_output_count(). */
static inline uint32_t weft_action_output_channel(const struct weft_graph *graph,
                                                  struct weft_action action, uint32_t k) {
  const uint32_t gradient = action.op != WEFT_OP_F;
  return 2 * (graph == NULL ? action.stage : weft_action_edge(graph, action, k, false)) + gradient;
}

/* The size of a channel's messages; < 0: the graph does not say, and a chain never does. */
static inline double weft_channel_bytes(const struct weft_graph *graph, uint32_t channel) {
  if (graph == NULL) {
    return -1;
  }
  const struct weft_edge *edge = &graph->edges[channel / 2];
  return channel % 2 == 0 ? edge->bytes : edge->gradient_bytes;
}

/* The stages at its ends; one beyond all stages where a chain ends. */
static inline void weft_channel_ends(const struct weft_graph *graph, uint32_t channel,
                                     uint32_t *from, uint32_t *to) {
  const bool forward = channel % 2 == 0;
  if (graph == NULL) {
    *from = channel / 2;
    *to = forward ? *from + 1u : *from - 1u;
  } else {
    const struct weft_edge *edge = &graph->edges[channel / 2];
    *from = forward ? edge->from : edge->to;
    *to = forward ? edge->to : edge->from;
  }
}

#endif
