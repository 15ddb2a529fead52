/* The ranks by the time of their next decision: a tournament, whose winner is the soonest; of equals
 * the lowest rank. Internal to the module. */
#ifndef PLAN_RANK_QUEUE_H
#define PLAN_RANK_QUEUE_H

#include "plan/problem/problem.h"

struct weft_rank_queue {
  int64_t *when;     /* [rank, and as many as make a power of two]; WEFT_NEVER: none */
  uint32_t *soonest; /* [2 * leaves] the winner of a node's two, [1] is of all */
  uint32_t leaves;
};

/* Once all of when[] are set, weft_rank_queue_play() makes the tournament. The arrays live
 * in the arena, which knows when it is out of memory. */
static inline void weft_rank_queue_init(struct weft_rank_queue *queue, uint32_t ranks,
                                        struct weft_arena *arena) {
  queue->leaves = 2; /* so that the tournament has a node */
  while (queue->leaves < ranks) {
    queue->leaves *= 2;
  }
  queue->when = weft_arena_allocate(arena, queue->leaves, sizeof *queue->when);
  queue->soonest = weft_arena_allocate(arena, queue->leaves, 2 * sizeof *queue->soonest);
}

static inline void weft_rank_queue_play(struct weft_rank_queue *queue) {
  for (uint32_t r = 0; r < queue->leaves; r++) {
    queue->soonest[queue->leaves + r] = r;
  }
  for (uint32_t node = queue->leaves; node-- > 1;) {
    const uint32_t one = queue->soonest[2 * node], other = queue->soonest[2 * node + 1];
    queue->soonest[node] = queue->when[other] < queue->when[one] ? other : one;
  }
}

static inline __attribute__((always_inline)) void weft_rank_queue_set(struct weft_rank_queue *queue,
                                                                      uint32_t rank, int64_t when) {
  uint32_t best = rank;
  int64_t first = when;
  queue->when[rank] = when;
  for (uint32_t node = queue->leaves + rank; node > 1; node /= 2) {
    const uint32_t other = queue->soonest[node ^ 1];
    const int64_t its = queue->when[other];
    const bool loses = (its < first) | ((its == first) & (other < best));
    best = loses ? other : best;
    first = loses ? its : first;
    queue->soonest[node / 2] = best;
  }
}

#endif
