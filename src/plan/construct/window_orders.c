/* Orders from the time windows that a bound leaves open. Ops are appended one after the other, in
 * order of their starts, and a rank only takes ops after which it can still end in time, as far as
 * its own table tells. Targets start a little above the bound and grow. Rules differ in which
 * candidate of a rank goes first, and how long a rank waits for F or I rather than start a W. */
#include <assert.h>
#include <string.h>

#include <weft/support.h>

#include "plan/bounds/bound_windows.h"
#include "plan/construct/constructors.h"

struct rule {
  uint8_t priority[WEFT_ORDER_KINDS]; /* smaller goes first */
  bool by_slack;                      /* the op with the least slack instead; W has more */
  uint8_t delay;                      /* wait for F or I, in quarters of the time of W */
};

static const struct rule rules[] = {
    {{1, 0, 2}, false, 0}, {{0, 1, 2}, false, 0}, {{2, 0, 1}, false, 0}, {{1, 0, 2}, false, 1},
    {{1, 0, 2}, false, 2}, {{1, 0, 2}, false, 3}, {{1, 0, 2}, false, 4}, {{1, 0, 2}, true, 0},
    {{1, 0, 2}, true, 1},  {{1, 0, 2}, true, 2},  {{1, 0, 2}, true, 3},  {{1, 0, 2}, true, 4},
};

/* Targets: the bound plus so many 1/10,000 of it. */
static const int64_t excesses[] = {0, 5, 10, 20, 40, 60, 100, 150, 200, 300, 500};

/* An op that may be the next of a rank. */
struct candidate {
  bool is_valid;
  bool in_time; /* the rank can still end in time after it */
  uint32_t stage;
  enum weft_plan_op_kind kind;
  int64_t start, slack;
  struct weft_state_table_at to;
};

struct builder {
  const struct weft_problem *problem;
  struct weft_guide guide;
  struct weft_plan_clock *clock;  /* the incumbent's */
  struct weft_state_table_at *at; /* [rank] */
  int64_t *held;                  /* [rank] */
  struct candidate *next;         /* [rank] its next op */
  const struct rule *rule;
  uint64_t built; /* work of the orders built, in states of a table */
};

/* To append an op takes as long as to visit so many states, for each stage of its rank. */
enum { OP_STATES = 6 };

static bool allocate(struct builder *builder, struct weft_arena *arena) {
  const size_t ranks = builder->problem->rank_count;
  return WEFT_ALLOCATE(arena, builder->at, ranks) && WEFT_ALLOCATE(arena, builder->held, ranks) &&
         WEFT_ALLOCATE(arena, builder->next, ranks);
}

/* ---- Candidates ---- */

/* The op as tables and memory have it: in a mixed problem too, all backwards are split. */
static enum weft_plan_op_kind kind_at(const struct weft_problem *problem,
                                      enum weft_plan_op_kind kind) {
  return kind == WEFT_KIND_I && !problem->may_split ? WEFT_KIND_B : kind;
}

static struct candidate candidate_of(const struct builder *builder, uint32_t s,
                                     enum weft_plan_op_kind kind) {
  const struct weft_problem *problem = builder->problem;
  const struct weft_problem_stage *stage = &problem->stages[s];
  const enum weft_plan_op_kind as = kind_at(problem, kind);
  const uint32_t rank = stage->rank, k = builder->clock->done[s * WEFT_ORDER_KINDS + kind];
  struct candidate one = {.stage = s, .kind = kind, .to = builder->at[rank]};
  const int64_t input = weft_plan_clock_arrival(problem, builder->clock, s, kind);
  const int64_t held = builder->held[rank] + weft_problem_gradients(stage, as, k);
  if (input == WEFT_NEVER ||
      held + weft_max(0, weft_problem_change(stage, as)) > problem->limit[rank] ||
      !weft_state_table_follow(&builder->guide.windows.table, rank, stage->local_stage, as,
                               &one.to)) {
    return one;
  }
  const int64_t tail = weft_guide_tail(&builder->guide, s, kind, k);
  const int64_t latest = weft_guide_latest(&builder->guide, rank, one.to);
  one.is_valid = true;
  one.start = weft_max(input, builder->clock->time[rank]);
  one.slack = weft_max(weft_min(latest, tail), INT64_MIN / 4) - one.start - stage->time[as];
  one.in_time = one.slack >= 0;
  return one;
}

