/* The text grid: PyTorch's layout byte for byte, windows, marks, limits, and
 * failing memory. The files tests/expected/grid_*.txt were written by PyTorch
 * itself (tests/peers/test_pytorch_peer.py --update), from the golden tables of the
 * same names; that script also compares the grids of the other golden programs. */
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

/* The grid as a string on the heap. */
static char *grid_of(const struct weft_program *program, const struct weft_grid_options *options) {
  struct weft_text text = {.allocator = NULL};
  struct weft_error error;
  if (weft_grid_print(program, options, &text, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return text.data;
}

static void expect_grid(const char *csv, const struct weft_grid_options *options,
                        const char *expected) {
  struct weft_program *program = csv_program(csv);
  char *grid = grid_of(program, options);
  assert_string_equal(grid, expected);
  free(grid);
  weft_program_destroy(program);
}

static void test_pytorch_grids(void **state) {
  (void)state;
  static const char *const names[] = {
      "1F1B_p4_v1_m8.compute",
      "ZBVZeroBubble_p4_v2_m7.compute",
      "DualPipeV_p3_v2_m6.compute",
      "Interleaved1F1B_p2_v2_m4.comms",
      "InterleavedZeroBubble_p8_v2_m16.sim",
  };
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char name[256];
    (void)snprintf(name, sizeof name, "%s.csv", names[i]);
    struct weft_program *program = csv_golden(name);
    (void)snprintf(name, sizeof name, "tests/expected/grid_%s.txt", names[i]);
    char *expected = csv_read_file(name);
    char *grid = grid_of(program, NULL);
    assert_string_equal(grid, expected);
    free(grid);
    free(expected);
    weft_program_destroy(program);
  }
}

static void test_rows_of_different_lengths(void **state) {
  (void)state;
  expect_grid("0F0,0F1\n,1F0\n\"\"\n", NULL,
              "        Rank 0 Rank 1 Rank 2\n"
              "Step 0: 0F0                 \n"
              "Step 1: 0F1    1F0          \n");
}

/* PyTorch fails here; the columns are as wide as their heads. */
static void test_more_ranks_than_steps(void **state) {
  (void)state;
  expect_grid("0F0\n\n\n\n\n\n\n\n\n\n10F0\n", &(struct weft_grid_options){.rank_count = 0},
              "        Rank 0 Rank 1 Rank 2 Rank 3 Rank 4 Rank 5 Rank 6 Rank 7 Rank 8 Rank 9 "
              "Rank 10\n"
              "Step 0: 0F0                                                                   "
              "10F0   \n");
}

static void test_no_steps(void **state) {
  (void)state;
  expect_grid("\"\"\n\"\"\n", NULL, "        Rank 0 Rank 1\n");
}

static void test_overlap_is_one_cell(void **state) {
  (void)state;
  expect_grid("(0F1;1B0)OVERLAP_F_B,0F2\n2F0,2F1\n", NULL,
              "        Rank 0               Rank 1\n"
              "Step 0: (0F1;1B0)OVERLAP_F_B 2F0   \n"
              "Step 1: 0F2                  2F1   \n");
}

static void test_window_keeps_step_numbers(void **state) {
  (void)state;
  const char *csv = "0F0,0F1,0F2,0F3,0F4,0F5,0F6,0F7,0F8,0F9,0F10\n,1F0,(1F1;1B0)OVERLAP_F_B,1B1\n";
  expect_grid(csv, &(struct weft_grid_options){.step_first = 3, .step_count = 2},
              "         Rank 0  Rank 1 \n"
              "Step 03: 0F3     1B1    \n"
              "Step 04: 0F4            \n");
  expect_grid(csv, &(struct weft_grid_options){.step_first = 9},
              "         Rank 0  Rank 1 \n"
              "Step 09: 0F9            \n"
              "Step 10: 0F10           \n");
  expect_grid(csv, &(struct weft_grid_options){.step_first = 10, .step_count = UINT64_MAX},
              "         Rank 0  Rank 1 \n"
              "Step 10: 0F10           \n");
  expect_grid(csv, &(struct weft_grid_options){.step_first = UINT64_MAX, .step_count = 1},
              "         Rank 0  Rank 1 \n");
}

static void test_chosen_ranks_in_their_order(void **state) {
  (void)state;
  const uint32_t ranks[] = {2, 0, 2};
  expect_grid("0F0,0F1\n1F0\n,,2F0\n", &(struct weft_grid_options){.ranks = ranks, .rank_count = 3},
              "        Rank 2 Rank 0 Rank 2\n"
              "Step 0:        0F0          \n"
              "Step 1:        0F1          \n"
              "Step 2: 2F0           2F0   \n");
  expect_grid("0F0\n1F0\n", &(struct weft_grid_options){.ranks = ranks, .rank_count = 0},
              "        \n");
}

static void test_unknown_rank_is_refused(void **state) {
  (void)state;
  const uint32_t ranks[] = {0, 7};
  struct weft_program *program = csv_program("0F0\n1F0\n");
  struct weft_text text = {.allocator = NULL};
  struct weft_error error;
  assert_int_equal(
      weft_grid_print(program, &(struct weft_grid_options){.ranks = ranks, .rank_count = 2}, &text,
                      &error),
      WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "rank 7"));
  assert_int_equal(text.size, 0);
  weft_text_finish(&text);
  weft_program_destroy(program);
}

