/* Evaluates an order: the longest path through it. Each rank advances as far as its inputs are
 * known, and continues when another rank has produced the next one; every op is visited once. */
#include <assert.h>
#include <string.h>

#include <weft/support.h>

#include "plan/problem/chain.h"

static size_t op_rows(const struct weft_chain *problem) {
  return (size_t)problem->stage_count * WEFT_KINDS;
}

/* ---- Links: what ops wait for ---- */

static void connect(struct weft_chain_times *evaluation, struct weft_op_link *from,
                    struct weft_op_link *to, uint32_t from_stage, uint32_t to_stage, uint32_t row) {
  const struct weft_chain *problem = evaluation->problem;
  int64_t *arrivals = evaluation->arrivals + (size_t)row * problem->microbatch_count;
  uint32_t *arrived = evaluation->arrived + row;
  from->makes = arrivals;
  from->made = arrived;
  to->waits_for = arrivals;
  to->arrived = arrived;
  from->wakes = problem->stages[to_stage].rank;
  from->crosses = from->wakes != problem->stages[from_stage].rank;
  from->latency = from->crosses ? problem->latency : 0;
  from->occupancy = from->crosses ? problem->occupancy : 0;
}

static struct weft_op_link *link_of(struct weft_chain_times *evaluation, uint32_t stage,
                                    enum weft_plan_op_kind kind) {
  const struct weft_chain *problem = evaluation->problem;
  const struct weft_chain_stage *at = &problem->stages[stage];
  return &evaluation
              ->links[((size_t)at->rank * problem->stages_per_rank + at->local_stage) * WEFT_KINDS +
                      kind];
}

/* The sender and the receiver of gradients may each be I or B. */
static void connect_backward(struct weft_chain_times *evaluation, uint32_t from, uint32_t to,
                             uint32_t row) {
  connect(evaluation, link_of(evaluation, from, WEFT_KIND_I), link_of(evaluation, to, WEFT_KIND_I),
          from, to, row);
  connect(evaluation, link_of(evaluation, from, WEFT_KIND_B), link_of(evaluation, to, WEFT_KIND_B),
          from, to, row);
}

static void connect_all(struct weft_chain_times *evaluation) {
  const struct weft_chain *problem = evaluation->problem;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const uint32_t first = problem->stages[s].local_stage * WEFT_KINDS;
    for (unsigned kind = 0; kind < WEFT_KINDS; kind++) {
      struct weft_op_link *link = link_of(evaluation, s, kind);
      link->time = problem->stages[s].time[kind];
      link->counted_as = (uint8_t)(first + weft_chain_counted_as(problem, kind));
    }
    if (s + 1 < problem->stage_count) {
      connect(evaluation, link_of(evaluation, s, WEFT_KIND_F),
              link_of(evaluation, s + 1, WEFT_KIND_F), s, s + 1, s);
      connect_backward(evaluation, s + 1, s, problem->stage_count + s);
    }
  }
}

enum weft_status weft_chain_times_init(struct weft_chain_times *evaluation,
                                       const struct weft_chain *problem, struct weft_error *error) {
  assert(evaluation != NULL && problem != NULL && problem->stages != NULL);
  const size_t ranks = problem->rank_count;
  const size_t arrivals = 2 * (size_t)problem->stage_count * problem->microbatch_count;
  *evaluation =
      (struct weft_chain_times){.problem = problem, .arena = {.allocator = problem->allocator}};
  struct weft_arena *arena = &evaluation->arena;
  if (!WEFT_ALLOCATE(arena, evaluation->links, op_rows(problem)) ||
      !WEFT_ALLOCATE(arena, evaluation->arrivals, arrivals) ||
      !WEFT_ALLOCATE(arena, evaluation->arrived, 2 * (size_t)problem->stage_count) ||
      !WEFT_ALLOCATE(arena, evaluation->taken, op_rows(problem)) ||
      !WEFT_ALLOCATE(arena, evaluation->position, ranks) ||
      !WEFT_ALLOCATE(arena, evaluation->ready, ranks) ||
      !WEFT_ALLOCATE(arena, evaluation->is_ready, ranks) ||
      !WEFT_ALLOCATE(arena, evaluation->clock, ranks) ||
      !WEFT_ALLOCATE(arena, evaluation->first, ranks)) {
    weft_chain_times_finish(evaluation);
    return weft_fail_memory(error, arrivals * sizeof(int64_t));
  }
  connect_all(evaluation);
  return WEFT_OK;
}

