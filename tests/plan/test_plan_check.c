/* The check of an answer before weft_search() returns it: it passes what the search finds, and
 * catches an answer whose numbers or table are wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "plan/plan_check.h"

enum { RANKS = 4, MICROBATCHES = 8 };
#define LIMIT 5.0

struct fixture {
  struct weft_costs *costs;
  struct weft_search_answer *answer; /* unchecked: without its simulation */
};

static int search(void **state) {
  static struct fixture fixture;
  struct weft_search_request request = weft_search_request_default();
  struct weft_error error;
  assert_int_equal(weft_costs_create(NULL, 1, &fixture.costs, NULL), WEFT_OK);
  request.ranks = RANKS;
  request.microbatches = MICROBATCHES;
  request.stages_per_rank = 1;
  request.costs = fixture.costs;
  request.memory_limit = LIMIT;
  request.effort = 0.01;
  if (weft_search(NULL, &request, &fixture.answer, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  assert_non_null(fixture.answer->simulation);
  weft_simulation_destroy(fixture.answer->simulation);
  fixture.answer->simulation = NULL;
  *state = &fixture;
  return 0;
}

static int finish(void **state) {
  struct fixture *fixture = *state;
  weft_search_answer_destroy(fixture->answer);
  weft_costs_destroy(fixture->costs);
  return 0;
}

static void expect_caught(struct weft_search_answer *answer, double limit, const char *sequences) {
  struct weft_error error;
  assert_int_equal(weft_plan_check(answer, limit, &error), WEFT_ERR_INTERNAL);
  if (strstr(error.message, sequences) == NULL) {
    fail_msg("'%s' is not in: %s", sequences, error.message);
  }
  assert_non_null(strstr(error.hint, "bug in Weft"));
  assert_null(answer->simulation);
  assert_int_equal(weft_plan_check(answer, limit, NULL), WEFT_ERR_INTERNAL);
}

static void what_the_search_finds_passes(void **state) {
  struct weft_search_answer *answer = ((struct fixture *)*state)->answer;
  assert_int_equal(weft_plan_check(answer, LIMIT, NULL), WEFT_OK);
  assert_non_null(answer->simulation);
  assert_true(answer->simulation->makespan == answer->makespan);
  double peak = 0;
  for (uint32_t r = 0; r < RANKS; r++) {
    const double own = answer->simulation->ranks[r].peak_memory;
    peak = own > peak ? own : peak;
  }
  assert_true(answer->peak_memory == peak && peak <= LIMIT);
}

static void wrong_numbers_are_caught(void **state) {
  struct weft_search_answer *answer = ((struct fixture *)*state)->answer;
  answer->makespan -= 0.5;
  expect_caught(answer, LIMIT, "makespan");
  answer->makespan += 0.5;
  answer->span += 1;
  expect_caught(answer, LIMIT, "span");
  answer->span -= 1;
  answer->peak_memory -= 1;
  expect_caught(answer, LIMIT, "peak memory");
  answer->peak_memory += 1;
  expect_caught(answer, answer->peak_memory - 0.5, "within the limit");
  assert_int_equal(weft_plan_check(answer, LIMIT, NULL), WEFT_OK);
}

static struct weft_action *find(struct weft_program *table, uint32_t rank, enum weft_op op,
                                uint32_t microbatch) {
  for (uint64_t k = table->row_begin[rank]; k < table->row_begin[rank + 1]; k++) {
    if (table->actions[k].op == op && table->actions[k].microbatch == microbatch) {
      return &table->actions[k];
    }
  }
  fail_msg("the table has no such action");
  return NULL;
}

static void swap(struct weft_action *a, struct weft_action *b) {
  const struct weft_action kept = *a;
  *a = *b;
  *b = kept;
}

static void wrong_tables_are_caught(void **state) {
  struct weft_search_answer *answer = ((struct fixture *)*state)->answer;
  struct weft_action *forward = find(answer->table, 1, WEFT_OP_F, 0);
  /* A backward before its forward. */
  struct weft_action *backward = find(answer->table, 1, WEFT_OP_I, 0);
  swap(forward, backward);
  expect_caught(answer, LIMIT, "the plan cannot be");
  swap(forward, backward);
  /* The first and the last forward change places: the ranks before and after do not, and the
   * program deadlocks. */
  struct weft_action *last = find(answer->table, 1, WEFT_OP_F, MICROBATCHES - 1);
  swap(forward, last);
  expect_caught(answer, LIMIT, "the plan cannot be");
  swap(forward, last);
  /* One microbatch twice, another one never. */
  const struct weft_action kept = *last;
  *last = *forward;
  expect_caught(answer, LIMIT, "the plan cannot be");
  *last = kept;
  assert_int_equal(weft_plan_check(answer, LIMIT, NULL), WEFT_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(what_the_search_finds_passes, search, finish),
      cmocka_unit_test_setup_teardown(wrong_numbers_are_caught, search, finish),
      cmocka_unit_test_setup_teardown(wrong_tables_are_caught, search, finish),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
