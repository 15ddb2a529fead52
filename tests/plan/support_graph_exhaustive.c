/* All orders of a small graph problem, as a walk over what is done: for each set of done ops, every
 * combination of times that no other one dominates. Ops are appended to their rank's sequence and
 * start as early as they can, so every order of every rank is among them. */
#include "support_graph_exhaustive.h"

#include <stdlib.h>
#include <string.h>

/* Of a stage: how many F, backwards and W are done, and which backwards were whole. */
struct stage_state {
  uint8_t forward, backward, weight, whole;
};

enum { CHANNELS_MAX = 2 * GRAPH_EDGES_MAX };

struct state {
  struct stage_state stages[GRAPH_STAGES_MAX];
  /* Rank clocks, minus first starts (larger is better), then arrivals of what has been sent and not
   * been used, and when channels are free. */
  int32_t times[2 * GRAPH_RANKS_MAX + CHANNELS_MAX * (GRAPH_MICROBATCHES_MAX + 1)];
};

struct states {
  struct state *items;
  size_t count, room;
};

struct world {
  const struct weft_search_request *request;
  const struct weft_graph *graph;
  const uint32_t *rank_of;
  uint32_t n, m, p;
};

static int32_t *clock_of(struct state *state, uint32_t rank) { return &state->times[2 * rank]; }
static int32_t *first_of(struct state *state, uint32_t rank) { return &state->times[2 * rank + 1]; }
static int32_t *free_of(struct state *state, uint32_t channel) {
  return &state->times[2 * GRAPH_RANKS_MAX + channel * (GRAPH_MICROBATCHES_MAX + 1)];
}
static int32_t *arrival_of(struct state *state, uint32_t channel, uint32_t k) {
  return free_of(state, channel) + 1 + k;
}

static const struct weft_stage_costs *costs_of(const struct world *world, uint32_t stage) {
  return weft_costs_of(world->request->costs, stage);
}

static int32_t time_of(const struct world *world, uint32_t stage, double time) {
  const double *factors = world->request->rank_factors;
  return (int32_t)(factors != NULL ? time * factors[world->rank_of[stage]] : time);
}

/* ---- Memory ---- */

static double memory_of(const struct world *world, const struct state *state, uint32_t rank) {
  double sum = 0;
  for (uint32_t s = 0; s < world->n; s++) {
    const struct weft_stage_costs *costs = costs_of(world, s);
    const struct stage_state *stage = &state->stages[s];
    if (world->rank_of[s] != rank) {
      continue;
    }
    sum += costs->parameters;
    if (!weft_graph_has_backward(world->graph, s)) {
      continue;
    }
    sum += stage->backward > 0 ? costs->gradients : 0;
    sum += (stage->forward - stage->backward) * costs->activation;
    for (uint32_t k = stage->weight; k < stage->backward; k++) {
      sum += (stage->whole >> k & 1) != 0 ? 0 : costs->activation_after_i;
    }
  }
  return sum;
}

/* Whether what runs now, before it has ended, fits; `extra` is what it takes itself. */
static bool fits(const struct world *world, const struct state *state, uint32_t rank,
                 double extra) {
  return memory_of(world, state, rank) + extra <= world->request->memory_limit * (1 + 1e-9);
}

/* ---- Ops ---- */

static bool find_start(const struct world *world, struct state *state, uint32_t s, bool gradient,
                       uint32_t k, int32_t *start) {
  const struct weft_graph *graph = world->graph;
  *start = *clock_of(state, world->rank_of[s]);
  for (uint32_t e = 0; e < graph->edge_count; e++) {
    const struct weft_edge *edge = &graph->edges[e];
    if ((gradient ? edge->from : edge->to) != s || (gradient && !edge->gradient)) {
      continue;
    }
    const struct stage_state *maker = &state->stages[gradient ? edge->to : edge->from];
    if ((gradient ? maker->backward : maker->forward) <= k) {
      return false;
    }
    const int32_t arrival = *arrival_of(state, 2 * e + gradient, k);
    *start = arrival > *start ? arrival : *start;
  }
  return true;
}

