/* Chrome trace: a simulation or a measured run as the JSON that Perfetto
 * and chrome://tracing open. A process is a rank; it has a track for compute,
 * and tracks for what it transfers.
 *
 * Times are written as microseconds with three decimals, from whole
 * nanoseconds: both viewers count in those, and begin + dur then meets the next
 * begin exactly, as it does in ticks.
 *
 * Not written with weft_json: times have their own format, each event its line, and
 * a trace has millions of events, of which one call formats most. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <weft/render.h>
#include <weft/support.h>

#include "ir/action.h"
#include "ir/program.h"
#include "render/timeline.h"
#include "sim/event_waits.h"

/* About 146 years; a sum of two times still fits. */
#define NANOSECONDS_MAX (INT64_MAX / 2)

/* ---- Tracks ----
 *
 * Complete events of one track must not overlap, but transfers do: several channels work at a
 * time, and on one channel the latency of a message overlaps with the next. So every channel end
 * has its own track, and further lanes where it needs them. Track 0 has the collectives; the ends
 * of channels follow, four to a stage; in a graph four to an edge. */

/* The number (tid) of the compute track; the others get theirs as they come. Not 0, which Perfetto
 * takes for the thread whose tid is the pid. */
enum { TID_COMPUTE = 1, TID_LANES = 2, TRACK_COLLECTIVES = 0 };
#define LANE_NONE UINT32_MAX

/* TID_LANES + the lane's index is its number in the trace. */
struct lane {
  int64_t end;     /* of the last event on it, in nanoseconds */
  uint32_t track;  /* which track it is a lane of */
  uint32_t number; /* among its lanes, from 0 */
  uint32_t newest; /* the largest number when it was used last */
  uint32_t next;   /* the lane used before all others of the track, in a ring */
};

struct tracks {
  const struct weft_program *program;
  uint32_t *last; /* [track]: the lane used last */
  struct lane *lanes;
  uint32_t lane_count;
};

static uint32_t track_of(const struct weft_program *program, struct weft_action action) {
  if (!weft_op_in(action.op, WEFT_OPS_SEND | WEFT_OPS_RECV)) {
    return TRACK_COLLECTIVES;
  }
  const uint32_t channel = weft_channel_of(program, action);
  return channel != WEFT_EDGE_NONE ? 1u + 2 * channel + weft_op_in(action.op, WEFT_OPS_RECV)
                                   : TRACK_COLLECTIVES; /* of a program that is wrong */
}

/* The ends of all channels. */
static size_t count_tracks(const struct weft_program *program) {
  return 1 + 2 * (size_t)weft_channel_count(program->graph, program->stage_count);
}

/* Room for any rank of the simulation, in the arena. */
static enum weft_status init_tracks(struct tracks *tracks, struct weft_arena *arena,
                                    const struct weft_simulation *simulation,
                                    struct weft_error *error) {
  assert(simulation != NULL && simulation->program != NULL);
  const size_t count = count_tracks(simulation->program);
  tracks->program = simulation->program;
  tracks->last = weft_arena_allocate(arena, count, sizeof *tracks->last);
  /* Whatever is beside compute could need a lane of its own. */
  const size_t lanes = weft_program_most_in_row(
      simulation->program, ~(WEFT_OPS_COMPUTE_CELL | WEFT_OP_BIT(WEFT_OP_IDLE)));
  tracks->lanes = weft_arena_allocate(arena, lanes, sizeof *tracks->lanes);
  WEFT_TRY(weft_arena_status(arena, error));
  memset(tracks->last, 0xff, count * sizeof *tracks->last); /* LANE_NONE */
  return WEFT_OK;
}

/* Begins another rank. */
static void reset_tracks(struct tracks *tracks) {
  for (uint32_t i = 0; i < tracks->lane_count; i++) {
    tracks->last[tracks->lanes[i].track] = LANE_NONE;
  }
  tracks->lane_count = 0;
}

