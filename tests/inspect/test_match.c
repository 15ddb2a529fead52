/* Matching of SEND and RECV: golden programs, duplicates, ends of the pipeline,
 * a slow search on random programs, hostile input, and failing memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>
#include <weft/weft.h>

#include "support_csv.h"
#include "support_memory.h"

static uint32_t *matches_of(const struct weft_program *program) {
  uint32_t *matches = calloc(program->action_count + 1, sizeof *matches);
  struct weft_links *links;
  struct weft_error error;
  assert_non_null(matches);
  if (weft_links_create(NULL, program, &links, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  for (uint64_t i = 0; i < program->action_count; i++) {
    matches[i] = weft_links_peer(links, i);
  }
  weft_links_destroy(links);
  return matches;
}

static void expect_matches(const char *csv, const uint32_t *expected) {
  struct weft_program *program = csv_program(csv);
  uint32_t *matches = matches_of(program);
  for (uint64_t i = 0; i < program->action_count; i++) {
    assert_int_equal(matches[i], expected[i]);
  }
  free(matches);
  weft_program_destroy(program);
}

#define NONE WEFT_MATCH_NONE

static void test_both_directions(void **state) {
  (void)state;
  expect_matches(
      "0F0,0SEND_F0,0RECV_B0,0B0\n"
      "1RECV_F0,1F0,1B0,1SEND_B0\n",
      (const uint32_t[]){NONE, 4, 7, NONE, 1, NONE, NONE, 2});
}

static void test_first_of_duplicates(void **state) {
  (void)state;
  expect_matches("0SEND_F0,0SEND_F0\n1RECV_F0,1RECV_F0,1RECV_F0\n",
                 (const uint32_t[]){2, NONE, 0, NONE, NONE});
  expect_matches("1RECV_F3\n0SEND_F3\n1RECV_F3\n0SEND_F3\n", (const uint32_t[]){1, 0, NONE, NONE});
}

static void test_nothing_to_match(void **state) {
  (void)state;
  expect_matches("0F0,0B0\n1F0,1B0\n", (const uint32_t[]){NONE, NONE, NONE, NONE});
  expect_matches("0SEND_F0\n1RECV_F1\n", (const uint32_t[]){NONE, NONE});
  expect_matches("0SEND_F0\n1RECV_B0\n", (const uint32_t[]){NONE, NONE});
  expect_matches("0SEND_F0\n2RECV_F0\n", (const uint32_t[]){NONE, NONE});
  expect_matches("\"\"\n\"\"\n", NULL);
}

/* The first of the first stage with the first of the last. */
static void test_ties(void **state) {
  (void)state;
  expect_matches("0F0,0TIE_GRAD,0TIE_GRAD\n1F0,1TIE_GRAD\n2TIE_GRAD,2F0,2TIE_GRAD\n",
                 (const uint32_t[]){NONE, 5, NONE, NONE, NONE, 1, NONE, NONE});
  expect_matches("0TIE_GRAD,1TIE_GRAD\n", (const uint32_t[]){1, 0});
  expect_matches("0F0,0B0,0TIE_GRAD\n", (const uint32_t[]){NONE, NONE, NONE});
  expect_matches("0F0,0TIE_GRAD,1F0\n", (const uint32_t[]){NONE, NONE, NONE});
}

/* Over the ends of the pipeline there is nobody. */
static void test_missing_stages(void **state) {
  (void)state;
  expect_matches("0RECV_F0,0SEND_B0,1SEND_F0,1RECV_B0\n",
                 (const uint32_t[]){NONE, NONE, NONE, NONE});
}

static void test_parts_of_overlaps(void **state) {
  (void)state;
  expect_matches("(0F0;0SEND_F1)OVERLAP_F_B\n1RECV_F1\n", (const uint32_t[]){NONE, NONE, 3, 2});
}

/* In a lowered program everything has its other end, on another rank. */
static void check_golden(const char *stem) {
  char name[256];
  (void)snprintf(name, sizeof name, "%s.comms.csv", stem);
  struct weft_program *program = csv_golden(name);
  uint32_t *matches = matches_of(program);
  for (uint64_t i = 0; i < program->action_count; i++) {
    const struct weft_action action = program->actions[i];
    const enum weft_op_kind kind = weft_op_info(action.op)->kind;
    assert_int_equal(matches[i] != NONE, kind == WEFT_KIND_SEND || kind == WEFT_KIND_RECV);
    if (matches[i] != NONE) {
      const struct weft_action other = program->actions[matches[i]];
      assert_int_equal(matches[matches[i]], i);
      assert_int_equal(other.microbatch, action.microbatch);
      assert_int_equal(abs(other.stage - action.stage), 1);
    }
  }
  free(matches);
  weft_program_destroy(program);
}

