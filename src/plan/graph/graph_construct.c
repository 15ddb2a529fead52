/* Orders for graphs, by list scheduling: the op that can start first comes next. A stage keeps at
 * most as many microbatches in flight as 1F1B does at its height, some more if the rule says so, and
 * fewer where the rank's memory is short. With room for one microbatch of every stage it cannot get
 * stuck: the oldest microbatch can always go on. */
#include <assert.h>
#include <string.h>

#include "plan/graph/graph_problem.h"

struct builder {
  const struct weft_graph_problem *problem;
  struct weft_graph_clock *clock;
  const struct weft_graph_rule *rule;
  struct weft_graph_order *order;
  uint32_t *cap; /* [stage] microbatches in flight */
};

struct candidate {
  uint32_t op;
  int64_t start; /* WEFT_GRAPH_NEVER: none */
  int rank;      /* of its kind; less is better */
};

static int64_t size_of(const struct weft_graph_stage *stage) {
  return stage->held > stage->held_after ? stage->held : stage->held_after;
}

/* Takes microbatches off the stage with the most until all fit. False: one of each does not. */
static bool set_caps(struct builder *b, uint32_t rank) {
  const struct weft_graph_problem *problem = b->problem;
  int64_t size = 0;
  for (uint32_t k = problem->first_of[rank]; k < problem->first_of[rank + 1]; k++) {
    const uint32_t s = problem->stage_of[k];
    const uint64_t cap = (uint64_t)problem->height[s] + 1 + b->rule->extra;
    b->cap[s] = cap < problem->microbatch_count ? (uint32_t)cap : problem->microbatch_count;
    if (!problem->stages[s].trains) {
      b->cap[s] = problem->microbatch_count;
      size += problem->stages[s].held; /* while it runs */
    } else {
      size += problem->stages[s].gradients + b->cap[s] * size_of(&problem->stages[s]);
    }
  }
  while (size > problem->limit[rank]) {
    uint32_t most = UINT32_MAX;
    for (uint32_t k = problem->first_of[rank]; k < problem->first_of[rank + 1]; k++) {
      const uint32_t s = problem->stage_of[k];
      if (problem->stages[s].trains && size_of(&problem->stages[s]) > 0 && b->cap[s] > 1 &&
          (most == UINT32_MAX || b->cap[s] > b->cap[most])) {
        most = s;
      }
    }
    if (most == UINT32_MAX) {
      return false;
    }
    b->cap[most]--;
    size -= size_of(&problem->stages[most]);
  }
  return true;
}

static bool may_start(const struct builder *b, uint32_t stage, enum weft_graph_kind kind) {
  const struct weft_graph_stage *s = &b->problem->stages[stage];
  const uint32_t *done = &b->clock->done[(size_t)stage * WEFT_GRAPH_KINDS];
  return kind != WEFT_GRAPH_F || !s->trains ||
         done[WEFT_GRAPH_F] - done[WEFT_GRAPH_W] < b->cap[stage];
}

/* Less is better among ops that can start at the same time. */
static int preference(const struct builder *b, enum weft_graph_kind kind) {
  switch (kind) {
    case WEFT_GRAPH_W: return b->rule->eager_weights || b->rule->whole ? 0 : 3;
    case WEFT_GRAPH_D: return b->rule->forward_first ? 2 : 1;
    default: return b->rule->forward_first ? 1 : 2;
  }
}

static void offer(const struct builder *b, uint32_t stage, enum weft_graph_kind kind,
                  struct candidate *best) {
  const struct weft_graph_problem *problem = b->problem;
  int64_t start = weft_graph_arrival(problem, b->clock, stage, kind);
  if (start == WEFT_GRAPH_NEVER || !may_start(b, stage, kind)) {
    return;
  }
  const int64_t now = b->clock->time[problem->stages[stage].rank];
  const int order = preference(b, kind);
  start = start > now ? start : now;
  if (start < best->start || (start == best->start && order < best->rank)) {
    *best = (struct candidate){stage * WEFT_GRAPH_KINDS + (uint32_t)kind, start, order};
  }
}

