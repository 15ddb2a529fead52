/* Small graph problems, against all their orders. */
#include "support_graph_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <weft/support.h>
#include <weft/weft.h>

#include "plan/layout/layout.h"
#include "support_graph_exhaustive.h"

static bool chance(struct weft_random *random, uint32_t percent) {
  return weft_random_below(random, 100) < percent;
}

/* Edges from lower to higher stages; every stage has one. Gradients only where they can be sent. */
static struct weft_graph *random_graph(struct weft_random *random, uint32_t n) {
  struct weft_edge edges[GRAPH_EDGES_MAX];
  uint32_t count = 0;
  for (uint32_t to = 1; to < n; to++) {
    const uint32_t sure = weft_random_below(random, to);
    for (uint32_t from = 0; from < to && count < GRAPH_EDGES_MAX; from++) {
      if (from == sure ? chance(random, 90) : chance(random, 30)) {
        edges[count] = weft_edge_make(from, to);
        edges[count].gradient = chance(random, 85);
        edges[count].bytes = chance(random, 30) ? (double)weft_random_below(random, 4) : -1;
        edges[count].gradient_bytes = edges[count].bytes;
        count++;
      }
    }
  }
  struct weft_graph *graph = NULL;
  return weft_graph_create(NULL, n, edges, count, NULL, &graph, NULL) == WEFT_OK ? graph : NULL;
}

static struct weft_costs *random_costs(struct weft_random *random, uint32_t n) {
  struct weft_costs *costs = NULL;
  struct weft_error error;
  assert_int_equal(weft_costs_create(NULL, n, &costs, &error), WEFT_OK);
  const bool sizes = chance(random, 40), joins = chance(random, 50);
  for (uint32_t s = 0; s < n; s++) {
    struct weft_stage_costs *stage = &costs->stages[s];
    stage->f = weft_random_below(random, 6);
    stage->i = weft_random_below(random, 6);
    stage->w = weft_random_below(random, 6);
    stage->b = stage->i + stage->w;
    if (joins && stage->b > 0) {
      stage->b -= weft_random_below(random, 2);
    }
    stage->activation = 1 + weft_random_below(random, 3);
    stage->activation_after_i = weft_random_below(random, (uint32_t)stage->activation + 1);
    stage->parameters = sizes ? weft_random_below(random, 3) : 0;
    stage->gradients = sizes ? weft_random_below(random, 3) : 0;
  }
  costs->hop.latency = weft_random_below(random, 3);
  costs->hop.bytes = weft_random_below(random, 3);
  costs->hop.bytes_per_unit = 1;
  return costs;
}

/* ---- A case ---- */

struct small_case {
  struct weft_search_request request;
  struct weft_graph *graph;
  struct weft_costs *costs;
  uint32_t rank_of[GRAPH_STAGES_MAX];
  double factors[GRAPH_RANKS_MAX];
};

static void case_finish(struct small_case *small) {
  weft_costs_destroy(small->costs);
  weft_graph_destroy(small->graph);
}

static void case_init(struct small_case *small, struct weft_random *random, uint32_t stages_max) {
  struct weft_search_request *request = &small->request;
  uint32_t n;
  do {
    n = 2 + weft_random_below(random, stages_max - 1);
    small->graph = random_graph(random, n);
  } while (small->graph == NULL);
  *request = weft_search_request_default();
  request->graph = small->graph;
  request->ranks = 1 + weft_random_below(random, 3);
  request->microbatches = 1 + weft_random_below(random, n == 2 ? 3 : 2);
  request->objective = chance(random, 25) ? WEFT_OBJECTIVE_SPAN : WEFT_OBJECTIVE_MAKESPAN;
  request->whole_backward = chance(random, 15);
  request->uniform_backward = chance(random, 20);
  request->effort = 0.01;
  request->threads = 1;
  for (uint32_t s = 0; s < n; s++) {
    small->rank_of[s] = weft_random_below(random, request->ranks);
  }
  request->rank_of = small->rank_of;
  for (uint32_t r = 0; r < GRAPH_RANKS_MAX; r++) { /* a test may change the number of ranks */
    small->factors[r] = 1 + weft_random_below(random, 3);
  }
  request->rank_factors = chance(random, 25) ? small->factors : NULL;
  small->costs = random_costs(random, n);
  request->costs = small->costs;
}

/* All backwards split or all of them whole, or any. */
static double best_of(const struct weft_search_request *request, size_t most) {
  struct weft_search_request whole = *request;
  const double best = graph_exhaustive_best(request, request->rank_of, most);
  if (best == GRAPH_TOO_LARGE || !request->uniform_backward || request->whole_backward) {
    return best;
  }
  whole.whole_backward = true;
  const double other = graph_exhaustive_best(&whole, request->rank_of, most);
  return other == GRAPH_TOO_LARGE || best == GRAPH_NONE ? other
         : other == GRAPH_NONE || best < other          ? best
                                                        : other;
}

/* ---- Times ---- */

