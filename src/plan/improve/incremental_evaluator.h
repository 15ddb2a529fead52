/* An order with all its times, changed a little at a time: what local search works on.
 * Inside the module.
 *
 * A move takes one letter out of a rank's word and puts it back somewhere near. Only
 * what follows from it is computed again: the letters between, then whatever becomes
 * earlier or later by them, rank by rank, until nothing changes. A move that is not kept
 * is undone from a log. */
#ifndef PLAN_TABLEAU_H
#define PLAN_TABLEAU_H

#include "plan/problem.h"

/* What a letter of a rank takes, gives and costs. */
struct weft_letter_facts {
  int64_t time;
  int64_t change;  /* of the rank's memory, when it has begun (F) or ended */
  int64_t latency; /* of its output's transfer */
  int64_t occupancy;
  uint32_t input;      /* row of arrivals it waits for; UINT32_MAX: none */
  uint32_t output;     /* row of arrivals it makes; UINT32_MAX: none */
  uint32_t own;        /* row of positions: stage * WEFT_KINDS + kind */
  uint32_t taker;      /* row of positions of who takes the output */
  uint32_t taker_rank; /* and where */
  uint32_t taker_letter;
  uint32_t giver; /* row of positions of who makes the input */
  uint32_t giver_rank;
};

struct weft_tableau_change {
  int64_t *at;
  int64_t before;
};

struct weft_tableau {
  const struct weft_problem *problem;
  struct weft_letter_facts *facts; /* [rank * v * WEFT_KINDS + letter] */
  struct weft_order order;
  uint32_t *index;    /* [rank * word_size + n] microbatch */
  uint32_t *position; /* [(stage * WEFT_KINDS + kind) * m + microbatch] in the word */
  int64_t *end;       /* [rank * word_size + n] */
  int64_t *tail;      /* likewise: the longest way from its end to the end of a rank, less that
                         rank's first start where spans count; as of weft_tableau_refresh() */
  int64_t *held;      /* likewise: memory before it */
  int64_t *arrival;   /* [row * m + microbatch] */
  int64_t *first;     /* [rank] start of the first letter: no move changes it */
  uint32_t *pending;  /* [rank] first letter whose input has changed; UINT32_MAX: none */
  uint32_t *last;     /* [rank] the last one */
  uint32_t *waiting;  /* ranks that have one */
  uint32_t waiting_count;
  struct weft_tableau_change *log;
  size_t log_size, log_room;
  int64_t value, makespan, span, span_sum;
  uint64_t steps; /* letters whose times were computed: the unit of work */
};

enum weft_status weft_tableau_init(struct weft_tableau *tableau, const struct weft_problem *problem,
                                   struct weft_error *error);
void weft_tableau_finish(struct weft_tableau *tableau);

/* Takes over an order that can finish, and whose evaluation this is. */
void weft_tableau_set(struct weft_tableau *tableau, const struct weft_order *order,
                      const struct weft_evaluation *evaluation);

/* Tails from scratch. They are what moves are judged by before anything is computed, so
 * they may be a little old. */
void weft_tableau_refresh(struct weft_tableau *tableau);

struct weft_move {
  uint32_t rank;
  uint32_t from; /* letter at this place ... */
  uint32_t to;   /* ... goes to this one; those between move by one */
};

/* The farthest that a move goes. */
enum { WEFT_MOVE_MAX = 48 };

/* Tries a move. False when memory or the order of backwards forbids it, or when the value
 * would be above `cutoff`: nothing has changed then. True: it is made, and value, span_sum
 * are those after it; weft_tableau_undo() takes it back, until the next one. */
bool weft_tableau_try(struct weft_tableau *tableau, const struct weft_move *move, int64_t cutoff);
void weft_tableau_undo(struct weft_tableau *tableau, const struct weft_move *move);

/* ---- What is critical ---- */

/* Walks back from the end that decides the value: writes the places (rank * word_size + n)
 * of the letters on the way, last first, and returns how many. Room for `room`. */
uint32_t weft_tableau_critical(const struct weft_tableau *tableau, uint32_t *places, uint32_t room);

#endif
