/* Links, dry run, grid and difference of programs whose stages form a graph: by hand, and as the
 * edges say on many random ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support_graph_timing.h"

enum { CASES = 400 };

#define TABLE "#graph,0>1,0>2,1>2\n0F0,0B0\n1F0,2F0,2B0,1B0\n"

/* ---- By hand ---- */

static void the_dry_run_waits_for_all_inputs(void **state) {
  (void)state;
  struct weft_program *table = parse_text(TABLE), *program = lower_plainly(table), *steps = NULL;
  struct weft_text text = {0};
  struct weft_error error;
  assert_int_equal(weft_dry_run(NULL, program, &steps, &error), WEFT_OK);
  weft_program_print(steps, &text);
  assert_string_equal(text.data,
                      "#graph,0>1,0>2,1>2\n"
                      "0F0,0SEND_F0,0SEND_F0>2,,,,0RECV_B0<2,,0RECV_B0,0B0\n"
                      ",1RECV_F0,2RECV_F0<0,1F0,2F0,2B0,2SEND_B0>0,1B0,1SEND_B0\n");
  weft_text_finish(&text);
  weft_program_destroy(steps);
  weft_program_destroy(program);
  weft_program_destroy(table);
}

static void a_missing_message_is_named_with_its_edge(void **state) {
  (void)state;
  struct weft_program *program = parse_text(
                          "#graph,0>1,0>2,1>2\n0F0,0SEND_F0\n1RECV_F0,1F0,2RECV_F0<0,2F0\n"),
                      *steps = NULL;
  struct weft_error error;
  assert_int_equal(weft_dry_run(NULL, program, &steps, &error), WEFT_ERR_INVALID);
  assert_non_null(
      strstr(error.message, "2RECV_F0<0 waits for 0SEND_F0>2 (nowhere in the program)"));
  weft_program_destroy(program);
  program =
      parse_text("#graph,0>1,0>2,1>2\n0F0,0SEND_F0,0SEND_F0>2\n1RECV_F0,1F0,2F0,2RECV_F0<0\n");
  assert_int_equal(weft_dry_run(NULL, program, &steps, &error), WEFT_ERR_INVALID);
  assert_non_null(strstr(error.message, "2F0 waits for 2RECV_F0<0 (rank 1, step 3)"));
  weft_program_destroy(program);
}

static void other_edges_are_a_difference(void **state) {
  (void)state;
  struct weft_program *a = parse_text(TABLE), *b = parse_text(strchr(TABLE, '\n') + 1);
  struct weft_diff *diff = NULL;
  struct weft_error error;
  assert_int_equal(weft_diff_create(NULL, a, b, 10, &diff, &error), WEFT_OK);
  assert_true(diff->graphs_differ);
  assert_int_equal(diff->difference_count, 0);
  weft_diff_destroy(diff);
  assert_int_equal(weft_program_set_graph(b, a->graph, &error), WEFT_OK);
  assert_int_equal(weft_diff_create(NULL, a, b, 10, &diff, &error), WEFT_OK);
  assert_false(diff->graphs_differ);
  weft_diff_destroy(diff);
  weft_program_destroy(a);
  weft_program_destroy(b);
}

/* ---- Random graphs ---- */

static bool is_op(struct weft_action action, enum weft_op first, enum weft_op second) {
  return action.op == first || action.op == second;
}

static uint64_t find(const struct weft_program *program, struct weft_action wanted) {
  for (uint64_t i = 0; i < program->action_count; i++) {
    if (memcmp(&program->actions[i], &wanted, sizeof wanted) == 0) {
      return i;
    }
  }
  return UINT64_MAX;
}

/* The record that brings what the other stage makes for an action. */
static uint64_t find_input(const struct weft_program *program, struct weft_action action,
                           uint32_t other) {
  const bool forward = action.op == WEFT_OP_F;
  struct weft_action recv = action;
  recv.op = forward ? WEFT_OP_RECV_F : WEFT_OP_RECV_B;
  recv.skip = (uint8_t)((forward ? action.stage - other : other - action.stage) - 1);
  uint64_t found = find(program, recv);
  struct weft_action maker = action;
  maker.stage = (uint16_t)other;
  if (found == UINT64_MAX) {
    maker.op = forward ? WEFT_OP_F : WEFT_OP_B;
    found = find(program, maker);
  }
  if (found == UINT64_MAX) {
    maker.op = WEFT_OP_I;
    found = find(program, maker);
  }
  return found;
}

