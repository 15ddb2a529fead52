/* Sums of 16-bit floats by the built-in kernels, against exact sums that are rounded another way. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <weft/support.h>

#include "device/kernel.h"

/* A 16-bit float: so many bits of exponent, and the rest but the sign of mantissa. */
static double value_of(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits,
            mantissa = bits & ((1 << mantissa_bits) - 1);
  double value;
  if (exponent == (1 << exponent_bits) - 1) {
    value = mantissa > 0 ? (double)NAN : (double)INFINITY;
  } else {
    value = exponent == 0 ? ldexp(mantissa, 1 - bias - mantissa_bits)
                          : ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
  return bits >> 15 ? -value : value;
}

static double rounded(double value, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  int exponent;
  if (value == 0 || !isfinite(value)) {
    return value;
  }
  (void)frexp(value, &exponent); /* in 2^(exponent - 1) ... 2^exponent */
  int unit = exponent - 1 - mantissa_bits;
  unit = unit < 1 - bias - mantissa_bits ? 1 - bias - mantissa_bits : unit;
  const double near = ldexp(nearbyint(ldexp(value, -unit)), unit);
  return fabs(near) >= ldexp(1, bias + 1) ? copysign((double)INFINITY, value) : near;
}

static void check(enum weft_kernel_id kernel, int exponent_bits, uint16_t a, uint16_t b) {
  struct weft_error error;
  uint64_t count = 1;
  uint16_t sum = a, more = b;
  void *to = &sum;
  const void *from = &more;
  void *const parameters[] = {&to, &from, &count};
  assert_int_equal(weft_kernel_launch(NULL, kernel, 1, parameters, NULL, &error), WEFT_OK);
  const double found = value_of(sum, exponent_bits);
  const double expected =
      rounded(value_of(a, exponent_bits) + value_of(b, exponent_bits), exponent_bits);
  if (isnan(expected) ? !isnan(found) : found != expected || signbit(found) != signbit(expected)) {
    fail_msg("%04x + %04x = %04x: %a instead of %a", a, b, sum, found, expected);
  }
}

static void test_sums_of_16_bits(void **state) {
  (void)state;
  const struct {
    enum weft_kernel_id kernel;
    int exponent_bits;
  } kinds[] = {{WEFT_KERNEL_ADD_F16, 5}, {WEFT_KERNEL_ADD_BF16, 8}};
  struct weft_random random = {.state = 1};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(kinds); k++) {
    for (uint32_t a = 0; a < 65536; a++) {
      check(kinds[k].kernel, kinds[k].exponent_bits, (uint16_t)a, 0);
      check(kinds[k].kernel, kinds[k].exponent_bits, (uint16_t)a, (uint16_t)(a ^ 1));
      for (int n = 0; n < 8; n++) { /* exponents that are near each other, too */
        const uint16_t b = (uint16_t)weft_random_below(&random, 65536);
        check(kinds[k].kernel, kinds[k].exponent_bits, (uint16_t)a,
              n < 4 ? b : (uint16_t)((a & 0x7000) | (b & 0x8fff)));
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums_of_16_bits)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
