/* Pipelines that cannot continue: programs that are wrong, and errors that all ranks agree on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "support_probes.h"

/* ---- Programs that are wrong ---- */

static void refuse(const char *csv, uint32_t p, const char *message) {
  struct bench bench;
  bench_use_program(&bench, csv);
  bench_expect_ok(&bench, bench_create(&bench, p));
  const enum weft_status status = bench_step(&bench, bench.program->microbatch_count);
  if (status != WEFT_ERR_INVALID) {
    fail_msg("%s: %d, %s", csv, status, status < 0 ? bench.error.message : "it ran");
  }
  bench_expect_message(&bench, message);
  bench_expect_agreed(&bench);
  bench_finish(&bench);
}

static void test_programs_that_are_wrong(void **state) {
  (void)state;
  refuse("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n", 2,
         "rank 1, action 0 (1F0): its input has not been received");
  refuse("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1RECV_F0,1F0,1B0,1SEND_B0\n", 2,
         "(1RECV_F0): it has been received before");
  refuse("0UNSHARD,0UNSHARD,0F0,0B0\n", 1, "(0UNSHARD): the stage is unsharded already");
  refuse("0F0,0B0,0UNSHARD\n", 1, "(0F0): the stage is sharded");
  refuse("0UNSHARD,0F0,0RESHARD,0B0\n", 1, "(0B0): the stage is sharded");
  refuse("0F0,0F1,0B0\n", 1, "still has");
  refuse("0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 2,
         "(0SEND_F0): it has not been computed, or was sent before");
  refuse("0F0,0SEND_F0,0RECV_B0,0B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 2,
         "(0B0): it has been done before");
  refuse("0UNSHARD,0F0,0F1,0B0,0REDUCE_GRAD,0B1\n", 1, "a backward of the stage follows it");
  refuse("0UNSHARD,0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n", 1, "are reduced already");
  refuse("0F0,0F1,0B0,0TIE_GRAD,0B1\n", 1, "(0TIE_GRAD): a backward of the stage follows it");
  refuse("0F0,0B0,0TIE_GRAD,0TIE_GRAD\n", 1, "are tied already");
  refuse("0F0,0B0,0REDUCE_GRAD,0TIE_GRAD\n", 1, "(0TIE_GRAD): the stage's gradients are reduced");
  refuse("0F0,0W0\n", 1, "(0W0): its input gradient (I) has not been done");
  refuse("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1I0,1SEND_B0\n", 2, "still has");
  refuse("0B0,0F0\n", 1, "its forward has not been done");
}

/* ---- One agreed error ---- */

static void test_a_failing_stage(void **state) {
  (void)state;
  struct bench bench;
  bench_use_schedule(&bench, "1F1B", 4, 1, 8);
  bench.probes[2].fail_at = 5;
  bench_expect_ok(&bench, bench_create(&bench, 4));
  assert_int_equal(bench_step(&bench, 8), WEFT_ERR_STAGE);
  bench_expect_message(&bench, "rank 2, step 1, 2F4 failed: out of paper");
  bench_expect_agreed(&bench);
  struct weft_failure failure;
  assert_true(
      bench.pipelines.transports[0]->ops->get_failure(bench.pipelines.transports[0], &failure));
  assert_int_equal(failure.rank, 2);
  assert_int_equal(bench_step(&bench, 8), WEFT_ERR_STAGE); /* it stays that way */
  bench_finish(&bench);
}

/* Before the diagnosis. */
static void test_states_are_refreshed(void **state) {
  (void)state;
  struct bench bench;
  bench_use_schedule(&bench, "1F1B", 2, 1, 4);
  bench.probes[1].never_returns = true;
  bench_refreshes = 0;
  bench_expect_ok(&bench, bench_create_watched(&bench, 2));
  assert_int_equal(bench_step(&bench, 4), WEFT_ERR_STALLED);
  assert_int_equal(bench_refreshes, 1);
  bench_finish(&bench);
}

static void test_a_stage_that_never_returns(void **state) {
  (void)state;
  struct bench bench;
  bench_use_schedule(&bench, "1F1B", 4, 1, 8);
  bench.probes[1].never_returns = true;
  bench_expect_ok(&bench, bench_create(&bench, 4));
  assert_int_equal(bench_step(&bench, 8), WEFT_ERR_STALLED);
  bench_expect_message(&bench, "rank 1");
  bench_expect_message(&bench, "1F0");
  bench_expect_agreed(&bench);
  struct weft_failure failure;
  assert_true(
      bench.pipelines.transports[0]->ops->get_failure(bench.pipelines.transports[0], &failure));
  assert_int_equal(failure.rank, 1);
  bench_finish(&bench);
}