static void test_marks(void **state) {
  (void)state;
  struct weft_program *program = csv_program("0F0,0SEND_F0,0F1\n,1F0,1B0\n2F0\n");
  const struct weft_action *any = program->actions;
  const struct weft_location marks[] = {
      {.rank = 1, .step = 2, .action = any}, {.rank = 0, .step = 1, .action = any},
      {.rank = 0, .step = 2, .action = any}, {.rank = 0, .step = 1, .action = any},
      {.rank = 1, .step = 0, .action = any}, /* a bubble */
      {.rank = 2, .step = 1, .action = any}, /* past the end of the row */
      {.rank = 2, .step = 9, .action = any}, /* past the end of the grid */
      {.rank = 3, .step = 0, .action = any}, /* past the last rank */
  };
  const size_t count = sizeof marks / sizeof *marks;
  char *grid = grid_of(program, &(struct weft_grid_options){.marks = marks, .mark_count = count});
  assert_string_equal(grid,
                      "        Rank 0     Rank 1 Rank 2\n"
                      "Step 0: 0F0        ><     2F0    <-- ERROR HERE\n"
                      "Step 1: >0SEND_F0< 1F0    ><     <-- ERROR HERE\n"
                      "Step 2: >0F1<      >1B0<         <-- ERROR HERE\n");
  free(grid);
  /* Only what is shown is marked. */
  const uint32_t ranks[] = {1};
  grid = grid_of(
      program,
      &(struct weft_grid_options){
          .ranks = ranks, .rank_count = 1, .step_first = 1, .marks = marks, .mark_count = count});
  assert_string_equal(grid,
                      "        Rank 1\n"
                      "Step 1: 1F0   \n"
                      "Step 2: >1B0<  <-- ERROR HERE\n");
  free(grid);
  weft_program_destroy(program);
}

/* A mark without an action is about the whole rank. */
static void test_mark_of_a_rank(void **state) {
  (void)state;
  const struct weft_location mark = {.rank = 1, .step = 0};
  expect_grid("0F0\n1F0\n", &(struct weft_grid_options){.marks = &mark, .mark_count = 1},
              "        Rank 0 >Rank 1<\n"
              "Step 0: 0F0    1F0     \n");
}

static void test_text_is_appended(void **state) {
  (void)state;
  struct weft_program *program = csv_program("0F0\n");
  struct weft_text text = {.allocator = NULL};
  weft_text_add(&text, "before\n");
  assert_int_equal(weft_grid_print(program, NULL, &text, NULL), WEFT_OK);
  assert_string_equal(text.data, "before\n        Rank 0\nStep 0: 0F0   \n");
  weft_text_finish(&text);
  weft_program_destroy(program);
}

