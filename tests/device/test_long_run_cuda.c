/* Every schedule on 2 to 8 ranks under 5,000 seeds each, on the fake CUDA driver. WEFT_TEST_SEEDS:
 * another number of them. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <weft/gen.h>

#include "fake_cuda.h"
#include "support_cuda_seeds.h"

enum { SEEDS = 5000, GRAPH_SHARE = 2 };

static void every_schedule_under_many_seeds(void **state) {
  const char *text = getenv("WEFT_TEST_SEEDS");
  const uint32_t count = text != NULL ? (uint32_t)atoi(text) : SEEDS;
  uint64_t total = 0;
  (void)state;
  fake_cuda_reset(NULL);
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    for (uint32_t ranks = 2; info->trains && ranks <= CUDA_RANKS_MAX; ranks++) {
      const uint64_t first = UINT64_C(1000000) * (k + 1) + UINT64_C(100000) * ranks;
      uint32_t seeds = cuda_seeds_run(info->name, ranks, true, first, count / GRAPH_SHARE);
      seeds += cuda_seeds_run(info->name, ranks, false, first + 50001, count - count / GRAPH_SHARE);
      total += seeds;
      if (seeds > 0) {
        print_message("%s, %u ranks: %u seeds\n", info->name, ranks, seeds);
      }
    }
  }
  print_message("%" PRIu64 " seeds\n", total);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_schedule_under_many_seeds)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
