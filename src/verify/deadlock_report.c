/* Where a run got stuck: who waits for whom, and each cycle of waits as a finding. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

#include "verify/liveness_run.h"

/* ---- The wait graph ---- */

/* What a stuck agent needs: another one to do something. */
struct wait {
  uint32_t agent;
  struct weft_action action; /* what that one must do */
  char reason[160];
};

static struct wait wait_for_send(const struct weft_liveness_run *run,
                                 const struct weft_agent_state *state) {
  const struct weft_action send = *weft_run_record(run, weft_agent_record(&run->agents, state->at));
  const uint32_t channel = weft_run_channel(run, send);
  const struct weft_action *first = weft_run_oldest(run, channel);
  const bool own = run->taken[channel] == state->message;
  struct wait wait = {.agent = weft_run_receiver(run, *first)};
  (void)weft_action_partner(*first, run->context->stage_count, &wait.action);
  (void)snprintf(wait.reason, sizeof wait.reason, "%s",
                 own ? "its message has not been received" : "its channel is full");
  return wait;
}

static struct wait wait_for_receive(const struct weft_liveness_run *run,
                                    const struct weft_agent_state *state) {
  struct wait wait = {.agent = WEFT_RANK_NONE};
  struct weft_action send = {0};
  (void)weft_action_partner(*weft_run_record(run, weft_agent_record(&run->agents, state->at)),
                            run->context->stage_count, &send);
  const uint32_t channel = weft_run_channel(run, send);
  const struct weft_action *first = weft_run_oldest(run, channel);
  bool is_sent = false;
  for (uint32_t k = run->taken[channel]; k < run->sent[channel] && !is_sent; k++) {
    is_sent = weft_action_equal(
        *weft_run_record(run, run->queue.messages[run->queue.first[channel] + k]), send);
  }
  if (is_sent) {
    char older[32];
    wait.agent = weft_run_receiver(run, *first);
    (void)weft_action_partner(*first, run->context->stage_count, &wait.action);
    (void)snprintf(wait.reason, sizeof wait.reason,
                   "its message is on the channel behind that of %s",
                   weft_action_format(first, older, sizeof older));
  } else {
    wait.agent = weft_run_sender(run, send);
    wait.action = send;
    (void)snprintf(wait.reason, sizeof wait.reason, "its message has not been sent");
  }
  return wait;
}

static struct wait wait_for_data(const struct weft_liveness_run *run, uint32_t rank,
                                 const struct weft_action *cell) {
  struct wait wait = {.agent = WEFT_RANK_NONE};
  for (uint32_t k = 0; k <= weft_cell_parts(cell) && wait.agent == WEFT_RANK_NONE; k++) {
    uint32_t producer = 0;
    wait.agent = weft_run_missing_input(run, cell[k], rank);
    if (wait.agent == WEFT_RANK_NONE) {
      continue;
    }
    (void)weft_action_input(cell[k], run->context->stage_count, &producer);
    const bool split = weft_pair_has(run->context, WEFT_OP_I, producer, cell[k].microbatch);
    const enum weft_op op = cell[k].op == WEFT_OP_F ? WEFT_OP_F : split ? WEFT_OP_I : WEFT_OP_B;
    wait.action = weft_action_make(op, producer, cell[k].microbatch);
    (void)snprintf(wait.reason, sizeof wait.reason, "its input has not been made");
  }
  return wait;
}

/* Compute of a rank whose transfers are in queues: for a message. */
static struct wait wait_for_message(const struct weft_liveness_run *run, uint32_t rank,
                                    const struct weft_action *cell) {
  uint32_t k = 0;
  while (!weft_run_lacks_receive(run, cell[k], rank)) {
    k++;
  }
  struct wait wait = {
      .action = weft_action_make(cell[k].op == WEFT_OP_F ? WEFT_OP_RECV_F : WEFT_OP_RECV_B,
                                 cell[k].stage, cell[k].microbatch)};
  struct weft_action send = {0};
  (void)weft_action_partner(wait.action, run->context->stage_count, &send);
  wait.agent = weft_run_receiver(run, send);
  (void)snprintf(wait.reason, sizeof wait.reason, "its input has not been received");
  return wait;
}

/* Where the awaited transfer is not the next of its queue, what is. */
static void name_next(const struct weft_liveness_run *run, struct wait *wait) {
  char next[32];
  if (wait->agent < run->agents.rank_count || !weft_run_is_stuck(run, wait->agent) ||
      weft_action_equal(*weft_run_next(run, wait->agent), wait->action)) {
    return;
  }
  const size_t used = strlen(wait->reason);
  (void)snprintf(wait->reason + used, sizeof wait->reason - used,
                 "; on its communicator %s comes first",
                 weft_action_format(weft_run_next(run, wait->agent), next, sizeof next));
}

