/* How far a rank's ops are apart, as far as its memory allows. Inside the module.
 *
 * F and I (or B) of a microbatch on a rank come in one order: F of its stages, then I of
 * the same in reverse. They make a line; at any time each has been done for no more
 * microbatches than the one before it. A profile says how many fewer, for each, and how
 * many await W at the stages but the first; those of the first are only counted. It
 * does not change when all have gone on by one. */
#ifndef PLAN_BOUND_PROFILES_H
#define PLAN_BOUND_PROFILES_H

#include "plan/problem.h"

/* What is told apart. What is not has the smallest of times and sizes. */
enum weft_line_detail {
  WEFT_LINE_RANK,   /* nothing: the line has an F and an I, of whichever stage */
  WEFT_LINE_STAGES, /* F and I of the stages; all that awaits W is only counted */
  WEFT_LINE_WEIGHTS /* W too */
};

enum { WEFT_LINE_MAX = 3 * WEFT_LOCAL_STAGES_MAX };

struct weft_line_profiles {
  uint32_t line;     /* ops of the line */
  uint32_t extra;    /* W ops that profiles know: of the second stage, the third... */
  uint32_t count;    /* of profiles; each comes after those that lead to it by another than the
                        first op */
  uint32_t start;    /* the profile with nothing done */
  uint32_t *behind;  /* [profile * line + n] how many fewer than the first op */
  uint32_t *waiting; /* [profile * extra + n] that await W */
  uint32_t *next;    /* [profile * (line + extra) + n] after one more; WEFT_PROFILE_NONE */
  uint32_t *most;    /* [profile] that may await W and are only counted */
  size_t *offset;    /* [profile + 1] sums of most + 1: for tables over profiles and W */
};

#define WEFT_PROFILE_NONE UINT32_MAX

/* All profiles within a rank's memory. False when there are more than `most` entries of profiles
 * and W together, or no room. */
bool weft_line_profiles_init(struct weft_line_profiles *profiles,
                             const struct weft_problem *problem, uint32_t rank,
                             enum weft_line_detail detail, uint64_t most);
void weft_line_profiles_finish(struct weft_line_profiles *profiles,
                               const struct weft_allocator *allocator);

#endif
