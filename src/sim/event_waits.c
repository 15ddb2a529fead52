/* What events waited for. A compute action begins when its rank is free and its inputs are there, so
 * a gap ends with what came last: an input, or the parameters. The critical path goes from the event
 * that ends last, back through what each event had to wait for, to one that begins at the start. */
#include "sim/event_waits.h"

#include <assert.h>

#include <weft/support.h>

#include "ir/action.h"

uint64_t weft_event_of(const struct weft_simulation *simulation, uint64_t record) {
  assert(record < simulation->program->action_count);
  const uint32_t rank = weft_program_rank_at(simulation->program, record);
  uint64_t low = simulation->event_begin[rank], high = simulation->event_begin[rank + 1];
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (simulation->events[middle].record < record) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const bool found =
      low < simulation->event_begin[rank + 1] && simulation->events[low].record == record;
  return found ? low : WEFT_EVENT_NONE;
}

bool weft_event_begins_rank(const struct weft_program *program, const struct weft_event *event) {
  const uint8_t op = program->actions[event->record].op;
  return weft_op_in(op, WEFT_OPS_COMPUTE_CELL) ||
         (weft_op_in(op, WEFT_OPS_SHARD) && event->end > event->begin);
}

int64_t weft_simulation_begin(const struct weft_simulation *simulation) {
  int64_t first = INT64_MAX;
  for (uint64_t i = 0; i < simulation->event_count; i++) {
    const struct weft_event *event = &simulation->events[i];
    if (event->begin < first && weft_event_begins_rank(simulation->program, event)) {
      first = event->begin;
    }
  }
  return first;
}

int64_t weft_arrival_of(const struct weft_simulation *simulation, uint64_t event, uint64_t record) {
  assert(event < simulation->event_count && record < simulation->program->action_count);
  const struct weft_program *program = simulation->program;
  const struct weft_event *maker = &simulation->events[event];
  const struct weft_action made = program->actions[maker->record];
  const struct weft_action taker = program->actions[record];
  if (simulation->arrivals == NULL || made.stage == taker.stage ||
      !weft_op_in(made.op, WEFT_OP_BIT(WEFT_OP_F) | WEFT_OPS_GRADIENT)) {
    return maker->end;
  }
  const bool forward = made.op == WEFT_OP_F;
  const uint32_t edge = forward ? weft_graph_find(program->graph, made.stage, taker.stage)
                                : weft_graph_find(program->graph, taker.stage, made.stage);
  return edge == WEFT_EDGE_NONE
             ? maker->end
             : simulation->arrivals[(2 * (uint64_t)edge + !forward) * program->microbatch_count +
                                    made.microbatch];
}

/* What a record waited for longest, so far; begins with the event WEFT_EVENT_NONE. */
struct awaited {
  uint64_t event;
  int64_t at; /* when what it made was there */
};

/* Takes an event that had to end first, if none before it was there later. */
static void offer_event(struct awaited *latest, uint64_t event, int64_t at) {
  if (latest->event == WEFT_EVENT_NONE || at > latest->at) {
    *latest = (struct awaited){event, at};
  }
}

/* Takes the event of a record that `record` needs, if none before it was there later. */
static void await_record(const struct weft_simulation *simulation, uint64_t need, uint64_t record,
                         struct awaited *latest) {
  const uint64_t event = weft_event_of(simulation, need);
  if (event != WEFT_EVENT_NONE) {
    offer_event(latest, event, weft_arrival_of(simulation, event, record));
  }
}

/* Likewise of all that it needs. */
static void await_needs(const struct weft_simulation *simulation, const struct weft_links *links,
                        uint64_t record, struct awaited *latest) {
  uint64_t needs[WEFT_NEEDS_MAX];
  const unsigned count = weft_links_needs(links, record, needs);
  for (unsigned i = 0; i < count; i++) {
    await_record(simulation, needs[i], record, latest);
  }
}

/* The UNSHARD of the stage that precedes the action in its row. */
static void offer_unshard(const struct weft_simulation *simulation, uint64_t event, uint16_t stage,
                          struct awaited *latest) {
  const uint64_t row_begin = simulation->event_begin[simulation->events[event].rank];
  for (uint64_t i = event; i > row_begin; i--) {
    const struct weft_action action =
        simulation->program->actions[simulation->events[i - 1].record];
    if (action.op == WEFT_OP_UNSHARD && action.stage == stage) {
      offer_event(latest, i - 1, simulation->events[i - 1].end);
      return;
    }
    /* Beyond another action of the stage it was there already. */
    if (action.stage == stage && weft_op_in(action.op, WEFT_OPS_COMPUTE)) {
      return;
    }
  }
}

