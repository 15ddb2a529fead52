/* A recorded step has a rank's transfers one after the other: whether that ends, and how long it
 * takes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <weft/gen.h>
#include <weft/source.h>
#include <weft/spec.h>
#include <weft/support.h>
#include <weft/verify.h>

#include "ir/action.h"
#include "run/step/recording.h"
#include "support_random_graph.h"

enum { STAGES_MAX = 64, PROGRAMS = 600 };

static double slowdown_of(const struct weft_program *program) {
  uint32_t rank_of[STAGES_MAX];
  double slowdown = -1;
  struct weft_error error;
  assert_in_range(program->stage_count, 1, STAGES_MAX);
  (void)weft_placement_infer(program, rank_of);
  assert_int_equal(weft_transfer_chain_check(NULL, program, rank_of, &slowdown, &error), WEFT_OK);
  return slowdown;
}

static bool make(const char *schedule, uint32_t ranks, uint32_t microbatches, bool by_time,
                 struct weft_program **out) {
  struct weft_lower_options lower = weft_lower_options_default();
  lower.by_time = by_time;
  struct weft_named_source named = {.schedule = schedule, .ranks = ranks, .lower = &lower};
  return weft_source_named(&named, microbatches, true, out, NULL) == WEFT_OK;
}

static double lowered_slowdown(const char *schedule, uint32_t ranks, bool by_time) {
  struct weft_program *program = NULL;
  struct weft_report *report = NULL;
  if (!make(schedule, ranks, 2 * ranks, by_time, &program)) {
    return 0;
  }
  assert_int_equal(weft_verify(NULL, program, NULL, &report, NULL), WEFT_OK);
  assert_true(report->ok);
  const double slowdown = slowdown_of(program);
  assert_true(slowdown >= 1 && isfinite(slowdown));
  weft_report_destroy(report);
  weft_program_destroy(program);
  return slowdown;
}

/* The next action of a row that is no transfer; NULL: none. */
static const struct weft_action *next_action(const struct weft_program *program, uint32_t rank,
                                             uint64_t *at) {
  while (*at < program->row_begin[rank + 1]) {
    const struct weft_action *action = &program->actions[(*at)++];
    if (!weft_op_in(action->op, WEFT_OPS_SEND | WEFT_OPS_RECV)) {
      return action;
    }
  }
  return NULL;
}

/* The order of time changes the places of transfers alone. */
static void check_rows(const char *schedule, uint32_t ranks) {
  struct weft_program *pytorch = NULL, *by_time = NULL;
  if (!make(schedule, ranks, 2 * ranks, false, &pytorch)) {
    return;
  }
  assert_true(make(schedule, ranks, 2 * ranks, true, &by_time));
  assert_true(by_time->action_count == pytorch->action_count);
  for (uint32_t r = 0; r < ranks; r++) {
    uint64_t at = pytorch->row_begin[r], other_at = by_time->row_begin[r];
    const struct weft_action *action, *other;
    assert_true(at == other_at);
    do {
      action = next_action(pytorch, r, &at);
      other = next_action(by_time, r, &other_at);
      assert_true((action == NULL) == (other == NULL));
      assert_true(action == NULL || other == NULL || weft_action_equal(*action, *other));
    } while (action != NULL);
  }
  weft_program_destroy(pytorch);
  weft_program_destroy(by_time);
}

/* With transfers in the order of time the chain costs nothing, in PyTorch's order it does where ranks
 * have several stages. Both are proven not to hang. */
static void test_schedules(void **state) {
  (void)state;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const char *name = weft_schedule_at(k)->name;
    for (uint32_t ranks = 2; ranks <= 8; ranks += 2) {
      check_rows(name, ranks);
      const double pytorch = lowered_slowdown(name, ranks, false);
      const double by_time = lowered_slowdown(name, ranks, true);
      if (pytorch > 0) {
        print_message("%s, %u ranks, %u microbatches: %.3f, by time %.3f\n", name, ranks, 2 * ranks,
                      pytorch, by_time);
        assert_true(by_time <= 1.05 && by_time <= pytorch);
      }
    }
  }
  assert_true(lowered_slowdown("Interleaved1F1B", 4, false) > 1.05);
}

/* Whether two neighbours in a row can change places, and every channel still has its order. */
static bool can_swap(const struct weft_program *program, struct weft_action a,
                     struct weft_action b) {
  const uint32_t transfers = WEFT_OPS_SEND | WEFT_OPS_RECV;
  const bool a_moves = weft_op_in(a.op, transfers), b_moves = weft_op_in(b.op, transfers);
  if (a.parts > 0 || b.parts > 0 || (!a_moves && !b_moves)) {
    return false;
  }
  if (a_moves && b_moves) {
    return a.op != b.op || weft_channel_of(program, a) != weft_channel_of(program, b);
  }
  return a.stage != b.stage || a.microbatch != b.microbatch;
}

static void shuffle(struct weft_program *program, struct weft_random *random) {
  const uint32_t swaps = weft_random_below(random, 60);
  for (uint32_t k = 0; k < swaps; k++) {
    const uint32_t r = weft_random_below(random, program->rank_count);
    const uint64_t begin = program->row_begin[r], length = program->row_begin[r + 1] - begin;
    uint64_t at = begin + weft_random_below(random, (uint32_t)length - 1);
    for (uint32_t n = weft_random_below(random, 6); n > 0 && at + 1 < begin + length; n--, at++) {
      struct weft_action *a = &program->actions[at], *b = a + 1;
      const bool inside = at > begin && (a[-1].parts > 0 || (at > begin + 1 && a[-2].parts > 0));
      if (inside || !can_swap(program, *a, *b)) {
        break;
      }
      const struct weft_action other = *a;
      *a = *b;
      *b = other;
    }
  }
  program->known_hash = 0;
}

