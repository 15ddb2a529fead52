/* A planning problem in the planner's own numbers: stages of a graph on ranks, integer ticks, and a
 * memory limit per rank; the orders that solve it, their time and memory. A chain of stages on a loop
 * or a V is a problem of this kind, too: it has more constructors, and closer bounds. Internal to the
 * module.
 *
 * Microbatches are identical, so some optimal schedule runs them in ascending order at every
 * (stage, op): in any schedule, the k-th start of an op at a stage can be given to microbatch k,
 * because the k-th end of what it waits for is not later. What remains to be decided is the
 * sequence of ops on each rank, where the k-th occurrence of an op belongs to microbatch k. */
#ifndef PLAN_PROBLEM_H
#define PLAN_PROBLEM_H

#include <weft/search.h>
#include <weft/support.h>

#include "base/bits.h"
#include "plan/search_control.h"

/* The planner's ops. In an order, an op is kind + WEFT_ORDER_KINDS * stage: I stands for a backward,
 * and whether that is whole (B) or split is said by microbatch; the W of a whole one is in the
 * sequence too, and takes no time. */
enum weft_plan_op_kind {
  WEFT_KIND_F,
  WEFT_KIND_I,
  WEFT_KIND_W,
  WEFT_KIND_B, /* only of times, and of what is not an order */
  WEFT_KINDS,
  WEFT_ORDER_KINDS = WEFT_KIND_W + 1
};

/* Stages per rank of a chain, and ops of its table: a constructor takes seconds for as many. */
enum { WEFT_LOCAL_STAGES_MAX = 51, WEFT_PROBLEM_OPS_MAX = 1 << 26 };

/* No time: an order that deadlocks, does not fit, or was abandoned at a cutoff. */
#define WEFT_NEVER INT64_MAX

static inline int64_t weft_max(int64_t a, int64_t b) { return a > b ? a : b; }

static inline int64_t weft_min(int64_t a, int64_t b) { return a < b ? a : b; }

/* Sets a pointer to a cleared array in an arena; false when out of memory. */
#define WEFT_ALLOCATE(arena, pointer, count) \
  (((pointer) = weft_arena_allocate(arena, count, sizeof *(pointer))) != NULL)

struct weft_problem_stage {
  union {
    struct {
      int64_t f, i, w, b;
    };
    int64_t time[WEFT_KINDS]; /* the same */
  };
  int64_t held;       /* memory from the start of F to the end of I or B; of F without them */
  int64_t held_after; /* from the end of I to the end of W */
  int64_t gradients;  /* from the start of the first backward on; 0 where the limit of the rank has
                         been reduced by it */
  uint32_t rank;
  uint32_t local_stage; /* index among the rank's stages, ascending */
  bool trains;          /* it has a backward */
};

struct weft_problem {
  const struct weft_allocator *allocator;
  struct weft_arena arena;
  struct weft_search_control *control; /* of the search; NULL: none */
  const struct weft_graph *graph,
      *given_graph; /* the request's; else it has its own, in the arena */
  uint32_t rank_count, stage_count, microbatch_count;
  uint32_t
      stages_per_rank; /* of a chain on a loop or a V; 0: it is none, and no constructor or bound
                               that needs one takes it */
  enum weft_placement_kind placement; /* of a chain */
  enum weft_objective objective;
  bool may_split; /* backwards may be I and W */
  bool may_join;  /* backwards may be B; true where that can be better */
  int64_t latency;
  int64_t *occupancy; /* [channel] time that a message occupies it; ir/action.h numbers channels */
  int64_t chain_occupancy; /* of all channels of a chain */
  bool *crosses;           /* [channel] its ends are on two ranks */
  double ticks_per_unit, sizes_per_unit;
  int64_t limit_max; /* more than can ever be held: no limit */
  int64_t *limit;    /* [rank] for activations and stages[].gradients */
  struct weft_problem_stage *stages;
  uint32_t *begin;    /* [rank + 1] first op of a rank's sequence */
  uint32_t *stage_of; /* stages by rank, ascending: those of rank r are */
  uint32_t *first_of; /* [rank + 1] stage_of[first_of[r]] ... */
  uint32_t *height;   /* [stage] edges on the longest way to a stage without out-edges */
  uint32_t height_max;
  int64_t
      *round_trip; /* [stage] from the start of F to the end of I or B of the same microbatch, at
                          least; of a graph set by weft_problem_bound() */
};

/* Whether a whole backward may be better than a split one at some stage: it takes less time than I
 * and W, or W holds more memory than F. */
bool weft_costs_gain_from_whole(const struct weft_costs *costs);

/* WEFT_ERR_USAGE, WEFT_ERR_LIMIT where no problem can have this shape, or stages on these ranks. */
enum weft_status weft_problem_check_shape(const struct weft_shape *shape, bool whole_backward,
                                          struct weft_error *error);
