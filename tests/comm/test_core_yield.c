/* A rank gives up its core only while that is quick (comm/core_yield.h). */
#define _GNU_SOURCE /* sched_setaffinity */
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <weft/support.h>

#include "comm/core_yield.h"

enum { SLEEPS = 256, ROUNDS = 8, SLOW_NS = 100 * 1000 };

/* A process that computes on the core of this one. */
static pid_t start_neighbour(void) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((size_t)sched_getcpu(), &set);
  assert_return_code(sched_setaffinity(0, sizeof set, &set), 0);
  const pid_t child = fork();
  assert_return_code(child, 0);
  if (child == 0) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (volatile uint64_t k = 0;; k++) {
    }
  }
  return child;
}

/* Yields until one does not, and returns how long the last one took. */
static int64_t last_yield_ns(struct weft_core_yield *yield) {
  const int64_t began = weft_clock_ns();
  int64_t before = began;
  int64_t took = 0;
  while (weft_core_yield(yield)) { /* the neighbour may not run yet, or has had its share */
    const int64_t after = weft_clock_ns();
    took = after - before;
    before = after;
    assert_true(after - began < INT64_C(60000000000));
  }
  return took;
}

static void sleeps_beside_a_program_that_computes(void **state) {
  (void)state;
  struct weft_core_yield yield = {0};
  const pid_t neighbour = start_neighbour();
  for (int k = 0; k < SLEEPS; k++) {
    assert_false(weft_core_yield(&yield));
  }
  for (int round = 0; round < ROUNDS; round++) {
    assert_true(last_yield_ns(&yield) > SLOW_NS);
    for (int k = 1; k < SLEEPS; k++) {
      assert_false(weft_core_yield(&yield));
    }
  }
  assert_return_code(kill(neighbour, SIGKILL), 0);
  assert_int_equal(waitpid(neighbour, NULL, 0), neighbour);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(sleeps_beside_a_program_that_computes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
