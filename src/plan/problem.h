/* A planning problem as the planner works on it: stages on ranks, whole ticks, and
 * the memory of each rank. Inside the module.
 *
 * Microbatches are alike, so some best schedule takes them in order at every stage
 * and op: of any schedule, the k-th start of an op at a stage may be given to
 * microbatch k, since the k-th end of what it waits for is not later. What is left
 * to decide is, for every rank, the order of its ops: a op is an op of one
 * of the rank's stages, and its k-th occurrence is that of microbatch k. */
#ifndef PLAN_PROBLEM_H
#define PLAN_PROBLEM_H

#include <weft/search.h>

/* A op is kind + WEFT_KINDS * (which of the rank's stages). */
enum weft_plan_op_kind { WEFT_KIND_F, WEFT_KIND_I, WEFT_KIND_W, WEFT_KIND_B, WEFT_KINDS };

/* Stages per rank: ops are bytes. */
enum { WEFT_LOCAL_STAGES_MAX = 63 };

struct weft_problem_stage {
  int64_t time[WEFT_KINDS];
  int64_t held;       /* memory from the start of F to the end of I or B */
  int64_t held_after; /* from then to the end of W */
  uint32_t rank;
  uint32_t local_stage; /* which of the rank's stages, ascending */
};

struct weft_problem {
  const struct weft_allocator *allocator;
  uint32_t rank_count;
  uint32_t stage_count;
  uint32_t stages_per_rank;
  uint32_t microbatch_count;
  uint32_t length;     /* ops of a rank: v * m * (3 or 2) */
  bool whole_backward; /* F B instead of F I W */
  enum weft_objective objective;
  enum weft_placement_kind placement;
  int64_t latency;   /* of a transfer between ranks; within a rank it is free */
  int64_t occupancy; /* of its channel, one per directed boundary, by a transfer, before that */
  double ticks_per_unit;
  double sizes_per_unit; /* memory: whole numbers too */
  int64_t limit_max;     /* larger than whatever can be held: no limit */
  int64_t *limit;        /* [rank_count] for activations: what parameters and gradients leave */
  struct weft_problem_stage *stages; /* [stage_count] */
  uint32_t *stage_of;                /* [rank * v + place] */
};

/* The problem of a placement with costs for every stage (one entry serves all).
 * WEFT_ERR_USAGE, WEFT_ERR_LIMIT, WEFT_ERR_MEMORY. A limit that even one microbatch
 * exceeds is not an error here. */
enum weft_status weft_problem_init(struct weft_problem *problem,
                                   const struct weft_allocator *allocator,
                                   const struct weft_shape *shape, const struct weft_costs *costs,
                                   const struct weft_search_request *request,
                                   struct weft_error *error);
void weft_problem_finish(struct weft_problem *problem);

/* A transfer between the stages on both sides of a boundary, as if alone. */
int64_t weft_problem_hop(const struct weft_problem *problem, uint32_t stage, uint32_t next);

/* ---- Orders ---- */

/* sequences[rank * length + n]: one sequence after the other. */
struct weft_order {
  uint8_t *ops; /* [rank_count * length] */
};

static inline uint8_t *weft_order_sequence(const struct weft_problem *problem,
                                           const struct weft_order *order, uint32_t rank) {
  return order->ops + (size_t)rank * problem->length;
}

/* The largest memory that rank's sequence holds at any time; -1 when the sequence is not one:
 * a backward before its forward, or another number of ops. */
int64_t weft_sequence_peak(const struct weft_problem *problem, uint32_t rank,
                           const uint8_t *sequence);

/* The order as a table, and back. A table with other actions than the problem's, another
 * placement, overlaps or microbatches out of order is WEFT_ERR_INVALID. A full backward
 * in a problem with split ones becomes I, then W. */
enum weft_status weft_order_table(const struct weft_problem *problem,
                                  const struct weft_order *order, struct weft_program **out,
                                  struct weft_error *error);
enum weft_status weft_order_read(const struct weft_problem *problem,
                                 const struct weft_program *table, struct weft_order *order,
                                 struct weft_error *error);

/* ---- Evaluation: evaluation.c ---- */

/* What a op of a rank waits for and makes. Arrivals are in order of microbatches. */
struct weft_op_link {
  int64_t time;
  const int64_t *waits_for; /* [microbatch] when its input arrives; NULL: it has it */
  const uint32_t *arrived;  /* how many have, as far as is known */
  int64_t *makes;           /* [microbatch] when its output arrives at the other side; NULL: none */
  uint32_t *made;
  int64_t latency; /* of that transfer */
  int64_t occupancy;
  uint32_t wakes; /* rank that takes the output */
  bool crosses;   /* that is another rank */
};

/* Times of an order, every action as early as it can; and room to compute them. One per
 * thread. */
struct weft_evaluation {
  const struct weft_problem *problem;
  struct weft_op_link *links;       /* [rank * v * WEFT_KINDS + op] */
  int64_t *arrivals;                /* [2 * stage_count * m]: activations, then gradients */
  uint32_t *arrived;                /* [2 * stage_count] of them */
  uint32_t *taken;                  /* [stage_count * WEFT_KINDS] ops so far, as links */
  uint32_t *position;               /* [rank] ops done */
  uint32_t *ready;                  /* stack of ranks that may go on */
  bool *is_ready;                   /* [rank] it is on the stack */
  int64_t *clock, *first;           /* [rank] last end, first start */
  int64_t makespan, span, span_sum; /* results; the last is over all ranks */
};

enum weft_status weft_evaluation_init(struct weft_evaluation *evaluation,
                                      const struct weft_problem *problem, struct weft_error *error);
void weft_evaluation_finish(struct weft_evaluation *evaluation);

#define WEFT_NEVER INT64_MAX /* the order cannot finish, or was given up at the cutoff */

/* The objective of an order, or WEFT_NEVER when ranks wait for each other, or when
 * it is certain to be above `cutoff`. Memory is not looked at. */
int64_t weft_evaluate(struct weft_evaluation *evaluation, const struct weft_order *order,
                      int64_t cutoff);

/* ---- Bounds: bound.c ---- */

/* No order within the memory has a smaller objective than this. */
int64_t weft_problem_bound(const struct weft_problem *problem, enum weft_objective objective);

/* A larger bound where one can be proved: at least `bound`, at most `value`, which an order has.
 * Looks at no more than about `work` partial states; 10^7 take about half a second. It proves
 * `value` first. */
int64_t weft_problem_sharpen(const struct weft_problem *problem, enum weft_objective objective,
                             int64_t bound, int64_t value, uint64_t work);

/* The smallest limit of activations of a rank: an order exists if and only if every rank's
 * limit is at least this. */
int64_t weft_problem_least_of(const struct weft_problem *problem, uint32_t rank);
/* The largest of them, with *rank the one that needs it. */
int64_t weft_problem_least_memory(const struct weft_problem *problem, uint32_t *rank);

#endif
