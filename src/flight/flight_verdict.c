/* Follows the waits of the ranks to the culprit.
 *
 * A process enqueues transfers ahead of its device, which runs them one after the other; some
 * processes wait for each receive, others for the end of the step, or not at all. So a rank stands
 * in two places: its device at the oldest transfer that is not done, its process after the last
 * one that it has started. A rank that waits for a transfer waits
 *   - for the peer's device, if the peer has started it: an older one holds it up;
 *   - for the peer's process otherwise. That may itself wait for the last transfer it has started,
 *     if that is a receive, or, at the end of a step, for its device. It may, which its dump does
 *     not tell, wait for a collective, or for its device in the middle of a step; else it computes
 *     or sleeps, and is the culprit.
 * A collective waits for a rank of its group that has not started it, or whose device waits.
 * The transfers of a batch pass side by side, and end together. So a batch waits for those of its
 * transfers that are not in the batch at which the peer's device is.
 * A path that comes back to itself through one process only is the fault of that process: all
 * devices on it wait for what it has not started. Of several, it is that of the only one which may
 * not wait. Any other is a deadlock. A path that ends where nothing is known has suspects only. */
#include "flight/flight_verdict.h"

#include <assert.h>
#include <string.h>

#include "ir/action.h"

#define NOBODY UINT32_MAX

static const struct weft_flight_wait nobody = {.peer = NOBODY};

/* ---- What a rank does ---- */

static bool is_compute(const struct weft_action *action) {
  return weft_op_in(action->op, WEFT_OPS_COMPUTE);
}

const struct weft_action *weft_flight_next_action(const struct weft_flight_state *state,
                                                  const struct weft_action *before) {
  const struct weft_action *at = before != NULL ? before + 1 : state->action;
  assert(at == NULL || at <= state->action_end);
  while (at != state->action && at < state->action_end && !is_compute(at)) {
    at++;
  }
  return at != NULL && at < state->action_end ? at : NULL;
}

/* The first action after this transfer of the row that computes, and those up to the next transfer;
 * NULL: none up to the row's end. */
static void find_computes(const struct weft_program *program, uint32_t rank, uint64_t record,
                          struct weft_flight_state *state) {
  const struct weft_action *at = &program->actions[record];
  const struct weft_action *end = program->actions + program->row_begin[rank + 1];
  while (at < end && !is_compute(at)) {
    at++;
  }
  state->next_action = at < end ? at : NULL;
  for (; at < end && !weft_op_in(at->op, WEFT_OPS_SEND | WEFT_OPS_RECV); at++) {
    state->next_action_end = is_compute(at) ? at + 1 : state->next_action_end;
  }
}

/* Where the process stands. */
static void find_next(const struct weft_program *program, uint32_t rank,
                      const struct weft_flight_record *record, const struct weft_flight_row *row,
                      struct weft_flight_state *state) {
  uint64_t started = 0, last = 0;
  for (uint32_t c = 0; c < row->channel_count; c++) {
    started += row->channels[c].started;
  }
  for (size_t k = 0; k < record->count; k++) {
    last = record->transfers[k].before > last ? record->transfers[k].before : last;
  }
  state->ended_step = row->count == 0 || started % row->count == 0;
  state->next_step = row->count == 0 ? 0 : started / row->count + (state->ended_step ? 0 : 1);
  if (!state->ended_step) {
    const uint64_t from =
        record->count > 0 ? row->records[last % row->count] : program->row_begin[rank];
    find_computes(program, rank, from, state);
  }
}

/* What the transfer at the head of the row waits for. */
static struct weft_flight_wait wait_at_head(const struct weft_flight_row *row) {
  assert(row->head != UINT64_MAX && row->count > 0);
  const struct weft_flight_channel *channel = &row->channels[row->channel[row->head % row->count]];
  return (struct weft_flight_wait){channel->peer, channel->sends, channel->done};
}

static struct weft_flight_wait wait_in(const struct weft_flight_row *row,
                                       const struct weft_flight_transfer *transfer) {
  return (struct weft_flight_wait){transfer->peer, transfer->sends,
                                   weft_flight_number(row, transfer->before)};
}

