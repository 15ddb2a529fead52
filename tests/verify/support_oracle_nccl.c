/* The oracle for the asynchronous models (support_oracle_nccl.h). Written to be plainly right
 * rather than quick. */
#include "support_oracle_nccl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[ORACLE_NCCL_MODELS] = {"rendezvous/nccl-directed",
                                                      "rendezvous/nccl-pair",
                                                      "rendezvous/nccl-world",
                                                      "slots:1/nccl-directed",
                                                      "slots:1/nccl-pair",
                                                      "slots:1/nccl-world",
                                                      "slots:2/nccl-directed",
                                                      "slots:2/nccl-pair",
                                                      "slots:2/nccl-world",
                                                      "eager/nccl-directed",
                                                      "eager/nccl-pair",
                                                      "eager/nccl-world",
                                                      "posted/edge",
                                                      "posted/pair",
                                                      "posted/rank"};

struct weft_comm_model oracle_nccl_model(uint32_t index) {
  static const uint32_t capacities[] = {0, 1, 2, WEFT_CAPACITY_UNLIMITED};
  static const enum weft_channel_model channels[] = {
      WEFT_CHANNEL_NCCL_DIRECTED, WEFT_CHANNEL_NCCL_PAIR, WEFT_CHANNEL_NCCL_WORLD};
  static const enum weft_channel_model posted[] = {WEFT_CHANNEL_EDGE, WEFT_CHANNEL_PAIR,
                                                   WEFT_CHANNEL_RANK};
  return index < 12 ? (struct weft_comm_model){capacities[index / 3], channels[index % 3], false}
                    : (struct weft_comm_model){WEFT_CAPACITY_UNLIMITED, posted[index % 3], true};
}

const char *oracle_nccl_model_name(uint32_t index) { return names[index]; }

static void *allocate(size_t count, size_t size) {
  void *memory = calloc(count + 1, size);
  assert(memory != NULL);
  return memory;
}

/* --- Making a program ready --------------------------------------------- */

/* Whether one of the cell's actions takes what the RECV brings. */
static bool takes(const struct weft_action *cell, const struct weft_action *recv) {
  for (uint32_t k = 0; k < oracle_cell_records(cell); k++) {
    const bool forward = recv->op == WEFT_OP_RECV_F;
    const bool fits =
        forward ? cell[k].op == WEFT_OP_F : cell[k].op == WEFT_OP_B || cell[k].op == WEFT_OP_I;
    if (fits && cell[k].stage == recv->stage && cell[k].microbatch == recv->microbatch) {
      return true;
    }
  }
  return false;
}

static uint32_t queue_of(const struct oracle_nccl *nccl, const struct oracle_cell *cell) {
  if (cell->kind == ORACLE_COMPUTE) {
    return 0;
  }
  const struct oracle_message *message = &nccl->oracle->messages[cell->message];
  const bool sends = cell->kind == ORACLE_SEND;
  const uint32_t other = sends ? message->to : message->from;
  switch (nccl->model.channel) {
    case WEFT_CHANNEL_NCCL_DIRECTED: return 1 + 2 * other + (sends ? 1 : 0);
    case WEFT_CHANNEL_NCCL_PAIR: return 1 + other;
    case WEFT_CHANNEL_EDGE: return 1 + message->edge;
    case WEFT_CHANNEL_PAIR: return 1 + 2 * other + (sends ? 1 : 0);
    case WEFT_CHANNEL_RANK: return sends ? 1 : 2 + other;
    default: return 1;
  }
}

static void find_receives(struct oracle_nccl *nccl, const struct weft_program *program,
                          uint32_t rank) {
  const uint32_t begin = nccl->oracle->cell_begin[rank];
  uint32_t number = 0;
  for (uint64_t at = program->row_begin[rank]; at < program->row_begin[rank + 1]; number++) {
    const struct weft_action *recv = &program->actions[at];
    at += oracle_cell_records(recv);
    if (recv->op != WEFT_OP_RECV_F && recv->op != WEFT_OP_RECV_B) {
      continue;
    }
    uint32_t later = number + 1;
    for (uint64_t next = at; next < program->row_begin[rank + 1]; later++) {
      const struct weft_action *cell = &program->actions[next];
      next += oracle_cell_records(cell);
      if (takes(cell, recv)) {
        uint32_t *of = &nccl->receives[(size_t)(begin + later) * ORACLE_NEEDS_MAX];
        while (*of != 0) {
          of++;
        }
        *of = begin + number + 1;
      }
    }
  }
}

