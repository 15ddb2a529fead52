/* A planning problem whose stages form a graph, on any placement: its integers, its orders, their
 * time and memory. Chains have a richer planner of their own (plan/problem.h), whose ideas this one
 * shares: microbatches are identical, so the k-th occurrence of an op of a stage belongs to
 * microbatch k, and an order is a sequence of ops for each rank. Internal to the module. */
#ifndef PLAN_GRAPH_PROBLEM_H
#define PLAN_GRAPH_PROBLEM_H

#include <weft/search.h>
#include <weft/support.h>

#include "plan/search_control.h"

/* An op is kind + WEFT_GRAPH_KINDS * stage. A backward is whole (B) or split (I), by microbatch;
 * the W of a whole one is in the sequence too, and takes no time. */
enum weft_graph_kind { WEFT_GRAPH_F, WEFT_GRAPH_D, WEFT_GRAPH_W, WEFT_GRAPH_KINDS };

struct weft_graph_stage {
  int64_t f, i, w, b;
  int64_t held;       /* memory from the start of F to the end of I or B; of F without them */
  int64_t held_after; /* from the end of I to the end of W */
  int64_t gradients;  /* from the start of the first backward on */
  uint32_t rank;
  bool trains; /* it has a backward */
};

struct weft_graph_problem {
  const struct weft_allocator *allocator;
  struct weft_arena arena;
  struct weft_search_control *control;
  const struct weft_graph *graph;
  uint32_t rank_count, stage_count, microbatch_count;
  enum weft_objective objective;
  bool may_split; /* backwards may be I and W */
  bool may_join;  /* backwards may be B; true where that can be better */
  int64_t latency;
  int64_t *occupancy; /* [channel] time that a message occupies it; ir/action.h numbers channels */
  bool *crosses;      /* [channel] its ends are on two ranks */
  double ticks_per_unit, sizes_per_unit;
  int64_t *limit; /* [rank] for activations and gradients */
  struct weft_graph_stage *stages;
  uint32_t *begin;    /* [rank + 1] first op of a rank's sequence */
  uint32_t *stage_of; /* stages by rank, ascending: those of rank r are */
  uint32_t *first_of; /* [rank + 1] stage_of[first_of[r]] ... */
  uint32_t *height;   /* [stage] edges on the longest way to a stage without out-edges */
};

/* WEFT_ERR_USAGE, WEFT_ERR_LIMIT where the request is no problem. `rank_of` is [stage_count]. */
enum weft_status weft_graph_check(const struct weft_search_request *request,
                                  const uint32_t *rank_of, struct weft_error *error);

/* Of a request that was checked, whose costs have what ranks of different speeds take.
 * WEFT_ERR_LIMIT, WEFT_ERR_MEMORY. */
enum weft_status weft_graph_problem_init(struct weft_graph_problem *problem,
                                         const struct weft_allocator *allocator,
                                         const struct weft_search_request *request,
                                         const uint32_t *rank_of, struct weft_error *error);
void weft_graph_problem_finish(struct weft_graph_problem *problem);

static inline uint32_t weft_graph_op_count(const struct weft_graph_problem *problem) {
  return problem->begin[problem->rank_count];
}

/* Whether the k-th backward of a stage is whole is whole[stage * m + k]. */
struct weft_graph_order {
  uint32_t *ops; /* [op_count], rank after rank */
  uint8_t *whole;
};

/* ---- Time ---- */

struct weft_graph_clock {
  int64_t *arrivals; /* [channel * m + k] */
  int64_t *free;     /* [channel] */
  uint32_t *done;    /* [stage * WEFT_GRAPH_KINDS + kind] */
  uint32_t *at;      /* [rank] into ops */
  int64_t *time;     /* [rank] end of its last op */
  int64_t *first;    /* [rank] start of its first op */
  uint32_t *work;    /* ranks to look at, a stack */
  bool *is_waiting;  /* [rank] on the stack */
  int64_t makespan, span;
};

