/* --schedule auto, without the command: when it plans, keeps, returns and plans again, from
 * times that are made up; the order of microbatches; and trainings that change their schedule, which
 * come to the same bits as those that do not. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_gpt_hand.h"
#include "trainer/train/autotune_policy.h"
#include "trainer/train/rank.h"
#include "trainer/train/trainer.h"

/* ---- Times that are made up ---- */

static void feed(struct weft_gpt_tuning *tuning, double ms, uint32_t count) {
  for (uint32_t k = 0; k < count; k++) {
    assert_int_equal(weft_gpt_tuning_step(tuning, ms), WEFT_GPT_TUNING_GO_ON);
  }
}

/* To the first plan, from steps of 10 ms with one that was disturbed. */
static void feed_to_plan(struct weft_gpt_tuning *tuning) {
  weft_gpt_tuning_init(tuning);
  feed(tuning, 500, 1); /* the warm-up does not count */
  feed(tuning, 10, 1);
  feed(tuning, 90, 1);
  assert_int_equal(weft_gpt_tuning_step(tuning, 10), WEFT_GPT_TUNING_PLAN);
}

static void test_a_faster_schedule_stays(void **state) {
  (void)state;
  struct weft_gpt_tuning tuning;
  feed_to_plan(&tuning);
  assert_true(weft_gpt_tuning_planned(&tuning, 20, 16)); /* the simulator need not be right */
  assert_true(tuning.before == 10 && fabs(tuning.promised - 8) < 1e-12);
  assert_true(fabs(tuning.promised_gain - 0.2) < 1e-12 && isnan(tuning.gain));
  feed(&tuning, 100, 1);
  feed(&tuning, 8.5, 2);
  assert_int_equal(weft_gpt_tuning_step(&tuning, 12), WEFT_GPT_TUNING_KEEP);
  assert_true(tuning.after == 8.5 && fabs(tuning.gain - 0.15) < 1e-12);
  assert_int_equal(tuning.returns, 0);
  feed(&tuning, 8.5, 100);
}

static void test_a_slower_schedule_returns(void **state) {
  (void)state;
  struct weft_gpt_tuning tuning;
  feed_to_plan(&tuning);
  assert_true(weft_gpt_tuning_planned(&tuning, 10, 8));
  feed(&tuning, 8, 1);
  feed(&tuning, 11, 2);
  assert_int_equal(weft_gpt_tuning_step(&tuning, 8), WEFT_GPT_TUNING_BACK);
  assert_true(tuning.gain == 0 && tuning.returns == 1);
  feed(&tuning, 60, 1);
  feed(&tuning, 10.5, 3); /* the check: still faster than the new one */
  feed(&tuning, 10, 100);
  assert_int_equal(tuning.switches, 1);
}

/* A machine that becomes slower during the trial; then the new one is faster or it is not. */
static void test_a_second_trial(void **state) {
  (void)state;
  for (uint32_t k = 0; k < 2; k++) {
    struct weft_gpt_tuning tuning;
    feed_to_plan(&tuning);
    assert_true(weft_gpt_tuning_planned(&tuning, 10, 8));
    feed(&tuning, 12, 3);
    assert_int_equal(weft_gpt_tuning_step(&tuning, 12), WEFT_GPT_TUNING_BACK);
    feed(&tuning, 15, 3);
    assert_int_equal(weft_gpt_tuning_step(&tuning, 15), WEFT_GPT_TUNING_RETRY);
    assert_true(tuning.before == 15 && fabs(tuning.promised - 12) < 1e-12);
    feed(&tuning, k == 0 ? 12 : 16, 3);
    assert_int_equal(weft_gpt_tuning_step(&tuning, k == 0 ? 12 : 16),
                     k == 0 ? WEFT_GPT_TUNING_KEEP : WEFT_GPT_TUNING_BACK);
    assert_true(fabs(tuning.gain - (k == 0 ? 0.2 : 0)) < 1e-12);
    assert_int_equal(tuning.switches, 2);
    assert_int_equal(tuning.returns, 1 + k);
    feed(&tuning, k == 0 ? 12 : 15, 100); /* there is no third */
  }
}

/* Also when there is none, or when it is no better than noise. */
static void test_no_slower_schedule_is_tried(void **state) {
  (void)state;
  static const double pairs[][2] = {{10, 10}, {10, 11}, {10, 9.95}, {10, NAN}, {NAN, 9}};
  for (size_t k = 0; k < sizeof pairs / sizeof pairs[0]; k++) {
    struct weft_gpt_tuning tuning;
    feed_to_plan(&tuning);
    assert_false(weft_gpt_tuning_planned(&tuning, pairs[k][0], pairs[k][1]));
    assert_true(tuning.switches == 0 && tuning.plans == 1 && tuning.gain == 0);
    feed(&tuning, 10, 100);
  }
}

