/* What is said about ranks that hang: who waits for whom, chains, circles, every
 * phase, dumps, and what is read back out of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "run/hang.h"
#include "support_boards.h"
#include "support_memory.h"

#define SECOND INT64_C(1000000000)
#define NOBODY UINT32_MAX

/* Tenths of a second, as times are said. */
static int64_t tenths(int64_t count) { return count * (SECOND / 10); }

/* The same from a picture and straight from the boards. */
static struct weft_failure blame(struct boards *boards, uint32_t reporter) {
  struct weft_failure now = {.rank = 77}, later = {.rank = 78};
  struct weft_hang hang;
  struct weft_error error;
  weft_hang_blame_now(&boards->transport, reporter, &now);
  assert_int_equal(weft_hang_take(NULL, &boards->transport, &hang, &error), WEFT_OK);
  weft_hang_blame(&hang, reporter, &later);
  weft_hang_finish(&hang);
  assert_int_equal(now.rank, later.rank);
  assert_string_equal(now.error.message, later.error.message);
  assert_string_equal(now.error.hint, later.error.hint);
  assert_int_equal(now.error.status, WEFT_ERR_STALLED);
  assert_int_equal(later.error.status, WEFT_ERR_STALLED);
  return now;
}

static void check(struct boards *boards, uint32_t reporter, uint32_t culprit, const char *message,
                  const char *hint) {
  const struct weft_failure failure = blame(boards, reporter);
  assert_string_equal(failure.error.message, message);
  assert_string_equal(failure.error.hint, hint);
  assert_int_equal(failure.rank, culprit);
}

/* ---- Who is to blame ---- */

static void test_neighbour(void **state) {
  (void)state;
  struct boards boards;
  boards_init(&boards, 4, "threads");
  board_set(&boards, 3, WEFT_PHASE_RECEIVE, "2RECV_F5", 2, "1SEND_F5", tenths(312));
  board_set(&boards, 2, WEFT_PHASE_COMPUTE, "1F6", NOBODY, "", tenths(315));
  check(&boards, 3, 2,
        "rank 3 has waited 31.2 s in 2RECV_F5 for rank 2, which is in 1F6 since 31.5 s",
        "look at rank 2's stage 1: it has not returned from its forward");
  board_set(&boards, 3, WEFT_PHASE_RECEIVE, "2F5", 2, "1SEND_F5", tenths(312));
  check(&boards, 3, 2,
        "rank 3 has waited 31.2 s before 2F5 for rank 2, which is in 1F6 since 31.5 s",
        "look at rank 2's stage 1: it has not returned from its forward");
  board_set(&boards, 3, WEFT_PHASE_SEND, "2SEND_B1", 2, "1RECV_B1", tenths(312));
  check(&boards, 3, 2,
        "rank 3 has waited 31.2 s in 2SEND_B1 for rank 2, which is in 1F6 since 31.5 s",
        "look at rank 2's stage 1: it has not returned from its forward");
  boards_finish(&boards);
}

static void test_compute_functions(void **state) {
  (void)state;
  static const struct {
    const char *action, *hint;
  } cases[] = {
      {"1B6", "look at rank 0's stage 1: it has not returned from its backward"},
      {"1I6", "look at rank 0's stage 1: it has not returned from its input gradient"},
      {"1W6", "look at rank 0's stage 1: it has not returned from its weight gradient"},
      {"1UNSHARD", "look at rank 0's stage 1: it has not returned from its UNSHARD"},
      {"1REDUCE_GRAD", "look at rank 0's stage 1: it has not returned from its REDUCE_GRAD"},
      {"(0F8;7B0)OVERLAP_F_B", "look at rank 0: it has not returned from its OVERLAP_F_B"},
  };
  struct boards boards;
  boards_init(&boards, 2, "threads");
  board_set(&boards, 1, WEFT_PHASE_RECEIVE, "2RECV_F5", 0, "", tenths(300));
  for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
    board_set(&boards, 0, WEFT_PHASE_COMPUTE, cases[k].action, NOBODY, "", tenths(300));
    const struct weft_failure failure = blame(&boards, 1);
    assert_string_equal(failure.error.hint, cases[k].hint);
    assert_int_equal(failure.rank, 0);
  }
  assert_string_equal(
      blame(&boards, 1).error.message,
      "rank 1 has waited 30.0 s in 2RECV_F5 for rank 0, which is in OVERLAP_F_B since 30.0 s");
  board_set(&boards, 0, WEFT_PHASE_COMPUTE, "1F6", NOBODY, "", tenths(3));
  assert_string_equal(blame(&boards, 1).error.hint,
                      "rank 0 is slow rather than stuck: it began this only 0.3 s ago; a larger "
                      "stall_limit gives it time");
  boards_finish(&boards);
}

