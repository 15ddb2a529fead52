/* Orders for graphs by list scheduling: each rank chooses its next op by the rules of its stages,
 * from what has arrived and what is certain to arrive, and the rank that can start soonest starts.
 *
 * A forward may start if, after it, there is still room for one microbatch of every stage of the rank
 * that has none between its F and its backward, once the W of that stage have run. So it cannot get
 * stuck: a stage that the oldest microbatch has yet to pass has no older one in flight, and none that
 * is newer; there is room for it. */
#include <assert.h>
#include <string.h>

#include "plan/construct/rule_scheduler.h"

/* Nanoseconds of a typical core to schedule one op, where each rank has one stage and else, and for
 * each level of the tournament. */
enum { SINGLE_OP_WORK = 28, OP_WORK = 60, LEVEL_WORK = 3 };

/* With a constant `single` there are two copies of all that a step does: a rank with one stage has
 * less to look at. */
#define STEP static inline __attribute__((always_inline))

/* Ops between two looks at whether the search is cancelled. */
enum { POLL_INTERVAL = 1 << 12 };

enum weft_status weft_rule_scheduler_init(struct weft_rule_scheduler *scheduler,
                                          const struct weft_problem *problem,
                                          struct weft_plan_clock *clock, struct weft_arena *arena,
                                          struct weft_error *error) {
  assert(scheduler != NULL && clock->done != NULL && problem != NULL && problem->rank_count > 0);
  const uint32_t p = problem->rank_count, n = problem->stage_count;
  scheduler->clock = clock;
  scheduler->arrives = weft_arena_allocate(arena, n, 2 * sizeof(int64_t));
  scheduler->slot = weft_arena_allocate(arena, n, sizeof(uint32_t));
  (void)weft_bits_init(&scheduler->ready, arena, n);
  (void)weft_bits_init(&scheduler->pending, arena, n);
  weft_rank_queue_init(&scheduler->queue, p, arena);
  scheduler->next = weft_arena_allocate(arena, p, sizeof(uint32_t));
  scheduler->held = weft_arena_allocate(arena, p, sizeof(int64_t));
  scheduler->reserve = weft_arena_allocate(arena, p, sizeof(int64_t));
  scheduler->owed = weft_arena_allocate(arena, n, sizeof(int64_t));
  scheduler->idle = weft_arena_allocate(arena, p, sizeof(int64_t));
  scheduler->idle_max = weft_arena_allocate(arena, p, sizeof(int64_t));
  return weft_arena_status(arena, error);
}

struct builder {
  const struct weft_problem *problem;
  struct weft_rule_scheduler *scheduler;
  const struct weft_list_rule *rules;
  struct weft_order *order;
  bool whole; /* all backwards are */
};

static bool is_whole(const struct builder *b, uint32_t s, uint32_t k) {
  return k >= b->rules[s].whole_from && k < b->rules[s].whole_to;
}

/* The room that a microbatch takes at a stage, at most. */
static int64_t size_of(const struct builder *b, const struct weft_problem_stage *stage) {
  return stage->held > stage->held_after || b->whole ? stage->held : stage->held_after;
}

static const uint32_t *done_of(const struct builder *b, uint32_t stage) {
  return &b->scheduler->clock->done[(size_t)stage * WEFT_ORDER_KINDS];
}

/* ---- What has arrived ---- */

STEP void record_arrival(const struct builder *b, uint32_t s, enum weft_plan_op_kind kind,
                         bool single) {
  struct weft_rule_scheduler *scheduler = b->scheduler;
  int64_t *arrives = &scheduler->arrives[2 * (size_t)s];
  arrives[kind] = weft_plan_clock_arrival(b->problem, scheduler->clock, s, kind);
  if (single) { /* ready and pending are not needed */
    return;
  }
  if (arrives[WEFT_KIND_F] != WEFT_NEVER || arrives[WEFT_KIND_I] != WEFT_NEVER) {
    weft_bits_insert(&scheduler->ready, scheduler->slot[s]);
  } else {
    weft_bits_remove(&scheduler->ready, scheduler->slot[s]);
  }
}

/* Tells the stages that wait for it of the k-th output of a stage. Ranks with news have to decide:
 * they go on the clock's stack; returns how many there are. */
