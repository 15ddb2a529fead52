/* The oracle, part one: the models, and making a program ready to run
 * (support_oracle.h). */
#include "support_oracle.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const struct {
  const char *name;
  struct weft_comm_model model;
} models[ORACLE_MODELS] = {
    {"rendezvous/edge", {0, WEFT_CHANNEL_EDGE, false}},
    {"rendezvous/pair", {0, WEFT_CHANNEL_PAIR, false}},
    {"rendezvous/rank", {0, WEFT_CHANNEL_RANK, false}},
    {"slots:1/edge", {1, WEFT_CHANNEL_EDGE, false}},
    {"slots:1/pair", {1, WEFT_CHANNEL_PAIR, false}},
    {"slots:1/rank", {1, WEFT_CHANNEL_RANK, false}},
    {"slots:2/edge", {2, WEFT_CHANNEL_EDGE, false}},
    {"slots:2/pair", {2, WEFT_CHANNEL_PAIR, false}},
    {"slots:2/rank", {2, WEFT_CHANNEL_RANK, false}},
    {"eager/edge", {WEFT_CAPACITY_UNLIMITED, WEFT_CHANNEL_EDGE, false}},
    {"eager/pair", {WEFT_CAPACITY_UNLIMITED, WEFT_CHANNEL_PAIR, false}},
    {"eager/rank", {WEFT_CAPACITY_UNLIMITED, WEFT_CHANNEL_RANK, false}},
};

struct weft_comm_model oracle_model(uint32_t index) {
  return models[index].model;
}
const char *oracle_model_name(uint32_t index) { return models[index].name; }

static void *allocate(size_t count, size_t size) {
  void *memory = calloc(count + 1, size);
  assert(memory != NULL);
  return memory;
}

/* --- Edges ---------------------------------------------------------------- */

void oracle_edges_init(struct oracle_edges *edges, const struct weft_program *program) {
  const struct weft_graph *graph = program->graph;
  edges->count = graph != NULL              ? graph->edge_count
                 : program->stage_count > 0 ? program->stage_count - 1
                                            : 0;
  edges->edges = allocate(edges->count, sizeof *edges->edges);
  for (uint32_t e = 0; e < edges->count; e++) {
    edges->edges[e] = graph != NULL ? (struct oracle_edge){graph->edges[e].from, graph->edges[e].to,
                                                           graph->edges[e].gradient}
                                    : (struct oracle_edge){e, e + 1, true};
  }
}

void oracle_edges_finish(struct oracle_edges *edges) { free(edges->edges); }

uint32_t oracle_edge_of(const struct oracle_edges *edges, const struct weft_action *transfer) {
  const bool up = transfer->op == WEFT_OP_SEND_F || transfer->op == WEFT_OP_RECV_B;
  const bool forward = transfer->op == WEFT_OP_SEND_F || transfer->op == WEFT_OP_RECV_F;
  for (uint32_t e = 0; e < edges->count; e++) {
    const struct oracle_edge *edge = &edges->edges[e];
    if ((up ? edge->from : edge->to) == transfer->stage &&
        edge->to - edge->from == transfer->skip + 1u && (forward || edge->gradient)) {
      return e;
    }
  }
  return ORACLE_NONE;
}

bool oracle_consumes(const struct oracle_edge *edge, const struct weft_action *action,
                     uint32_t *stage) {
  if (action->op == WEFT_OP_F) {
    *stage = edge->from;
    return edge->to == action->stage;
  }
  *stage = edge->to;
  return (action->op == WEFT_OP_B || action->op == WEFT_OP_I) && edge->gradient &&
         edge->from == action->stage;
}

/* --- Making a program ready --------------------------------------------- */

/* Lookup tables while a program is made ready. What is made is indexed by (direction, stage,
 * microbatch), what is sent by (direction, edge, microbatch): direction 0 is forward, 1 is
 * backward. */
struct index {
  uint32_t stages, microbatches;
  struct oracle_edges edges;
  struct oracle_place *maker; /* the cell with the F, or the B or I */
  uint8_t *made;              /* how many such cells */
  uint8_t *sent;              /* SENDs */
  uint32_t *message;          /* number of the message */
  uint8_t *taken;             /* how many RECVs it has */
};