static void test_chain(void **state) {
  (void)state;
  struct boards boards;
  boards_init(&boards, 3, "threads");
  board_set(&boards, 0, WEFT_PHASE_RECEIVE, "0B0", 1, "1SEND_B0", tenths(300));
  board_set(&boards, 1, WEFT_PHASE_RECEIVE, "1B0", 2, "2SEND_B0", tenths(302));
  board_set(&boards, 2, WEFT_PHASE_COMPUTE, "2F0", NOBODY, "", tenths(304));
  check(&boards, 0, 2,
        "rank 0 has waited 30.0 s before 0B0 for rank 1, which waits for rank 2, which is in 2F0 "
        "since 30.4 s",
        "look at rank 2's stage 2: it has not returned from its forward");
  boards_finish(&boards);
}

/* A chain of all ranks to the last one. */
static void set_chain(struct boards *boards, uint32_t count) {
  for (uint32_t r = 0; r + 1 < count; r++) {
    char action[32];
    (void)snprintf(action, sizeof action, "%uRECV_B0", r);
    board_set(boards, r, WEFT_PHASE_RECEIVE, action, r + 1, "", tenths(300));
  }
}

static void test_chain_lengths(void **state) {
  (void)state;
  struct boards boards;
  boards_init(&boards, 6, "threads");
  set_chain(&boards, 6);
  board_set(&boards, 5, WEFT_PHASE_COMPUTE, "5F0", NOBODY, "", tenths(301));
  assert_string_equal(blame(&boards, 1).error.message,
                      "rank 1 has waited 30.0 s in 1RECV_B0 for rank 2, which waits for rank 3, "
                      "which waits for rank 4, which waits for rank 5, which is in 5F0 since "
                      "30.1 s");
  assert_string_equal(blame(&boards, 0).error.message,
                      "rank 0 has waited 30.0 s in 0RECV_B0 for rank 1, which waits for rank 2, "
                      "which waits (through 2 more) for rank 5, which is in 5F0 since 30.1 s");
  assert_string_equal(blame(&boards, 5).error.message, "rank 5 is in 5F0 since 30.1 s");
  boards_finish(&boards);
}

static void test_many_ranks(void **state) {
  (void)state;
  struct boards boards;
  boards_init(&boards, 1024, "threads");
  set_chain(&boards, 1024);
  board_set(&boards, 1023, WEFT_PHASE_COMPUTE, "1023F0", NOBODY, "", tenths(301));
  check(&boards, 0, 1023,
        "rank 0 has waited 30.0 s in 0RECV_B0 for rank 1, which waits for rank 2, which waits "
        "(through 1020 more) for rank 1023, which is in 1023F0 since 30.1 s",
        "look at rank 1023's stage 1023: it has not returned from its forward");
  board_set(&boards, 1023, WEFT_PHASE_RECEIVE, "1023RECV_F7", 0, "0SEND_F7", tenths(301));
  check(&boards, 512, 0,
        "a circle of 1024 ranks: rank 0 waits in 0RECV_B0 for rank 1; rank 1 waits in 1RECV_B0 "
        "for rank 2; rank 2 waits in 2RECV_B0 for rank 3; and 1021 more",
        "the program can deadlock: 'weft verify' shows the circle");
  boards_finish(&boards);
}

static void test_circle(void **state) {
  (void)state;
  static const char hint[] = "the program can deadlock: 'weft verify' shows the circle";
  struct boards boards;
  boards_init(&boards, 5, "threads");
  board_set(&boards, 0, WEFT_PHASE_RECEIVE, "0RECV_B0", 1, "1SEND_B0", tenths(300));
  board_set(&boards, 1, WEFT_PHASE_RECEIVE, "1RECV_F1", 0, "0SEND_F1", tenths(300));
  const char *circle =
      "a circle: rank 0 waits in 0RECV_B0 for rank 1 (1SEND_B0); rank 1 waits in 1RECV_F1 for "
      "rank 0 (0SEND_F1)";
  check(&boards, 0, 0, circle, hint);
  check(&boards, 1, 0, circle, hint);
  board_set(&boards, 4, WEFT_PHASE_RECEIVE, "4F0", 3, "", tenths(295));
  board_set(&boards, 3, WEFT_PHASE_SEND, "3SEND_B0", 1, "", tenths(296));
  check(&boards, 3, 0,
        "rank 3 has waited 29.6 s in 3SEND_B0 for rank 1, which is in a circle: rank 0 waits in "
        "0RECV_B0 for rank 1 (1SEND_B0); rank 1 waits in 1RECV_F1 for rank 0 (0SEND_F1)",
        hint);
  check(&boards, 4, 0,
        "rank 4 has waited 29.5 s before 4F0 for rank 3, which waits for rank 1, which is in a "
        "circle: rank 0 waits in 0RECV_B0 for rank 1 (1SEND_B0); rank 1 waits in 1RECV_F1 for "
        "rank 0 (0SEND_F1)",
        hint);
  board_set(&boards, 2, WEFT_PHASE_SEND, "2SEND_F0", 2, "3RECV_F0", tenths(300));
  check(&boards, 2, 2, "a circle: rank 2 waits in 2SEND_F0 for itself (3RECV_F0)", hint);
  boards_finish(&boards);
}

