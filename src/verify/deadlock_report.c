/* Where a run got stuck: the cycles of waits, each as a finding, in words. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <weft/support.h>

#include "ir/program.h"
#include "verify/liveness_waits.h"

/* ---- Cycles ----
 *
 * Every wait is for an agent that is stuck too, so that following waits from anywhere ends in a
 * cycle. Where every agent has one wait, that is all. With several, an agent is on many cycles:
 * then the shortest is looked for, through every agent. */

/* Cycles of agents, each of which waits for the next, no agent in two of them: the shortest there
 * is, the shortest of what is left without its agents, and so on until none is left. */
struct cycle {
  uint32_t begin; /* in agents */
  uint32_t length;
  uint32_t lowest; /* agent: the cycle begins with it */
};

struct cycles {
  uint32_t count;
  struct cycle *cycles; /* [count] the shortest first, then by their lowest agent */
  uint32_t *agents;     /* of all cycles */
};

/* Waits looked at for shorter cycles, before any cycle will do. */
#define BUDGET (UINT64_C(1) << 26)

struct search {
  uint32_t agents;
  uint64_t *begin;   /* [agent + 1] into targets */
  uint64_t *at;      /* [agent] its first wait for an agent that is left */
  uint32_t *targets; /* [wait] the agent that is waited for */
  bool *left;        /* [agent] stuck, in no cycle yet, and not known to lead to those alone */
  uint32_t *visited; /* [agent] number of the last search that came by */
  uint32_t *from;    /* [agent] who waits for it in that search */
  uint32_t *queue;   /* [agent] */
  uint32_t searches;
  uint64_t budget;
  struct cycles *found;
};

/* The waits of all stuck agents: counts them, or lists them. */
static void list_waits(const struct weft_liveness_run *run, struct search *search, bool count) {
  uint64_t waits = 0;
  for (uint32_t a = 0; a < search->agents; a++) {
    struct weft_wait_cursor cursor = {0};
    struct weft_wait wait;
    search->begin[a] = search->at[a] = waits;
    search->left[a] = weft_machine_is_stuck(&run->machine, a);
    while (search->left[a] && weft_wait_next(run, a, &cursor, &wait)) {
      if (!count) {
        search->targets[waits] = wait.agent;
      }
      waits++;
    }
  }
  search->begin[search->agents] = waits;
}

/* The first agent that this one waits for and that is left; `agents` where there is none. */
static uint32_t first_left(struct search *search, uint32_t agent) {
  for (; search->at[agent] < search->begin[agent + 1]; search->at[agent]++) {
    const uint32_t target = search->targets[search->at[agent]];
    if (search->left[target]) {
      return target;
    }
  }
  return search->agents;
}

/* Goes along first waits until an agent comes again: it is on a cycle. Goes back where no wait is
 * left. `agents` where nothing is left of `start`. */
static uint32_t find_member(struct search *search, uint32_t start) {
  const uint32_t number = ++search->searches;
  uint32_t depth = 0;
  if (!search->left[start]) {
    return search->agents;
  }
  search->queue[depth++] = start;
  search->visited[start] = number;
  while (depth > 0) {
    const uint32_t agent = search->queue[depth - 1], next = first_left(search, agent);
    if (next == search->agents) {
      search->left[agent] = false;
      depth--;
    } else if (search->visited[next] == number) {
      return next;
    } else {
      search->visited[next] = number;
      search->queue[depth++] = next;
    }
  }
  return search->agents;
}

/* The length of the shortest cycle through an agent, if it is below `limit`, by breadth-first
 * search; 0: there is none. from[] then leads back along it, from `start` to `start`. */
static uint32_t measure_cycle(struct search *search, uint32_t start, uint32_t limit) {
  const uint32_t number = ++search->searches;
  uint32_t head = 0, tail = 0, length = 1, level_end = 1;
  search->queue[tail++] = start;
  search->visited[start] = number;
  for (; head < tail && length < limit; head++) {
    const uint32_t agent = search->queue[head];
    for (uint64_t w = search->begin[agent]; w < search->begin[agent + 1]; w++) {
      const uint32_t next = search->targets[w];
      search->budget -= search->budget > 0;
      if (next == start) {
        search->from[start] = agent;
        return length;
      }
      if (search->left[next] && search->visited[next] != number) {
        search->visited[next] = number;
        search->from[next] = agent;
        search->queue[tail++] = next;
      }
    }
    if (head + 1 == level_end) {
      length++;
      level_end = tail;
    }
  }
  return 0;
}

