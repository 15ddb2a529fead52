/* List scheduling by targets. Ranks decide in order of time, from a heap. When an action
 * begins, the arrival of its output is known, and the rank that takes it is woken then;
 * so a decision costs the ops of one rank, and nobody is asked twice. */
#include "plan/construct/list_scheduler.h"

#include <string.h>

#include <weft/support.h>

#include "base/memory.h"

/* ---- Room ---- */

static size_t target_count(const struct weft_problem *problem) {
  return (size_t)problem->stage_count * WEFT_KINDS * problem->microbatch_count;
}

static void set_facts(struct weft_list_scheduler *scheduler) {
  const struct weft_problem *problem = scheduler->problem;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_problem_stage *stage = &problem->stages[s];
    const int64_t *time = stage->time;
    const int64_t back =
        problem->whole_backward ? time[WEFT_KIND_B] : time[WEFT_KIND_I] + time[WEFT_KIND_W];
    scheduler->work[stage->rank] += (time[WEFT_KIND_F] + back) * problem->microbatch_count;
    const int64_t growth = problem->whole_backward ? 0 : stage->held_after - stage->held;
    if (growth > scheduler->growth[stage->rank]) {
      scheduler->growth[stage->rank] = growth;
    }
  }
}

static size_t op_row(const struct weft_problem *problem, uint32_t stage,
                     enum weft_plan_op_kind kind) {
  const struct weft_problem_stage *at = &problem->stages[stage];
  return ((size_t)at->rank * problem->stages_per_rank + at->local_stage) * WEFT_KINDS + kind;
}

enum weft_status weft_list_scheduler_init(struct weft_list_scheduler *scheduler,
                                          const struct weft_problem *problem,
                                          struct weft_evaluation *times, struct weft_error *error) {
  const struct weft_allocator *allocator = problem->allocator;
  const size_t ranks = problem->rank_count;
  *scheduler = (struct weft_list_scheduler){.problem = problem, .times = times};
#define ROOM(field, count) \
  ((scheduler->field = weft_array_allocate_zero(allocator, count, sizeof *scheduler->field)))
  if (!ROOM(targets, target_count(problem)) || !ROOM(held, ranks) || !ROOM(held_for_w, ranks) ||
      !ROOM(work, ranks) || !ROOM(rest, ranks) || !ROOM(growth, ranks) || !ROOM(when, ranks) ||
      !ROOM(heap, ranks) || !ROOM(heap_at, ranks)) {
    weft_list_scheduler_finish(scheduler);
    return weft_fail_memory(error, target_count(problem) * sizeof *scheduler->targets);
  }
#undef ROOM
  set_facts(scheduler);
  scheduler->turns = times->taken + op_row(problem, problem->stage_count - 1, WEFT_KIND_F);
  return WEFT_OK;
}

void weft_list_scheduler_finish(struct weft_list_scheduler *scheduler) {
  const struct weft_allocator *allocator = scheduler->problem->allocator;
  const size_t ranks = scheduler->problem->rank_count;
#define FREE(field, count) \
  weft_array_free(allocator, scheduler->field, count, sizeof *scheduler->field)
  FREE(targets, target_count(scheduler->problem));
  FREE(held, ranks);
  FREE(held_for_w, ranks);
  FREE(work, ranks);
  FREE(rest, ranks);
  FREE(growth, ranks);
  FREE(when, ranks);
  FREE(heap, ranks);
  FREE(heap_at, ranks);
#undef FREE
  *scheduler = (struct weft_list_scheduler){.problem = scheduler->problem};
}

/* ---- Ranks by time ---- */

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

/* A rank decides at this time, or when it is free, unless it does so earlier. */
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
  const struct weft_problem *problem = scheduler->problem;
  struct weft_evaluation *times = scheduler->times;
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

/* ---- What a rank could do ---- */

enum { NO_OP = UINT32_MAX };