static void send(const struct world *world, struct state *state, uint32_t s, bool gradient,
                 uint32_t k, int32_t end) {
  const struct weft_graph *graph = world->graph;
  const struct weft_hop_costs *hop = &world->request->costs->hop;
  for (uint32_t e = 0; e < graph->edge_count; e++) {
    const struct weft_edge *edge = &graph->edges[e];
    if ((gradient ? edge->to : edge->from) != s || (gradient && !edge->gradient)) {
      continue;
    }
    const uint32_t channel = 2 * e + gradient;
    int32_t arrival = end;
    if (world->rank_of[edge->from] != world->rank_of[edge->to]) {
      const double given = gradient ? edge->gradient_bytes : edge->bytes;
      int32_t *free = free_of(state, channel);
      const int32_t begin = *free > end ? *free : end;
      *free = begin + (int32_t)(given >= 0 ? given : hop->bytes);
      arrival = *free + (int32_t)hop->latency;
    }
    *arrival_of(state, channel, k) = arrival;
  }
}

static void run_op(const struct world *world, struct state *state, uint32_t s, int32_t start,
                   int32_t duration) {
  int32_t *clock = clock_of(state, world->rank_of[s]), *first = first_of(state, world->rank_of[s]);
  if (*first > 0) { /* none yet */
    *first = -start;
  }
  *clock = start + duration;
}

static bool do_forward(const struct world *world, struct state *state, uint32_t s) {
  struct stage_state *stage = &state->stages[s];
  const struct weft_stage_costs *costs = costs_of(world, s);
  const uint32_t k = stage->forward;
  int32_t start;
  if (k == world->m || !find_start(world, state, s, false, k, &start) ||
      !fits(world, state, world->rank_of[s], costs->activation)) {
    return false;
  }
  const int32_t duration = time_of(world, s, costs->f);
  run_op(world, state, s, start, duration);
  stage->forward++;
  send(world, state, s, false, k, start + duration);
  return true;
}

static bool do_backward(const struct world *world, struct state *state, uint32_t s, bool whole) {
  struct stage_state *stage = &state->stages[s];
  const struct weft_stage_costs *costs = costs_of(world, s);
  const uint32_t k = stage->backward, rank = world->rank_of[s];
  int32_t start;
  if (!weft_graph_has_backward(world->graph, s) || k == stage->forward ||
      !find_start(world, state, s, true, k, &start) ||
      !fits(world, state, rank, k == 0 ? costs->gradients : 0)) {
    return false;
  }
  const int32_t duration = time_of(world, s, whole ? costs->b : costs->i);
  run_op(world, state, s, start, duration);
  stage->backward++;
  stage->whole |= (uint8_t)(whole << k);
  send(world, state, s, true, k, start + duration);
  return fits(world, state, rank, 0);
}

/* A W takes no time where the backward was whole. */
static bool do_weight(const struct world *world, struct state *state, uint32_t s) {
  struct stage_state *stage = &state->stages[s];
  if (stage->weight == stage->backward) {
    return false;
  }
  if ((stage->whole >> stage->weight & 1) == 0) {
    run_op(world, state, s, *clock_of(state, world->rank_of[s]),
           time_of(world, s, costs_of(world, s)->w));
  }
  stage->weight++;
  return true;
}

/* ---- The walk ---- */

/* Times of messages that have been used do not count. */
static void forget_used(const struct world *world, struct state *state) {
  for (uint32_t c = 0; c < 2 * world->graph->edge_count; c++) {
    const struct weft_edge *edge = &world->graph->edges[c / 2];
    const struct stage_state *user = &state->stages[c % 2 == 0 ? edge->to : edge->from];
    const uint32_t used = c % 2 == 0 ? user->forward : user->backward;
    for (uint32_t k = 0; k < used; k++) {
      *arrival_of(state, c, k) = 0;
    }
  }
}

static int compare(const void *a, const void *b) {
  const struct state *x = a, *y = b;
  const int stages = memcmp(x->stages, y->stages, sizeof x->stages);
  if (stages != 0) {
    return stages;
  }
  for (size_t k = 0; k < sizeof x->times / sizeof x->times[0]; k++) {
    if (x->times[k] != y->times[k]) {
      return x->times[k] < y->times[k] ? -1 : 1;
    }
  }
  return 0;
}

