/* A state table of a rank: how early and how late its ops can run, as far as the rank alone is
 * concerned. Internal to the module. */
#ifndef PLAN_BOUND_TABLE_H
#define PLAN_BOUND_TABLE_H

#include "plan/problem/problem.h"

/* ---- Profiles: bound_profiles.c ----
 *
 * The relative progress of a rank's ops, within its memory.
 *
 * F and I (or B) of a microbatch on a rank run in one order, the line: F of its stages, then I of
 * the same in reverse. At any time each op of the line has been done for at most as many
 * microbatches as the one before it. A profile says how many fewer, for each, and how many
 * microbatches await W at the stages but the first; those of the first are only counted. It does
 * not change when all ops advance by one microbatch. */

/* What profiles distinguish. Ops that they do not distinguish have the smallest time and size. */
enum weft_line_detail {
  WEFT_LINE_RANK,   /* nothing: the line has one F and one I, of any stage */
  WEFT_LINE_FLOW,   /* F and I of the stages; W take time and memory, but no certain time */
  WEFT_LINE_STAGES, /* F and I of the stages; all W are only counted */
  WEFT_LINE_WEIGHTS /* W too */
};

enum { WEFT_LINE_MAX = 3 * WEFT_LOCAL_STAGES_MAX };

struct weft_line_profiles {
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

/* All profiles within a rank's memory; they live in the arena. False when out of memory, or when
 * profiles and counted W together have more than `most` entries. */
bool weft_line_profiles_init(struct weft_line_profiles *profiles,
                             const struct weft_problem *problem, uint32_t rank,
                             enum weft_line_detail detail, uint64_t most, struct weft_arena *arena);

/* ---- The table ---- */

/* An op of the line. The lists are indexed by its occurrences. */
struct weft_state_table_op {
  int64_t time;   /* the smallest one, if stages are merged */
  int64_t whole;  /* time of a whole backward, where backwards are mixed; else -1 */
  int64_t *sums;  /* [count + 1] the least time of that many */
  int64_t *head;  /* [count] earliest start; given, ascending */
  int64_t *tail;  /* [count] latest end; given, ascending */
  int64_t *start; /* [count] the new head: a result */
  int64_t *stop;  /* [count] the new tail: a result */
};

struct weft_state_table {
  const struct weft_problem *problem;
  enum weft_line_detail detail;
  uint32_t count;                      /* of each op on the line */
  uint32_t line;                       /* ops on it */
  struct weft_line_profiles *profiles; /* [rank_count] */
  struct weft_state_table_op ops[WEFT_LINE_MAX];
  int64_t weight_time;                        /* of W that are only counted */
  int64_t *weight_sums;                       /* [v * m + 1] the least time of that many */
  int64_t extra_time[WEFT_LOCAL_STAGES_MAX];  /* of W that profiles distinguish, */
  int64_t extra_least[WEFT_LOCAL_STAGES_MAX]; /* and their share of a whole backward, if less */
  int64_t gradients[WEFT_LOCAL_STAGES_MAX];   /* of the stages of an op; ascending if merged */
  bool has_gradients;                         /* not all are 0 */
  uint32_t counted;                           /* stages whose W are only counted */
  const struct weft_line_profiles *now;       /* of the rank that is filled in */
  uint64_t visited;                           /* entries reached */
  bool cancelled;                             /* the search is; the table is not complete */
  int64_t from, end;                          /* of the rank */
  int64_t *earliest;    /* [first ops * stride + offset of profile + pending W] */
  int64_t *latest;      /* likewise */
  uint32_t *low, *high; /* [first ops * profiles + profile] range of pending W reached */
  size_t size, cells;   /* of the largest rank */
};

/* It lives in the arena. False when out of memory, or when a rank's table has more entries than
 * `most`. */
bool weft_state_table_init(struct weft_state_table *table, const struct weft_problem *problem,
                           enum weft_line_detail detail, uint64_t most, struct weft_arena *arena);

/* Entries of a rank's table. */
uint64_t weft_state_table_size(const struct weft_state_table *table, uint32_t rank);

/* False when the rank cannot run all its ops between `from` and `end` within heads, tails and
 * memory; else sets start and stop. */
bool weft_state_table_fill(struct weft_state_table *table, uint32_t rank, int64_t from,
                           int64_t end);

/* ---- Building an order along the table ---- */

/* The state of a rank. */
struct weft_state_table_at {
  uint32_t first, profile, weights;
};

/* Nothing done. */
struct weft_state_table_at weft_state_table_begin(const struct weft_state_table *table,
                                                  uint32_t rank);

/* Advances by one op of a local stage; false, without a change, when the table has no such entry. */
bool weft_state_table_follow(const struct weft_state_table *table, uint32_t rank,
                             uint32_t local_stage, enum weft_plan_op_kind kind,
                             struct weft_state_table_at *at);

/* A copy of the latest times of a rank's table. */
struct weft_state_table_kept {
  int64_t *latest;
  uint32_t *low, *high;
};

/* It lives in the arena. False when out of memory. */
bool weft_state_table_keep_init(struct weft_state_table_kept *kept,
                                const struct weft_state_table *table, uint32_t rank,
                                struct weft_arena *arena);
void weft_state_table_keep(struct weft_state_table_kept *kept, const struct weft_state_table *table,
                           uint32_t rank);

/* The latest time at which the rank may be in this state and still end in time; INT64_MIN when it
 * cannot. */
int64_t weft_state_table_latest(const struct weft_state_table *table,
                                const struct weft_state_table_kept *kept, uint32_t rank,
                                struct weft_state_table_at at);

#endif
