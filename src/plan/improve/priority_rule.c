/* List scheduling: the rank that can start soonest starts. A rank's next op changes only when it
 * has done one, or when a new arrival becomes certain; so after every op at most two ranks decide
 * again. */
#include <assert.h>

#include <weft/support.h>

#include "plan/improve/priority_rule.h"

#define NEVER INT64_MAX

struct weft_priority_scheduler_rank {
  int64_t now;   /* end of its last action */
  int64_t first; /* start of its first; -1 before */
  int64_t idle; /* so far; includes the time before its first op if the objective is the makespan */
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
  uint32_t whole_from, whole_to;
  uint8_t next;      /* its next op */
  uint8_t *sequence; /* where that is appended */
};

enum weft_status weft_priority_scheduler_init(struct weft_priority_scheduler *scheduler,
                                              const struct weft_problem *problem,
                                              struct weft_error *error) {
  assert(scheduler != NULL && problem != NULL);
  const size_t ranks = problem->rank_count, arrivals = ranks * problem->microbatch_count;
  *scheduler = (struct weft_priority_scheduler){.problem = problem,
                                                .arena = {.allocator = problem->allocator},
                                                .leaves = 2,
                                                .back = (uint8_t)weft_problem_backward(problem)};
  while (scheduler->leaves < ranks) {
    scheduler->leaves *= 2;
  }
  /* Arrivals are zero for the first rank's forwards and the last rank's backwards. */
  struct weft_arena *arena = &scheduler->arena;
  if (!WEFT_ALLOCATE(arena, scheduler->ranks, ranks) ||
      !WEFT_ALLOCATE(arena, scheduler->when, scheduler->leaves) ||
      !WEFT_ALLOCATE(arena, scheduler->winner, scheduler->leaves) ||
      !WEFT_ALLOCATE(arena, scheduler->forward, arrivals) ||
      !WEFT_ALLOCATE(arena, scheduler->gradient, arrivals)) {
    weft_priority_scheduler_finish(scheduler);
    return weft_fail_memory(error, arrivals * sizeof *scheduler->forward);
  }
  return WEFT_OK;
}

void weft_priority_scheduler_finish(struct weft_priority_scheduler *scheduler) {
  weft_arena_finish(&scheduler->arena);
}

static inline bool is_whole(const struct weft_priority_scheduler_rank *rank, uint32_t microbatch) {
  return microbatch >= rank->whole_from && microbatch < rank->whole_to;
}

/* The next backward of a rank. */
static inline uint8_t next_back(const struct weft_priority_scheduler_rank *rank, uint8_t back) {
  return is_whole(rank, rank->count[back]) ? WEFT_KIND_B : back;
}

/* ---- One rank's decision ---- */

/* When the inputs of a rank's next forward and backward arrive. */
struct view {
  int64_t forward;   /* NEVER: unknown, or not allowed now */
  int64_t gradient;  /* NEVER: unknown */
  bool memory_short; /* a forward is ready, but does not fit into the memory */
};

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

/* Whether an op that ends at `end` delays one that arrives at `arrives` by at most `delay`. */
static inline bool is_in_time(int64_t end, int64_t arrives, int64_t delay) {
  return arrives == NEVER || end <= arrives + delay;
}

/* Sets the next op of a rank and returns its start; NEVER when it cannot start any yet. */
static inline int64_t decide(struct weft_priority_scheduler_rank *rank, const struct view *view,
                             const struct weft_priority_rule *rule, uint8_t back) {
  const int64_t now = rank->now;
  const bool forward_now = view->forward <= now;
  if (view->gradient <= now) {
    const bool first = forward_now && rank->count[WEFT_KIND_F] - rank->count[back] < rule->eager;
    rank->next = first ? WEFT_KIND_F : next_back(rank, back);
    return now;
  }
  if (forward_now && is_in_time(now + rank->time[WEFT_KIND_F], view->gradient, rule->f_delay)) {
    rank->next = WEFT_KIND_F;
    return now;
  }
  const int64_t forward = view->forward == NEVER ? NEVER : weft_max(view->forward, now);
  const int64_t next = view->gradient < forward ? view->gradient : forward;
  if (back == WEFT_KIND_I && rank->count[WEFT_KIND_W] < rank->count[WEFT_KIND_I]) {
    const int64_t end = now + rank->time[WEFT_KIND_W];
    if (is_in_time(end, next, rule->w_overrun) ||
        (view->memory_short && is_in_time(end, view->gradient, rule->f_delay))) {
      rank->next = WEFT_KIND_W;
      return now;
    }
  }
  rank->next = next == view->gradient ? next_back(rank, back) : WEFT_KIND_F;
  return next;
}

/* ---- All ranks ---- */