/* A rank that decides, and what it has seen. */
struct decision {
  const struct weft_problem *problem;
  const struct weft_op_link *links; /* of its ops */
  const uint32_t *taken;
  const int64_t *targets;
  const uint32_t *stages; /* by local_stage */
  uint32_t turned;        /* microbatches whose forward is complete */
  int64_t now;
  int64_t held, held_for_w, limit;
  int64_t returning; /* of what is held, the part of microbatches that have turned; -1: unknown */
  uint32_t ready;    /* the forward or backward with the smallest target */
  int64_t ready_target;
  bool ready_needs_w; /* memory for it */
  uint32_t w;         /* the W with the smallest target */
  int64_t w_target;
  int64_t first_target; /* the smallest one that is left, whether it has arrived or not */
  int64_t next;         /* when something is known to arrive */
};

static struct decision begin_decision(const struct weft_list_scheduler *scheduler, uint32_t rank,
                                      int64_t now) {
  const struct weft_problem *problem = scheduler->problem;
  const size_t row = (size_t)rank * problem->stages_per_rank * WEFT_KINDS;
  return (struct decision){.problem = problem,
                           .links = scheduler->times->links + row,
                           .taken = scheduler->times->taken + row,
                           .targets = scheduler->targets + row * problem->microbatch_count,
                           .stages = problem->stage_of + (size_t)rank * problem->stages_per_rank,
                           .turned = *scheduler->turns,
                           .now = now,
                           .held = scheduler->held[rank],
                           .held_for_w = scheduler->held_for_w[rank],
                           .limit = problem->limit[rank] - scheduler->growth[rank],
                           .returning = -1,
                           .ready = NO_OP,
                           .ready_target = INT64_MAX,
                           .w = NO_OP,
                           .w_target = INT64_MAX,
                           .first_target = INT64_MAX,
                           .next = INT64_MAX};
}

static enum weft_plan_op_kind back_of(const struct weft_problem *problem) {
  return problem->whole_backward ? WEFT_KIND_B : WEFT_KIND_I;
}

static const struct weft_problem_stage *stage_at(const struct decision *decision,
                                                 uint32_t local_stage) {
  return &decision->problem->stages[decision->stages[local_stage]];
}

static int64_t target_of(const struct decision *decision, uint32_t op) {
  return decision->targets[(size_t)op * decision->problem->microbatch_count + decision->taken[op]];
}

/* When the next input of a forward or backward is there; INT64_MAX: not known. */
static int64_t input_time(const struct decision *decision, uint32_t op) {
  const struct weft_op_link *link = &decision->links[op];
  const uint32_t microbatch = decision->taken[op];
  if (link->waits_for != NULL) {
    return microbatch < *link->arrived ? link->waits_for[microbatch] : INT64_MAX;
  }
  /* The first forward waits for nothing, the last stage's backward for its forward. */
  const uint32_t forward = op - op % WEFT_KINDS + WEFT_KIND_F;
  return op == forward || microbatch < decision->taken[forward] ? 0 : INT64_MAX;
}

/* ---- Memory ---- */

static int64_t returning(struct decision *decision) {
  if (decision->returning < 0) {
    const enum weft_plan_op_kind back = back_of(decision->problem);
    decision->returning = 0;
    for (uint32_t k = 0; k < decision->problem->stages_per_rank; k++) {
      decision->returning += (int64_t)(decision->turned - decision->taken[k * WEFT_KINDS + back]) *
                             stage_at(decision, k)->held;
    }
  }
  return decision->returning;
}

/* What takes a microbatch through the stages after this place, where none is that could
 * leave its room to the next. */
static int64_t reserve_after(const struct decision *decision, uint32_t local_stage) {
  int64_t sum = 0;
  for (uint32_t k = local_stage + 1; k < decision->problem->stages_per_rank; k++) {
    if (decision->taken[k * WEFT_KINDS + WEFT_KIND_F] == decision->turned) {
      sum += stage_at(decision, k)->held;
    }
  }
  return sum;
}