static bool goes_before(const struct builder *builder, const struct candidate *a,
                        const struct candidate *b) {
  const struct rule *rule = builder->rule;
  const int64_t wait = builder->guide.windows.end[builder->problem->stages[a->stage].rank] / 50;
  if (rule->by_slack) {
    return a->slack + (a->kind == WEFT_KIND_W ? wait : 0) <
           b->slack + (b->kind == WEFT_KIND_W ? wait : 0);
  }
  return rule->priority[a->kind] != rule->priority[b->kind]
             ? rule->priority[a->kind] < rule->priority[b->kind]
             : a->slack < b->slack;
}

/* Chooses the next op of a rank: of those in time if there are any, else of all. */
static void choose(const struct builder *builder, uint32_t rank) {
  const struct weft_problem *problem = builder->problem;
  const uint32_t v = problem->stages_per_rank;
  struct candidate list[WEFT_LOCAL_STAGES_MAX * WEFT_ORDER_KINDS];
  uint32_t count = 0;
  bool in_time = false;
  assert(v <= WEFT_LOCAL_STAGES_MAX);
  for (uint32_t n = 0; n < v * WEFT_ORDER_KINDS; n++) {
    const enum weft_plan_op_kind kind = (enum weft_plan_op_kind)(n % WEFT_ORDER_KINDS);
    list[count] = candidate_of(builder, problem->stage_of[rank * v + n / WEFT_ORDER_KINDS], kind);
    if (list[count].is_valid) {
      in_time = in_time || list[count].in_time;
      count++;
    }
  }
  int64_t first = INT64_MAX;
  for (uint32_t n = 0; n < count; n++) {
    first = list[n].in_time == in_time ? weft_min(first, list[n].start) : first;
  }
  struct candidate *best = &builder->next[rank];
  *best = (struct candidate){.start = INT64_MAX};
  for (uint32_t n = 0; n < count; n++) {
    const int64_t w = problem->stages[list[n].stage].time[WEFT_KIND_W];
    const int64_t delay = list[n].kind == WEFT_KIND_W ? 0 : w * builder->rule->delay / 4;
    if (list[n].in_time == in_time && list[n].start <= first + delay &&
        (!best->is_valid || goes_before(builder, &list[n], best))) {
      *best = list[n];
    }
  }
}

/* ---- Building an order ---- */

static void append_op(struct builder *builder, uint32_t rank, uint32_t op, int64_t start,
                      struct weft_order *order) {
  order->ops[builder->clock->at[rank]++] = op;
  weft_plan_clock_advance(builder->problem, builder->clock, op, !builder->problem->may_split,
                          start);
}

/* Appends the next op of a rank; the receiver of its output decides again. */
static void append_next(struct builder *builder, uint32_t rank, struct weft_order *order) {
  const struct weft_problem *problem = builder->problem;
  const struct candidate one = builder->next[rank];
  const struct weft_problem_stage *stage = &problem->stages[one.stage];
  assert(one.is_valid && stage->rank == rank);
  const enum weft_plan_op_kind as = kind_at(problem, one.kind);
  const uint32_t op = one.stage * WEFT_ORDER_KINDS + (uint32_t)one.kind;
  const uint32_t k = builder->clock->done[op];
  append_op(builder, rank, op, one.start, order);
  if (as == WEFT_KIND_B) {
    append_op(builder, rank, op + 1, one.start, order);
  }
  builder->held[rank] += weft_problem_gradients(stage, as, k) + weft_problem_change(stage, as);
  builder->at[rank] = one.to;
  const uint32_t to = one.kind == WEFT_KIND_F   ? one.stage + 1
                      : one.kind == WEFT_KIND_I ? one.stage - 1
                                                : one.stage;
  if (to < problem->stage_count && problem->stages[to].rank != rank) {
    choose(builder, problem->stages[to].rank);
  }
  choose(builder, rank);
}