enum weft_status weft_graph_clock_init(struct weft_graph_clock *clock,
                                       struct weft_graph_problem *problem,
                                       struct weft_error *error);

#define WEFT_GRAPH_NEVER INT64_MAX

/* The objective; WEFT_GRAPH_NEVER when ranks wait for each other. */
int64_t weft_graph_evaluate(const struct weft_graph_problem *problem,
                            struct weft_graph_clock *clock, const struct weft_graph_order *order);

/* ---- The steps of a clock, which constructors share ---- */

void weft_graph_clock_reset(const struct weft_graph_problem *problem,
                            struct weft_graph_clock *clock);
/* When the inputs of the stage's next op of that kind are there; WEFT_GRAPH_NEVER: not known yet, or
 * the op must wait for another one of its stage. */
int64_t weft_graph_arrival(const struct weft_graph_problem *problem,
                           const struct weft_graph_clock *clock, uint32_t stage,
                           enum weft_graph_kind kind);
/* Does it, from `start`, and wakes the ranks that get its output. */
void weft_graph_advance(const struct weft_graph_problem *problem, struct weft_graph_clock *clock,
                        uint32_t op, bool is_whole, int64_t start);

/* ---- Memory ---- */

/* The peak of a rank; -1 where an op comes before what it needs of its own stage. `done` is scratch
 * for [stage_count * WEFT_GRAPH_KINDS]. */
int64_t weft_graph_peak(const struct weft_graph_problem *problem,
                        const struct weft_graph_order *order, uint32_t rank, uint32_t *done);

/* ---- Least memory: graph_memory.c ---- */

/* An order within the limits, where there is one that a complete search of small problems finds, or
 * that takes one microbatch after the other. WEFT_ERR_MEMORY. */
enum weft_status weft_graph_fit(const struct weft_graph_problem *problem,
                                struct weft_graph_order *order, bool *found,
                                struct weft_error *error);

struct weft_graph_least {
  int64_t excess; /* no order exceeds the limits by less; negative: so much is left */
  bool is_exact;  /* and some order exceeds them by no more */
};

/* WEFT_ERR_MEMORY. */
enum weft_status weft_graph_least(const struct weft_graph_problem *problem,
                                  struct weft_graph_least *least, struct weft_error *error);

/* ---- Bounds: graph_bound.c ---- */

/* No order within the limits has a smaller objective. WEFT_ERR_MEMORY. */
enum weft_status weft_graph_bound(struct weft_graph_problem *problem, int64_t *bound,
                                  struct weft_error *error);

/* ---- Tables ---- */

enum weft_status weft_graph_order_table(const struct weft_graph_problem *problem,
                                        const struct weft_graph_order *order,
                                        struct weft_program **out, struct weft_error *error);

/* ---- Orders: graph_construct.c ---- */

struct weft_graph_rule {
  uint32_t extra;     /* microbatches in flight beyond those that 1F1B has */
  bool whole;         /* backwards are whole */
  bool eager_weights; /* W at once, not when the rank would be idle */
  bool forward_first; /* of what is ready, F before backwards */
};

/* List scheduling by a rule, within the limits. False: it does not fit. */
bool weft_graph_construct(const struct weft_graph_problem *problem, struct weft_graph_clock *clock,
                          const struct weft_graph_rule *rule, struct weft_graph_order *order);

/* One microbatch after the other. */
void weft_graph_serial(const struct weft_graph_problem *problem, struct weft_graph_clock *clock,
                       struct weft_graph_order *order);

/* ---- The search: graph_search.c ---- */

/* weft_search() of a request with a graph. */
enum weft_status weft_graph_search(const struct weft_allocator *allocator,
                                   const struct weft_search_request *request,
                                   struct weft_search_answer **out, struct weft_error *error);

/* weft_search_least_memory() of a request with a graph. */
enum weft_status weft_graph_search_least_memory(const struct weft_allocator *allocator,
                                                const struct weft_search_request *request,
                                                double *least, struct weft_error *error);

#endif
