/* The long trial of the verifier against brute force: 200,000 programs and as
 * many tables, with other seeds than the test of every run
 * (test_verify_brute_force.c; what is compared is in support_campaign.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support_campaign.h"

#define PROGRAMS 200000u

static void trial(uint64_t seed, bool communicate) {
  struct campaign campaign = {.seed = seed, .programs = PROGRAMS, .communicate = communicate};
  if (!campaign_run(&campaign)) {
    fail_msg("%s", campaign.complaint);
  }
  const uint64_t pairs = campaign.complete + campaign.stuck;
  assert_true(campaign.complete * 10 > pairs);
  assert_true(campaign.stuck * 10 > pairs);
}

static void programs_under_every_model(void **state) {
  (void)state;
  trial(77001, true);
}

static void tables(void **state) {
  (void)state;
  trial(77002, false);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(programs_under_every_model),
      cmocka_unit_test(tables),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