/* Records the cycle that from[] leads back along, and takes its agents out. */
static void record_cycle(struct search *search, uint32_t member, uint32_t length) {
  assert(length > 0 && search->found->count < search->agents);
  struct cycles *found = search->found;
  struct cycle *cycle = &found->cycles[found->count];
  *cycle = (struct cycle){.begin = found->count > 0 ? cycle[-1].begin + cycle[-1].length : 0,
                          .length = length,
                          .lowest = member};
  for (uint32_t k = 0, a = member; k < length; k++, a = search->from[a]) {
    cycle->lowest = a < cycle->lowest ? a : cycle->lowest;
    search->left[a] = false;
  }
  for (uint32_t k = 0, a = cycle->lowest; k < length; k++, a = search->from[a]) {
    found->agents[cycle->begin + (length - k) % length] = a;
  }
  found->count++;
}

/* Takes a cycle out: with `shortest` the shortest of all, as long as the budget lasts. */
static void take_cycle(struct search *search, uint32_t member, bool shortest) {
  uint32_t best = member, length = measure_cycle(search, member, UINT32_MAX);
  for (uint32_t a = 0; shortest && a < search->agents && length > 1 && search->budget > 0; a++) {
    const uint32_t shorter = search->left[a] ? measure_cycle(search, a, length) : 0;
    best = shorter > 0 ? a : best;
    length = shorter > 0 ? shorter : length;
  }
  (void)measure_cycle(search, best, UINT32_MAX); /* from[] is of the last one that was tried */
  record_cycle(search, best, length);
}

static void take_cycles(struct search *search) {
  bool several = false;
  for (uint32_t a = 0; a < search->agents; a++) {
    several = several || search->begin[a + 1] - search->begin[a] > 1;
  }
  for (uint32_t a = 0; a < search->agents;) {
    const uint32_t member = find_member(search, a);
    if (member < search->agents) {
      take_cycle(search, member, several);
    } else {
      a++;
    }
  }
}

static int compare_cycles(const void *a, const void *b) {
  const struct cycle *x = a, *y = b;
  return x->length != y->length ? (x->length > y->length) - (x->length < y->length)
                                : (x->lowest > y->lowest) - (x->lowest < y->lowest);
}

static bool find_cycles(const struct weft_liveness_run *run, struct cycles *found) {
  const uint32_t agents = run->machine.agents.count;
  struct weft_arena *arena = run->arena;
  *found = (struct cycles){.cycles = weft_arena_allocate(arena, agents, sizeof *found->cycles),
                           .agents = weft_arena_allocate(arena, agents, sizeof *found->agents)};
  struct search search = {
      .agents = agents,
      .begin = weft_arena_allocate(arena, agents + (size_t)1, sizeof *search.begin),
      .at = weft_arena_allocate(arena, agents, sizeof *search.at),
      .left = weft_arena_allocate(arena, agents, sizeof *search.left),
      .visited = weft_arena_allocate(arena, agents, sizeof *search.visited),
      .from = weft_arena_allocate(arena, agents, sizeof *search.from),
      .queue = weft_arena_allocate(arena, agents, sizeof *search.queue),
      .budget = BUDGET,
      .found = found};
  if (weft_arena_status(arena, NULL) != WEFT_OK) {
    return false;
  }
  list_waits(run, &search, true);
  search.targets = weft_arena_allocate(arena, search.begin[agents], sizeof *search.targets);
  if (search.targets == NULL) {
    return false;
  }
  list_waits(run, &search, false);
  take_cycles(&search);
  if (found->count > 0) {
    qsort(found->cycles, found->count, sizeof *found->cycles, compare_cycles);
  }
  return true;
}

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
  struct weft_finding *finding = weft_findings_add(
      findings, WEFT_RULE_DEADLOCK, cycle[0],
      "deadlock: %" PRIu32 " %s%s forever, %s; %" PRIu32 " of %" PRIu32 " ranks never finish",
      length, run->machine.has_queues ? "action" : "rank",
      length == 1 ? " waits for itself" : "s wait for each other in a cycle",
      model_text(run, model, sizeof model), stuck, context->program->rank_count);
  if (finding != NULL) {
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
  struct cycles found;
  uint32_t stuck;
  if (!count_stuck_ranks(run, &stuck)) {
    return false;
  }
  if (stuck == 0) {
    return true;
  }
  if (!find_cycles(run, &found)) {
    return false;
  }
  for (uint32_t k = 0; k < found.count; k++) {
    const struct cycle *cycle = &found.cycles[k];
    report_cycle(run, &found.agents[cycle->begin], cycle->length, stuck);
  }
  return true;
}
