/* An order with all its times, updated incrementally for local search. Internal to the module.
 *
 * A move takes one op out of a rank's sequence and inserts it nearby, or it splits a whole backward or
 * joins a split one. Only its consequences are recomputed, until nothing changes; a log undoes a move
 * that is not accepted. A deadlock shows by times that grow beyond the cutoff, except in a cycle of
 * ops that take no time: weft_order_evaluate() finds that. */
#ifndef PLAN_EVALUATOR_H
#define PLAN_EVALUATOR_H

#include "plan/problem/problem.h"

/* A message of an op. */
struct weft_op_message {
  uint32_t channel;
  uint32_t op;       /* of the same kind, at the other end */
  uint32_t rank;     /* of that op */
  bool crosses;      /* that is another rank */
  int64_t latency;   /* 0 within a rank, */
  int64_t occupancy; /* and so is this */
};

/* What is the same for an op in all microbatches; of two values the second is that of a whole
 * backward. */
struct weft_op_facts {
  int64_t time[2];
  int64_t begin;     /* memory that it adds when it starts, */
  int64_t first;     /* the same for its first microbatch only, */
  int64_t change[2]; /* and when it ends */
  struct weft_op_message *inputs, *outputs;
  uint32_t input_count, output_count;
  uint32_t rank;
};

struct weft_evaluator {
  const struct weft_problem *problem;
  bool mixes;                  /* whole and split backwards */
  struct weft_op_facts *facts; /* [stage * WEFT_ORDER_KINDS + kind] */
  struct weft_plan_clock clock;
  struct weft_order order;
  uint32_t *index;    /* [op of the order] microbatch */
  uint32_t *position; /* [op * m + microbatch] where it is in the order */
  int64_t *end;       /* [op of the order] */
  int64_t *tail;     /* the longest path from its end to the end of any rank, less that rank's first
                         start if the objective is the span; as of the last refresh */
  int64_t *held;     /* memory before it */
  int64_t *arrival;  /* [channel * m + microbatch] */
  uint32_t *pending; /* [rank] first op whose input has changed; UINT32_MAX: none */
  uint32_t *last;    /* [rank] last such op */
  uint32_t *waiting; /* ranks with pending ops */
  uint32_t waiting_count;
  struct weft_evaluator_change {
    int64_t *at;
    int64_t before;
  } * log;
  size_t log_size, log_room;
  int64_t value, span_sum;
  uint64_t computed; /* ops whose times were computed: the unit of work */
};

/* Its arrays live in the arena. WEFT_ERR_MEMORY. */
enum weft_status weft_evaluator_init(struct weft_evaluator *evaluator,
                                     const struct weft_problem *problem, struct weft_arena *arena,
                                     struct weft_error *error);

/* Copies an order; false, and not usable, when it deadlocks. */
bool weft_evaluator_set(struct weft_evaluator *evaluator, const struct weft_order *order);

/* Recomputes the tails, which only filter moves. False when the order deadlocks. */
bool weft_evaluator_refresh(struct weft_evaluator *evaluator);

/* The op at `from` goes to `to`, both in the order and of one rank; those in between shift by one.
 * The same: the backward there is split or joined. */
struct weft_move {
  uint32_t from, to;
};

/* Positions that a move may span, and so the largest distance. */
enum { WEFT_MOVE_MAX = 48 };

/* Tries a move. False when memory or the order of ops forbids it, or when the objective would exceed
 * `cutoff`: then nothing has changed. True: it is made, and value and span_sum are up to date;
 * weft_evaluator_undo() reverts it, until the next one. */
bool weft_evaluator_try(struct weft_evaluator *evaluator, const struct weft_move *move,
                        int64_t cutoff);
void weft_evaluator_undo(struct weft_evaluator *evaluator, const struct weft_move *move);

/* The critical path: positions of its ops, last first; returns their number, at most `room`. */
uint32_t weft_evaluator_critical(const struct weft_evaluator *evaluator, uint32_t *positions,
                                 uint32_t room);

#endif
