/* Time windows of a target as a guide for constructors: how late a rank may be in a state and still
 * end in time. Internal to the module. */
#ifndef PLAN_WINDOW_GUIDE_H
#define PLAN_WINDOW_GUIDE_H

#include "plan/bounds/bound_windows.h"

struct weft_guide {
  const struct weft_problem *problem;
  struct weft_paths paths;
  struct weft_windows windows;
  struct weft_state_table_kept *kept; /* [rank] */
  uint64_t filled;                    /* states visited to keep them, besides the work */
};

enum weft_guide_result {
  WEFT_GUIDE_OPEN,    /* some order may reach the target */
  WEFT_GUIDE_REFUTED, /* none does */
  WEFT_GUIDE_UNKNOWN  /* the work did not suffice, or the search is cancelled */
};

/* For about `work` states of tables; windows.work_left may be set again. False when out of memory,
 * or when the tables are too large for the work; weft_guide_finish() in any case. */
bool weft_guide_init(struct weft_guide *guide, const struct weft_problem *problem, uint64_t work);
void weft_guide_finish(struct weft_guide *guide);

/* Narrows the windows for a target. */
enum weft_guide_result weft_guide_aim(struct weft_guide *guide, int64_t target);

/* The latest time at which a rank may be in a state; INT64_MIN when it cannot. */
static inline int64_t weft_guide_latest(const struct weft_guide *guide, uint32_t rank,
                                        struct weft_state_table_at at) {
  return weft_state_table_latest(&guide->windows.table, &guide->kept[rank], rank, at);
}

/* The latest end of an op of microbatch k. */
static inline int64_t weft_guide_tail(const struct weft_guide *guide, uint32_t stage,
                                      enum weft_plan_op_kind kind, uint32_t k) {
  return kind == WEFT_KIND_W
             ? guide->windows.end[guide->problem->stages[stage].rank]
             : guide->windows.stages[stage]
                   .tail[kind == WEFT_KIND_F ? WEFT_DIRECTION_FORWARD : WEFT_DIRECTION_BACKWARD][k];
}

#endif
