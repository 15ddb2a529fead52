/* Slot assignment: which buffer each message arrives in and each microbatch's
 * activations live in, so that nothing is allocated while a program runs.
 *
 * Lifetimes are intervals on the rank's own row; taking any free slot when one
 * begins and giving it back when it ends colours an interval graph with as few
 * colours as any colouring can (the largest number alive at once). The last
 * slot freed is taken first: it is the one still in the cache. */
#include <assert.h>
#include <string.h>

#include <weft/support.h>

#include "ir/message_table.h"
#include "ir/pairs.h"
#include "ir/program.h"
#include "lower/passes.h"

/* Slots of one kind on one rank. */
struct pool {
  uint32_t *free; /* stack */
  uint32_t free_count;
  uint32_t count; /* slots ever made */
};

/* The slots a (stage, microbatch) holds now, or WEFT_SLOT_NONE. */
struct held {
  uint32_t activation;
  uint32_t received_activation;
  uint32_t received_gradient;
};

struct assignment {
  struct weft_program *program;
  bool has_backward;
  struct held *held; /* [stage][microbatch] */
  struct weft_message_table messages;
  uint32_t *received; /* [message] its slot; NULL: a chain, held has them */
  uint32_t *uses;     /* [stage][microbatch] of an output: SENDs, forwards of this rank and the
                         backward that still need it; NULL: the backward is always the last */
  uint32_t *rank_of;  /* [stage], with `uses` */
  struct pool activations;
  struct pool receives;
};

static uint32_t pool_take(struct pool *pool) {
  return pool->free_count > 0 ? pool->free[--pool->free_count] : pool->count++;
}

static void pool_give(struct pool *pool, uint32_t *held) {
  if (*held != WEFT_SLOT_NONE) {
    pool->free[pool->free_count++] = *held;
    *held = WEFT_SLOT_NONE;
  }
}

/* Begins a lifetime. A second begin without an end (an invalid program) keeps
 * the first slot, so that pools never exceed the row. */
static uint32_t begin_life(struct pool *pool, uint32_t *held) {
  if (*held == WEFT_SLOT_NONE) {
    *held = pool_take(pool);
  }
  return *held;
}

static struct held *held_by(const struct assignment *a, struct weft_action action) {
  return &a->held[(uint64_t)action.stage * a->program->microbatch_count + action.microbatch];
}

/* Where the slot of a message is noted in a graph; NULL: there is no such message. */
static uint32_t *message_on(const struct assignment *a, uint32_t channel, uint32_t microbatch) {
  const uint64_t number = weft_message_number(&a->messages, channel, microbatch);
  return number != WEFT_MESSAGE_NONE ? &a->received[number] : NULL;
}

/* The messages that an action of a graph's stage has consumed. */
static void end_messages(struct assignment *a, struct weft_action action) {
  const struct weft_edge_list *list = weft_action_edges(a->program->graph, action, true);
  const uint32_t gradient = action.op != WEFT_OP_F;
  for (uint32_t k = 0; k < weft_edge_list_count(list, action.stage); k++) {
    const uint32_t edge = list->edges[list->begin[action.stage] + k];
    uint32_t *message = message_on(a, 2 * edge + gradient, action.microbatch);
    if (message != NULL) {
      pool_give(&a->receives, message);
    }
  }
}

WEFT_GRAPH_INLINE uint32_t begin_action(struct assignment *a, const struct weft_graph *graph,
                                        struct weft_action action, struct held *held) {
  if (graph != NULL && weft_op_in(action.op, WEFT_OPS_RECV)) {
    uint32_t *message = message_on(a, weft_graph_channel_of(graph, action), action.microbatch);
    return message != NULL ? begin_life(&a->receives, message) : WEFT_SLOT_NONE;
  }
  switch (action.op) {
    case WEFT_OP_RECV_F: return begin_life(&a->receives, &held->received_activation);
    case WEFT_OP_RECV_B: return begin_life(&a->receives, &held->received_gradient);
    case WEFT_OP_F: return begin_life(&a->activations, &held->activation);
    default: return held->activation;
  }
}

/* ---- Outputs that the backward is not the last to use ---- */

/* A table has no SENDs, so only stages of the rank use an output there. */
static bool is_used(const struct assignment *a, uint32_t from, uint32_t to) {
  return a->program->level == WEFT_LEVEL_COMMS || a->rank_of[from] == a->rank_of[to];
}

static uint32_t output_count(const struct assignment *a, uint32_t stage) {
  const struct weft_graph *graph = a->program->graph;
  if (graph == NULL) {
    return stage + 1 < a->program->stage_count && is_used(a, stage, stage + 1);
  }
  uint32_t count = 0;
  for (uint32_t k = graph->out.begin[stage]; k < graph->out.begin[stage + 1]; k++) {
    count += is_used(a, stage, graph->edges[graph->out.edges[k]].to);
  }
  return count;
}

