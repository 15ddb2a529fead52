/* List scheduling: the rank that can begin soonest begins. What a rank would do next
 * changes only when it has done something, or when something new is certain to arrive;
 * so after every action at most two ranks are asked again. */
#include <weft/support.h>

#include "plan/improve/priority_rule.h"

#include "base/memory.h"

#define NEVER INT64_MAX

struct weft_priority_scheduler_rank {
  int64_t now;   /* end of its last action */
  int64_t first; /* start of its first; -1 before */
  int64_t idle;  /* so far; before the first action only where the makespan counts */
  int64_t idle_max;
  int64_t held; /* memory */
  int64_t limit;
  int64_t time[WEFT_KINDS];
  int64_t change[WEFT_KINDS]; /* of memory */
  const int64_t *forward;     /* [microbatch] arrivals, as far as they are known */
  const int64_t *gradient;
  uint32_t forwards_known, gradients_known;
  uint32_t count[WEFT_KINDS]; /* done */
  uint32_t left;              /* ops */
  uint8_t next;               /* op it would do next */
  uint8_t *sequence;          /* where it goes */
};

static size_t arrival_count(const struct weft_problem *problem) {
  return (size_t)problem->rank_count * problem->microbatch_count;
}

enum weft_status weft_priority_scheduler_init(struct weft_priority_scheduler *scheduler,
                                              const struct weft_problem *problem,
                                              struct weft_error *error) {
  const struct weft_allocator *allocator = problem->allocator;
  const size_t ranks = problem->rank_count, arrivals = arrival_count(problem);
  *scheduler = (struct weft_priority_scheduler){.problem = problem};
  scheduler->ranks = weft_array_allocate(allocator, ranks, sizeof *scheduler->ranks);
  for (scheduler->leaves = 2; scheduler->leaves < ranks;) {
    scheduler->leaves *= 2;
  }
  scheduler->when = weft_array_allocate(allocator, scheduler->leaves, sizeof *scheduler->when);
  scheduler->winner = weft_array_allocate(allocator, scheduler->leaves, sizeof *scheduler->winner);
  /* Zeros: what the first rank's forwards and the last one's backwards wait for. */
  scheduler->forward = weft_array_allocate_zero(allocator, arrivals, sizeof *scheduler->forward);
  scheduler->gradient = weft_array_allocate_zero(allocator, arrivals, sizeof *scheduler->gradient);
  scheduler->back = problem->whole_backward ? WEFT_KIND_B : WEFT_KIND_I;
  if (scheduler->ranks == NULL || scheduler->when == NULL || scheduler->winner == NULL ||
      scheduler->forward == NULL || scheduler->gradient == NULL) {
    weft_priority_scheduler_finish(scheduler);
    return weft_fail_memory(error, arrivals * sizeof *scheduler->forward);
  }
  return WEFT_OK;
}

void weft_priority_scheduler_finish(struct weft_priority_scheduler *scheduler) {
  const struct weft_problem *problem = scheduler->problem;
  const size_t ranks = problem->rank_count, arrivals = arrival_count(problem);
  weft_array_free(problem->allocator, scheduler->ranks, ranks, sizeof *scheduler->ranks);
  weft_array_free(problem->allocator, scheduler->when, scheduler->leaves, sizeof *scheduler->when);
  weft_array_free(problem->allocator, scheduler->winner, scheduler->leaves,
                  sizeof *scheduler->winner);
  weft_array_free(problem->allocator, scheduler->forward, arrivals, sizeof *scheduler->forward);
  weft_array_free(problem->allocator, scheduler->gradient, arrivals, sizeof *scheduler->gradient);
  *scheduler = (struct weft_priority_scheduler){.problem = problem};
}

/* ---- One rank's decision ---- */

/* What a rank sees: when its next forward and backward can be had. */
struct view {
  int64_t forward;   /* NEVER: not known, or not allowed now */
  int64_t gradient;  /* NEVER: not known */
  bool memory_short; /* a forward is there, but no room for it */
};

static inline int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

static inline struct view look(const struct weft_priority_scheduler_rank *rank,
                               const struct weft_priority_rule *rule, uint8_t back) {
  const uint32_t f = rank->count[WEFT_KIND_F], b = rank->count[back];
  struct view view = {.forward = NEVER, .gradient = NEVER};
  if (f < rank->forwards_known) {
    const bool room = rank->held + rank->change[WEFT_KIND_F] <= rank->limit;
    const int64_t arrives = rank->forward[f];
    view.memory_short = !room && arrives <= rank->now;
    view.forward = room && f - b < (b == 0 ? rule->warmup : rule->cap) ? arrives : NEVER;
  }
  if (b < f && b < rank->gradients_known) {
    view.gradient = rank->gradient[b];
  }
  return view;
}

