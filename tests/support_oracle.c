/* The oracle, part one: making a program ready, one maximal run of it, who
 * waits for whom in the end, and the replay of a reported cycle
 * (support_oracle.h). Written to be plainly right rather than quick: a run
 * goes round the ranks until a whole round changes nothing. */
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

/* --- One maximal run ----------------------------------------------------- */

static uint32_t channel_count(const struct oracle *oracle, enum weft_channel channel) {
  switch (channel) {
    case WEFT_CHANNEL_EDGE: return oracle->edge_count;
    case WEFT_CHANNEL_PAIR: return oracle->rank_count * oracle->rank_count;
    default: return oracle->rank_count;
  }
}

static uint32_t channel_of(const struct oracle *oracle, enum weft_channel channel,
                           const struct oracle_message *message) {
  switch (channel) {
    case WEFT_CHANNEL_EDGE: return message->edge;
    case WEFT_CHANNEL_PAIR: return message->from * oracle->rank_count + message->to;
    default: return message->from;
  }
}

static uint32_t row_cells(const struct oracle *oracle, uint32_t rank) {
  return oracle->cell_begin[rank + 1] - oracle->cell_begin[rank];
}

static const struct oracle_cell *next_cell(const struct oracle *oracle,
                                           const struct oracle_run *run, uint32_t rank) {
  return run->cell[rank] < row_cells(oracle, rank)
             ? &oracle->cells[oracle->cell_begin[rank] + run->cell[rank]]
             : NULL;
}

static void channel_put(struct oracle_run *run, uint32_t message) {
  const uint32_t channel = run->channel[message];
  run->next[message] = ORACLE_NONE;
  if (run->waiting[channel]++ == 0) {
    run->oldest[channel] = message;
  } else {
    run->next[run->newest[channel]] = message;
  }
  run->newest[channel] = message;
}

static void channel_take(struct oracle_run *run, uint32_t message) {
  const uint32_t channel = run->channel[message];
  run->oldest[channel] = run->next[message];
  run->waiting[channel]--;
  run->received[message] = 1;
}

static bool step_send(struct oracle_run *run, uint32_t capacity, uint32_t rank, uint32_t message) {
  if (capacity == 0) {
    if (!run->posted[rank]) {
      channel_put(run, message);
      run->posted[rank] = 1;
      return true;
    }
    if (!run->received[message]) {
      return false;
    }
    run->posted[rank] = 0;
    run->cell[rank]++;
    return true;
  }
  if (capacity != WEFT_CAPACITY_UNLIMITED && run->waiting[run->channel[message]] >= capacity) {
    return false;
  }
  channel_put(run, message);
  run->cell[rank]++;
  return true;
}

static bool step(const struct oracle *oracle, uint32_t capacity, struct oracle_run *run,
                 uint32_t rank) {
  const struct oracle_cell *cell = next_cell(oracle, run, rank);
  if (cell == NULL) {
    return false;
  }
  if (cell->kind == ORACLE_SEND) {
    return step_send(run, capacity, rank, cell->message);
  }
  if (cell->kind == ORACLE_RECV) {
    const uint32_t channel = run->channel[cell->message];
    if (run->waiting[channel] == 0 || run->oldest[channel] != cell->message) {
      return false;
    }
    channel_take(run, cell->message);
  }
  for (uint32_t need = 0; need < cell->need_count; need++) {
    if (run->cell[cell->needs[need].rank] <= cell->needs[need].cell) {
      return false;
    }
  }
  run->cell[rank]++;
  return true;
}

static void run_init(const struct oracle *oracle, struct weft_comm_model model,
                     struct oracle_run *run) {
  const uint32_t channels = channel_count(oracle, model.channel);
  run->complete = true;
  run->cell = allocate(oracle->rank_count, sizeof *run->cell);
  run->posted = allocate(oracle->rank_count, 1);
  run->received = allocate(oracle->message_count, 1);
  run->channel = allocate(oracle->message_count, sizeof *run->channel);
  run->next = allocate(oracle->message_count, sizeof *run->next);
  run->oldest = allocate(channels, sizeof *run->oldest);
  run->newest = allocate(channels, sizeof *run->newest);
  run->waiting = allocate(channels, sizeof *run->waiting);
  for (uint32_t message = 0; message < oracle->message_count; message++) {
    run->channel[message] = channel_of(oracle, model.channel, &oracle->messages[message]);
  }
}

void oracle_run(const struct oracle *oracle, struct weft_comm_model model, struct oracle_run *run) {
  run_init(oracle, model, run);
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t rank = 0; rank < oracle->rank_count; rank++) {
      while (step(oracle, model.capacity, run, rank)) {
        moved = true;
      }
    }
  }
  for (uint32_t rank = 0; rank < oracle->rank_count; rank++) {
    run->complete = run->complete && run->cell[rank] == row_cells(oracle, rank);
  }
}

