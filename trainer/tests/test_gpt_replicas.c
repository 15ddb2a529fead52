/* Replicas and shards: whatever is sharded, on every schedule, number of ranks and
 * transport, losses, gradients, parameters and moments are bit for bit those of the same
 * training by hand; checkpoints go from any number of replicas to any other; memory per
 * rank is what it should be; ranks of their own processes, and what is refused.
 * Also under ThreadSanitizer. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include <weft/comm.h>
#include <weft/weft.h>

#include "support_gpt_hand.h"

enum { STEPS = HAND_STEPS, MICROBATCHES = HAND_MICROBATCHES };

/* ---- A run and what it is compared with ---- */

struct outcome {
  double losses[STEPS];
  double validation;
  atomic_uint count;
  uint64_t hash, state;
};

static void note(void *context, const struct weft_gpt_step_report *report) {
  struct outcome *outcome = context;
  outcome->losses[report->step - 1] = report->loss;
  outcome->validation = report->validation_loss;
  atomic_fetch_add(&outcome->count, 1);
}

static struct weft_gpt_trainer *train(struct weft_gpt_trainer_options options, const char *what,
                                      struct outcome *outcome) {
  struct weft_error error;
  struct weft_gpt_trainer *trainer;
  *outcome = (struct outcome){.hash = 0};
  options.on_step = note;
  options.context = outcome;
  if (weft_gpt_trainer_create(&options, &trainer, &error) < 0) {
    fail_msg("%s: %s", what, error.message);
  }
  if (weft_gpt_trainer_run(trainer, &error) < 0) {
    fail_msg("%s: %s", what, error.message);
  }
  outcome->hash = weft_gpt_trainer_hash(trainer);
  outcome->state = hand_hash_state_of(trainer, &options.training.config);
  return trainer;
}

static void train_by_hand(const struct weft_gpt_trainer_options *options, uint32_t replicas,
                          struct outcome *outcome) {
  struct hand hand;
  hand_init(&hand, &options->training, options->dataset);
  *outcome = (struct outcome){.count = STEPS};
  for (uint64_t step = 0; step < STEPS; step++) {
    outcome->losses[step] = hand_step(&hand, step, replicas);
  }
  outcome->hash = hand_hash(&hand);
  outcome->state = hand_hash_state(&hand);
  hand_finish(&hand);
}

static void expect_same(const struct outcome *outcome, const struct outcome *expected,
                        const char *what) {
  for (uint32_t k = 0; k < STEPS; k++) {
    if (outcome->losses[k] != expected->losses[k]) {
      fail_msg("%s: step %u has loss %.17g; expected %.17g", what, k + 1, outcome->losses[k],
               expected->losses[k]);
    }
  }
  if (outcome->hash != expected->hash || outcome->state != expected->state) {
    fail_msg("%s: %s are not those of the training by hand", what,
             outcome->hash != expected->hash ? "parameters" : "gradients or moments");
  }
}

/* ---- The matrix ---- */

struct shape {
  const char *schedule;
  uint32_t ranks, window;
  const char *transport;
};

static const struct shape shapes[] = {
    {"GPipe", 1, 0, "threads"},         {"1F1B", 2, 0, "loopback"},
    {"1F1B", 2, 1, "threads"},          {"Interleaved1F1B", 2, 1, "loopback"},
    {"ZBVZeroBubble", 2, 2, "threads"}, {"ZBVZeroBubble", 2, 1, "loopback"},
};

static const char *const shard_names[] = {"none", "grads", "full"};

static void check_replicas(struct weft_gpt_trainer_options options, uint32_t replicas,
                           uint32_t *runs) {
  struct outcome expected, outcome;
  char what[128];
  train_by_hand(&options, replicas, &expected);
  assert_true(expected.losses[STEPS - 1] < expected.losses[0]);
  options.replicas = replicas;
  for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
    for (int shard = 0; shard < 3 && (shard == 0 || replicas > 1); shard++) {
      options.schedule = shapes[k].schedule;
      options.ranks = shapes[k].ranks;
      options.transport = shapes[k].transport;
      options.unshard_window = shapes[k].window;
      options.shard = (enum weft_gpt_shard)shard;
      options.loopback_seed = k;
      snprintf(what, sizeof what, "%u x %s on %u, %s, window %u, %s%s", replicas,
               shapes[k].schedule, shapes[k].ranks, shapes[k].transport, shapes[k].window,
               shard_names[shard], options.training.config.tied ? ", tied" : "");
      weft_gpt_trainer_destroy(train(options, what, &outcome));
      expect_same(&outcome, &expected, what);
      (*runs)++;
    }
  }
}

