/* A measured timeline in the simulator's form: the events of a real run, with
 * busy and idle time, causes and peaks computed as the simulator computes them.
 * Given the simulator's own events it gives the simulator's own numbers.
 *
 * It begins from a simulation of the same program, which has the right shape (an
 * event per record that is no bubble) and the peak of activations, which follows
 * from the order of each row alone; then times are put in the place of its times,
 * and all that depends on them is computed anew. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <weft/inspect.h>
#include <weft/sim.h>
#include <weft/support.h>

#include "ir/lifetimes.h"
#include "ir/program.h"
#include "sim/event_waits.h"
#include "sim/rank_record.h"

#define NONE UINT32_MAX
/* No sum or difference of two times overflows. */
#define TIME_MAX (INT64_C(1) << 61)

struct measured {
  const struct weft_allocator *allocator;
  const struct weft_program *program;
  const struct weft_costs *costs;
  struct weft_simulation *simulation;
  struct weft_links *links;
  bool has_backward;
  uint32_t *previous;    /* [action_count] of a SEND: event of the one before it on its
                                  channel; NONE */
  uint32_t *last_send;   /* [channel] the same, while rows are read */
  int64_t *unsharded_at; /* [stage] */
  struct weft_memory_model memory;
  uint32_t *rank_of;              /* [stage] */
  struct weft_rank_record *ranks; /* [rank_count] */
  int64_t *taken, *freed;         /* [buffers_max] when buffers of a rank are in use */
  size_t buffers_max;             /* inputs of a rank */
};

/* ---- Events in ---- */

static enum weft_status fail_order(const struct measured *measured, const struct weft_event *event,
                                   const struct weft_event *expected, struct weft_error *error) {
  char found_text[64], expected_text[64];
  const struct weft_program *program = measured->program;
  const bool exists = event->record < program->action_count;
  return weft_fail(
      error, WEFT_ERR_USAGE, "list the events of a rank in the order of its row",
      "rank %" PRIu32 " has an event of record %" PRIu32 " (%s); expected record %" PRIu32 " (%s)",
      event->rank, event->record,
      exists ? weft_action_format(&program->actions[event->record], found_text, sizeof found_text)
             : "beyond the program",
      expected->record,
      weft_action_format(&program->actions[expected->record], expected_text, sizeof expected_text));
}

/* How many events each rank has, before looking at any: a log that lost its
 * oldest events would look like one in the wrong order. */
static enum weft_status check_counts(const struct measured *measured,
                                     const struct weft_event *events, uint64_t count,
                                     uint64_t *counts, struct weft_error *error) {
  const uint32_t p = measured->program->rank_count;
  const uint64_t *begin = measured->simulation->event_begin;
  for (uint64_t i = 0; i < count; i++) {
    if (events[i].rank >= p) {
      return weft_fail(error, WEFT_ERR_USAGE, "give the events of this program's run",
                       "event %" PRIu64 " is of rank %" PRIu32 "; the program has %" PRIu32
                       " ranks",
                       i, events[i].rank, p);
    }
    counts[events[i].rank]++;
  }
  for (uint32_t r = 0; r < p; r++) {
    if (counts[r] != begin[r + 1] - begin[r]) {
      return weft_fail(error, WEFT_ERR_USAGE, "measure complete steps: this one was cut short",
                       "rank %" PRIu32 " has %" PRIu64 " events; expected %" PRIu64
                       ", one for each of its actions",
                       r, counts[r], begin[r + 1] - begin[r]);
    }
    counts[r] = begin[r]; /* from here on: where the rank's next event goes */
  }
  return WEFT_OK;
}

static enum weft_status copy_events(const struct measured *measured, struct weft_arena *arena,
                                    const struct weft_event *events, uint64_t count,
                                    struct weft_error *error) {
  uint64_t *next = weft_arena_allocate(arena, measured->program->rank_count, sizeof *next);
  WEFT_TRY(weft_arena_status(arena, error));
  WEFT_TRY(check_counts(measured, events, count, next, error));
  for (uint64_t i = 0; i < count; i++) {
    struct weft_event *event = &measured->simulation->events[next[events[i].rank]++];
    if (events[i].record != event->record) {
      return fail_order(measured, &events[i], event, error);
    }
    *event = events[i];
    if (event->begin > event->end || event->begin < -TIME_MAX || event->end > TIME_MAX) {
      return weft_fail(error, WEFT_ERR_USAGE, "an event ends when it begins, or later",
                       "rank %" PRIu32 " has an event of record %" PRIu32 " from %" PRId64
                       " to %" PRId64,
                       event->rank, event->record, event->begin, event->end);
    }
  }
  return WEFT_OK;
}

