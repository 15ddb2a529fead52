/* Time windows of the ops of a problem for a target (bound_windows.c). Internal to the module. */
#ifndef PLAN_BOUND_WINDOWS_H
#define PLAN_BOUND_WINDOWS_H

#include "plan/bounds/bound_table.h"
#include "plan/bounds/chain_bound.h"

enum { WEFT_DIRECTION_FORWARD, WEFT_DIRECTION_BACKWARD, WEFT_DIRECTIONS }; /* F; I or B */

/* Time windows of the ops of a stage, by microbatch. */
struct weft_stage_windows {
  int64_t *head[WEFT_DIRECTIONS]; /* [m] earliest start */
  int64_t *tail[WEFT_DIRECTIONS]; /* [m] latest end */
  int64_t time[WEFT_DIRECTIONS];
};

struct weft_windows {
  const struct weft_problem *problem;
  const struct weft_paths *paths;
  struct weft_arena arena;
  struct weft_state_table table;
  struct weft_stage_windows *stages;
  int64_t *times;     /* [stage_count * 2 * WEFT_DIRECTIONS * m]: heads and tails */
  bool *changed;      /* [rank_count] its windows have changed since its table was filled */
  int64_t *end;       /* [rank_count] */
  uint64_t work_left; /* entries of tables that may still be visited */
};

/* In this detail, or less when the tables would be too large for the work; WEFT_LINE_FLOW: in this
 * one. False when out of memory, or when the tables are still too large; weft_windows_finish() in
 * any case. */
bool weft_windows_init(struct weft_windows *windows, const struct weft_paths *paths,
                       enum weft_line_detail detail, uint64_t work);
void weft_windows_finish(struct weft_windows *windows);

/* True when no order has an objective of `target` or less. Else the windows are as narrow as
 * propagation makes them within the work. */
bool weft_windows_refute(struct weft_windows *windows, int64_t target);

/* Fills the table of a rank from its windows. False when it has no feasible path. */
bool weft_windows_fill(struct weft_windows *windows, uint32_t rank);

#endif