enum weft_status weft_problem_check_ranks(const struct weft_search_request *request,
                                          const uint32_t *rank_of, struct weft_error *error);

/* Of a request whose costs have an entry for each stage, as its rank executes it. `rank_of` is
 * [stage_count]; NULL: as the placement says. A limit that not even one microbatch fits into is not an
 * error. WEFT_ERR_MEMORY, and those of weft_costs_check(). */
enum weft_status weft_problem_init(struct weft_problem *problem,
                                   const struct weft_allocator *allocator,
                                   const struct weft_search_request *request,
                                   const uint32_t *rank_of, struct weft_error *error);
void weft_problem_finish(struct weft_problem *problem);

/* A chain with other stages on a placement like that of this problem, without arrays; the arena is that
 * of its own. */
struct weft_problem weft_problem_chain_like(const struct weft_problem *problem,
                                            struct weft_arena arena, uint32_t ranks,
                                            uint32_t stages, uint32_t microbatches);

/* Allocates the arrays of a problem that has its arena and its numbers of ranks, stages and
 * microbatches, and places the stages; without rank_of as its placement says. Without a graph it gets
 * that of a chain. False when out of memory. */
bool weft_problem_make(struct weft_problem *problem, const uint32_t *rank_of);

/* Once times are set: a chain on a loop or a V, with channels that take the same time, gets
 * stages_per_rank and what else chains have. On one rank it is on both: then as the placement says. */
void weft_problem_look_for_chain(struct weft_problem *problem);

static inline uint32_t weft_problem_op_count(const struct weft_problem *problem) {
  return problem->begin[problem->rank_count];
}

