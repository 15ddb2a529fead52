/* Pipelines with fault injection, on loopback: delays change nothing in the results;
 * damage is found and said the same on all ranks; of a rank that goes silent the
 * others say so, by name, and end.
 * Also under ThreadSanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/run.h>
#include <weft/weft.h>

#include "support_fault_injection.h"
#include "support_linear_model.h"
#include "support_pipelines.h"

enum { RANKS = 4, MICROBATCHES = 6, ROWS = 2 * MICROBATCHES + 1, WIDTH = 3, STALL = 100000 };

struct run {
  struct weft_named_source source;
  struct weft_program *program;
  struct linear_model model;
  struct linear_result expected;
  struct pipelines pipelines;
  struct weft_tensor inputs, targets;
  struct weft_batch batches[RANKS];
  uint32_t last; /* rank of the last stage */
};

static void wrap(struct run *run, uint32_t rank, const struct weft_fault_options *faults) {
  struct weft_transport **transport = &run->pipelines.transports[rank];
  struct weft_error error;
  if (weft_fault_injector_create(NULL, *transport, faults, transport, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
}

static void make_batches(struct run *run) {
  uint32_t rank_of[2 * RANKS];
  weft_placement_infer(run->program, rank_of);
  run->last = rank_of[run->program->stage_count - 1];
  run->inputs = linear_model_inputs(&run->model);
  run->targets = linear_model_targets(&run->model);
  for (uint32_t r = 0; r < RANKS; r++) {
    run->batches[r] = (struct weft_batch){.microbatch_count = MICROBATCHES,
                                          .inputs = &run->inputs,
                                          .input_count = 1,
                                          .targets = &run->targets,
                                          .target_count = 1,
                                          .want_losses = r == run->last,
                                          .want_outputs = r == run->last};
  }
}

/* Fault injection around rank `only`, or around all of them (UINT32_MAX). */
static void set_up(struct run *run, const char *schedule, uint32_t only,
                   const struct weft_fault_options *faults, bool check_payloads) {
  struct weft_error error;
  memset(run, 0, sizeof *run);
  run->source = (struct weft_named_source){.schedule = schedule, .ranks = RANKS};
  assert_int_equal(weft_source_named(&run->source, MICROBATCHES, true, &run->program, &error),
                   WEFT_OK);
  assert_true(run->program->stage_count <= 2 * RANKS);
  linear_model_init(&run->model, run->program->stage_count, WIDTH, ROWS, 5);
  run->expected = linear_model_evaluate(&run->model, run->program, true, UINT32_MAX);
  pipelines_open(&run->pipelines, NULL,
                 &(struct weft_comm_options){.rank_count = RANKS, .latency_ticks = 3});
  for (uint32_t r = 0; r < RANKS; r++) {
    if (only == UINT32_MAX || only == r) {
      wrap(run, r, faults);
    }
  }
  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = weft_source_named;
  options.source_context = &run->source;
  options.microbatch_count = MICROBATCHES;
  options.stages = run->model.bases;
  options.stage_count = run->model.stage_count;
  options.boundaries = &run->model.boundary;
  options.boundary_count = 1;
  options.stall_limit = STALL;
  options.check_payloads = check_payloads;
  if (pipelines_create(&run->pipelines, NULL, &options, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  make_batches(run);
}

static void tear_down(struct run *run) {
  pipelines_close(&run->pipelines);
  linear_result_free(&run->model, &run->expected);
  linear_model_finish(&run->model);
  weft_program_destroy(run->program);
}

static enum weft_status step(struct run *run, struct weft_error *error) {
  return pipelines_step(&run->pipelines, true, run->batches, RANKS, error);
}

static void check_results(const struct run *run) {
  struct weft_step_result result;
  weft_pipeline_result(run->pipelines.items[run->last], &result);
  assert_int_equal(result.loss_count, MICROBATCHES);
  assert_memory_equal(result.losses, run->expected.losses, MICROBATCHES * sizeof(double));
  assert_memory_equal(result.outputs.items[0].data, run->expected.outputs,
                      sizeof(float) * ROWS * WIDTH);
  for (uint32_t s = 0; s < run->model.stage_count; s++) {
    assert_true(linear_gradients_equal(&run->model, s, &run->expected));
  }
}

static const char *const schedules[] = {"1F1B", "GPipe", "Interleaved1F1B", "ZBVZeroBubble"};
enum { SCHEDULES = sizeof schedules / sizeof schedules[0] };

static void test_delays_change_nothing(void **state) {
  (void)state;
  for (uint32_t seed = 0; seed < 40; seed++) {
    const struct weft_fault_options faults = {
        .seed = seed, .delay_max = 1 + 10 * (seed % 7), .slow_by = seed % 3};
    struct run run;
    struct weft_error error = {0};
    set_up(&run, schedules[seed % SCHEDULES], seed % 5 < RANKS ? seed % 5 : UINT32_MAX, &faults,
           seed % 2 == 0);
    for (int k = 0; k < 3; k++) {
      if (step(&run, &error) != WEFT_OK) {
        fail_msg("seed %u: %s", seed, error.message);
      }
      check_results(&run);
    }
    tear_down(&run);
  }
}

/* Messages that a rank receives in a step. */
static uint64_t receives_of(const struct run *run, uint32_t rank) {
  const struct weft_program *program = run->program;
  uint64_t count = 0;
  for (uint64_t k = program->row_begin[rank]; k < program->row_begin[rank + 1]; k++) {
    count += program->actions[k].op == WEFT_OP_RECV_F || program->actions[k].op == WEFT_OP_RECV_B;
  }
  return count;
}

static void check_damage(uint32_t rank, uint64_t n, bool payload) {
  const struct weft_fault_options faults = {
      .seed = n, .damage_receive = n, .damage_payload = payload};
  struct run run;
  struct weft_error error = {0};
  set_up(&run, schedules[n % SCHEDULES], rank, &faults, payload);
  const bool damaged = n <= receives_of(&run, rank);
  assert_int_equal(step(&run, &error), damaged ? WEFT_ERR_PROTOCOL : WEFT_OK);
  for (uint32_t r = 0; r < RANKS && damaged; r++) {
    /* One that was done before is done. */
    assert_true(run.pipelines.statuses[r] == WEFT_ERR_PROTOCOL ||
                run.pipelines.statuses[r] == WEFT_OK);
    if (run.pipelines.statuses[r] < 0) {
      assert_string_equal(run.pipelines.errors[r].message, error.message);
    }
  }
  assert_true(!damaged || run.pipelines.statuses[rank] == WEFT_ERR_PROTOCOL);
  if (!damaged) {
    check_results(&run);
  }
  tear_down(&run);
}

static void test_damage_is_found(void **state) {
  (void)state;
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    for (uint64_t n = 1; n <= 4 * MICROBATCHES; n++) {
      check_damage(rank, n, false);
      check_damage(rank, n, true);
    }
  }
}

/* The others say who it was, all the same. Returns how many did. */
static uint32_t check_death(uint32_t rank, uint64_t n) {
  uint32_t witnesses = 0;
  const struct weft_fault_options faults = {.die_at = n};
  struct run run;
  struct weft_error error = {0};
  set_up(&run, schedules[n % SCHEDULES], rank, &faults, false);
  const enum weft_status status = step(&run, &error);
  const bool died = run.pipelines.statuses[rank] == WEFT_ERR_CANCELLED;
  struct weft_failure failure;
  const struct weft_transport *witness = run.pipelines.transports[(rank + 1) % RANKS];
  assert_true(died || status == WEFT_OK);
  for (uint32_t r = 0; r < RANKS && died; r++) {
    const enum weft_status other = run.pipelines.statuses[r];
    assert_true(r == rank || other == WEFT_ERR_STALLED || other == WEFT_OK);
    if (other == WEFT_ERR_STALLED) {
      char name[16];
      (void)snprintf(name, sizeof name, "rank %u", rank);
      assert_non_null(strstr(run.pipelines.errors[r].message, name));
      assert_true(witness->ops->get_failure((struct weft_transport *)witness, &failure));
      assert_int_equal(failure.rank, rank);
      assert_string_equal(run.pipelines.errors[r].message, failure.error.message);
      witnesses++;
    }
  }
  tear_down(&run);
  return witnesses;
}

static void test_death_is_noticed(void **state) {
  (void)state;
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    for (uint64_t n = 1; n <= 8 * MICROBATCHES; n++) {
      const uint32_t witnesses = check_death(rank, n);
      assert_true(n > MICROBATCHES || witnesses == RANKS - 1); /* early: nobody can be done */
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_delays_change_nothing),
      cmocka_unit_test(test_damage_is_found),
      cmocka_unit_test(test_death_is_noticed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
