/* A planning problem whose stages form a graph, on any placement: its integers, its orders, their
 * time and memory. Chains have constructors and bounds of their own (plan/problem/chain.h), and are
 * improved as problems of this kind (plan/problem/chain_orders.h). As there, microbatches are identical, so
 * the k-th occurrence of an op of a stage belongs to microbatch k, and an order is a sequence of ops
 * for each rank. Internal to the module. */
#ifndef PLAN_PROBLEM_H
#define PLAN_PROBLEM_H

#include <weft/search.h>
#include <weft/support.h>

#include "base/bits.h"
#include "plan/search_control.h"

/* The planner's ops. In an order, an op is kind + WEFT_ORDER_KINDS * stage: I stands for a backward,
 * and whether that is whole (B) or split is said by microbatch; the W of a whole one is in the
 * sequence too, and takes no time. Sequences of chains (plan/problem/chain.h) tell them apart. */
enum weft_plan_op_kind {
  WEFT_KIND_F,
  WEFT_KIND_I,
  WEFT_KIND_W,
  WEFT_KIND_B,
  WEFT_KIND_NO_W, /* the W of a B */
  WEFT_KINDS,
  WEFT_ORDER_KINDS = WEFT_KIND_W + 1
};

/* No time: an order that deadlocks, does not fit, or was abandoned at a cutoff. */
#define WEFT_NEVER INT64_MAX

static inline int64_t weft_max(int64_t a, int64_t b) { return a > b ? a : b; }

static inline int64_t weft_min(int64_t a, int64_t b) { return a < b ? a : b; }

/* Sets a pointer to a cleared array in an arena; false when out of memory. */
#define WEFT_ALLOCATE(arena, pointer, count) \
  (((pointer) = weft_arena_allocate(arena, count, sizeof *(pointer))) != NULL)

struct weft_problem_stage {
  int64_t f, i, w, b;
  int64_t held;       /* memory from the start of F to the end of I or B; of F without them */
  int64_t held_after; /* from the end of I to the end of W */
  int64_t gradients;  /* from the start of the first backward on */
  uint32_t rank;
  bool trains; /* it has a backward */
};

struct weft_problem {
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
  struct weft_problem_stage *stages;
  uint32_t *begin;    /* [rank + 1] first op of a rank's sequence */
  uint32_t *stage_of; /* stages by rank, ascending: those of rank r are */
  uint32_t *first_of; /* [rank + 1] stage_of[first_of[r]] ... */
  uint32_t *height;   /* [stage] edges on the longest way to a stage without out-edges */
  uint32_t height_max;
  int64_t
      *round_trip; /* [stage] from the start of F to the end of I or B of the same microbatch, at
                          least; set by weft_problem_bound() */
};

/* WEFT_ERR_USAGE, WEFT_ERR_LIMIT where the request is no problem. `rank_of` is [stage_count]. */
enum weft_status weft_problem_check(const struct weft_search_request *request,
                                    const uint32_t *rank_of, struct weft_error *error);

/* Of a request that was checked, whose costs have what ranks of different speeds take.
 * WEFT_ERR_LIMIT, WEFT_ERR_MEMORY. */
enum weft_status weft_problem_init(struct weft_problem *problem,
                                   const struct weft_allocator *allocator,
                                   const struct weft_search_request *request,
                                   const uint32_t *rank_of, struct weft_error *error);
void weft_problem_finish(struct weft_problem *problem);

static inline uint32_t weft_problem_op_count(const struct weft_problem *problem) {
  return problem->begin[problem->rank_count];
}

/* Whether the k-th backward of a stage is whole is whole[stage * m + k]. */
struct weft_order {
  uint32_t *ops; /* [op_count], rank after rank */
  uint8_t *whole;
};

/* ---- Time ---- */

