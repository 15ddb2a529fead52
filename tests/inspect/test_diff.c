/* The difference of two programs: hand-made cases; on random ones that the
 * script turns a into b and is as short as a longest common subsequence allows;
 * rows beyond the edit limit; hostile input; failing memory. */
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

enum { CELLS_MAX = 4096 };

static struct weft_diff *diff_of(const struct weft_program *a, const struct weft_program *b,
                                 size_t differences_max) {
  struct weft_diff *diff = NULL;
  struct weft_error error;
  if (weft_diff_create(NULL, a, b, differences_max, &diff, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return diff;
}

static void add_side(struct weft_text *text, uint64_t step, const struct weft_action *action) {
  assert_int_equal(action == NULL, step == UINT64_MAX);
  if (action == NULL) {
    weft_text_add(text, "-");
  } else {
    weft_text_addf(text, "%llu:", (unsigned long long)step);
    weft_action_print(action, text);
  }
}

/* "rank a b" per difference, a side as "step:cell" or "-". */
static void expect_diff(const char *csv_a, const char *csv_b, const char *expected) {
  struct weft_program *a = csv_program(csv_a);
  struct weft_program *b = csv_program(csv_b);
  struct weft_diff *diff = diff_of(a, b, SIZE_MAX);
  struct weft_text text = {.allocator = NULL};
  weft_text_add(&text, "");
  for (size_t i = 0; i < diff->difference_count; i++) {
    const struct weft_difference *difference = &diff->differences[i];
    weft_text_addf(&text, "%u ", difference->rank);
    add_side(&text, difference->step_a, difference->a);
    weft_text_add(&text, " ");
    add_side(&text, difference->step_b, difference->b);
    weft_text_add(&text, "\n");
  }
  assert_string_equal(text.data, expected);
  assert_int_equal(diff->left_out, 0);
  weft_text_finish(&text);
  weft_diff_destroy(diff);
  weft_program_destroy(b);
  weft_program_destroy(a);
}

static void test_equal_programs(void **state) {
  (void)state;
  expect_diff("0F0,,0B0\n1F0\n", "0F0,,0B0\n1F0\n", "");
  expect_diff("\"\"\n", "\"\"\n", "");
}

static void test_changed_cell(void **state) {
  (void)state;
  expect_diff("0F0,0F1,0F2\n", "0F0,0F7,0F2\n", "0 1:0F1 1:0F7\n");
}

static void test_removed_and_new_cells(void **state) {
  (void)state;
  expect_diff("0F0,0F1,0F2\n", "0F0,0F2\n", "0 1:0F1 -\n");
  expect_diff("0F0,0F2\n", "0F0,0F1,0F2\n", "0 - 1:0F1\n");
  expect_diff("0F0,0F1,0F2,0F3\n", "0F1,0F2,0F3,0F4\n", "0 0:0F0 -\n0 - 3:0F4\n");
}

static void test_gap_of_unequal_sides(void **state) {
  (void)state;
  expect_diff("0F0,0F1,0F2,0F9\n", "0F0,0B1,0F9\n", "0 1:0F1 1:0B1\n0 2:0F2 -\n");
  expect_diff("0F0,0F1,0F9\n", "0F0,0B1,0B2,0F9\n", "0 1:0F1 1:0B1\n0 - 2:0B2\n");
}

static void test_bubbles_count(void **state) {
  (void)state;
  expect_diff("0F0,0B0\n", "0F0,,0B0\n", "0 - 1:\n");
}

static void test_overlap_is_one_cell(void **state) {
  (void)state;
  expect_diff("0F0,(0F1;1B0)OVERLAP_F_B,0B1\n", "0F0,(0F1;1B3)OVERLAP_F_B,0B1\n",
              "0 1:(0F1;1B0)OVERLAP_F_B 1:(0F1;1B3)OVERLAP_F_B\n");
  /* Its parts are no cells of their own. */
  expect_diff("(0F1;1B0)OVERLAP_F_B\n", "0F1,1B0\n", "0 0:(0F1;1B0)OVERLAP_F_B 0:0F1\n0 - 1:1B0\n");
}

static void test_rank_of_one_side_only(void **state) {
  (void)state;
  expect_diff("0F0\n", "0F0\n1F0,1B0\n", "1 - 0:1F0\n1 - 1:1B0\n");
  expect_diff("0F0\n1F0,1B0\n", "0F0\n", "1 0:1F0 -\n1 1:1B0 -\n");
  expect_diff("0F0\n", "0F0\n\"\"\n", "1 - -\n");
}

static void test_differences_max(void **state) {
  (void)state;
  struct weft_program *a = csv_program("0F0,0F1,0F2\n1F0\n");
  struct weft_program *b = csv_program("0F9,0F1,0F8\n1F7\n");
  for (size_t most = 0; most <= 4; most++) {
    struct weft_diff *diff = diff_of(a, b, most);
    assert_int_equal(diff->difference_count, most < 3 ? most : 3);
    assert_int_equal(diff->left_out, 3 - diff->difference_count);
    weft_diff_destroy(diff);
  }
  weft_program_destroy(b);
  weft_program_destroy(a);
}

static void test_destroy_takes_null(void **state) {
  (void)state;
  weft_diff_destroy(NULL);
}

/* One rank's row as cells. */
struct cells {
  const struct weft_action *at[CELLS_MAX];
  size_t count;
};

static void cells_load(struct cells *cells, const struct weft_program *program, uint32_t rank) {
  cells->count = 0;
  if (rank < program->rank_count) {
    for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1];
         i += 1u + program->actions[i].parts) {
      assert_true(cells->count < CELLS_MAX);
      cells->at[cells->count++] = &program->actions[i];
    }
  }
}

