/* Orders from the time windows that a bound leaves open. Ops are appended one after the other, in
 * order of their starts, and a rank only takes ops after which it can still end in time, as far as
 * its own table tells. Targets start a little above the bound and grow. Rules differ in which
 * candidate of a rank goes first, and how long a rank waits for F or I rather than start a W. */
#include <assert.h>

#include <weft/support.h>

#include "plan/bounds/bound_windows.h"
#include "plan/construct/chain_incumbent.h"

struct rule {
  uint8_t priority[WEFT_KIND_B + 1]; /* smaller goes first */
  bool by_slack;                     /* the op with the least slack instead; W has more */
  uint8_t patience;                  /* wait for F or I, in quarters of the time of W */
};

static const struct rule rules[] = {
    {{1, 0, 2, 0}, false, 0}, {{0, 1, 2, 1}, false, 0}, {{2, 0, 1, 0}, false, 0},
    {{1, 0, 2, 0}, false, 1}, {{1, 0, 2, 0}, false, 2}, {{1, 0, 2, 0}, false, 3},
    {{1, 0, 2, 0}, false, 4}, {{1, 0, 2, 0}, true, 0},  {{1, 0, 2, 0}, true, 1},
    {{1, 0, 2, 0}, true, 2},  {{1, 0, 2, 0}, true, 3},  {{1, 0, 2, 0}, true, 4},
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
  const struct weft_chain *problem;
  struct weft_arena arena;
  struct weft_windows windows;
  struct weft_state_table_kept *kept; /* [rank] */
  struct weft_state_table_at *at;     /* [rank] */
  int64_t *clock, *held;              /* [rank] */
  uint32_t *length;                   /* [rank] ops so far */
  uint32_t *done;                     /* [stage * WEFT_KINDS + kind] */
  int64_t *arrivals;                  /* [direction * stage_count * m + stage * m + k] */
  struct candidate *next;             /* [rank] its next op */
  const struct rule *rule;
  uint64_t built; /* work of the orders built, in states of a table */
};

/* To append an op takes as long as to visit so many states, for each stage of its rank. */
enum { OP_STATES = 6 };

static bool allocate(struct builder *builder) {
  const struct weft_chain *problem = builder->problem;
  const size_t ranks = problem->rank_count, stages = problem->stage_count;
  struct weft_arena *arena = &builder->arena;
  if (!WEFT_ALLOCATE(arena, builder->kept, ranks) || !WEFT_ALLOCATE(arena, builder->at, ranks) ||
      !WEFT_ALLOCATE(arena, builder->clock, ranks) || !WEFT_ALLOCATE(arena, builder->held, ranks) ||
      !WEFT_ALLOCATE(arena, builder->length, ranks) ||
      !WEFT_ALLOCATE(arena, builder->done, stages * WEFT_KINDS) ||
      !WEFT_ALLOCATE(arena, builder->arrivals,
                     WEFT_DIRECTIONS * stages * problem->microbatch_count) ||
      !WEFT_ALLOCATE(arena, builder->next, ranks)) {
    return false;
  }
  for (uint32_t r = 0; r < ranks; r++) {
    if (!weft_state_table_keep_init(&builder->kept[r], &builder->windows.table, r)) {
      return false;
    }
  }
  return true;
}

static void release(struct builder *builder) {
  for (uint32_t r = 0; builder->kept != NULL && r < builder->problem->rank_count; r++) {
    weft_state_table_keep_finish(&builder->kept[r], &builder->windows.table, r);
  }
  weft_arena_finish(&builder->arena);
}

/* ---- Candidates ---- */

static unsigned direction_of(enum weft_plan_op_kind kind) {
  return kind == WEFT_KIND_F ? WEFT_DIRECTION_FORWARD : WEFT_DIRECTION_BACKWARD;
}

static int64_t *arrival_at(const struct builder *builder, uint32_t stage, unsigned direction,
                           uint32_t k) {
  const struct weft_chain *problem = builder->problem;
  return &builder->arrivals[((size_t)direction * problem->stage_count + stage) *
                                problem->microbatch_count +
                            k];
}

/* Arrival of the input of the next op of a kind; -1 when it is unknown, or there is none left. */
static int64_t input_of(const struct builder *builder, uint32_t stage,
                        enum weft_plan_op_kind kind) {
  const struct weft_chain *problem = builder->problem;
  const uint32_t *done = builder->done + (size_t)stage * WEFT_KINDS;
  const uint32_t k = done[kind];
  if (kind == WEFT_KIND_F) {
    return k == problem->microbatch_count ? -1
           : stage == 0                   ? 0
           : k < done[(int)kind - WEFT_KINDS]
               ? *arrival_at(builder, stage, WEFT_DIRECTION_FORWARD, k)
               : -1;
  }
  if (kind == WEFT_KIND_W) {
    return k < done[WEFT_KIND_I] ? 0 : -1;
  }
  if (k == done[WEFT_KIND_F]) {
    return -1;
  }
  return stage + 1 == problem->stage_count ? 0
         : k < done[kind + WEFT_KINDS]     ? *arrival_at(builder, stage, WEFT_DIRECTION_BACKWARD, k)
                                           : -1;
}

