/* Orders from the windows that a bound leaves. Inside the module. */
#ifndef PLAN_WINDOW_ORDERS_H
#define PLAN_WINDOW_ORDERS_H

#include "plan/incumbent.h"

/* Orders for any placement, offered to the incumbent; and a larger bound. Looks at no more than about
 * `work` states of tables, as weft_problem_sharpen() does; nothing when the tables would be too
 * large for that. */
enum weft_status weft_construct_windows(struct weft_incumbent *incumbent, uint64_t work,
                                        struct weft_error *error);

#endif
