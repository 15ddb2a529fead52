/* Status that changes while it is read: whatever mixture of moments a reader
 * sees, it comes to an end and names a rank.
 * Also under ThreadSanitizer. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "run/hang/hang.h"
#include "support_rank_states.h"

struct writer {
  struct rank_states *states;
  uint32_t stop; /* atomic */
};

/* Every rank waits for another in turn, for itself, or for nobody. */
static void *write_boards(void *context) {
  struct writer *writer = context;
  uint64_t bits = 1;
  while (__atomic_load_n(&writer->stop, __ATOMIC_RELAXED) == 0) {
    bits = bits * UINT64_C(6364136223846793005) + 1442695040888963407u;
    struct weft_rank_status *status = &writer->states->items[(bits >> 33) % 16];
    __atomic_store_n(&status->phase, (uint32_t)(bits >> 40) % 8, __ATOMIC_RELAXED);
    __atomic_store_n(&status->peer, (uint32_t)(bits >> 48) % 17, __ATOMIC_RELAXED);
    __atomic_store_n(&status->action, bits, __ATOMIC_RELAXED);
    __atomic_store_n(&status->step, bits >> 62, __ATOMIC_RELAXED);
    __atomic_store_n(&status->recent_count, bits >> 60, __ATOMIC_RELAXED);
  }
  return NULL;
}

static void test_while_written(void **state) {
  (void)state;
  struct rank_states states;
  rank_states_init(&states, 16, "threads");
  struct writer writer = {.states = &states};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, write_boards, &writer), 0);
  for (uint32_t k = 0; k < 50000; k++) {
    struct weft_failure failure = {.rank = 77};
    struct weft_text text = {.allocator = NULL};
    rank_states_diagnose(&states.transport, NULL, 0, WEFT_COMM_POSTED, k % 16, &failure);
    assert_true(failure.rank < 16);
    assert_true(failure.error.message[0] != '\0' && failure.error.hint[0] != '\0');
    assert_null(strstr(failure.error.message, "(through 42949"));
    if (k % 500 == 0) {
      assert_int_equal(weft_hang_dump(&states.transport, &text, NULL), WEFT_OK);
    }
    weft_text_finish(&text);
  }
  __atomic_store_n(&writer.stop, 1, __ATOMIC_RELAXED);
  assert_int_equal(pthread_join(thread, NULL), 0);
  rank_states_finish(&states);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_while_written)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