static struct candidate look_at(const struct builder *builder, uint32_t s,
                                enum weft_plan_op_kind kind) {
  const struct weft_chain *problem = builder->problem;
  const struct weft_chain_stage *stage = &problem->stages[s];
  const uint32_t rank = stage->rank;
  const struct weft_state_table *table = &builder->windows.table;
  struct candidate one = {.stage = s, .kind = kind, .to = builder->at[rank]};
  const int64_t input = input_of(builder, s, kind);
  const uint32_t k = builder->done[(size_t)s * WEFT_KINDS + kind];
  const int64_t held = builder->held[rank] + weft_chain_gradients(stage, kind, k);
  if (input < 0 || held + weft_max(0, weft_chain_change(stage, kind)) > problem->limit[rank] ||
      !weft_state_table_follow(table, rank, stage->local_stage, kind, &one.to)) {
    return one;
  }
  const int64_t tail = kind == WEFT_KIND_W ? builder->windows.end[rank]
                                           : builder->windows.stages[s].tail[direction_of(kind)][k];
  const int64_t latest = weft_state_table_latest(table, &builder->kept[rank], rank, one.to);
  one.is_valid = true;
  one.start = weft_max(input, builder->clock[rank]);
  one.slack = weft_max(weft_min(latest, tail), INT64_MIN / 4) - one.start - stage->time[kind];
  one.in_time = one.slack >= 0;
  return one;
}

static bool goes_before(const struct builder *builder, const struct candidate *a,
                        const struct candidate *b) {
  const struct rule *rule = builder->rule;
  const int64_t wait = builder->windows.end[builder->problem->stages[a->stage].rank] / 50;
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
  const struct weft_chain *problem = builder->problem;
  const uint32_t v = problem->stages_per_rank;
  struct candidate list[WEFT_LOCAL_STAGES_MAX * WEFT_KINDS];
  uint32_t count = 0;
  bool in_time = false;
  for (uint32_t n = 0; n < v * WEFT_KINDS; n++) {
    list[count] = look_at(builder, problem->stage_of[rank * v + n / WEFT_KINDS], n % WEFT_KINDS);
    /* In a mixed problem too, all backwards are split. */
    const bool is_used = problem->backward == WEFT_BACKWARD_WHOLE
                             ? n % WEFT_KINDS == WEFT_KIND_B || n % WEFT_KINDS == WEFT_KIND_F
                             : n % WEFT_KINDS < WEFT_KIND_B;
    if (is_used && list[count].is_valid) {
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
    const int64_t patience = list[n].kind == WEFT_KIND_W ? 0 : w * builder->rule->patience / 4;
    if (list[n].in_time == in_time && list[n].start <= first + patience &&
        (!best->is_valid || goes_before(builder, &list[n], best))) {
      *best = list[n];
    }
  }
}

/* ---- Building an order ---- */

static void send(const struct builder *builder, uint32_t from, uint32_t to, unsigned direction,
                 uint32_t k, int64_t end) {
  const struct weft_chain *problem = builder->problem;
  int64_t *arrival = arrival_at(builder, to, direction, k);
  if (problem->stages[from].rank != problem->stages[to].rank) {
    const int64_t free_at = k > 0 ? arrival[-1] - problem->latency : 0;
    end = weft_max(end, free_at) + problem->occupancy + problem->latency;
  }
  *arrival = end;
}

/* Appends the next op of a rank; the receiver of its output decides again. */
static void append(struct builder *builder, uint32_t rank, struct weft_chain_order *order) {
  const struct weft_chain *problem = builder->problem;
  const struct candidate one = builder->next[rank];
  const struct weft_chain_stage *stage = &problem->stages[one.stage];
  const uint32_t k = builder->done[(size_t)one.stage * WEFT_KINDS + one.kind]++;
  const int64_t end = one.start + stage->time[one.kind];
  weft_chain_order_sequence(problem, order, rank)[builder->length[rank]++] =
      (uint8_t)(stage->local_stage * WEFT_KINDS + one.kind);
  builder->clock[rank] = end;
  builder->held[rank] += weft_chain_gradients(stage, one.kind, k);
  builder->held[rank] += weft_chain_change(stage, one.kind);
  builder->at[rank] = one.to;
  uint32_t to = one.stage;
  if (one.kind == WEFT_KIND_F && one.stage + 1 < problem->stage_count) {
    to = one.stage + 1;
  } else if (one.kind != WEFT_KIND_F && one.kind != WEFT_KIND_W && one.stage > 0) {
    to = one.stage - 1;
  }
  if (to != one.stage) {
    send(builder, one.stage, to, direction_of(one.kind), k, end);
    if (problem->stages[to].rank != rank) {
      choose(builder, problem->stages[to].rank);
    }
  }
  choose(builder, rank);
}

static void start(struct builder *builder) {
  const struct weft_chain *problem = builder->problem;
  for (uint32_t n = 0; n < problem->stage_count * WEFT_KINDS; n++) {
    builder->done[n] = 0;
  }
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    builder->at[r] = weft_state_table_begin(&builder->windows.table, r);
    builder->clock[r] = builder->held[r] = 0;
    builder->length[r] = 0;
  }
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    choose(builder, r);
  }
}