/* Under sanitizers half of it has to do. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { ONE_OF = 2 };
#else
enum { ONE_OF = 1 };
#endif

static void test_matrix(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  struct weft_gpt_trainer_options options = hand_options(&dataset);
  uint32_t runs = 0;
  for (uint32_t replicas = 1; replicas <= 3; replicas++) {
    for (uint32_t tied = 0; tied < 2; tied++) {
      options.training.config.tied = tied > 0;
      if ((replicas + tied) % ONE_OF == 0) {
        check_replicas(options, replicas, &runs);
      }
    }
  }
  print_message("%u runs of %d steps, bit for bit\n", runs, STEPS);
}

/* An evaluation is the same wherever it is computed. */
static void test_evaluation(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  struct weft_gpt_trainer_options options = hand_options(&dataset);
  struct outcome first = {.hash = 0}, outcome;
  options.eval_every = 2;
  options.eval_steps = 2;
  options.replicas = 2;
  for (int shard = 0; shard < 3; shard++) {
    options.shard = (enum weft_gpt_shard)shard;
    options.schedule = shard == 0 ? "GPipe" : "1F1B";
    options.ranks = shard == 0 ? 1 : 2;
    weft_gpt_trainer_destroy(train(options, "evaluation", &outcome));
    assert_true(isfinite(outcome.validation));
    if (shard == 0) {
      first = outcome;
    }
    assert_memory_equal(&outcome.validation, &first.validation, sizeof first.validation);
  }
}

/* ---- Checkpoints ---- */

struct segment {
  uint32_t replicas;
  enum weft_gpt_shard shard;
  struct shape shape;
};

static bool stop_in_the_middle(void *context) {
  return atomic_load(&((struct outcome *)context)->count) + 1 >= STEPS / 2;
}

static void take_segment(struct weft_gpt_trainer_options *options, const struct segment *segment) {
  options->replicas = segment->replicas;
  options->shard = segment->shard;
  options->schedule = segment->shape.schedule;
  options->ranks = segment->shape.ranks;
  options->unshard_window = segment->shape.window;
  options->transport = segment->shape.transport;
}

static void check_resume(const struct weft_gpt_dataset *dataset, const struct segment *first,
                         const struct segment *second, bool tied) {
  char dir[] = "/tmp/weft-replicas-XXXXXX", what[128], command[64];
  assert_non_null(mkdtemp(dir));
  struct weft_error error;
  struct weft_gpt_trainer_options options = hand_options(dataset);
  struct outcome before, after, expected = {.count = STEPS};
  struct weft_gpt_checkpoint *checkpoint;
  struct hand hand;
  options.training.config.tied = tied;
  hand_init(&hand, &options.training, dataset);
  snprintf(what, sizeof what, "%u x %u, %s, then %u x %u, %s", first->replicas, first->shape.ranks,
           shard_names[first->shard], second->replicas, second->shape.ranks,
           shard_names[second->shard]);
  take_segment(&options, first);
  options.checkpoint_dir = dir;
  options.interrupted = stop_in_the_middle;
  weft_gpt_trainer_destroy(train(options, what, &before));
  assert_in_range(before.count, STEPS / 2, STEPS - 1);
  if (weft_gpt_checkpoint_open(NULL, dir, &checkpoint, &error) < 0) {
    fail_msg("%s: %s", what, error.message);
  }
  options.training = *weft_gpt_checkpoint_training(checkpoint);
  assert_int_equal(options.training.step, before.count);
  options.checkpoint_dir = NULL;
  options.interrupted = NULL;
  options.resume = checkpoint;
  take_segment(&options, second);
  weft_gpt_trainer_destroy(train(options, what, &after));
  weft_gpt_checkpoint_close(checkpoint);
  memcpy(after.losses, before.losses, before.count * sizeof(double));
  for (uint64_t step = 0; step < STEPS; step++) {
    expected.losses[step] =
        hand_step(&hand, step, step < before.count ? first->replicas : second->replicas);
  }
  expected.hash = hand_hash(&hand);
  expected.state = hand_hash_state(&hand);
  expect_same(&after, &expected, what);
  hand_finish(&hand);
  snprintf(command, sizeof command, "rm -rf '%s'", dir);
  assert_int_equal(system(command), 0);
}