static bool cells_equal(const struct weft_action *a, const struct weft_action *b) {
  return a->parts == b->parts && memcmp(a, b, (1u + a->parts) * sizeof *a) == 0;
}

/* Applies the differences of one rank to row a; row b must come out. Returns the
 * number of insertions and deletions. */
static size_t apply(const struct cells *a, const struct cells *b, uint32_t rank,
                    const struct weft_diff *diff) {
  size_t edits = 0, x = 0, y = 0;
  for (size_t i = 0; i < diff->difference_count; i++) {
    const struct weft_difference *difference = &diff->differences[i];
    if (difference->rank != rank) {
      continue;
    }
    if (difference->a == NULL && difference->b == NULL) {
      assert_true(a->count == 0 && b->count == 0); /* an empty row that one side lacks */
      continue;
    }
    while (x != difference->step_a && y != difference->step_b) {
      assert_true(x < a->count && y < b->count && cells_equal(a->at[x++], b->at[y++]));
    }
    if (difference->a != NULL) {
      assert_ptr_equal(difference->a, a->at[difference->step_a]);
      assert_int_equal(difference->step_a, x++);
      edits++;
    }
    if (difference->b != NULL) {
      assert_ptr_equal(difference->b, b->at[difference->step_b]);
      assert_int_equal(difference->step_b, y++);
      edits++;
    }
  }
  while (x < a->count && y < b->count) {
    assert_true(cells_equal(a->at[x++], b->at[y++]));
  }
  assert_true(x == a->count && y == b->count);
  return edits;
}

/* Length of a longest common subsequence, by the textbook table. */
static size_t common_length(const struct cells *a, const struct cells *b) {
  static size_t row[CELLS_MAX + 1];
  memset(row, 0, sizeof row);
  for (size_t x = 0; x < a->count; x++) {
    size_t diagonal = 0;
    for (size_t y = 0; y < b->count; y++) {
      const size_t above = row[y + 1];
      if (cells_equal(a->at[x], b->at[y])) {
        row[y + 1] = diagonal + 1;
      } else if (row[y] > above) {
        row[y + 1] = row[y];
      }
      diagonal = above;
    }
  }
  return row[b->count];
}

/* Checks all ranks; `minimal`: also that no shorter script exists. */
static void check_diff(const struct weft_program *a, const struct weft_program *b, bool minimal) {
  static struct cells cells_a, cells_b;
  const uint32_t ranks = a->rank_count > b->rank_count ? a->rank_count : b->rank_count;
  struct weft_diff *diff = diff_of(a, b, SIZE_MAX);
  for (size_t i = 1; i < diff->difference_count; i++) {
    assert_true(diff->differences[i - 1].rank <= diff->differences[i].rank);
  }
  for (uint32_t rank = 0; rank < ranks; rank++) {
    cells_load(&cells_a, a, rank);
    cells_load(&cells_b, b, rank);
    const size_t edits = apply(&cells_a, &cells_b, rank, diff);
    if (minimal) {
      const size_t common = common_length(&cells_a, &cells_b);
      assert_int_equal(edits, cells_a.count + cells_b.count - 2 * common);
    }
  }
  assert_int_equal(diff->difference_count == 0, weft_program_equal(a, b));
  weft_diff_destroy(diff);
}

