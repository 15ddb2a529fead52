/* Orders from the time windows that a bound leaves open. Internal to the module. */
#ifndef PLAN_WINDOW_ORDERS_H
#define PLAN_WINDOW_ORDERS_H

#include "plan/incumbent.h"

/* Offers orders for any placement to the incumbent, and raises its bound. Visits about `work`
 * states of tables at most, as weft_problem_sharpen() does; does nothing when the tables would be
 * too large for that. WEFT_ERR_MEMORY. */
enum weft_status weft_construct_windows(struct weft_incumbent *incumbent, uint64_t work,
                                        struct weft_error *error);

#endif
