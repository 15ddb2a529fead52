/* The dry run at its limit: 2^28 cells take a while under a sanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

/* 65,536 ranks that wait for 4,200 steps would be more cells than a program may
 * have. The rows are made in memory: the text would be long. */
static void test_too_many_bubbles(void **state) {
  (void)state;
  enum { LEAD = 4200 };
  uint64_t *row_sizes = calloc(WEFT_RANKS_MAX, sizeof *row_sizes);
  struct weft_action *actions = calloc(WEFT_RANKS_MAX + LEAD + 1, sizeof *actions);
  assert_true(row_sizes != NULL && actions != NULL);
  row_sizes[0] = LEAD + 2;
  for (size_t i = 0; i < LEAD + 2; i++) {
    actions[i].op = i < LEAD ? WEFT_OP_UNSHARD : i == LEAD ? WEFT_OP_F : WEFT_OP_SEND_F;
  }
  for (size_t rank = 1; rank < WEFT_RANKS_MAX; rank++) {
    row_sizes[rank] = 1;
    actions[LEAD + 1 + rank] = (struct weft_action){.op = WEFT_OP_RECV_F, .stage = 1};
  }
  struct weft_program *program = NULL, *out = NULL;
  struct weft_error error;
  assert_int_equal(weft_program_create(NULL, WEFT_RANKS_MAX, row_sizes, actions, &program, &error),
                   WEFT_OK);
  assert_int_equal(weft_dry_run(NULL, program, &out, &error), WEFT_ERR_LIMIT);
  assert_non_null(strstr(error.message, "268435456"));
  assert_null(out);
  weft_program_destroy(program);
  free(actions);
  free(row_sizes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_too_many_bubbles),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