struct weft_plan_clock {
  int64_t *arrivals; /* [channel * m + k] */
  int64_t *free;     /* [channel] */
  uint32_t *done;    /* [stage * WEFT_ORDER_KINDS + kind] */
  uint32_t *at;      /* [rank] into ops */
  int64_t *time;     /* [rank] end of its last op */
  int64_t *first;    /* [rank] start of its first op */
  uint32_t *work;    /* ranks to look at, a stack */
  bool *is_waiting;  /* [rank] on the stack */
  uint32_t *scratch; /* [stage * 2] */
  int64_t makespan, span;
};

/* Its arrays live in the arena. WEFT_ERR_MEMORY. */
enum weft_status weft_plan_clock_init(struct weft_plan_clock *clock,
                                      const struct weft_problem *problem, struct weft_arena *arena,
                                      struct weft_error *error);

static inline int64_t weft_problem_duration(const struct weft_problem_stage *stage,
                                            enum weft_plan_op_kind kind, bool is_whole) {
  switch (kind) {
    case WEFT_KIND_F: return stage->f;
    case WEFT_KIND_I: return is_whole ? stage->b : stage->i;
    default: return is_whole ? 0 : stage->w;
  }
}

/* The objective; WEFT_NEVER when ranks wait for each other. */
int64_t weft_order_evaluate(const struct weft_problem *problem, struct weft_plan_clock *clock,
                            const struct weft_order *order);

/* ---- The steps of a clock, which constructors share ---- */

void weft_plan_clock_reset(const struct weft_problem *problem, struct weft_plan_clock *clock);
/* Sets makespan and span; the objective, or WEFT_NEVER when a rank has ops left. */
int64_t weft_plan_clock_summarise(const struct weft_problem *problem,
                                  struct weft_plan_clock *clock);
/* The latest of what comes over a list of edges, in one of their directions. */
static inline int64_t weft_plan_clock_latest(const struct weft_problem *problem,
                                             const struct weft_plan_clock *clock,
                                             const struct weft_edge_list *list, uint32_t stage,
                                             bool gradient, uint32_t k) {
  int64_t time = 0;
  for (uint32_t n = list->begin[stage]; n < list->begin[stage + 1]; n++) {
    const struct weft_edge *edge = &problem->graph->edges[list->edges[n]];
    const uint32_t maker = gradient ? edge->to * (uint32_t)WEFT_ORDER_KINDS + WEFT_KIND_I
                                    : edge->from * (uint32_t)WEFT_ORDER_KINDS + WEFT_KIND_F;
    if (clock->done[maker] <= k) {
      return WEFT_NEVER;
    }
    const size_t channel = 2 * (size_t)list->edges[n] + gradient;
    const int64_t arrival = clock->arrivals[channel * problem->microbatch_count + k];
    time = arrival > time ? arrival : time;
  }
  return time;
}

/* When the inputs of the stage's next op of that kind are there; WEFT_NEVER: not known yet, or
 * the op must wait for another one of its stage. */
static inline int64_t weft_plan_clock_arrival(const struct weft_problem *problem,
                                              const struct weft_plan_clock *clock, uint32_t stage,
                                              enum weft_plan_op_kind kind) {
  const uint32_t *done = &clock->done[(size_t)stage * WEFT_ORDER_KINDS];
  const uint32_t k = done[kind];
  if (k == problem->microbatch_count || (kind > WEFT_KIND_F && done[kind - 1] <= k)) {
    return WEFT_NEVER;
  }
  switch (kind) {
    case WEFT_KIND_F:
      return weft_plan_clock_latest(problem, clock, &problem->graph->in, stage, false, k);
    case WEFT_KIND_I:
      return weft_plan_clock_latest(problem, clock, &problem->graph->gradient_in, stage, true, k);
    default: return 0;
  }
}

static inline void weft_plan_clock_deliver(const struct weft_problem *problem,
                                           struct weft_plan_clock *clock,
                                           const struct weft_edge_list *list, uint32_t stage,
                                           bool gradient, uint32_t k, int64_t end) {
  for (uint32_t n = list->begin[stage]; n < list->begin[stage + 1]; n++) {
    const size_t channel = 2 * (size_t)list->edges[n] + gradient;
    int64_t arrival = end;
    if (problem->crosses[channel]) {
      const int64_t start = clock->free[channel] > end ? clock->free[channel] : end;
      clock->free[channel] = start + problem->occupancy[channel];
      arrival = clock->free[channel] + problem->latency;
    }
    clock->arrivals[channel * problem->microbatch_count + k] = arrival;
  }
}