static struct wait wait_in_queue(const struct weft_liveness_run *run, uint32_t agent) {
  const uint32_t rank = weft_agent_rank(&run->agents, agent);
  const struct weft_action *next = weft_run_next(run, agent);
  struct wait wait = {.agent = rank};
  if (agent < run->agents.rank_count) {
    wait = wait_for_message(run, rank, next);
  } else if (!weft_run_is_issued(run, rank, weft_run_record_number(run, agent))) {
    wait.action = *weft_run_next(run, rank);
    (void)snprintf(wait.reason, sizeof wait.reason, "it is enqueued behind that");
  } else {
    wait = weft_op_in(next->op, WEFT_OPS_SEND) ? wait_for_send(run, &run->states[agent])
                                               : wait_for_receive(run, &run->states[agent]);
  }
  name_next(run, &wait);
  return wait;
}

static struct wait wait_of(const struct weft_liveness_run *run, uint32_t agent) {
  const struct weft_agent_state *state = &run->states[agent];
  const struct weft_action *cell = weft_run_next(run, agent);
  if (run->has_queues) {
    return wait_in_queue(run, agent);
  }
  if (!run->has_transfers) {
    return wait_for_data(run, agent, cell);
  }
  return weft_op_in(cell->op, WEFT_OPS_SEND) ? wait_for_send(run, state)
                                             : wait_for_receive(run, state);
}

/* ---- Reporting ---- */

/* Step of an action on a rank, at or after where the agent is. */
static uint64_t step_of(const struct weft_liveness_run *run, uint32_t agent,
                        struct weft_action action) {
  const struct weft_program *program = run->context->program;
  const uint32_t rank = weft_agent_rank(&run->agents, agent);
  for (uint64_t i = weft_run_record_number(run, agent); i < program->row_begin[rank + 1]; i++) {
    if (weft_action_equal(program->actions[i], action)) {
      return weft_place_of(program, rank, i).step;
    }
  }
  return 0;
}

static bool describe_member(const struct weft_liveness_run *run, uint32_t agent,
                            struct weft_place *place, const char **wait_text) {
  const struct wait wait = wait_of(run, agent);
  char action[32], text[256];
  const int size = snprintf(text, sizeof text, "rank %" PRIu32 " to do %s (step %" PRIu64 "): %s",
                            weft_agent_rank(&run->agents, wait.agent),
                            weft_action_format(&wait.action, action, sizeof action),
                            step_of(run, wait.agent, wait.action), wait.reason);
  *place = weft_place_of(run->context->program, weft_agent_rank(&run->agents, agent),
                         weft_run_record_number(run, agent));
  *wait_text = weft_arena_copy_text(run->context->findings.arena, text, (size_t)size);
  return *wait_text != NULL;
}

static const char *model_text(const struct weft_liveness_run *run, char *buffer, size_t size) {
  const struct weft_comm_model *model = &run->context->model;
  static const char *const shared[WEFT_CHANNEL_COUNT] = {
      "one channel per stage boundary",
      "one channel per pair of ranks",
      "one channel per rank",
      "one NCCL communicator per directed pair of ranks",
      "one NCCL communicator per pair of ranks",
      "one NCCL communicator for all ranks"};
  static const char *const buffered[] = {"stage boundary", "pair of ranks", "rank"};
  if (!run->has_transfers) {
    (void)snprintf(buffer, size, "whatever the transport");
  } else if (model->capacity == WEFT_CAPACITY_UNLIMITED) {
    (void)snprintf(buffer, size, "even with sends that never block, %s", shared[model->channel]);
  } else if (run->has_queues && model->capacity == 0) {
    (void)snprintf(buffer, size, "with %s", shared[model->channel]);
  } else if (run->has_queues) {
    (void)snprintf(buffer, size, "with %" PRIu32 " messages buffered, %s", model->capacity,
                   shared[model->channel]);
  } else if (model->capacity == 0) {
    (void)snprintf(buffer, size, "when a send blocks until it is received");
  } else {
    (void)snprintf(buffer, size, "with %" PRIu32 " messages buffered per %s", model->capacity,
                   buffered[model->channel]);
  }
  return buffer;
}