STEP uint32_t announce(const struct builder *b, uint32_t s, enum weft_plan_op_kind kind, uint32_t k,
                       bool single) {
  const struct weft_graph *graph = b->problem->graph;
  const bool gradient = kind == WEFT_KIND_I;
  const struct weft_edge_list *list = gradient ? &graph->gradient_out : &graph->out;
  const struct weft_edge_list *in = gradient ? &graph->gradient_in : &graph->in;
  struct weft_plan_clock *clock = b->scheduler->clock;
  uint32_t count = 0;
  for (uint32_t n = list->begin[s]; n < list->begin[s + 1]; n++) {
    const struct weft_edge *edge = &graph->edges[list->edges[n]];
    const uint32_t to = gradient ? edge->from : edge->to, rank = b->problem->stages[to].rank;
    const size_t channel = 2 * (size_t)list->edges[n] + gradient;
    if (done_of(b, to)[kind] != k) {
      continue; /* it waits for an earlier one */
    }
    int64_t *arrives = &b->scheduler->arrives[2 * (size_t)to + kind];
    if (single && in->begin[to + 1] - in->begin[to] == 1) {
      *arrives = clock->arrivals[channel * b->problem->microbatch_count + k]; /* all it waits for */
    } else {
      record_arrival(b, to, kind, single);
    }
    if (*arrives != WEFT_NEVER && !clock->is_waiting[rank]) {
      clock->is_waiting[rank] = true;
      clock->work[count++] = rank;
    }
  }
  return count;
}

/* ---- The decision of a rank ---- */

/* What a rank can do next. */
struct view {
  int64_t forward, backward; /* when its inputs are there; WEFT_NEVER: not known, or not allowed */
  uint32_t forward_stage, backward_stage, weight_stage; /* UINT32_MAX: no W is pending */
  bool memory_short;                                    /* a forward is ready, but does not fit */
};

/* Room that is kept for a stage without a microbatch between F and backward: for one, less what its
 * W hold, which can run at any time. */
static inline int64_t reserve_of(const struct builder *b, uint32_t s) {
  const struct weft_problem_stage *stage = &b->problem->stages[s];
  const uint32_t *done = done_of(b, s);
  const int64_t left = size_of(b, stage) - b->scheduler->owed[s];
  return stage->trains && done[WEFT_KIND_F] == done[WEFT_KIND_I] && left > 0 ? left : 0;
}

STEP bool has_room(const struct builder *b, uint32_t s, bool single) {
  const struct weft_problem_stage *stage = &b->problem->stages[s];
  const int64_t others = single ? 0 : b->scheduler->reserve[stage->rank] - reserve_of(b, s);
  return !stage->trains || b->scheduler->held[stage->rank] + others + size_of(b, stage) <=
                               b->problem->limit[stage->rank];
}

STEP void scan_stage(const struct builder *b, uint32_t s, int64_t now, bool single,
                     struct view *view) {
  const struct weft_problem *problem = b->problem;
  const struct weft_list_rule *rule = &b->rules[s];
  const uint32_t *done = done_of(b, s);
  int64_t arrives = b->scheduler->arrives[2 * (size_t)s + WEFT_KIND_F];
  if (arrives != WEFT_NEVER) {
    const bool room = has_room(b, s, single);
    const uint32_t most = done[WEFT_KIND_I] == 0 ? rule->warmup : rule->cap;
    arrives = arrives > now ? arrives : now;
    view->memory_short = view->memory_short || (!room && arrives <= now);
    if (room && (!problem->stages[s].trains || done[WEFT_KIND_F] - done[WEFT_KIND_I] < most) &&
        arrives < view->forward) {
      view->forward = arrives;
      view->forward_stage = s;
    }
  }
  arrives = b->scheduler->arrives[2 * (size_t)s + WEFT_KIND_I];
  if (arrives != WEFT_NEVER) {
    arrives = arrives > now ? arrives : now;
    if (arrives < view->backward) {
      view->backward = arrives;
      view->backward_stage = s;
    }
  }
}

STEP struct view view_of(const struct builder *b, uint32_t rank, int64_t now, bool single) {
  const struct weft_problem *problem = b->problem;
  const uint32_t last = problem->stage_count - 1;
  const uint32_t first = problem->stage_count - problem->first_of[rank + 1];
  const uint32_t end = problem->stage_count - problem->first_of[rank];
  struct view view = {.forward = WEFT_NEVER, .backward = WEFT_NEVER, .weight_stage = UINT32_MAX};
  if (single) {
    const uint32_t s = problem->stage_of[problem->first_of[rank]], *done = done_of(b, s);
    scan_stage(b, s, now, true, &view);
    view.weight_stage = done[WEFT_KIND_W] < done[WEFT_KIND_I] ? s : UINT32_MAX;
    return view;
  }
  /* Later stages first: their backwards are nearer to the end. */
  for (uint32_t at = weft_bits_next(&b->scheduler->ready, first); at < end;
       at = weft_bits_next(&b->scheduler->ready, at + 1)) {
    scan_stage(b, problem->stage_of[last - at], now, false, &view);
  }
  const uint32_t weight = weft_bits_next(&b->scheduler->pending, first);
  if (weight < end) {
    view.weight_stage = problem->stage_of[last - weight];
  }
  return view;
}