/* A further lane of the track, into the ring behind the one used last. */
static uint32_t add_lane(struct tracks *tracks, uint32_t track) {
  const uint32_t last = tracks->last[track], lane = tracks->lane_count++;
  tracks->lanes[lane] = (struct lane){.track = track, .next = lane};
  if (last != LANE_NONE) {
    tracks->lanes[lane].number = tracks->lanes[last].newest + 1;
    tracks->lanes[lane].next = tracks->lanes[last].next;
    tracks->lanes[last].next = lane;
  }
  tracks->lanes[lane].newest = tracks->lanes[lane].number;
  return lane;
}

/* The tid on which a transfer or collective of this time goes; *lane_new is set when it is used for
 * the first time, and wants a name. Transfers of one channel begin and end in order, so the lane that was used
 * longest ago is the one that is free first: there is no need to try others. */
static uint32_t place_on_track(struct tracks *tracks, struct weft_action action, int64_t begin,
                               int64_t end, const struct lane **lane_new) {
  assert(begin <= end);
  const uint32_t track = track_of(tracks->program, action), last = tracks->last[track];
  uint32_t lane = last != LANE_NONE ? tracks->lanes[last].next : LANE_NONE;
  *lane_new = NULL;
  if (lane == LANE_NONE || tracks->lanes[lane].end > begin) {
    lane = add_lane(tracks, track);
    *lane_new = &tracks->lanes[lane];
  } else {
    tracks->lanes[lane].newest = tracks->lanes[last].newest;
  }
  tracks->last[track] = lane;
  tracks->lanes[lane].end = end;
  return TID_LANES + lane;
}

enum { LANE_NAME_SIZE = 96 };

/* "send activation 3 to 4", "collectives (2)": plain text without quotes. */
static void name_lane(const struct tracks *tracks, const struct lane *lane,
                      char name[LANE_NAME_SIZE]) {
  assert(lane->track < count_tracks(tracks->program));
  int size;
  if (lane->track == TRACK_COLLECTIVES) {
    size = snprintf(name, LANE_NAME_SIZE, "collectives");
  } else {
    const uint32_t channel = (lane->track - 1) / 2;
    uint32_t from, to;
    weft_channel_ends(tracks->program->graph, channel, &from, &to);
    size = snprintf(name, LANE_NAME_SIZE, "%s %s %" PRIu32 " to %" PRIu32,
                    lane->track % 2 == 1 ? "send" : "receive",
                    channel % 2 == 0 ? "activation" : "gradient", from, to);
  }
  if (lane->number > 0) {
    (void)snprintf(name + size, LANE_NAME_SIZE - (size_t)size, " (%" PRIu32 ")", lane->number + 1);
  }
}

/* ---- The trace ---- */

struct trace {
  const struct weft_picture *picture;
  const struct weft_simulation *simulation;
  const struct weft_program *program;
  const struct weft_costs *costs;
  struct weft_text *text;
  struct weft_links *links;
  struct tracks tracks;
  struct weft_rank_curve curve;
  double ns_per_unit;
  double ns_per_tick;
  bool transfers; /* the program has SEND and RECV, which carry the flows */
  bool names_edges;
  char pass;  /* what is being written: 'X' slices, 's' or 'f' ends of flows */
  bool comma; /* an event precedes */
};

/* What one instruction looks like on its rank's timeline. */
struct slice {
  uint32_t rank;
  uint32_t tid;
  int64_t begin; /* nanoseconds */
  int64_t end;
};

/* ---- Pieces of JSON ---- */

static void add_time(struct trace *trace, const char *key, int64_t ns) {
  weft_text_addf(trace->text, ",\"%s\":%" PRId64 ".%03" PRId64, key, ns / 1000, ns % 1000);
}

/* Opens an event; the caller adds what its phase needs and closes it. */
static void open_event(struct trace *trace, char phase, uint32_t rank, uint32_t tid) {
  weft_text_addf(trace->text, "%s\n{\"ph\":\"%c\",\"pid\":%" PRIu32 ",\"tid\":%" PRIu32,
                 trace->comma ? "," : "", phase, rank, tid);
  trace->comma = true;
}