/* False on a deadlock. */
static bool build(struct builder *builder, struct weft_chain_order *order) {
  const struct weft_chain *problem = builder->problem;
  start(builder);
  for (size_t left = weft_chain_op_count(problem); left > 0; left--) {
    uint32_t rank = 0;
    for (uint32_t r = 1; r < problem->rank_count; r++) {
      rank = builder->next[r].start < builder->next[rank].start ? r : rank;
    }
    if (!builder->next[rank].is_valid) {
      return false;
    }
    append(builder, rank, order);
  }
  return true;
}

/* ---- Targets ---- */

static void build_all(struct builder *builder, struct weft_chain_incumbent *incumbent) {
  const struct weft_chain *problem = incumbent->problem;
  const uint64_t ops = weft_chain_op_count(problem);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    (void)weft_windows_fill(&builder->windows, r);
    builder->built += builder->windows.table.visited;
    if (builder->windows.table.cancelled) {
      return;
    }
    weft_state_table_keep(&builder->kept[r], &builder->windows.table, r);
  }
  for (size_t n = 0; n < WEFT_ARRAY_LENGTH(rules) && !weft_chain_incumbent_is_done(incumbent);
       n++) {
    builder->rule = &rules[n];
    builder->built += ops * problem->stages_per_rank * OP_STATES;
    if (build(builder, &incumbent->draft)) {
      (void)weft_chain_incumbent_offer(incumbent, &incumbent->draft, NULL);
    }
  }
}

static void try_targets(struct builder *builder, struct weft_chain_incumbent *incumbent) {
  const int64_t bound = incumbent->bound;
  for (size_t n = 0; n < WEFT_ARRAY_LENGTH(excesses); n++) {
    const int64_t target = bound + (int64_t)((double)bound * (double)excesses[n] * 1e-4);
    if (target >= incumbent->value) {
      return;
    }
    if (weft_windows_refute(&builder->windows, target)) {
      incumbent->bound = weft_max(incumbent->bound, target + 1);
    } else if (builder->windows.work_left == 0) {
      return;
    } else {
      build_all(builder, incumbent);
    }
  }
}

/* Returns the states visited. */
static uint64_t sharpen(struct weft_chain_incumbent *incumbent, uint64_t work) {
  if (weft_chain_incumbent_is_done(incumbent)) {
    return 0;
  }
  const int64_t value = incumbent->value == WEFT_NEVER ? 2 * incumbent->bound : incumbent->value;
  incumbent->bound = weft_chain_sharpen(incumbent->problem, incumbent->bound, value, &work);
  return work;
}

enum weft_status weft_construct_windows(struct weft_chain_incumbent *incumbent, uint64_t *work,
                                        struct weft_error *error) {
  struct weft_paths paths;
  assert(incumbent != NULL && work != NULL);
  const uint64_t all = *work;
  if (!weft_paths_init(&paths, incumbent->problem)) {
    return weft_fail_memory(error, incumbent->problem->stage_count * sizeof(int64_t));
  }
  *work = sharpen(incumbent, all / 4);
  struct builder builder = {.problem = incumbent->problem,
                            .arena = {.allocator = incumbent->problem->allocator}};
  if (weft_windows_init(&builder.windows, &paths, WEFT_LINE_WEIGHTS, all / 2) &&
      allocate(&builder)) {
    try_targets(&builder, incumbent);
    *work += all / 2 - builder.windows.work_left + builder.built;
    *work += sharpen(incumbent, all / 4); /* the new incumbent may be optimal */
  }
  release(&builder);
  weft_windows_finish(&builder.windows);
  weft_paths_finish(&paths);
  return WEFT_OK;
}