/* The first begin on any rank becomes 0. What carries nothing yet (a receive
 * that was posted early) and what takes no time does not begin before it. */
static void shift_events(const struct measured *measured) {
  struct weft_simulation *simulation = measured->simulation;
  const int64_t first = weft_simulation_begin(simulation);
  for (uint64_t i = 0; i < simulation->event_count && first != INT64_MAX; i++) {
    struct weft_event *event = &simulation->events[i];
    event->begin = event->begin > first ? event->begin - first : 0;
    event->end = event->end > first ? event->end - first : 0;
  }
}

/* ---- Ties between events ---- */

static void link_sends(struct measured *measured) {
  const struct weft_simulation *simulation = measured->simulation;
  const struct weft_program *program = measured->program;
  const size_t channels = weft_channel_count(program->graph, program->stage_count);
  memset(measured->previous, 0xff, program->action_count * sizeof *measured->previous); /* NONE */
  memset(measured->last_send, 0xff, channels * sizeof *measured->last_send);
  for (uint64_t i = 0; i < simulation->event_count; i++) {
    const uint32_t record = simulation->events[i].record;
    const struct weft_action action = program->actions[record];
    const uint32_t channel =
        weft_op_in(action.op, WEFT_OPS_SEND) ? weft_channel_of(program, action) : WEFT_EDGE_NONE;
    if (channel != WEFT_EDGE_NONE) {
      measured->previous[record] = measured->last_send[channel];
      measured->last_send[channel] = (uint32_t)i;
    }
  }
}

/* NULL: a bubble. */
static const struct weft_event *event_at(const struct measured *measured, uint64_t record) {
  const uint64_t event = weft_event_of(measured->simulation, record);
  return event != WEFT_EVENT_NONE ? &measured->simulation->events[event] : NULL;
}

/* The events that bring the inputs of an F, B, I or W: RECVs, or actions of other stages that
 * make them; returns how many. Its own F or I, which it also waits for, precedes
 * it in the row. */
static unsigned inputs_of(const struct measured *measured, uint64_t record,
                          const struct weft_event *inputs[WEFT_NEEDS_MAX]) {
  uint64_t needs[WEFT_NEEDS_MAX];
  const struct weft_action *actions = measured->program->actions;
  unsigned found = 0;
  const uint32_t stage = actions[record].stage;
  const unsigned count = weft_links_needs(measured->links, record, needs);
  for (unsigned k = 0; k < count; k++) {
    const struct weft_action need = actions[needs[k]];
    if (weft_op_in(need.op, WEFT_OPS_RECV) || need.stage != stage) {
      inputs[found] = event_at(measured, needs[k]);
      found += inputs[found] != NULL;
    }
  }
  return found;
}

/* How long a message waited behind the one before it on its channel: from when it
 * was made to when its transfer began, as far as that other one was under way. */
static int64_t held_up(const struct measured *measured, const struct weft_event *recv) {
  uint64_t needs[WEFT_NEEDS_MAX];
  const uint32_t send = weft_links_peer(measured->links, recv->record);
  if (send == WEFT_MATCH_NONE || measured->previous[send] == NONE ||
      weft_links_needs(measured->links, send, needs) == 0) {
    return 0;
  }
  const struct weft_event *maker = event_at(measured, needs[0]);
  const struct weft_event *before = &measured->simulation->events[measured->previous[send]];
  if (maker == NULL) {
    return 0;
  }
  const int64_t until = recv->begin < before->end ? recv->begin : before->end;
  return until > maker->end ? until - maker->end : 0;
}

/* ---- Causes ---- */

/* The input of a cell that came last; NULL: it needs none. */
static const struct weft_event *latest_input(const struct measured *measured,
                                             const struct weft_action *cell, uint64_t record) {
  const struct weft_event *latest = NULL;
  for (uint32_t k = weft_cell_parts(cell) > 0; k <= weft_cell_parts(cell); k++) {
    const struct weft_event *inputs[WEFT_NEEDS_MAX];
    const unsigned count =
        weft_op_in(cell[k].op, WEFT_OPS_COMPUTE) ? inputs_of(measured, record + k, inputs) : 0;
    for (unsigned j = 0; j < count; j++) {
      latest = latest == NULL || inputs[j]->end > latest->end ? inputs[j] : latest;
    }
  }
  return latest;
}

static int64_t latest_unshard(const struct measured *measured, const struct weft_action *cell) {
  int64_t latest = INT64_MIN;
  for (uint32_t k = weft_cell_parts(cell) > 0; k <= weft_cell_parts(cell); k++) {
    const int64_t at = measured->unsharded_at[cell[k].stage];
    latest = weft_op_in(cell[k].op, WEFT_OPS_COMPUTE) && at > latest ? at : latest;
  }
  return latest;
}

