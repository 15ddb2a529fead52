/* Trainings that diverge: a step with a loss that is not finite stops, is skipped, or counts, alike
 * on every number of ranks, schedule, transport and replica; and no checkpoint has parameters that
 * are not finite. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_gpt_hand.h"

enum { BAD_STEP = 2 }; /* after so many */

/* The embedding is as large as floats can be during one step. It is on rank 0. */
struct run {
  struct weft_gpt_trainer *trainer;
  float *kept;
  bool stays; /* what rank 0 writes stays, and is not finite */
  double losses[HAND_STEPS];
  uint32_t skipped, withheld, checkpoints;
};

static void damage(void *context, uint32_t rank, uint64_t step) {
  struct run *run = context;
  if (rank != 0 || (step != BAD_STEP && step != BAD_STEP + 1)) {
    return;
  }
  const struct weft_gpt_layer_state *layer = weft_gpt_trainer_layer(run->trainer, 0);
  if (step == BAD_STEP) {
    memcpy(run->kept, layer->parameters, layer->floats * sizeof(float));
    for (uint64_t k = 0; k < layer->floats; k++) {
      layer->parameters[k] = run->stays ? NAN : FLT_MAX;
    }
  } else if (!run->stays) {
    memcpy(layer->parameters, run->kept, layer->floats * sizeof(float));
  }
}

static void note(void *context, const struct weft_gpt_step_report *report) {
  struct run *run = context;
  run->losses[report->step - 1] = report->loss;
  run->skipped += report->skipped;
  run->withheld += report->checkpoint_withheld;
  run->checkpoints += report->checkpointed;
}

static struct weft_gpt_trainer *train(struct weft_gpt_trainer_options options, struct run *run) {
  struct weft_error error;
  options.between_steps = damage;
  options.on_step = note;
  options.context = run;
  if (weft_gpt_trainer_create(&options, &run->trainer, &error) < 0) {
    fail_msg("%s", error.message);
  }
  run->kept = malloc(weft_gpt_layer_floats(&options.training.config, 0) * sizeof(float));
  assert_non_null(run->kept);
  if (weft_gpt_trainer_run(run->trainer, &error) < 0) {
    fail_msg("%s", error.message);
  }
  free(run->kept);
  return run->trainer;
}

/* ---- Skip ---- */

static const struct {
  uint32_t ranks, replicas;
  enum weft_gpt_shard shard;
  const char *schedule, *transport;
} worlds[] = {{1, 1, WEFT_GPT_SHARD_NONE, "1F1B", "threads"},
              {2, 1, WEFT_GPT_SHARD_NONE, "1F1B", "threads"},
              {2, 1, WEFT_GPT_SHARD_NONE, "ZBVZeroBubble", "loopback"},
              {1, 2, WEFT_GPT_SHARD_GRADS, "GPipe", "loopback"},
              {2, 2, WEFT_GPT_SHARD_NONE, "ZBH1", "threads"}};

static struct weft_gpt_trainer_options options_of(const struct weft_gpt_dataset *dataset,
                                                  size_t world) {
  struct weft_gpt_trainer_options options = hand_options(dataset);
  options.ranks = worlds[world].ranks;
  options.replicas = worlds[world].replicas;
  options.shard = worlds[world].shard;
  options.schedule = worlds[world].schedule;
  options.transport = worlds[world].transport;
  options.training.total_steps = HAND_STEPS;
  return options;
}

/* As if the step had not been. */
static uint64_t hash_by_hand(const struct weft_gpt_trainer_options *options) {
  struct hand hand;
  hand_init(&hand, &options->training, options->dataset);
  for (uint64_t step = 0; step < HAND_STEPS; step++) {
    if (step != BAD_STEP) {
      (void)hand_step(&hand, step, options->replicas);
    }
  }
  const uint64_t hash = hand_hash(&hand);
  hand_finish(&hand);
  return hash;
}

static void test_skip(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  for (size_t k = 0; k < sizeof worlds / sizeof worlds[0]; k++) {
    struct run run = {.skipped = 0};
    struct weft_gpt_trainer_options options = options_of(&dataset, k);
    options.on_divergence = WEFT_GPT_ON_DIVERGENCE_SKIP;
    struct weft_gpt_trainer *trainer = train(options, &run);
    assert_int_equal(isfinite(run.losses[BAD_STEP]) ? 1 : 0, 0);
    assert_int_equal(isfinite(run.losses[BAD_STEP + 1]) ? 1 : 0, 1);
    assert_int_equal(run.skipped, 1);
    assert_int_equal(weft_gpt_trainer_steps_skipped(trainer), 1);
    assert_int_equal(weft_gpt_trainer_steps_done(trainer), HAND_STEPS);
    assert_int_equal(weft_gpt_trainer_divergence(trainer), WEFT_GPT_NOT_DIVERGED);
    assert_true(weft_gpt_trainer_hash(trainer) == hash_by_hand(&options));
    weft_gpt_trainer_destroy(trainer);
  }
}

/* ---- Stop and continue ---- */

static uint64_t newest_step(const char *dir) {
  struct weft_gpt_checkpoint *checkpoint;
  struct weft_error error;
  assert_int_equal(weft_gpt_checkpoint_open(NULL, dir, &checkpoint, &error), WEFT_OK);
  const uint64_t step = weft_gpt_checkpoint_training(checkpoint)->step;
  weft_gpt_checkpoint_close(checkpoint);
  return step;
}

/* Parameters that are not finite end all but --on-divergence continue, and in no way get into a
 * checkpoint. */
static void check_checkpoints(size_t world, enum weft_gpt_on_divergence on_divergence, bool stays,
                              enum weft_gpt_divergence divergence, uint64_t done, uint64_t newest) {
  const struct weft_gpt_dataset dataset = hand_corpus();
  struct run run = {.stays = stays};
  char dir[] = "/tmp/weft-divergence-XXXXXX", command[64];
  assert_non_null(mkdtemp(dir));
  struct weft_gpt_trainer_options options = options_of(&dataset, world);
  options.on_divergence = on_divergence;
  options.checkpoint_dir = dir;
  options.checkpoint_every = 1;
  options.checkpoint_keep = 1;
  struct weft_gpt_trainer *trainer = train(options, &run);
  assert_int_equal(weft_gpt_trainer_divergence(trainer), divergence);
  assert_int_equal(weft_gpt_trainer_steps_done(trainer), done);
  assert_int_equal(newest_step(dir), newest);
  assert_int_equal(run.checkpoints + run.withheld,
                   divergence == WEFT_GPT_DIVERGED_PARAMETERS ? BAD_STEP : done);
  weft_gpt_trainer_destroy(trainer);
  (void)snprintf(command, sizeof command, "rm -r %s", dir);
  assert_int_equal(system(command), 0);
}

static void test_checkpoints(void **state) {
  (void)state;
  for (size_t k = 0; k < sizeof worlds / sizeof worlds[0]; k++) {
    check_checkpoints(k, WEFT_GPT_ON_DIVERGENCE_STOP, false, WEFT_GPT_DIVERGED_STEP, BAD_STEP,
                      BAD_STEP);
    check_checkpoints(k, WEFT_GPT_ON_DIVERGENCE_SKIP, true, WEFT_GPT_DIVERGED_PARAMETERS,
                      BAD_STEP + 1, BAD_STEP);
    check_checkpoints(k, WEFT_GPT_ON_DIVERGENCE_CONTINUE, true, WEFT_GPT_NOT_DIVERGED, HAND_STEPS,
                      BAD_STEP);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_skip),
                                     cmocka_unit_test(test_checkpoints)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
