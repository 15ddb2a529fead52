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
    wait.action = weft_machine_receive_of(run->context->graph, action, producer);
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
    if (weft_machine_next_lacking(&run->machine, run->context->graph, cell[cursor->part], rank,
                                  &cursor->input, &producer)) {
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

/* ---- Cycles ----
 *
 * Every wait is for an agent that is stuck too, so that following waits from anywhere ends in a
 * cycle. Where every agent has one wait, that is all. With several, an agent is on many cycles:
 * then the shortest is looked for, through every agent. */

/* Waits looked at for shorter cycles, before any cycle will do. */
#define BUDGET (UINT64_C(1) << 26)

struct search {
  uint32_t agents;
  uint64_t *begin;   /* [agent + 1] into targets */
  uint64_t *at;      /* [agent] its first wait for an agent that is left */
  uint32_t *targets; /* [wait] the agent that is waited for */
  bool *left;        /* [agent] stuck, in no cycle yet, and not known to lead to those alone */
  uint32_t *walked;  /* [agent] number of the last walk that came by */
  uint32_t *from;    /* [agent] who waits for it on that walk */
  uint32_t *queue;   /* [agent] */
  uint32_t walks;
  uint64_t budget;
  struct weft_wait_cycles *found;
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
  const uint32_t walk = ++search->walks;
  uint32_t depth = 0;
  if (!search->left[start]) {
    return search->agents;
  }
  search->queue[depth++] = start;
  search->walked[start] = walk;
  while (depth > 0) {
    const uint32_t agent = search->queue[depth - 1], next = first_left(search, agent);
    if (next == search->agents) {
      search->left[agent] = false;
      depth--;
    } else if (search->walked[next] == walk) {
      return next;
    } else {
      search->walked[next] = walk;
      search->queue[depth++] = next;
    }
  }
  return search->agents;
}

/* The length of the shortest cycle through an agent, if it is below `limit`, by breadth-first
 * search; 0: there is none. from[] then leads back along it, from `start` to `start`. */
static uint32_t measure_cycle(struct search *search, uint32_t start, uint32_t limit) {
  const uint32_t walk = ++search->walks;
  uint32_t head = 0, tail = 0, length = 1, level_end = 1;
  search->queue[tail++] = start;
  search->walked[start] = walk;
  for (; head < tail && length < limit; head++) {
    const uint32_t agent = search->queue[head];
    for (uint64_t w = search->begin[agent]; w < search->begin[agent + 1]; w++) {
      const uint32_t next = search->targets[w];
      search->budget -= search->budget > 0;
      if (next == start) {
        search->from[start] = agent;
        return length;
      }
      if (search->left[next] && search->walked[next] != walk) {
        search->walked[next] = walk;
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

/* Notes the cycle that from[] leads back along, and takes its agents out. */
static void note_cycle(struct search *search, uint32_t member, uint32_t length) {
  assert(length > 0 && search->found->count < search->agents);
  struct weft_wait_cycles *found = search->found;
  struct weft_wait_cycle *cycle = &found->cycles[found->count];
  *cycle =
      (struct weft_wait_cycle){.begin = found->count > 0 ? cycle[-1].begin + cycle[-1].length : 0,
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
  note_cycle(search, best, length);
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
  const struct weft_wait_cycle *x = a, *y = b;
  if (x->length != y->length) {
    return x->length < y->length ? -1 : 1;
  }
  return (x->lowest > y->lowest) - (x->lowest < y->lowest);
}

bool weft_wait_cycles_find(const struct weft_liveness_run *run, struct weft_wait_cycles *found) {
  assert(run->machine.states != NULL && found != NULL);
  const uint32_t agents = run->machine.agents.count;
  struct weft_arena *arena = run->arena;
  *found = (struct weft_wait_cycles){
      .cycles = weft_arena_allocate(arena, agents, sizeof *found->cycles),
      .agents = weft_arena_allocate(arena, agents, sizeof *found->agents)};
  struct search search = {
      .agents = agents,
      .begin = weft_arena_allocate(arena, agents + (size_t)1, sizeof *search.begin),
      .at = weft_arena_allocate(arena, agents, sizeof *search.at),
      .left = weft_arena_allocate(arena, agents, sizeof *search.left),
      .walked = weft_arena_allocate(arena, agents, sizeof *search.walked),
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