/* The input explains a gap by its direction. An action that needs none and still began late (the rank
 * had other things to do) counts with its own. */
static void blame_gap(const struct measured *measured, struct weft_rank_record *rank,
                      const struct weft_action *cell, const struct weft_event *event) {
  const struct weft_action *actions = measured->program->actions;
  const struct weft_event *input =
      event->begin > rank->clock ? latest_input(measured, cell, event->record) : NULL;
  const int64_t gap =
      weft_rank_record_begin(rank, rank->clock, event->begin, input != NULL ? &input->end : NULL,
                             latest_unshard(measured, cell));
  const uint32_t op =
      input != NULL ? actions[input->record].op : cell[weft_cell_parts(cell) > 0].op;
  if (gap > 0) {
    const bool received = input != NULL && weft_op_in(op, WEFT_OPS_RECV);
    weft_rank_record_blame(rank, gap, received ? held_up(measured, input) : 0,
                           op == WEFT_OP_F || op == WEFT_OP_RECV_F);
  }
}

/* ---- Rows ---- */

static struct weft_saved saved_by(const struct measured *measured, struct weft_action action) {
  const struct weft_stage_costs *costs = weft_costs_of(measured->costs, action.stage);
  return weft_saved_by(action, costs->activation, costs->activation_after_i,
                       measured->program->graph, measured->has_backward);
}

static void account_compute(const struct measured *measured, struct weft_rank_record *rank,
                            const struct weft_event *event) {
  const struct weft_action *cell = &measured->program->actions[event->record];
  blame_gap(measured, rank, cell, event);
  const int64_t from = event->begin > rank->clock ? event->begin : rank->clock;
  rank->busy += event->end > from ? event->end - from : 0;
  rank->clock = event->end > rank->clock ? event->end : rank->clock;
  const uint32_t parts = weft_cell_parts(cell);
  for (uint32_t k = 0; k <= parts; k++) {
    if (weft_op_in(cell[k].op, WEFT_OPS_COMPUTE)) {
      const struct weft_saved saved = saved_by(measured, cell[k]);
      weft_rank_memory_begin(&rank->memory, &measured->memory, &cell[k], &saved, event->begin);
    }
  }
  for (uint32_t k = 0; k <= parts; k++) {
    if (weft_op_in(cell[k].op, WEFT_OPS_COMPUTE)) {
      weft_rank_memory_activation(&rank->memory, saved_by(measured, cell[k]).from_end, event->end);
    }
  }
}

static void account_collective(const struct measured *measured, struct weft_rank_record *rank,
                               struct weft_action action, const struct weft_event *event) {
  rank->stream = event->end > rank->stream ? event->end : rank->stream;
  if (action.op == WEFT_OP_UNSHARD) {
    measured->unsharded_at[action.stage] = event->end;
  }
  weft_rank_memory_collective(&rank->memory, (enum weft_op)action.op,
                              weft_costs_of(measured->costs, action.stage), event->begin,
                              event->end);
  if (event->end > event->begin && !rank->has_begun) {
    rank->has_begun = true;
    rank->first_begin = rank->clock = event->begin;
  }
}

/* The buffers of an action's inputs from other ranks, of which the rank has had `count` before;
 * returns how many there are now. One is taken from the start of the transfer, in a table as soon as
 * the data is made, to the end of the action. */
static size_t add_buffers(const struct measured *measured, const struct weft_event *event,
                          size_t count) {
  const struct weft_event *inputs[WEFT_NEEDS_MAX];
  const unsigned input_count = inputs_of(measured, event->record, inputs);
  for (unsigned k = 0; k < input_count; k++) {
    const struct weft_event *input = inputs[k];
    const bool received = weft_op_in(measured->program->actions[input->record].op, WEFT_OPS_RECV);
    if (received || input->rank != event->rank) {
      measured->taken[count] = received ? input->begin : input->end;
      measured->freed[count++] = event->end;
    }
  }
  return count;
}

