/* What events waited for, read off the events: for pictures, which show idle time gap by gap. */
#ifndef SIM_EVENT_WAITS_H
#define SIM_EVENT_WAITS_H

#include <weft/inspect.h>
#include <weft/sim.h>

#define WEFT_EVENT_NONE UINT64_MAX

/* The event of a record, WEFT_EVENT_NONE where it has none. */
uint64_t weft_event_of(const struct weft_simulation *simulation, uint64_t record);

/* Whether a rank can begin with it: with compute, or with a collective that takes time. */
bool weft_event_begins_rank(const struct weft_program *program, const struct weft_event *event);

/* When the first rank begins; INT64_MAX: none does. */
int64_t weft_simulation_begin(const struct weft_simulation *simulation);

/* When what an event made is there for a record that needs it: at its end, and in a table with a
 * graph after its transfer. */
int64_t weft_arrival_of(const struct weft_simulation *simulation, uint64_t event, uint64_t record);

/* For measured timelines, whose tables have no transfers. */
void weft_simulation_drop_arrivals(struct weft_simulation *simulation);

struct weft_idle_gap {
  int64_t ticks;              /* 0: no gap */
  enum weft_idle_cause cause; /* of its larger part; meaningless without a gap */
  uint64_t awaited;           /* the event whose end, or in a table whose message, ended it: a
                                 compute action, a RECV or an UNSHARD; WEFT_EVENT_NONE at the
                                 start */
};

/* What an idle rank does, in a sentence: "waiting for activations". */
const char *weft_idle_cause_words(enum weft_idle_cause cause);

/* The gap before a compute event or an overlap's header. `idle_from` is when the
 * rank ended its compute before it. Before its first: when its first collective
 * began, if there is one; else when the first rank of all began, and `first` is
 * set. With `starts` it is the rank's first compute: the gap belongs to the start, unless
 * parameters came last. */
struct weft_idle_gap weft_idle_gap_before(const struct weft_simulation *simulation,
                                          const struct weft_links *links, uint64_t event,
                                          int64_t idle_from, bool first, bool starts);

/* WEFT_ERR_USAGE for a simulation that was made without events. */
enum weft_status weft_sim_require_events(const struct weft_simulation *simulation,
                                         struct weft_error *error);

#endif
