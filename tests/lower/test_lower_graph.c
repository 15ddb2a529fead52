/* Lowering of stages that form a graph: programs of random tables keep the order of the table,
 * send in ascending order of the stages, complete under every model, and have as few slots as
 * lifetimes allow. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_csv.h"
#include "support_memory.h"
#include "support_oracle.h"
#include "support_oracle_nccl.h"
#include "support_random_graph.h"
#include "support_random_program.h"

#if defined(__SANITIZE_ADDRESS__)
#define TABLES 300u
#else
#define TABLES 2000u
#endif

static bool is_compute(const struct weft_action *action) {
  return action->op >= WEFT_OP_F && action->op <= WEFT_OP_W;
}
static bool is_send(const struct weft_action *action) {
  return action->op == WEFT_OP_SEND_F || action->op == WEFT_OP_SEND_B;
}

/* --- Order ---------------------------------------------------------------------------- */

/* The compute of each row is the table's. */
static void check_compute(const struct weft_program *table, const struct weft_program *program) {
  for (uint32_t rank = 0; rank < table->rank_count; rank++) {
    uint64_t at = table->row_begin[rank];
    for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1]; i++) {
      if (is_compute(&program->actions[i])) {
        assert_in_range(at, table->row_begin[rank], table->row_begin[rank + 1] - 1);
        assert_memory_equal(&program->actions[i], &table->actions[at++], sizeof *table->actions);
      }
    }
    assert_int_equal(at, table->row_begin[rank + 1]);
  }
}

/* What an action sends follows it at once, but for receives and collectives, in ascending order of
 * the stages that it goes to. */
static void check_sends(const struct weft_program *program) {
  for (uint32_t rank = 0; rank < program->rank_count; rank++) {
    const struct weft_action *maker = NULL, *before = NULL;
    for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1]; i++) {
      const struct weft_action *action = &program->actions[i];
      if (is_compute(action)) {
        maker = action;
        before = NULL;
      } else if (is_send(action)) {
        assert_true(maker != NULL && maker->stage == action->stage &&
                    maker->microbatch == action->microbatch &&
                    (maker->op == WEFT_OP_F) == (action->op == WEFT_OP_SEND_F));
        assert_true(before == NULL || draft_other(*before) < draft_other(*action));
        before = action;
      }
    }
  }
}

/* --- All of it ---------------------------------------------------------------------------- */

static void check_models(const struct weft_program *program) {
  for (uint32_t model = 0; model < ORACLE_MODELS + ORACLE_NCCL_MODELS; model++) {
    struct weft_verify_options options = weft_verify_options_default();
    struct weft_report *report = NULL;
    struct weft_error error = {0};
    options.model =
        model < ORACLE_MODELS ? oracle_model(model) : oracle_nccl_model(model - ORACLE_MODELS);
    assert_int_equal(weft_verify(NULL, program, &options, &report, &error), WEFT_OK);
    if (!report->ok) {
      char *text = csv_text(program);
      fail_msg("%s\n%s", report->findings[0].message, text);
    }
    weft_report_destroy(report);
  }
}

static void random_tables(void **state) {
  (void)state;
  struct weft_random random = {.state = 2214};
  struct draft draft = {0};
  for (uint32_t k = 0; k < TABLES; k++) {
    uint32_t rank_of[16];
    const struct random_graph_shape shape =
        random_graph_shape(&random, 2 + weft_random_below(&random, 12));
    struct weft_graph *graph = random_graph(&random, &shape);
    struct weft_lower_options options = weft_lower_options_default();
    struct weft_program *program = NULL;
    struct weft_error error = {0};
    random_graph_table(&random, graph, 1 + weft_random_below(&random, 6),
                       1 + weft_random_below(&random, 4), k % 2 == 0, rank_of, &draft);
    struct weft_program *table = draft_build(&draft);
    options.unshard = k % 3 == 0;
    options.reduce_grad = k % 3 != 1;
    options.tie_grad = k % 4 == 0 && weft_graph_has_backward(graph, 0);
    if (weft_lower(NULL, table, &options, &program, &error) != WEFT_OK) {
      fail_msg("%s", error.message);
    }
    assert_true(weft_graph_equal(program->graph, graph));
    assert_int_equal(program->stage_count, graph->stage_count);
    check_compute(table, program);
    check_sends(program);
    check_models(program);
    weft_program_destroy(program);
    weft_program_destroy(table);
    weft_graph_destroy(graph);
  }
  draft_finish(&draft);
}

