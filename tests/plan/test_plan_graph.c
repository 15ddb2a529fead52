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

#include "support_graph_cases.h"

static void test_times(void **state) {
  (void)state;
  struct graph_tally tally;
  graph_cases_compare_times(22, 240, &tally);
  assert_true(tally.solved * 10 >= (tally.cases - tally.refused) * 9);
  assert_true(tally.refused * 4 < tally.cases);
}

static void test_memory(void **state) {
  (void)state;
  struct graph_tally tally;
  graph_cases_compare_memory(22, 240, &tally);
  assert_true(tally.refused > tally.cases / 2);
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
  assert_non_null(strstr(error.message, "the least is 1"));
  double least;
  assert_int_equal(weft_search_least_memory(NULL, &request, &least, &error), WEFT_OK);
  assert_float_equal(least, 1, 0);
  const struct weft_choice_request choose = {.search = request, .global_batch = 8};
  struct weft_choice *choice = NULL;
  assert_int_equal(weft_choose(NULL, &choose, &choice, &error), WEFT_ERR_USAGE);
  weft_costs_destroy(costs);
  weft_graph_destroy(graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_times), cmocka_unit_test(test_memory),
                                     cmocka_unit_test(test_two_encoders)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