/* What a process waits for that waits for receives. */
static struct weft_flight_wait wait_of_process(const struct weft_flight_record *record,
                                               const struct weft_flight_row *row) {
  assert(record->count > 0);
  const struct weft_flight_transfer *last = &record->transfers[record->count - 1];
  return last->sends || last->done ? nobody : wait_in(row, last);
}

/* A rank that waits for the transfer at an offset of its row. */
static void wait_at(const struct weft_program *program, const struct weft_flight_row *row,
                    uint64_t offset, struct weft_flight_wait wait,
                    struct weft_flight_state *state) {
  state->device = wait;
  state->step = offset / row->count + 1;
  state->action = &program->actions[row->records[offset % row->count]];
  state->action_end = state->action + 1;
}

/* A rank whose device waits for nothing is where its process is. */
static void show_process(struct weft_flight_state *state) {
  state->step = state->next_step;
  state->action = state->next_action;
  state->action_end = state->next_action_end;
}

struct weft_flight_state weft_flight_state_of(const struct weft_program *program, uint32_t rank,
                                              const struct weft_flight_record *record,
                                              const struct weft_flight_row *row) {
  assert(rank < program->rank_count);
  struct weft_flight_state state = {
      .phase = WEFT_FLIGHT_MISSING, .device = nobody, .process = nobody};
  if (record->name == NULL) {
    return state;
  }
  find_next(program, rank, record, row, &state);
  if (row->head == UINT64_MAX || row->count == 0) {
    state.phase = state.ended_step ? WEFT_FLIGHT_BETWEEN : WEFT_FLIGHT_COMPUTING;
    show_process(&state);
    return state;
  }
  state.phase = WEFT_FLIGHT_WAITING;
  state.process = wait_of_process(record, row);
  wait_at(program, row, row->head, wait_at_head(row), &state);
  return state;
}

/* ---- Batches ---- */

/* The batch that a device is at, or that the process has started last. */
struct batch {
  const struct weft_flight_transfer *first; /* NULL: it is not in the record */
  const struct weft_flight_transfer *end;
};

static struct batch batch_of(const struct weft_flight_record *record, size_t number) {
  assert(number < record->count);
  const struct weft_flight_transfer *all = record->transfers, *one = &all[number];
  size_t first = number, end = number + 1;
  while (first > 0 && all[first - 1].batch == one->batch && all[first - 1].group == one->group) {
    first--;
  }
  while (end < record->count && all[end].batch == one->batch && all[end].group == one->group) {
    end++;
  }
  return (struct batch){&all[first], &all[end]};
}

static struct batch batch_at_head(const struct weft_flight_record *record,
                                  const struct weft_flight_row *row) {
  for (size_t k = 0; k < record->count && row->head != UINT64_MAX; k++) {
    if (!record->transfers[k].done) { /* the oldest; the head may be one that the record has lost */
      return record->transfers[k].before == row->head ? batch_of(record, k) : (struct batch){0};
    }
  }
  return (struct batch){0};
}

/* Whether a transfer passes: the peer has done it, or its device is at the batch with the other
 * end. */
static bool passes(const struct weft_flight_row *rows, const struct batch *heads, uint32_t rank,
                   const struct weft_flight_wait *wait) {
  const struct weft_flight_row *peer = &rows[wait->peer];
  const struct weft_flight_channel *other = weft_flight_channel_find(peer, rank, !wait->sends);
  if (other == NULL) {
    return false;
  }
  const struct batch *head = &heads[wait->peer];
  const uint64_t offset = weft_flight_offset(peer, other, wait->number);
  bool found = other->done > wait->number;
  for (const struct weft_flight_transfer *at = head->first; at < head->end && !found; at++) {
    found = at->before == offset;
  }
  return found;
}

/* The first of a batch that does not pass, else the first whose peer has no dump. NULL: all
 * pass. */