static int64_t ns_of(const struct trace *trace, int64_t ticks) {
  return (int64_t)llround((double)ticks * trace->ns_per_tick);
}

/* ---- Metadata ---- */

/* What a process or thread is called, and its position among the others. */
static void add_names(struct trace *trace, uint32_t rank, uint32_t tid, const char *what,
                      const char *name, uint32_t index) {
  open_event(trace, 'M', rank, tid);
  weft_text_addf(trace->text, ",\"name\":\"%s_name\",\"args\":{\"name\":\"%s\"}}", what, name);
  open_event(trace, 'M', rank, tid);
  weft_text_addf(trace->text, ",\"name\":\"%s_sort_index\",\"args\":{\"sort_index\":%" PRIu32 "}}",
                 what, index);
}

static void add_process(struct trace *trace, uint32_t rank) {
  char name[32];
  (void)snprintf(name, sizeof name, "rank %" PRIu32, rank);
  add_names(trace, rank, TID_COMPUTE, "process", name, rank);
  add_names(trace, rank, TID_COMPUTE, "thread", "compute", 0);
}

/* ---- Slices ---- */

static void add_stage_name(struct trace *trace, uint32_t stage) {
  const char *name = weft_graph_name(trace->program->graph, stage);
  if (name != NULL) {
    weft_text_add(trace->text, ",\"stage_name\":");
    weft_add_json_string(trace->text, name);
  }
}

static void add_action_args(struct trace *trace, const struct weft_action *action) {
  weft_text_addf(trace->text, "\"op\":\"%s\"", weft_op_info(action->op)->text);
  if (action->op != WEFT_OP_OVERLAP_F_B) {
    weft_text_addf(trace->text, ",\"stage\":%d", action->stage);
    add_stage_name(trace, action->stage);
  }
  if (weft_op_info(action->op)->has_microbatch) {
    weft_text_addf(trace->text, ",\"microbatch\":%" PRIu32, action->microbatch);
  }
  if (trace->names_edges && weft_op_in(action->op, WEFT_OPS_SEND | WEFT_OPS_RECV)) {
    weft_text_addf(trace->text, ",\"other_stage\":%" PRIu32, weft_transfer_other(*action));
  }
}

static void add_gap_args(struct trace *trace, const struct weft_idle_gap *gap) {
  if (gap->ticks <= 0) {
    return;
  }
  weft_text_addf(trace->text, ",\"idle_before\":%.12g,\"cause\":\"%s\"",
                 (double)gap->ticks / trace->simulation->ticks_per_unit,
                 weft_idle_cause_name(gap->cause));
  if (gap->awaited != WEFT_EVENT_NONE) {
    const struct weft_event *awaited = &trace->simulation->events[gap->awaited];
    weft_text_add(trace->text, ",\"waited_for\":\"");
    const struct weft_action *action = &trace->program->actions[awaited->record];
    weft_action_print(action, trace->text);
    weft_text_addf(trace->text, " on rank %" PRIu32, awaited->rank);
    if (trace->names_edges && weft_op_in(action->op, WEFT_OPS_RECV)) {
      const uint32_t other = weft_transfer_other(*action), stage = action->stage;
      weft_text_addf(trace->text, " over the edge %" PRIu32 ">%" PRIu32,
                     other < stage ? other : stage, other < stage ? stage : other);
    }
    weft_text_add(trace->text, "\"");
  }
}

static void add_slice(struct trace *trace, const struct slice *slice,
                      const struct weft_action *action, const struct weft_idle_gap *gap) {
  if (trace->pass != 'X') {
    return;
  }
  open_event(trace, 'X', slice->rank, slice->tid);
  weft_text_add(trace->text, ",\"name\":\"PP:");
  weft_action_print(action, trace->text);
  weft_text_addf(trace->text, "\",\"cat\":\"%s\"", weft_op_info(action->op)->trace_category);
  add_time(trace, "ts", slice->begin);
  add_time(trace, "dur", slice->end - slice->begin);
  weft_text_add(trace->text, ",\"args\":{");
  add_action_args(trace, action);
  add_gap_args(trace, gap);
  weft_text_add(trace->text, "}}");
}

