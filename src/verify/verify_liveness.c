/* Verify, liveness: can the ranks wait for each other forever?
 *
 * Every rank takes its actions in order, every channel has one sender and
 * carries messages in order, and what an action waits for stays true once it is
 * true. So whichever rank moves first, the same actions become possible in the
 * end: one run decides all interleavings (tests/verify/test_verify_brute_force.c
 * holds that against trying them all). The run moves a rank until it must
 * wait, and looks at a waiting rank again only when the channel or the data it
 * waits for has changed; that makes it linear.
 *
 * A SEND puts its message into the channel when it is reached; message j is
 * done with when taken + capacity > j. With capacity 0 that is when it has
 * been received (rendezvous), with K when fewer than K older ones wait, with
 * no limit at once. A full channel's newest message is never its oldest, so
 * putting it in early changes nothing.
 *
 * Where transfers are in queues of their own (the NCCL models), the same holds of a rank's compute
 * and of each of its queues as it does of ranks: each takes its own actions in order. So the run is
 * of agents (agents.h): ranks, or ranks and queues.
 *
 * A table without SEND and RECV waits for data alone: it is there as soon as
 * it is made. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <weft/support.h>

#include "verify/liveness_run.h"

static void wake(struct weft_liveness_run *run, uint32_t agent) {
  if (agent == WEFT_RANK_NONE) {
    return;
  }
  struct weft_agent_state *state = &run->states[agent];
  if (!state->queued && state->at < state->end) {
    state->queued = true;
    run->work[run->work_count++] = agent;
  }
}

/* ---- Programs: channels ---- */

WEFT_GRAPH_INLINE bool try_send(struct weft_liveness_run *run, const struct weft_graph *graph,
                                struct weft_agent_state *state, struct weft_action send) {
  const uint32_t channel = weft_run_channel(run, graph, send);
  if (!state->offered) {
    state->offered = true;
    state->message = run->sent[channel]++;
    if (state->message == run->taken[channel]) {
      wake(run, weft_run_receiver(run, graph, send));
    }
  }
  if (run->capacity != WEFT_CAPACITY_UNLIMITED &&
      (uint64_t)run->taken[channel] + run->capacity <= state->message) {
    return false;
  }
  state->offered = false;
  return true;
}

WEFT_GRAPH_INLINE bool try_receive(struct weft_liveness_run *run, const struct weft_graph *graph,
                                   struct weft_action recv) {
  struct weft_action send;
  if (!weft_action_partner(recv, run->context->stage_count, &send)) {
    return true;
  }
  const uint32_t channel = weft_run_channel(run, graph, send);
  const struct weft_action *first = weft_run_oldest(run, channel);
  if (first == NULL || !weft_action_equal(*first, send)) {
    return false;
  }
  run->taken[channel]++;
  wake(run, weft_run_sender(run, graph, send)); /* its SEND may be done now */
  const struct weft_action *next = weft_run_oldest(run, channel);
  if (next != NULL) {
    wake(run, weft_run_receiver(run, graph, *next));
  }
  return true;
}

/* ---- Tables: data ---- */

WEFT_GRAPH_INLINE void make(struct weft_liveness_run *run, const struct weft_graph *graph,
                            struct weft_action action) {
  const struct weft_verify_context *context = run->context;
  if (!weft_op_in(action.op, WEFT_OP_BIT(WEFT_OP_F) | WEFT_OPS_GRADIENT)) {
    return;
  }
  run->made[weft_pair_index(context, action.stage, action.microbatch)] |= weft_run_made_bit(action);
  const uint32_t outputs = weft_action_output_count(graph, action, context->stage_count);
  for (uint32_t k = 0; k < outputs; k++) {
    wake(run, context->owner[weft_action_output_at(graph, action, k)]);
  }
}

/* Whether all inputs of a cell from other ranks are there. */
WEFT_GRAPH_INLINE bool has_inputs(const struct weft_liveness_run *run,
                                  const struct weft_graph *graph, uint32_t rank,
                                  const struct weft_action *cell) {
  for (uint32_t part = 0; part <= weft_cell_parts(cell); part++) {
    uint32_t k = 0, producer;
    if (weft_run_next_lacking(run, graph, cell[part], rank, &k, &producer)) {
      return false;
    }
  }
  return true;
}

WEFT_GRAPH_INLINE bool try_compute(struct weft_liveness_run *run, const struct weft_graph *graph,
                                   uint32_t rank, const struct weft_action *cell) {
  if (!has_inputs(run, graph, rank, cell)) {
    return false;
  }
  for (uint32_t k = 0; k <= weft_cell_parts(cell); k++) {
    make(run, graph, cell[k]);
  }
  return true;
}