/* `count` steps that are off, one that is not, and as many again: only the last plan anew. */
static void expect_drain_limit(struct weft_gpt_tuning *tuning, double ms, double usual,
                               uint32_t off_max) {
  feed(tuning, ms, off_max - 1);
  feed(tuning, usual, 1);
  feed(tuning, ms, off_max - 1);
  assert_int_equal(weft_gpt_tuning_step(tuning, ms), WEFT_GPT_TUNING_FORGET);
  feed(tuning, ms, WEFT_GPT_TUNING_SAMPLES - 1);
  assert_int_equal(weft_gpt_tuning_step(tuning, ms), WEFT_GPT_TUNING_PLAN);
}

static void test_drift(void **state) {
  (void)state;
  struct weft_gpt_tuning tuning;
  feed_to_plan(&tuning);
  assert_true(weft_gpt_tuning_planned(&tuning, 10, 8));
  feed(&tuning, 8, 3);
  assert_int_equal(weft_gpt_tuning_step(&tuning, 8), WEFT_GPT_TUNING_KEEP);
  feed(&tuning, 9.1, 50); /* within 15 % */
  feed(&tuning, 6.9, 50);
  expect_drain_limit(&tuning, 9.3, 8, 5);
  assert_false(weft_gpt_tuning_planned(&tuning, 9, 9)); /* in vain: now 9.3 are expected */
  feed(&tuning, 9.3, 50);
  expect_drain_limit(&tuning, 6, 9.3, 10); /* faster is drift too */
  assert_false(weft_gpt_tuning_planned(&tuning, 9, 9));
  expect_drain_limit(&tuning, 20, 6, 20);
  assert_true(weft_gpt_tuning_planned(&tuning, 9, 8));
  feed(&tuning, 17, 3);
  assert_int_equal(weft_gpt_tuning_step(&tuning, 17), WEFT_GPT_TUNING_KEEP);
  feed(&tuning, 17, 50);
  expect_drain_limit(&tuning, 25, 17, 5); /* it was of use */
  assert_int_equal(tuning.plans, 4);
  assert_int_equal(tuning.switches, 2);
}

/* A promise that was not kept is worth another plan. */
static void test_a_broken_promise(void **state) {
  (void)state;
  struct weft_gpt_tuning tuning;
  feed_to_plan(&tuning);
  assert_true(weft_gpt_tuning_planned(&tuning, 10, 5));
  feed(&tuning, 9, 3);
  assert_int_equal(weft_gpt_tuning_step(&tuning, 9), WEFT_GPT_TUNING_KEEP);
  feed(&tuning, 9, WEFT_GPT_TUNING_OFF - 1);
  assert_int_equal(weft_gpt_tuning_step(&tuning, 9), WEFT_GPT_TUNING_FORGET);
}

static void test_without_times(void **state) {
  (void)state;
  struct weft_gpt_tuning tuning;
  weft_gpt_tuning_init(&tuning);
  feed(&tuning, NAN, 3);
  assert_int_equal(weft_gpt_tuning_step(&tuning, NAN), WEFT_GPT_TUNING_PLAN);
  assert_true(weft_gpt_tuning_planned(&tuning, 10, 8));
  feed(&tuning, NAN, 3);
  assert_int_equal(weft_gpt_tuning_step(&tuning, NAN), WEFT_GPT_TUNING_KEEP);
  feed(&tuning, NAN, 100);
  assert_true(isnan(tuning.gain) && fabs(tuning.promised_gain - 0.2) < 1e-12);
}

/* ---- Order of microbatches ---- */

static void expect_order(const char *schedule, uint32_t v, const uint32_t *rank_of, bool keeps) {
  const struct weft_shape shape = {.ranks = 2, .stages_per_rank = v, .microbatches = 6};
  struct weft_program *table = NULL;
  struct weft_error error;
  if (weft_generate(NULL, schedule, &shape, &table, &error) < 0) {
    fail_msg("%s: %s", schedule, error.message);
  }
  if (weft_gpt_schedule_keeps_order(table, rank_of, 2 * v) != keeps) {
    fail_msg("%s: the order is %s", schedule, keeps ? "not kept" : "kept");
  }
  weft_program_destroy(table);
}

/* Another order of microbatches, or overlaps: gradients would be added up differently. */
static void test_order(void **state) {
  (void)state;
  static const uint32_t loop[] = {0, 1, 0, 1}, v[] = {0, 1, 1, 0};
  expect_order("1F1B", 1, loop, true);
  expect_order("GPipe", 1, loop, true);
  expect_order("ZBH1", 1, loop, true);
  expect_order("InterleavedZeroBubble", 2, loop, true);
  expect_order("ZBVZeroBubble", 2, v, true);
  expect_order("ZBVZeroBubble", 2, loop, false); /* these stages are elsewhere */
  expect_order("LoopedBFS", 2, loop, false);
  expect_order("DualPipeV", 2, v, false);
}

