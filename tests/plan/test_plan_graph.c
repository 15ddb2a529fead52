/* Plans for stages that form a graph: against an exhaustive search of small problems, with memory,
 * frozen stages, whole and split backwards; larger ones against their bound; and refusals. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>
#include <weft/weft.h>

#include "support_graph_exhaustive.h"

/* WEFT_CASES=N WEFT_SEED=S: others, or more. */
static uint64_t from_environment(const char *name, uint64_t otherwise) {
  const char *text = getenv(name);
  return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

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

struct tally {
  uint32_t cases, refused, refused_wrongly, too_large, solved, proven, frozen;
};

static void compare(const struct weft_search_request *request, struct tally *tally) {
  struct weft_search_answer *answer = NULL;
  struct weft_error error;
  const enum weft_status status = weft_search(NULL, request, &answer, &error);
  const double best = graph_exhaustive_best(request, request->rank_of, 400000);
  if (best == GRAPH_TOO_LARGE) {
    tally->too_large++;
    weft_search_answer_destroy(answer);
    return;
  }
  tally->cases++;
  if (status == WEFT_ERR_INVALID) {
    tally->refused++;
    tally->refused_wrongly += best != GRAPH_NONE;
    return;
  }
  if (status != WEFT_OK) {
    fail_msg("case %u: %s", tally->cases, error.message);
  }
  const double value = request->objective == WEFT_OBJECTIVE_SPAN ? answer->span : answer->makespan;
  if (best == GRAPH_NONE || answer->bound > best || value < best ||
      (answer->optimal && value != best)) {
    fail_msg("case %u: best %g, found %g, bound %g, optimal %d", tally->cases, best, value,
             answer->bound, answer->optimal);
  }
  tally->solved += value == best;
  tally->proven += answer->optimal;
  weft_search_answer_destroy(answer);
}

static void test_small(void **state) {
  (void)state;
  struct tally tally = {0};
  struct weft_random random = {from_environment("WEFT_SEED", 22)};
  const uint32_t cases = (uint32_t)from_environment("WEFT_CASES", 240);
  while (tally.cases < cases) {
    const uint32_t n = 2 + weft_random_below(&random, 3);
    struct weft_graph *graph = random_graph(&random, n);
    if (graph == NULL) {
      continue;
    }
    uint32_t rank_of[GRAPH_STAGES_MAX];
    struct weft_search_request request = weft_search_request_default();
    request.graph = graph;
    request.ranks = 1 + weft_random_below(&random, 3);
    request.microbatches = 1 + weft_random_below(&random, n == 2 ? 3 : 2);
    request.objective = chance(&random, 25) ? WEFT_OBJECTIVE_SPAN : WEFT_OBJECTIVE_MAKESPAN;
    request.whole_backward = chance(&random, 15);
    request.memory_limit =
        chance(&random, 50) ? 2.0 + weft_random_below(&random, 10) : (double)INFINITY;
    request.effort = 0.01;
    for (uint32_t s = 0; s < n; s++) {
      rank_of[s] = weft_random_below(&random, request.ranks);
      tally.frozen += !weft_graph_has_backward(graph, s);
    }
    request.rank_of = rank_of;
    struct weft_costs *costs = random_costs(&random, n);
    request.costs = costs;
    compare(&request, &tally);
    weft_costs_destroy(costs);
    weft_graph_destroy(graph);
  }
  print_message(
      "%u cases, %u frozen stages, %u refused (%u of them wrongly), %u too large; %u "
      "solved, %u proven optimal\n",
      tally.cases, tally.frozen, tally.refused, tally.refused_wrongly, tally.too_large,
      tally.solved, tally.proven);
  assert_true(tally.solved * 10 >= (tally.cases - tally.refused) * 9);
  assert_true(tally.refused * 4 < tally.cases);
}

/* Two encoders, each of three stages, and a decoder with a skip connection to the first encoder's
 * beginning: eight ranks. */
static void test_two_encoders(void **state) {
  (void)state;
  const struct weft_edge edges[] = {
      weft_edge_make(0, 2), weft_edge_make(2, 4), weft_edge_make(1, 3), weft_edge_make(3, 5),
      weft_edge_make(4, 6), weft_edge_make(5, 6), weft_edge_make(6, 7), weft_edge_make(0, 7)};
  struct weft_graph *graph = NULL;
  struct weft_costs *costs = NULL;
  struct weft_search_answer *answer = NULL;
  struct weft_error error;
  assert_int_equal(
      weft_graph_create(NULL, 8, edges, WEFT_ARRAY_LENGTH(edges), NULL, &graph, &error), WEFT_OK);
  assert_int_equal(weft_costs_create(NULL, 1, &costs, &error), WEFT_OK);
  struct weft_search_request request = weft_search_request_default();
  request.graph = graph, request.ranks = 8, request.microbatches = 12, request.costs = costs;
  assert_int_equal(weft_search(NULL, &request, &answer, &error), WEFT_OK);
  /* 12 microbatches of 3, and three stages before the last one: the heads of the encoders run at
   * the same time. */
  print_message("makespan %g, bound %g\n", answer->makespan, answer->bound);
  assert_true(answer->makespan <= 1.06 * answer->bound);
  weft_search_answer_destroy(answer);
  request.memory_limit = 0.5;
  assert_int_equal(weft_search(NULL, &request, &answer, &error), WEFT_ERR_INVALID);
  assert_non_null(strstr(error.message, "1 is enough"));
  double least;
  assert_int_equal(weft_search_least_memory(NULL, &request, &least, &error), WEFT_ERR_USAGE);
  const struct weft_choice_request choose = {.search = request, .global_batch = 8};
  struct weft_choice *choice = NULL;
  assert_int_equal(weft_choose(NULL, &choose, &choice, &error), WEFT_ERR_USAGE);
  weft_costs_destroy(costs);
  weft_graph_destroy(graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_small),
                                     cmocka_unit_test(test_two_encoders)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