/* Does an op, from `start`. */
static inline void weft_plan_clock_advance(const struct weft_problem *problem,
                                           struct weft_plan_clock *clock, uint32_t op,
                                           bool is_whole, int64_t start) {
  const uint32_t s = op / WEFT_ORDER_KINDS;
  const enum weft_plan_op_kind kind = (enum weft_plan_op_kind)(op % WEFT_ORDER_KINDS);
  const struct weft_problem_stage *stage = &problem->stages[s];
  const uint32_t k = clock->done[op]++;
  if (kind == WEFT_KIND_W && is_whole) {
    return;
  }
  const int64_t end = start + weft_problem_duration(stage, kind, is_whole);
  clock->time[stage->rank] = end;
  clock->first[stage->rank] = clock->first[stage->rank] < 0 ? start : clock->first[stage->rank];
  if (kind == WEFT_KIND_F) {
    weft_plan_clock_deliver(problem, clock, &problem->graph->out, s, false, k, end);
  } else if (kind == WEFT_KIND_I) {
    weft_plan_clock_deliver(problem, clock, &problem->graph->gradient_out, s, true, k, end);
  }
}

/* ---- Memory ---- */

/* The memory of a rank after an op of microbatch k; returns the most that it holds during the op. */
static inline int64_t weft_problem_step_memory(const struct weft_problem_stage *stage,
                                               enum weft_plan_op_kind kind, uint32_t k,
                                               bool is_whole, int64_t *held) {
  const int64_t begin = *held + (kind == WEFT_KIND_F             ? stage->held
                                 : kind == WEFT_KIND_I && k == 0 ? stage->gradients
                                                                 : 0);
  const int64_t after = is_whole ? 0 : stage->held_after;
  *held = begin + (kind == WEFT_KIND_I   ? after - stage->held
                   : kind == WEFT_KIND_W ? -after
                   : stage->trains       ? 0
                                         : -stage->held);
  return *held > begin ? *held : begin;
}

/* The peak of a rank; -1 where an op comes before what it needs of its own stage. `done` is scratch
 * for [stage_count * WEFT_ORDER_KINDS]. */
int64_t weft_order_peak(const struct weft_problem *problem, const struct weft_order *order,
                        uint32_t rank, uint32_t *done);

/* Whether an order is within all limits. */
bool weft_order_fits(const struct weft_problem *problem, const struct weft_order *order,
                     uint32_t *done);

/* ---- Least memory: memory_search.c ---- */

/* An order within the limits, where there is one that a complete search of small problems finds, or
 * that takes one microbatch after the other. WEFT_ERR_MEMORY. */
enum weft_status weft_problem_fit(const struct weft_problem *problem, struct weft_order *order,
                                  bool *found, struct weft_error *error);

struct weft_problem_least {
  int64_t excess; /* no order exceeds the limits by less; negative: so much is left */
  bool is_exact;  /* and some order exceeds them by no more */
};

/* WEFT_ERR_MEMORY. */
enum weft_status weft_problem_least(const struct weft_problem *problem,
                                    struct weft_problem_least *least, struct weft_error *error);

/* ---- Bounds: problem_bound.c ---- */

/* No order within the limits has a smaller objective. WEFT_ERR_MEMORY. */
enum weft_status weft_problem_bound(struct weft_problem *problem, int64_t *bound,
                                    struct weft_error *error);

/* The same for any placement on so many ranks, of a problem with all stages on one rank, without a
 * limit, whose times are those of the fastest rank; `speeds` is how many such ranks all of them are
 * worth. WEFT_ERR_MEMORY. */