static void report_cycle(struct weft_liveness_run *run, uint32_t first, uint32_t length,
                         uint32_t stuck) {
  struct weft_verify_context *context = run->context;
  struct weft_findings *findings = &context->findings;
  char model[128];
  if (findings->count[WEFT_RULE_DEADLOCK] >= findings->max) {
    findings->count[WEFT_RULE_DEADLOCK]++;
    return;
  }
  struct weft_place *cycle = weft_arena_allocate(findings->arena, length, sizeof *cycle);
  const char **waits = weft_arena_allocate(findings->arena, length, sizeof *waits);
  bool described = cycle != NULL && waits != NULL;
  uint32_t agent = first;
  for (uint32_t k = 0; described && k < length; k++) {
    described = describe_member(run, agent, &cycle[k], &waits[k]);
    agent = wait_of(run, agent).agent;
  }
  if (!described) {
    findings->failed = true;
    return;
  }
  weft_findings_add(findings, WEFT_RULE_DEADLOCK, cycle[0],
                    "deadlock: %" PRIu32 " %s%s forever, %s; %" PRIu32 " of %" PRIu32
                    " ranks never finish",
                    length, run->has_queues ? "action" : "rank",
                    length == 1 ? " waits for itself" : "s wait for each other in a cycle",
                    model_text(run, model, sizeof model), stuck, context->program->rank_count);
  struct weft_finding *finding = weft_findings_last(findings);
  if (finding != NULL && !findings->failed) {
    finding->cycle = cycle;
    finding->cycle_waits = waits;
    finding->cycle_length = length;
  }
}

/* Each stuck agent waits for one other, so following the waits from anywhere
 * ends in a cycle. `seen` holds, per agent, the walk that came by. Cycles are
 * reported from their lowest agent, the shortest first. */
struct cycle {
  uint32_t first;
  uint32_t length;
};

static int compare_cycles(const void *a, const void *b) {
  const struct cycle *x = a, *y = b;
  if (x->length != y->length) {
    return x->length < y->length ? -1 : 1;
  }
  return (x->first > y->first) - (x->first < y->first);
}

static struct cycle measure_cycle(const struct weft_liveness_run *run, uint32_t member) {
  struct cycle cycle = {.first = member, .length = 1};
  for (uint32_t a = wait_of(run, member).agent; a != member; a = wait_of(run, a).agent) {
    cycle.length++;
    cycle.first = a < cycle.first ? a : cycle.first;
  }
  return cycle;
}

static uint32_t find_cycles(const struct weft_liveness_run *run, uint32_t *seen,
                            struct cycle *cycles) {
  const uint32_t agents = run->agents.count;
  uint32_t count = 0;
  for (uint32_t start = 0; start < agents; start++) {
    uint32_t agent = start;
    while (agent < agents && weft_run_is_stuck(run, agent) && seen[agent] == 0) {
      seen[agent] = start + 1;
      agent = wait_of(run, agent).agent;
    }
    if (agent < agents && weft_run_is_stuck(run, agent) && seen[agent] == start + 1) {
      cycles[count++] = measure_cycle(run, agent);
    }
  }
  return count;
}

/* Ranks that are stuck themselves, or whose queues are. */
static uint32_t count_stuck_ranks(const struct weft_liveness_run *run, uint32_t *seen) {
  uint32_t stuck = 0;
  for (uint32_t a = 0; a < run->agents.count; a++) {
    uint32_t *rank = &seen[weft_agent_rank(&run->agents, a)];
    stuck += weft_run_is_stuck(run, a) && *rank == 0;
    *rank |= weft_run_is_stuck(run, a);
  }
  for (uint32_t r = 0; r < run->agents.rank_count; r++) {
    seen[r] = 0;
  }
  return stuck;
}

bool weft_report_deadlocks(struct weft_liveness_run *run) {
  const struct weft_allocator *allocator = run->context->allocator;
  const uint32_t agents = run->agents.count;
  uint32_t *seen = weft_array_allocate_zero(allocator, agents, sizeof *seen);
  struct cycle *cycles = weft_array_allocate(allocator, agents, sizeof *cycles);
  const bool allocated = seen != NULL && cycles != NULL;
  const uint32_t stuck = allocated ? count_stuck_ranks(run, seen) : 0;
  if (stuck > 0) {
    const uint32_t count = find_cycles(run, seen, cycles);
    qsort(cycles, count, sizeof *cycles, compare_cycles);
    for (uint32_t k = 0; k < count; k++) {
      report_cycle(run, cycles[k].first, cycles[k].length, stuck);
    }
  }
  weft_array_free(allocator, seen, agents, sizeof *seen);
  weft_array_free(allocator, cycles, agents, sizeof *cycles);
  return allocated;
}