static void test_resume(void **state) {
  (void)state;
  const struct segment one = {1, WEFT_GPT_SHARD_NONE, {"GPipe", 1, 0, "loopback"}};
  const struct segment none = {2, WEFT_GPT_SHARD_NONE, {"1F1B", 2, 0, "threads"}};
  const struct segment grads = {2, WEFT_GPT_SHARD_GRADS, {"1F1B", 2, 0, "threads"}};
  const struct segment full = {2, WEFT_GPT_SHARD_FULL, {"Interleaved1F1B", 2, 1, "threads"}};
  const struct segment three = {3, WEFT_GPT_SHARD_FULL, {"GPipe", 1, 0, "loopback"}};
  const struct segment wide = {3, WEFT_GPT_SHARD_GRADS, {"ZBVZeroBubble", 2, 0, "loopback"}};
  const struct segment *pairs[][2] = {{&one, &full},   {&full, &one},  {&full, &three},
                                      {&three, &none}, {&none, &wide}, {&wide, &grads},
                                      {&grads, &full}};
  const struct weft_gpt_dataset dataset = hand_corpus();
  for (size_t k = 0; k < sizeof pairs / sizeof pairs[0]; k++) {
    check_resume(&dataset, pairs[k][0], pairs[k][1], k % 2 == 1);
  }
}

/* ---- Memory ---- */

/* Bytes of a rank's stages, padded for the replicas; and of its largest. */
static uint64_t whole_bytes(const struct weft_gpt_trainer *trainer,
                            const struct weft_gpt_config *config, uint32_t replicas,
                            const struct weft_program *program, uint32_t rank, uint64_t *largest) {
  uint32_t stage_count;
  const uint32_t *first = weft_gpt_trainer_split(trainer, &stage_count);
  uint32_t *rank_of = calloc(stage_count, sizeof *rank_of);
  uint64_t sum = 0;
  (void)weft_placement_infer(program, rank_of);
  *largest = 0;
  for (uint32_t s = 0; s < stage_count; s++) {
    const uint64_t bytes =
        4 * weft_gpt_unsharded_floats(config, first[s], first[s + 1] - first[s], replicas);
    sum += rank_of[s] == rank ? bytes : 0;
    *largest = rank_of[s] == rank && bytes > *largest ? bytes : *largest;
  }
  free(rank_of);
  return sum;
}

/* What the simulator says of the program, for stages of these sizes: a peak per rank of
 * parameters and gradients. */
static void simulate(const struct weft_gpt_trainer *trainer, double *peaks) {
  struct weft_costs *costs;
  struct weft_simulation *sim;
  struct weft_error error;
  assert_int_equal(weft_gpt_trainer_costs(trainer, &costs, &error), WEFT_OK);
  for (uint32_t s = 0; s < costs->stage_count; s++) {
    costs->stages[s].activation = costs->stages[s].activation_after_i = 0;
  }
  const struct weft_program *program = weft_gpt_trainer_program(trainer);
  assert_int_equal(weft_simulate(NULL, program, costs, NULL, &sim, &error), WEFT_OK);
  for (uint32_t r = 0; r < program->rank_count; r++) {
    peaks[r] = sim->ranks[r].peak_memory * 1048576;
  }
  weft_simulation_destroy(sim);
  weft_costs_destroy(costs);
}