/* Of a gap that ended with a transfer: whether the larger part of it went by
 * between the making of the message and the start of the transfer. */
static bool is_channels_fault(const struct weft_simulation *simulation,
                              const struct weft_links *links, const struct weft_event *recv,
                              int64_t idle_from) {
  uint64_t needs[WEFT_NEEDS_MAX];
  const uint32_t send = weft_links_peer(links, recv->record);
  if (send == WEFT_MATCH_NONE || weft_links_needs(links, send, needs) == 0) {
    return false;
  }
  const uint64_t maker = weft_event_of(simulation, needs[0]);
  if (maker == WEFT_EVENT_NONE) {
    return false;
  }
  const int64_t made = simulation->events[maker].end;
  const int64_t from = made > idle_from ? made : idle_from;
  const int64_t queued = recv->begin > from ? recv->begin - from : 0;
  return queued > recv->end - idle_from - queued;
}

static enum weft_idle_cause cause_of(const struct weft_simulation *simulation,
                                     const struct weft_links *links,
                                     const struct weft_event *awaited, int64_t idle_from) {
  const struct weft_action action = simulation->program->actions[awaited->record];
  switch (action.op) {
    case WEFT_OP_UNSHARD: return WEFT_IDLE_UNSHARD;
    case WEFT_OP_RECV_F:
    case WEFT_OP_RECV_B:
      if (is_channels_fault(simulation, links, awaited, idle_from)) {
        return WEFT_IDLE_CHANNEL;
      }
      return action.op == WEFT_OP_RECV_F ? WEFT_IDLE_FORWARD : WEFT_IDLE_GRADIENT;
    case WEFT_OP_F: return WEFT_IDLE_FORWARD;
    default: return WEFT_IDLE_GRADIENT;
  }
}

struct weft_idle_gap weft_idle_gap_before(const struct weft_simulation *simulation,
                                          const struct weft_links *links, uint64_t event,
                                          int64_t idle_from, bool first, bool starts) {
  assert(event < simulation->event_count);
  const struct weft_event *here = &simulation->events[event];
  const struct weft_action *action = &simulation->program->actions[here->record];
  struct weft_idle_gap gap = {.ticks = here->begin - idle_from, .awaited = WEFT_EVENT_NONE};
  if (gap.ticks <= 0 || first) {
    gap.ticks = gap.ticks > 0 ? gap.ticks : 0;
    gap.cause = WEFT_IDLE_START;
    return gap;
  }
  struct awaited latest = {.event = WEFT_EVENT_NONE, .at = INT64_MIN};
  const unsigned parts = weft_cell_parts(action);
  const unsigned first_part = parts > 0 ? 1 : 0;
  for (unsigned i = first_part; i <= parts; i++) {
    await_needs(simulation, links, here->record + i, &latest);
  }
  /* A scan of the row, so only where the inputs do not explain it. */
  for (unsigned i = first_part; i <= parts && latest.at != here->begin; i++) {
    offer_unshard(simulation, event, action[i].stage, &latest);
  }
  gap.awaited = latest.event;
  gap.cause = gap.awaited == WEFT_EVENT_NONE
                  ? WEFT_IDLE_FORWARD
                  : cause_of(simulation, links, &simulation->events[gap.awaited], idle_from);
  if (starts && gap.cause != WEFT_IDLE_UNSHARD) {
    gap.cause = WEFT_IDLE_START;
  }
  return gap;
}

/* ---- The critical path ---- */

struct path {
  const struct weft_simulation *simulation;
  struct weft_links *links;
};

static bool is_work(const struct path *path, uint64_t event) {
  const struct weft_event *at = &path->simulation->events[event];
  const uint32_t op = path->simulation->program->actions[at->record].op;
  return weft_op_in(op, WEFT_OPS_COMPUTE) || at->end > at->begin;
}

static uint64_t last_event(const struct path *path) {
  const struct weft_simulation *simulation = path->simulation;
  uint64_t last = WEFT_EVENT_NONE;
  for (uint64_t e = 0; e < simulation->event_count; e++) {
    if (is_work(path, e) &&
        (last == WEFT_EVENT_NONE || simulation->events[e].end > simulation->events[last].end)) {
      last = e;
    }
  }
  return last;
}