/* A cell of few kinds, so that much is common; overlaps among them. */
static uint32_t random_cell(struct weft_random *random, uint32_t kinds, struct weft_action *to) {
  const uint32_t kind = weft_random_below(random, kinds);
  if (kind == 2) {
    to[0] = (struct weft_action){.op = WEFT_OP_OVERLAP_F_B, .parts = 2};
    to[1] = (struct weft_action){.op = WEFT_OP_F, .microbatch = weft_random_below(random, 2)};
    to[2] = (struct weft_action){.op = WEFT_OP_B, .stage = 1};
    return 3;
  }
  to[0] = kind == 0 ? (struct weft_action){.op = WEFT_OP_IDLE}
                    : (struct weft_action){.op = WEFT_OP_F, .microbatch = kind};
  return 1;
}

static struct weft_program *random_program(struct weft_random *random, uint32_t kinds,
                                           uint32_t cells_max) {
  static struct weft_action actions[3 * 3 * CELLS_MAX];
  uint64_t row_sizes[3] = {0};
  const uint32_t ranks = 1 + weft_random_below(random, 3);
  uint32_t used = 0;
  for (uint32_t rank = 0; rank < ranks; rank++) {
    const uint32_t begin = used;
    for (uint32_t cells = weft_random_below(random, cells_max + 1); cells > 0; cells--) {
      used += random_cell(random, kinds, actions + used);
    }
    row_sizes[rank] = used - begin;
  }
  struct weft_program *program = NULL;
  assert_int_equal(weft_program_create(NULL, ranks, row_sizes, actions, &program, NULL), WEFT_OK);
  return program;
}

static void check_random(unsigned rounds, uint32_t kinds, uint32_t cells_max, bool minimal) {
  struct weft_random random = {.state = kinds * 1000 + cells_max};
  for (unsigned round = 0; round < rounds; round++) {
    struct weft_program *a = random_program(&random, kinds, cells_max);
    struct weft_program *b = random_program(&random, kinds, cells_max);
    check_diff(a, b, minimal);
    check_diff(a, a, true);
    weft_program_destroy(b);
    weft_program_destroy(a);
  }
}

static void test_random_programs_minimal(void **state) {
  (void)state;
  check_random(4000, 4, 8, true);
  check_random(1000, 8, 30, true);
  check_random(200, 40, 120, true);
}

/* More edits than the limit: still a right script. */
static void test_beyond_the_edit_limit(void **state) {
  (void)state;
  check_random(10, 2000, 1500, false);
  check_random(10, 5, 4000, false);
}

/* Schedules of the same shape are far apart; of each other's edits, near. */
static void test_real_schedules(void **state) {
  (void)state;
  static const char *const names[] = {"Interleaved1F1B_p4_v2_m8.comms.csv",
                                      "InterleavedZeroBubble_p4_v2_m8.comms.csv",
                                      "LoopedBFS_p4_v2_m8.comms.csv",
                                      "ZBVZeroBubble_p4_v2_m8.comms.csv",
                                      "DualPipeV_p4_v2_m8.comms.csv",
                                      "DualPipeV_p4_v2_m8.compute.csv",
                                      "1F1B_p2_v1_m2.comms.csv"};
  const size_t count = sizeof names / sizeof *names;
  for (size_t i = 0; i < count * count; i++) {
    struct weft_program *a = csv_golden(names[i / count]);
    struct weft_program *b = csv_golden(names[i % count]);
    check_diff(a, b, true);
    weft_program_destroy(b);
    weft_program_destroy(a);
  }
}

/* A large program against itself with one cell moved: few differences, and no
 * table of rows by rows. */