static const struct weft_flight_transfer *find_holdup(const struct weft_flight_row *rows,
                                                      const struct weft_flight_state *states,
                                                      const struct batch *heads, uint32_t rank,
                                                      struct batch batch) {
  const struct weft_flight_transfer *unknown = NULL;
  for (const struct weft_flight_transfer *at = batch.first; at < batch.end; at++) {
    const struct weft_flight_wait wait = wait_in(&rows[rank], at);
    if (states[at->peer].phase == WEFT_FLIGHT_MISSING) {
      unknown = unknown == NULL ? at : unknown;
    } else if (!passes(rows, heads, rank, &wait)) {
      return at;
    }
  }
  return unknown;
}

/* Makes ranks that wait for a batch wait for what holds it up. */
static void find_holdups(const struct weft_program *program,
                         const struct weft_flight_record *records,
                         const struct weft_flight_row *rows, const struct batch *heads,
                         struct weft_flight_state *states) {
  for (uint32_t r = 0; r < program->rank_count; r++) {
    const struct weft_flight_row *row = &rows[r];
    struct weft_flight_state *state = &states[r];
    if (state->phase != WEFT_FLIGHT_WAITING) {
      continue;
    }
    const struct weft_flight_transfer *holdup = find_holdup(rows, states, heads, r, heads[r]);
    if (holdup != NULL) {
      wait_at(program, row, holdup->before, wait_in(row, holdup), state);
    }
    if (state->process.peer != NOBODY) {
      holdup = find_holdup(rows, states, heads, r, batch_of(&records[r], records[r].count - 1));
      state->process = holdup != NULL ? wait_in(row, holdup) : state->process;
    }
  }
}

/* ---- Collectives ---- */

bool weft_flight_is_behind(const struct weft_flight_record *record,
                           const struct weft_flight_group *group, uint64_t number) {
  for (uint32_t g = 0; g < record->group_count; g++) {
    const struct weft_flight_group *own = &record->groups[g];
    if (own->rank_count == group->rank_count && own->ranks[0] == group->ranks[0] &&
        strcmp(own->name, group->name) == 0) {
      return own->started < number && (own->started > 0 || record->whole);
    }
  }
  return false;
}

/* Of several holds the first kind: one that leads on before one that does not. */
void weft_flight_find_holds(struct weft_flight_job *job) {
  for (uint32_t r = 0; r < job->ranks.count; r++) {
    const struct weft_flight_record *record = &job->ranks.records[r];
    struct weft_flight_hold *hold = &job->states[r].hold;
    for (uint32_t g = 0; g < record->group_count; g++) {
      const struct weft_flight_group *group = &record->groups[g];
      if (group->pending.name != NULL && hold->kind == WEFT_FLIGHT_HOLD_NONE) {
        *hold = (struct weft_flight_hold){WEFT_FLIGHT_HOLD_UNKNOWN, group, 0};
      }
      for (uint32_t k = 0; group->pending.name != NULL && k < group->rank_count; k++) {
        const uint32_t rank = job->ranks.positions[group->ranks[k]];
        const struct weft_flight_record *other = rank != NOBODY ? &job->ranks.records[rank] : NULL;
        const enum weft_flight_hold_kind kind =
            other == NULL || other->name == NULL                         ? WEFT_FLIGHT_HOLD_NO_DUMP
            : weft_flight_is_behind(other, group, group->pending.number) ? WEFT_FLIGHT_HOLD_PROCESS
            : rank != r && job->states[rank].phase == WEFT_FLIGHT_WAITING
                ? WEFT_FLIGHT_HOLD_DEVICE
                : WEFT_FLIGHT_HOLD_UNKNOWN;
        if (kind == WEFT_FLIGHT_HOLD_PROCESS) {
          job->states[rank].is_behind = true;
        }
        if (kind < hold->kind) {
          *hold = (struct weft_flight_hold){kind, group, group->ranks[k]};
        }
      }
    }
  }
}

/* ---- Paths ---- */

