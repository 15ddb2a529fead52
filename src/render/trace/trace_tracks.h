/* The tracks of one rank in a Chrome trace. Complete events of one track must
 * not overlap, but transfers do: several channels work at a time, and on one
 * channel the latency of a message overlaps with the next. So every channel end
 * has its own track, and further lanes where it needs them. */
#ifndef RENDER_TRACE_TRACKS_H
#define RENDER_TRACE_TRACKS_H

#include <weft/sim.h>
#include <weft/support.h>

/* The number (tid) of the compute track; the others get theirs as they come. Not
 * 0, which Perfetto takes for the thread whose tid is the pid. */
enum { WEFT_TID_COMPUTE = 1, WEFT_TID_LANES = 2 };

struct weft_lane {
  int64_t end;     /* of the last event on it, in nanoseconds */
  uint32_t track;  /* which track it is a lane of */
  uint32_t number; /* among its lanes, from 0 */
  uint32_t newest; /* the largest number when it was used last */
  uint32_t next;   /* the lane used before all others of the track, in a ring */
};

/* WEFT_TID_LANES + the lane's index is its number in the trace. */
struct weft_tracks {
  const struct weft_program *program;
  uint32_t *last; /* [track]: the lane used last */
  struct weft_lane *lanes;
  uint32_t lane_count;
};

/* Room for any rank of the simulation, in the arena. */
enum weft_status weft_tracks_init(struct weft_tracks *tracks, struct weft_arena *arena,
                                  const struct weft_simulation *simulation,
                                  struct weft_error *error);

/* Begins another rank. */
void weft_tracks_reset(struct weft_tracks *tracks);

/* The tid on which a transfer or collective of this time goes; *lane_new is set
 * when it is used for the first time, and wants a name. */
uint32_t weft_tracks_place(struct weft_tracks *tracks, struct weft_action action, int64_t begin,
                           int64_t end, const struct weft_lane **lane_new);

/* The position of the track among those of its rank. */
uint32_t weft_lane_sort_index(const struct weft_lane *lane);

/* "send activation 3 to 4", "collectives (2)": plain text without quotes. */
void weft_lane_add_name(const struct weft_tracks *tracks, const struct weft_lane *lane,
                        struct weft_text *text);

#endif