/* ---- Queues: compute and transfers beside each other ---- */

WEFT_GRAPH_INLINE bool try_queue(struct weft_liveness_run *run, const struct weft_graph *graph,
                                 uint32_t agent, const struct weft_action *transfer) {
  const uint32_t rank = weft_agent_rank(&run->agents, agent);
  if (!weft_run_is_issued(run, rank, weft_run_record_number(run, agent))) {
    return false;
  }
  if (weft_op_in(transfer->op, WEFT_OPS_SEND)) {
    return try_send(run, graph, &run->states[agent], *transfer);
  }
  if (!try_receive(run, graph, *transfer)) {
    return false;
  }
  uint8_t bit, *received = weft_run_received(run, graph, *transfer, &bit);
  *received |= bit; /* there is one: this is it */
  wake(run, rank);
  return true;
}

static void wake_queues(struct weft_liveness_run *run, uint32_t rank) {
  for (uint32_t a = run->agents.first_queue[rank]; a < run->agents.first_queue[rank + 1]; a++) {
    wake(run, a);
  }
}

/* Compute that stands before its RECV does not wait for it: that is the order check's business. */
WEFT_GRAPH_INLINE void note_early(struct weft_liveness_run *run, const struct weft_graph *graph) {
  enum { BEHIND = 2 }; /* a shift: the RECV is behind us */
  const struct weft_verify_context *context = run->context;
  const struct weft_program *program = context->program;
  uint8_t bit, *received;
  for (uint64_t i = 0; i < program->action_count; i++) {
    const struct weft_action action = program->actions[i];
    if (weft_op_in(action.op, WEFT_OPS_RECV)) {
      received = weft_run_received(run, graph, action, &bit);
      *received |= (uint8_t)(bit << BEHIND);
      continue;
    }
    const uint32_t inputs = weft_action_input_count(graph, action, context->stage_count);
    for (uint32_t k = 0; k < inputs; k++) {
      const uint32_t producer = weft_action_input_at(graph, action, k);
      received = weft_run_received(run, graph, weft_run_receive_of(graph, action, producer), &bit);
      if (received != NULL && (*received & (bit << BEHIND)) == 0) {
        *received |= bit;
      }
    }
  }
}

/* ---- The run ---- */

WEFT_GRAPH_INLINE bool try_cell(struct weft_liveness_run *run, const struct weft_graph *graph,
                                uint32_t agent, const struct weft_action *cell) {
  if (!run->has_transfers) {
    return try_compute(run, graph, agent, cell);
  }
  if (run->has_queues) {
    return agent < run->agents.rank_count ? has_inputs(run, graph, agent, cell)
                                          : try_queue(run, graph, agent, cell);
  }
  if (weft_op_in(cell->op, WEFT_OPS_SEND)) {
    return try_send(run, graph, &run->states[agent], *cell);
  }
  return !weft_op_in(cell->op, WEFT_OPS_RECV) || try_receive(run, graph, *cell);
}

/* Until every agent has finished or must wait. */
WEFT_GRAPH_INLINE void run_agents(struct weft_liveness_run *run, const struct weft_graph *graph) {
  while (run->work_count > 0) {
    const uint32_t agent = run->work[--run->work_count];
    struct weft_agent_state *state = &run->states[agent];
    const uint64_t from = state->at;
    state->queued = false;
    while (state->at < state->end && try_cell(run, graph, agent, weft_run_next(run, agent))) {
      state->at += run->has_queues ? 1 : weft_cell_records(weft_run_next(run, agent));
    }
    if (run->has_queues && agent < run->agents.rank_count && state->at > from) {
      wake_queues(run, agent);
    }
  }
}

static void run_on(struct weft_liveness_run *run) {
  if (run->context->graph == NULL) {
    run_agents(run, NULL);
  } else {
    run_agents(run, run->context->graph);
  }
}

static void run_all(struct weft_liveness_run *run) {
  for (uint32_t a = 0; a < run->agents.count; a++) {
    run->states[a] = (struct weft_agent_state){.at = weft_agent_begin(&run->agents, a),
                                               .end = weft_agent_begin(&run->agents, a + 1)};
  }
  if (run->has_queues && run->context->graph == NULL) {
    note_early(run, NULL);
  } else if (run->has_queues) {
    note_early(run, run->context->graph);
  }
  for (uint32_t a = run->agents.count; a-- > 0;) {
    wake(run, a);
  }
  run_on(run);
}