/* One use less of what a stage has made; the last one frees it. */
static void end_use(struct assignment *a, uint32_t stage, uint32_t microbatch) {
  const struct weft_action made = {
      .op = WEFT_OP_F, .stage = (uint16_t)stage, .microbatch = microbatch};
  struct held *held = held_by(a, made);
  uint32_t *uses = &a->uses[held - a->held];
  if (*uses > 0 && --*uses == 0) {
    pool_give(&a->activations, &held->activation);
  }
}

/* A forward has consumed what other stages of the rank have made. */
static void end_local_uses(struct assignment *a, struct weft_action action) {
  const struct weft_graph *graph = a->program->graph;
  const uint32_t rank = a->rank_of[action.stage];
  if (graph == NULL) {
    if (action.stage > 0 && a->rank_of[action.stage - 1u] == rank) {
      end_use(a, action.stage - 1u, action.microbatch);
    }
    return;
  }
  for (uint32_t k = graph->in.begin[action.stage]; k < graph->in.begin[action.stage + 1u]; k++) {
    const uint32_t from = graph->edges[graph->in.edges[k]].from;
    if (a->rank_of[from] == rank) {
      end_use(a, from, action.microbatch);
    }
  }
}

static void end_forward(struct assignment *a, struct weft_action action, bool has_backward,
                        struct held *held) {
  uint32_t *uses = &a->uses[held - a->held];
  *uses = output_count(a, action.stage) + has_backward;
  if (*uses == 0) {
    pool_give(&a->activations, &held->activation);
  }
  end_local_uses(a, action);
}

/* What is free again when the action is done. `uses`: whether they are counted. */
WEFT_GRAPH_INLINE void end_action(struct assignment *a, const struct weft_graph *graph, bool uses,
                                  struct weft_action action, struct held *held) {
  bool has_backward = a->has_backward;
  if (graph != NULL) {
    end_messages(a, action);
    has_backward = has_backward && weft_graph_has_backward(graph, action.stage);
  } else if (action.op == WEFT_OP_F) {
    pool_give(&a->receives, &held->received_activation);
  } else if (weft_op_in(action.op, WEFT_OPS_GRADIENT)) {
    pool_give(&a->receives, &held->received_gradient);
  }
  const bool ends_backward = action.op == WEFT_OP_B || action.op == WEFT_OP_W;
  if (!uses) {
    if (ends_backward) {
      pool_give(&a->activations, &held->activation);
    }
  } else if (ends_backward) {
    end_use(a, action.stage, action.microbatch);
  } else if (action.op == WEFT_OP_F) {
    end_forward(a, action, has_backward, held);
  }
}

#define OPS_WITH_SLOT (WEFT_OPS_COMPUTE | WEFT_OPS_RECV)

/* Parts of an overlap run together: all of them begin before any ends. */
WEFT_GRAPH_INLINE void assign_overlap(struct assignment *a, const struct weft_graph *graph,
                                      bool uses, uint64_t header) {
  const struct weft_action *actions = a->program->actions;
  const uint64_t end = header + weft_cell_records(&actions[header]);
  a->program->slots[header] = WEFT_SLOT_NONE;
  for (uint64_t i = header + 1; i < end; i++) {
    a->program->slots[i] = weft_op_in(actions[i].op, OPS_WITH_SLOT)
                               ? begin_action(a, graph, actions[i], held_by(a, actions[i]))
                               : WEFT_SLOT_NONE;
  }
  for (uint64_t i = header + 1; i < end; i++) {
    if (weft_op_in(actions[i].op, OPS_WITH_SLOT)) {
      end_action(a, graph, uses, actions[i], held_by(a, actions[i]));
    }
  }
}

WEFT_GRAPH_INLINE void assign_row(struct assignment *a, const struct weft_graph *graph, bool uses,
                                  uint32_t rank) {
  struct weft_program *program = a->program;
  a->activations.count = a->activations.free_count = 0;
  a->receives.count = a->receives.free_count = 0;
  for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1]; i++) {
    const struct weft_action action = program->actions[i];
    if (weft_op_in(action.op, OPS_WITH_SLOT)) {
      struct held *held = held_by(a, action);
      program->slots[i] = begin_action(a, graph, action, held);
      end_action(a, graph, uses, action, held);
    } else if (action.op != WEFT_OP_OVERLAP_F_B) {
      program->slots[i] = WEFT_SLOT_NONE;
      if (uses && action.op == WEFT_OP_SEND_F) {
        end_use(a, action.stage, action.microbatch);
      }
    } else {
      assign_overlap(a, graph, uses, i);
      i += action.parts;
    }
  }
  program->receive_slots[rank] = a->receives.count;
  program->activation_slots[rank] = a->activations.count;
}

static uint64_t longest_row(const struct weft_program *program) {
  uint64_t longest = 0;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    const uint64_t size = program->row_begin[r + 1] - program->row_begin[r];
    longest = size > longest ? size : longest;
  }
  return longest;
}