static size_t slot(const struct index *index, uint32_t direction, uint32_t stage,
                   uint32_t microbatch) {
  return ((size_t)direction * index->stages + stage) * index->microbatches + microbatch;
}

/* Of a SEND or RECV; false where it has no edge. */
static bool message_slot(const struct index *index, const struct weft_action *transfer,
                         size_t *at) {
  const uint32_t edge = oracle_edge_of(&index->edges, transfer);
  const uint32_t direction =
      transfer->op == WEFT_OP_SEND_F || transfer->op == WEFT_OP_RECV_F ? 0 : 1;
  *at =
      ((size_t)direction * index->edges.count + edge) * index->microbatches + transfer->microbatch;
  return edge != ORACLE_NONE;
}

static void index_init(struct index *index, const struct weft_program *program) {
  index->stages = program->stage_count;
  index->microbatches = program->microbatch_count;
  oracle_edges_init(&index->edges, program);
  const size_t size = 2 * (size_t)index->stages * index->microbatches;
  const size_t messages = 2 * (size_t)index->edges.count * index->microbatches;
  index->maker = allocate(size, sizeof *index->maker);
  index->made = allocate(size, 1);
  index->sent = allocate(messages, 1);
  index->message = allocate(messages, sizeof *index->message);
  index->taken = allocate(messages, 1);
}

static void index_finish(struct index *index) {
  oracle_edges_finish(&index->edges);
  free(index->maker);
  free(index->made);
  free(index->sent);
  free(index->message);
  free(index->taken);
}

static bool is_send(uint8_t op) { return op == WEFT_OP_SEND_F || op == WEFT_OP_SEND_B; }
static bool is_recv(uint8_t op) { return op == WEFT_OP_RECV_F || op == WEFT_OP_RECV_B; }

static void index_record(struct index *index, const struct weft_action *action,
                         struct oracle_place place) {
  const bool forward = action->op == WEFT_OP_F;
  if (forward || action->op == WEFT_OP_B || action->op == WEFT_OP_I) {
    const size_t at = slot(index, forward ? 0 : 1, action->stage, action->microbatch);
    index->maker[at] = place;
    index->made[at]++;
  } else if (is_send(action->op)) {
    size_t at;
    if (message_slot(index, action, &at)) {
      index->sent[at]++;
    }
  }
}

/* Calls index_record() for every record and counts the cells of each row. */
static void index_program(struct index *index, const struct weft_program *program,
                          uint32_t *cell_begin) {
  cell_begin[0] = 0;
  for (uint32_t rank = 0; rank < program->rank_count; rank++) {
    uint32_t cell = 0;
    for (uint64_t at = program->row_begin[rank]; at < program->row_begin[rank + 1]; cell++) {
      const uint64_t end = at + oracle_cell_records(&program->actions[at]);
      for (; at < end; at++) {
        index_record(index, &program->actions[at], (struct oracle_place){rank, cell});
      }
    }
    cell_begin[rank + 1] = cell_begin[rank] + cell;
  }
}

static bool cell_add_needs(struct oracle_cell *cell, const struct index *index,
                           const struct weft_action *action) {
  for (uint32_t e = 0; e < index->edges.count; e++) {
    uint32_t stage;
    if (!oracle_consumes(&index->edges.edges[e], action, &stage)) {
      continue;
    }
    const size_t at = slot(index, action->op == WEFT_OP_F ? 0 : 1, stage, action->microbatch);
    if (index->made[at] != 1 || cell->need_count == ORACLE_NEEDS_MAX) {
      return false;
    }
    cell->needs[cell->need_count++] = index->maker[at];
  }
  return true;
}

static bool cell_set_send(struct oracle *oracle, struct oracle_cell *cell, struct index *index,
                          const struct weft_action *action, uint32_t rank) {
  size_t at;
  if (!message_slot(index, action, &at) || index->sent[at] != 1) {
    return false;
  }
  cell->kind = ORACLE_SEND;
  cell->message = oracle->message_count;
  oracle->messages[oracle->message_count] = (struct oracle_message){
      .from = rank, .to = ORACLE_NONE, .edge = (uint32_t)(at / index->microbatches)};
  index->message[at] = oracle->message_count++;
  return true;
}