/* ---- The smallest capacity ---- */

/* The smallest capacity with which a stuck SEND can go on; WEFT_CAPACITY_UNLIMITED: none can. */
static uint32_t next_capacity(const struct weft_liveness_run *run) {
  uint32_t least = WEFT_CAPACITY_UNLIMITED;
  for (uint32_t a = 0; a < run->agents.count; a++) {
    const struct weft_agent_state *state = &run->states[a];
    if (weft_run_is_stuck(run, a) && state->offered) {
      const uint32_t needed =
          state->message -
          run->taken[weft_run_channel(run, run->context->graph, *weft_run_next(run, a))] + 1;
      least = needed < least ? needed : least;
    }
  }
  return least;
}

/* Goes on from where the run got stuck. What was possible with a smaller capacity is possible
 * with a larger one, so the run with the larger one comes by there too. The capacity grows to
 * what the first SEND needs, at most to the messages of a channel. */
static uint32_t find_capacity(struct weft_liveness_run *run) {
  uint32_t capacity;
  while (run->has_transfers && (capacity = next_capacity(run)) != WEFT_CAPACITY_UNLIMITED) {
    run->capacity = capacity;
    for (uint32_t a = 0; a < run->agents.count; a++) {
      if (run->states[a].offered) {
        wake(run, a);
      }
    }
    run_on(run);
  }
  for (uint32_t a = 0; a < run->agents.count; a++) {
    if (weft_run_is_stuck(run, a)) {
      return WEFT_CAPACITY_UNLIMITED;
    }
  }
  return run->capacity;
}

/* ---- Setting up ---- */

static uint64_t made_size(const struct weft_liveness_run *run) {
  return run->has_queues && run->context->graph != NULL
             ? weft_message_count(&run->context->messages)
             : weft_pair_index(run->context, run->context->stage_count, 0);
}

static bool allocate(struct weft_liveness_run *run) {
  const struct weft_allocator *allocator = run->context->allocator;
  const struct weft_channel_model_info *channel =
      weft_channel_model_info(run->context->model.channel);
  if (!weft_agents_init(&run->agents, run->context, run->has_queues)) {
    return false;
  }
  run->states = weft_array_allocate_zero(allocator, run->agents.count, sizeof *run->states);
  run->work = weft_array_allocate(allocator, run->agents.count, sizeof *run->work);
  if (run->states == NULL || run->work == NULL) {
    return false;
  }
  if (!run->has_transfers || run->has_queues) {
    run->made = weft_array_allocate_zero(allocator, made_size(run), 1);
    if (run->made == NULL || !run->has_transfers) {
      return run->made != NULL;
    }
  }
  if (!weft_message_queue_init(&run->queue, run->context, channel->messages)) {
    return false;
  }
  run->sent = weft_array_allocate_zero(allocator, run->queue.channel_count, sizeof *run->sent);
  run->taken = weft_array_allocate_zero(allocator, run->queue.channel_count, sizeof *run->taken);
  return run->sent != NULL && run->taken != NULL;
}

static void release(struct weft_liveness_run *run) {
  const struct weft_allocator *allocator = run->context->allocator;
  weft_array_free(allocator, run->states, run->agents.count, sizeof *run->states);
  weft_array_free(allocator, run->work, run->agents.count, sizeof *run->work);
  weft_array_free(allocator, run->made, made_size(run), 1);
  weft_array_free(allocator, run->sent, run->queue.channel_count, sizeof *run->sent);
  weft_array_free(allocator, run->taken, run->queue.channel_count, sizeof *run->taken);
  weft_message_queue_finish(&run->queue);
  weft_agents_finish(&run->agents);
}

enum weft_status weft_verify_liveness(struct weft_verify_context *context,
                                      uint32_t *least_capacity) {
  assert(context->owner != NULL);
  struct weft_liveness_run run = {.context = context,
                                  .has_transfers = weft_has_transfers(context),
                                  .capacity = context->model.capacity,
                                  .queue = {.allocator = context->allocator},
                                  .agents = {.allocator = context->allocator}};
  run.has_queues =
      run.has_transfers &&
      (context->model.posted || weft_channel_model_info(context->model.channel)->asynchronous);
  bool enough = allocate(&run);
  if (enough) {
    run_all(&run);
    enough = weft_report_deadlocks(&run);
    *least_capacity = find_capacity(&run);
  }
  release(&run);
  return enough ? WEFT_OK : weft_fail_memory(context->error, context->program->action_count);
}
