/* The learning rate over a run: its corners, and that it has no jump. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "trainer/train/rank.h"

static void assert_near(double found, double expected) {
  assert_true(fabs(found - expected) <= 1e-15 + 1e-12 * fabs(expected));
}

static void test_warmup(void **state) {
  (void)state;
  assert_near(weft_gpt_learning_rate(0, 1e-3, 1e-4, 10, 100), 1e-4);
  assert_near(weft_gpt_learning_rate(4, 1e-3, 1e-4, 10, 100), 5e-4);
  assert_true(weft_gpt_learning_rate(9, 1e-3, 1e-4, 10, 100) == 1e-3);
  assert_true(weft_gpt_learning_rate(10, 1e-3, 1e-4, 10, 100) == 1e-3);
  assert_true(weft_gpt_learning_rate(0, 1e-3, 1e-4, 0, 100) == 1e-3);
  assert_true(weft_gpt_learning_rate(0, 1e-3, 1e-4, 1, 100) == 1e-3);
  assert_near(weft_gpt_learning_rate(4, 1e-3, 1e-4, 10, 5), 5e-4);
}

static void test_cosine(void **state) {
  (void)state;
  assert_near(weft_gpt_learning_rate(55, 1e-3, 1e-4, 10, 100), 5.5e-4);
  assert_near(weft_gpt_learning_rate(40, 1e-3, 1e-4, 10, 100), 1e-4 + 9e-4 * 0.75); /* a third */
  assert_true(weft_gpt_learning_rate(100, 1e-3, 1e-4, 10, 100) == 1e-4);
  assert_true(weft_gpt_learning_rate(UINT64_MAX, 1e-3, 1e-4, 10, 100) == 1e-4);
  assert_true(weft_gpt_learning_rate(0, 1e-3, 1e-4, 0, 0) == 1e-4);
  assert_true(weft_gpt_learning_rate(50, 1e-3, 1e-3, 10, 100) == 1e-3); /* a constant one */
}

static void test_no_jumps(void **state) {
  (void)state;
  double before = weft_gpt_learning_rate(20, 6e-4, 6e-5, 20, 1000);
  for (uint64_t step = 21; step <= 1000; step++) {
    const double now = weft_gpt_learning_rate(step, 6e-4, 6e-5, 20, 1000);
    assert_true(now < before && now >= 6e-5);
    assert_true(before - now < 6e-4 * 2 / 980);
    before = now;
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_warmup),
      cmocka_unit_test(test_cosine),
      cmocka_unit_test(test_no_jumps),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