/* What verify says of one communicator for all ranks, with rendezvous sends: the same chain. Whether
 * it hangs. */
static bool check_against_verify(const char *name, uint32_t k, struct weft_program *program,
                                 struct weft_random *random) {
  struct weft_verify_options options = weft_verify_options_default();
  struct weft_report *report = NULL;
  shuffle(program, random);
  options.model.channel = WEFT_CHANNEL_NCCL_WORLD;
  assert_int_equal(weft_verify(NULL, program, &options, &report, NULL), WEFT_OK);
  const bool ends = isfinite(slowdown_of(program));
  if (report->ok != ends) {
    fail_msg("program %u (%s): verify says %s, the chain %s", k, name,
             report->ok ? "ok" : report->findings[0].message, ends ? "ends" : "hangs");
  }
  weft_report_destroy(report);
  weft_program_destroy(program);
  return !ends;
}

static void test_verify_agrees(void **state) {
  static const char *const schedules[] = {"1F1B", "Interleaved1F1B", "ZBVZeroBubble", "GPipe"};
  struct weft_random random = {.state = 7};
  uint32_t hangs = 0;
  (void)state;
  for (uint32_t k = 0; k < PROGRAMS; k++) {
    struct weft_program *program = NULL;
    assert_true(make(schedules[k % 4], 2 + k % 3, 2 + k % 4 * (2 + k % 3), k % 2 == 0, &program) ||
                make(schedules[k % 4], 2 + k % 3, 2 * (2 + k % 3), k % 2 == 0, &program));
    hangs += check_against_verify(schedules[k % 4], k, program, &random);
  }
  print_message("%u of %u programs hang\n", hangs, PROGRAMS);
  assert_in_range(hangs, PROGRAMS / 20, PROGRAMS - PROGRAMS / 20);
}

/* ---- Graphs of stages ---- */

static void lower_table(const struct weft_program *table, bool by_time, struct weft_program **out) {
  struct weft_lower_options options = weft_lower_options_default();
  struct weft_error error;
  options.by_time = by_time;
  if (weft_lower(NULL, table, &options, out, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
}

/* Random tables of random graphs, with frozen stages and any placement. */
static void test_verify_agrees_on_graphs(void **state) {
  struct weft_random random = {.state = 22};
  struct draft draft = {.rank_count = 0};
  uint32_t hangs = 0;
  (void)state;
  for (uint32_t k = 0; k < PROGRAMS; k++) {
    const struct random_graph_shape shape = random_graph_shape(&random, 2 + k % 7);
    struct weft_graph *graph = random_graph(&random, &shape);
    struct weft_program *table, *program = NULL;
    uint32_t rank_of[STAGES_MAX];
    random_graph_table(&random, graph, 2 + k % 3, 1 + k % 4, k % 2 == 0, rank_of, &draft);
    table = draft_build(&draft);
    lower_table(table, k % 3 == 0, &program);
    hangs += check_against_verify("graph", k, program, &random);
    weft_program_destroy(table);
    weft_graph_destroy(graph);
  }
  draft_finish(&draft);
  print_message("%u of %u programs of graphs hang\n", hangs, PROGRAMS);
  assert_in_range(hangs, PROGRAMS / 20, PROGRAMS - PROGRAMS / 20);
}

/* Schedules of random graphs: in the order of time the chain is hardly longer. */
static void test_schedules_of_graphs(void **state) {
  struct weft_random random = {.state = 5};
  double worst[2] = {1, 1};
  uint32_t count = 0, over = 0;
  (void)state;
  for (uint32_t k = 0; k < 60; k++) {
    const struct random_graph_shape drawn = random_graph_shape(&random, 2 * (1 + k % 4));
    struct weft_graph *graph = random_graph(&random, &drawn);
    for (size_t n = 0; n < weft_schedule_count(); n++) {
      const struct weft_shape shape = {.microbatches = 8, .graph = graph};
      struct weft_program *table = NULL;
      if (weft_generate(NULL, weft_schedule_at(n)->name, &shape, &table, NULL) < 0) {
        continue;
      }
      for (uint32_t by_time = 0; by_time < 2; by_time++) {
        struct weft_program *program = NULL;
        lower_table(table, by_time != 0, &program);
        const double slowdown = slowdown_of(program);
        assert_true(slowdown >= 1 && isfinite(slowdown));
        worst[by_time] = fmax(worst[by_time], slowdown);
        over += by_time != 0 && slowdown > 1.05;
        weft_program_destroy(program);
      }
      weft_program_destroy(table);
      count++;
    }
    weft_graph_destroy(graph);
  }
  print_message("%u schedules of graphs: at most %.3f, by time %.3f, %u above 1.05\n", count,
                worst[0], worst[1], over);
  assert_true(count >= 400 && over == 0 && worst[0] > 1.05);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_schedules), cmocka_unit_test(test_verify_agrees),
      cmocka_unit_test(test_verify_agrees_on_graphs), cmocka_unit_test(test_schedules_of_graphs)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
