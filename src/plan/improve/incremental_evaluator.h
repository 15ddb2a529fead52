/* An order with all its times, updated incrementally for local search. Internal to the module.
 *
 * A move takes one op out of a rank's sequence and inserts it nearby, or it splits a whole backward
 * or joins a split one. Only its consequences are recomputed: the ops in between, then every op
 * that becomes earlier or later, rank by rank, until nothing changes. A log undoes a move that is
 * not accepted.
 *
 * A deadlock shows by times that grow without end, except in a cycle of ops that take no time: such
 * an order keeps its old times. weft_evaluator_refresh() finds it. */
#ifndef PLAN_INCREMENTAL_EVALUATOR_H
#define PLAN_INCREMENTAL_EVALUATOR_H

#include "plan/problem.h"

/* The input, output and costs of an op of a rank. */
struct weft_op_facts {
  int64_t time;
  int64_t change;  /* of the rank's memory, when it has started (F) or ended */
  int64_t grows;   /* likewise, when it starts, if its microbatch is the first */
  int64_t latency; /* of its output's transfer */
  int64_t occupancy;
  uint32_t input;         /* row of arrivals that it waits for; UINT32_MAX: none */
  uint32_t output;        /* row of arrivals that it produces; UINT32_MAX: none */
  uint32_t own;           /* row of positions: stage * WEFT_KINDS + kind that it is counted as */
  uint32_t receiver;      /* row of positions of the op that receives the output, */
  uint32_t receiver_rank; /* and its rank */
  uint32_t sender;        /* row of positions of the op that sends the input, */
  uint32_t sender_rank;   /* and its rank */
};

struct weft_evaluator_change {
  int64_t *at;
  int64_t before;
};

struct weft_evaluator {
  const struct weft_problem *problem;
  struct weft_arena arena;
  struct weft_op_facts *facts; /* [rank * v * WEFT_KINDS + op] */
  struct weft_order order;
  uint32_t *index;    /* [rank * length + n] microbatch */
  uint32_t *position; /* [(stage * WEFT_KINDS + kind) * m + microbatch] in the sequence */
  int64_t *end;       /* [rank * length + n] */
  int64_t *tail;      /* [rank * length + n] the longest path from its end to the end of any rank,
                         less that rank's first start if the objective is the span; as of the last
                         weft_evaluator_refresh() */
  int64_t *held;      /* [rank * length + n] memory before it */
  int64_t *arrival;   /* [row * m + microbatch] */
  int64_t *first;     /* [rank] start of the first op: no move changes it */
  uint32_t *pending;  /* [rank] first op whose input has changed; UINT32_MAX: none */
  uint32_t *last;     /* [rank] last op whose input has changed */
  uint32_t *waiting;  /* ranks with pending ops */
  uint32_t waiting_count;
  struct weft_evaluator_change *log;
  size_t log_size, log_room;
  int64_t value, span_sum;
  uint64_t computed; /* ops whose times were computed: the unit of work */
};

enum weft_status weft_evaluator_init(struct weft_evaluator *evaluator,
                                     const struct weft_problem *problem, struct weft_error *error);
void weft_evaluator_finish(struct weft_evaluator *evaluator);

/* Copies an order that does not deadlock, and its evaluation. */
void weft_evaluator_set(struct weft_evaluator *evaluator, const struct weft_order *order,
                        const struct weft_evaluation *evaluation);

/* Recomputes the tails. They only filter moves before times are computed, so they may be
 * slightly out of date. False when the order deadlocks, in ops that take no time: set another
 * one. */
bool weft_evaluator_refresh(struct weft_evaluator *evaluator);

struct weft_move {
  uint32_t rank;
  uint32_t from; /* the op at this position ... */
  uint32_t to;   /* ... moves to this one; those in between shift by one. The same position: the
                    backward there is split or joined */
};

/* Ops that a move may affect, itself included. */
enum { WEFT_MOVE_MAX = 48 };

/* Tries a move. False when there is nothing to move, when memory or the order of F, I and W forbids
 * it, or when the objective would exceed `cutoff`: then nothing has changed. True: the move is made,
 * and value and span_sum are up to date; weft_evaluator_undo() reverts it, until the next move. */
bool weft_evaluator_try(struct weft_evaluator *evaluator, const struct weft_move *move,
                        int64_t cutoff);
void weft_evaluator_undo(struct weft_evaluator *evaluator, const struct weft_move *move);

/* The critical path: writes the positions (rank * length + n) of its ops, last first, and returns
 * their number, at most `room`. */
uint32_t weft_evaluator_critical(const struct weft_evaluator *evaluator, uint32_t *positions,
                                 uint32_t room);

#endif