void oracle_run_finish(struct oracle_run *run) {
  free(run->cell);
  free(run->posted);
  free(run->received);
  free(run->channel);
  free(run->next);
  free(run->oldest);
  free(run->newest);
  free(run->waiting);
  memset(run, 0, sizeof *run);
}

/* --- Who waits for whom --------------------------------------------------- */

/* Is `message` on its channel, sent and not yet received? */
static bool on_channel(const struct oracle_run *run, uint32_t message) {
  const uint32_t channel = run->channel[message];
  uint32_t at = run->waiting[channel] > 0 ? run->oldest[channel] : ORACLE_NONE;
  while (at != ORACLE_NONE && at != message) {
    at = run->next[at];
  }
  return at == message;
}

/* A RECV waits for the sender while its message is not out, and for whoever
 * must take the messages that are on the channel before it. */
static bool recv_waits_for(const struct oracle *oracle, const struct oracle_run *run,
                           uint32_t message, uint32_t other) {
  if (!on_channel(run, message) && oracle->messages[message].from == other) {
    return true;
  }
  const uint32_t channel = run->channel[message];
  uint32_t at = run->waiting[channel] > 0 ? run->oldest[channel] : ORACLE_NONE;
  for (; at != ORACLE_NONE && at != message; at = run->next[at]) {
    if (oracle->messages[at].to == other) {
      return true;
    }
  }
  return false;
}

bool oracle_waits_for(const struct oracle *oracle, const struct oracle_run *run, uint32_t rank,
                      uint32_t other) {
  const struct oracle_cell *cell = next_cell(oracle, run, rank);
  if (cell == NULL) {
    return false;
  }
  if (cell->kind == ORACLE_RECV) {
    return recv_waits_for(oracle, run, cell->message, other);
  }
  if (cell->kind == ORACLE_SEND) {
    /* Rendezvous: its own message is out. Slots: the oldest one is in the way. */
    const uint32_t blocker =
        run->posted[rank] ? cell->message : run->oldest[run->channel[cell->message]];
    return oracle->messages[blocker].to == other;
  }
  for (uint32_t need = 0; need < cell->need_count; need++) {
    if (cell->needs[need].rank == other && run->cell[other] <= cell->needs[need].cell) {
      return true;
    }
  }
  return false;
}

/* Is `action` a record of the cell? */
static bool in_cell(const struct weft_program *program, uint32_t rank, uint32_t cell,
                    const struct weft_action *action) {
  uint64_t at = program->row_begin[rank];
  for (uint32_t number = 0; number < cell; number++) {
    at += 1u + program->actions[at].parts;
  }
  const struct weft_action *first = &program->actions[at];
  return action >= first && action <= first + first->parts;
}

static const char *replay_member(const struct weft_program *program, const struct oracle *oracle,
                                 const struct oracle_run *run, const struct weft_finding *finding,
                                 size_t member) {
  const struct weft_place *place = &finding->cycle[member];
  const struct weft_place *next = &finding->cycle[(member + 1) % finding->cycle_length];
  if (place->rank >= oracle->rank_count || place->step != run->cell[place->rank]) {
    return "a member of the cycle is not where its rank is stuck";
  }
  if (place->step >= row_cells(oracle, place->rank)) {
    return "a member of the cycle has finished";
  }
  if (place->action == NULL ||
      !in_cell(program, place->rank, (uint32_t)place->step, place->action)) {
    return "a member's action is not in the cell where its rank is stuck";
  }
  if (!oracle_waits_for(oracle, run, place->rank, next->rank)) {
    return "a member of the cycle does not wait for the next one's rank";
  }
  if (finding->cycle_waits == NULL || finding->cycle_waits[member] == NULL ||
      finding->cycle_waits[member][0] == '\0') {
    return "a member of the cycle does not say what it waits for";
  }
  for (size_t other = 0; other < member; other++) {
    if (finding->cycle[other].rank == place->rank) {
      return "a rank is in the cycle twice";
    }
  }
  return NULL;
}

const char *oracle_replay(const struct weft_program *program, const struct oracle *oracle,
                          const struct oracle_run *run, const struct weft_finding *finding) {
  if (run->complete) {
    return "a cycle is reported, but the run completes";
  }
  if (finding->cycle == NULL || finding->cycle_length == 0) {
    return "a deadlock is reported without a cycle";
  }
  bool placed = false;
  for (size_t member = 0; member < finding->cycle_length; member++) {
    const char *complaint = replay_member(program, oracle, run, finding, member);
    if (complaint != NULL) {
      return complaint;
    }
    placed = placed || (finding->place.rank == finding->cycle[member].rank &&
                        finding->place.step == finding->cycle[member].step);
  }
  return placed ? NULL : "the finding's place is not in its cycle";
}
