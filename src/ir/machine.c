/* The run of agents; see machine.h. */
#include "ir/machine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void wake(struct weft_machine *machine, uint32_t agent) {
  if (agent == WEFT_RANK_NONE) {
    return;
  }
  struct weft_agent_state *state = &machine->states[agent];
  if (!state->queued && state->at < state->end) {
    state->queued = true;
    machine->work[machine->work_count++] = agent;
  }
}

/* ---- Programs: channels ---- */

WEFT_GRAPH_INLINE bool try_send(struct weft_machine *machine, const struct weft_graph *graph,
                                uint32_t agent, struct weft_action send) {
  struct weft_agent_state *state = &machine->states[agent];
  const uint32_t channel = weft_machine_channel(machine, graph, send);
  if (!state->offered) {
    state->offered = true;
    state->message = machine->sent[channel]++;
    if (state->message == machine->taken[channel]) {
      wake(machine, weft_machine_receiver(machine, graph, send));
    }
  }
  if (machine->capacity != WEFT_CAPACITY_UNLIMITED &&
      (uint64_t)machine->taken[channel] + machine->capacity <= state->message) {
    return false;
  }
  state->offered = false;
  return true;
}

WEFT_GRAPH_INLINE bool try_receive(struct weft_machine *machine, const struct weft_graph *graph,
                                   struct weft_action recv) {
  struct weft_action send;
  if (!weft_action_partner(recv, machine->placed.stage_count, &send)) {
    return true;
  }
  const uint32_t channel = weft_machine_channel(machine, graph, send);
  const struct weft_action *first = weft_machine_oldest(machine, channel);
  if (first == NULL || !weft_action_equal(*first, send)) {
    return false;
  }
  machine->taken[channel]++;
  wake(machine, weft_machine_sender(machine, graph, send)); /* its SEND may be done now */
  const struct weft_action *next = weft_machine_oldest(machine, channel);
  if (next != NULL) {
    wake(machine, weft_machine_receiver(machine, graph, *next));
  }
  return true;
}

/* ---- Tables: data ---- */

static void make_outputs(struct weft_machine *machine, struct weft_action action) {
  const struct weft_graph *graph = machine->placed.program->graph;
  const uint32_t outputs = weft_action_output_count(graph, action, machine->placed.stage_count);
  for (uint32_t k = 0; k < outputs; k++) {
    const uint32_t edge = weft_action_output_channel(graph, action, k);
    *weft_machine_message(machine, edge, action.microbatch) |= 1;
    wake(machine, machine->placed.rank_of[weft_action_output_at(graph, action, k)]);
  }
}

/* Whether all inputs of a cell from other ranks are there. */
static bool has_inputs(const struct weft_machine *machine, uint32_t rank,
                       const struct weft_action *cell) {
  for (uint32_t part = 0; part <= weft_cell_parts(cell); part++) {
    uint32_t k = 0, producer;
    if (weft_machine_next_lacking(machine, cell[part], rank, &k, &producer)) {
      return false;
    }
  }
  return true;
}

static bool try_compute(struct weft_machine *machine, uint32_t rank,
                        const struct weft_action *cell) {
  if (!has_inputs(machine, rank, cell)) {
    return false;
  }
  for (uint32_t k = 0; k <= weft_cell_parts(cell); k++) {
    make_outputs(machine, cell[k]);
  }
  return true;
}

/* ---- Queues: compute and transfers beside each other ---- */

static bool try_queue(struct weft_machine *machine, uint32_t agent,
                      const struct weft_action *transfer) {
  const struct weft_graph *graph = machine->placed.program->graph;
  const uint32_t rank = weft_agent_rank(&machine->agents, agent);
  if (!weft_machine_is_issued(machine, rank, weft_machine_record_number(machine, agent))) {
    return false;
  }
  if (weft_op_in(transfer->op, WEFT_OPS_SEND)) {
    return try_send(machine, graph, agent, *transfer);
  }
  if (!try_receive(machine, graph, *transfer)) {
    return false;
  }
  const uint32_t edge = weft_channel_in(graph, machine->placed.stage_count, *transfer);
  *weft_machine_message(machine, edge, transfer->microbatch) |= 1;
  wake(machine, rank);
  return true;
}

static void wake_queues(struct weft_machine *machine, uint32_t rank) {
  for (uint32_t a = machine->agents.first_queue[rank]; a < machine->agents.first_queue[rank + 1];
       a++) {
    wake(machine, a);
  }
}

/* Compute that stands before its RECV does not wait for it: that is a finding of another check. */
static void record_early(struct weft_machine *machine) {
  enum { BEHIND = 2 }; /* the RECV is behind us */
  const struct weft_program *program = machine->placed.program;
  const uint32_t stages = machine->placed.stage_count;
  for (uint64_t i = 0; i < program->action_count; i++) {
    const struct weft_action action = program->actions[i];
    if (weft_op_in(action.op, WEFT_OPS_RECV)) {
      const uint32_t edge = weft_channel_in(program->graph, stages, action);
      *weft_machine_message(machine, edge, action.microbatch) |= BEHIND;
      continue;
    }
    const uint32_t inputs = weft_action_input_count(program->graph, action, stages);
    for (uint32_t k = 0; k < inputs; k++) {
      const uint32_t edge = weft_action_input_channel(program->graph, action, k);
      uint8_t *message = weft_machine_message(machine, edge, action.microbatch);
      *message |= (*message & BEHIND) == 0;
    }
  }
}

/* ---- The run ---- */