enum weft_status weft_problem_open_bound(struct weft_problem *problem, uint32_t ranks,
                                         double speeds, int64_t *bound, struct weft_error *error);

/* ---- Tables ---- */

enum weft_status weft_order_table(const struct weft_problem *problem,
                                  const struct weft_order *order, struct weft_program **out,
                                  struct weft_error *error);

/* ---- Orders: rule_scheduler.c ---- */

struct weft_rule_scheduler;

/* How a stage takes part in list scheduling. A backward that is ready goes first, unless fewer than
 * `eager` microbatches are in flight and a forward is ready too. */
struct weft_list_rule {
  uint32_t warmup;   /* most forwards before the first backward; at least 1 */
  uint32_t cap;      /* most microbatches in flight after that; at least 1 */
  uint32_t eager;    /* forwards that precede a ready backward */
  int64_t f_delay;   /* longest time that a forward may delay a backward that will arrive */
  int64_t w_overrun; /* longest time that a W may delay an op whose input will arrive */
  uint32_t whole_from, whole_to; /* the backwards of these microbatches are whole */
};

/* List scheduling by rules[stage_count] within the limits. The objective; WEFT_NEVER: it does
 * not fit, or a rank is certain to exceed the cutoff, or the search is cancelled. Adds the work to *work, in nanoseconds of a typical core. */
int64_t weft_rule_schedule(const struct weft_problem *problem,
                           struct weft_rule_scheduler *scheduler,
                           const struct weft_list_rule *rules, int64_t cutoff,
                           struct weft_order *order, uint64_t *work);

/* Scratch memory of it; one per thread. */
struct weft_rule_scheduler {
  struct weft_plan_clock clock;
  int64_t *arrives; /* [stage * 2] when all is there that its next F, then its next D, waits for;
                        WEFT_NEVER: not known */
  uint32_t *place;  /* [stage] rank after rank, of each the last stage first: members of */
  struct weft_bits ready;   /* the stages whose next F or D has a known arrival, */
  struct weft_bits pending; /* and those with a W to do */
  int64_t *when;            /* [rank, and as many as make a power of two] start of its next op;
                        WEFT_NEVER: none */
  uint32_t *soonest;        /* a tournament of them: the winner of a node's two, [1] is of all */
  uint32_t *next;           /* [rank] that op */
  int64_t *held;            /* [rank] memory */
  int64_t *owed;            /* [stage] the part of it that W will free */
  int64_t *reserve;  /* [rank] room for one microbatch of each stage that has none in flight */
  int64_t *idle;     /* [rank] so far */
  int64_t *idle_max; /* [rank] */
};

/* WEFT_ERR_MEMORY. */
enum weft_status weft_rule_scheduler_init(struct weft_rule_scheduler *scheduler,
                                          const struct weft_problem *problem,
                                          struct weft_arena *arena, struct weft_error *error);

/* In flight as 1F1B at the stage's height; W and F may delay other ops by their own time. */
struct weft_list_rule weft_list_rule_classic(const struct weft_problem *problem, uint32_t stage);

/* One microbatch after the other. */
void weft_order_serial(const struct weft_problem *problem, struct weft_plan_clock *clock,
                       struct weft_order *order);

/* ---- The search: graph_search.c ---- */

/* weft_search() of a request with a graph. */
enum weft_status weft_graph_search(const struct weft_allocator *allocator,
                                   const struct weft_search_request *request,
                                   struct weft_search_answer **out, struct weft_error *error);

/* No placement has a smaller objective, in the unit of the costs; INFINITY: none fits into the
 * memory. WEFT_ERR_LIMIT, WEFT_ERR_MEMORY. */
enum weft_status weft_graph_search_bound(const struct weft_allocator *allocator,
                                         const struct weft_search_request *request, double *bound,
                                         struct weft_error *error);

/* weft_search_least_memory() of a request with a graph. */
enum weft_status weft_graph_search_least_memory(const struct weft_allocator *allocator,
                                                const struct weft_search_request *request,
                                                struct weft_memory_need *need,
                                                struct weft_error *error);

#endif
