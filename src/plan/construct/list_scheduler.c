/* List scheduling by targets. Ranks decide in order of time, from a heap. When an action starts,
 * the arrival of its output is known, and its receiver is woken then; so a decision looks at the
 * ops of one rank only, and no rank decides without cause. */
#include "plan/construct/list_scheduler.h"

#include <assert.h>
#include <string.h>

#include <weft/support.h>

static size_t target_count(const struct weft_chain *problem) {
  return (size_t)problem->stage_count * WEFT_KINDS * problem->microbatch_count;
}

static void set_facts(struct weft_list_scheduler *scheduler) {
  const struct weft_chain *problem = scheduler->problem;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_chain_stage *stage = &problem->stages[s];
    const int64_t *time = stage->time;
    const bool whole = problem->backward == WEFT_BACKWARD_WHOLE;
    const int64_t back = whole ? time[WEFT_KIND_B] : time[WEFT_KIND_I] + time[WEFT_KIND_W];
    scheduler->in_flight[s] = UINT32_MAX;
    scheduler->work[stage->rank] += (time[WEFT_KIND_F] + back) * problem->microbatch_count;
    const int64_t growth = whole ? 0 : stage->held_after - stage->held;
    if (growth > scheduler->growth[stage->rank]) {
      scheduler->growth[stage->rank] = growth;
    }
  }
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    scheduler->limit[r] = weft_chain_limit_at_end(problem, r) - scheduler->growth[r];
  }
}

static size_t op_row(const struct weft_chain *problem, uint32_t stage,
                     enum weft_plan_op_kind kind) {
  const struct weft_chain_stage *at = &problem->stages[stage];
  return ((size_t)at->rank * problem->stages_per_rank + at->local_stage) * WEFT_KINDS + kind;
}

enum weft_status weft_list_scheduler_init(struct weft_list_scheduler *scheduler,
                                          const struct weft_chain *problem,
                                          struct weft_chain_times *times,
                                          struct weft_error *error) {
  assert(scheduler != NULL && times != NULL && times->problem == problem);
  const size_t ranks = problem->rank_count;
  *scheduler = (struct weft_list_scheduler){
      .problem = problem, .times = times, .arena = {.allocator = problem->allocator}};
  struct weft_arena *arena = &scheduler->arena;
  if (!WEFT_ALLOCATE(arena, scheduler->targets, target_count(problem)) ||
      !WEFT_ALLOCATE(arena, scheduler->in_flight, problem->stage_count) ||
      !WEFT_ALLOCATE(arena, scheduler->held, ranks) ||
      !WEFT_ALLOCATE(arena, scheduler->held_for_w, ranks) ||
      !WEFT_ALLOCATE(arena, scheduler->work, ranks) ||
      !WEFT_ALLOCATE(arena, scheduler->rest, ranks) ||
      !WEFT_ALLOCATE(arena, scheduler->growth, ranks) ||
      !WEFT_ALLOCATE(arena, scheduler->limit, ranks) ||
      !WEFT_ALLOCATE(arena, scheduler->when, ranks) ||
      !WEFT_ALLOCATE(arena, scheduler->heap, ranks) ||
      !WEFT_ALLOCATE(arena, scheduler->heap_at, ranks)) {
    weft_list_scheduler_finish(scheduler);
    return weft_fail_memory(error, target_count(problem) * sizeof *scheduler->targets);
  }
  set_facts(scheduler);
  scheduler->turned = times->taken + op_row(problem, problem->stage_count - 1, WEFT_KIND_F);
  return WEFT_OK;
}

void weft_list_scheduler_finish(struct weft_list_scheduler *scheduler) {
  weft_arena_finish(&scheduler->arena);
}

/* ---- The heap of ranks ---- */

static bool is_earlier(const struct weft_list_scheduler *scheduler, uint32_t rank, uint32_t other) {
  return scheduler->when[rank] < scheduler->when[other] ||
         (scheduler->when[rank] == scheduler->when[other] && rank < other);
}

static void put_at(struct weft_list_scheduler *scheduler, uint32_t rank, uint32_t at) {
  scheduler->heap[at] = rank;
  scheduler->heap_at[rank] = at;
}

static void sift_up(struct weft_list_scheduler *scheduler, uint32_t rank, uint32_t at) {
  while (at > 0 && is_earlier(scheduler, rank, scheduler->heap[(at - 1) / 2])) {
    put_at(scheduler, scheduler->heap[(at - 1) / 2], at);
    at = (at - 1) / 2;
  }
  put_at(scheduler, rank, at);
}