static void check_memory(const struct weft_gpt_trainer *trainer,
                         const struct weft_gpt_trainer_options *options) {
  const uint32_t replicas = options->replicas;
  double peaks[8] = {0};
  simulate(trainer, peaks);
  for (uint32_t r = 0; r < replicas * options->ranks; r++) {
    struct weft_gpt_memory memory;
    uint64_t largest;
    const uint32_t row = r % options->ranks;
    const uint64_t whole = whole_bytes(trainer, &options->training.config, replicas,
                                       weft_gpt_trainer_program(trainer), row, &largest);
    const bool cut = options->shard != WEFT_GPT_SHARD_NONE;
    const uint64_t slices = cut ? whole / replicas : whole;
    assert_true(weft_gpt_trainer_memory(trainer, r, &memory));
    assert_int_equal(memory.moments, 2 * slices);
    assert_in_range(memory.peak, (uint64_t)(peaks[row] - 0.5), (uint64_t)(peaks[row] + 0.5));
    if (options->shard == WEFT_GPT_SHARD_FULL) { /* slices, and as many buffers as the window */
      assert_int_equal(memory.parameters, slices + options->unshard_window * largest);
    } else {
      assert_int_equal(memory.parameters, whole);
    }
  }
  struct weft_gpt_memory memory;
  assert_false(weft_gpt_trainer_memory(trainer, replicas * options->ranks, &memory));
}

static void test_memory(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  struct weft_gpt_trainer_options options = hand_options(&dataset);
  struct outcome outcome;
  for (uint32_t replicas = 2; replicas <= 3; replicas++) {
    for (uint32_t window = 1; window <= 2; window++) {
      for (int shard = WEFT_GPT_SHARD_NONE; shard <= WEFT_GPT_SHARD_FULL; shard++) {
        options.replicas = replicas;
        options.unshard_window = window;
        options.shard = (enum weft_gpt_shard)shard;
        options.schedule = "Interleaved1F1B";
        options.ranks = 2;
        struct weft_gpt_trainer *trainer = train(options, "memory", &outcome);
        check_memory(trainer, &options);
        weft_gpt_trainer_destroy(trainer);
      }
    }
  }
}

/* ---- Ranks that have a process each, as far as the trainer can tell ---- */

enum { PROCESSES = 4 };
static const struct weft_comm_options four = {.rank_count = PROCESSES};

struct processes {
  struct weft_gpt_trainer_options options[PROCESSES];
  struct weft_gpt_trainer *trainers[PROCESSES];
};

static enum weft_status process_main(void *context, struct weft_transport *transport,
                                     struct weft_error *error) {
  struct processes *processes = context;
  struct weft_gpt_trainer_options options = processes->options[transport->rank];
  options.endpoint = transport;
  const enum weft_status status =
      weft_gpt_trainer_create(&options, &processes->trainers[transport->rank], error);
  return status < 0 ? status : weft_gpt_trainer_run(processes->trainers[transport->rank], error);
}

static void destroy_trainers(const struct processes *processes) {
  for (uint32_t r = 0; r < PROCESSES; r++) {
    weft_gpt_trainer_destroy(processes->trainers[r]);
  }
}

static void check_model(const struct weft_gpt_trainer *trainer, const struct hand *hand) {
  const struct weft_gpt_layer_state *model = weft_gpt_trainer_model(trainer);
  assert_non_null(model);
  for (uint32_t k = 0; k < hand->layer_count; k++) {
    assert_memory_equal(model[k].parameters, hand->layers[k].parameters,
                        hand->layers[k].floats * sizeof(float));
  }
}

static void check_events(const struct weft_gpt_trainer *trainer) {
  uint64_t count;
  const struct weft_program *program = weft_gpt_trainer_program(trainer);
  struct weft_event *events = calloc(program->action_count, sizeof *events);
  weft_gpt_trainer_events(trainer, events, program->action_count, &count);
  assert_int_equal(count, program->action_count);
  for (uint64_t k = 0; k < count; k++) {
    assert_int_equal(events[k].record, k);
    assert_true(events[k].end >= events[k].begin);
  }
  free(events);
}