static void test_large_and_near(void **state) {
  (void)state;
  enum { CELLS = 1000000 };
  struct weft_action *actions = calloc(CELLS, sizeof *actions);
  const uint64_t row_sizes[1] = {CELLS};
  struct weft_program *a = NULL, *b = NULL;
  struct weft_diff *diff = NULL;
  struct test_memory memory;
  assert_non_null(actions);
  for (uint32_t i = 0; i < CELLS; i++) {
    actions[i] = (struct weft_action){.op = WEFT_OP_F, .microbatch = i};
  }
  assert_int_equal(weft_program_create(NULL, 1, row_sizes, actions, &a, NULL), WEFT_OK);
  memmove(actions + 1000, actions + 1001, (CELLS - 1001) * sizeof *actions);
  actions[CELLS - 1] = (struct weft_action){.op = WEFT_OP_F, .microbatch = 1000};
  assert_int_equal(weft_program_create(NULL, 1, row_sizes, actions, &b, NULL), WEFT_OK);
  test_memory_init(&memory);
  assert_int_equal(weft_diff_create(&memory.allocator, a, b, 10, &diff, NULL), WEFT_OK);
  assert_int_equal(diff->difference_count, 2);
  assert_int_equal(diff->differences[0].step_a, 1000);
  assert_int_equal(diff->differences[1].step_b, CELLS - 1);
  assert_true(memory.bytes_peak < (size_t)12 * CELLS);
  weft_diff_destroy(diff);
  assert_int_equal(memory.blocks, 0);
  weft_program_destroy(b);
  weft_program_destroy(a);
  free(actions);
}

/* Two files of 1 KiB stay below 8 MiB. */
static void test_a_kilobyte_takes_little(void **state) {
  (void)state;
  char commas[1024], cells[1024];
  memset(commas, ',', sizeof commas - 1);
  commas[sizeof commas - 1] = '\0';
  for (size_t i = 0; i + 4 < sizeof cells; i += 4) {
    memcpy(cells + i, "0F0,", 5);
  }
  struct weft_program *a = csv_program(commas);
  struct weft_program *b = csv_program(cells);
  struct test_memory memory;
  struct weft_diff *diff = NULL;
  test_memory_init(&memory);
  assert_int_equal(weft_diff_create(&memory.allocator, a, b, SIZE_MAX, &diff, NULL), WEFT_OK);
  assert_true(memory.bytes_peak <= 8u << 20);
  weft_diff_destroy(diff);
  weft_program_destroy(b);
  weft_program_destroy(a);
}

static void test_every_failing_allocation(void **state) {
  (void)state;
  struct weft_program *a = csv_golden("DualPipeV_p4_v2_m8.comms.csv");
  struct weft_program *b = csv_golden("ZBVZeroBubble_p4_v2_m8.comms.csv");
  enum weft_status status = WEFT_ERR_MEMORY;
  uint64_t fail_at = 0;
  while (status == WEFT_ERR_MEMORY) {
    struct test_memory memory;
    struct weft_diff *diff = NULL;
    struct weft_error error;
    test_memory_init(&memory);
    memory.fail_at = ++fail_at;
    status = weft_diff_create(&memory.allocator, a, b, SIZE_MAX, &diff, &error);
    assert_true(status == WEFT_OK || (status == WEFT_ERR_MEMORY && diff == NULL));
    assert_true(status == WEFT_OK || error.status == WEFT_ERR_MEMORY);
    weft_diff_destroy(diff);
    assert_int_equal(memory.blocks, 0);
    assert_int_equal(memory.bytes, 0);
  }
  assert_true(fail_at > 5);
  weft_program_destroy(b);
  weft_program_destroy(a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_equal_programs),
      cmocka_unit_test(test_changed_cell),
      cmocka_unit_test(test_removed_and_new_cells),
      cmocka_unit_test(test_gap_of_unequal_sides),
      cmocka_unit_test(test_bubbles_count),
      cmocka_unit_test(test_overlap_is_one_cell),
      cmocka_unit_test(test_rank_of_one_side_only),
      cmocka_unit_test(test_differences_max),
      cmocka_unit_test(test_destroy_takes_null),
      cmocka_unit_test(test_random_programs_minimal),
      cmocka_unit_test(test_beyond_the_edit_limit),
      cmocka_unit_test(test_real_schedules),
      cmocka_unit_test(test_large_and_near),
      cmocka_unit_test(test_a_kilobyte_takes_little),
      cmocka_unit_test(test_every_failing_allocation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