static struct candidate find(const struct builder *b, uint32_t rank) {
  const struct weft_graph_problem *problem = b->problem;
  struct candidate best = {.start = WEFT_GRAPH_NEVER};
  /* Later stages first: their backwards are nearer to the end. */
  for (uint32_t k = problem->first_of[rank + 1]; k-- > problem->first_of[rank];) {
    const uint32_t s = problem->stage_of[k];
    for (uint32_t kind = 0; kind < WEFT_GRAPH_KINDS; kind++) {
      if (problem->stages[s].trains || kind == WEFT_GRAPH_F) {
        offer(b, s, (enum weft_graph_kind)kind, &best);
      }
    }
  }
  return best;
}

/* The rank whose next op can start first, and that op. */
static bool take_next(struct builder *b) {
  struct candidate best = {.start = WEFT_GRAPH_NEVER};
  uint32_t rank = 0;
  for (uint32_t r = 0; r < b->problem->rank_count; r++) {
    const struct candidate own = find(b, r);
    if (own.start < best.start) {
      best = own;
      rank = r;
    }
  }
  if (best.start == WEFT_GRAPH_NEVER) {
    return false;
  }
  weft_graph_advance(b->problem, b->clock, best.op, b->rule->whole, best.start);
  b->order->ops[b->clock->at[rank]++] = best.op;
  return true;
}

static bool is_complete(const struct builder *b) {
  for (uint32_t r = 0; r < b->problem->rank_count; r++) {
    if (b->clock->at[r] < b->problem->begin[r + 1]) {
      return false;
    }
  }
  return true;
}

bool weft_graph_construct(const struct weft_graph_problem *problem, struct weft_graph_clock *clock,
                          const struct weft_graph_rule *rule, struct weft_graph_order *order) {
  assert(rule->whole ? problem->may_join : problem->may_split);
  struct builder b = {.problem = problem, .clock = clock, .rule = rule, .order = order};
  b.cap = weft_array_allocate_zero(problem->allocator, problem->stage_count, sizeof *b.cap);
  bool fits = b.cap != NULL;
  for (uint32_t r = 0; fits && r < problem->rank_count; r++) {
    fits = set_caps(&b, r);
  }
  if (fits) {
    weft_graph_clock_reset(problem, clock);
    memset(order->whole, rule->whole, (size_t)problem->stage_count * problem->microbatch_count);
    while (take_next(&b)) {
      if (weft_search_control_poll(problem->control)) {
        break; /* the order stays incomplete */
      }
    }
    fits = is_complete(&b);
  }
  weft_array_free(problem->allocator, b.cap, problem->stage_count, sizeof *b.cap);
  return fits;
}

/* One microbatch after the other, and of each a backward as soon as it can be: branches of the graph
 * that share a rank then need not hold their activations at the same time. */
void weft_graph_serial(const struct weft_graph_problem *problem, struct weft_graph_clock *clock,
                       struct weft_graph_order *order) {
  const uint32_t n = problem->stage_count, m = problem->microbatch_count;
  memset(order->whole, !problem->may_split, (size_t)n * m);
  weft_graph_clock_reset(problem, clock);
  for (uint32_t k = 0; k < m; k++) {
    for (uint32_t left = n, next = 0; left > 0;) {
      uint32_t s = n;
      enum weft_graph_kind kind = WEFT_GRAPH_D;
      while (s > 0 && (!problem->stages[s - 1].trains ||
                       weft_graph_arrival(problem, clock, s - 1, kind) == WEFT_GRAPH_NEVER)) {
        s--;
      }
      if (s > 0) {
        s--;
      } else {
        kind = WEFT_GRAPH_F;
        s = next++;
      }
      for (uint32_t op = s * WEFT_GRAPH_KINDS + (uint32_t)kind;;) {
        const uint32_t rank = problem->stages[s].rank;
        weft_graph_advance(problem, clock, op, !problem->may_split, clock->time[rank]);
        order->ops[clock->at[rank]++] = op;
        if (op % WEFT_GRAPH_KINDS != WEFT_GRAPH_D) {
          break;
        }
        op++; /* its W */
      }
      left -= kind == WEFT_GRAPH_D || !problem->stages[s].trains;
    }
  }
}