static void test_processes(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  struct processes processes = {.trainers = {NULL}};
  struct outcome outcome = {.hash = 0};
  struct weft_comm *world;
  struct weft_error error;
  struct hand hand;
  for (uint32_t r = 0; r < PROCESSES; r++) {
    processes.options[r] = hand_options(&dataset);
    processes.options[r].training.config.tied = true;
    processes.options[r].replicas = 2;
    processes.options[r].ranks = 2;
    processes.options[r].schedule = "1F1B";
    processes.options[r].shard = WEFT_GPT_SHARD_FULL;
    processes.options[r].gather_events = processes.options[r].gather_model = true;
  }
  processes.options[0].on_step = note; /* nobody else calls it: see the count */
  processes.options[0].context = &outcome;
  hand_init(&hand, &processes.options[0].training, &dataset);
  for (uint64_t step = 0; step < STEPS; step++) {
    (void)hand_step(&hand, step, 2);
  }
  assert_int_equal(weft_comm_open(NULL, "threads", &four, &world, &error), WEFT_OK);
  if (weft_comm_run(world, process_main, &processes, &error) < 0) {
    fail_msg("%s", error.message);
  }
  assert_int_equal(outcome.count, STEPS);
  for (uint32_t r = 0; r < PROCESSES; r++) {
    struct weft_gpt_memory memory;
    assert_true(weft_gpt_trainer_hash(processes.trainers[r]) == hand_hash(&hand));
    assert_int_equal(weft_gpt_trainer_memory(processes.trainers[r], 1, &memory), r == 1);
    assert_true((weft_gpt_trainer_layer(processes.trainers[r], 0) != NULL) == (r % 2 == 0));
    assert_true((weft_gpt_trainer_model(processes.trainers[r]) != NULL) == (r == 0));
  }
  check_model(processes.trainers[0], &hand);
  check_events(processes.trainers[0]);
  hand_finish(&hand);
  destroy_trainers(&processes);
  weft_comm_close(world);
}

/* ---- What is refused ---- */

static void expect_odd(uint32_t odd, void (*change)(struct weft_gpt_trainer_options *options),
                       const struct weft_gpt_dataset *dataset) {
  struct processes processes = {.trainers = {NULL}};
  struct weft_comm *world;
  struct weft_error error;
  char named[16];
  for (uint32_t r = 0; r < PROCESSES; r++) {
    processes.options[r] = hand_options(dataset);
    processes.options[r].replicas = 2;
    processes.options[r].ranks = 2;
    processes.options[r].schedule = "1F1B";
  }
  change(&processes.options[odd]);
  assert_int_equal(weft_comm_open(NULL, "threads", &four, &world, &error), WEFT_OK);
  assert_int_equal(weft_comm_run(world, process_main, &processes, &error), WEFT_ERR_PEER);
  snprintf(named, sizeof named, "rank %u", odd);
  assert_non_null(strstr(error.message, named));
  assert_non_null(strstr(error.message, "configuration"));
  for (uint32_t r = 0; r < PROCESSES; r++) {
    assert_int_equal(weft_gpt_trainer_steps_done(processes.trainers[r]), 0);
  }
  destroy_trainers(&processes);
  weft_comm_close(world);
}

static void change_data(struct weft_gpt_trainer_options *options) {
  options->training.data_hash ^= 1;
}
static void change_rate(struct weft_gpt_trainer_options *options) { options->training.rate *= 2; }
static void change_shard(struct weft_gpt_trainer_options *options) {
  options->shard = WEFT_GPT_SHARD_GRADS;
}

static void test_odd_ranks(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  expect_odd(1, change_data, &dataset);
  expect_odd(3, change_rate, &dataset);
  expect_odd(2, change_shard, &dataset);
}

static void expect_refused(const struct weft_gpt_trainer_options *options, const char *words) {
  struct weft_gpt_trainer *trainer;
  struct weft_error error;
  assert_int_equal(weft_gpt_trainer_create(options, &trainer, &error), WEFT_ERR_USAGE);
  if (strstr(error.message, words) == NULL) {
    fail_msg("'%s' does not say '%s'", error.message, words);
  }
}