static void sift_down(struct weft_list_scheduler *scheduler, uint32_t rank, uint32_t at) {
  for (;;) {
    uint32_t child = 2 * at + 1;
    if (child + 1 < scheduler->heap_size &&
        is_earlier(scheduler, scheduler->heap[child + 1], scheduler->heap[child])) {
      child++;
    }
    if (child >= scheduler->heap_size || !is_earlier(scheduler, scheduler->heap[child], rank)) {
      break;
    }
    put_at(scheduler, scheduler->heap[child], at);
    at = child;
  }
  put_at(scheduler, rank, at);
}

/* Lets a rank decide at this time or when it is free, unless it decides earlier anyway. */
static void wake(struct weft_list_scheduler *scheduler, uint32_t rank, int64_t time) {
  const int64_t free_at = scheduler->times->clock[rank];
  time = time > free_at ? time : free_at;
  if (time < scheduler->when[rank]) {
    scheduler->when[rank] = time;
    sift_up(
        scheduler, rank,
        scheduler->heap_at[rank] < UINT32_MAX ? scheduler->heap_at[rank] : scheduler->heap_size++);
  }
}

static uint32_t take_first(struct weft_list_scheduler *scheduler) {
  const uint32_t rank = scheduler->heap[0];
  const uint32_t last = scheduler->heap[--scheduler->heap_size];
  if (scheduler->heap_size > 0) {
    sift_down(scheduler, last, 0);
  }
  scheduler->heap_at[rank] = UINT32_MAX;
  scheduler->when[rank] = INT64_MAX;
  return rank;
}

static void start(struct weft_list_scheduler *scheduler) {
  const struct weft_chain *problem = scheduler->problem;
  struct weft_chain_times *times = scheduler->times;
  memset(times->arrived, 0, 2 * (size_t)problem->stage_count * sizeof *times->arrived);
  memset(times->taken, 0, (size_t)problem->stage_count * WEFT_KINDS * sizeof *times->taken);
  scheduler->heap_size = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    times->position[r] = 0;
    times->clock[r] = 0;
    times->first[r] = -1;
    scheduler->rest[r] = scheduler->work[r];
    scheduler->held[r] = 0;
    scheduler->held_for_w[r] = 0;
    scheduler->when[r] = INT64_MAX;
    scheduler->heap_at[r] = UINT32_MAX;
  }
  wake(scheduler, problem->stages[0].rank, 0);
}

/* ---- A decision ---- */

enum { NO_OP = UINT32_MAX };

/* The decision of a rank: what it knows, and the candidates found so far. */
struct decision {
  const struct weft_chain *problem;
  const struct weft_op_link *links; /* of its ops */
  const uint32_t *taken;
  const int64_t *targets;
  const uint32_t *stages; /* by local stage */
  const uint32_t *in_flight;
  uint32_t turned; /* microbatches that have reached the last stage */
  int64_t now;
  int64_t held, held_for_w, limit;
  int64_t returning; /* part of `held` that belongs to those; -1: not computed yet */
  uint32_t ready;    /* the ready forward or backward with the smallest target */
  int64_t ready_target;
  bool ready_needs_w; /* to free memory for it */
  uint32_t w;         /* the W with the smallest target */
  int64_t w_target;
  int64_t first_target; /* the smallest of all that are left, arrived or not */
  int64_t next;         /* next known arrival */
};

static struct decision begin_decision(const struct weft_list_scheduler *scheduler, uint32_t rank,
                                      int64_t now) {
  const struct weft_chain *problem = scheduler->problem;
  const size_t row = (size_t)rank * problem->stages_per_rank * WEFT_KINDS;
  return (struct decision){.problem = problem,
                           .links = scheduler->times->links + row,
                           .taken = scheduler->times->taken + row,
                           .targets = scheduler->targets + row * problem->microbatch_count,
                           .stages = problem->stage_of + (size_t)rank * problem->stages_per_rank,
                           .in_flight = scheduler->in_flight,
                           .turned = *scheduler->turned,
                           .now = now,
                           .held = scheduler->held[rank],
                           .held_for_w = scheduler->held_for_w[rank],
                           .limit = scheduler->limit[rank],
                           .returning = -1,
                           .ready = NO_OP,
                           .ready_target = INT64_MAX,
                           .w = NO_OP,
                           .w_target = INT64_MAX,
                           .first_target = INT64_MAX,
                           .next = INT64_MAX};
}