/* Whether an op that ends at `end` delays one that arrives at `arrives` by at most `delay`. */
static bool is_in_time(int64_t end, int64_t arrives, int64_t delay) {
  return arrives == WEFT_NEVER || end <= arrives + delay;
}

static uint32_t op_of(uint32_t stage, enum weft_plan_op_kind kind) {
  return stage * WEFT_ORDER_KINDS + (uint32_t)kind;
}

/* The next op of a rank; returns its start, WEFT_NEVER when it cannot start any yet. */
STEP int64_t decide(const struct builder *b, uint32_t rank, uint32_t *op, bool single) {
  const struct weft_problem *problem = b->problem;
  const int64_t now = b->scheduler->clock->time[rank];
  const struct view view = view_of(b, rank, now, single);
  const bool forward_now = view.forward <= now;
  const uint32_t f = view.forward_stage, w = view.weight_stage;
  if (view.backward <= now) {
    const bool first =
        forward_now && done_of(b, f)[WEFT_KIND_F] - done_of(b, f)[WEFT_KIND_I] < b->rules[f].eager;
    *op = first ? op_of(f, WEFT_KIND_F) : op_of(view.backward_stage, WEFT_KIND_I);
    return now;
  }
  if (forward_now && is_in_time(now + problem->stages[f].f, view.backward, b->rules[f].f_delay)) {
    *op = op_of(f, WEFT_KIND_F);
    return now;
  }
  const int64_t next = view.backward < view.forward ? view.backward : view.forward;
  if (w != UINT32_MAX) {
    const int64_t end = now + problem->stages[w].w;
    if (is_in_time(end, next, b->rules[w].w_overrun) ||
        (view.memory_short && is_in_time(end, view.backward, b->rules[w].f_delay))) {
      *op = op_of(w, WEFT_KIND_W);
      return now;
    }
  }
  if (next != WEFT_NEVER) {
    *op = next == view.backward ? op_of(view.backward_stage, WEFT_KIND_I) : op_of(f, WEFT_KIND_F);
  }
  return next;
}

STEP void decide_again(const struct builder *b, uint32_t rank, bool single) {
  struct weft_rule_scheduler *scheduler = b->scheduler;
  const int64_t when = decide(b, rank, &scheduler->next[rank], single);
  if (when != scheduler->queue.when[rank]) {
    weft_rank_queue_set(&scheduler->queue, rank, when);
  }
}

/* ---- All ranks ---- */

/* From its F to its backward a microbatch takes as much as it may need after that; all gradients are
 * held from the start. */
static void hold_memory(const struct builder *b, uint32_t s, enum weft_plan_op_kind kind,
                        uint32_t k) {
  const struct weft_problem_stage *stage = &b->problem->stages[s];
  const int64_t size = size_of(b, stage), after = is_whole(b, s, k) ? 0 : stage->held_after;
  const int64_t owed = kind == WEFT_KIND_F ? 0 : kind == WEFT_KIND_I ? after : -after;
  const int64_t active = kind == WEFT_KIND_F ? size : kind == WEFT_KIND_I ? -size : 0;
  if (stage->trains) {
    b->scheduler->held[stage->rank] += active + owed;
    b->scheduler->owed[s] += owed;
  }
}

