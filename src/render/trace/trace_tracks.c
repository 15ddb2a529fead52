/* Tracks of the Chrome trace. Track 0 has the collectives; the ends of channels
 * follow, four to a stage; in a graph four to an edge. */
#include "render/trace/trace_tracks.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "ir/action.h"

enum { TRACK_COLLECTIVES = 0 };
#define LANE_NONE UINT32_MAX

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

/* Every event could need a lane of its own. */
static size_t most_lanes(const struct weft_simulation *simulation) {
  uint64_t most = 0;
  for (uint32_t rank = 0; rank < simulation->program->rank_count; rank++) {
    uint64_t count = 0;
    for (uint64_t i = simulation->event_begin[rank]; i < simulation->event_begin[rank + 1]; i++) {
      count += !weft_op_in(simulation->program->actions[simulation->events[i].record].op,
                           WEFT_OPS_COMPUTE | WEFT_OP_BIT(WEFT_OP_OVERLAP_F_B));
    }
    most = count > most ? count : most;
  }
  return (size_t)most;
}

enum weft_status weft_tracks_init(struct weft_tracks *tracks, struct weft_arena *arena,
                                  const struct weft_simulation *simulation,
                                  struct weft_error *error) {
  assert(simulation != NULL && simulation->program != NULL);
  const size_t count = count_tracks(simulation->program);
  tracks->program = simulation->program;
  tracks->last = weft_arena_allocate(arena, count, sizeof *tracks->last);
  tracks->lanes = weft_arena_allocate(arena, most_lanes(simulation), sizeof *tracks->lanes);
  WEFT_TRY(weft_arena_status(arena, error));
  memset(tracks->last, 0xff, count * sizeof *tracks->last); /* LANE_NONE */
  return WEFT_OK;
}

void weft_tracks_reset(struct weft_tracks *tracks) {
  for (uint32_t i = 0; i < tracks->lane_count; i++) {
    tracks->last[tracks->lanes[i].track] = LANE_NONE;
  }
  tracks->lane_count = 0;
}

/* A further lane of the track, into the ring behind the one used last. */
static uint32_t add_lane(struct weft_tracks *tracks, uint32_t track) {
  const uint32_t last = tracks->last[track], lane = tracks->lane_count++;
  tracks->lanes[lane] = (struct weft_lane){.track = track, .next = lane};
  if (last != LANE_NONE) {
    tracks->lanes[lane].number = tracks->lanes[last].newest + 1;
    tracks->lanes[lane].next = tracks->lanes[last].next;
    tracks->lanes[last].next = lane;
  }
  tracks->lanes[lane].newest = tracks->lanes[lane].number;
  return lane;
}

/* Transfers of one channel begin and end in order, so the lane that was used
 * longest ago is the one that is free first: there is no need to try others. */
uint32_t weft_tracks_place(struct weft_tracks *tracks, struct weft_action action, int64_t begin,
                           int64_t end, const struct weft_lane **lane_new) {
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
  return WEFT_TID_LANES + lane;
}

uint32_t weft_lane_sort_index(const struct weft_lane *lane) { return 1 + lane->track; }

void weft_lane_add_name(const struct weft_tracks *tracks, const struct weft_lane *lane,
                        struct weft_text *text) {
  assert(lane->track < count_tracks(tracks->program));
  if (lane->track == TRACK_COLLECTIVES) {
    weft_text_add(text, "collectives");
  } else {
    const uint32_t channel = (lane->track - 1) / 2;
    uint32_t from, to;
    weft_channel_ends(tracks->program->graph, channel, &from, &to);
    weft_text_addf(text, "%s %s %" PRIu32 " to %" PRIu32, lane->track % 2 == 1 ? "send" : "receive",
                   channel % 2 == 0 ? "activation" : "gradient", from, to);
  }
  if (lane->number > 0) {
    weft_text_addf(text, " (%" PRIu32 ")", lane->number + 1);
  }
}