/* A TIE_GRAD is done when the other one is reached: here it holds up its row, which
 * is stricter than a queue beside it. Both on one rank are one after the other. */
static void cell_set_tie(struct oracle_cell *cell, const struct weft_program *program,
                         const struct weft_action *action, uint32_t rank) {
  const uint32_t other = action->stage == 0 ? program->stage_count - 1u : 0;
  for (uint32_t peer = 0; peer < program->rank_count; peer++) {
    uint32_t number = 0;
    for (uint64_t at = program->row_begin[peer]; at < program->row_begin[peer + 1]; number++) {
      const struct weft_action *found = &program->actions[at];
      if (found->op == WEFT_OP_TIE_GRAD && found->stage == other && peer != rank && number > 0) {
        cell->needs[cell->need_count++] = (struct oracle_place){peer, number - 1};
        return;
      }
      at += oracle_cell_records(found);
    }
  }
}

/* First pass over the cells: what they are; RECVs come in the second pass,
 * when every message has its number. */
static bool oracle_cells(struct oracle *oracle, const struct weft_program *program,
                         struct index *index) {
  uint32_t number = 0;
  for (uint32_t rank = 0; rank < program->rank_count; rank++) {
    for (uint64_t at = program->row_begin[rank]; at < program->row_begin[rank + 1]; number++) {
      const uint64_t end = at + oracle_cell_records(&program->actions[at]);
      struct oracle_cell *cell = &oracle->cells[number];
      for (; at < end; at++) {
        const struct weft_action *action = &program->actions[at];
        if (is_send(action->op) && !cell_set_send(oracle, cell, index, action, rank)) {
          return false;
        }
        if (action->op == WEFT_OP_TIE_GRAD) {
          cell_set_tie(cell, program, action, rank);
        }
        if (program->level == WEFT_LEVEL_COMPUTE && !cell_add_needs(cell, index, action)) {
          return false;
        }
      }
    }
  }
  return true;
}

static bool cell_set_recv(struct oracle *oracle, struct oracle_cell *cell, struct index *index,
                          const struct weft_action *action, uint32_t rank) {
  size_t at;
  if (!message_slot(index, action, &at) || index->sent[at] != 1 || index->taken[at]++ != 0) {
    return false;
  }
  cell->kind = ORACLE_RECV;
  cell->message = index->message[at];
  oracle->messages[cell->message].to = rank;
  return true;
}

static bool oracle_receives(struct oracle *oracle, const struct weft_program *program,
                            struct index *index) {
  uint32_t number = 0;
  for (uint32_t rank = 0; rank < program->rank_count; rank++) {
    for (uint64_t at = program->row_begin[rank]; at < program->row_begin[rank + 1]; number++) {
      const struct weft_action *action = &program->actions[at];
      if (is_recv(action->op) &&
          !cell_set_recv(oracle, &oracle->cells[number], index, action, rank)) {
        return false;
      }
      at += oracle_cell_records(action);
    }
  }
  for (uint32_t message = 0; message < oracle->message_count; message++) {
    if (oracle->messages[message].to == ORACLE_NONE) {
      return false;
    }
  }
  return true;
}

bool oracle_init(struct oracle *oracle, const struct weft_program *program) {
  struct index index;
  memset(oracle, 0, sizeof *oracle);
  index_init(&index, program);
  oracle->rank_count = program->rank_count;
  oracle->cell_begin = allocate(program->rank_count + 1u, sizeof *oracle->cell_begin);
  index_program(&index, program, oracle->cell_begin);
  oracle->cells = allocate(oracle->cell_begin[program->rank_count], sizeof *oracle->cells);
  oracle->messages = allocate((size_t)program->action_count, sizeof *oracle->messages);
  oracle->edge_count = 2 * index.edges.count;
  const bool sound =
      oracle_cells(oracle, program, &index) && oracle_receives(oracle, program, &index);
  index_finish(&index);
  if (!sound) {
    oracle_finish(oracle);
  }
  return sound;
}

void oracle_finish(struct oracle *oracle) {
  free(oracle->cell_begin);
  free(oracle->cells);
  free(oracle->messages);
  memset(oracle, 0, sizeof *oracle);
}
