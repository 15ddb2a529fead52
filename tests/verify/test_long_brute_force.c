/* The long trial of the verifier against brute force: 200,000 programs and as
 * many tables, and 50,000 of each whose stages form a random graph, with other seeds than the test of every run
 * (test_verify_brute_force.c; what is compared is in support_campaign.c). */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "support_campaign.h"

#define PROGRAMS 200000u
#define GRAPHS 50000u

static void trial(uint64_t seed, bool communicate, bool graph) {
  struct campaign campaign = {.seed = seed,
                              .programs = graph ? GRAPHS : PROGRAMS,
                              .communicate = communicate,
                              .graph = graph};
  if (!campaign_run(&campaign)) {
    fail_msg("%s", campaign.complaint);
  }
  const uint64_t pairs = campaign.complete + campaign.stuck;
  printf("%" PRIu32 " programs, %" PRIu64 " complete, %" PRIu64 " stuck, %" PRIu64
         " cycles, %" PRIu64 " states, %" PRIu64 " skips\n",
         campaign.programs, campaign.complete, campaign.stuck, campaign.cycles, campaign.states,
         campaign.skips);
  assert_true(campaign.complete * 10 > pairs);
  assert_true(campaign.stuck * 10 > pairs);
}

static void programs_under_every_model(void **state) {
  (void)state;
  trial(77001, true, false);
}

static void tables(void **state) {
  (void)state;
  trial(77002, false, false);
}

static void graphs_under_every_model(void **state) {
  (void)state;
  trial(77003, true, true);
}

static void tables_of_graphs(void **state) {
  (void)state;
  trial(77004, false, true);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(programs_under_every_model),
      cmocka_unit_test(tables),
      cmocka_unit_test(graphs_under_every_model),
      cmocka_unit_test(tables_of_graphs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
