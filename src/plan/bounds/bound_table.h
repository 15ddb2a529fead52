/* A rank by itself: how early its ops can be done, and how late. Inside the module. */
#ifndef PLAN_BOUND_TABLE_H
#define PLAN_BOUND_TABLE_H

#include "plan/bounds/bound_profiles.h"

/* A op of the line. The lists are by its occurrences. */
struct weft_state_table_op {
  int64_t time;   /* the smallest, if stages are merged */
  int64_t *sums;  /* [count + 1] the least that many take */
  int64_t *head;  /* [count] it starts no earlier; given, ascending */
  int64_t *tail;  /* [count] it ends no later; given, ascending */
  int64_t *start; /* [count] head after the rank was looked at: a result */
  int64_t *stop;  /* [count] and tail */
};

struct weft_state_table {
  const struct weft_problem *problem;
  enum weft_line_detail detail;
  uint32_t count;                      /* of each op on the line */
  uint32_t line;                       /* ops on it */
  struct weft_line_profiles *profiles; /* [rank_count] */
  struct weft_state_table_op ops[WEFT_LINE_MAX];
  int64_t weight_time, *weight_sums;         /* of W that are only counted, [v * m + 1] */
  int64_t extra_time[WEFT_LOCAL_STAGES_MAX]; /* of those that profiles know */
  uint32_t counted;                          /* places whose W are only counted */
  const struct weft_line_profiles *now;      /* of the rank at hand */
  uint64_t visited;                          /* entries that were come to */
  int64_t from, end;                         /* of the rank */
  int64_t *lists;                            /* all of the above */
  int64_t *earliest;                         /* [first ops * stride + offset of profile + W] */
  int64_t *latest;                           /* the same */
  uint32_t *low, *high;                      /* [first ops * profiles + profile] W reached */
  size_t size, cells;                        /* of the largest rank */
};

/* False when there is no room, or a rank's table has more entries than `most`. */
bool weft_state_table_init(struct weft_state_table *table, const struct weft_problem *problem,
                           enum weft_line_detail detail, uint64_t most);
void weft_state_table_finish(struct weft_state_table *table);

/* Entries of a rank's table. */
uint64_t weft_state_table_size(const struct weft_state_table *table, uint32_t rank);

/* False when the rank cannot do all its ops between `from` and `end` within heads, tails and
 * memory; else start and stop are set. */
bool weft_state_table_fill(struct weft_state_table *table, uint32_t rank, int64_t from,
                           int64_t end);

/* ---- For whoever makes an order ---- */

/* What a rank has done. */
struct weft_state_table_at {
  uint32_t first, profile, weights;
};

/* Nothing done. */
struct weft_state_table_at weft_state_table_begin(const struct weft_state_table *table,
                                                  uint32_t rank);

/* One more op of a place; false, and nothing done, when the table has no such entry. */
bool weft_state_table_follow(const struct weft_state_table *table, uint32_t rank,
                             uint32_t local_stage, enum weft_plan_op_kind kind,
                             struct weft_state_table_at *at);

/* The latest times of a rank's table, kept when it was filled. */
struct weft_state_table_kept {
  int64_t *latest;
  uint32_t *low, *high;
};

bool weft_state_table_keep_init(struct weft_state_table_kept *kept,
                                const struct weft_state_table *table, uint32_t rank);
void weft_state_table_keep(struct weft_state_table_kept *kept, const struct weft_state_table *table,
                           uint32_t rank);
void weft_state_table_keep_finish(struct weft_state_table_kept *kept,
                                  const struct weft_state_table *table, uint32_t rank);

/* The latest time from which the rest can be done in time, as far as the rank itself knows;
 * INT64_MIN when it cannot. */
int64_t weft_state_table_latest(const struct weft_state_table *table,
                                const struct weft_state_table_kept *kept, uint32_t rank,
                                struct weft_state_table_at at);

#endif