void oracle_nccl_init(struct oracle_nccl *nccl, const struct oracle *oracle,
                      const struct weft_program *program, struct weft_comm_model model) {
  const uint32_t cells = oracle->cell_begin[oracle->rank_count];
  *nccl = (struct oracle_nccl){.oracle = oracle, .model = model, .cell_count = cells};
  nccl->receives = allocate((size_t)cells * (ORACLE_NEEDS_MAX + 1), sizeof *nccl->receives);
  nccl->queue = allocate(cells, sizeof *nccl->queue);
  for (uint32_t cell = 0; cell < cells; cell++) {
    nccl->queue[cell] = queue_of(nccl, &oracle->cells[cell]);
  }
  for (uint32_t rank = 0; rank < oracle->rank_count; rank++) {
    find_receives(nccl, program, rank);
  }
}

void oracle_nccl_finish(struct oracle_nccl *nccl) {
  free(nccl->receives);
  free(nccl->queue);
  memset(nccl, 0, sizeof *nccl);
}

/* --- What may happen -------------------------------------------------------- */

/* Whether a cell waits for another one of its own row. */
static bool waits_for_own(const struct oracle_nccl *nccl, const uint8_t *done, uint32_t cell,
                          uint32_t other) {
  const bool transfer = nccl->queue[cell] != 0;
  if (done[other] || other == cell) {
    return false;
  }
  if (other < cell &&
      (nccl->queue[other] == 0 || (transfer && nccl->queue[other] == nccl->queue[cell]))) {
    return true;
  }
  for (uint32_t k = 0; !transfer && k < ORACLE_NEEDS_MAX; k++) {
    if (nccl->receives[(size_t)cell * ORACLE_NEEDS_MAX + k] == other + 1) {
      return true;
    }
  }
  return false;
}

static bool has_started(const struct oracle_nccl *nccl, const uint8_t *done, uint32_t rank,
                        uint32_t cell) {
  for (uint32_t other = nccl->oracle->cell_begin[rank]; other < cell; other++) {
    if (waits_for_own(nccl, done, cell, other)) {
      return false;
    }
  }
  return true;
}

static uint32_t channel_number(const struct oracle_nccl *nccl, uint32_t number) {
  const struct oracle_message *message = &nccl->oracle->messages[number];
  switch (nccl->model.channel) {
    case WEFT_CHANNEL_EDGE: return message->edge;
    case WEFT_CHANNEL_RANK: return message->from;
    default: return message->from * nccl->oracle->rank_count + message->to;
  }
}

static bool same_channel(const struct oracle_nccl *nccl, uint32_t a, uint32_t b) {
  return channel_number(nccl, a) == channel_number(nccl, b);
}

/* Messages on a message's channel, and the oldest of them. */
static uint32_t on_channel(const struct oracle_nccl *nccl, const struct oracle_nccl_run *run,
                           uint32_t message, uint32_t *oldest) {
  uint32_t count = 0;
  *oldest = ORACLE_NONE;
  for (uint32_t at = 0; at < run->in_flight; at++) {
    if (same_channel(nccl, run->flight[at], message) && count++ == 0) {
      *oldest = run->flight[at];
    }
  }
  return count;
}

static void take_message(struct oracle_nccl_run *run, uint32_t message) {
  uint32_t at = 0;
  while (run->flight[at] != message) {
    at++;
  }
  for (run->in_flight--; at < run->in_flight; at++) {
    run->flight[at] = run->flight[at + 1];
  }
  run->flight[run->in_flight] = 0;
}

static bool is_in_flight(const struct oracle_nccl_run *run, uint32_t message) {
  for (uint32_t at = 0; at < run->in_flight; at++) {
    if (run->flight[at] == message) {
      return true;
    }
  }
  return false;
}

