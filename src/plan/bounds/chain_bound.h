/* Lower bounds of a chain, and what their terms share: the path of one microbatch through the stages.
 * Internal to the module. */
#ifndef PLAN_CHAIN_BOUND_H
#define PLAN_CHAIN_BOUND_H

#include "plan/problem/problem.h"

/* No order within the memory limit has a smaller objective. */
int64_t weft_chain_bound(const struct weft_problem *problem);

/* A larger bound where one can be proved: at least `bound`, at most `value`, the objective of a
 * known order; tries to prove `value` first. Visits about *work states at most, and sets it to as
 * many as it has visited. */
int64_t weft_chain_sharpen(const struct weft_problem *problem, int64_t bound, int64_t value,
                           uint64_t *work);

/* Nanoseconds of a typical core per state that it visits. */
enum { WEFT_STATE_WORK = 50 };

struct weft_paths {
  const struct weft_problem *problem;
  int64_t *forward;  /* [stage] from the start of F at stage 0 to its start here */
  int64_t *backward; /* [stage] from the end of I or B here to its end at stage 0 */
  int64_t *slowest;  /* [stage] the longest of F, I or B, and channel occupancy, from here on */
};

/* Its arrays live in the arena. False when out of memory. */
bool weft_paths_init(struct weft_paths *paths, const struct weft_problem *problem,
                     struct weft_arena *arena);

/* Time from the start of F at `from` to the end of I or B at `to` for a microbatch alone. */
int64_t weft_paths_trip(const struct weft_paths *paths, uint32_t from, uint32_t to);

/* ---- Terms that graphs have, too ---- */

struct weft_item {
  int64_t size, value;
};

/* An upper bound on the value of up to m of each item within the room; their order changes. */
int64_t weft_most_value(struct weft_item *items, uint32_t count, int64_t m, int64_t room);

/* A rank with one stage; times as the bound has them. */
struct weft_lone_stage {
  int64_t m, f, i, w;    /* microbatches; times of its ops */
  int64_t trip;          /* from the start of F to the end of I of a microbatch */
  int64_t after_forward; /* from the start of the last F to the end of what counts */
  int64_t closing;       /* from the end of the last I */
  bool with_weights;     /* its own W count, too */
};

/* The least time from its first op (problem_bound.c). */
int64_t weft_bound_lone_stage(const struct weft_lone_stage *at, const struct weft_problem *problem,
                              uint32_t stage);

/* At least `bound`: considers what ranks with one stage can do before their first backward
 * (problem_bound.c). `to_forward` is [stage] the least time until its first F; scratch is [stage]. */
int64_t weft_bound_first_backwards(const struct weft_problem *problem, const int64_t *to_forward,
                                   int64_t bound, int64_t *scratch);

#endif
