/* The verifier against every interleaving of 20,000 random small programs under
 * all twelve communication models, and of 20,000 random compute-only tables;
 * what is compared is written in support_campaign.c. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support_campaign.h"
#include "support_draft.h"
#include "support_oracle.h"

#define PROGRAMS 20000u

static void report(const char *what, const struct campaign *campaign) {
  printf("%s: %" PRIu32 " programs, %" PRIu64 " complete, %" PRIu64 " stuck, %" PRIu32
         " differ by model (edge/pair %" PRIu32 ", pair/rank %" PRIu32 ", 1/2 slots %" PRIu32
         ", 2 slots/eager %" PRIu32 "), %" PRIu32 " misordered, %" PRIu64
         " cycles replayed, %" PRIu64 " states\n",
         what, campaign->programs, campaign->complete, campaign->stuck, campaign->differing,
         campaign->edge_pair, campaign->pair_rank, campaign->one_two, campaign->two_eager,
         campaign->misordered, campaign->cycles, campaign->states);
}

static void programs_under_every_model(void **state) {
  (void)state;
  struct campaign campaign = {.seed = 20240601, .programs = PROGRAMS, .communicate = true};
  if (!campaign_run(&campaign)) {
    fail_msg("%s", campaign.complaint);
  }
  report("programs", &campaign);
  /* The trial is worth something only if both verdicts are common, and if the
   * models are often told apart. */
  const uint64_t pairs = campaign.complete + campaign.stuck;
  assert_true(campaign.complete * 10 > pairs);
  assert_true(campaign.stuck * 10 > pairs);
  assert_true(campaign.differing * 10 > PROGRAMS);
  assert_true(campaign.edge_pair > 200 && campaign.pair_rank > 10);
  assert_true(campaign.one_two > 200 && campaign.two_eager > 10);
  assert_true(campaign.misordered > 200);
}

static void tables(void **state) {
  (void)state;
  struct campaign campaign = {.seed = 20240602, .programs = PROGRAMS, .communicate = false};
  if (!campaign_run(&campaign)) {
    fail_msg("%s", campaign.complaint);
  }
  report("tables", &campaign);
  assert_true(campaign.complete * 10 > PROGRAMS);
  assert_true(campaign.stuck * 10 > PROGRAMS);
}

/* The explorer itself, on programs small enough to be done in one's head. */
struct small {
  const char *rows;
  const char *verdicts; /* per model in oracle_model() order: c completes, s gets stuck */
};

static const struct small small_programs[] = {
    /* One message. */
    {"0F0,0SEND_F0\n1RECV_F0,1F0\n", "cccccccccccc"},
    /* Both send before they receive: any buffer helps. */
    {"0F0,0SEND_F0,3RECV_F0,3F0\n1RECV_F0,1F0,2F0,2SEND_F0\n", "cccccccccccc"},
    {"0F0,0F1,0SEND_F0,0SEND_F1,2RECV_F0,2F0,2RECV_F1,2F1\n"
     "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1\n",
     "sssccccccccc"},
    /* Both receive first: nothing helps. */
    {"0F0,2RECV_F0,2F0,0SEND_F0\n1RECV_F0,1F0,1SEND_F0\n", "ssssssssssss"},
    /* Activation and gradient to the same rank, taken in the other order: only a
     * channel for each boundary helps, and one slot. */
    {"0F0,0SEND_F0,2RECV_F0,2F0,2B0,0F1,0SEND_F1,2SEND_B0,0RECV_B0,0B0,2RECV_F1,2F1,2B1,"
     "2SEND_B1,0RECV_B1,0B1\n"
     "1RECV_F0,1F0,1SEND_F0,1RECV_B0,1B0,1SEND_B0,1RECV_F1,1F1,1SEND_F1,1RECV_B1,1B1,1SEND_B1\n",
     "ssscsscsscss"},
};

static void small_programs_by_hand(void **state) {
  (void)state;
  for (size_t k = 0; k < sizeof small_programs / sizeof small_programs[0]; k++) {
    struct weft_program *program = NULL;
    struct weft_error error = {0};
    struct oracle oracle;
    const char *rows = small_programs[k].rows;
    assert_int_equal(weft_program_parse(NULL, rows, strlen(rows), NULL, &program, &error), WEFT_OK);
    assert_true(oracle_init(&oracle, program));
    char verdicts[ORACLE_MODELS + 1] = "";
    for (uint32_t model = 0; model < ORACLE_MODELS; model++) {
      const struct oracle_exploration found = oracle_explore(&oracle, oracle_model(model));
      assert_int_equal(found.ends, 1);
      verdicts[model] = found.ends_complete == 1 ? 'c' : 's';
    }
    assert_string_equal(verdicts, small_programs[k].verdicts);
    oracle_finish(&oracle);
    weft_program_destroy(program);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(small_programs_by_hand),
      cmocka_unit_test(programs_under_every_model),
      cmocka_unit_test(tables),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