/* The event on the same rank, not a transfer, that ended just when this began. */
static uint64_t before_on_rank(const struct path *path, uint64_t event) {
  const struct weft_simulation *simulation = path->simulation;
  const struct weft_event *at = &simulation->events[event];
  for (uint64_t e = event; e-- > simulation->event_begin[at->rank];) {
    const struct weft_event *other = &simulation->events[e];
    const uint32_t op = simulation->program->actions[other->record].op;
    if (weft_op_in(op, WEFT_OPS_SEND | WEFT_OPS_RECV) || !is_work(path, e) ||
        (other->begin == at->begin && other->end > at->begin)) { /* a part of the same overlap */
      continue;
    }
    return other->end == at->begin ? e : WEFT_EVENT_NONE;
  }
  return WEFT_EVENT_NONE;
}

/* What a record needs that is there last. A table's transfer time lies between the
 * two, so the need may end before the event begins. */
static uint64_t latest_need(const struct path *path, uint64_t event) {
  const struct weft_simulation *simulation = path->simulation;
  const uint32_t record = simulation->events[event].record;
  const struct weft_action *cell = &simulation->program->actions[record];
  struct awaited latest = {.event = WEFT_EVENT_NONE};
  for (uint32_t k = 0; k <= weft_cell_parts(cell); k++) {
    await_needs(simulation, path->links, record + k, &latest);
    const uint32_t peer = weft_links_peer(path->links, record + k);
    if (weft_op_in(cell[k].op, WEFT_OPS_RECV) && peer != WEFT_MATCH_NONE) {
      await_record(simulation, peer, record + k, &latest);
    }
  }
  return latest.event;
}

/* Of a part: its overlap, which waits for what any of its parts needs. */
static uint64_t cell_of(const struct path *path, uint64_t event) {
  const struct weft_simulation *simulation = path->simulation;
  const struct weft_event *at = &simulation->events[event];
  for (uint64_t e = event; e-- > simulation->event_begin[at->rank];) {
    const struct weft_event *other = &simulation->events[e];
    if (other->begin != at->begin || other->end != at->end) {
      break;
    }
    const struct weft_action *action = &simulation->program->actions[other->record];
    if (action->op == WEFT_OP_OVERLAP_F_B) {
      return other->record + weft_cell_parts(action) >= at->record ? e : event;
    }
  }
  return event;
}

static uint64_t before(const struct path *path, uint64_t event) {
  const uint64_t cell = cell_of(path, event);
  const uint64_t on_rank = before_on_rank(path, cell);
  return on_rank != WEFT_EVENT_NONE ? on_rank : latest_need(path, cell);
}

/* A SEND and its RECV are one transfer: the path shows its RECV once. */
static uint64_t skip_send(const struct path *path, uint64_t event) {
  const struct weft_simulation *simulation = path->simulation;
  while (event != WEFT_EVENT_NONE &&
         weft_op_in(simulation->program->actions[simulation->events[event].record].op,
                    WEFT_OPS_SEND)) {
    event = latest_need(path, event);
  }
  return event;
}

static uint64_t follow_path(const struct path *path, uint64_t *events, uint64_t room) {
  uint64_t count = 0;
  for (uint64_t e = skip_send(path, last_event(path)); e != WEFT_EVENT_NONE;
       e = skip_send(path, before(path, e))) {
    if (count < room) {
      events[count] = e;
    }
    if (++count > path->simulation->event_count) {
      break; /* events that were not made by a simulation may form cycles */
    }
  }
  const uint64_t kept = count < room ? count : room;
  for (uint64_t k = 0; k < kept / 2; k++) {
    const uint64_t swapped = events[k];
    events[k] = events[kept - 1 - k];
    events[kept - 1 - k] = swapped;
  }
  return count;
}

enum weft_status weft_critical_path(const struct weft_allocator *allocator,
                                    const struct weft_simulation *simulation, uint64_t *events,
                                    uint64_t room, uint64_t *count, struct weft_error *error) {
  WEFT_NEED(simulation, error);
  WEFT_NEED(count, error);
  if (room > 0) {
    WEFT_NEED(events, error);
  }
  struct path path = {.simulation = simulation};
  WEFT_TRY(weft_sim_require_events(simulation, error));
  WEFT_TRY(weft_links_create(allocator, simulation->program, &path.links, error));
  assert(simulation->event_begin[simulation->program->rank_count] == simulation->event_count);
  *count = follow_path(&path, events, room);
  weft_links_destroy(path.links);
  return WEFT_OK;
}