/* A rank's process or device. */
static uint32_t process_of(uint32_t rank) { return 2 * rank; }
static uint32_t device_of(uint32_t rank) { return 2 * rank + 1; }
static uint32_t rank_of(uint32_t node) { return node / 2; }
static bool is_process(uint32_t node) { return node % 2 == 0; }

struct judge {
  const struct weft_flight_job *job;
  const struct weft_flight_state *states;
  uint32_t *waiters; /* [rank]: how many paths end there */
  bool *doubted;     /* [rank]: it is not known that it is the culprit of those */
  uint32_t *seen;    /* [node]: 1 + the node whose path came by; KNOWN */
  uint32_t *end_of;  /* [node]: where its path ends; NOBODY: on a cycle; once it is known */
};

#define KNOWN UINT32_MAX

/* Whether it is known what a rank waits for that waits in a collective. */
static bool leads_on(const struct weft_flight_state *state) {
  return state->hold.kind != WEFT_FLIGHT_HOLD_NONE && state->hold.kind != WEFT_FLIGHT_HOLD_UNKNOWN;
}

/* What that is; itself: nothing. */
static uint32_t next_of_hold(const struct judge *judge, uint32_t node) {
  const struct weft_flight_hold *hold = &judge->states[rank_of(node)].hold;
  const uint32_t rank = judge->job->ranks.positions[hold->number];
  if (!leads_on(&judge->states[rank_of(node)]) || rank == NOBODY) {
    return node;
  }
  return hold->kind == WEFT_FLIGHT_HOLD_DEVICE ? device_of(rank) : process_of(rank);
}

/* Whether the dump does not tell that this process waits. */
static bool may_run(const struct judge *judge, uint32_t node) {
  const struct weft_flight_state *state = &judge->states[rank_of(node)];
  return is_process(node) && state->phase != WEFT_FLIGHT_MISSING && state->process.peer == NOBODY &&
         !(state->phase == WEFT_FLIGHT_WAITING && state->ended_step);
}

/* What this one waits for; itself: nothing. */
static uint32_t next_of(const struct judge *judge, uint32_t node) {
  assert(rank_of(node) < judge->job->ranks.count);
  const uint32_t rank = rank_of(node);
  const struct weft_flight_state *state = &judge->states[rank];
  if (is_process(node) && state->phase == WEFT_FLIGHT_WAITING &&
      (state->ended_step || (may_run(judge, node) && !leads_on(state)))) {
    return device_of(rank);
  }
  const bool by_process = is_process(node) && state->phase != WEFT_FLIGHT_MISSING;
  const struct weft_flight_wait *wait = by_process ? &state->process : &state->device;
  if (wait->peer == NOBODY) {
    return next_of_hold(judge, node);
  }
  const uint32_t row = rank % judge->job->program->rank_count, peer = rank - row + wait->peer;
  assert(peer < judge->job->ranks.count);
  const struct weft_flight_channel *other =
      weft_flight_channel_find(&judge->job->rows[peer], row, !wait->sends);
  if (judge->states[peer].phase == WEFT_FLIGHT_MISSING || other == NULL ||
      other->started <= wait->number) {
    return process_of(peer);
  }
  const struct weft_flight_state *there = &judge->states[peer];
  if (by_process && other->done > wait->number) {
    return device_of(rank);
  }
  /* If the peer is done with it, or at it, too, a collective keeps one of the devices from it; or
   * this one is slow, or stuck. A rank that has no dump may not have started its own end. */
  const bool at_it = there->device.peer == row && there->device.number == wait->number &&
                     there->device.sends != wait->sends;
  const bool is_held = at_it && leads_on(there) && !leads_on(state);
  return there->phase == WEFT_FLIGHT_WAITING && state->phase != WEFT_FLIGHT_MISSING &&
                 other->done <= wait->number && (by_process || !at_it || is_held)
             ? device_of(peer)
             : next_of_hold(judge, node);
}

/* Whose fault a cycle is, or NOBODY's: that of a rank without a dump, or else of a process that may
 * run, or else of the only process. Where a collective plays a part, that is not sure. */
