/* The long trial of the NCCL channel models: 20,000 programs whose stages form a random graph, with
 * another seed than the test of every run (test_verify_nccl.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support_nccl_campaign.h"

static void graphs_under_every_nccl_model(void **state) {
  (void)state;
  struct nccl_counts counts;
  nccl_campaign(77005, 20000, true, &counts);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(graphs_under_every_nccl_model)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