/* The longest names and numbers there can be. */
static void test_longest_message(void **state) {
  (void)state;
  struct boards boards;
  boards_init(&boards, WEFT_RANKS_MAX, "threads");
  for (uint32_t r = 0; r < WEFT_RANKS_MAX; r++) {
    board_set(&boards, r, WEFT_PHASE_RECEIVE, "", r + 1, "", tenths(300));
    boards.boards[r].since = INT64_MIN;
    boards.boards[r].action = board_action("0RECV_F0") | UINT64_C(0xffffffffffff0000);
    boards.boards[r].wants = board_action("0SEND_F0") | UINT64_C(0xffffffffffff0000);
  }
  boards.boards[WEFT_RANKS_MAX - 1].peer = WEFT_RANKS_MAX - 100;
  const struct weft_failure failure = blame(&boards, 60000);
  assert_int_equal(failure.rank, WEFT_RANKS_MAX - 100);
  assert_non_null(strstr(failure.error.message, "which is in a circle of 100 ranks: rank 65436"));
  assert_null(strstr(failure.error.message, "..."));
  assert_non_null(strstr(failure.error.message, " more"));
  boards_finish(&boards);
}

static void test_phases(void **state) {
  (void)state;
  struct boards boards;
  boards_init(&boards, 2, "threads");
  board_set(&boards, 0, WEFT_PHASE_RECEIVE, "0RECV_B0", 1, "1SEND_B0", tenths(300));
  boards.boards[0].step = 7;
  check(&boards, 0, 1, "rank 0 has waited 30.0 s in 0RECV_B0 for rank 1, which never came",
        "see whether rank 1 was started, and whether it ended with an error of its own");
  boards.boards[1].step = 6;
  boards.boards[1].since = boards.now - tenths(310);
  check(&boards, 0, 1,
        "rank 0 has waited 30.0 s in 0RECV_B0 for rank 1, which has left, 31.0 s ago",
        "see whether rank 1 still runs, and whether it ended with an error of its own");
  board_set(&boards, 1, WEFT_PHASE_DONE, "", NOBODY, "", tenths(310));
  check(&boards, 0, 1,
        "rank 0 has waited 30.0 s in 0RECV_B0 for rank 1, which has done its part of step 6",
        "rank 1 has not begun step 7: see what it does between steps, and that all ranks take as "
        "many");
  boards.boards[1].step = 7;
  check(&boards, 0, 1,
        "rank 0 has waited 30.0 s in 0RECV_B0 for rank 1, which has done its part of step 7",
        "nothing is left that rank 1 would send: see that all ranks run the same program, and that "
        "'weft verify' passes it");
  board_set(&boards, 1, WEFT_PHASE_FAILED, "1F0", NOBODY, "", tenths(310));
  check(&boards, 0, 1, "rank 0 has waited 30.0 s in 0RECV_B0 for rank 1, which has failed",
        "rank 1's own error says why");
  board_set(&boards, 1, WEFT_PHASE_RECEIVE, "1F0", NOBODY, "", tenths(310));
  check(&boards, 0, 1,
        "rank 0 has waited 30.0 s in 0RECV_B0 for rank 1, which waits before 1F0 since 31.0 s, for "
        "nobody that is known",
        "look at rank 1's row of the program: 'weft verify' shows whether it can end");
  board_set(&boards, 1, WEFT_PHASE_SEND, "", 2, "", tenths(310));
  check(&boards, 0, 1,
        "rank 0 has waited 30.0 s in 0RECV_B0 for rank 1, which waits since 31.0 s, for nobody "
        "that is known",
        "look at rank 1's row of the program: 'weft verify' shows whether it can end");
  boards_finish(&boards);
}