/* ---- Flows ---- */

/* A flow is tied to the slice around it in time, so it lies inside the slices
 * that it joins, before their ends. "bp":"e" says that it ends in the slice
 * around it and not in the next one. */
static void add_flow(struct trace *trace, char phase, const struct slice *slice, uint64_t id,
                     int64_t at) {
  if (trace->pass != phase) {
    return;
  }
  open_event(trace, phase, slice->rank, slice->tid);
  weft_text_addf(trace->text, ",\"name\":\"data\",\"cat\":\"flow\",\"id\":%" PRIu64, id);
  add_time(trace, "ts", at);
  weft_text_add(trace->text, phase == 'f' ? ",\"bp\":\"e\"}" : "}");
}

static int64_t middle_of(const struct slice *slice) {
  return slice->begin + (slice->end - slice->begin) / 2;
}

/* From SEND to RECV, which have the same time. The id is the SEND's record. */
static void add_transfer_flow(struct trace *trace, uint64_t record, const struct slice *slice) {
  const uint32_t peer = weft_links_peer(trace->links, record);
  if (peer == WEFT_MATCH_NONE || weft_event_of(trace->simulation, peer) == WEFT_EVENT_NONE) {
    return;
  }
  if (weft_op_in(trace->program->actions[record].op, WEFT_OPS_SEND)) {
    add_flow(trace, 's', slice, record, slice->begin);
  } else {
    add_flow(trace, 'f', slice, peer, middle_of(slice));
  }
}

/* In a table: from what made the action's inputs on other ranks. The id is the
 * consumer's record, of its first input, and for further ones beyond all records. */
static void add_input_flow(struct trace *trace, uint64_t record, const struct slice *slice) {
  uint64_t needs[WEFT_NEEDS_MAX];
  const unsigned count = weft_links_needs(trace->links, record, needs);
  uint64_t id = record;
  for (unsigned i = 0; i < count; i++) {
    const uint64_t number = weft_event_of(trace->simulation, needs[i]);
    if (number == WEFT_EVENT_NONE || trace->simulation->events[number].rank == slice->rank) {
      continue;
    }
    const struct weft_event *event = &trace->simulation->events[number];
    const struct slice maker = {.rank = event->rank,
                                .tid = TID_COMPUTE,
                                .begin = ns_of(trace, event->begin),
                                .end = ns_of(trace, event->end)};
    add_flow(trace, 's', &maker, id, middle_of(&maker));
    add_flow(trace, 'f', slice, id, middle_of(slice));
    id += trace->program->action_count;
  }
}

static void add_flows(struct trace *trace, uint64_t record, const struct slice *slice) {
  const uint8_t op = trace->program->actions[record].op;
  if (weft_op_in(op, WEFT_OPS_SEND | WEFT_OPS_RECV)) {
    add_transfer_flow(trace, record, slice);
  } else if (!trace->transfers && weft_op_in(op, WEFT_OPS_COMPUTE)) {
    add_input_flow(trace, record, slice);
  }
}

/* ---- Memory ---- */

/* Where several steps fall on one nanosecond, the last one counts. */
static void add_counters(struct trace *trace, uint32_t rank) {
  const struct weft_rank_curve *curve = &trace->curve;
  (void)weft_rank_curve_read(&trace->curve, trace->picture, rank, NULL); /* there is room */
  for (uint64_t i = 0; i < curve->count; i++) {
    const int64_t at = llround(curve->points[i].at * trace->ns_per_unit);
    if (i + 1 < curve->count && llround(curve->points[i + 1].at * trace->ns_per_unit) == at) {
      continue;
    }
    open_event(trace, 'C', rank, TID_COMPUTE);
    weft_text_add(trace->text, ",\"name\":\"activation memory\"");
    add_time(trace, "ts", at);
    weft_text_addf(trace->text, ",\"args\":{\"activation\":%.12g}}", curve->points[i].size);
  }
}