/* Does an op; returns how many ranks are on the clock's stack then. */
STEP uint32_t put_op(const struct builder *b, uint32_t rank, uint32_t op, int64_t start,
                     bool single) {
  const uint32_t s = op / WEFT_ORDER_KINDS;
  const enum weft_plan_op_kind kind = (enum weft_plan_op_kind)(op % WEFT_ORDER_KINDS);
  struct weft_rule_scheduler *scheduler = b->scheduler;
  struct weft_plan_clock *clock = scheduler->clock;
  const uint32_t *done = done_of(b, s);
  const uint32_t k = done[kind];
  scheduler->reserve[rank] -= single ? 0 : reserve_of(b, s);
  weft_plan_clock_advance(b->problem, clock, op, is_whole(b, s, k), start);
  hold_memory(b, s, kind, k);
  scheduler->reserve[rank] += single ? 0 : reserve_of(b, s);
  b->order->ops[clock->at[rank]++] = op;
  if (kind == WEFT_KIND_W) {
    if (!single && done[WEFT_KIND_W] == done[WEFT_KIND_I]) {
      weft_bits_remove(&scheduler->pending, scheduler->slot[s]);
    }
    return 0;
  }
  record_arrival(b, s, kind, single);
  if (kind == WEFT_KIND_I) {
    if (!single) {
      weft_bits_insert(&scheduler->pending, scheduler->slot[s]);
    }
  } else if (b->problem->stages[s].trains && done[WEFT_KIND_I] == k) {
    record_arrival(b, s, WEFT_KIND_I, single); /* it has waited for this F */
  }
  return announce(b, s, kind, k, single);
}

/* The W of whole backwards: they take no time, but are numbered with the others. */
STEP void skip_weights(const struct builder *b, uint32_t rank, uint32_t s, int64_t start,
                       bool single) {
  const uint32_t *done = done_of(b, s);
  while (done[WEFT_KIND_W] < done[WEFT_KIND_I] && is_whole(b, s, done[WEFT_KIND_W])) {
    (void)put_op(b, rank, s * WEFT_ORDER_KINDS + WEFT_KIND_W, start, single);
  }
}

/* Runs the next op of a rank, and lets those that get its output decide again. False: the rank has
 * idled too long. */
STEP bool run_next(const struct builder *b, uint32_t rank, bool single) {
  const struct weft_problem *problem = b->problem;
  struct weft_rule_scheduler *scheduler = b->scheduler;
  const uint32_t op = scheduler->next[rank];
  const int64_t start = scheduler->queue.when[rank];
  const bool is_first = scheduler->clock->first[rank] < 0;
  scheduler->idle[rank] += is_first && problem->objective == WEFT_OBJECTIVE_SPAN
                               ? 0
                               : start - scheduler->clock->time[rank];
  if (scheduler->idle[rank] > scheduler->idle_max[rank]) {
    return false;
  }
  uint32_t count = put_op(b, rank, op, start, single);
  if (op % WEFT_ORDER_KINDS != WEFT_KIND_F &&
      b->rules[op / WEFT_ORDER_KINDS].whole_from < b->rules[op / WEFT_ORDER_KINDS].whole_to) {
    skip_weights(b, rank, op / WEFT_ORDER_KINDS, start, single);
  }
  while (count > 0) {
    const uint32_t other = scheduler->clock->work[--count];
    scheduler->clock->is_waiting[other] = false;
    if (other != rank) {
      decide_again(b, other, single);
    }
  }
  decide_again(b, rank, single);
  return true;
}

/* Time of all ops of a stage. */
static int64_t work_of(const struct builder *b, uint32_t s) {
  const struct weft_problem_stage *stage = &b->problem->stages[s];
  const struct weft_list_rule *rule = &b->rules[s];
  const int64_t m = b->problem->microbatch_count;
  const int64_t whole = rule->whole_to > rule->whole_from ? rule->whole_to - rule->whole_from : 0;
  return m * stage->f +
         (stage->trains ? whole * stage->b + (m - whole) * (stage->i + stage->w) : 0);
}