static void test_golden_programs(void **state) {
  (void)state;
  assert_int_equal(csv_each_golden(".comms.csv", check_golden), 99);
}

/* The contract as a search: the k-th SEND of a message has no match unless k is
 * the first, nor has the k-th RECV. */
static bool is_other_end(struct weft_action send, struct weft_action recv) {
  return send.microbatch == recv.microbatch &&
         ((send.op == WEFT_OP_SEND_F && recv.op == WEFT_OP_RECV_F &&
           recv.stage == send.stage + 1) ||
          (send.op == WEFT_OP_SEND_B && recv.op == WEFT_OP_RECV_B && recv.stage + 1 == send.stage));
}

static bool is_first(const struct weft_program *program, uint64_t index) {
  for (uint64_t i = 0; i < index; i++) {
    if (memcmp(&program->actions[i], &program->actions[index], sizeof *program->actions) == 0) {
      return false;
    }
  }
  return true;
}

static uint32_t search(const struct weft_program *program, uint64_t index) {
  for (uint64_t i = 0; i < program->action_count; i++) {
    const struct weft_action a = program->actions[index];
    const struct weft_action b = program->actions[i];
    if ((is_other_end(a, b) || is_other_end(b, a)) && is_first(program, index)) {
      return (uint32_t)i;
    }
  }
  return NONE;
}

static void test_random_programs(void **state) {
  (void)state;
  struct weft_random random = {.state = 7};
  for (unsigned round = 0; round < 2000; round++) {
    struct weft_action actions[24];
    const uint32_t count = weft_random_below(&random, 24);
    const uint64_t row_sizes[2] = {count / 2, count - count / 2};
    for (uint32_t i = 0; i < count; i++) {
      actions[i] = (struct weft_action){
          .op = (uint8_t)(WEFT_OP_F + weft_random_below(&random, WEFT_OP_RECV_B)),
          .stage = (uint16_t)weft_random_below(&random, 3),
          .microbatch = weft_random_below(&random, 2)};
    }
    struct weft_program *program = NULL;
    assert_int_equal(weft_program_create(NULL, 2, row_sizes, actions, &program, NULL), WEFT_OK);
    uint32_t *matches = matches_of(program);
    for (uint32_t i = 0; i < count; i++) {
      assert_int_equal(matches[i], search(program, i));
    }
    free(matches);
    weft_program_destroy(program);
  }
}

static void test_sparse_programs_are_refused(void **state) {
  (void)state;
  struct weft_program *program = csv_program("0SEND_F16777215,65535RECV_B0\n");
  struct weft_links *links;
  struct weft_error error;
  assert_int_equal(weft_links_create(NULL, program, &links, &error), WEFT_ERR_INVALID);
  assert_non_null(strstr(error.message, "too sparse"));
  assert_non_null(strstr(error.message, "65536 stages"));
  weft_program_destroy(program);
}

static void test_failing_allocation(void **state) {
  (void)state;
  const char *csv = "0F0,0SEND_F0\n1RECV_F0,1F0\n";
  struct test_memory memory;
  struct weft_program *program = NULL;
  struct weft_error error;
  struct weft_links *links;
  test_memory_init(&memory);
  assert_int_equal(weft_program_parse(&memory.allocator, csv, strlen(csv), "csv", &program, &error),
                   WEFT_OK);
  const size_t blocks = memory.blocks;
  memory.fail_at = memory.calls + 1;
  assert_int_equal(weft_links_create(&memory.allocator, program, &links, &error), WEFT_ERR_MEMORY);
  assert_int_equal(error.status, WEFT_ERR_MEMORY);
  memory.fail_at = 0;
  assert_int_equal(weft_links_create(&memory.allocator, program, &links, &error), WEFT_OK);
  weft_links_destroy(links);
  assert_int_equal(memory.blocks, blocks);
  weft_program_destroy(program);
  assert_int_equal(memory.blocks, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_both_directions),    cmocka_unit_test(test_first_of_duplicates),
      cmocka_unit_test(test_nothing_to_match),   cmocka_unit_test(test_missing_stages),
      cmocka_unit_test(test_parts_of_overlaps),  cmocka_unit_test(test_golden_programs),
      cmocka_unit_test(test_random_programs),    cmocka_unit_test(test_sparse_programs_are_refused),
      cmocka_unit_test(test_failing_allocation), cmocka_unit_test(test_ties),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
