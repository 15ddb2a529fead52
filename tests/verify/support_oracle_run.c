/* The oracle, part four: one maximal run of a program, who waits for whom in the
 * end, and the replay of a reported cycle (support_oracle.h). Written to be
 * plainly right rather than quick: a run goes round the ranks until a whole
 * round changes nothing. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "support_oracle.h"

static void *allocate(size_t count, size_t size) {
  void *memory = calloc(count + 1, size);
  assert(memory != NULL);
  return memory;
}

/* --- One maximal run ----------------------------------------------------- */

static uint32_t channel_count(const struct oracle *oracle, enum weft_channel_model channel) {
  switch (channel) {
    case WEFT_CHANNEL_EDGE: return oracle->edge_count;
    case WEFT_CHANNEL_PAIR: return oracle->rank_count * oracle->rank_count;
    default: return oracle->rank_count;
  }
}

static uint32_t channel_of(const struct oracle *oracle, enum weft_channel_model channel,
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

/* By paths of growing length: reach[] are the ranks that some number of waits leads to. */
uint32_t oracle_shortest_cycle(const struct oracle *oracle, const struct oracle_run *run) {
  for (uint32_t length = 1; length <= oracle->rank_count; length++) {
    for (uint32_t start = 0; start < oracle->rank_count; start++) {
      uint64_t reach = UINT64_C(1) << start;
      for (uint32_t k = 0; k < length; k++) {
        uint64_t next = 0;
        for (uint32_t pair = 0; pair < oracle->rank_count * oracle->rank_count; pair++) {
          const uint32_t rank = pair / oracle->rank_count, other = pair % oracle->rank_count;
          if ((reach >> rank & 1) != 0 && oracle_waits_for(oracle, run, rank, other)) {
            next |= UINT64_C(1) << other;
          }
        }
        reach = next;
      }
      if ((reach >> start & 1) != 0) {
        return length;
      }
    }
  }
  return 0;
}

/* Is `action` a record of the cell? */
static bool in_cell(const struct weft_program *program, uint32_t rank, uint32_t cell,
                    const struct weft_action *action) {
  uint64_t at = program->row_begin[rank];
  for (uint32_t number = 0; number < cell; number++) {
    at += oracle_cell_records(&program->actions[at]);
  }
  const struct weft_action *first = &program->actions[at];
  return action >= first && action < first + oracle_cell_records(first);
}

static const char *replay_member(const struct weft_program *program, const struct oracle *oracle,
                                 const struct oracle_run *run, const struct weft_finding *finding,
                                 size_t member) {
  const struct weft_location *place = &finding->cycle[member];
  const struct weft_location *next = &finding->cycle[(member + 1) % finding->cycle_length];
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
    placed = placed || (finding->location.rank == finding->cycle[member].rank &&
                        finding->location.step == finding->cycle[member].step);
  }
  return placed ? NULL : "the finding's place is not in its cycle";
}
