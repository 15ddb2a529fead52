/* List scheduling by targets. Ranks decide in order of time. When an action starts, the arrival of
 * its output is known, and its receiver is woken then; so a decision looks at the ops of one rank
 * only, and no rank decides without cause. */
#include "plan/construct/list_scheduler.h"

#include <assert.h>
#include <string.h>

static void set_facts(struct weft_list_scheduler *scheduler) {
  const struct weft_problem *problem = scheduler->problem;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_problem_stage *stage = &problem->stages[s];
    const int64_t back = problem->may_split ? stage->i + stage->w : stage->b;
    scheduler->in_flight[s] = UINT32_MAX;
    scheduler->work[stage->rank] += (stage->f + back) * problem->microbatch_count;
    if (problem->may_split) {
      scheduler->limit[stage->rank] =
          weft_min(scheduler->limit[stage->rank], stage->held - stage->held_after);
    }
  }
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    scheduler->limit[r] += weft_problem_limit_at_end(problem, r);
    scheduler->period = weft_max(scheduler->period, scheduler->work[r] / problem->microbatch_count);
  }
}

enum weft_status weft_list_scheduler_init(struct weft_list_scheduler *scheduler,
                                          const struct weft_problem *problem,
                                          struct weft_plan_clock *clock, struct weft_arena *arena,
                                          struct weft_error *error) {
  assert(scheduler != NULL && clock->done != NULL && problem->stages_per_rank > 0);
  const size_t ranks = problem->rank_count, stages = problem->stage_count;
  const size_t targets =
      (size_t)problem->stage_count * WEFT_ORDER_KINDS * problem->microbatch_count;
  *scheduler = (struct weft_list_scheduler){
      .problem = problem,
      .clock = clock,
      .targets = weft_arena_allocate(arena, targets, sizeof(int64_t)),
      .in_flight = weft_arena_allocate(arena, stages, sizeof(uint32_t)),
      .arrives = weft_arena_allocate(arena, stages * WEFT_ORDER_KINDS, sizeof(int64_t)),
      .held = weft_arena_allocate(arena, ranks, sizeof(int64_t)),
      .held_for_w = weft_arena_allocate(arena, ranks, sizeof(int64_t)),
      .work = weft_arena_allocate(arena, ranks, sizeof(int64_t)),
      .rest = weft_arena_allocate(arena, ranks, sizeof(int64_t)),
      .limit = weft_arena_allocate(arena, ranks, sizeof(int64_t))};
  weft_rank_queue_init(&scheduler->queue, problem->rank_count, arena);
  WEFT_TRY(weft_arena_status(arena, error));
  set_facts(scheduler);
  return WEFT_OK;
}

/* Lets a rank decide at this time or when it is free, unless it decides earlier anyway. */
static void wake(struct weft_list_scheduler *scheduler, uint32_t rank, int64_t time) {
  time = weft_max(time, scheduler->clock->time[rank]);
  if (time < scheduler->queue.when[rank]) {
    weft_rank_queue_set(&scheduler->queue, rank, time);
  }
}

static void start(struct weft_list_scheduler *scheduler, struct weft_order *order) {
  const struct weft_problem *problem = scheduler->problem;
  weft_plan_clock_reset(problem, scheduler->clock);
  memset(order->whole, !problem->may_split,
         (size_t)problem->stage_count * problem->microbatch_count);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    scheduler->rest[r] = scheduler->work[r];
    scheduler->held[r] = 0;
    scheduler->held_for_w[r] = 0;
  }
  for (uint32_t op = 0; op < problem->stage_count * WEFT_ORDER_KINDS; op++) {
    scheduler->arrives[op] = op == WEFT_KIND_F ? 0 : WEFT_NEVER;
  }
  for (uint32_t r = 0; r < scheduler->queue.leaves; r++) {
    scheduler->queue.when[r] = WEFT_NEVER;
  }
  weft_rank_queue_play(&scheduler->queue);
  wake(scheduler, problem->stages[0].rank, 0);
}

/* ---- A decision ---- */

enum { NO_OP = UINT32_MAX };

