/* A planning problem in the planner's own numbers: stages on ranks, integer ticks, and a memory
 * limit per rank; and the orders that solve it. Internal to the module.
 *
 * Microbatches are identical, so some optimal schedule runs them in ascending order at every
 * (stage, op): in any schedule, the k-th start of an op at a stage can be given to microbatch k,
 * because the k-th end of what it waits for is not later. What remains to be decided is the
 * sequence of ops on each rank, where the k-th occurrence of an op belongs to microbatch k. */
#ifndef PLAN_CHAIN_H
#define PLAN_CHAIN_H

#include "plan/problem/problem.h"

/* An op of a rank is a byte: kind + WEFT_KINDS * local stage. Where whole and split backwards are
 * mixed, a microbatch has I and W at a stage, or B and NO_W: NO_W takes the place of W in the
 * sequence, and takes no time. So all sequences have the same length, and the k-th of I and B
 * together, and of W and NO_W together, belongs to microbatch k. */

/* Stages per rank, so that ops fit into bytes. */
enum { WEFT_LOCAL_STAGES_MAX = 51 };

/* Ops of a problem. A constructor takes seconds for as many. */
enum { WEFT_PROBLEM_OPS_MAX = 1 << 26 };

/* The backwards that a problem allows. */
enum weft_plan_backward {
  WEFT_BACKWARD_SPLIT, /* I and W: B is never better */
  WEFT_BACKWARD_WHOLE, /* B only */
  WEFT_BACKWARD_MIXED  /* for every microbatch and stage one of both */
};

struct weft_chain_stage {
  int64_t time[WEFT_KINDS];
  int64_t held;       /* memory from the start of F to the end of I or B */
  int64_t held_after; /* memory from the end of I to the end of W */
  int64_t gradients;  /* memory from the start of the first backward on; 0 where the limit of the
                         rank has been reduced by it */
  uint32_t rank;
  uint32_t local_stage; /* index among the rank's stages, ascending */
};

struct weft_chain {
  const struct weft_allocator *allocator;
  struct weft_search_control *control; /* of the search; NULL: none */
  struct weft_arena arena;             /* of the arrays */
  uint32_t rank_count;
  uint32_t stage_count;
  uint32_t stages_per_rank;
  uint32_t microbatch_count;
  uint32_t length; /* ops in the sequence of a rank: v * m * (3 or 2) */
  enum weft_plan_backward backward;
  enum weft_objective objective;
  enum weft_placement_kind placement;
  int64_t latency;       /* of a transfer between ranks; 0 within a rank */
  int64_t occupancy;     /* time that a transfer occupies its channel, before the latency; there is
                            one channel per directed stage boundary */
  double ticks_per_unit; /* of time */
  double sizes_per_unit; /* of memory */
  int64_t limit_max;     /* more than can ever be held: no limit */
  int64_t *limit;        /* [rank_count] for activations and stages[].gradients */
  struct weft_chain_stage *stages; /* [stage_count] */
  uint32_t *stage_of;              /* [rank * v + local stage] */
};

/* The problem of one shape with costs for every stage (one entry serves all). A limit that not
 * even one microbatch fits into is not an error. WEFT_ERR_USAGE, WEFT_ERR_LIMIT,
 * WEFT_ERR_MEMORY. */
enum weft_status weft_chain_init(struct weft_chain *problem, const struct weft_allocator *allocator,
                                 const struct weft_shape *shape, const struct weft_costs *costs,
                                 const struct weft_search_request *request,
                                 struct weft_error *error);
void weft_chain_finish(struct weft_chain *problem);

/* Whether a whole backward may be better than a split one at some stage: it takes less time than I
 * and W, or W holds more memory than F. */
bool weft_costs_gain_from_whole(const struct weft_costs *costs);

/* Time of a transfer between two neighbouring stages on a free channel. */
int64_t weft_chain_hop(const struct weft_chain *problem, uint32_t stage, uint32_t next);

/* A view of a mixed problem, in which all backwards are whole or all are split. It borrows the
 * arrays, and needs no weft_chain_finish(). */