static const struct weft_chain_stage *stage_at(const struct decision *decision,
                                               uint32_t local_stage) {
  return &decision->problem->stages[decision->stages[local_stage]];
}

static int64_t target_of(const struct decision *decision, uint32_t op) {
  return decision->targets[(size_t)op * decision->problem->microbatch_count + decision->taken[op]];
}

/* Arrival of the next input of a forward or backward; INT64_MAX: unknown. */
static int64_t input_time(const struct decision *decision, uint32_t op) {
  const struct weft_op_link *link = &decision->links[op];
  const uint32_t microbatch = decision->taken[op];
  if (link->waits_for != NULL) {
    return microbatch < *link->arrived ? link->waits_for[microbatch] : INT64_MAX;
  }
  /* The first forward waits for nothing, the last stage's backward for its own forward. */
  const uint32_t forward = op - op % WEFT_KINDS + WEFT_KIND_F;
  return op == forward || microbatch < decision->taken[forward] ? 0 : INT64_MAX;
}

/* ---- Memory ---- */

static int64_t returning(struct decision *decision) {
  if (decision->returning < 0) {
    const enum weft_plan_op_kind back = weft_chain_backward(decision->problem);
    decision->returning = 0;
    for (uint32_t k = 0; k < decision->problem->stages_per_rank; k++) {
      decision->returning += (int64_t)(decision->turned - decision->taken[k * WEFT_KINDS + back]) *
                             stage_at(decision, k)->held;
    }
  }
  return decision->returning;
}

/* Memory to take a microbatch through the rank's later stages, except for those where one is in
 * flight, whose memory it can inherit. */
static int64_t reserve_after(const struct decision *decision, uint32_t local_stage) {
  int64_t sum = 0;
  for (uint32_t k = local_stage + 1; k < decision->problem->stages_per_rank; k++) {
    if (decision->taken[k * WEFT_KINDS + WEFT_KIND_F] == decision->turned) {
      sum += stage_at(decision, k)->held;
    }
  }
  return sum;
}

/* Whether a forward fits into the memory, if necessary after all pending W. */
static bool has_room(struct decision *decision, uint32_t local_stage) {
  const uint32_t *taken = decision->taken + (size_t)local_stage * WEFT_KINDS;
  if (taken[WEFT_KIND_F] - taken[weft_chain_backward(decision->problem)] >=
      decision->in_flight[decision->stages[local_stage]]) {
    return false;
  }
  const int64_t held =
      decision->held - decision->held_for_w + stage_at(decision, local_stage)->held;
  return held <= decision->limit &&
         held - returning(decision) + reserve_after(decision, local_stage) <= decision->limit;
}

static void consider_w(struct decision *decision, uint32_t local_stage) {
  const uint32_t w = local_stage * WEFT_KINDS + WEFT_KIND_W;
  if (decision->taken[w] < decision->taken[local_stage * WEFT_KINDS + WEFT_KIND_I] &&
      target_of(decision, w) < decision->w_target) {
    decision->w = w;
    decision->w_target = target_of(decision, w);
  }
}

static void consider(struct decision *decision, uint32_t op) {
  const uint32_t local_stage = op / WEFT_KINDS;
  const bool forward = op % WEFT_KINDS == WEFT_KIND_F;
  if (decision->taken[op] == decision->problem->microbatch_count ||
      (forward && !has_room(decision, local_stage))) {
    return;
  }
  const int64_t at = input_time(decision, op);
  const int64_t target = target_of(decision, op);
  if (target < decision->first_target) {
    decision->first_target = target;
  }
  if (at > decision->now) {
    decision->next = at < decision->next ? at : decision->next;
  } else if (target < decision->ready_target) {
    decision->ready = op;
    decision->ready_target = target;
    decision->ready_needs_w =
        forward && decision->held + stage_at(decision, local_stage)->held > decision->limit;
  }
}

static void look(struct decision *decision) {
  const enum weft_plan_op_kind back = weft_chain_backward(decision->problem);
  for (uint32_t k = 0; k < decision->problem->stages_per_rank; k++) {
    consider(decision, k * WEFT_KINDS + WEFT_KIND_F);
    consider(decision, k * WEFT_KINDS + back);
    if (back == WEFT_KIND_I) {
      consider_w(decision, k);
    }
  }
}