/* False: one microbatch of every stage does not fit. */
static bool start(const struct builder *b, int64_t cutoff, bool single) {
  const struct weft_problem *problem = b->problem;
  struct weft_rule_scheduler *scheduler = b->scheduler;
  weft_plan_clock_reset(problem, scheduler->clock);
  memset(b->order->whole, 0, (size_t)problem->stage_count * problem->microbatch_count);
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_list_rule *rule = &b->rules[s];
    if (rule->whole_to > rule->whole_from) {
      memset(b->order->whole + (size_t)s * problem->microbatch_count + rule->whole_from, 1,
             rule->whole_to - rule->whole_from);
    }
  }
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    int64_t work = 0, transient = 0;
    scheduler->held[r] = scheduler->reserve[r] = scheduler->idle[r] = 0;
    for (uint32_t k = problem->first_of[r]; k < problem->first_of[r + 1]; k++) {
      const struct weft_problem_stage *stage = &problem->stages[problem->stage_of[k]];
      const int64_t size = size_of(b, stage);
      scheduler->owed[problem->stage_of[k]] = 0;
      work += work_of(b, problem->stage_of[k]);
      scheduler->held[r] += stage->trains ? stage->gradients : 0;
      scheduler->reserve[r] += stage->trains ? size : 0;
      transient = !stage->trains && size > transient ? size : transient;
    }
    scheduler->reserve[r] += transient; /* frozen stages run one at a time */
    scheduler->idle_max[r] = cutoff == WEFT_NEVER ? WEFT_NEVER : cutoff - work;
    if (scheduler->held[r] + scheduler->reserve[r] > problem->limit[r]) {
      return false;
    }
  }
  weft_bits_clear(&scheduler->ready);
  weft_bits_clear(&scheduler->pending);
  for (uint32_t k = 0; k < problem->stage_count; k++) {
    const uint32_t s = problem->stage_of[k];
    scheduler->slot[s] = problem->stage_count - 1 - k;
    scheduler->arrives[2 * (size_t)s] = scheduler->arrives[2 * (size_t)s + 1] = WEFT_NEVER;
    record_arrival(b, s, WEFT_KIND_F, single);
    if (problem->stages[s].trains) {
      record_arrival(b, s, WEFT_KIND_I, single);
    }
  }
  for (uint32_t r = 0; r < scheduler->queue.leaves; r++) {
    scheduler->queue.when[r] =
        r < problem->rank_count ? decide(b, r, &scheduler->next[r], single) : WEFT_NEVER;
  }
  weft_rank_queue_play(&scheduler->queue);
  return true;
}

/* Exactly one on each rank. */
static bool has_single_stages(const struct weft_problem *problem) {
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    if (problem->first_of[r + 1] != problem->first_of[r] + 1) {
      return false;
    }
  }
  return true;
}

static bool are_all_whole(const struct weft_problem *problem, const struct weft_list_rule *rules) {
  bool all = true;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    assert(rules[s].whole_from >= rules[s].whole_to || problem->may_join);
    all = all && rules[s].whole_from == 0 && rules[s].whole_to == problem->microbatch_count;
  }
  return all;
}

/* Returns the number of steps. */
STEP uint64_t run_all(const struct builder *b, bool single) {
  const struct weft_rank_queue *queue = &b->scheduler->queue;
  for (uint64_t n = 1;; n++) {
    const uint32_t soonest = queue->soonest[1];
    if (queue->when[soonest] == WEFT_NEVER || !run_next(b, soonest, single) ||
        (n % POLL_INTERVAL == 0 && weft_search_control_is_cancelled(b->problem->control))) {
      return n;
    }
  }
}

int64_t weft_rule_schedule(const struct weft_problem *problem,
                           struct weft_rule_scheduler *scheduler,
                           const struct weft_list_rule *rules, int64_t cutoff,
                           struct weft_order *order, uint64_t *work) {
  const bool whole = are_all_whole(problem, rules);
  assert(whole || problem->may_split);
  const struct builder b = {problem, scheduler, rules, order, whole};
  const uint64_t levels = (uint64_t)__builtin_ctz(scheduler->queue.leaves);
  const bool single = has_single_stages(problem);
  if (!start(&b, cutoff, single)) {
    return WEFT_NEVER;
  }
  const uint64_t op_work = (single ? SINGLE_OP_WORK : OP_WORK) + levels * LEVEL_WORK;
  *work += op_work * (single ? run_all(&b, true) : run_all(&b, false));
  return weft_plan_clock_summarise(problem, scheduler->clock);
}

struct weft_list_rule weft_list_rule_classic(const struct weft_problem *problem, uint32_t stage) {
  assert(stage < problem->stage_count);
  const int64_t m = problem->microbatch_count, height = problem->height[stage];
  const int64_t top = problem->height_max + (int64_t)1;
  const uint32_t rank = problem->stages[stage].rank;
  int64_t held = 0;
  for (uint32_t k = problem->first_of[rank]; k < problem->first_of[rank + 1]; k++) {
    held += problem->stages[problem->stage_of[k]].held;
  }
  const int64_t most = held == 0 ? m : weft_max(1, weft_min(m, problem->limit[rank] / held));
  const int64_t slope = (most * (height + 1) + top - 1) / top;
  const uint32_t cap = (uint32_t)weft_min(weft_min(height + 1, m), slope);
  return (struct weft_list_rule){.warmup = cap,
                                 .cap = cap,
                                 .w_overrun = problem->stages[stage].w,
                                 .f_delay = problem->stages[stage].f,
                                 .whole_to = problem->may_split ? 0 : (uint32_t)m};
}