/* Ascending, for qsort(). */
static inline int weft_by_time(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* Those that take time: the unit of work of the constructors. */
static inline size_t weft_problem_timed_op_count(const struct weft_problem *problem) {
  const size_t ops = weft_problem_op_count(problem);
  const size_t backwards = (ops - (size_t)problem->stage_count * problem->microbatch_count) / 2;
  return problem->may_split ? ops : ops - backwards;
}

/* Whether whole and split backwards may be mixed. */
static inline bool weft_problem_mixes(const struct weft_problem *problem) {
  return problem->may_split && problem->may_join;
}

/* Time of a message over a free channel; 0 within a rank. That between the stages s and s + 1 of a
 * chain takes channel 2 * s, the gradient of it the next one. */
static inline int64_t weft_problem_hop(const struct weft_problem *problem, uint32_t channel) {
  return problem->crosses[channel] ? problem->latency + problem->occupancy[channel] : 0;
}

/* The least time until gradients are there, with W, of W after that, and the least memory between the two,
 * whether backwards are split or whole: where they are mixed, a whole one is an I and a W right after
 * it, which take the least that either kind allows. */
static inline int64_t weft_least_gradient(const struct weft_problem *problem, uint32_t stage) {
  const struct weft_problem_stage *at = &problem->stages[stage];
  return !problem->may_split ? at->b : !problem->may_join ? at->i : weft_min(at->i, at->b);
}

static inline int64_t weft_least_backward(const struct weft_problem *problem,
                                          const struct weft_problem_stage *stage) {
  const int64_t split = stage->i + stage->w;
  return !problem->may_split ? stage->b : problem->may_join ? weft_min(split, stage->b) : split;
}

static inline int64_t weft_least_weight(const struct weft_problem *problem, uint32_t stage) {
  const struct weft_problem_stage *at = &problem->stages[stage];
  return !problem->may_split  ? 0
         : !problem->may_join ? at->w
                              : weft_min(at->w, at->b - weft_least_gradient(problem, stage));
}

static inline int64_t weft_least_after(const struct weft_problem *problem, uint32_t stage) {
  const struct weft_problem_stage *at = &problem->stages[stage];
  return !problem->may_split  ? 0
         : !problem->may_join ? at->held_after
                              : weft_min(at->held, at->held_after);
}

/* Microbatches that a rank can hold of a stage, if of no other; at least 1. */
static inline int64_t weft_problem_most_held(const struct weft_problem *problem, uint32_t stage) {
  const struct weft_problem_stage *at = &problem->stages[stage];
  const int64_t m = problem->microbatch_count;
  return at->held == 0 ? m : weft_max(1, weft_min(m, problem->limit[at->rank] / at->held));
}

/* Memory of a rank that the limit does not count, in the unit of the costs: its parameters, and the
 * gradients by which the limit has been reduced. */
double weft_problem_kept(const struct weft_problem *problem, const struct weft_costs *costs,
                         uint32_t rank);

/* The limit of a rank for activations alone, once it has the gradients of all its stages. */
int64_t weft_problem_limit_at_end(const struct weft_problem *problem, uint32_t rank);

/* Whether the k-th backward of a stage is whole is whole[stage * m + k]. */
struct weft_order {
  uint32_t *ops; /* [op_count], rank after rank */
  uint8_t *whole;
};

/* ---- Time ---- */

struct weft_plan_clock {
  int64_t *arrivals;                /* [channel * m + k] */
  int64_t *free;                    /* [channel] */
  uint32_t *done;                   /* [stage * WEFT_ORDER_KINDS + kind] */
  uint32_t *at;                     /* [rank] into ops */
  int64_t *time;                    /* [rank] end of its last op */
  int64_t *first;                   /* [rank] start of its first op */
  uint32_t *work;                   /* ranks to look at, a stack */
  bool *is_waiting;                 /* [rank] on the stack */
  uint32_t *scratch;                /* [stage * 2] */
  int64_t makespan, span, span_sum; /* the last is the sum of all ranks' spans */
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

/* That of a backward where all are whole or all are split; of a split one where they are mixed. */
static inline int64_t weft_problem_backward(const struct weft_problem *problem, uint32_t stage) {
  return weft_problem_duration(&problem->stages[stage], WEFT_KIND_I, !problem->may_split);
}

/* The objective; WEFT_NEVER when ranks wait for each other, or when it exceeds the cutoff. Memory is
 * not checked. */
int64_t weft_order_evaluate(const struct weft_problem *problem, struct weft_plan_clock *clock,
                            const struct weft_order *order, int64_t cutoff);

/* ---- The steps of a clock, which constructors share ---- */

void weft_plan_clock_reset(const struct weft_problem *problem, struct weft_plan_clock *clock);
/* Sets makespan and spans; the objective, or WEFT_NEVER when a rank has ops left. */
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

/* When the inputs of the k-th op of that kind are there; WEFT_NEVER: not known yet. */
static inline int64_t weft_plan_clock_input(const struct weft_problem *problem,
                                            const struct weft_plan_clock *clock, uint32_t stage,
                                            enum weft_plan_op_kind kind, uint32_t k) {
  switch (kind) {
    case WEFT_KIND_F:
      return weft_plan_clock_latest(problem, clock, &problem->graph->in, stage, false, k);
    case WEFT_KIND_I:
      return weft_plan_clock_latest(problem, clock, &problem->graph->gradient_in, stage, true, k);
    default: return 0;
  }
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
  return weft_plan_clock_input(problem, clock, stage, kind, k);
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

/* How the memory of a rank changes when an op of a stage with a backward starts (F) or ends (the
 * others), without gradients; */
static inline int64_t weft_problem_change(const struct weft_problem_stage *stage,
                                          enum weft_plan_op_kind kind) {
  switch (kind) {
    case WEFT_KIND_F: return stage->held;
    case WEFT_KIND_I: return stage->held_after - stage->held;
    case WEFT_KIND_W: return -stage->held_after;
    default: return -stage->held;
  }
}

/* and those that an op of microbatch k adds when it starts. */
static inline int64_t weft_problem_gradients(const struct weft_problem_stage *stage,
                                             enum weft_plan_op_kind kind, uint32_t k) {
  return k == 0 && (kind == WEFT_KIND_I || kind == WEFT_KIND_B) ? stage->gradients : 0;
}

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

/* Whether some stage has gradients that come late. */
bool weft_problem_has_gradients(const struct weft_problem *problem);

/* WEFT_ERR_MEMORY. */
enum weft_status weft_problem_least(const struct weft_problem *problem,
                                    struct weft_problem_least *least, struct weft_error *error);

/* The serial orders of a chain (serial_order.c): its first `stages` stages run the forwards of all
 * microbatches before their first backward, and the others run one microbatch at a time. The peak of
 * what the limit of a rank counts. */
int64_t weft_chain_serial_peak(const struct weft_problem *problem, uint32_t rank, uint32_t stages);

/* The serial order that exceeds the limits least: the number of such stages, and the rank that
 * comes closest to its limit or exceeds it most. If this order does not fit, none does. */
uint32_t weft_chain_serial_stages(const struct weft_problem *problem, uint32_t *rank);

/* The smallest limit of a rank of a chain by itself: no order holds less. */
int64_t weft_chain_least_of(const struct weft_problem *problem, uint32_t rank);

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

/* Of a chain that does not mix backwards. Where all are split, B becomes I, W. WEFT_ERR_INVALID for a
 * table with other actions than the problem's, another placement, overlaps, or microbatches out of
 * order; then the order has changed. */
enum weft_status weft_order_read(const struct weft_problem *problem,
                                 const struct weft_program *table, struct weft_order *order,
                                 struct weft_error *error);

#endif