static void compare(const struct weft_search_request *request, struct graph_tally *tally) {
  struct weft_search_answer *answer = NULL;
  struct weft_error error;
  const enum weft_status status = weft_search(NULL, request, &answer, &error);
  const double best = best_of(request, 400000);
  if (best == GRAPH_TOO_LARGE) {
    tally->too_large++;
    weft_search_answer_destroy(answer);
    return;
  }
  tally->cases++;
  if (status == WEFT_ERR_INVALID) {
    if (best != GRAPH_NONE) {
      fail_msg("case %u: %s; %g is possible", tally->cases, error.message, best);
    }
    tally->refused++;
    return;
  }
  if (status != WEFT_OK) {
    fail_msg("case %u: %s", tally->cases, error.message);
  }
  const double value = request->objective == WEFT_OBJECTIVE_SPAN ? answer->span : answer->makespan;
  double open;
  assert_int_equal(weft_plan_open_bound(NULL, request, &open, NULL), WEFT_OK);
  if (best == GRAPH_NONE || answer->bound > best || open > best || value < best ||
      (answer->optimal && value != best)) {
    fail_msg("case %u: best %g, found %g, bound %g, of all placements %g, optimal %d", tally->cases,
             best, value, answer->bound, open, answer->optimal);
  }
  tally->solved += value == best;
  tally->proven += answer->optimal;
  weft_search_answer_destroy(answer);
}

void graph_cases_compare_times(uint64_t seed, uint32_t cases, struct graph_tally *tally) {
  struct weft_random random = {seed};
  *tally = (struct graph_tally){0};
  while (tally->cases < cases) {
    struct small_case small;
    case_init(&small, &random, 4);
    for (uint32_t s = 0; s < small.graph->stage_count; s++) {
      tally->frozen += !weft_graph_has_backward(small.graph, s);
    }
    small.request.memory_limit =
        chance(&random, 50) ? 2.0 + weft_random_below(&random, 10) : (double)INFINITY;
    for (uint32_t s = 0; s < small.graph->stage_count && tally->cases % 4 == 0; s++) {
      /* for chains in the graph: enough effort, and a loop or a V */
      const uint32_t ranks = small.request.ranks, at = s % ranks;
      small.request.effort = 0.1;
      small.rank_of[s] = tally->cases % 8 == 0 && s / ranks % 2 == 1 ? ranks - 1 - at : at;
    }
    compare(&small.request, tally);
    case_finish(&small);
  }
  print_message(
      "%u cases, %u frozen stages, %u refused, %u too large; %u solved, %u proven optimal\n",
      tally->cases, tally->frozen, tally->refused, tally->too_large, tally->solved, tally->proven);
}

/* ---- Memory ---- */

/* Whether any order fits; GRAPH_TOO_LARGE. Orders that take no time have all the same time: only what
 * is done tells states apart. */
static double exhaustive_fits(const struct small_case *small, double limit) {
  struct weft_search_request request = small->request;
  struct weft_costs *costs = NULL;
  const uint32_t n = small->graph->stage_count;
  assert_int_equal(weft_costs_create(NULL, n, &costs, NULL), WEFT_OK);
  for (uint32_t s = 0; s < n; s++) {
    costs->stages[s] = small->costs->stages[s];
    costs->stages[s].f = costs->stages[s].i = costs->stages[s].w = costs->stages[s].b = 0;
  }
  request.costs = costs;
  request.memory_limit = limit;
  const double best = best_of(&request, 100000);
  weft_costs_destroy(costs);
  return best == GRAPH_TOO_LARGE ? best : best != GRAPH_NONE;
}

void graph_cases_compare_memory(uint64_t seed, uint32_t cases, uint32_t stages_max,
                                struct graph_tally *tally) {
  struct weft_random random = {seed};
  *tally = (struct graph_tally){0};
  while (tally->cases < cases) {
    struct small_case small;
    struct weft_search_answer *answer = NULL;
    struct weft_error error;
    struct weft_memory_need need;
    case_init(&small, &random, stages_max);
    small.request.ranks = 1 + weft_random_below(&random, 2);
    for (uint32_t s = 0; s < small.graph->stage_count; s++) {
      small.rank_of[s] %= small.request.ranks;
      small.costs->stages[s].activation_after_i += chance(&random, 20) ? 2 : 0;
    }
    small.request.effort = 0;
    struct weft_search_request request = small.request;
    if (weft_search_least_memory(NULL, &request, &need, &error) != WEFT_OK) {
      fail_msg("case %u: %s", tally->cases, error.message);
    }
    const double least = need.least;
    if (need.enough != least) {
      fail_msg("case %u: at least %g, and %g is enough", tally->cases, least, need.enough);
    }
    request.memory_limit = least;
    if (weft_search(NULL, &request, &answer, &error) != WEFT_OK) {
      fail_msg("case %u, with %g: %s", tally->cases, least, error.message);
    }
    double bound; /* INFINITY where no placement fits */
    assert_int_equal(weft_plan_open_bound(NULL, &request, &bound, NULL), WEFT_OK);
    assert_true(isfinite(bound));
    weft_search_answer_destroy(answer);
    request.memory_limit = least - 0.5;
    const enum weft_status status = weft_search(NULL, &request, &answer, &error);
    if (status != WEFT_ERR_INVALID) {
      fail_msg("case %u: %s with %g, and the least is %g", tally->cases,
               status == WEFT_OK ? "a plan" : error.message, least - 0.5, least);
    }
    /* Sizes are whole numbers, so the least limit is one, too. */
    const double more = exhaustive_fits(&small, least), less = exhaustive_fits(&small, least - 1);
    if (more == GRAPH_TOO_LARGE || less == GRAPH_TOO_LARGE) {
      tally->too_large++;
    } else {
      tally->cases++;
      tally->refused += least > 0;
      if (more != 1 || less != 0) {
        fail_msg("case %u: the least memory is not %g: fits into that %g, into less %g",
                 tally->cases, least, more, less);
      }
    }
    case_finish(&small);
  }
  print_message("%u cases, %u with a least limit above 0, %u too large\n", tally->cases,
                tally->refused, tally->too_large);
}