/* Whether a forward has room, if only after all W that wait. */
static bool has_room(struct decision *decision, uint32_t local_stage) {
  const int64_t held =
      decision->held - decision->held_for_w + stage_at(decision, local_stage)->held;
  return held <= decision->limit &&
         held - returning(decision) + reserve_after(decision, local_stage) <= decision->limit;
}

/* ---- The decision ---- */

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
  const enum weft_plan_op_kind back = back_of(decision->problem);
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
  /* Above the limit only growth by I can be: the next I may need that room. */
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
  const struct weft_problem *problem = scheduler->problem;
  const struct weft_problem_stage *stage =
      &problem->stages[problem->stage_of[rank * problem->stages_per_rank + op / WEFT_KINDS]];
  switch (op % WEFT_KINDS) {
    case WEFT_KIND_F: scheduler->held[rank] += stage->held; break;
    case WEFT_KIND_I:
      scheduler->held[rank] += stage->held_after - stage->held;
      scheduler->held_for_w[rank] += stage->held_after;
      break;
    case WEFT_KIND_W:
      scheduler->held[rank] -= stage->held_after;
      scheduler->held_for_w[rank] -= stage->held_after;
      break;
    default: scheduler->held[rank] -= stage->held;
  }
}

/* When an output that is ready at `end` arrives: its channel takes one after the other. */
static int64_t arrival(const struct weft_op_link *link, uint32_t microbatch, int64_t end) {
  if (link->occupancy > 0 && microbatch > 0) {
    const int64_t free_at = link->makes[microbatch - 1] - link->latency;
    end = free_at > end ? free_at : end;
  }
  return end + link->occupancy + link->latency;
}

static void run_op(struct weft_list_scheduler *scheduler, uint32_t rank, uint32_t op, int64_t now,
                   struct weft_order *order) {
  const struct weft_problem *problem = scheduler->problem;
  struct weft_evaluation *times = scheduler->times;
  const size_t row = (size_t)rank * problem->stages_per_rank * WEFT_KINDS + op;
  const struct weft_op_link *link = &times->links[row];
  const uint32_t microbatch = times->taken[row]++;
  weft_order_sequence(problem, order, rank)[times->position[rank]++] = (uint8_t)op;
  change_memory(scheduler, rank, op);
  times->first[rank] = times->first[rank] < 0 ? now : times->first[rank];
  times->clock[rank] = now + link->time;
  scheduler->rest[rank] -= link->time;
  if (link->makes != NULL) {
    link->makes[microbatch] = arrival(link, microbatch, now + link->time);
    *link->made = microbatch + 1;
    if (link->crosses) {
      wake(scheduler, link->wakes, link->makes[microbatch]);
    }
  }
}

static int64_t objective(const struct weft_list_scheduler *scheduler) {
  const struct weft_problem *problem = scheduler->problem;
  const struct weft_evaluation *times = scheduler->times;
  int64_t from = INT64_MAX, to = 0, span = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    if (times->position[r] < problem->length) {
      return WEFT_NEVER;
    }
    const int64_t own = times->clock[r] - times->first[r];
    span = own > span ? own : span;
    from = times->first[r] < from ? times->first[r] : from;
    to = times->clock[r] > to ? times->clock[r] : to;
  }
  return problem->objective == WEFT_OBJECTIVE_SPAN ? span : to - from;
}

/* What the rank makes of the objective if it never waits again. */
static int64_t least_objective(const struct weft_list_scheduler *scheduler, uint32_t rank) {
  const bool spans = scheduler->problem->objective == WEFT_OBJECTIVE_SPAN;
  return scheduler->times->clock[rank] + scheduler->rest[rank] -
         (spans ? scheduler->times->first[rank] : 0);
}

int64_t weft_list_scheduler_run(struct weft_list_scheduler *scheduler,
                                const struct weft_target_rule *rule, int64_t cutoff,
                                struct weft_order *order) {
  start(scheduler);
  while (scheduler->heap_size > 0) {
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
  return objective(scheduler);
}
