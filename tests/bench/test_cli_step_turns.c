/* Turns: one party at a time makes a step; whoever ends is noticed by the others. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/bench_clock.h"
#include "bench/step_turns.h"
#include "cli/cli.h"

enum { STEPS = 3, LIMIT_MS = 60 * 1000 };

/* Its ranks are processes, which this one has made. */
struct party {
  pid_t ranks[WEFT_CLI_TURN_RANKS];
  struct weft_cli_child child; /* as far as turns look at it */
};

static struct weft_cli_turns turns;
static int log_ends[2]; /* what ranks have done */

/* A forked process has the pipes open; one that is started does not. */
static void forget_pipes(const struct weft_cli_turns *given) {
  for (uint32_t party = 0; party < WEFT_CLI_TURN_PARTIES; party++) {
    for (uint32_t r = 0; r < WEFT_CLI_TURN_RANKS; r++) {
      (void)close(given->go[party][r]);
    }
    (void)close(given->done[party]);
  }
}

static void be_rank(uint32_t party, uint32_t rank, uint32_t steps) {
  struct weft_cli_turn turn;
  char path[WEFT_CLI_TURN_PATH];
  const char letter = (char)('a' + party);
  weft_cli_turns_path(&turns, party, path);
  forget_pipes(&turns);
  for (uint32_t step = 0; step < steps; step++) {
    weft_cli_turn_take(&turn, path, rank, step == 0, NULL);
    if (write(log_ends[1], &letter, 1) != 1) {
      _exit(1);
    }
  }
  if (steps == STEPS) { /* else it ends in a step */
    weft_cli_turn_take(&turn, path, rank, false, NULL);
    weft_cli_turn_close(&turn);
  }
  _exit(0);
}

static void start(struct party *party, uint32_t number, uint32_t steps) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  for (uint32_t r = 0; r < WEFT_CLI_TURN_RANKS; r++) {
    party->ranks[r] = fork();
    assert_true(party->ranks[r] >= 0);
    if (party->ranks[r] == 0) {
      be_rank(number, r, steps);
    }
  }
  (void)close(ends[1]);
  party->child =
      (struct weft_cli_child){.fd = ends[0], .limit_ms = LIMIT_MS, .begin_ns = weft_cli_clock_ns()};
}

static void expect_end(struct party *party, int status) {
  for (uint32_t r = 0; r < WEFT_CLI_TURN_RANKS; r++) {
    int how;
    assert_int_equal(waitpid(party->ranks[r], &how, 0), party->ranks[r]);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), status);
  }
  (void)close(party->child.fd);
}

static int set_up(void **state) {
  (void)state;
  return pipe(log_ends) == 0 && weft_cli_turns_open(&turns) ? 0 : -1;
}

static int tear_down(void **state) {
  struct stat info;
  (void)state;
  weft_cli_turns_close(&turns);
  (void)close(log_ends[0]);
  (void)close(log_ends[1]);
  return stat(turns.folder, &info) == 0; /* nothing is left */
}

static void test_one_at_a_time(void **state) {
  static const uint32_t order[] = {0, 1, 1, 0, 0, 1};
  struct party parties[2];
  char log[2];
  (void)state;
  start(&parties[0], 0, STEPS);
  start(&parties[1], 1, STEPS);
  for (size_t k = 0; k < sizeof order / sizeof order[0]; k++) {
    uint64_t ns = 0;
    assert_true(weft_cli_turns_give(&turns, order[k], &parties[order[k]].child, &ns));
    assert_true(ns > 0);
    assert_int_equal(read(log_ends[0], log, 2), 2);
    assert_int_equal(log[0], 'a' + (int)order[k]);
    assert_int_equal(log[1], 'a' + (int)order[k]);
  }
  weft_cli_turns_let_go(&turns, 0);
  weft_cli_turns_let_go(&turns, 1);
  expect_end(&parties[0], 0);
  expect_end(&parties[1], 0);
}

/* A party that ends in a step, and one that waits for a turn which never comes. */
static void test_somebody_ends(void **state) {
  struct party parties[2];
  uint64_t ns;
  (void)state;
  start(&parties[0], 0, 1);
  start(&parties[1], 1, STEPS);
  assert_true(weft_cli_turns_give(&turns, 1, &parties[1].child, &ns));
  assert_false(weft_cli_turns_give(&turns, 0, &parties[0].child, &ns));
  expect_end(&parties[0], 0);
  weft_cli_turns_close(&turns);
  expect_end(&parties[1], WEFT_CLI_PEER);
}

static void test_limit(void **state) {
  struct party party;
  uint64_t ns;
  (void)state;
  start(&party, 0, STEPS);
  party.child.limit_ms = 0;
  assert_false(weft_cli_turns_give(&turns, 0, &party.child, &ns));
  for (uint32_t r = 0; r < WEFT_CLI_TURN_RANKS; r++) {
    (void)kill(party.ranks[r], SIGKILL);
    assert_int_equal(waitpid(party.ranks[r], NULL, 0), party.ranks[r]);
  }
  (void)close(party.child.fd);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_one_at_a_time, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_somebody_ends, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_limit, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
