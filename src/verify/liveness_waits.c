/* Waits of agents; see liveness_waits.h. */
#include "verify/liveness_waits.h"

#include <assert.h>
#include <stdlib.h>

#include <weft/support.h>

/* ---- What an agent waits for ---- */

static struct weft_wait wait_for_send(const struct weft_liveness_run *run,
                                      const struct weft_agent_state *state) {
  const struct weft_action send =
      *weft_machine_record(&run->machine, weft_agent_record(&run->machine.agents, state->at));
  const uint32_t channel = weft_machine_channel(&run->machine, run->context->graph, send);
  const struct weft_action *first = weft_machine_oldest(&run->machine, channel);
  struct weft_wait wait = {
      .agent = weft_machine_receiver(&run->machine, run->context->graph, *first),
      .reason =
          run->machine.taken[channel] == state->message ? WEFT_WAIT_NOT_RECEIVED : WEFT_WAIT_FULL};
  (void)weft_action_partner(*first, run->context->stage_count, &wait.action);
  return wait;
}

static struct weft_wait wait_for_receive(const struct weft_liveness_run *run,
                                         const struct weft_agent_state *state) {
  struct weft_wait wait = {.reason = WEFT_WAIT_NOT_SENT};
  struct weft_action send = {0};
  (void)weft_action_partner(
      *weft_machine_record(&run->machine, weft_agent_record(&run->machine.agents, state->at)),
      run->context->stage_count, &send);
  const uint32_t channel = weft_machine_channel(&run->machine, run->context->graph, send);
  bool is_sent = false;
  for (uint32_t k = run->machine.taken[channel]; k < run->machine.sent[channel] && !is_sent; k++) {
    is_sent = weft_action_equal(
        *weft_machine_record(&run->machine,
                             run->machine.queue.messages[run->machine.queue.first[channel] + k]),
        send);
  }
  if (is_sent) {
    wait.reason = WEFT_WAIT_BEHIND;
    wait.older = *weft_machine_oldest(&run->machine, channel);
    wait.agent = weft_machine_receiver(&run->machine, run->context->graph, wait.older);
    (void)weft_action_partner(wait.older, run->context->stage_count, &wait.action);
  } else {
    wait.agent = weft_machine_sender(&run->machine, run->context->graph, send);
    wait.action = send;
  }
  return wait;
}

/* Compute that lacks what a stage makes: for that, or for the message that brings it. */
static struct weft_wait wait_for_input(const struct weft_liveness_run *run,
                                       struct weft_action action, uint32_t producer) {
  struct weft_wait wait = {.reason = WEFT_WAIT_NOT_MADE};
  if (run->machine.has_queues) {
    struct weft_action send = {0};
    wait.reason = WEFT_WAIT_INPUT;
    wait.action = weft_action_transfer_in(run->context->graph,
                                          action.op == WEFT_OP_F ? WEFT_OP_RECV_F : WEFT_OP_RECV_B,
                                          action.stage, producer, action.microbatch);
    (void)weft_action_partner(wait.action, run->context->stage_count, &send);
    wait.agent = weft_machine_receiver(&run->machine, run->context->graph, send);
    return wait;
  }
  const bool split = weft_pair_has(run->context, WEFT_OP_I, producer, action.microbatch);
  const enum weft_op op = action.op == WEFT_OP_F ? WEFT_OP_F : split ? WEFT_OP_I : WEFT_OP_B;
  wait.agent = run->context->owner[producer];
  wait.action = weft_action_make(op, producer, action.microbatch);
  return wait;
}

/* The waits of compute: one for each input that it lacks. */
static bool next_input(const struct weft_liveness_run *run, uint32_t rank,
                       const struct weft_action *cell, struct weft_wait_cursor *cursor,
                       struct weft_wait *wait) {
  for (; cursor->part <= weft_cell_parts(cell); cursor->part++, cursor->input = 0) {
    uint32_t producer;
    if (weft_machine_next_lacking(&run->machine, cell[cursor->part], rank, &cursor->input,
                                  &producer)) {
      *wait = wait_for_input(run, cell[cursor->part], producer);
      return true;
    }
  }
  return false;
}

bool weft_wait_next(const struct weft_liveness_run *run, uint32_t agent,
                    struct weft_wait_cursor *cursor, struct weft_wait *wait) {
  assert(agent < run->machine.agents.count && weft_machine_is_stuck(&run->machine, agent));
  const struct weft_agent_state *state = &run->machine.states[agent];
  const struct weft_action *cell = weft_machine_next(&run->machine, agent);
  const uint32_t rank = weft_agent_rank(&run->machine.agents, agent);
  if (!run->machine.has_transfers || (run->machine.has_queues && agent == rank)) {
    return next_input(run, rank, cell, cursor, wait);
  }
  if (cursor->past) {
    return false;
  }
  cursor->past = true;
  if (run->machine.has_queues &&
      !weft_machine_is_issued(&run->machine, rank,
                              weft_machine_record_number(&run->machine, agent))) {
    *wait = (struct weft_wait){.agent = rank,
                               .action = *weft_machine_next(&run->machine, rank),
                               .reason = WEFT_WAIT_ENQUEUED};
  } else {
    *wait = weft_op_in(cell->op, WEFT_OPS_SEND) ? wait_for_send(run, state)
                                                : wait_for_receive(run, state);
  }
  return true;
}