struct weft_chain weft_chain_restrict(const struct weft_chain *problem,
                                      enum weft_plan_backward backward);

/* Memory of a rank that the limit does not count, in the unit of the costs: its parameters, and
 * the gradients by which the limit has been reduced. */
double weft_chain_kept(const struct weft_chain *problem, const struct weft_costs *costs,
                       uint32_t rank);

/* The limit of a rank for activations alone, once it has the gradients of all its stages. */
int64_t weft_chain_limit_at_end(const struct weft_chain *problem, uint32_t rank);

/* How the memory of a rank changes when an op starts (F) or ends (the others). */
static inline int64_t weft_chain_change(const struct weft_chain_stage *stage,
                                        enum weft_plan_op_kind kind) {
  switch (kind) {
    case WEFT_KIND_F: return stage->held;
    case WEFT_KIND_I: return stage->held_after - stage->held;
    case WEFT_KIND_W: return -stage->held_after;
    case WEFT_KIND_B: return -stage->held;
    default: return 0;
  }
}

/* Memory that an op of this kind and microbatch adds when it starts, and that stays. */
static inline int64_t weft_chain_gradients(const struct weft_chain_stage *stage,
                                           enum weft_plan_op_kind kind, uint32_t microbatch) {
  return microbatch == 0 && (kind == WEFT_KIND_I || kind == WEFT_KIND_B) ? stage->gradients : 0;
}

/* The op of the same stage and microbatch that must come before a backward. */
static inline enum weft_plan_op_kind weft_chain_needed_by(enum weft_plan_op_kind kind) {
  return kind == WEFT_KIND_W || kind == WEFT_KIND_NO_W ? WEFT_KIND_I : WEFT_KIND_F;
}

/* The op that sends gradients, and that counts them: B or I. */
static inline enum weft_plan_op_kind weft_chain_backward(const struct weft_chain *problem) {
  return problem->backward == WEFT_BACKWARD_WHOLE ? WEFT_KIND_B : WEFT_KIND_I;
}

/* The kind under which an op is counted: where backwards are mixed, B counts as I, NO_W as W. */
static inline enum weft_plan_op_kind weft_chain_counted_as(const struct weft_chain *problem,
                                                           enum weft_plan_op_kind kind) {
  return problem->backward == WEFT_BACKWARD_MIXED && kind >= WEFT_KIND_B
             ? (enum weft_plan_op_kind)(kind - 2)
             : kind;
}

static inline size_t weft_chain_op_count(const struct weft_chain *problem) {
  return (size_t)problem->rank_count * problem->length;
}

/* ---- Orders ---- */

struct weft_chain_order {
  uint8_t *ops; /* [rank * length + n] */
};

static inline uint8_t *weft_chain_order_sequence(const struct weft_chain *problem,
                                                 const struct weft_chain_order *order,
                                                 uint32_t rank) {
  return order->ops + (size_t)rank * problem->length;
}

/* The peak of what a rank's limit counts; -1 for an invalid sequence: a backward before its
 * forward, or a wrong number of ops. */
int64_t weft_chain_order_peak(const struct weft_chain *problem, uint32_t rank,
                              const uint8_t *sequence);

/* The order as a table, and back. WEFT_ERR_INVALID for a table with other actions than the
 * problem's, another placement, overlaps, or microbatches out of order. Where the problem splits
 * all backwards, B becomes I, W. */
enum weft_status weft_chain_order_table(const struct weft_chain *problem,
                                        const struct weft_chain_order *order,
                                        struct weft_program **out, struct weft_error *error);
enum weft_status weft_chain_order_read(const struct weft_chain *problem,
                                       const struct weft_program *table,
                                       struct weft_chain_order *order, struct weft_error *error);

/* Moves the NO_W of an order in which each follows its B at once to where the numbers of W and
 * NO_W are those of their backwards. */
void weft_chain_order_renumber(const struct weft_chain *problem, struct weft_chain_order *order);

/* A valid order of a problem whose backwards are all whole or all split, in a mixed one. */
void weft_chain_order_convert(const struct weft_chain *from, const struct weft_chain_order *order,
                              const struct weft_chain *to, struct weft_chain_order *out);