static uint32_t process_on_cycle(const struct judge *judge, uint32_t member) {
  uint32_t found = member, count = 0, node = member;
  unsigned reason = 0;
  bool in_collective = false;
  do {
    const struct weft_flight_state *state = &judge->states[rank_of(node)];
    const unsigned why = state->phase == WEFT_FLIGHT_MISSING ? 3
                         : may_run(judge, node)              ? 2
                                                             : is_process(node);
    count = why > reason ? 1 : count + (why == reason);
    found = why > reason ? node : found;
    reason = why > reason ? why : reason;
    in_collective |= state->hold.kind == WEFT_FLIGHT_HOLD_NO_DUMP ||
                     (state->hold.kind != WEFT_FLIGHT_HOLD_NONE &&
                      (is_process(node) || next_of(judge, node) == next_of_hold(judge, node)));
    node = next_of(judge, node);
  } while (node != member);
  if (in_collective || reason == 3 || (reason == 2 && count > 1)) {
    judge->doubted[rank_of(found)] = true;
    return found;
  }
  return reason == 2 || (reason == 1 && count == 1) ? found : NOBODY;
}

/* Follows a path to its end, or to one that is known. NOBODY: it ends in a deadlock; *on_cycle is
 * a member of it, if this path has found it. Linear for all ranks together. */
static uint32_t follow_path(const struct judge *judge, uint32_t start, uint32_t *on_cycle) {
  uint32_t node = start, last = start;
  while (judge->seen[node] == 0) {
    judge->seen[node] = start + 1;
    last = node;
    node = next_of(judge, node);
  }
  uint32_t end = judge->end_of[node];
  if (node == last) {
    end = node;
    judge->doubted[rank_of(node)] |=
        !is_process(node) || judge->states[rank_of(node)].hold.kind != WEFT_FLIGHT_HOLD_NONE ||
        judge->states[rank_of(node)].phase == WEFT_FLIGHT_MISSING;
  } else if (judge->seen[node] != KNOWN) {
    end = process_on_cycle(judge, node);
    *on_cycle = end == NOBODY ? node : *on_cycle;
  }
  for (node = start; judge->seen[node] == start + 1; node = next_of(judge, node)) {
    judge->end_of[node] = end;
    judge->seen[node] = KNOWN;
  }
  return end;
}

/* From its smallest rank on. */
static void list_cycle(const struct judge *judge, uint32_t member,
                       struct weft_flight_verdict *verdict) {
  assert(verdict->cycle_length == 0);
  uint32_t first = member, node = member;
  do {
    node = next_of(judge, node);
    first = rank_of(node) < rank_of(first) ? node : first;
  } while (node != member);
  node = first;
  do {
    if (verdict->cycle_length == 0 ||
        verdict->cycle[verdict->cycle_length - 1] != rank_of(node)) { /* process and device */
      verdict->cycle[verdict->cycle_length++] = rank_of(node);
    }
    node = next_of(judge, node);
  } while (node != first);
}

/* A rank without a dump has done what its peers have done with it. Its first transfer that is not
 * done is where its device can be at most. */
static void infer_state(struct weft_flight_row *rows, uint32_t rank,
                        struct weft_flight_state *states) {
  struct weft_flight_row *row = &rows[rank];
  row->head = UINT64_MAX;
  for (uint32_t c = 0; c < row->channel_count; c++) {
    struct weft_flight_channel *channel = &row->channels[c];
    if (states[channel->peer].phase == WEFT_FLIGHT_MISSING) {
      continue; /* nothing is known */
    }
    const struct weft_flight_channel *other =
        weft_flight_channel_find(&rows[channel->peer], rank, !channel->sends);
    channel->done = other != NULL ? other->done : 0;
    const uint64_t offset = weft_flight_offset(row, channel, channel->done);
    row->head = offset < row->head ? offset : row->head;
  }
  if (row->head != UINT64_MAX) {
    states[rank].device = wait_at_head(row);
  }
}