/* Whether a op that begins now keeps one that arrives at `arrives` waiting for no longer
 * than `delay`. */
static inline bool is_in_time(int64_t end, int64_t arrives, int64_t delay) {
  return arrives == NEVER || end <= arrives + delay;
}

/* Sets what the rank would do next, and returns when; NEVER when it can do nothing yet. */
static inline int64_t decide(struct weft_priority_scheduler_rank *rank, const struct view *view,
                             const struct weft_priority_rule *rule, uint8_t back) {
  const int64_t now = rank->now;
  const bool forward_now = view->forward <= now;
  if (view->gradient <= now) {
    const bool first = forward_now && rank->count[WEFT_KIND_F] - rank->count[back] < rule->eager;
    rank->next = first ? WEFT_KIND_F : back;
    return now;
  }
  if (forward_now && is_in_time(now + rank->time[WEFT_KIND_F], view->gradient, rule->f_delay)) {
    rank->next = WEFT_KIND_F;
    return now;
  }
  const int64_t forward = view->forward == NEVER ? NEVER : later(view->forward, now);
  const int64_t next = view->gradient < forward ? view->gradient : forward;
  if (back == WEFT_KIND_I && rank->count[WEFT_KIND_W] < rank->count[WEFT_KIND_I]) {
    const int64_t end = now + rank->time[WEFT_KIND_W];
    if (is_in_time(end, next, rule->w_overrun) ||
        (view->memory_short && is_in_time(end, view->gradient, rule->f_delay))) {
      rank->next = WEFT_KIND_W;
      return now;
    }
  }
  rank->next = next == view->gradient ? back : WEFT_KIND_F;
  return next;
}

/* ---- All ranks ---- */

/* Ranks in a tree of pairs, so that who is next costs as many steps as the tree is high. */
static void rank_moves_to(struct weft_priority_scheduler *scheduler, uint32_t r, int64_t when) {
  const uint32_t half = scheduler->leaves / 2;
  scheduler->when[r] = when;
  uint32_t node = half + r / 2, left = r & ~1U, right = r | 1U;
  for (;;) {
    scheduler->winner[node] = scheduler->when[left] <= scheduler->when[right] ? left : right;
    if (node == 1) {
      return;
    }
    left = scheduler->winner[node & ~1U];
    right = scheduler->winner[node | 1U];
    node /= 2;
  }
}

static uint32_t soonest(const struct weft_priority_scheduler *scheduler) {
  return scheduler->winner[1];
}

static inline void ask(struct weft_priority_scheduler *scheduler, uint32_t r,
                       const struct weft_priority_rule *rules) {
  struct weft_priority_scheduler_rank *rank = &scheduler->ranks[r];
  const struct view view = look(rank, &rules[r], scheduler->back);
  const int64_t when = rank->left == 0 ? NEVER : decide(rank, &view, &rules[r], scheduler->back);
  if (when != scheduler->when[r]) {
    rank_moves_to(scheduler, r, when);
  }
}

static void clear_tree(struct weft_priority_scheduler *scheduler) {
  for (uint32_t k = 0; k < scheduler->leaves; k++) {
    scheduler->when[k] = NEVER;
    /* the leftmost leaf below each node */
    uint32_t leaf = k;
    while (k > 0 && leaf < scheduler->leaves) {
      leaf *= 2;
    }
    scheduler->winner[k] = k > 0 ? leaf - scheduler->leaves : 0;
  }
}

static int64_t work_of(const struct weft_priority_scheduler *scheduler,
                       const struct weft_problem_stage *stage) {
  return scheduler->problem->microbatch_count *
         (stage->time[WEFT_KIND_F] + stage->time[scheduler->back] +
          (scheduler->back == WEFT_KIND_I ? stage->time[WEFT_KIND_W] : 0));
}

