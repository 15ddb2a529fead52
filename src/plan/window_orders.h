/* Orders from the windows that a bound leaves. Inside the module. */
#ifndef PLAN_WINDOW_ORDERS_H
#define PLAN_WINDOW_ORDERS_H

#include "plan/pool.h"

/* A constructor for any placement. It raises the pool's bound too. Nothing when the tables would
 * be too large. */
enum weft_status weft_construct_windows(struct weft_pool *pool, struct weft_error *error);

#endif
