/* Idle gaps. A compute action begins when its rank is free and its inputs are
 * there, so a gap ends with what came last: an input, or the parameters. */
#include "sim/idle_gap.h"

#include <assert.h>

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

/* Takes an event that had to end first, if none before it was there later. */
static void offer(struct weft_awaited *latest, uint64_t event, int64_t at) {
  if (latest->event == WEFT_EVENT_NONE || at > latest->at) {
    *latest = (struct weft_awaited){event, at};
  }
}

void weft_await(const struct weft_simulation *simulation, uint64_t need, uint64_t record,
                struct weft_awaited *latest) {
  const uint64_t event = weft_event_of(simulation, need);
  if (event != WEFT_EVENT_NONE) {
    offer(latest, event, weft_arrival_of(simulation, event, record));
  }
}

void weft_await_needs(const struct weft_simulation *simulation, const struct weft_links *links,
                      uint64_t record, struct weft_awaited *latest) {
  uint64_t needs[WEFT_NEEDS_MAX];
  const unsigned count = weft_links_needs(links, record, needs);
  for (unsigned i = 0; i < count; i++) {
    weft_await(simulation, needs[i], record, latest);
  }
}

/* The UNSHARD of the stage that precedes the action in its row. */
static void offer_unshard(const struct weft_simulation *simulation, uint64_t event, uint16_t stage,
                          struct weft_awaited *latest) {
  const uint64_t row_begin = simulation->event_begin[simulation->events[event].rank];
  for (uint64_t i = event; i > row_begin; i--) {
    const struct weft_action action =
        simulation->program->actions[simulation->events[i - 1].record];
    if (action.op == WEFT_OP_UNSHARD && action.stage == stage) {
      offer(latest, i - 1, simulation->events[i - 1].end);
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
  struct weft_awaited latest = {.event = WEFT_EVENT_NONE, .at = INT64_MIN};
  const unsigned parts = weft_cell_parts(action);
  const unsigned first_part = parts > 0 ? 1 : 0;
  for (unsigned i = first_part; i <= parts; i++) {
    weft_await_needs(simulation, links, here->record + i, &latest);
  }
  /* A walk along the row, so only where the inputs do not explain it. */
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