/* ---- Trainings ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE = 3 };
#else
enum { STRIDE = 1 };
#endif
enum { DATASET_SIZE = 4000, STEPS = 9 };

static uint8_t text[DATASET_SIZE];
static struct weft_gpt_dataset dataset = {
    .bytes = text, .size = DATASET_SIZE, .train_size = DATASET_SIZE * 9 / 10, .hash = 42};

struct run {
  struct weft_gpt_tuning_report last; /* of those that tell how it went */
  uint32_t tries, kept, returned, stayed, drifted;
  uint32_t tries_after_drift, stayed_after_drift;
  uint64_t slow_from; /* step; 0: never */
  uint32_t slow_stage;
  uint64_t steps, hash;
  double need;
};

static struct weft_gpt_trainer_options base_options(void) {
  for (uint32_t k = 0; k < DATASET_SIZE; k++) {
    text[k] = (uint8_t)("the quick brown fox; "[(k + k / 97) % 21]);
  }
  struct weft_gpt_trainer_options options = hand_options(&dataset);
  options.training.config.dim = 16;
  options.training.config.context = 16;
  options.training.config.seed = 5;
  options.training.data_seed = 9;
  options.training.batch = 16;
  options.training.microbatches = 8;
  options.training.total_steps = STEPS;
  options.ranks = 3;
  options.schedule = "1F1B";
  options.tunes = true;
  options.plan_effort = 0.02;
  return options;
}

static void record_tuning(void *context, const struct weft_gpt_tuning_report *report) {
  struct run *run = context;
  const bool drifted = run->drifted > 0;
  run->tries += report->news == WEFT_GPT_TUNING_TRIES;
  run->kept += report->news == WEFT_GPT_TUNING_KEPT;
  run->returned += report->news == WEFT_GPT_TUNING_RETURNED;
  run->stayed += report->news == WEFT_GPT_TUNING_STAYED;
  run->tries_after_drift += drifted && report->news == WEFT_GPT_TUNING_TRIES;
  run->stayed_after_drift += drifted && report->news == WEFT_GPT_TUNING_STAYED;
  run->drifted += report->news == WEFT_GPT_TUNING_DRIFTED && run->slow_from > 0 &&
                  report->step > run->slow_from;
  run->need = report->memory;
  run->last = *report;
}

static enum weft_status train(struct weft_gpt_trainer_options options, struct run *run,
                              struct weft_error *error) {
  struct weft_gpt_trainer *trainer;
  options.on_tuning = record_tuning;
  options.context = run;
  const enum weft_status status = weft_gpt_trainer_create(&options, &trainer, error);
  if (status < 0) {
    return status;
  }
  const enum weft_status result = weft_gpt_trainer_run(trainer, error);
  run->hash = weft_gpt_trainer_hash(trainer);
  run->steps = weft_gpt_trainer_steps_done(trainer);
  for (uint32_t r = 0; r < 3 && options.memory_limit > 0; r++) {
    struct weft_gpt_memory memory;
    assert_true(weft_gpt_trainer_memory(trainer, r, &memory));
    const double all = (double)(memory.parameters + memory.gradients + memory.moments +
                                memory.activations + memory.scratch);
    assert_true(all / 1048576 <= options.memory_limit);
  }
  weft_gpt_trainer_destroy(trainer);
  return result;
}

static void train_well(struct weft_gpt_trainer_options options, const char *what, struct run *run) {
  struct weft_error error;
  memset(run, 0, sizeof *run);
  if (train(options, run, &error) < 0) {
    fail_msg("%s: %s", what, error.message);
  }
}