static void test_handshake(void **state) {
  (void)state;
  struct boards boards;
  boards_init(&boards, 4, "threads");
  for (uint32_t r = 0; r < 4; r++) {
    board_set(&boards, r, WEFT_PHASE_GREETING, "", NOBODY, "", tenths(300));
  }
  check(&boards, 1, 1, "rank 1 waits in the handshake since 30.0 s, for nobody that is known",
        "every rank has come to the handshake: look at the network between them");
  board_set(&boards, 3, WEFT_PHASE_AWAY, "", NOBODY, "", boards.now);
  check(&boards, 1, 3, "rank 1 has waited 30.0 s in the handshake for rank 3, which never came",
        "see whether rank 3 was started, and whether it ended with an error of its own");
  board_set(&boards, 0, WEFT_PHASE_RECEIVE, "0RECV_B0", 2, "", tenths(290));
  check(&boards, 0, 3,
        "rank 0 has waited 29.0 s in 0RECV_B0 for rank 2, which waits for rank 3, which never came",
        "see whether rank 3 was started, and whether it ended with an error of its own");
  /* The second step's handshake, while rank 2 is still in the first step. */
  for (uint32_t r = 0; r < 4; r++) {
    board_set(&boards, r, WEFT_PHASE_GREETING, "", NOBODY, "", tenths(300));
    boards.boards[r].step = 2;
  }
  board_set(&boards, 2, WEFT_PHASE_COMPUTE, "2W9", NOBODY, "", tenths(330));
  boards.boards[2].step = 1;
  check(&boards, 0, 2,
        "rank 0 has waited 30.0 s in the handshake for rank 2, which is in 2W9 since 33.0 s",
        "look at rank 2's stage 2: it has not returned from its weight gradient");
  board_set(&boards, 1, WEFT_PHASE_GREETING, "", 3, "", tenths(300));
  board_set(&boards, 3, WEFT_PHASE_FAILED, "", NOBODY, "", tenths(300));
  assert_int_equal(blame(&boards, 1).rank, 3);
  boards_finish(&boards);
}

static void test_ticks_and_odd_times(void **state) {
  (void)state;
  struct boards boards;
  boards_init(&boards, 2, "chaos(loopback)");
  boards.now = 40;
  board_set(&boards, 0, WEFT_PHASE_RECEIVE, "0RECV_B0", 1, "1SEND_B0", 31);
  board_set(&boards, 1, WEFT_PHASE_COMPUTE, "1F0", NOBODY, "", 1);
  assert_string_equal(
      blame(&boards, 0).error.message,
      "rank 0 has waited 31 ticks in 0RECV_B0 for rank 1, which is in 1F0 since 1 tick");
  boards.boards[1].since = INT64_MAX; /* from the future */
  boards.boards[0].since = INT64_MIN;
  assert_string_equal(
      blame(&boards, 0).error.message,
      "rank 0 has waited 9223372036854775848 ticks in 0RECV_B0 for rank 1, which is in 1F0 since "
      "0 ticks");
  boards_finish(&boards);
}

/* Boards that say nonsense: phases and ops that do not exist, overlaps with parts
 * that are not there. */
static void test_nonsense(void **state) {
  (void)state;
  struct boards boards;
  boards_init(&boards, 2, "threads");
  board_set(&boards, 0, WEFT_PHASE_RECEIVE, "0RECV_B0", 1, "", tenths(300));
  for (uint32_t k = 0; k < 4096; k++) {
    boards.boards[1].phase = k % 9;
    boards.boards[1].peer = k % 5;
    boards.boards[1].action = UINT64_C(0x9e3779b97f4a7c15) * k;
    boards.boards[1].wants = UINT64_C(0xff51afd7ed558ccd) * k;
    boards.boards[1].recent_count = k;
    const struct weft_failure failure = blame(&boards, 0);
    assert_true(failure.rank < 2);
    assert_true(strlen(failure.error.message) > 0);
    assert_true(strlen(failure.error.hint) > 0);
  }
  boards_finish(&boards);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_neighbour),       cmocka_unit_test(test_compute_functions),
      cmocka_unit_test(test_chain),           cmocka_unit_test(test_chain_lengths),
      cmocka_unit_test(test_many_ranks),      cmocka_unit_test(test_circle),
      cmocka_unit_test(test_longest_message), cmocka_unit_test(test_phases),
      cmocka_unit_test(test_handshake),       cmocka_unit_test(test_ticks_and_odd_times),
      cmocka_unit_test(test_nonsense),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
