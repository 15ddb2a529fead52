/* The verifier against every interleaving of 20,000 random small programs under
 * all twelve communication models, and of 20,000 random compute-only tables; and of 4,000 of each
 * whose stages form a random graph (test_long_brute_force.c has more). What is compared is written
 * in support_campaign.c. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_campaign.h"
#include "support_draft.h"
#include "support_oracle.h"
#include "support_random_program.h"

#if defined(__SANITIZE_ADDRESS__)
#define PROGRAMS 2500u /* about memory; what is right the other build asks all of them */
#define GRAPHS 1000u
#else
#define PROGRAMS 20000u
#define GRAPHS 4000u
#endif
#define OFTEN (PROGRAMS / 100)
#define SOMETIMES (PROGRAMS / 2000)

static void report(const char *what, const struct campaign *campaign) {
  printf("%s: %" PRIu32 " programs, %" PRIu64 " complete, %" PRIu64 " stuck, %" PRIu32
         " differ by model (edge/pair %" PRIu32 ", pair/rank %" PRIu32 ", 1/2 slots %" PRIu32
         ", 2 slots/eager %" PRIu32 "), %" PRIu32 " misordered, %" PRIu64
         " need more than a slot, %" PRIu64 " cycles replayed, %" PRIu64 " states\n",
         what, campaign->programs, campaign->complete, campaign->stuck, campaign->differing,
         campaign->edge_pair, campaign->pair_rank, campaign->one_two, campaign->two_eager,
         campaign->misordered, campaign->grown, campaign->cycles, campaign->states);
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
  assert_true(campaign.edge_pair > OFTEN && campaign.pair_rank > SOMETIMES);
  assert_true(campaign.one_two > OFTEN && campaign.two_eager > SOMETIMES);
  assert_true(campaign.misordered > OFTEN);
  assert_true(campaign.grown > OFTEN);
}

static void graphs_under_every_model(void **state) {
  (void)state;
  struct campaign campaign = {
      .seed = 20261117, .programs = GRAPHS, .communicate = true, .graph = true};
  if (!campaign_run(&campaign)) {
    fail_msg("%s", campaign.complaint);
  }
  report("programs of graphs", &campaign);
  const uint64_t pairs = campaign.complete + campaign.stuck;
  assert_true(campaign.complete * 10 > pairs && campaign.stuck * 10 > pairs);
  assert_true(campaign.differing * 10 > GRAPHS && campaign.edge_pair * 100 > GRAPHS);
  assert_true(campaign.misordered * 200 > GRAPHS && campaign.skips > GRAPHS);
}

static void tables_of_graphs(void **state) {
  (void)state;
  struct campaign campaign = {.seed = 20261118, .programs = GRAPHS, .graph = true};
  if (!campaign_run(&campaign)) {
    fail_msg("%s", campaign.complaint);
  }
  report("tables of graphs", &campaign);
  assert_true(campaign.complete * 10 > GRAPHS && campaign.stuck * 10 > GRAPHS);
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

/* Lowering by the same measure: a table can be lowered exactly if it can be
 * executed, and its program then completes under every model. */
static void check_lowering(const struct weft_program *table, uint32_t *lowered) {
  struct oracle oracle;
  struct oracle_run run;
  struct weft_program *program = NULL;
  struct weft_error error = {0};
  assert_true(oracle_init(&oracle, table));
  oracle_run(&oracle, oracle_model(0), &run);
  const enum weft_status status = weft_lower(NULL, table, NULL, &program, &error);
  assert_int_equal(status, run.complete ? WEFT_OK : WEFT_ERR_INVALID);
  oracle_run_finish(&run);
  oracle_finish(&oracle);
  if (status != WEFT_OK) {
    assert_true(error.message[0] != '\0');
    return;
  }
  ++*lowered;
  struct oracle_place place;
  assert_false(oracle_fault(program, &place));
  assert_true(oracle_init(&oracle, program));
  for (uint32_t model = 0; model < ORACLE_MODELS; model++) {
    oracle_run(&oracle, oracle_model(model), &run);
    assert_true(run.complete);
    oracle_run_finish(&run);
  }
  struct weft_report *verdict = NULL;
  assert_int_equal(weft_verify(NULL, program, NULL, &verdict, &error), WEFT_OK);
  assert_true(verdict->ok);
  weft_report_destroy(verdict);
  oracle_finish(&oracle);
  weft_program_destroy(program);
}

static void lower_tables(uint64_t seed, uint32_t count, bool graph) {
  const struct random_limits limits = {.graph = graph, .cells_two = 26, .cells_three = 18};
  struct weft_random random = {.state = seed};
  struct draft draft = {0};
  uint32_t lowered = 0;
  for (uint32_t k = 0; k < count; k++) {
    bool misordered;
    random_program(&random, &limits, &draft, &misordered);
    struct weft_program *table = draft_build(&draft);
    check_lowering(table, &lowered);
    weft_program_destroy(table);
  }
  draft_finish(&draft);
  printf("tables: %" PRIu32 " of %" PRIu32 " lowered\n", lowered, count);
  assert_in_range(lowered, count / 10, count - count / 10);
}

static void tables_are_lowered_if_executable(void **state) {
  (void)state;
  lower_tables(20240603, PROGRAMS, false);
}

static void graphs_are_lowered_if_executable(void **state) {
  (void)state;
  lower_tables(20261119, GRAPHS, true);
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
      cmocka_unit_test(tables_are_lowered_if_executable),
      cmocka_unit_test(graphs_under_every_model),
      cmocka_unit_test(tables_of_graphs),
      cmocka_unit_test(graphs_are_lowered_if_executable),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
