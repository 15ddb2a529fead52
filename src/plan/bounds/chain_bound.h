/* What the terms of a lower bound share: the path of one microbatch through the stages. Internal
 * to the module. */
#ifndef PLAN_CHAIN_BOUND_H
#define PLAN_CHAIN_BOUND_H

#include "plan/problem/chain.h"

struct weft_paths {
  const struct weft_chain *problem;
  struct weft_arena arena;
  int64_t *forward;  /* [stage] from the start of F at stage 0 to its start here */
  int64_t *backward; /* [stage] from the end of I or B here to its end at stage 0 */
  int64_t *slowest;  /* [stage] the longest of F, I or B, and channel occupancy, from here on */
};

/* False when out of memory. */
bool weft_paths_init(struct weft_paths *paths, const struct weft_chain *problem);
void weft_paths_finish(struct weft_paths *paths);

/* Time of I or B; of W, which is 0 for a whole backward; and memory between them. */
int64_t weft_paths_back(const struct weft_chain *problem, uint32_t stage);
int64_t weft_paths_weight(const struct weft_chain *problem, uint32_t stage);
int64_t weft_paths_after(const struct weft_chain *problem, uint32_t stage);

/* Time from the start of F at `from` to the end of I or B at `to` for a microbatch alone. */
int64_t weft_paths_trip(const struct weft_paths *paths, uint32_t from, uint32_t to);

/* At least `bound`: considers what a rank can do before its first backward (bound_cascade.c). */
int64_t weft_bound_cascade(const struct weft_paths *paths, int64_t bound);

#endif