/* A program of `ranks` rows, the first with `steps` bubbles. */
static struct weft_program *flat_program(const struct weft_allocator *allocator, uint32_t ranks,
                                         uint64_t steps) {
  uint64_t *row_sizes = calloc(ranks, sizeof *row_sizes);
  struct weft_action *actions = calloc(steps, sizeof *actions);
  struct weft_program *program = NULL;
  assert_true(row_sizes != NULL && actions != NULL);
  row_sizes[0] = steps;
  assert_int_equal(weft_program_create(allocator, ranks, row_sizes, actions, &program, NULL),
                   WEFT_OK);
  free(actions);
  free(row_sizes);
  return program;
}

static void test_huge_grid_is_refused_at_once(void **state) {
  (void)state;
  struct weft_program *program = flat_program(NULL, WEFT_RANKS_MAX, 1000000);
  struct weft_text text = {.allocator = NULL};
  struct weft_error error;
  assert_int_equal(weft_grid_print(program, NULL, &text, &error), WEFT_ERR_LIMIT);
  assert_non_null(strstr(error.message, "1000000 steps by 65536 ranks"));
  assert_non_null(strstr(error.hint, "window"));
  assert_int_equal(text.size, 0);
  const struct weft_grid_options window = {.step_first = 999999, .step_count = 1};
  assert_int_equal(weft_grid_print(program, &window, &text, &error), WEFT_OK);
  weft_text_finish(&text);
  weft_program_destroy(program);
}

/* The largest grid that a file of 1 KiB can ask for stays below 8 MiB. */
static void test_a_kilobyte_takes_little(void **state) {
  (void)state;
  struct test_memory memory;
  test_memory_init(&memory);
  struct weft_program *program = flat_program(&memory.allocator, 512, 512);
  struct weft_text text = {.allocator = &memory.allocator};
  assert_int_equal(weft_grid_print(program, NULL, &text, NULL), WEFT_OK);
  assert_true(memory.bytes_peak <= 8u << 20);
  weft_text_finish(&text);
  weft_program_destroy(program);
  assert_int_equal(memory.blocks, 0);
}

static void test_every_failing_allocation(void **state) {
  (void)state;
  char *csv = csv_read_file("tests/golden/DualPipeV_p4_v2_m8.comms.csv");
  struct weft_action any = {.op = WEFT_OP_F};
  const struct weft_location mark = {.rank = 1, .step = 2, .action = &any};
  const struct weft_grid_options options = {.marks = &mark, .mark_count = 1};
  enum weft_status status = WEFT_ERR_MEMORY;
  uint64_t fail_at = 0;
  while (status == WEFT_ERR_MEMORY) {
    struct test_memory memory;
    struct weft_program *program = NULL;
    struct weft_error error;
    test_memory_init(&memory);
    assert_int_equal(
        weft_program_parse(&memory.allocator, csv, strlen(csv), "csv", &program, &error), WEFT_OK);
    struct weft_text text = {.allocator = &memory.allocator};
    weft_text_add(&text, "before");
    memory.fail_at = memory.calls + ++fail_at;
    status = weft_grid_print(program, &options, &text, &error);
    assert_true(status == WEFT_OK || status == WEFT_ERR_MEMORY);
    if (status != WEFT_OK) {
      assert_int_equal(error.status, WEFT_ERR_MEMORY);
      assert_string_equal(text.data, "before");
    }
    weft_text_finish(&text);
    weft_program_destroy(program);
    assert_int_equal(memory.blocks, 0);
  }
  assert_true(fail_at > 4);
  free(csv);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_pytorch_grids),
      cmocka_unit_test(test_rows_of_different_lengths),
      cmocka_unit_test(test_more_ranks_than_steps),
      cmocka_unit_test(test_no_steps),
      cmocka_unit_test(test_overlap_is_one_cell),
      cmocka_unit_test(test_window_keeps_step_numbers),
      cmocka_unit_test(test_chosen_ranks_in_their_order),
      cmocka_unit_test(test_unknown_rank_is_refused),
      cmocka_unit_test(test_marks),
      cmocka_unit_test(test_mark_of_a_rank),
      cmocka_unit_test(test_text_is_appended),
      cmocka_unit_test(test_huge_grid_is_refused_at_once),
      cmocka_unit_test(test_a_kilobyte_takes_little),
      cmocka_unit_test(test_every_failing_allocation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