/* The last step is done with another schedule than the first; and nothing else changes. */
static void test_the_same_bits(void **state) {
  (void)state;
  static const struct {
    const char *schedule;
    uint32_t v, replicas;
    enum weft_gpt_shard shard;
    bool tied;
  } cases[] = {{"1F1B", 1, 1, WEFT_GPT_SHARD_NONE, true},
               {"ZBVZeroBubble", 2, 1, WEFT_GPT_SHARD_NONE, false},
               {"Interleaved1F1B", 2, 1, WEFT_GPT_SHARD_NONE, true},
               {"1F1B", 1, 2, WEFT_GPT_SHARD_FULL, false},
               {"Interleaved1F1B", 2, 2, WEFT_GPT_SHARD_GRADS, true}};
  uint32_t tries = 0;
  for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k += STRIDE) {
    struct weft_gpt_trainer_options options = base_options();
    struct run fixed, tuned, threads;
    options.schedule = cases[k].schedule;
    options.stages_per_rank = cases[k].v;
    options.replicas = cases[k].replicas;
    options.shard = cases[k].shard;
    options.training.config.tied = cases[k].tied;
    options.transport = "loopback";
    options.eval_every = 4; /* other programs in between */
    train_well(options, cases[k].schedule, &tuned);
    options.transport = "threads";
    train_well(options, cases[k].schedule, &threads);
    options.tunes = false;
    train_well(options, cases[k].schedule, &fixed);
    assert_true(fixed.hash != 0 && fixed.tries == 0);
    assert_true(tuned.tries + tuned.stayed == 1 && threads.tries + threads.stayed == 1);
    assert_true(tuned.kept == tuned.tries && tuned.returned == 0);
    tries += tuned.tries + threads.tries;
    assert_true(tuned.hash == fixed.hash);
    assert_true(threads.hash == fixed.hash);
  }
  assert_true(tries > 0); /* not all, on a machine that is disturbed */
}

/* The trial ends with the training, or does not come to its end. */
static void test_few_steps(void **state) {
  (void)state;
  uint64_t hashes[2];
  for (uint64_t steps = 2; steps <= 8; steps += STRIDE) {
    struct weft_gpt_trainer_options options = base_options();
    struct run run;
    options.training.total_steps = steps;
    options.transport = "loopback";
    for (uint32_t k = 0; k < 2; k++) {
      options.tunes = k > 0;
      train_well(options, "few steps", &run);
      hashes[k] = run.hash;
    }
    assert_true(hashes[0] == hashes[1]);
    assert_int_equal(run.tries + run.stayed, steps > 4);
    assert_int_equal(run.kept, steps > 7 ? run.tries : 0);
  }
}

/* ---- Memory ---- */

static void test_memory(void **state) {
  (void)state;
  struct weft_gpt_trainer_options options = base_options();
  struct weft_error error;
  struct run run, most, least;
  double limit;
  options.transport = "loopback";
  options.schedule = "1F1B";
  options.memory_limit = 1000;
  train_well(options, "1000 MiB", &most);
  assert_true(most.last.memory_limit == 1000 && most.need > 0 && most.need < 1000);
  memset(&run, 0, sizeof run);
  options.memory_limit = 0.01;
  assert_int_equal(train(options, &run, &error), WEFT_ERR_INVALID);
  assert_non_null(strstr(error.message, "0.01 MiB"));
  const char *needs = strstr(error.message, " needs ");
  assert_non_null(needs);
  assert_int_equal(sscanf(needs, " needs %lf MiB", &limit), 1);
  assert_true(limit > 0.01 && limit < most.need);
  /* What it says is enough, and is kept; no bit changes. */
  options.memory_limit = limit * 1.0001;
  train_well(options, "the least", &least);
  assert_true(least.hash == most.hash);
  options.memory_limit = limit * 0.999;
  assert_int_equal(train(options, &run, &error), WEFT_ERR_INVALID);
}

/* ---- Costs that change ---- */

/* A stage sleeps: two of three ranks wait for it. */
static void be_slow(void *context, uint32_t stage, uint64_t step) {
  const struct run *run = context;
  const bool is_late = step >= run->slow_from;
  const long ms = stage == run->slow_stage ? (is_late ? 12 : 1) : 1;
  const struct timespec time = {.tv_nsec = ms * 1000000};
  (void)nanosleep(&time, NULL);
}

static bool has_planned_again(void *context) {
  const struct run *run = context;
  return run->tries_after_drift + run->stayed_after_drift > 0;
}

static void test_it_plans_again(void **state) {
  (void)state;
  struct weft_gpt_trainer_options options = base_options();
  struct run run = {.slow_from = 12, .slow_stage = 1};
  struct weft_error error;
  options.before_forward = be_slow;
  options.interrupted = has_planned_again;
  options.training.total_steps = 1000;
  assert_int_equal(train(options, &run, &error), WEFT_OK);
  assert_true(run.drifted >= 1 && run.last.plans >= 2);
  assert_true(run.steps > 12 && run.steps < 1000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_faster_schedule_stays),
      cmocka_unit_test(test_a_slower_schedule_returns),
      cmocka_unit_test(test_a_second_trial),
      cmocka_unit_test(test_no_slower_schedule_is_tried),
      cmocka_unit_test(test_drift),
      cmocka_unit_test(test_a_broken_promise),
      cmocka_unit_test(test_without_times),
      cmocka_unit_test(test_order),
      cmocka_unit_test(test_the_same_bits),
      cmocka_unit_test(test_few_steps),
      cmocka_unit_test(test_memory),
      cmocka_unit_test(test_it_plans_again),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