static bool step_send(const struct oracle_nccl *nccl, struct oracle_nccl_run *run, uint32_t cell,
                      uint32_t message) {
  uint32_t oldest;
  const uint32_t capacity = nccl->model.capacity;
  if (capacity == 0 && !run->out[cell]) {
    run->flight[run->in_flight++] = message;
    run->out[cell] = 1;
    return true;
  }
  if (capacity == 0) {
    if (is_in_flight(run, message)) {
      return false;
    }
    run->out[cell] = 0;
    run->done[cell] = 1;
    return true;
  }
  if (on_channel(nccl, run, message, &oldest) >= capacity) {
    return false;
  }
  run->flight[run->in_flight++] = message;
  run->done[cell] = 1;
  return true;
}

/* Does one thing for a cell, if it can. */
static bool step(const struct oracle_nccl *nccl, struct oracle_nccl_run *run, uint32_t rank,
                 uint32_t cell) {
  const struct oracle_cell *of = &nccl->oracle->cells[cell];
  if (run->done[cell] || !has_started(nccl, run->done, rank, cell)) {
    return false;
  }
  if (of->kind == ORACLE_SEND) {
    return step_send(nccl, run, cell, of->message);
  }
  if (of->kind == ORACLE_RECV) {
    uint32_t oldest;
    (void)on_channel(nccl, run, of->message, &oldest);
    if (oldest != of->message) {
      return false;
    }
    take_message(run, of->message);
  }
  run->done[cell] = 1;
  return true;
}

static void run_init(const struct oracle_nccl *nccl, struct oracle_nccl_run *run) {
  *run = (struct oracle_nccl_run){
      .done = allocate(nccl->cell_count, 1),
      .out = allocate(nccl->cell_count, 1),
      .flight = allocate(nccl->oracle->message_count, sizeof *run->flight)};
}

void oracle_nccl_run(const struct oracle_nccl *nccl, struct oracle_nccl_run *run) {
  run_init(nccl, run);
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t rank = 0; rank < nccl->oracle->rank_count; rank++) {
      for (uint32_t cell = nccl->oracle->cell_begin[rank];
           cell < nccl->oracle->cell_begin[rank + 1]; cell++) {
        while (step(nccl, run, rank, cell)) {
          moved = true;
        }
      }
    }
  }
  run->complete = memchr(run->done, 0, nccl->cell_count) == NULL;
}

void oracle_nccl_run_finish(struct oracle_nccl_run *run) {
  free(run->done);
  free(run->out);
  free(run->flight);
  memset(run, 0, sizeof *run);
}

/* --- Every interleaving --------------------------------------------------------- */

/* `flight` is sorted by channel, so that states that differ in nothing else are one. */
struct state {
  uint64_t done[ORACLE_EXPLORE_RANKS];
  uint64_t out[ORACLE_EXPLORE_RANKS];
  uint8_t in_flight;
  uint8_t flight[ORACLE_EXPLORE_MESSAGES];
  uint8_t padding[6];
};

#define TABLE_SIZE 65536u
#define SEEN_MAX (TABLE_SIZE / 2)

struct search {
  uint32_t table[TABLE_SIZE]; /* number of a seen state + 1, or 0 */
  uint32_t used[SEEN_MAX];
  struct state seen[SEEN_MAX];
  uint32_t seen_count;
  bool full;
};

static void see(struct search *search, const struct state *state) {
  uint64_t words[sizeof *state / 8], hash = 0;
  memcpy(words, state, sizeof words);
  for (size_t word = 0; word < sizeof words / 8; word++) {
    hash = (hash ^ words[word]) * UINT64_C(0x9E3779B97F4A7C15);
    hash ^= hash >> 29;
  }
  uint32_t at = (uint32_t)(hash % TABLE_SIZE);
  while (search->table[at] != 0) {
    if (memcmp(&search->seen[search->table[at] - 1], state, sizeof *state) == 0) {
      return;
    }
    at = (at + 1) % TABLE_SIZE;
  }
  if (search->seen_count == SEEN_MAX) {
    search->full = true;
    return;
  }
  search->used[search->seen_count] = at;
  search->seen[search->seen_count++] = *state;
  search->table[at] = search->seen_count;
}