static void account_rank(const struct measured *measured, uint32_t number) {
  const struct weft_simulation *simulation = measured->simulation;
  struct weft_rank_record *rank = &measured->ranks[number];
  uint64_t parts_end = 0; /* events before this are parts of an overlap */
  size_t buffers = 0;
  for (uint64_t i = simulation->event_begin[number]; i < simulation->event_begin[number + 1]; i++) {
    const struct weft_event *event = &simulation->events[i];
    const struct weft_action action = measured->program->actions[event->record];
    if (weft_op_in(action.op, WEFT_OPS_COMPUTE)) {
      buffers = add_buffers(measured, event, buffers);
    }
    if (weft_op_in(action.op, WEFT_OPS_COMPUTE_CELL) && i >= parts_end) {
      account_compute(measured, rank, event);
      parts_end = i + weft_cell_records(&action);
    } else if (weft_op_in(action.op, WEFT_OPS_SHARD)) {
      account_collective(measured, rank, action, event);
    }
  }
  weft_rank_memory_advance(&rank->memory, INT64_MAX);
  qsort(measured->taken, buffers, sizeof *measured->taken, weft_compare_times);
  qsort(measured->freed, buffers, sizeof *measured->freed, weft_compare_times);
  rank->buffers_peak = weft_buffers_peak(measured->taken, measured->freed, buffers);
}

/* ---- weft_simulation_measured() ---- */

/* The most that a rank's actions consume together. */
static size_t count_inputs(const struct weft_program *program) {
  size_t most = 0;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    size_t count = 0;
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      count += weft_action_input_count(program->graph, program->actions[i], program->stage_count);
    }
    most = count > most ? count : most;
  }
  return most;
}

static enum weft_status allocate_arrays(struct measured *measured, struct weft_arena *arena,
                                        struct weft_error *error) {
  const struct weft_program *program = measured->program;
  const uint32_t channels = weft_channel_count(program->graph, program->stage_count);
  measured->buffers_max = count_inputs(program);
  const size_t records = (size_t)program->action_count, stages = program->stage_count;
  measured->previous = weft_arena_allocate(arena, records, sizeof *measured->previous);
  measured->last_send = weft_arena_allocate(arena, channels, sizeof *measured->last_send);
  measured->unsharded_at = weft_arena_allocate(arena, stages, sizeof *measured->unsharded_at);
  measured->rank_of = weft_arena_allocate(arena, stages, sizeof *measured->rank_of);
  measured->ranks = weft_arena_allocate(arena, program->rank_count, sizeof *measured->ranks);
  measured->taken = weft_arena_allocate(arena, measured->buffers_max, sizeof *measured->taken);
  measured->freed = weft_arena_allocate(arena, measured->buffers_max, sizeof *measured->freed);
  return weft_memory_model_init(&measured->memory, arena, program, measured->costs, error);
}

static enum weft_status account(struct measured *measured, struct weft_arena *arena, double unit,
                                struct weft_error *error) {
  WEFT_TRY(allocate_arrays(measured, arena, error));
  WEFT_TRY(weft_links_create(measured->allocator, measured->program, &measured->links, error));
  shift_events(measured);
  link_sends(measured);
  (void)weft_placement_infer(measured->program, measured->rank_of);
  weft_rank_records_init(measured->ranks, measured->program, &measured->memory, measured->rank_of);
  for (uint32_t r = 0; r < measured->program->rank_count; r++) {
    account_rank(measured, r);
  }
  weft_rank_records_summarize(measured->ranks, unit, measured->simulation);
  return WEFT_OK;
}

enum weft_status weft_simulation_measured(const struct weft_allocator *allocator,
                                          const struct weft_program *program,
                                          const struct weft_costs *costs,
                                          const struct weft_event *events, uint64_t event_count,
                                          double ticks_per_unit, struct weft_simulation **out,
                                          struct weft_error *error) {
  WEFT_NEED(program, error);
  WEFT_NEED(costs, error);
  WEFT_NEED(out, error);
  if (event_count > 0) {
    WEFT_NEED(events, error);
  }
  struct weft_costs_view view;
  struct measured measured = {
      .allocator = allocator,
      .program = program,
      .costs = weft_costs_of_stages(costs, program->rank_count, program->stage_count, &view),
      .has_backward = weft_program_has(program, WEFT_OPS_BACKWARD)};
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  if (!(ticks_per_unit > 0) || !isfinite(ticks_per_unit)) {
    return weft_fail(error, WEFT_ERR_USAGE, "1e6 for nanoseconds and costs in ms",
                     "there are %g ticks to a unit; expected more than 0", ticks_per_unit);
  }
  WEFT_TRY(weft_simulate(allocator, program, costs, NULL, &measured.simulation, error));
  weft_simulation_drop_arrivals(measured.simulation);
  enum weft_status status = copy_events(&measured, &arena, events, event_count, error);
  if (status == WEFT_OK) {
    status = account(&measured, &arena, ticks_per_unit, error);
  }
  weft_links_destroy(measured.links);
  if (status < 0) {
    weft_simulation_destroy(measured.simulation);
    return status;
  }
  assert(measured.simulation->event_count == event_count);
  *out = measured.simulation;
  return WEFT_OK;
}