static bool dominates(const struct state *a, const struct state *b) {
  for (size_t k = 0; k < sizeof a->times / sizeof a->times[0]; k++) {
    if (a->times[k] > b->times[k]) {
      return false;
    }
  }
  return true;
}

/* Keeps, of states that have done the same, those that no other one dominates. */
static void reduce(struct states *states) {
  size_t kept = 0, first = 0;
  if (states->count == 0) {
    return;
  }
  qsort(states->items, states->count, sizeof *states->items, compare);
  for (size_t k = 0; k < states->count; k++) {
    const struct state item = states->items[k];
    if (kept == 0 || memcmp(states->items[first].stages, item.stages, sizeof item.stages) != 0) {
      first = kept;
    }
    bool is_dominated = false;
    for (size_t j = first; j < kept && !is_dominated; j++) {
      is_dominated = dominates(&states->items[j], &item);
    }
    if (!is_dominated) {
      states->items[kept++] = item;
    }
  }
  states->count = kept;
}

static void add_state(struct states *states, const struct state *state) {
  if (states->count == states->room) {
    states->room = 2 * states->room + 64;
    states->items = realloc(states->items, states->room * sizeof *states->items);
  }
  states->items[states->count++] = *state;
}

static void extend(const struct world *world, const struct state *from, struct states *next) {
  const bool may_split = !world->request->whole_backward;
  const bool may_join = !may_split || !world->request->uniform_backward;
  for (uint32_t s = 0; s < world->n; s++) {
    for (unsigned kind = 0; kind < 4; kind++) {
      struct state state = *from;
      const bool done = kind == 0   ? do_forward(world, &state, s)
                        : kind == 1 ? may_split && do_backward(world, &state, s, false)
                        : kind == 2 ? may_join && do_backward(world, &state, s, true)
                                    : do_weight(world, &state, s);
      if (done) {
        forget_used(world, &state);
        add_state(next, &state);
      }
    }
  }
}

static uint32_t count_ops(const struct world *world) {
  uint32_t ops = 0;
  for (uint32_t s = 0; s < world->n; s++) {
    ops += world->m * (weft_graph_has_backward(world->graph, s) ? 3 : 1);
  }
  return ops;
}

static double objective_of(const struct world *world, struct state *state) {
  int32_t last = 0, first = INT32_MAX, span = 0;
  for (uint32_t r = 0; r < world->p; r++) {
    const int32_t begin = -*first_of(state, r), end = *clock_of(state, r);
    if (*first_of(state, r) <= 0) {
      last = end > last ? end : last;
      first = begin < first ? begin : first;
      span = end - begin > span ? end - begin : span;
    }
  }
  return world->request->objective == WEFT_OBJECTIVE_SPAN ? span : last - first;
}

double graph_exhaustive_best(const struct weft_search_request *request, const uint32_t *rank_of,
                             size_t most) {
  const struct world world = {.request = request,
                              .graph = request->graph,
                              .rank_of = rank_of,
                              .n = request->graph->stage_count,
                              .m = request->microbatches,
                              .p = request->ranks};
  struct states now = {0}, next = {0};
  struct state begin;
  memset(&begin, 0, sizeof begin);
  for (uint32_t r = 0; r < world.p; r++) {
    *first_of(&begin, r) = 1; /* not begun */
  }
  add_state(&now, &begin);
  const uint32_t ops = count_ops(&world);
  double best = GRAPH_NONE;
  for (uint32_t k = 0; k < ops && now.count > 0; k++) {
    next.count = 0;
    for (size_t j = 0; j < now.count; j++) {
      extend(&world, &now.items[j], &next);
    }
    if (next.count > most) {
      best = GRAPH_TOO_LARGE;
      now.count = 0;
      break;
    }
    reduce(&next);
    const struct states swapped = now;
    now = next;
    next = swapped;
  }
  for (size_t j = 0; j < now.count; j++) {
    const double value = objective_of(&world, &now.items[j]);
    best = best < 0 || value < best ? value : best;
  }
  free(now.items);
  free(next.items);
  return best;
}