/* Updates the start of a rank's next op in the tournament tree. */
static void set_start(struct weft_priority_scheduler *scheduler, uint32_t r, int64_t when) {
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

static inline void decide_again(struct weft_priority_scheduler *scheduler, uint32_t r,
                                const struct weft_priority_rule *rules) {
  struct weft_priority_scheduler_rank *rank = &scheduler->ranks[r];
  const struct view view = look(rank, &rules[r], scheduler->back);
  const int64_t when = rank->left == 0 ? NEVER : decide(rank, &view, &rules[r], scheduler->back);
  if (when != scheduler->when[r]) {
    set_start(scheduler, r, when);
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

/* Of a rank, with so many whole backwards. */
static int64_t work_of(const struct weft_problem *problem, const struct weft_problem_stage *stage,
                       uint32_t whole) {
  const int64_t split = problem->microbatch_count - whole;
  return problem->microbatch_count * stage->time[WEFT_KIND_F] + whole * stage->time[WEFT_KIND_B] +
         split * (stage->time[WEFT_KIND_I] + stage->time[WEFT_KIND_W]);
}

static void start_rank(struct weft_priority_scheduler *scheduler, uint32_t r,
                       const struct weft_priority_rule *rule, int64_t cutoff,
                       struct weft_order *order) {
  const struct weft_problem *problem = scheduler->problem;
  const bool mixed = problem->backward == WEFT_BACKWARD_MIXED;
  const uint32_t from = mixed ? rule->whole_from : 0, to = mixed ? rule->whole_to : 0;
  const uint32_t whole = problem->backward == WEFT_BACKWARD_WHOLE ? problem->microbatch_count
                         : from < to                              ? to - from
                                                                  : 0;
  const struct weft_problem_stage *stage = &problem->stages[problem->stage_of[r]];
  const uint32_t m = problem->microbatch_count;
  /* Reserves memory for its I, in case that holds more. */
  const int64_t held =
      weft_max(stage->held, problem->backward == WEFT_BACKWARD_WHOLE ? 0 : stage->held_after);
  scheduler->ranks[r] = (struct weft_priority_scheduler_rank){
      .first = -1,
      .idle_max = cutoff - work_of(problem, stage, whole),
      .limit = problem->limit[r],
      .change = {held, stage->held_after - held, -stage->held_after, -held},
      .forward = scheduler->forward + (size_t)r * m,
      .gradient = scheduler->gradient + (size_t)r * m,
      .forwards_known = r == 0 ? m : 0,
      .gradients_known = r + 1 == problem->rank_count ? m : 0,
      .left = problem->length,
      .whole_from = from,
      .whole_to = to,
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

/* The arrival of an output at the next (F) or previous rank becomes certain. */
static inline void send(struct weft_priority_scheduler *scheduler, uint32_t r, uint8_t kind,
                        uint32_t microbatch, const struct weft_priority_rule *rules) {
  const struct weft_problem *problem = scheduler->problem;
  const bool forward = kind == WEFT_KIND_F;
  const uint32_t to = forward ? r + 1 : r - 1;
  if (to >= problem->rank_count) {
    return;
  }
  struct weft_priority_scheduler_rank *receiver = &scheduler->ranks[to];
  int64_t *row =
      (forward ? scheduler->forward : scheduler->gradient) + (size_t)to * problem->microbatch_count;
  row[microbatch] = arrival(problem, row, microbatch, scheduler->ranks[r].now);
  *(forward ? &receiver->forwards_known : &receiver->gradients_known) = microbatch + 1;
  if (receiver->count[kind] == microbatch) { /* else it waits for an earlier one */
    decide_again(scheduler, to, rules);
  }
}

/* The W of whole backwards: they take no time, but are numbered with the others. */
static inline void skip_w(struct weft_priority_scheduler_rank *rank) {
  while (rank->count[WEFT_KIND_W] < rank->count[WEFT_KIND_I] &&
         is_whole(rank, rank->count[WEFT_KIND_W])) {
    rank->count[WEFT_KIND_W]++;
    *rank->sequence++ = WEFT_KIND_NO_W;
    rank->left--;
  }
}

/* Runs the next op of a rank, and lets the affected ranks decide again; false when the rank has
 * idled too long for the cutoff. */
static inline bool act(struct weft_priority_scheduler *scheduler, uint32_t r,
                       const struct weft_priority_rule *rules) {
  struct weft_priority_scheduler_rank *rank = &scheduler->ranks[r];
  const uint8_t kind = rank->next;
  const bool is_back = kind == WEFT_KIND_I || kind == WEFT_KIND_B;
  const uint32_t microbatch = rank->count[is_back ? scheduler->back : kind]++;
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
  if (kind != WEFT_KIND_F && rank->whole_from < rank->whole_to) {
    skip_w(rank);
  }
  if (kind != WEFT_KIND_W) {
    send(scheduler, r, is_back ? scheduler->back : kind, microbatch, rules);
  }
  decide_again(scheduler, r, rules);
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

/* Ops between two looks at whether the search is cancelled. */
enum { POLL_INTERVAL = 1 << 14 };

uint64_t weft_priority_schedule(struct weft_priority_scheduler *scheduler,
                                const struct weft_priority_rule *rules, int64_t cutoff,
                                struct weft_order *order, int64_t *value) {
  assert(scheduler->problem->stages_per_rank == 1 && rules != NULL && value != NULL);
  const struct weft_problem *problem = scheduler->problem;
  const uint64_t ops = (uint64_t)problem->rank_count * problem->length;
  *value = WEFT_NEVER;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    start_rank(scheduler, r, &rules[r], cutoff, order);
  }
  clear_tree(scheduler);
  decide_again(scheduler, 0, rules);
  for (uint64_t n = 0, acts = 1; n < ops; acts++) {
    if (acts % POLL_INTERVAL == 0 && problem->control != NULL &&
        weft_search_control_is_cancelled(problem->control)) {
      return n + 1;
    }
    const uint32_t r = soonest(scheduler);
    const uint32_t left = scheduler->ranks[r].left;
    if (scheduler->when[r] == NEVER || !act(scheduler, r, rules)) {
      return n + 1;
    }
    n += left - scheduler->ranks[r].left;
  }
  *value = value_of(scheduler);
  return ops;
}
