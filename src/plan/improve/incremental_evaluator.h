/* An order with all its times, changed a little at a time: what local search works on.
 * Inside the module.
 *
 * A move takes one op out of a rank's sequence and puts it back somewhere near. Only
 * what follows from it is computed again: the ops between, then whatever becomes
 * earlier or later by them, rank by rank, until nothing changes. A move that is not kept
 * is undone from a log. */
#ifndef PLAN_INCREMENTAL_EVALUATOR_H
#define PLAN_INCREMENTAL_EVALUATOR_H

#include "plan/problem.h"

/* What a op of a rank takes, gives and costs. */
struct weft_op_facts {
  int64_t time;
  int64_t change;  /* of the rank's memory, when it has begun (F) or ended */
  int64_t latency; /* of its output's transfer */
  int64_t occupancy;
  uint32_t input;      /* row of arrivals it waits for; UINT32_MAX: none */
  uint32_t output;     /* row of arrivals it makes; UINT32_MAX: none */
  uint32_t own;        /* row of positions: stage * WEFT_KINDS + kind */
  uint32_t taker;      /* row of positions of who takes the output */
  uint32_t taker_rank; /* and where */
  uint32_t taker_op;
  uint32_t giver; /* row of positions of who makes the input */
  uint32_t giver_rank;
};

struct weft_evaluator_change {
  int64_t *at;
  int64_t before;
};

struct weft_evaluator {
  const struct weft_problem *problem;
  struct weft_op_facts *facts; /* [rank * v * WEFT_KINDS + op] */
  struct weft_order order;
  uint32_t *index;    /* [rank * length + n] microbatch */
  uint32_t *position; /* [(stage * WEFT_KINDS + kind) * m + microbatch] in the sequence */
  int64_t *end;       /* [rank * length + n] */
  int64_t *tail;      /* likewise: the longest way from its end to the end of a rank, less that
                         rank's first start where spans count; as of weft_evaluator_refresh() */
  int64_t *held;      /* likewise: memory before it */
  int64_t *arrival;   /* [row * m + microbatch] */
  int64_t *first;     /* [rank] start of the first op: no move changes it */
  uint32_t *pending;  /* [rank] first op whose input has changed; UINT32_MAX: none */
  uint32_t *last;     /* [rank] the last one */
  uint32_t *waiting;  /* ranks that have one */
  uint32_t waiting_count;
  struct weft_evaluator_change *log;
  size_t log_size, log_room;
  int64_t value, makespan, span, span_sum;
  uint64_t computed; /* ops whose times were computed: the unit of work */
};

enum weft_status weft_evaluator_init(struct weft_evaluator *evaluator,
                                     const struct weft_problem *problem, struct weft_error *error);
void weft_evaluator_finish(struct weft_evaluator *evaluator);

/* Takes over an order that can finish, and whose evaluation this is. */
void weft_evaluator_set(struct weft_evaluator *evaluator, const struct weft_order *order,
                        const struct weft_evaluation *evaluation);

/* Tails from scratch. They are what moves are judged by before anything is computed, so
 * they may be a little old. */
void weft_evaluator_refresh(struct weft_evaluator *evaluator);

struct weft_move {
  uint32_t rank;
  uint32_t from; /* op at this place ... */
  uint32_t to;   /* ... goes to this one; those between move by one */
};

/* The farthest that a move goes. */
enum { WEFT_MOVE_MAX = 48 };

/* Tries a move. False when memory or the order of backwards forbids it, or when the value
 * would be above `cutoff`: nothing has changed then. True: it is made, and value, span_sum
 * are those after it; weft_evaluator_undo() takes it back, until the next one. */
bool weft_evaluator_try(struct weft_evaluator *evaluator, const struct weft_move *move,
                        int64_t cutoff);
void weft_evaluator_undo(struct weft_evaluator *evaluator, const struct weft_move *move);

/* ---- What is critical ---- */

/* Walks back from the end that decides the value: writes the places (rank * length + n)
 * of the ops on the way, last first, and returns how many. Room for `room`. */
uint32_t weft_evaluator_critical(const struct weft_evaluator *evaluator, uint32_t *places,
                                 uint32_t room);

#endif
