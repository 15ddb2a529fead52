/* Which schedules leave the results of a training as they are. */
#ifndef GPT_SCHEDULE_ORDER_H
#define GPT_SCHEDULE_ORDER_H

#include <weft/ir.h>

/* Whether every stage is on its rank, rank_of[stage_count], and takes the microbatches of each op in
 * ascending order, as all named schedules but LoopedBFS do; a table with overlaps does not. */
bool weft_gpt_schedule_keeps_order(const struct weft_program *table, const uint32_t *rank_of,
                                   uint32_t stage_count);

#endif