WEFT_GRAPH_INLINE bool try_cell(struct weft_machine *machine, const struct weft_graph *graph,
                                uint32_t agent, const struct weft_action *cell) {
  if (!machine->has_transfers) {
    return try_compute(machine, agent, cell);
  }
  if (machine->has_queues && agent >= machine->agents.rank_count) {
    return try_queue(machine, agent, cell);
  }
  if (machine->has_queues) {
    return has_inputs(machine, agent, cell);
  }
  if (weft_op_in(cell->op, WEFT_OPS_SEND)) {
    return try_send(machine, graph, agent, *cell);
  }
  return !weft_op_in(cell->op, WEFT_OPS_RECV) || try_receive(machine, graph, *cell);
}

/* Until every agent has finished or must wait. */
WEFT_GRAPH_INLINE void run_agents(struct weft_machine *machine, const struct weft_graph *graph) {
  while (machine->work_count > 0) {
    const uint32_t agent = machine->work[--machine->work_count];
    struct weft_agent_state *state = &machine->states[agent];
    const uint64_t from = state->at;
    state->queued = false;
    while (state->at < state->end &&
           try_cell(machine, graph, agent, weft_machine_next(machine, agent))) {
      state->at += machine->has_queues ? 1 : weft_cell_records(weft_machine_next(machine, agent));
    }
    if (machine->has_queues && agent < machine->agents.rank_count && state->at > from) {
      wake_queues(machine, agent);
    }
  }
}

static void run_on(struct weft_machine *machine) {
  WEFT_TWICE(graph, machine->placed.program->graph, run_agents(machine, graph));
}

static void start(struct weft_machine *machine) {
  assert(machine->states != NULL && machine->work_count == 0);
  for (uint32_t a = 0; a < machine->agents.count; a++) {
    machine->states[a] = (struct weft_agent_state){.at = machine->agents.begin[a],
                                                   .end = machine->agents.begin[a + 1]};
  }
  if (machine->has_queues) {
    record_early(machine);
  }
  for (uint32_t a = machine->agents.count; a-- > 0;) {
    wake(machine, a);
  }
}

void weft_machine_run(struct weft_machine *machine) {
  start(machine);
  run_on(machine);
}

static int compare_agents(const void *a, const void *b) {
  const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

static void take_turn(struct weft_machine *machine, uint32_t agent,
                      const struct weft_machine_watch *watch) {
  struct weft_agent_state *state = &machine->states[agent];
  if (!weft_machine_is_stuck(machine, agent)) {
    return; /* it finished in the turn in which it was woken */
  }
  const struct weft_action *cell = weft_machine_next(machine, agent);
  const uint64_t record = weft_machine_record_number(machine, agent);
  if (!try_cell(machine, machine->placed.program->graph, agent, cell)) {
    watch->waits(watch->context, agent);
    return;
  }
  state->at += machine->has_queues ? 1 : weft_cell_records(cell);
  watch->moved(watch->context, agent, record);
  wake(machine, agent);
  if (machine->has_queues && agent < machine->agents.rank_count) {
    wake_queues(machine, agent);
  }
}

void weft_machine_take_turns(struct weft_machine *machine, const struct weft_machine_watch *watch) {
  assert(watch != NULL && watch->moved != NULL && watch->waits != NULL);
  uint32_t *turn = machine->work + machine->agents.count;
  start(machine);
  while (machine->work_count > 0) {
    const uint32_t count = machine->work_count;
    memcpy(turn, machine->work, count * sizeof *turn);
    qsort(turn, count, sizeof *turn, compare_agents);
    machine->work_count = 0;
    for (uint32_t k = 0; k < count; k++) {
      machine->states[turn[k]].queued = false;
    }
    for (uint32_t k = 0; k < count; k++) {
      take_turn(machine, turn[k], watch);
    }
  }
}

void weft_machine_go_on(struct weft_machine *machine, uint32_t capacity) {
  assert(capacity >= machine->capacity);
  machine->capacity = capacity;
  for (uint32_t a = 0; a < machine->agents.count; a++) {
    if (machine->states[a].offered) {
      wake(machine, a);
    }
  }
  run_on(machine);
}

/* ---- Setting up ---- */

bool weft_machine_init(struct weft_machine *machine, struct weft_arena *arena,
                       const struct weft_placed_program *placed, struct weft_comm_model model,
                       bool has_transfers) {
  const struct weft_channel_model_info *channel = weft_channel_model_info(model.channel);
  assert(placed->rank_of != NULL && channel != NULL);
  assert(!model.posted || model.capacity == WEFT_CAPACITY_UNLIMITED);
  const bool has_queues = has_transfers && (model.posted || channel->asynchronous);
  *machine = (struct weft_machine){.placed = *placed,
                                   .has_transfers = has_transfers,
                                   .has_queues = has_queues,
                                   .capacity = model.capacity};
  /* Posted transfers wait for those of their own channel alone. */
  const enum weft_channel_scope scope =
      channel->asynchronous ? channel->at_rank : channel->messages;
  if (!weft_agents_init(&machine->agents, arena, placed, scope, has_queues)) {
    return false;
  }
  const size_t agents = machine->agents.count;
  machine->states = weft_arena_allocate(arena, agents, sizeof *machine->states);
  machine->work = weft_arena_allocate(arena, 2 * agents, sizeof *machine->work);
  if (!has_transfers || has_queues) {
    machine->there =
        weft_arena_allocate(arena, weft_placed_edge_count(placed), placed->microbatch_count);
  }
  if (has_transfers) {
    if (!weft_message_queue_init(&machine->queue, arena, placed, channel->messages)) {
      return false;
    }
    const size_t channels = machine->queue.channel_count;
    machine->sent = weft_arena_allocate(arena, channels, sizeof *machine->sent);
    machine->taken = weft_arena_allocate(arena, channels, sizeof *machine->taken);
  }
  return weft_arena_status(arena, NULL) == WEFT_OK;
}
