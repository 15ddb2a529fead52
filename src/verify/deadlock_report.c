/* Where a run got stuck: each cycle of waits as a finding, in words. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include <weft/support.h>

#include "ir/program.h"
#include "verify/liveness_waits.h"

/* ---- A wait in words ---- */

static void format_reason(const struct weft_liveness_run *run, const struct weft_wait *wait,
                          char *buffer, size_t size) {
  static const char *const reasons[] = {
      [WEFT_WAIT_NOT_RECEIVED] = "its message has not been received",
      [WEFT_WAIT_FULL] = "its channel is full",
      [WEFT_WAIT_NOT_SENT] = "its message has not been sent",
      [WEFT_WAIT_BEHIND] = "its message is on the channel behind that of ",
      [WEFT_WAIT_NOT_MADE] = "its input has not been made",
      [WEFT_WAIT_INPUT] = "its input has not been received",
      [WEFT_WAIT_ENQUEUED] = "it is enqueued behind that"};
  char older[32] = "", next[32];
  if (wait->reason == WEFT_WAIT_BEHIND) {
    (void)weft_action_format(&wait->older, older, sizeof older);
  }
  const int used = snprintf(buffer, size, "%s%s", reasons[wait->reason], older);
  /* Where the awaited transfer is not the next of its queue, what is. */
  if (wait->agent >= run->machine.agents.rank_count &&
      weft_machine_is_stuck(&run->machine, wait->agent) &&
      !weft_action_equal(*weft_machine_next(&run->machine, wait->agent), wait->action)) {
    (void)snprintf(
        buffer + used, size - (size_t)used, "; on its communicator %s comes first",
        weft_action_format(weft_machine_next(&run->machine, wait->agent), next, sizeof next));
  }
}

/* ---- Reporting ---- */

/* Step of an action on a rank, at or after where the agent is. */
static uint64_t step_of(const struct weft_liveness_run *run, uint32_t agent,
                        struct weft_action action) {
  const struct weft_program *program = run->context->program;
  const uint32_t rank = weft_agent_rank(&run->machine.agents, agent);
  for (uint64_t i = weft_machine_record_number(&run->machine, agent);
       i < program->row_begin[rank + 1]; i++) {
    if (weft_action_equal(program->actions[i], action)) {
      return weft_program_step_at(program, rank, i);
    }
  }
  return 0;
}

/* A member of a cycle, and why it waits for the next one. */
static bool describe_member(const struct weft_liveness_run *run, uint32_t agent, uint32_t next,
                            struct weft_location *location, const char **wait_text) {
  struct weft_wait_cursor cursor = {0};
  struct weft_wait wait = {0};
  char action[32], reason[160], text[256];
  while (weft_wait_next(run, agent, &cursor, &wait) && wait.agent != next) {
  }
  format_reason(run, &wait, reason, sizeof reason);
  const int size = snprintf(text, sizeof text, "rank %" PRIu32 " to do %s (step %" PRIu64 "): %s",
                            weft_agent_rank(&run->machine.agents, wait.agent),
                            weft_action_format(&wait.action, action, sizeof action),
                            step_of(run, wait.agent, wait.action), reason);
  *location = weft_location_of(run->context->program, weft_agent_rank(&run->machine.agents, agent),
                               weft_machine_record_number(&run->machine, agent));
  *wait_text = weft_arena_copy_text(run->context->findings.arena, text, (size_t)size);
  return *wait_text != NULL;
}

static const char *model_text(const struct weft_liveness_run *run, char *buffer, size_t size) {
  const struct weft_comm_model *model = &run->context->model;
  const struct weft_channel_model_info *channel = weft_channel_model_info(model->channel);
  if (!run->machine.has_transfers) {
    (void)snprintf(buffer, size, "whatever the transport");
  } else if (model->posted) {
    (void)snprintf(buffer, size, "even where compute alone waits, %s", channel->words);
  } else if (model->capacity == WEFT_CAPACITY_UNLIMITED) {
    (void)snprintf(buffer, size, "even with sends that never block, %s", channel->words);
  } else if (run->machine.has_queues && model->capacity == 0) {
    (void)snprintf(buffer, size, "with %s", channel->words);
  } else if (model->capacity == 0) {
    (void)snprintf(buffer, size, "when a send blocks until it is received");
  } else {
    (void)snprintf(buffer, size, "with %" PRIu32 " messages buffered, %s", model->capacity,
                   channel->words);
  }
  return buffer;
}

static void report_cycle(struct weft_liveness_run *run, const uint32_t *agents, uint32_t length,
                         uint32_t stuck) {
  struct weft_verify_context *context = run->context;
  struct weft_findings *findings = &context->findings;
  char model[128];
  if (findings->count[WEFT_RULE_DEADLOCK] >= findings->max) {
    findings->count[WEFT_RULE_DEADLOCK]++;
    return;
  }
  struct weft_location *cycle = weft_arena_allocate(findings->arena, length, sizeof *cycle);
  const char **waits = weft_arena_allocate(findings->arena, length, sizeof *waits);
  bool described = cycle != NULL && waits != NULL;
  for (uint32_t k = 0; described && k < length; k++) {
    described = describe_member(run, agents[k], agents[(k + 1) % length], &cycle[k], &waits[k]);
  }
  if (!described) {
    findings->failed = true;
    return;
  }
  weft_findings_add(findings, WEFT_RULE_DEADLOCK, cycle[0],
                    "deadlock: %" PRIu32 " %s%s forever, %s; %" PRIu32 " of %" PRIu32
                    " ranks never finish",
                    length, run->machine.has_queues ? "action" : "rank",
                    length == 1 ? " waits for itself" : "s wait for each other in a cycle",
                    model_text(run, model, sizeof model), stuck, context->program->rank_count);
  struct weft_finding *finding = weft_findings_last(findings);
  if (finding != NULL && !findings->failed) {
    finding->cycle = cycle;
    finding->cycle_waits = waits;
    finding->cycle_length = length;
  }
}

/* Ranks that are stuck themselves, or whose queues are. */
static bool count_stuck_ranks(const struct weft_liveness_run *run, uint32_t *stuck) {
  bool *seen = weft_arena_allocate(run->arena, run->machine.agents.rank_count, sizeof *seen);
  *stuck = 0;
  for (uint32_t a = 0; seen != NULL && a < run->machine.agents.count; a++) {
    bool *rank = &seen[weft_agent_rank(&run->machine.agents, a)];
    *stuck += weft_machine_is_stuck(&run->machine, a) && !*rank;
    *rank = *rank || weft_machine_is_stuck(&run->machine, a);
  }
  return seen != NULL;
}

bool weft_report_deadlocks(struct weft_liveness_run *run) {
  assert(run->context != NULL && run->machine.states != NULL);
  struct weft_wait_cycles found;
  uint32_t stuck;
  if (!count_stuck_ranks(run, &stuck)) {
    return false;
  }
  if (stuck == 0) {
    return true;
  }
  if (!weft_wait_cycles_find(run, &found)) {
    return false;
  }
  for (uint32_t k = 0; k < found.count; k++) {
    const struct weft_wait_cycle *cycle = &found.cycles[k];
    report_cycle(run, &found.agents[cycle->begin], cycle->length, stuck);
  }
  return true;
}