static void start(struct builder *builder) {
  const struct weft_problem *problem = builder->problem;
  weft_plan_clock_reset(problem, builder->clock);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    builder->at[r] = weft_state_table_begin(&builder->guide.windows.table, r);
    builder->held[r] = 0;
  }
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    choose(builder, r);
  }
}

/* False on a deadlock. */
static bool build(struct builder *builder, struct weft_order *order) {
  const struct weft_problem *problem = builder->problem;
  memset(order->whole, !problem->may_split,
         (size_t)problem->stage_count * problem->microbatch_count);
  start(builder);
  for (size_t left = weft_problem_timed_op_count(problem); left > 0; left--) {
    uint32_t rank = 0;
    for (uint32_t r = 1; r < problem->rank_count; r++) {
      rank = builder->next[r].start < builder->next[rank].start ? r : rank;
    }
    if (!builder->next[rank].is_valid) {
      return false;
    }
    append_next(builder, rank, order);
  }
  return true;
}

/* ---- Targets ---- */

static void build_all(struct builder *builder, struct weft_incumbent *incumbent) {
  const struct weft_problem *problem = incumbent->problem;
  const uint64_t ops = weft_problem_timed_op_count(problem);
  for (size_t n = 0; n < WEFT_ARRAY_LENGTH(rules) && !weft_incumbent_is_done(incumbent); n++) {
    builder->rule = &rules[n];
    builder->built += ops * problem->stages_per_rank * OP_STATES;
    if (build(builder, &incumbent->draft)) {
      weft_incumbent_try(incumbent, &incumbent->draft, NULL);
    }
  }
}

static void try_targets(struct builder *builder, struct weft_incumbent *incumbent) {
  const int64_t bound = incumbent->bound;
  for (size_t n = 0; n < WEFT_ARRAY_LENGTH(excesses); n++) {
    const int64_t target = bound + (int64_t)((double)bound * (double)excesses[n] * 1e-4);
    if (target >= incumbent->value) {
      return;
    }
    const enum weft_guide_result result = weft_guide_aim(&builder->guide, target);
    if (result == WEFT_GUIDE_UNKNOWN) {
      return;
    }
    if (result == WEFT_GUIDE_REFUTED) {
      incumbent->bound = weft_max(incumbent->bound, target + 1);
    } else {
      build_all(builder, incumbent);
    }
  }
}

/* Returns the states visited. */
static uint64_t sharpen(struct weft_incumbent *incumbent, uint64_t work) {
  if (weft_incumbent_is_done(incumbent)) {
    return 0;
  }
  const int64_t value = incumbent->value == WEFT_NEVER ? 2 * incumbent->bound : incumbent->value;
  incumbent->bound = weft_chain_sharpen(incumbent->problem, incumbent->bound, value, &work);
  return work;
}

void weft_construct_windows(struct weft_incumbent *incumbent, uint64_t *work) {
  assert(incumbent->problem->stages_per_rank > 0 && work != NULL);
  const struct weft_problem *problem = incumbent->problem;
  const uint64_t all = *work;
  *work = sharpen(incumbent, all / 4);
  WEFT_SCOPED_ARENA arena = {.allocator = problem->allocator};
  struct builder builder = {.problem = problem, .clock = &incumbent->clock};
  if (weft_guide_init(&builder.guide, problem, all / 2, &arena) && allocate(&builder, &arena)) {
    try_targets(&builder, incumbent);
    *work += all / 2 - builder.guide.windows.work_left + builder.guide.filled + builder.built;
    *work += sharpen(incumbent, all / 4); /* the new incumbent may be optimal */
  }
}