/* ---- Evaluation: chain_times.c ---- */

/* The input and output of an op of a rank. Arrivals are by microbatch. */
struct weft_op_link {
  int64_t time;             /* of the op */
  uint8_t counted_as;       /* the op whose number this one increases */
  const int64_t *waits_for; /* [microbatch] arrival of its input; NULL: it needs none */
  const uint32_t *arrived;  /* number of arrivals known so far */
  int64_t *makes;           /* [microbatch] arrival of its output at the receiver; NULL: none */
  uint32_t *made;           /* number of outputs so far */
  int64_t latency;          /* of the output's transfer */
  int64_t occupancy;
  uint32_t wakes; /* rank that receives the output */
  bool crosses;   /* it is another rank */
};

/* Arrival of an output that is ready at `end`: a channel carries one transfer at a time. */
static inline int64_t weft_op_link_arrival(const struct weft_op_link *link, uint32_t microbatch,
                                           int64_t end) {
  if (link->occupancy > 0 && microbatch > 0) {
    end = weft_max(end, link->makes[microbatch - 1] - link->latency);
  }
  return end + link->occupancy + link->latency;
}

/* The times of an order in which every op starts as early as possible, and scratch arrays. One
 * per thread. */
struct weft_chain_times {
  const struct weft_chain *problem;
  struct weft_arena arena;
  struct weft_op_link *links;       /* [rank * v * WEFT_KINDS + op] */
  int64_t *arrivals;                /* [2 * stage_count * m]: activations, then gradients */
  uint32_t *arrived;                /* [2 * stage_count] number of known arrivals */
  uint32_t *taken;                  /* [rank * v * WEFT_KINDS + op] done so far */
  uint32_t *position;               /* [rank] ops done */
  uint32_t *ready;                  /* stack of ranks that may continue */
  bool *is_ready;                   /* [rank] it is on the stack */
  int64_t *clock, *first;           /* [rank] last end, first start */
  int64_t makespan, span, span_sum; /* results; the last is the sum of all ranks' spans */
};

enum weft_status weft_chain_times_init(struct weft_chain_times *evaluation,
                                       const struct weft_chain *problem, struct weft_error *error);
void weft_chain_times_finish(struct weft_chain_times *evaluation);

/* The objective of an order; WEFT_NEVER when it deadlocks or is certain to exceed `cutoff`.
 * Memory is not checked. */
int64_t weft_chain_evaluate(struct weft_chain_times *evaluation,
                            const struct weft_chain_order *order, int64_t cutoff);

/* Sets the results from the clocks of all ranks and returns the objective; WEFT_NEVER when a rank
 * has ops left. */
int64_t weft_chain_times_summarise(struct weft_chain_times *evaluation);

/* ---- Lower bounds: bounds/ ---- */

/* No order within the memory limit has a smaller objective. */
int64_t weft_chain_bound(const struct weft_chain *problem);

/* A larger bound where one can be proved: at least `bound`, at most `value`, the objective of a
 * known order; tries to prove `value` first. Visits about *work states at most, and sets it to as
 * many as it has visited. */
int64_t weft_chain_sharpen(const struct weft_chain *problem, int64_t bound, int64_t value,
                           uint64_t *work);

/* Nanoseconds of a typical core per state that it visits. */
enum { WEFT_STATE_WORK = 50 };

/* ---- Least memory: least_memory.c ---- */

/* The serial orders (serial_order.c): the first `stages` stages of the pipeline run the forwards
 * of all microbatches before their first backward, and the others run one microbatch at a time.
 * The peak of what the limit of a rank counts. */
int64_t weft_chain_serial_peak(const struct weft_chain *problem, uint32_t rank, uint32_t stages);

/* The serial order that exceeds the limits least: the number of such stages, and the rank that
 * comes closest to its limit or exceeds it most. If this order does not fit, none does. */
uint32_t weft_chain_serial_stages(const struct weft_chain *problem, uint32_t *rank);

/* The smallest limit of a rank by itself: no order holds less. */
int64_t weft_chain_least_of(const struct weft_chain *problem, uint32_t rank);

#endif