/* The slots array, out of the spent program's block if there is one. */
static uint32_t *allocate_slots(const struct weft_program *program, struct weft_program *spent) {
  const struct weft_allocator *allocator =
      program->allocator != NULL ? program->allocator : weft_allocator_default();
  const uint64_t bytes = program->action_count * sizeof(uint32_t);
  if (spent == NULL || spent->action_capacity == 0 || bytes == 0) {
    return weft_array_allocate(program->allocator, program->action_count, sizeof(uint32_t));
  }
  uint32_t *slots = allocator->reallocate(allocator->context, spent->actions,
                                          spent->action_capacity * sizeof *spent->actions, bytes);
  if (slots != NULL) {
    spent->actions = NULL;
  }
  return slots;
}

/* The program's own arrays; kept if they are there already. */
static bool allocate_results(struct weft_program *program, struct weft_program *spent) {
  const struct weft_allocator *allocator = program->allocator;
  const uint32_t p = program->rank_count;
  if (program->slots != NULL) {
    return true;
  }
  uint32_t *receive = weft_array_allocate(allocator, p, sizeof *receive);
  uint32_t *activation = weft_array_allocate(allocator, p, sizeof *activation);
  uint32_t *slots = receive != NULL && activation != NULL ? allocate_slots(program, spent) : NULL;
  if (slots == NULL) {
    weft_array_free(allocator, receive, p, sizeof *receive);
    weft_array_free(allocator, activation, p, sizeof *activation);
    return false;
  }
  program->slots = slots;
  program->receive_slots = receive;
  program->activation_slots = activation;
  program->allocated_bytes += (program->action_count + 2 * (uint64_t)p) * sizeof *slots;
  return true;
}

/* Whether some output may be used after its backward, or has none: where no gradient comes back. */
static bool outlives_backward(const struct assignment *a) {
  const struct weft_graph *graph = a->program->graph;
  bool outlives = !a->has_backward;
  for (uint32_t e = 0; graph != NULL && e < graph->edge_count && !outlives; e++) {
    outlives = !graph->edges[e].gradient;
  }
  return outlives;
}

enum weft_status weft_slots_assign(struct weft_program *program, struct weft_error *error) {
  WEFT_NEED(program, error);
  return weft_slots_assign_recycling(program, NULL, error);
}

enum weft_status weft_slots_assign_recycling(struct weft_program *program,
                                             struct weft_program *spent, struct weft_error *error) {
  assert(program != NULL && program != spent);
  const struct weft_allocator *allocator = program->allocator;
  const uint64_t row = longest_row(program);
  const bool has_graph = program->graph != NULL;
  struct assignment a = {.program = program,
                         .has_backward = weft_program_has(program, WEFT_OPS_BACKWARD)};
  size_t pairs;
  WEFT_TRY(weft_pairs_count(program, &pairs, error));
  if (has_graph) {
    WEFT_TRY(
        weft_message_table_init(&a.messages, allocator, program, program->microbatch_count, error));
    a.received = weft_array_allocate(allocator, weft_message_count(&a.messages), sizeof(uint32_t));
  }
  const bool counts_uses = outlives_backward(&a);
  if (counts_uses) {
    a.uses = weft_array_allocate(allocator, pairs, sizeof *a.uses);
    a.rank_of = weft_array_allocate(allocator, program->stage_count, sizeof *a.rank_of);
  }
  a.held = weft_array_allocate(allocator, pairs, sizeof(struct held));
  a.activations.free = weft_array_allocate(allocator, row, sizeof(uint32_t));
  a.receives.free = weft_array_allocate(allocator, row, sizeof(uint32_t));
  enum weft_status status = WEFT_OK;
  if (a.held == NULL || a.activations.free == NULL || a.receives.free == NULL ||
      (has_graph && a.received == NULL) || (counts_uses && (a.uses == NULL || a.rank_of == NULL)) ||
      !allocate_results(program, spent)) {
    status = weft_fail_memory(error, pairs * sizeof(struct held));
  } else {
    memset(a.held, 0xff, pairs * sizeof(struct held)); /* WEFT_SLOT_NONE */
    if (counts_uses) {
      memset(a.uses, 0, pairs * sizeof *a.uses);
      (void)weft_placement_infer(program, a.rank_of);
    }
    if (has_graph) {
      memset(a.received, 0xff, weft_message_count(&a.messages) * sizeof(uint32_t));
    }
    for (uint32_t r = 0; r < program->rank_count; r++) {
      if (has_graph || counts_uses) {
        assign_row(&a, program->graph, counts_uses, r);
      } else {
        assign_row(&a, NULL, false, r);
      }
    }
  }
  weft_array_free(allocator, a.uses, counts_uses ? pairs : 0, sizeof *a.uses);
  weft_array_free(allocator, a.rank_of, counts_uses ? program->stage_count : 0, sizeof *a.rank_of);
  weft_array_free(allocator, a.held, pairs, sizeof(struct held));
  weft_array_free(allocator, a.activations.free, row, sizeof(uint32_t));
  weft_array_free(allocator, a.receives.free, row, sizeof(uint32_t));
  if (has_graph) {
    weft_array_free(allocator, a.received, weft_message_count(&a.messages), sizeof(uint32_t));
    weft_message_table_finish(&a.messages);
  }
  return status;
}
