/* Every schedule on 2 to 8 ranks: the device's work in 5,000 orders enqueued action by action, and
 * in as many as a graph, on 1 to 32 hardware queues. A few of them compute, and have the host's
 * bits; the others are orders of the same calls, in which each operation must read what it read
 * then. WEFT_TEST_SEEDS: another number of orders. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <weft/gen.h>

#include "fake_cuda.h"
#include "support_cuda_seeds.h"
#include "support_seeds.h"

#if defined(__SANITIZE_ADDRESS__)
#define SEEDS 50
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SEEDS 50
#endif
#endif
#ifndef SEEDS
#define SEEDS 1500
#endif

enum { COMPUTED_EAGERLY = 10, COMPUTED_AS_GRAPHS = 15 };

static void every_schedule_in_many_orders(void **state) {
  const uint32_t count = test_seeds(SEEDS);
  uint64_t seeds = 0;
  uint32_t schedules = 0;
  (void)state;
  fake_cuda_reset(NULL);
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    uint64_t of_schedule = 0;
    for (uint32_t ranks = 2; info->trains && ranks <= CUDA_RANKS_MAX; ranks++) {
      const uint64_t first = UINT64_C(1000000) * k + UINT64_C(100000) * ranks;
      of_schedule += cuda_seeds_run(info->name, ranks, true, first, COMPUTED_EAGERLY, count);
      of_schedule +=
          cuda_seeds_run(info->name, ranks, false, first + 50001, COMPUTED_AS_GRAPHS, count);
    }
    seeds += of_schedule;
    schedules += of_schedule > 0;
  }
  print_message("%u schedules, %" PRIu64 " seeds\n", schedules, seeds);
  assert_in_range(schedules, 13, 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_schedule_in_many_orders)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
