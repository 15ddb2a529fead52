/* The gate before MPI: one thread at a time, whichever way it came. The rank's own thread
 * and others count with a counter that is no atomic; ThreadSanitizer watches, too. */
#define _GNU_SOURCE /* syscall */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* The driver, of which it is a part, is loaded, not linked. */
#include "comm/mpi/driver/mpi_gate.c" // NOLINT(bugprone-suspicious-include)

enum { OTHERS = 2, OTHER_ROUNDS = 20000 };

struct yard {
  struct weft_mpi_gate gate;
  uint64_t count;
  uint64_t tries; /* that were let in */
  uint32_t over;  /* atomic: others that have come often enough */
};

static void *come_often(void *context) {
  struct yard *yard = context;
  for (int k = 0; k < OTHER_ROUNDS; k++) {
    if (k % 3 == 0 && weft_mpi_gate_try(&yard->gate)) {
      yard->count++;
      yard->tries++;
      weft_mpi_gate_release(&yard->gate);
    }
    weft_mpi_gate_seize(&yard->gate);
    yard->count++;
    if (k % 5 == 0) {
      const bool seized = weft_mpi_gate_step_out(&yard->gate);
      assert_true(seized);
      weft_mpi_gate_step_in(&yard->gate, seized);
      yard->count++;
    }
    weft_mpi_gate_release(&yard->gate);
  }
  __atomic_fetch_add(&yard->over, 1, __ATOMIC_RELAXED);
  return NULL;
}

static void play(bool shared) {
  struct yard yard = {.count = 0};
  pthread_t threads[OTHERS];
  assert_true(weft_mpi_gate_create(&yard.gate, shared));
  assert_false(shared && yard.gate.biased);
  for (int k = 0; k < OTHERS; k++) {
    assert_int_equal(pthread_create(&threads[k], NULL, come_often, &yard), 0);
  }
  uint64_t own = 0;
  for (; __atomic_load_n(&yard.over, __ATOMIC_RELAXED) < OTHERS; own++) {
    weft_mpi_gate_enter(&yard.gate);
    yard.count++;
    if (own % 1000 == 0) {
      const bool seized = weft_mpi_gate_step_out(&yard.gate);
      assert_true(!seized);
      weft_mpi_gate_step_in(&yard.gate, seized);
    }
    weft_mpi_gate_leave(&yard.gate);
  }
  for (int k = 0; k < OTHERS; k++) {
    assert_int_equal(pthread_join(threads[k], NULL), 0);
  }
  assert_int_equal(yard.count, own + OTHERS * (OTHER_ROUNDS + OTHER_ROUNDS / 5) + yard.tries);
  weft_mpi_gate_destroy(&yard.gate);
}

static void a_rank_and_others(void **state) {
  (void)state;
  play(false);
}

static void a_rank_and_its_thread(void **state) {
  (void)state;
  play(true);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_rank_and_others),
      cmocka_unit_test(a_rank_and_its_thread),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