static void test_the_odd_rank_is_named(void **state) {
  (void)state;
  for (uint32_t odd = 0; odd < 4; odd++) {
    struct bench bench;
    bench_use_schedule(&bench, "1F1B", 4, 1, 4);
    bench_expect_ok(&bench, bench_create(&bench, 4));
    weft_pipeline_destroy(bench.pipelines.items[odd]);
    bench.pipelines.items[odd] = NULL;
    bench_finish(&bench);

    bench_use_schedule(&bench, "1F1B", 4, 1, 4);
    pipelines_open(&bench.pipelines, NULL, &(struct weft_comm_options){.rank_count = 4});
    for (uint32_t r = 0; r < 4; r++) {
      bench.options.configuration = r == odd ? 99 : 1;
      bench_expect_ok(&bench,
                      weft_pipeline_create(NULL, bench.pipelines.transports[r], &bench.options,
                                           &bench.pipelines.items[r], &bench.error));
    }
    assert_int_equal(bench_step(&bench, 4), WEFT_ERR_PEER);
    char expected[64];
    snprintf(expected, sizeof expected, "rank %u has another configuration", odd);
    bench_expect_message(&bench, expected);
    bench_expect_agreed(&bench);
    assert_int_equal(bench.probes[0].calls[WEFT_OP_F], 0); /* before anything has moved */
    bench_finish(&bench);
  }
}

/* Numbers and shapes are named as they are, not as hashes. */
static void test_what_differs_is_named(void **state) {
  (void)state;
  for (int which = 0; which < 2; which++) {
    struct bench bench;
    bench_use_schedule(&bench, "1F1B", 3, 1, 4);
    pipelines_open(&bench.pipelines, NULL, &(struct weft_comm_options){.rank_count = 3});
    struct weft_boundary other = bench.options.boundaries[0];
    other.tensors[0].name = "x";
    enum weft_status status = WEFT_OK;
    for (uint32_t r = 0; r < 3 && status == WEFT_OK; r++) {
      other.tensors[0].largest = (struct weft_tensor_shape){
          .dtype = WEFT_F32, .dim_count = 2, .dims = {r == 1 ? 9 : 8, 2}};
      bench.options.boundaries = which == 0 ? bench.options.boundaries : &other;
      bench.options.boundary_count = which == 0 ? bench.options.boundary_count : 1;
      bench.options.microbatch_count = which == 0 && r == 1 ? 6 : 4;
      status = weft_pipeline_create(NULL, bench.pipelines.transports[r], &bench.options,
                                    &bench.pipelines.items[r], &bench.error);
    }
    if (which == 0) {
      bench_expect_ok(&bench, status);
      assert_int_equal(bench_step(&bench, 4), WEFT_ERR_PEER);
      bench_expect_message(
          &bench, "rank 1 has another number of microbatches than the others (6, theirs is 4)");
    } else {
      assert_int_equal(status, WEFT_ERR_USAGE);
      bench_expect_message(&bench, "rank 1 has x f32[9, 2], up to ");
      bench_expect_message(&bench, "where rank 0 has x f32[8, 2], up to ");
    }
    bench_finish(&bench);
  }
}

static bool stop_at_once(void *context) {
  (void)context;
  return true;
}

static void test_interruption(void **state) {
  (void)state;
  struct bench bench;
  bench_use_schedule(&bench, "1F1B", 2, 1, 4);
  bench.options.interrupted = stop_at_once;
  bench_expect_ok(&bench, bench_create(&bench, 2));
  assert_int_equal(bench_step(&bench, 4), WEFT_ERR_CANCELLED);
  bench_expect_agreed(&bench);
  bench_finish(&bench);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_programs_that_are_wrong),
      cmocka_unit_test(test_a_failing_stage),
      cmocka_unit_test(test_states_are_refreshed),
      cmocka_unit_test(test_a_stage_that_never_returns),
      cmocka_unit_test(test_the_odd_rank_is_named),
      cmocka_unit_test(test_what_differs_is_named),
      cmocka_unit_test(test_interruption),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
