/* Makes a chain of the stages of a graph, and plans it.
 *
 * Its bounds on the makespan hold for the graph: take any order of the graph, and leave out all ops of
 * other stages, all messages over other edges, and what messages take more than the smallest one.
 * Nothing starts later for it, no rank holds more, and what is left is an order of the chain. They
 * do not hold for the span: a rank that may start sooner can have a longer one. */
#include "plan/construct/longest_chain.h"

#include <assert.h>
#include <string.h>

#include <weft/spec.h>

#include "plan/bounds/chain_bound.h"
#include "plan/construct/constructors.h"

struct path {
  const uint32_t *stages; /* [length] */
  const uint32_t *edges;  /* [length - 1] between them */
  uint32_t length;
};

/* Scratch, [stage]. */
struct search {
  int64_t *longest; /* time of the longest path to here, both ways */
  uint32_t *edge;   /* the last one of it, or WEFT_EDGE_NONE */
};

static int64_t time_over(const struct weft_problem *problem, uint32_t edge) {
  return weft_problem_hop(problem, 2 * edge) + weft_problem_hop(problem, 2 * edge + 1);
}

/* The longest path over edges with gradients. */
static uint32_t find_path(const struct weft_problem *problem, const struct search *search,
                          uint32_t *stages, uint32_t *edges) {
  const struct weft_graph *graph = problem->graph;
  uint32_t end = WEFT_EDGE_NONE;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    if (!problem->stages[s].trains) {
      continue;
    }
    int64_t before = 0;
    search->edge[s] = WEFT_EDGE_NONE;
    for (uint32_t n = graph->gradient_out.begin[s]; n < graph->gradient_out.begin[s + 1]; n++) {
      const uint32_t e = graph->gradient_out.edges[n];
      const int64_t time = search->longest[graph->edges[e].from] + time_over(problem, e);
      if (time > before || search->edge[s] == WEFT_EDGE_NONE) {
        before = time;
        search->edge[s] = e;
      }
    }
    search->longest[s] = before + problem->stages[s].f + weft_problem_backward(problem, s);
    if (end == WEFT_EDGE_NONE || search->longest[s] > search->longest[end]) {
      end = s;
    }
  }
  assert(end != WEFT_EDGE_NONE); /* the last stage is a loss */
  uint32_t length = 1, s = end;
  for (; search->edge[s] != WEFT_EDGE_NONE; length++) {
    s = graph->edges[search->edge[s]].from;
  }
  s = end;
  for (uint32_t k = length - 1; k > 0; k--) {
    stages[k] = s;
    edges[k - 1] = search->edge[s];
    s = graph->edges[search->edge[s]].from;
  }
  stages[0] = s;
  return length;
}

/* Numbers the ranks in the order in which the path meets them; returns how many there are. `numbers` is
 * cleared, [rank]: from 1 on. */
static uint32_t number_ranks(const struct weft_problem *problem, const struct path *path,
                             uint32_t *numbers, uint32_t *rank_of) {
  uint32_t ranks = 0;
  for (uint32_t k = 0; k < path->length; k++) {
    uint32_t *number = &numbers[problem->stages[path->stages[k]].rank];
    *number = *number == 0 ? ++ranks : *number;
    rank_of[k] = *number - 1;
  }
  return ranks;
}

static void set_stages(const struct weft_problem *problem, const struct path *path,
                       struct weft_problem *chain) {
  chain->limit_max = 1;
  for (uint32_t n = 0; n < path->length; n++) {
    const struct weft_problem_stage *from = &problem->stages[path->stages[n]];
    struct weft_problem_stage *stage = &chain->stages[n];
    memcpy(stage->time, from->time, sizeof stage->time);
    stage->held = from->held;
    stage->held_after = from->held_after;
    stage->gradients = from->gradients;
    chain->limit[stage->rank] = problem->limit[from->rank];
    chain->limit_max +=
        problem->microbatch_count * (from->held + from->held_after) + from->gradients;
  }
}

static void set_occupancy(const struct weft_problem *problem, const struct path *path,
                          struct weft_problem *chain) {
  int64_t least = INT64_MAX;
  for (uint32_t k = 0; k + 1 < path->length; k++) {
    const int64_t *both = &problem->occupancy[2 * path->edges[k]];
    if (problem->crosses[2 * path->edges[k]]) {
      least = weft_min(least, weft_min(both[0], both[1]));
    }
  }
  for (uint32_t c = 0; c < 2 * chain->graph->edge_count; c++) {
    chain->occupancy[c] = least == INT64_MAX ? 0 : least;
  }
}

