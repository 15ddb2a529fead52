/* The NCCL channel models of the verifier and of the simulator against every interleaving of random
 * small programs; what is compared is written in support_nccl_campaign.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_nccl_campaign.h"
#include "support_oracle_nccl.h"

#if defined(__SANITIZE_ADDRESS__)
#define PROGRAMS 200u /* about memory; what is right the other build asks all of them */
#define GRAPHS 100u
#else
#define PROGRAMS 2000u
#define GRAPHS 500u /* test_long_verify_nccl.c has more */
#endif

static void programs_under_every_nccl_model(void **state) {
  (void)state;
  struct nccl_counts counts;
  nccl_campaign(20261116, PROGRAMS, false, &counts);
}

static void graphs_under_every_nccl_model(void **state) {
  (void)state;
  struct nccl_counts counts;
  nccl_campaign(20261120, GRAPHS, true, &counts);
}

/* Programs small enough to be done in one's head: a letter per model, as oracle_nccl_model()
 * counts them: c completes, s gets stuck. */
static const struct {
  const char *rows, *verdicts;
} small_programs[] = {
    {"0F0,0SEND_F0\n1RECV_F0,1F0\n", "ccccccccccccccc"},
    /* Both send before they receive: one communicator for both directions hangs, unless a send is
     * buffered. */
    {"0F0,0F1,0SEND_F0,0SEND_F1,2RECV_F0,2F0,2RECV_F1,2F1\n"
     "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1\n",
     "csscccccccccccc"},
    /* A receive that comes too early holds up the send that the other rank needs for it. */
    {"0F0,2RECV_F0,0SEND_F0,2F0\n1RECV_F0,1F0,1SEND_F0\n", "csscsscsscssccc"},
    /* The same over a third rank: only one communicator for all ranks hangs, buffered or not. */
    {"0F0,3RECV_F0,0SEND_F0,3F0\n1RECV_F0,1F0,1SEND_F0\n2RECV_F0,2F0,2SEND_F0\n",
     "ccsccsccsccsccc"},
    /* Sends are enqueued behind compute that needs what they bring about. */
    {"0F0,2RECV_F0,2F0,0SEND_F0\n1RECV_F0,1F0,1SEND_F0\n", "sssssssssssssss"},
    /* Two boundaries between the same two ranks, received in another order than sent. */
    {"0F0,0SEND_F0,2RECV_F0,2F0,2B0,0F1,0SEND_F1,2SEND_B0,0RECV_B0,0B0,2RECV_F1,2F1,2B1,"
     "2SEND_B1,0RECV_B1,0B1\n"
     "1RECV_F0,1F0,1SEND_F0,1RECV_B0,1B0,1SEND_B0,1RECV_F1,1F1,1SEND_F1,1RECV_B1,1B1,1SEND_B1\n",
     "sssssssssssscss"},
};

static void small_programs_by_hand(void **state) {
  (void)state;
  for (size_t k = 0; k < sizeof small_programs / sizeof small_programs[0]; k++) {
    const char *rows = small_programs[k].rows;
    struct weft_program *program = NULL;
    struct weft_error error = {0};
    struct oracle oracle;
    struct nccl_counts counts = {0};
    assert_int_equal(weft_program_parse(NULL, rows, strlen(rows), NULL, &program, &error), WEFT_OK);
    assert_true(oracle_init(&oracle, program));
    char verdicts[ORACLE_NCCL_MODELS + 1] = "";
    for (uint32_t model = 0; model < ORACLE_NCCL_MODELS; model++) {
      verdicts[model] = nccl_check_model(program, &oracle, model, &counts) ? 'c' : 's';
    }
    assert_string_equal(verdicts, small_programs[k].verdicts);
    oracle_finish(&oracle);
    weft_program_destroy(program);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(small_programs_by_hand),
                                     cmocka_unit_test(programs_under_every_nccl_model),
                                     cmocka_unit_test(graphs_under_every_nccl_model)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