static void test_refused(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  struct weft_gpt_trainer_options options = hand_options(&dataset);
  struct weft_comm *world;
  struct weft_program *program;
  struct weft_error error;
  options.replicas = 5;
  expect_refused(&options, "24 sequences cannot be divided among 5 replicas");
  options.replicas = 4;
  expect_refused(&options, "6 sequences of each replica cannot be cut into 4");
  options.replicas = 2;
  options.transport = "carrier pigeon";
  expect_refused(&options, "no transport is called 'carrier pigeon'");
  const struct weft_comm_options three = {.rank_count = 3};
  assert_int_equal(weft_comm_open(NULL, "loopback", &three, &world, &error), WEFT_OK);
  options.endpoint = weft_comm_endpoint(world, 0);
  expect_refused(&options, "3 ranks; 2 replicas of 1 pipeline ranks are 2");
  weft_comm_close(world);

  options = hand_options(&dataset);
  struct weft_lower_options lower = weft_lower_options_default();
  lower.reduce_grad = lower.unshard = false;
  struct weft_named_source plan = {.schedule = "1F1B", .ranks = 2, .lower = &lower};
  assert_int_equal(weft_source_named(&plan, MICROBATCHES, true, &program, &error), WEFT_OK);
  options.program = program;
  options.replicas = 2;
  expect_refused(&options, "no REDUCE_GRAD of stage 0");
  options.replicas = 1;
  options.training.config.tied = true;
  expect_refused(&options, "no TIE_GRAD of stage 0");
  weft_program_destroy(program);
  lower.reduce_grad = true;
  assert_int_equal(weft_source_named(&plan, MICROBATCHES, true, &program, &error), WEFT_OK);
  options.program = program;
  options.training.config.tied = false;
  options.replicas = 2;
  options.shard = WEFT_GPT_SHARD_FULL;
  expect_refused(&options, "no UNSHARD of stage 0");
  weft_program_destroy(program);
}

/* ---- Waits outside the pipeline have the stall limit too ---- */

enum { LIMIT_MS = 600, LATE_MS = 1500 };

static _Thread_local uint32_t rank_here;
static void record_rank(void *context, uint32_t rank) {
  (void)context;
  rank_here = rank;
}

static void sleep_late(void) {
  const struct timespec late = {.tv_sec = LATE_MS / 1000, .tv_nsec = LATE_MS % 1000 * 1000000L};
  (void)nanosleep(&late, NULL);
}

/* Called before ranks gather the statistics of a step. */
static bool come_late(void *context) {
  (void)context;
  if (rank_here == 1) {
    sleep_late();
  }
  return false;
}

/* Called while the first replica writes a layer, and the other one gathers the next. */
static int write_late(void *context, const char *operation, const char *path) {
  (void)context;
  (void)path;
  if (strcmp(operation, "open") == 0) {
    sleep_late();
  }
  return 0;
}

static void expect_stall(const struct weft_gpt_trainer_options *options) {
  struct weft_gpt_trainer *trainer;
  struct weft_error error;
  assert_int_equal(weft_gpt_trainer_create(options, &trainer, &error), WEFT_OK);
  assert_int_equal(weft_gpt_trainer_run(trainer, &error), WEFT_ERR_STALLED);
  assert_non_null(strstr(error.message, "has waited"));
  weft_gpt_trainer_destroy(trainer);
}

static void test_stalls(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  const struct weft_gpt_files late = {.before = write_late};
  char dir[] = "/tmp/weft-stall-XXXXXX", command[64];
  struct weft_gpt_trainer_options options = hand_options(&dataset);
  options.replicas = 2;
  options.stall_limit = LIMIT_MS * INT64_C(1000000);
  options.on_rank = record_rank;
  options.interrupted = come_late;
  expect_stall(&options);
  assert_non_null(mkdtemp(dir));
  options.interrupted = NULL;
  options.shard = WEFT_GPT_SHARD_FULL;
  options.checkpoint_dir = dir;
  options.checkpoint_every = 1;
  options.files = &late;
  expect_stall(&options);
  (void)snprintf(command, sizeof command, "rm -rf '%s'", dir);
  assert_int_equal(system(command), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_matrix),    cmocka_unit_test(test_evaluation),
      cmocka_unit_test(test_resume),    cmocka_unit_test(test_memory),
      cmocka_unit_test(test_processes), cmocka_unit_test(test_odd_ranks),
      cmocka_unit_test(test_refused),   cmocka_unit_test(test_stalls)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