/* A graph with far more edges than messages: tables are as large as the program. */
static void dense_graph_on_one_rank(void **state) {
  (void)state;
  enum { STAGES = 256, MICROBATCHES = 400 };
  struct weft_edge *edges = calloc((size_t)STAGES * STAGES, sizeof *edges);
  struct weft_graph *graph = NULL;
  struct weft_error error = {0};
  struct draft draft = {0};
  uint32_t count = 0;
  assert_non_null(edges);
  for (uint32_t from = 0; from < STAGES; from++) {
    for (uint32_t to = from + 1; to < STAGES; to++) {
      edges[count++] = weft_edge_make(from, to);
    }
  }
  assert_int_equal(weft_graph_create(NULL, STAGES, edges, count, NULL, &graph, &error), WEFT_OK);
  draft_reset(&draft, 1);
  draft_set_graph(&draft, graph);
  for (uint32_t mb = 0; mb < MICROBATCHES; mb++) {
    for (uint32_t k = 0; k < 2 * STAGES; k++) {
      draft_append(&draft, 0,
                   k < STAGES ? draft_action(WEFT_OP_F, k, mb)
                              : draft_action(WEFT_OP_B, 2 * STAGES - 1 - k, mb));
    }
  }
  struct weft_program *table = draft_build(&draft), *program = NULL;
  struct weft_report *report = NULL;
  struct weft_lower_options options = weft_lower_options_default();
  assert_int_equal(weft_lower(NULL, table, &options, &program, &error), WEFT_OK);
  assert_int_equal(weft_verify(NULL, program, NULL, &report, &error), WEFT_OK);
  assert_true(report->ok);
  weft_report_destroy(report);
  weft_program_destroy(program);
  weft_program_destroy(table);
  weft_graph_destroy(graph);
  draft_finish(&draft);
  free(edges);
}

/* A table that cannot be executed: all that an action waits for is named. */
static void waits_over_edges_are_named(void **state) {
  (void)state;
  static const struct {
    const char *text, *message;
  } stuck[] = {
      {"#graph,0>2,1>2\n2F0,0F0,1F0\n", "rank 0: 2F0 waits for 0F0 of rank 0, 1F0 of rank 0"},
      {"#graph,0>1,0>2\n0F0,0B0\n1F0,2F0\n",
       "rank 0: 0B0 waits for 1B0 or 1I0 of rank 1, 2B0 or 2I0 of rank 1"},
      {"#graph,0>1,1>2\n0F0\n2F0\n", "rank 1: 2F0 waits for F of stage 1, which no rank computes"},
  };
  for (size_t k = 0; k < sizeof stuck / sizeof stuck[0]; k++) {
    struct weft_program *table = csv_program(stuck[k].text), *program = NULL;
    struct weft_error error = {0};
    assert_int_equal(weft_lower(NULL, table, NULL, &program, &error), WEFT_ERR_INVALID);
    if (strstr(error.message, stuck[k].message) == NULL) {
      fail_msg("'%s' is not in: %s", stuck[k].message, error.message);
    }
    weft_program_destroy(table);
  }
}

static void frozen_weights_are_not_tied(void **state) {
  (void)state;
  struct weft_program *table = csv_program("#graph,0>1F\n0F0\n1F0,1B0\n"), *program = NULL;
  struct weft_lower_options options = weft_lower_options_default();
  struct weft_error error = {0};
  options.tie_grad = true;
  assert_int_equal(weft_lower(NULL, table, &options, &program, &error), WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "stage 0 is frozen"));
  assert_null(program);
  weft_program_destroy(table);
}

static void memory_runs_out_anywhere(void **state) {
  (void)state;
  struct weft_program *table = csv_program("#graph,0>1,0>2,1>2\n0F0,0B0\n1F0,2F0,2B0,1B0\n");
  struct weft_lower_options options = weft_lower_options_default();
  enum weft_status status = WEFT_ERR_MEMORY;
  for (uint64_t fail_at = 1; status == WEFT_ERR_MEMORY; fail_at++) {
    struct test_memory memory;
    struct weft_program *program = NULL;
    struct weft_error error = {0};
    test_memory_init(&memory);
    memory.fail_at = fail_at;
    status = weft_lower(&memory.allocator, table, &options, &program, &error);
    assert_true((status == WEFT_OK) == (program != NULL));
    weft_program_destroy(program);
    assert_int_equal(memory.blocks, 0);
    assert_true(fail_at < 100);
  }
  assert_int_equal(status, WEFT_OK);
  weft_program_destroy(table);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_tables),
      cmocka_unit_test(dense_graph_on_one_rank),
      cmocka_unit_test(waits_over_edges_are_named),
      cmocka_unit_test(frozen_weights_are_not_tied),
      cmocka_unit_test(memory_runs_out_anywhere),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
