/* The critical path: from the event that ends last, back through what each
 * event had to wait for, to one that begins at the start. */

#include <assert.h>

#include <weft/inspect.h>
#include <weft/sim.h>
#include <weft/support.h>

#include "ir/action.h"
#include "sim/idle_gap.h"

#define NO_EVENT UINT64_MAX

struct path {
  const struct weft_simulation *simulation;
  struct weft_links *links;
  uint32_t *event_of; /* [record], UINT32_MAX for bubbles */
};

static bool is_work(const struct path *path, uint64_t event) {
  const struct weft_event *at = &path->simulation->events[event];
  const uint32_t op = path->simulation->program->actions[at->record].op;
  return weft_op_in(op, WEFT_OPS_COMPUTE) || at->end > at->begin;
}

static uint64_t last_event(const struct path *path) {
  const struct weft_simulation *simulation = path->simulation;
  uint64_t last = NO_EVENT;
  for (uint64_t e = 0; e < simulation->event_count; e++) {
    if (is_work(path, e) &&
        (last == NO_EVENT || simulation->events[e].end > simulation->events[last].end)) {
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
    return other->end == at->begin ? e : NO_EVENT;
  }
  return NO_EVENT;
}

/* What a record needs that is there last. A table's transfer time lies between the
 * two, so the need may end before the event begins. */
static uint64_t latest_need(const struct path *path, uint64_t event) {
  const struct weft_simulation *simulation = path->simulation;
  const uint32_t record = simulation->events[event].record;
  const uint32_t parts = weft_cell_parts(&simulation->program->actions[record]);
  uint64_t latest = NO_EVENT;
  int64_t latest_at = INT64_MIN;
  for (uint32_t k = 0; k <= parts; k++) {
    uint64_t needs[WEFT_NEEDS_MAX + 1];
    unsigned count = weft_links_needs(path->links, record + k, needs);
    const uint32_t peer = weft_links_peer(path->links, record + k);
    if (weft_op_in(simulation->program->actions[record + k].op, WEFT_OPS_RECV) &&
        peer != WEFT_MATCH_NONE) {
      needs[count++] = peer;
    }
    for (unsigned j = 0; j < count; j++) {
      const uint32_t e = path->event_of[needs[j]];
      const int64_t at = e != UINT32_MAX ? weft_arrival_of(simulation, e, record + k) : 0;
      if (e != UINT32_MAX && (latest == NO_EVENT || at > latest_at)) {
        latest = e;
        latest_at = at;
      }
    }
  }
  return latest;
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
  return on_rank != NO_EVENT ? on_rank : latest_need(path, cell);
}

/* A SEND and its RECV are one transfer: the path shows its RECV once. */
static uint64_t skip_send(const struct path *path, uint64_t event) {
  const struct weft_simulation *simulation = path->simulation;
  while (event != NO_EVENT &&
         weft_op_in(simulation->program->actions[simulation->events[event].record].op,
                    WEFT_OPS_SEND)) {
    event = latest_need(path, event);
  }
  return event;
}

static uint64_t follow(const struct path *path, uint64_t *events, uint64_t room) {
  uint64_t count = 0;
  for (uint64_t e = skip_send(path, last_event(path)); e != NO_EVENT;
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
  const struct weft_program *program = simulation->program;
  struct path path = {.simulation = simulation};
  WEFT_TRY(weft_sim_require_events(simulation, error));
  path.event_of = weft_array_allocate(allocator, program->action_count, sizeof *path.event_of);
  if (path.event_of == NULL) {
    return weft_fail_memory(error, program->action_count * sizeof *path.event_of);
  }
  enum weft_status status = weft_links_create(allocator, program, &path.links, error);
  if (status == WEFT_OK) {
    memset(path.event_of, 0xff, program->action_count * sizeof *path.event_of);
    for (uint64_t e = 0; e < simulation->event_count; e++) {
      assert(simulation->events[e].record < program->action_count);
      path.event_of[simulation->events[e].record] = (uint32_t)e;
    }
    *count = follow(&path, events, room);
  }
  weft_links_destroy(path.links);
  weft_array_free(allocator, path.event_of, program->action_count, sizeof *path.event_of);
  return status;
}