static void start_rank(struct weft_priority_scheduler *scheduler, uint32_t r, int64_t cutoff,
                       struct weft_order *order) {
  const struct weft_problem *problem = scheduler->problem;
  const struct weft_problem_stage *stage = &problem->stages[problem->stage_of[r]];
  const uint32_t m = problem->microbatch_count;
  /* So that its I has room, should that hold more. */
  const int64_t held = later(stage->held, problem->whole_backward ? 0 : stage->held_after);
  scheduler->ranks[r] = (struct weft_priority_scheduler_rank){
      .first = -1,
      .idle_max = cutoff - work_of(scheduler, stage),
      .limit = problem->limit[r],
      .change = {held, stage->held_after - held, -stage->held_after, -held},
      .forward = scheduler->forward + (size_t)r * m,
      .gradient = scheduler->gradient + (size_t)r * m,
      .forwards_known = r == 0 ? m : 0,
      .gradients_known = r + 1 == problem->rank_count ? m : 0,
      .left = problem->length,
      .sequence = weft_order_sequence(problem, order, r)};
  for (unsigned kind = 0; kind < WEFT_KINDS; kind++) {
    scheduler->ranks[r].time[kind] = stage->time[kind];
  }
}

static int64_t arrival(const struct weft_problem *problem, const int64_t *row, uint32_t microbatch,
                       int64_t end) {
  if (problem->occupancy > 0 && microbatch > 0 && row[microbatch - 1] - problem->latency > end) {
    end = row[microbatch - 1] - problem->latency;
  }
  return end + problem->occupancy + problem->latency;
}

/* Something is certain to arrive at the rank after (F) or before this one. */
static inline void hand_on(struct weft_priority_scheduler *scheduler, uint32_t r, uint8_t kind,
                           uint32_t microbatch, const struct weft_priority_rule *rules) {
  const struct weft_problem *problem = scheduler->problem;
  const bool forward = kind == WEFT_KIND_F;
  const uint32_t to = forward ? r + 1 : r - 1;
  if (to >= problem->rank_count) {
    return;
  }
  struct weft_priority_scheduler_rank *taker = &scheduler->ranks[to];
  int64_t *row =
      (forward ? scheduler->forward : scheduler->gradient) + (size_t)to * problem->microbatch_count;
  row[microbatch] = arrival(problem, row, microbatch, scheduler->ranks[r].now);
  *(forward ? &taker->forwards_known : &taker->gradients_known) = microbatch + 1;
  if (taker->count[kind] == microbatch) { /* else it waits for something else */
    ask(scheduler, to, rules);
  }
}

/* Does what the rank would do next, and asks whom it concerns; false when it has idled too
 * long. */
static inline bool act(struct weft_priority_scheduler *scheduler, uint32_t r,
                       const struct weft_priority_rule *rules) {
  struct weft_priority_scheduler_rank *rank = &scheduler->ranks[r];
  const uint8_t kind = rank->next;
  const uint32_t microbatch = rank->count[kind]++;
  const int64_t when = scheduler->when[r];
  if (rank->first < 0) {
    rank->first = when;
    rank->idle = scheduler->problem->objective == WEFT_OBJECTIVE_SPAN ? 0 : when;
  } else {
    rank->idle += when - rank->now;
  }
  if (rank->idle > rank->idle_max) {
    return false;
  }
  rank->now = when + rank->time[kind];
  *rank->sequence++ = kind;
  rank->left--;
  rank->held += rank->change[kind];
  if (kind != WEFT_KIND_W) {
    hand_on(scheduler, r, kind, microbatch, rules);
  }
  ask(scheduler, r, rules);
  return true;
}

static int64_t value_of(const struct weft_priority_scheduler *scheduler) {
  const struct weft_problem *problem = scheduler->problem;
  int64_t value = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const struct weft_priority_scheduler_rank *rank = &scheduler->ranks[r];
    const int64_t own = rank->now - (problem->objective == WEFT_OBJECTIVE_SPAN ? rank->first : 0);
    value = own > value ? own : value;
  }
  return value;
}

uint64_t weft_priority_schedule(struct weft_priority_scheduler *scheduler,
                                const struct weft_priority_rule *rules, int64_t cutoff,
                                struct weft_order *order, int64_t *value) {
  const struct weft_problem *problem = scheduler->problem;
  const uint64_t ops = (uint64_t)problem->rank_count * problem->length;
  *value = WEFT_NEVER;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    start_rank(scheduler, r, cutoff, order);
  }
  clear_tree(scheduler);
  ask(scheduler, 0, rules);
  for (uint64_t n = 0; n < ops; n++) {
    const uint32_t r = soonest(scheduler);
    if (scheduler->when[r] == NEVER || !act(scheduler, r, rules)) {
      return n + 1;
    }
  }
  *value = value_of(scheduler);
  return ops;
}
