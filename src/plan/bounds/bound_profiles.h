/* Profiles: the relative progress of a rank's ops, within its memory. Internal to the module.
 *
 * F and I (or B) of a microbatch on a rank run in one order, the line: F of its stages, then I of
 * the same in reverse. At any time each op of the line has been done for at most as many
 * microbatches as the one before it. A profile says how many fewer, for each, and how many
 * microbatches await W at the stages but the first; those of the first are only counted. It does
 * not change when all ops advance by one microbatch. */
#ifndef PLAN_BOUND_PROFILES_H
#define PLAN_BOUND_PROFILES_H

#include "plan/problem/problem.h"

/* What profiles distinguish. Ops that they do not distinguish have the smallest time and size. */
enum weft_line_detail {
  WEFT_LINE_RANK,   /* nothing: the line has one F and one I, of any stage */
  WEFT_LINE_FLOW,   /* F and I of the stages; W take time and memory, but no certain time */
  WEFT_LINE_STAGES, /* F and I of the stages; all W are only counted */
  WEFT_LINE_WEIGHTS /* W too */
};

enum { WEFT_LINE_MAX = 3 * WEFT_LOCAL_STAGES_MAX };

struct weft_line_profiles {
  struct weft_arena arena;
  uint32_t line;     /* ops of the line */
  uint32_t extra;    /* W ops that profiles distinguish: of the second stage, the third, ... */
  uint32_t count;    /* of profiles; each comes after those that lead to it by any op but the
                        first */
  uint32_t start;    /* the profile with nothing done */
  uint32_t *behind;  /* [profile * line + n] how many fewer than the first op */
  uint32_t *waiting; /* [profile * extra + n] microbatches that await W */
  uint32_t *next;    /* [profile * (line + extra) + n] after one more op n; WEFT_PROFILE_NONE */
  uint32_t *whole;   /* [profile * line + n] likewise after a backward that leaves no W */
  uint32_t *most;    /* [profile] W that may be pending and are only counted */
  uint32_t *pending; /* [profile] likewise for WEFT_LINE_FLOW, where they are not even counted */
  int64_t *room;     /* [profile] memory that is free if no counted W is pending */
  int64_t after;     /* memory of a counted W that is pending */
  size_t *offset;    /* [profile + 1] sums of most + 1: offsets in tables over profiles and W */
};

#define WEFT_PROFILE_NONE UINT32_MAX

/* All profiles within a rank's memory. False when out of memory, or when profiles and counted W
 * together have more than `most` entries; weft_line_profiles_finish() in any case. */
bool weft_line_profiles_init(struct weft_line_profiles *profiles, const struct weft_problem *problem,
                             uint32_t rank, enum weft_line_detail detail, uint64_t most);
void weft_line_profiles_finish(struct weft_line_profiles *profiles);

#endif
