/* Boards that change while they are read: whatever mixture of moments a reader
 * sees, it comes to an end and names a rank. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "run/hang.h"
#include "support_rank_states.h"

struct writer {
  struct boards *boards;
  uint32_t stop; /* atomic */
};

/* Every rank waits for another in turn, for itself, or for nobody. */
static void *write_boards(void *context) {
  struct writer *writer = context;
  uint64_t bits = 1;
  while (__atomic_load_n(&writer->stop, __ATOMIC_RELAXED) == 0) {
    bits = bits * UINT64_C(6364136223846793005) + 1442695040888963407u;
    struct weft_rank_status *board = &writer->boards->boards[(bits >> 33) % 16];
    __atomic_store_n(&board->phase, (uint32_t)(bits >> 40) % 8, __ATOMIC_RELAXED);
    __atomic_store_n(&board->peer, (uint32_t)(bits >> 48) % 17, __ATOMIC_RELAXED);
    __atomic_store_n(&board->action, bits, __ATOMIC_RELAXED);
    __atomic_store_n(&board->step, bits >> 62, __ATOMIC_RELAXED);
    __atomic_store_n(&board->recent_count, bits >> 60, __ATOMIC_RELAXED);
  }
  return NULL;
}

static void test_while_written(void **state) {
  (void)state;
  struct boards boards;
  boards_init(&boards, 16, "threads");
  struct writer writer = {.boards = &boards};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, write_boards, &writer), 0);
  for (uint32_t k = 0; k < 50000; k++) {
    struct weft_failure failure = {.rank = 77};
    struct weft_text text = {.allocator = NULL};
    weft_hang_diagnose_now(&boards.transport, NULL, 0, WEFT_COMM_POSTED, k % 16, &failure);
    assert_true(failure.rank < 16);
    assert_true(failure.error.message[0] != '\0' && failure.error.hint[0] != '\0');
    assert_null(strstr(failure.error.message, "(through 42949"));
    if (k % 500 == 0) {
      assert_int_equal(weft_hang_dump(&boards.transport, &text, NULL), WEFT_OK);
    }
    weft_text_finish(&text);
  }
  __atomic_store_n(&writer.stop, 1, __ATOMIC_RELAXED);
  assert_int_equal(pthread_join(thread, NULL), 0);
  boards_finish(&boards);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_while_written)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
