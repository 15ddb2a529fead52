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
    {"rendezvous/edge", {0, WEFT_CHANNEL_EDGE}},
    {"rendezvous/pair", {0, WEFT_CHANNEL_PAIR}},
    {"rendezvous/rank", {0, WEFT_CHANNEL_RANK}},
    {"slots:1/edge", {1, WEFT_CHANNEL_EDGE}},
    {"slots:1/pair", {1, WEFT_CHANNEL_PAIR}},
    {"slots:1/rank", {1, WEFT_CHANNEL_RANK}},
    {"slots:2/edge", {2, WEFT_CHANNEL_EDGE}},
    {"slots:2/pair", {2, WEFT_CHANNEL_PAIR}},
    {"slots:2/rank", {2, WEFT_CHANNEL_RANK}},
    {"eager/edge", {WEFT_CAPACITY_UNLIMITED, WEFT_CHANNEL_EDGE}},
    {"eager/pair", {WEFT_CAPACITY_UNLIMITED, WEFT_CHANNEL_PAIR}},
    {"eager/rank", {WEFT_CAPACITY_UNLIMITED, WEFT_CHANNEL_RANK}},
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

/* --- Making a program ready --------------------------------------------- */

/* Lookup tables while a program is made ready. Everything is indexed by
 * (direction, stage, microbatch): direction 0 is forward, 1 is backward. */
struct index {
  uint32_t stages, microbatches;
  struct oracle_place *maker;  /* the cell with the F, or the B or I */
  uint8_t *made;               /* how many such cells */
  struct oracle_place *sender; /* the SEND of that stage */
  uint8_t *sent;
  uint32_t *message; /* number of the message that stage sends */
  uint8_t *taken;    /* how many RECVs it has */
};

static size_t slot(const struct index *index, uint32_t direction, uint32_t stage,
                   uint32_t microbatch) {
  return ((size_t)direction * index->stages + stage) * index->microbatches + microbatch;
}

static void index_init(struct index *index, const struct weft_program *program) {
  index->stages = program->stage_count;
  index->microbatches = program->microbatch_count;
  const size_t size = 2 * (size_t)index->stages * index->microbatches;
  index->maker = allocate(size, sizeof *index->maker);
  index->made = allocate(size, 1);
  index->sender = allocate(size, sizeof *index->sender);
  index->sent = allocate(size, 1);
  index->message = allocate(size, sizeof *index->message);
  index->taken = allocate(size, 1);
}

static void index_finish(struct index *index) {
  free(index->maker);
  free(index->made);
  free(index->sender);
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
    const size_t at =
        slot(index, action->op == WEFT_OP_SEND_F ? 0 : 1, action->stage, action->microbatch);
    index->sender[at] = place;
    index->sent[at]++;
  }
}

/* Calls index_record() for every record and counts the cells of each row. */
static void index_program(struct index *index, const struct weft_program *program,
                          uint32_t *cell_begin) {
  cell_begin[0] = 0;
  for (uint32_t rank = 0; rank < program->rank_count; rank++) {
    uint32_t cell = 0;
    for (uint64_t at = program->row_begin[rank]; at < program->row_begin[rank + 1]; cell++) {
      const uint64_t end = at + 1u + program->actions[at].parts;
      for (; at < end; at++) {
        index_record(index, &program->actions[at], (struct oracle_place){rank, cell});
      }
    }
    cell_begin[rank + 1] = cell_begin[rank] + cell;
  }
}

/* Stage whose result (direction as in the index) the action consumes. */
static bool input_of(const struct weft_action *action, uint32_t stages, uint32_t *direction,
                     uint32_t *stage) {
  if (action->op == WEFT_OP_F && action->stage > 0) {
    *direction = 0;
    *stage = action->stage - 1u;
    return true;
  }
  if ((action->op == WEFT_OP_B || action->op == WEFT_OP_I) && action->stage + 1u < stages) {
    *direction = 1;
    *stage = action->stage + 1u;
    return true;
  }
  return false;
}

static bool cell_add_need(struct oracle_cell *cell, const struct index *index,
                          const struct weft_action *action) {
  uint32_t direction, stage;
  if (!input_of(action, index->stages, &direction, &stage)) {
    return true;
  }
  const size_t at = slot(index, direction, stage, action->microbatch);
  if (index->made[at] != 1 || cell->need_count == ORACLE_NEEDS_MAX) {
    return false;
  }
  cell->needs[cell->need_count++] = index->maker[at];
  return true;
}

static bool cell_set_send(struct oracle *oracle, struct oracle_cell *cell, struct index *index,
                          const struct weft_action *action, uint32_t rank) {
  const uint32_t direction = action->op == WEFT_OP_SEND_F ? 0 : 1;
  const size_t at = slot(index, direction, action->stage, action->microbatch);
  if (index->sent[at] != 1) {
    return false;
  }
  cell->kind = ORACLE_SEND;
  cell->message = oracle->message_count;
  oracle->messages[oracle->message_count] = (struct oracle_message){
      .from = rank, .to = ORACLE_NONE, .edge = direction * index->stages + action->stage};
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
      at += 1u + found->parts;
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
      const uint64_t end = at + 1u + program->actions[at].parts;
      struct oracle_cell *cell = &oracle->cells[number];
      for (; at < end; at++) {
        const struct weft_action *action = &program->actions[at];
        if (is_send(action->op) && !cell_set_send(oracle, cell, index, action, rank)) {
          return false;
        }
        if (action->op == WEFT_OP_TIE_GRAD) {
          cell_set_tie(cell, program, action, rank);
        }
        if (program->level == WEFT_LEVEL_COMPUTE && !cell_add_need(cell, index, action)) {
          return false;
        }
      }
    }
  }
  return true;
}

static bool cell_set_recv(struct oracle *oracle, struct oracle_cell *cell, struct index *index,
                          const struct weft_action *action, uint32_t rank) {
  const bool forward = action->op == WEFT_OP_RECV_F;
  const uint32_t stage = forward ? action->stage - 1u : action->stage + 1u;
  if (stage >= index->stages) {
    return false;
  }
  const size_t at = slot(index, forward ? 0 : 1, stage, action->microbatch);
  if (index->sent[at] != 1 || index->taken[at]++ != 0) {
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
      at += 1u + action->parts;
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
  oracle->edge_count = 2 * program->stage_count;
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