static bool w_fits(const struct decision *decision, const struct weft_target_rule *rule) {
  const double in_the_way = (1 - rule->fill) * (double)decision->links[decision->w].time;
  return decision->next == INT64_MAX || in_the_way <= (double)(decision->next - decision->now);
}

/* The op to run now, or NO_OP. */
static uint32_t decide(struct decision *decision, const struct weft_target_rule *rule) {
  look(decision);
  /* Only growth by I can exceed the limit: the next I may need that memory. */
  if (decision->w != NO_OP &&
      (decision->w_target < decision->first_target || decision->held > decision->limit)) {
    return decision->w;
  }
  if (decision->ready == NO_OP || decision->ready_target - decision->first_target > rule->lead) {
    return decision->w != NO_OP && w_fits(decision, rule) ? decision->w : NO_OP;
  }
  return decision->ready_needs_w ? decision->w : decision->ready;
}

/* ---- The run ---- */

static void change_memory(struct weft_list_scheduler *scheduler, uint32_t rank, uint32_t op) {
  const struct weft_chain *problem = scheduler->problem;
  const struct weft_chain_stage *stage =
      &problem->stages[problem->stage_of[rank * problem->stages_per_rank + op / WEFT_KINDS]];
  const enum weft_plan_op_kind kind = op % WEFT_KINDS;
  scheduler->held[rank] += weft_chain_change(stage, kind);
  assert(scheduler->held[rank] >= 0);
  if (kind == WEFT_KIND_I) {
    scheduler->held_for_w[rank] += stage->held_after;
  } else if (kind == WEFT_KIND_W) {
    scheduler->held_for_w[rank] -= stage->held_after;
  }
}

static void run_op(struct weft_list_scheduler *scheduler, uint32_t rank, uint32_t op, int64_t now,
                   struct weft_chain_order *order) {
  const struct weft_chain *problem = scheduler->problem;
  struct weft_chain_times *times = scheduler->times;
  const size_t row = (size_t)rank * problem->stages_per_rank * WEFT_KINDS + op;
  const struct weft_op_link *link = &times->links[row];
  const uint32_t microbatch = times->taken[row]++;
  weft_chain_order_sequence(problem, order, rank)[times->position[rank]++] = (uint8_t)op;
  change_memory(scheduler, rank, op);
  times->first[rank] = times->first[rank] < 0 ? now : times->first[rank];
  times->clock[rank] = now + link->time;
  scheduler->rest[rank] -= link->time;
  if (link->makes != NULL) {
    link->makes[microbatch] = weft_op_link_arrival(link, microbatch, now + link->time);
    *link->made = microbatch + 1;
    if (link->crosses) {
      wake(scheduler, link->wakes, link->makes[microbatch]);
    }
  }
}

/* A lower bound on the objective: the rank never waits again. */
static int64_t least_objective(const struct weft_list_scheduler *scheduler, uint32_t rank) {
  const bool spans = scheduler->problem->objective == WEFT_OBJECTIVE_SPAN;
  return scheduler->times->clock[rank] + scheduler->rest[rank] -
         (spans ? scheduler->times->first[rank] : 0);
}

/* Decisions between two looks at the clock, for problems of millions of ops. */
enum { POLL_INTERVAL = 1 << 14 };

int64_t weft_list_scheduler_run(struct weft_list_scheduler *scheduler,
                                const struct weft_target_rule *rule, int64_t cutoff,
                                struct weft_chain_order *order) {
  assert(rule != NULL && rule->fill >= 0 && rule->fill <= 1 && order != NULL);
  start(scheduler);
  for (uint64_t n = 1; scheduler->heap_size > 0; n++) {
    if (n % POLL_INTERVAL == 0 && !scheduler->is_patient &&
        weft_search_control_poll(scheduler->problem->control)) {
      return WEFT_NEVER;
    }
    const int64_t now = scheduler->when[scheduler->heap[0]];
    const uint32_t rank = take_first(scheduler);
    struct decision decision = begin_decision(scheduler, rank, now);
    const uint32_t op = decide(&decision, rule);
    if (op != NO_OP) {
      run_op(scheduler, rank, op, now, order);
      if (least_objective(scheduler, rank) > cutoff) {
        return WEFT_NEVER;
      }
    }
    const int64_t next = op != NO_OP ? scheduler->times->clock[rank] : decision.next;
    if (next < INT64_MAX) {
      wake(scheduler, rank, next);
    }
  }
  return weft_chain_times_summarise(scheduler->times);
}
