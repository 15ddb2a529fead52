/* For whatever is made from a simulation's events. */
#ifndef SIM_EVENTS_H
#define SIM_EVENTS_H

#include <weft/sim.h>

/* WEFT_ERR_USAGE for a simulation that was made without them. */
enum weft_status weft_sim_require_events(const struct weft_simulation *simulation,
                                         struct weft_error *error);

#endif