/* A culprit is the only process that has a dump and at which waits end. */
static void choose_culprit(const struct judge *judge, uint32_t on_cycle,
                           struct weft_flight_verdict *verdict) {
  uint32_t certain = 0, culprit = NOBODY, count = 0;
  for (uint32_t r = 0; r < judge->job->ranks.count; r++) {
    const bool is_missing = judge->states[r].phase == WEFT_FLIGHT_MISSING;
    if (judge->waiters[r] > 0 || judge->doubted[r] || (is_missing && !verdict->hangs)) {
      verdict->suspects[count++] = r;
      if (!judge->doubted[r] && !is_missing) {
        culprit = r;
        certain++;
      }
    }
  }
  if (certain == 0 && on_cycle != NOBODY) {
    list_cycle(judge, on_cycle, verdict);
  } else if (certain == 1 && on_cycle == NOBODY) {
    verdict->culprit = culprit;
  } else {
    verdict->suspect_count = count;
  }
}

static void follow_paths(const struct judge *judge, struct weft_flight_verdict *verdict) {
  uint32_t on_cycle = NOBODY;
  for (uint32_t r = 0; r < judge->job->ranks.count; r++) {
    const struct weft_flight_state *state = &judge->states[r];
    const bool waits = state->phase == WEFT_FLIGHT_WAITING;
    const uint32_t node = waits ? device_of(r) : process_of(r);
    if (!waits && state->hold.kind == WEFT_FLIGHT_HOLD_NONE && !state->is_behind) {
      continue;
    }
    const uint32_t end =
        judge->seen[node] == KNOWN ? judge->end_of[node] : follow_path(judge, node, &on_cycle);
    verdict->hangs = true;
    if (end != NOBODY) {
      judge->waiters[rank_of(end)]++;
    }
  }
  choose_culprit(judge, on_cycle, verdict);
}

enum weft_status weft_flight_judge(struct weft_arena *arena, struct weft_flight_job *job,
                                   struct weft_flight_verdict *verdict, struct weft_error *error) {
  assert(job != NULL && verdict != NULL);
  const uint32_t count = job->ranks.count, rank_count = job->program->rank_count;
  const size_t nodes = 2 * (size_t)count;
  const struct judge judge = {.job = job,
                              .states = job->states,
                              .waiters = weft_arena_allocate(arena, count, sizeof *judge.waiters),
                              .doubted = weft_arena_allocate(arena, count, sizeof *judge.doubted),
                              .seen = weft_arena_allocate(arena, nodes, sizeof *judge.seen),
                              .end_of = weft_arena_allocate(arena, nodes, sizeof *judge.end_of)};
  *verdict = (struct weft_flight_verdict){
      .culprit = NOBODY,
      .cycle = weft_arena_allocate(arena, nodes, sizeof *verdict->cycle),
      .suspects = weft_arena_allocate(arena, count, sizeof *verdict->suspects)};
  struct batch *heads = weft_arena_allocate(arena, rank_count, sizeof *heads);
  WEFT_TRY(weft_arena_status(arena, error));
  for (uint32_t base = 0; base < job->ranks.pipelines * rank_count; base += rank_count) {
    struct weft_flight_row *rows = &job->rows[base];
    const struct weft_flight_record *records = &job->ranks.records[base];
    for (uint32_t r = 0; r < rank_count; r++) {
      heads[r] = batch_at_head(&records[r], &rows[r]);
      if (job->states[base + r].phase == WEFT_FLIGHT_MISSING) {
        infer_state(rows, r, &job->states[base]);
      }
    }
    find_holdups(job->program, records, rows, heads, &job->states[base]);
  }
  follow_paths(&judge, verdict);
  struct weft_flight_state *culprit =
      verdict->culprit != NOBODY ? &job->states[verdict->culprit] : NULL;
  if (culprit != NULL && culprit->phase == WEFT_FLIGHT_WAITING && !culprit->ended_step) {
    culprit->phase = WEFT_FLIGHT_COMPUTING; /* its process is: its device waits for others */
    show_process(culprit);
  }
  return WEFT_OK;
}