void weft_chain_times_finish(struct weft_chain_times *evaluation) {
  weft_arena_finish(&evaluation->arena);
}

/* ---- The longest path ---- */

static void wake(struct weft_chain_times *evaluation, uint32_t *ready_count, uint32_t rank) {
  if (!evaluation->is_ready[rank]) {
    evaluation->is_ready[rank] = true;
    evaluation->ready[(*ready_count)++] = rank;
  }
}

static void start(struct weft_chain_times *evaluation, uint32_t *ready_count) {
  const struct weft_chain *problem = evaluation->problem;
  memset(evaluation->arrived, 0, 2 * (size_t)problem->stage_count * sizeof *evaluation->arrived);
  memset(evaluation->taken, 0, op_rows(problem) * sizeof *evaluation->taken);
  for (uint32_t r = problem->rank_count; r-- > 0;) {
    evaluation->position[r] = 0;
    evaluation->clock[r] = 0;
    evaluation->first[r] = -1;
    wake(evaluation, ready_count, r);
  }
}

/* Advances a rank as far as its inputs are known. */
static void advance(struct weft_chain_times *evaluation, const struct weft_chain_order *order,
                    uint32_t rank, uint32_t *ready_count) {
  const struct weft_chain *problem = evaluation->problem;
  const size_t row = (size_t)rank * problem->stages_per_rank * WEFT_KINDS;
  const struct weft_op_link *links = evaluation->links + row;
  uint32_t *taken = evaluation->taken + row;
  const uint8_t *sequence = weft_chain_order_sequence(problem, order, rank);
  uint32_t n = evaluation->position[rank];
  int64_t now = evaluation->clock[rank];
  for (; n < problem->length; n++) {
    const struct weft_op_link *link = &links[sequence[n]];
    const uint32_t microbatch = taken[link->counted_as];
    if (link->waits_for != NULL) {
      if (microbatch >= *link->arrived) {
        break;
      }
      now = link->waits_for[microbatch] > now ? link->waits_for[microbatch] : now;
    }
    if (n == 0) {
      evaluation->first[rank] = now;
    }
    now += link->time;
    taken[link->counted_as] = microbatch + 1;
    if (link->makes != NULL) {
      link->makes[microbatch] = weft_op_link_arrival(link, microbatch, now);
      *link->made = microbatch + 1;
      if (link->crosses) {
        wake(evaluation, ready_count, link->wakes);
      }
    }
  }
  evaluation->position[rank] = n;
  evaluation->clock[rank] = now;
}

int64_t weft_chain_times_summarise(struct weft_chain_times *evaluation) {
  assert(evaluation->position != NULL);
  const struct weft_chain *problem = evaluation->problem;
  int64_t from = INT64_MAX, to = 0, span = 0, sum = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    if (evaluation->position[r] < problem->length) {
      return WEFT_NEVER;
    }
    const int64_t own = evaluation->clock[r] - evaluation->first[r];
    from = evaluation->first[r] < from ? evaluation->first[r] : from;
    to = evaluation->clock[r] > to ? evaluation->clock[r] : to;
    span = own > span ? own : span;
    sum += own;
  }
  evaluation->makespan = to - from;
  evaluation->span = span;
  evaluation->span_sum = sum;
  return problem->objective == WEFT_OBJECTIVE_SPAN ? span : to - from;
}

int64_t weft_chain_evaluate(struct weft_chain_times *evaluation,
                            const struct weft_chain_order *order, int64_t cutoff) {
  assert(evaluation->links != NULL && order != NULL && order->ops != NULL);
  const bool spans = evaluation->problem->objective == WEFT_OBJECTIVE_SPAN;
  uint32_t ready_count = 0;
  start(evaluation, &ready_count);
  while (ready_count > 0) {
    const uint32_t rank = evaluation->ready[--ready_count];
    evaluation->is_ready[rank] = false;
    advance(evaluation, order, rank, &ready_count);
    const int64_t from = spans ? evaluation->first[rank] : 0;
    if (from >= 0 && evaluation->clock[rank] - from > cutoff) {
      memset(evaluation->is_ready, 0, evaluation->problem->rank_count);
      return WEFT_NEVER;
    }
  }
  return weft_chain_times_summarise(evaluation);
}