/* ---- Ranks ---- */

/* How far a rank's row is scanned. */
struct position {
  int64_t idle_from;  /* ticks: when its compute before this ended, or it began */
  bool first;         /* it has done nothing yet, only transfers */
  bool computed;      /* it has computed */
  uint64_t cell_end;  /* one past the records of the overlap scanned last */
  struct slice slice; /* the last one */
};

static void add_compute(struct trace *trace, uint64_t number, struct position *at) {
  const struct weft_event *event = &trace->simulation->events[number];
  const struct weft_action *action = &trace->program->actions[event->record];
  at->slice.tid = TID_COMPUTE;
  if (trace->pass == 'X') {
    const struct weft_idle_gap gap = weft_idle_gap_before(trace->simulation, trace->links, number,
                                                          at->idle_from, at->first, !at->computed);
    add_slice(trace, &at->slice, action, &gap);
  }
  at->idle_from = event->end;
  at->first = false;
  at->computed = true;
  at->cell_end = (uint64_t)event->record + weft_cell_records(action);
}

/* A collective that comes before all compute ends the idle time at the start. */
static struct weft_idle_gap gap_at_start(const struct weft_program *program,
                                         const struct weft_event *event, struct position *at) {
  struct weft_idle_gap gap = {.cause = WEFT_IDLE_START, .awaited = WEFT_EVENT_NONE};
  if (at->first && weft_event_begins_rank(program, event)) {
    gap.ticks = event->begin - at->idle_from;
    at->idle_from = event->begin;
    at->first = false;
  }
  return gap;
}

static void add_beside(struct trace *trace, const struct weft_event *event, struct position *at) {
  const struct weft_action *action = &trace->program->actions[event->record];
  const struct weft_idle_gap gap = gap_at_start(trace->program, event, at);
  struct slice *slice = &at->slice;
  const struct lane *lane_new;
  slice->tid = place_on_track(&trace->tracks, *action, slice->begin, slice->end, &lane_new);
  if (lane_new != NULL && trace->pass == 'X') {
    char name[LANE_NAME_SIZE];
    name_lane(&trace->tracks, lane_new, name);
    add_names(trace, slice->rank, slice->tid, "thread", name, 1 + lane_new->track);
  }
  add_slice(trace, slice, action, &gap);
}

/* The parts of an overlap are inside its header's slice. */
static void add_event(struct trace *trace, uint64_t number, struct position *at) {
  const struct weft_event *event = &trace->simulation->events[number];
  const struct weft_action *action = &trace->program->actions[event->record];
  if (event->record >= at->cell_end) {
    at->slice.begin = ns_of(trace, event->begin);
    at->slice.end = ns_of(trace, event->end);
    if (weft_op_in(action->op, WEFT_OPS_COMPUTE_CELL)) {
      add_compute(trace, number, at);
    } else {
      add_beside(trace, event, at);
    }
  }
  add_flows(trace, event->record, &at->slice);
}

static void scan_rank(struct trace *trace, uint32_t rank, int64_t begin) {
  const struct weft_simulation *simulation = trace->simulation;
  struct position at = {.idle_from = begin, .first = true, .slice = {.rank = rank}};
  reset_tracks(&trace->tracks);
  for (uint64_t i = simulation->event_begin[rank]; i < simulation->event_begin[rank + 1]; i++) {
    add_event(trace, i, &at);
  }
}

/* Viewers sort by time and keep the order of the file where times are equal, and
 * a flow must begin before it ends, in slices that are there. Free transfers
 * take no time, so all slices come first, then all beginnings, then all ends;
 * each pass finds the same tracks. */