static void pack(const struct oracle_nccl *nccl, const struct oracle_nccl_run *run,
                 struct state *state) {
  const struct oracle *oracle = nccl->oracle;
  memset(state, 0, sizeof *state);
  for (uint32_t rank = 0; rank < oracle->rank_count; rank++) {
    const uint32_t begin = oracle->cell_begin[rank];
    assert(oracle->cell_begin[rank + 1] - begin <= 64);
    for (uint32_t cell = begin; cell < oracle->cell_begin[rank + 1]; cell++) {
      state->done[rank] |= (uint64_t)run->done[cell] << (cell - begin);
      state->out[rank] |= (uint64_t)run->out[cell] << (cell - begin);
    }
  }
  for (uint32_t k = 0; k < run->in_flight; k++) {
    uint32_t at = state->in_flight++;
    while (at > 0 &&
           channel_number(nccl, state->flight[at - 1]) > channel_number(nccl, run->flight[k])) {
      state->flight[at] = state->flight[at - 1];
      at--;
    }
    state->flight[at] = (uint8_t)run->flight[k];
  }
}

static void unpack(const struct oracle_nccl *nccl, const struct state *state,
                   struct oracle_nccl_run *run) {
  const struct oracle *oracle = nccl->oracle;
  for (uint32_t rank = 0; rank < oracle->rank_count; rank++) {
    const uint32_t begin = oracle->cell_begin[rank];
    for (uint32_t cell = begin; cell < oracle->cell_begin[rank + 1]; cell++) {
      run->done[cell] = state->done[rank] >> (cell - begin) & 1;
      run->out[cell] = state->out[rank] >> (cell - begin) & 1;
    }
  }
  run->in_flight = state->in_flight;
  for (uint32_t k = 0; k < state->in_flight; k++) {
    run->flight[k] = state->flight[k];
  }
}

/* All states that one thing leads to; false when there is none. */
static bool expand(const struct oracle_nccl *nccl, struct search *search, uint32_t number,
                   struct oracle_nccl_run *scratch) {
  const struct state from = search->seen[number];
  bool moved = false;
  for (uint32_t rank = 0; rank < nccl->oracle->rank_count; rank++) {
    const uint32_t begin = nccl->oracle->cell_begin[rank];
    for (uint32_t cell = begin; cell < nccl->oracle->cell_begin[rank + 1]; cell++) {
      if ((from.done[rank] >> (cell - begin) & 1) != 0) {
        continue;
      }
      unpack(nccl, &from, scratch);
      if (step(nccl, scratch, rank, cell)) {
        struct state next;
        pack(nccl, scratch, &next);
        see(search, &next);
        moved = true;
      }
    }
  }
  return moved;
}

struct oracle_nccl_exploration oracle_nccl_explore(const struct oracle_nccl *nccl,
                                                   const struct oracle_nccl_run *run) {
  static struct search search; /* kept, and cleared through `used` */
  assert(nccl->oracle->rank_count <= ORACLE_EXPLORE_RANKS);
  assert(nccl->oracle->message_count <= ORACLE_EXPLORE_MESSAGES);
  struct oracle_nccl_exploration found = {0};
  struct oracle_nccl_run scratch;
  struct state end;
  run_init(nccl, &scratch);
  pack(nccl, &scratch, &search.seen[0]);
  const struct state start = search.seen[0];
  search.full = false;
  see(&search, &start);
  pack(nccl, run, &end);
  for (uint32_t at = 0; at < search.seen_count && !search.full; at++) {
    if (!expand(nccl, &search, at, &scratch)) {
      found.agrees =
          found.ends == 0 && memcmp(search.seen[at].done, end.done, sizeof end.done) == 0;
      found.ends++;
    }
  }
  found.states = search.full ? 0 : search.seen_count;
  while (search.seen_count > 0) {
    search.table[search.used[--search.seen_count]] = 0;
  }
  oracle_nccl_run_finish(&scratch);
  return found;
}

/* --- The replay of a cycle ----------------------------------------------------------- */

