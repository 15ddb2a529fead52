/* The critical path: from the event that ends last, back through what each
 * event had to wait for, to one that begins at the start. */

#include <assert.h>

#include <weft/inspect.h>
#include <weft/sim.h>
#include <weft/support.h>

#include "ir/action.h"
#include "sim/idle_gap.h"

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
  struct weft_awaited latest = {.event = WEFT_EVENT_NONE};
  for (uint32_t k = 0; k <= weft_cell_parts(cell); k++) {
    weft_await_needs(simulation, path->links, record + k, &latest);
    const uint32_t peer = weft_links_peer(path->links, record + k);
    if (weft_op_in(cell[k].op, WEFT_OPS_RECV) && peer != WEFT_MATCH_NONE) {
      weft_await(simulation, peer, record + k, &latest);
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

static uint64_t follow(const struct path *path, uint64_t *events, uint64_t room) {
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
  *count = follow(&path, events, room);
  weft_links_destroy(path.links);
  return WEFT_OK;
}