static void add_ranks(struct trace *trace) {
  static const char passes[] = {'X', 's', 'f'};
  const int64_t begin = weft_simulation_begin(trace->simulation);
  for (size_t i = 0; i < sizeof passes; i++) {
    trace->pass = passes[i];
    for (uint32_t rank = 0; rank < trace->program->rank_count && !trace->text->failed; rank++) {
      if (trace->pass == 'X') {
        add_process(trace, rank);
        add_counters(trace, rank);
      }
      scan_rank(trace, rank, begin);
    }
  }
}

/* ---- The document ---- */

static void add_document(struct trace *trace) {
  char room[WEFT_NOTE_SIZE];
  weft_text_add(trace->text, "{\"displayTimeUnit\":\"ms\",\"otherData\":{");
  weft_text_addf(trace->text, "\"writer\":\"weft %s\",\"name\":", weft_version());
  weft_add_json_string(trace->text, trace->picture->name != NULL ? trace->picture->name : "");
  weft_text_add(trace->text, ",\"unit\":");
  weft_add_json_string(trace->text, trace->costs->unit);
  weft_text_add(trace->text, ",\"note\":");
  weft_add_json_string(trace->text, weft_picture_note(trace->picture, room));
  weft_text_addf(trace->text, ",\"makespan\":%.12g,\"bubble_ratio\":%.12g},\"traceEvents\":[",
                 trace->simulation->makespan, trace->simulation->bubble_ratio);
  add_ranks(trace);
  weft_text_add(trace->text, "\n]}\n");
}

static enum weft_status check_length(const struct trace *trace, struct weft_error *error) {
  for (uint64_t i = 0; i < trace->simulation->event_count; i++) {
    if ((double)trace->simulation->events[i].end * trace->ns_per_tick > (double)NANOSECONDS_MAX) {
      return weft_fail(error, WEFT_ERR_LIMIT, "give the costs in a smaller unit",
                       "a trace counts nanoseconds in 63 bits, and this timeline is longer "
                       "(%g %s)",
                       trace->simulation->makespan, trace->costs->unit);
    }
  }
  return WEFT_OK;
}

/* So much that drawing needs no more. */
static enum weft_status make_room(struct trace *trace, struct weft_arena *arena,
                                  struct weft_error *error) {
  WEFT_TRY(weft_links_create(arena->allocator, trace->program, &trace->links, error));
  WEFT_TRY(init_tracks(&trace->tracks, arena, trace->simulation, error));
  for (uint32_t rank = 0; rank < trace->program->rank_count; rank++) {
    WEFT_TRY(weft_rank_curve_read(&trace->curve, trace->picture, rank, error));
  }
  return WEFT_OK;
}

enum weft_status weft_render_trace(const struct weft_picture *picture,
                                   const struct weft_render_options *options,
                                   struct weft_text *text, struct weft_error *error) {
  struct weft_render_options chosen; /* colours are the viewer's */
  WEFT_TRY(weft_picture_begin(picture, options, NULL, &chosen, error));
  WEFT_NEED(text, error);
  WEFT_NEED(picture->costs, error);
  const struct weft_allocator *allocator =
      text->allocator != NULL ? text->allocator : weft_allocator_default();
  const double unit_ns = weft_costs_unit_ns(picture->costs);
  struct trace trace = {.picture = picture,
                        .simulation = picture->simulation,
                        .program = picture->simulation->program,
                        .costs = picture->costs,
                        .text = text,
                        .curve = {.allocator = allocator},
                        .names_edges = weft_picture_names_edges(picture),
                        .ns_per_unit = unit_ns,
                        .ns_per_tick = unit_ns / picture->simulation->ticks_per_unit,
                        .transfers = weft_program_has(picture->simulation->program, WEFT_OPS_SEND)};
  WEFT_TRY(check_length(&trace, error));
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  enum weft_status status = make_room(&trace, &arena, error);
  if (status == WEFT_OK) {
    add_document(&trace);
    status = weft_text_status(text, error);
  }
  weft_rank_curve_finish(&trace.curve);
  weft_links_destroy(trace.links);
  return status;
}