/* The cell at the other end of a message. */
static uint32_t partner(const struct oracle *oracle, uint32_t message, enum oracle_kind kind) {
  for (uint32_t cell = 0; cell < oracle->cell_begin[oracle->rank_count]; cell++) {
    if (oracle->cells[cell].kind == kind && oracle->cells[cell].message == message) {
      return cell;
    }
  }
  return ORACLE_NONE;
}

static uint32_t rank_of(const struct oracle *oracle, uint32_t cell) {
  uint32_t rank = 0;
  while (oracle->cell_begin[rank + 1] <= cell) {
    rank++;
  }
  return rank;
}

/* Whether `cell` must be done before `waiting` can be; both are not. */
static bool needs(const struct oracle_nccl *nccl, const struct oracle_nccl_run *run,
                  uint32_t waiting, uint32_t cell) {
  const struct oracle *oracle = nccl->oracle;
  const struct oracle_cell *of = &oracle->cells[waiting];
  const uint32_t rank = rank_of(oracle, waiting);
  uint32_t oldest;
  if (!has_started(nccl, run->done, rank, waiting)) {
    return rank == rank_of(oracle, cell) && waits_for_own(nccl, run->done, waiting, cell);
  }
  (void)on_channel(nccl, run, of->message, &oldest);
  if (of->kind == ORACLE_SEND) {
    return partner(oracle, run->out[waiting] ? of->message : oldest, ORACLE_RECV) == cell;
  }
  /* For its SEND, and for the RECVs of what is on the channel before it. */
  if (!is_in_flight(run, of->message) && partner(oracle, of->message, ORACLE_SEND) == cell) {
    return true;
  }
  for (uint32_t k = 0; k < run->in_flight && run->flight[k] != of->message; k++) {
    if (same_channel(nccl, run->flight[k], of->message) &&
        partner(oracle, run->flight[k], ORACLE_RECV) == cell) {
      return true;
    }
  }
  return false;
}

static uint32_t cell_at(const struct oracle *oracle, const struct weft_location *place) {
  return oracle->cell_begin[place->rank] + (uint32_t)place->step;
}

static const char *replay_member(const struct oracle_nccl *nccl, const struct oracle_nccl_run *run,
                                 const struct weft_finding *finding, size_t member) {
  const struct oracle *oracle = nccl->oracle;
  const struct weft_location *place = &finding->cycle[member];
  const struct weft_location *next = &finding->cycle[(member + 1) % finding->cycle_length];
  const uint32_t cell = cell_at(oracle, place), other = cell_at(oracle, next);
  if (run->done[cell]) {
    return "a member of the cycle is done";
  }
  for (uint32_t earlier = oracle->cell_begin[place->rank]; earlier < cell; earlier++) {
    if (!run->done[earlier] && nccl->queue[earlier] == nccl->queue[cell]) {
      return "a member of the cycle is not the next of its queue";
    }
  }
  for (uint32_t k = other; k < oracle->cell_begin[next->rank + 1]; k++) {
    if (nccl->queue[k] == nccl->queue[other] && !run->done[k] && needs(nccl, run, cell, k)) {
      return finding->cycle_waits[member][0] != '\0'
                 ? NULL
                 : "a member of the cycle does not say what it waits for";
    }
  }
  return "a member of the cycle does not wait for the next one";
}

const char *oracle_nccl_replay(const struct oracle_nccl *nccl, const struct oracle_nccl_run *run,
                               const struct weft_finding *finding) {
  if (run->complete || finding->cycle_length == 0) {
    return run->complete ? "a cycle is reported, but the run completes"
                         : "a deadlock is reported without a cycle";
  }
  for (size_t member = 0; member < finding->cycle_length; member++) {
    const char *complaint = replay_member(nccl, run, finding, member);
    for (size_t other = 0; complaint == NULL && other < member; other++) {
      const struct weft_location *a = &finding->cycle[member], *b = &finding->cycle[other];
      complaint =
          a->rank == b->rank && a->step == b->step ? "an action is in the cycle twice" : NULL;
    }
    if (complaint != NULL) {
      return complaint;
    }
  }
  return NULL;
}
