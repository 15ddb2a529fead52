/* Named schedules of stages that form a graph: all of them are lowered and proven on random graphs,
 * stages that are equally far from a loss have the same row, and what cannot be is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>
#include <weft/weft.h>

#include "support_random_graph.h"

/* Lowers and verifies; every stage with a backward has one, the others none. */
static void prove(const char *name, const struct weft_program *table) {
  struct weft_program *program = NULL;
  struct weft_report *report = NULL;
  struct weft_error error;
  if (weft_lower(NULL, table, NULL, &program, &error) != WEFT_OK) {
    fail_msg("%s: %s", name, error.message);
  }
  assert_int_equal(weft_verify(NULL, program, NULL, &report, &error), WEFT_OK);
  if (!report->ok || !report->liveness_checked) {
    fail_msg("%s: %s", name, report->finding_count > 0 ? report->findings[0].message : "no proof");
  }
  weft_report_destroy(report);
  weft_program_destroy(program);
}

static void test_random_graphs(void **state) {
  (void)state;
  struct weft_random random = {22};
  uint32_t proven = 0;
  for (uint32_t k = 0; k < 200; k++) {
    const struct random_graph_shape drawn = random_graph_shape(&random, 2 * (1 + k % 6));
    struct weft_graph *graph = random_graph(&random, &drawn);
    for (size_t n = 0; n < weft_schedule_count(); n++) {
      const struct weft_schedule_info *info = weft_schedule_at(n);
      const struct weft_shape shape = {.microbatches = 1 + weft_random_below(&random, 20),
                                       .graph = graph};
      struct weft_program *table = NULL;
      struct weft_error error;
      const enum weft_status status = weft_generate(NULL, info->name, &shape, &table, &error);
      if (status == WEFT_OK) {
        assert_true(weft_graph_equal(table->graph, graph));
        prove(info->name, table);
        weft_program_destroy(table);
        proven++;
      } else { /* a recipe's own limits, for chains as well */
        assert_int_equal(status, WEFT_ERR_USAGE);
        assert_true(info->fixed || strcmp(info->name, "DualPipeV") == 0);
      }
    }
    weft_graph_destroy(graph);
  }
  print_message("%u tables proven\n", proven);
  assert_true(proven >= 1800);
}

/* Two encoders of two stages each: stages 0 and 1 have the same row, but for their number. */
static void test_encoders(void **state) {
  (void)state;
  const struct weft_edge edges[] = {weft_edge_make(0, 2), weft_edge_make(1, 3),
                                    weft_edge_make(2, 4), weft_edge_make(3, 4)};
  struct weft_shape shape = {.microbatches = 7};
  struct weft_graph *graph = NULL;
  struct weft_program *table = NULL, *chain = NULL;
  struct weft_error error;
  assert_int_equal(weft_graph_create(NULL, 5, edges, 4, NULL, &graph, &error), WEFT_OK);
  shape.graph = graph;
  assert_int_equal(weft_generate(NULL, "1F1B", &shape, &table, &error), WEFT_OK);
  const struct weft_shape three = {.ranks = 3, .microbatches = 7};
  assert_int_equal(weft_generate(NULL, "1F1B", &three, &chain, &error), WEFT_OK);
  static const uint32_t row_of[] = {0, 0, 1, 1, 2};
  assert_int_equal(table->rank_count, 5);
  for (uint32_t r = 0; r < 5; r++) {
    const uint64_t size = table->row_begin[r + 1] - table->row_begin[r];
    const struct weft_action *of = &chain->actions[chain->row_begin[row_of[r]]];
    assert_int_equal(size, chain->row_begin[row_of[r] + 1] - chain->row_begin[row_of[r]]);
    for (uint64_t i = 0; i < size; i++) {
      const struct weft_action action = table->actions[table->row_begin[r] + i];
      assert_int_equal(action.op, of[i].op);
      assert_int_equal(action.microbatch, of[i].microbatch);
      assert_int_equal(action.stage, r);
    }
  }
  weft_program_destroy(chain);
  weft_program_destroy(table);
  weft_graph_destroy(graph);
}

static void refused(const struct weft_graph *graph, const char *name, struct weft_shape shape,
                    const char *words) {
  struct weft_program *table = NULL;
  struct weft_error error;
  shape.graph = graph;
  assert_int_equal(weft_generate(NULL, name, &shape, &table, &error), WEFT_ERR_USAGE);
  if (strstr(error.message, words) == NULL || error.hint[0] == '\0') {
    fail_msg("'%s' is not in: %s (%s)", words, error.message, error.hint);
  }
  assert_null(table);
}

static void test_refusals(void **state) {
  (void)state;
  const struct weft_edge edges[] = {weft_edge_make(0, 1), weft_edge_make(1, 2),
                                    weft_edge_make(2, 3), weft_edge_make(0, 3)};
  struct weft_graph *graph = NULL;
  struct weft_error error;
  assert_int_equal(weft_graph_create(NULL, 4, edges, 4, NULL, &graph, &error), WEFT_OK);
  refused(graph, "1F1B", (struct weft_shape){.ranks = 3, .microbatches = 4},
          "the graph has 4 stages, and 1F1B on 3 ranks has 1 on each");
  refused(graph, "Interleaved1F1B", (struct weft_shape){.stages_per_rank = 3, .microbatches = 4},
          "the graph has 4 stages, and Interleaved1F1B has 3 on each rank");
  refused(graph, "VShaped", (struct weft_shape){.microbatches = 1}, "is a fixed table");
  refused(graph, "1F1C", (struct weft_shape){.microbatches = 4}, "unknown schedule");
  weft_graph_destroy(graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_graphs),
                                     cmocka_unit_test(test_encoders),
                                     cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