static void expect_needs(const struct weft_program *program, const struct weft_links *links,
                         uint64_t record) {
  const struct weft_action action = program->actions[record];
  const bool forward = action.op == WEFT_OP_F;
  uint64_t needs[WEFT_NEEDS_MAX];
  const unsigned count = weft_links_needs(links, record, needs);
  unsigned expected = 0;
  if (!forward) {
    assert_int_equal(needs[expected++],
                     find(program, (struct weft_action){.op = WEFT_OP_F,
                                                        .stage = action.stage,
                                                        .microbatch = action.microbatch}));
  }
  for (uint32_t e = 0; e < program->graph->edge_count; e++) {
    const struct weft_edge *edge = &program->graph->edges[e];
    if (forward ? edge->to == action.stage : edge->from == action.stage && edge->gradient) {
      assert_true(expected < count);
      assert_int_equal(needs[expected++],
                       find_input(program, action, forward ? edge->from : edge->to));
    }
  }
  assert_int_equal(count, expected);
}

static void expect_links(const struct weft_program *program) {
  struct weft_links *links = NULL;
  struct weft_error error;
  assert_int_equal(weft_links_create(NULL, program, &links, &error), WEFT_OK);
  for (uint64_t i = 0; i < program->action_count; i++) {
    const struct weft_action action = program->actions[i];
    if (action.op == WEFT_OP_F || is_op(action, WEFT_OP_B, WEFT_OP_I)) {
      expect_needs(program, links, i);
    }
    if (action.op >= WEFT_OP_SEND_F && action.op <= WEFT_OP_RECV_B) {
      const uint32_t peer = weft_links_peer(links, i);
      assert_int_not_equal(peer, WEFT_MATCH_NONE);
      assert_int_equal(weft_links_peer(links, peer), i);
      assert_int_equal(program->actions[peer].skip, action.skip);
      assert_int_equal(program->actions[peer].microbatch, action.microbatch);
    }
  }
  weft_links_destroy(links);
}

/* The same actions; each after what it needs. */
static void expect_dry_run(const struct weft_program *program) {
  struct weft_program *steps = NULL;
  struct weft_links *links = NULL;
  struct weft_error error;
  assert_int_equal(weft_dry_run(NULL, program, &steps, &error), WEFT_OK);
  assert_true(weft_graph_equal(steps->graph, program->graph));
  assert_int_equal(weft_links_create(NULL, steps, &links, &error), WEFT_OK);
  uint64_t *step_of = calloc(steps->action_count + 1, sizeof *step_of), actions = 0;
  assert_non_null(step_of);
  for (uint32_t r = 0; r < steps->rank_count; r++) {
    uint64_t step = 0;
    for (uint64_t i = steps->row_begin[r]; i < steps->row_begin[r + 1]; step++) {
      const struct weft_action cell = steps->actions[i];
      const uint32_t parts = cell.op == WEFT_OP_OVERLAP_F_B ? cell.parts : 0;
      for (uint32_t k = 0; k <= parts; k++, i++) {
        actions += steps->actions[i].op != WEFT_OP_IDLE;
        step_of[i] = step;
      }
    }
  }
  assert_int_equal(actions, program->action_count);
  for (uint64_t i = 0; i < steps->action_count; i++) {
    uint64_t needs[WEFT_NEEDS_MAX];
    const unsigned count = weft_links_needs(links, i, needs);
    for (unsigned k = 0; k < count; k++) {
      assert_true(step_of[needs[k]] < step_of[i]);
    }
  }
  free(step_of);
  weft_links_destroy(links);
  weft_program_destroy(steps);
}

static void random_graphs_are_linked_by_their_edges(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < CASES; seed++) {
    struct weft_random random = {.state = seed};
    struct weft_graph *graph = any_graph(&random);
    struct weft_program *table = any_graph_table(&random, graph);
    struct weft_program *program = lower_plainly(table);
    expect_links(table);
    expect_links(program);
    expect_dry_run(program);
    weft_program_destroy(program);
    weft_program_destroy(table);
    weft_graph_destroy(graph);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_dry_run_waits_for_all_inputs),
      cmocka_unit_test(a_missing_message_is_named_with_its_edge),
      cmocka_unit_test(other_edges_are_a_difference),
      cmocka_unit_test(random_graphs_are_linked_by_their_edges),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