/* False: the chain is neither on a loop nor on a V, or memory is out. */
static bool make_problem(const struct weft_problem *problem, const struct path *path,
                         uint32_t ranks, const uint32_t *rank_of, struct weft_problem *chain) {
  *chain = weft_problem_chain_like(problem, chain->arena, ranks, path->length,
                                   problem->microbatch_count);
  if (!weft_problem_make(chain, rank_of)) {
    return false;
  }
  set_stages(problem, path, chain);
  set_occupancy(problem, path, chain);
  weft_problem_look_for_chain(chain);
  for (uint32_t r = 0; r < ranks; r++) {
    if (chain->stages_per_rank == 1) { /* as of any chain: then they need not be counted */
      chain->limit[r] -= chain->stages[r].gradients;
      chain->stages[r].gradients = 0;
    }
    chain->limit[r] = weft_min(chain->limit[r], chain->limit_max);
  }
  return chain->stages_per_rank > 0;
}

enum weft_status weft_longest_chain_init(struct weft_longest_chain *chain,
                                         const struct weft_problem *problem,
                                         struct weft_error *error) {
  assert(chain != NULL && problem->stage_count > 0);
  *chain = (struct weft_longest_chain){.problem = {.arena = {.allocator = problem->allocator}}};
  struct weft_arena *arena = &chain->problem.arena;
  const uint32_t n = problem->stage_count;
  struct search search;
  uint32_t *edges, *numbers, *rank_of;
  bool is_made = false;
  if (problem->stages_per_rank > 0 || problem->objective != WEFT_OBJECTIVE_MAKESPAN) {
    return WEFT_OK;
  }
  if (WEFT_ALLOCATE(arena, chain->stages, n) && WEFT_ALLOCATE(arena, edges, n) &&
      WEFT_ALLOCATE(arena, search.longest, n) && WEFT_ALLOCATE(arena, search.edge, n) &&
      WEFT_ALLOCATE(arena, numbers, problem->rank_count) && WEFT_ALLOCATE(arena, rank_of, n)) {
    const uint32_t length = find_path(problem, &search, chain->stages, edges);
    const struct path path = {chain->stages, edges, length};
    const uint32_t ranks = number_ranks(problem, &path, numbers, rank_of);
    is_made = make_problem(problem, &path, ranks, rank_of, &chain->problem);
    chain->has_all = length == n;
  }
  WEFT_TRY(weft_arena_status(arena, error));
  if (is_made) {
    WEFT_TRY(weft_incumbent_init(&chain->incumbent, &chain->problem,
                                 weft_chain_bound(&chain->problem), error));
    chain->exists = true;
  }
  return WEFT_OK;
}

void weft_longest_chain_finish(struct weft_longest_chain *chain) {
  assert(!chain->exists || chain->stages != NULL);
  if (chain->exists) {
    weft_incumbent_finish(&chain->incumbent);
  }
  weft_problem_finish(&chain->problem);
}

/* ---- Planning it ---- */

enum weft_status weft_longest_chain_improve(struct weft_longest_chain *chain, int64_t value,
                                            const struct weft_worker_task *task,
                                            struct weft_search_control *control,
                                            struct weft_error *error) {
  assert(chain->exists && chain->incumbent.bound <= value);
  struct weft_incumbent *incumbent = &chain->incumbent;
  if (!chain->has_all) {
    if (weft_search_control_spend(control, (double)task->work)) {
      uint64_t states = task->work / WEFT_STATE_WORK;
      incumbent->bound = weft_chain_sharpen(&chain->problem, incumbent->bound, value, &states);
    }
    return WEFT_OK;
  }
  enum weft_status status = WEFT_OK;
  control->is_silent = true;
  if (incumbent->value == WEFT_NEVER) {
    status = weft_construct_first(incumbent, error);
  }
  if (status == WEFT_OK && incumbent->value != WEFT_NEVER) {
    status = weft_improve(incumbent, task, control, error);
  }
  control->is_silent = false;
  return status;
}

bool weft_longest_chain_order(const struct weft_longest_chain *chain,
                              const struct weft_problem *problem, struct weft_order *order) {
  assert(problem != NULL && order->ops != NULL);
  if (!chain->exists || !chain->has_all || chain->incumbent.value == WEFT_NEVER) {
    return false;
  }
  const struct weft_problem *from = &chain->problem;
  const struct weft_order *best = &chain->incumbent.best;
  const size_t m = problem->microbatch_count;
  for (uint32_t s = 0; s < from->stage_count; s++) {
    memcpy(order->whole + chain->stages[s] * m, best->whole + s * m, m);
  }
  for (uint32_t r = 0; r < from->rank_count; r++) {
    const uint32_t rank = problem->stages[chain->stages[from->stage_of[from->first_of[r]]]].rank;
    uint32_t *ops = order->ops + problem->begin[rank];
    for (uint32_t n = from->begin[r]; n < from->begin[r + 1]; n++) {
      *ops++ = chain->stages[best->ops[n] / WEFT_ORDER_KINDS] * WEFT_ORDER_KINDS +
               best->ops[n] % WEFT_ORDER_KINDS;
    }
    assert(ops == order->ops + problem->begin[rank + 1]);
  }
  return true;
}
