/* Amounts for people, and how far apart two names are. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

static void amounts_are_short(void **state) {
  (void)state;
  static const struct {
    double amount;
    const char *text;
  } cases[] = {{0, "0"},           {1, "1"},
               {100, "100"},       {24.75, "24.75"},
               {1.0 / 3, "0.333"}, {0.01, "0.01"},
               {0.009, "0.009"},   {0.00123456, "0.001235"},
               {-2.5, "-2.5"},     {999999999, "999999999"},
               {1e9, "1e+09"},     {1.5e12, "1.5e+12"},
               {1e-7, "1e-07"},    {INFINITY, "inf"}};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(cases); k++) {
    char buffer[WEFT_AMOUNT_SIZE];
    assert_string_equal(weft_amount(buffer, sizeof buffer, cases[k].amount), cases[k].text);
  }
}

static size_t distance(const char *a, const char *b) {
  const size_t found = weft_name_distance(a, strlen(a), b, strlen(b));
  assert_int_equal(found, weft_name_distance(b, strlen(b), a, strlen(a)));
  return found;
}

static void names_are_as_far_apart_as_typing_mistakes(void **state) {
  (void)state;
  char name[50];
  assert_int_equal(distance("memory", "memory"), 0);
  assert_int_equal(distance("Memory", "mEMORY"), 0);
  assert_int_equal(distance("memroy", "memory"), 1); /* a swap */
  assert_int_equal(distance("memry", "memory"), 1);
  assert_int_equal(distance("mempry", "memory"), 1);
  assert_int_equal(distance("", "memory"), 6);
  assert_int_equal(distance("gpipe", "zbv"), 5);
  memset(name, 'a', sizeof name);
  assert_int_equal(weft_name_distance(name, 48, name, 47), 1);
  assert_true(weft_name_distance(name, 49, name, 1) == SIZE_MAX);
  assert_true(weft_name_distance(name, 1, name, 49) == SIZE_MAX);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(amounts_are_short),
      cmocka_unit_test(names_are_as_far_apart_as_typing_mistakes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