/* The decision of a rank: what it knows, and the candidates found so far. */
struct decision {
  const struct weft_list_scheduler *scheduler;
  const struct weft_problem *problem;
  const uint32_t *done; /* [op] */
  const uint32_t *stages;
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
  const struct weft_problem *problem = scheduler->problem;
  const uint32_t *done = scheduler->clock->done;
  return (struct decision){
      .scheduler = scheduler,
      .problem = problem,
      .done = done,
      .stages = problem->stage_of + problem->first_of[rank],
      .turned = done[(problem->stage_count - 1) * WEFT_ORDER_KINDS + WEFT_KIND_F],
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

static int64_t target_of(const struct decision *decision, uint32_t op) {
  return decision->scheduler
      ->targets[(size_t)op * decision->problem->microbatch_count + decision->done[op]];
}

/* ---- Memory ---- */

static int64_t returning(struct decision *decision) {
  if (decision->returning < 0) {
    decision->returning = 0;
    for (uint32_t k = 0; k < decision->problem->stages_per_rank; k++) {
      const uint32_t s = decision->stages[k];
      decision->returning +=
          (int64_t)(decision->turned - decision->done[s * WEFT_ORDER_KINDS + WEFT_KIND_I]) *
          decision->problem->stages[s].held;
    }
  }
  return decision->returning;
}

/* Memory to take a microbatch through the rank's later stages, except for those where one is in
 * flight, whose memory it can inherit. */
static int64_t reserve_after(const struct decision *decision, uint32_t local_stage) {
  int64_t sum = 0;
  for (uint32_t k = local_stage + 1; k < decision->problem->stages_per_rank; k++) {
    const uint32_t s = decision->stages[k];
    if (decision->done[s * WEFT_ORDER_KINDS + WEFT_KIND_F] == decision->turned) {
      sum += decision->problem->stages[s].held;
    }
  }
  return sum;
}

/* Whether a forward fits into the memory, if necessary after all pending W. */
static bool has_room(struct decision *decision, uint32_t s) {
  const uint32_t *done = decision->done + (size_t)s * WEFT_ORDER_KINDS;
  const struct weft_problem_stage *stage = &decision->problem->stages[s];
  if (done[WEFT_KIND_F] - done[WEFT_KIND_I] >= decision->scheduler->in_flight[s]) {
    return false;
  }
  const int64_t held = decision->held - decision->held_for_w + stage->held;
  return held <= decision->limit &&
         held - returning(decision) + reserve_after(decision, stage->local_stage) <=
             decision->limit;
}

static void consider_w(struct decision *decision, uint32_t w) {
  if (decision->done[w] < decision->done[w - 1] && target_of(decision, w) < decision->w_target) {
    decision->w = w;
    decision->w_target = target_of(decision, w);
  }
}

static void consider(struct decision *decision, uint32_t s, enum weft_plan_op_kind kind) {
  const uint32_t op = s * WEFT_ORDER_KINDS + (uint32_t)kind;
  const bool forward = kind == WEFT_KIND_F;
  if (decision->done[op] == decision->problem->microbatch_count ||
      (forward && !has_room(decision, s))) {
    return;
  }
  const int64_t at = decision->scheduler->arrives[op];
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
        forward && decision->held + decision->problem->stages[s].held > decision->limit;
  }
}

static void look(struct decision *decision) {
  for (uint32_t k = 0; k < decision->problem->stages_per_rank; k++) {
    const uint32_t s = decision->stages[k];
    consider(decision, s, WEFT_KIND_F);
    consider(decision, s, WEFT_KIND_I);
    if (decision->problem->may_split) {
      consider_w(decision, s * WEFT_ORDER_KINDS + WEFT_KIND_W);
    }
  }
}

static bool w_fits(const struct decision *decision, const struct weft_target_rule *rule) {
  const int64_t time = decision->problem->stages[decision->w / WEFT_ORDER_KINDS].w;
  const double in_the_way = (1 - rule->fill) * (double)time;
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

static void change_memory(struct weft_list_scheduler *scheduler, uint32_t rank,
                          const struct weft_problem_stage *stage, enum weft_plan_op_kind kind) {
  const bool whole = !scheduler->problem->may_split && kind == WEFT_KIND_I;
  scheduler->held[rank] += weft_problem_change(stage, whole ? WEFT_KIND_B : kind);
  assert(scheduler->held[rank] >= 0);
  if (kind == WEFT_KIND_I && !whole) {
    scheduler->held_for_w[rank] += stage->held_after;
  } else if (kind == WEFT_KIND_W) {
    scheduler->held_for_w[rank] -= stage->held_after;
  }
}

/* Tells the neighbour that gets the k-th output of a stage of its arrival. */
static void announce(struct weft_list_scheduler *scheduler, uint32_t s, bool gradient, uint32_t k) {
  const struct weft_problem *problem = scheduler->problem;
  const uint32_t to = gradient ? s - 1 : s + 1;
  if (to >= problem->stage_count) {
    return;
  }
  const size_t channel = 2 * (size_t)(gradient ? to : s) + gradient;
  const uint32_t op = to * WEFT_ORDER_KINDS + (gradient ? WEFT_KIND_I : WEFT_KIND_F);
  const int64_t arrival = scheduler->clock->arrivals[channel * problem->microbatch_count + k];
  if (scheduler->clock->done[op] == k) { /* else it waits for an earlier one */
    scheduler->arrives[op] = arrival;
  }
  if (problem->crosses[channel]) {
    wake(scheduler, problem->stages[to].rank, arrival);
  }
}

static void run_op(struct weft_list_scheduler *scheduler, uint32_t rank, uint32_t op, int64_t now,
                   struct weft_order *order) {
  const struct weft_problem *problem = scheduler->problem;
  struct weft_plan_clock *clock = scheduler->clock;
  const uint32_t s = op / WEFT_ORDER_KINDS, k = clock->done[op];
  const enum weft_plan_op_kind kind = (enum weft_plan_op_kind)(op % WEFT_ORDER_KINDS);
  const struct weft_problem_stage *stage = &problem->stages[s];
  const bool whole = !problem->may_split;
  order->ops[clock->at[rank]++] = op;
  weft_plan_clock_advance(problem, clock, op, whole, now);
  change_memory(scheduler, rank, stage, kind);
  scheduler->rest[rank] -= weft_problem_duration(stage, kind, whole);
  if (kind == WEFT_KIND_W) {
    return;
  }
  scheduler->arrives[op] = weft_plan_clock_arrival(problem, clock, s, kind);
  if (kind == WEFT_KIND_I && whole) {
    order->ops[clock->at[rank]++] = op + 1;
    clock->done[op + 1]++;
  }
  if (kind == WEFT_KIND_F && s + 1 == problem->stage_count && clock->done[op + 1] == k) {
    scheduler->arrives[op + 1] = 0; /* the backward has waited for this forward only */
  }
  announce(scheduler, s, kind == WEFT_KIND_I, k);
}

/* A lower bound on the objective: the rank never waits again. */
static int64_t least_objective(const struct weft_list_scheduler *scheduler, uint32_t rank) {
  const bool spans = scheduler->problem->objective == WEFT_OBJECTIVE_SPAN;
  return scheduler->clock->time[rank] + scheduler->rest[rank] -
         (spans ? scheduler->clock->first[rank] : 0);
}

/* Decisions between two looks at the clock, for problems of millions of ops. */
enum { POLL_INTERVAL = 1 << 14 };

int64_t weft_list_scheduler_run(struct weft_list_scheduler *scheduler,
                                const struct weft_target_rule *rule, int64_t cutoff,
                                struct weft_order *order) {
  assert(rule != NULL && rule->fill >= 0 && rule->fill <= 1 && order != NULL);
  struct weft_rank_queue *queue = &scheduler->queue;
  start(scheduler, order);
  for (uint64_t n = 1; queue->when[queue->soonest[1]] < WEFT_NEVER; n++) {
    if (n % POLL_INTERVAL == 0 && !scheduler->runs_to_end &&
        weft_search_control_poll(scheduler->problem->control)) {
      return WEFT_NEVER;
    }
    const uint32_t rank = queue->soonest[1];
    const int64_t now = queue->when[rank];
    weft_rank_queue_set(queue, rank, WEFT_NEVER);
    struct decision decision = begin_decision(scheduler, rank, now);
    const uint32_t op = decide(&decision, rule);
    if (op != NO_OP) {
      run_op(scheduler, rank, op, now, order);
      if (least_objective(scheduler, rank) > cutoff) {
        return WEFT_NEVER;
      }
    }
    const int64_t next = op != NO_OP ? scheduler->clock->time[rank] : decision.next;
    if (next < INT64_MAX) {
      wake(scheduler, rank, next);
    }
  }
  return weft_plan_clock_summarise(scheduler->problem, scheduler->clock);
}

int64_t weft_list_scheduler_try(struct weft_list_scheduler *scheduler,
                                const struct weft_target_rule *rule, int64_t cutoff,
                                struct weft_incumbent *incumbent) {
  assert(scheduler->problem == incumbent->problem);
  scheduler->runs_to_end = weft_incumbent_is_serial(incumbent);
  const int64_t value = weft_list_scheduler_run(scheduler, rule, cutoff, &incumbent->draft);
  if (value < incumbent->value) {
    weft_incumbent_try(incumbent, &incumbent->draft, NULL);
  }
  return value;
}
