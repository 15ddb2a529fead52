/* Training, bit for bit: losses of every step, all gradients and all parameters after
 * fifty steps are those of one rank, for every schedule, number of ranks and transport;
 * and a resumed run goes on as if it had never stopped, on other ranks too. And what is
 * measured meanwhile, of stages and of layers. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_gpt_hand.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STEPS = 8, ONE_OF = 3 };
#else
enum { STEPS = 50, ONE_OF = 1 };
#endif
enum { BLOCKS = 14, PARTS = BLOCKS + 2, MICROBATCHES = 16, DATASET_SIZE = 4000 };

/* ---- A small model and some text ---- */

static uint8_t text[DATASET_SIZE];

static struct weft_gpt_dataset make_corpus(void) {
  static const char words[] = "the quick brown fox jumps over the lazy dog, and then again; ";
  for (uint32_t k = 0; k < DATASET_SIZE; k++) {
    text[k] = (uint8_t)words[(k + k / 97) % (sizeof words - 1)];
  }
  return (struct weft_gpt_dataset){
      .bytes = text, .size = DATASET_SIZE, .train_size = DATASET_SIZE * 9 / 10, .hash = 42};
}

static struct weft_gpt_trainer_options base_options(const struct weft_gpt_dataset *dataset) {
  struct weft_gpt_trainer_options options = hand_options(dataset);
  options.training.config.blocks = BLOCKS;
  options.training.config.seed = 5;
  options.training.data_seed = 9;
  options.training.batch = 2 * MICROBATCHES;
  options.training.microbatches = MICROBATCHES;
  options.training.warmup_steps = 5;
  options.training.total_steps = STEPS;
  return options;
}

/* ---- A run and what is compared ---- */

struct run {
  double losses[STEPS];
  uint32_t count;
  uint64_t hash;
  uint64_t gradients;
};

static void record_loss(void *context, const struct weft_gpt_step_report *report) {
  struct run *run = context;
  assert_true(report->step >= 1 && report->step <= STEPS);
  run->losses[report->step - 1] = report->loss;
  run->count++;
}

static uint64_t hash_gradients(const struct weft_gpt_trainer *trainer, uint32_t layer_count) {
  uint64_t hash = 0;
  for (uint32_t layer = 0; layer < layer_count; layer++) {
    const struct weft_gpt_layer_state *state = weft_gpt_trainer_layer(trainer, layer);
    const uint64_t pair[2] = {hash, weft_checksum(state->gradients, state->floats * sizeof(float))};
    hash = weft_checksum(pair, sizeof pair);
  }
  return hash;
}

static void train(struct weft_gpt_trainer_options options, const char *what, struct run *run) {
  struct weft_error error;
  struct weft_gpt_trainer *trainer;
  memset(run, 0, sizeof *run);
  options.on_step = record_loss;
  options.context = run;
  if (weft_gpt_trainer_create(&options, &trainer, &error) < 0) {
    fail_msg("%s: %s", what, error.message);
  }
  if (weft_gpt_trainer_run(trainer, &error) < 0) {
    fail_msg("%s: %s", what, error.message);
  }
  run->hash = weft_gpt_trainer_hash(trainer);
  run->gradients = hash_gradients(trainer, weft_gpt_layer_count(&options.training.config));
  weft_gpt_trainer_destroy(trainer);
}

static void expect_same(const struct run *run, const struct run *expected, const char *what) {
  for (uint32_t k = 0; k < STEPS; k++) {
    if (run->losses[k] != expected->losses[k]) {
      fail_msg("%s: step %u has loss %.17g, one rank has %.17g", what, k + 1, run->losses[k],
               expected->losses[k]);
    }
  }
  if (run->gradients != expected->gradients || run->hash != expected->hash) {
    fail_msg("%s: %s differ from those of one rank", what,
             run->hash != expected->hash ? "parameters" : "gradients");
  }
}

/* ---- By hand ---- */

/* The trainer computes what its layers do, whose mathematics is compared with PyTorch
 * (cli_train_pytorch.bats). */
static void test_by_hand(void **state) {
  (void)state;
  enum { THREE = 3 };
  const struct weft_gpt_dataset dataset = make_corpus();
  struct weft_gpt_trainer_options options = base_options(&dataset);
  options.training.total_steps = THREE;
  struct hand hand;
  struct run run;
  hand_init(&hand, &options.training, &dataset);
  train(options, "by hand", &run);
  for (uint64_t step = 0; step < THREE; step++) {
    const double loss = hand_step(&hand, step, 1);
    assert_memory_equal(&loss, &run.losses[step], sizeof loss);
  }
  assert_true(hand_hash(&hand) == run.hash);
  hand_finish(&hand);
}

/* ---- One rank in the same order ---- */

struct ordered {
  double begin;
  uint32_t record;
};

static int compare_ordered(const void *a, const void *b) {
  const struct ordered *x = a, *y = b;
  return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1) : (x->record < y->record ? -1 : 1);
}

/* All stages on one rank, computing in the order of the simulated program: the same
 * order of every stage's backwards. */
static struct weft_program *linearize(const struct weft_program *program) {
  struct weft_error error;
  struct weft_costs *costs;
  struct weft_simulation *sim;
  assert_int_equal(weft_costs_create(NULL, 1, &costs, &error), WEFT_OK);
  assert_int_equal(weft_simulate(NULL, program, costs, NULL, &sim, &error), WEFT_OK);
  struct ordered *order = calloc(sim->event_count, sizeof *order);
  struct weft_action *actions = calloc(sim->event_count, sizeof *actions);
  uint64_t count = 0;
  for (uint64_t k = 0; k < sim->event_count; k++) {
    const uint8_t op = program->actions[sim->events[k].record].op;
    if (op == WEFT_OP_F || op == WEFT_OP_B || op == WEFT_OP_I || op == WEFT_OP_W) {
      order[count++] = (struct ordered){(double)sim->events[k].begin, sim->events[k].record};
    }
  }
  qsort(order, count, sizeof *order, compare_ordered);
  for (uint64_t k = 0; k < count; k++) {
    actions[k] = program->actions[order[k].record];
  }
  struct weft_program *one;
  assert_int_equal(weft_program_create(NULL, 1, &count, actions, &one, &error), WEFT_OK);
  free(order);
  free(actions);
  weft_simulation_destroy(sim);
  weft_costs_destroy(costs);
  return one;
}

static bool orders_equal(const struct weft_program *a, const struct weft_program *b) {
  /* Of each stage's B and W. */
  for (uint32_t s = 0; s < a->stage_count; s++) {
    uint64_t i = 0, j = 0;
    for (;;) {
      while (i < a->action_count &&
             !(a->actions[i].stage == s &&
               (a->actions[i].op == WEFT_OP_B || a->actions[i].op == WEFT_OP_W))) {
        i++;
      }
      while (j < b->action_count &&
             !(b->actions[j].stage == s &&
               (b->actions[j].op == WEFT_OP_B || b->actions[j].op == WEFT_OP_W))) {
        j++;
      }
      if (i == a->action_count || j == b->action_count) {
        break;
      }
      if (a->actions[i++].microbatch != b->actions[j++].microbatch) {
        return false;
      }
    }
  }
  return true;
}

/* ---- The matrix ---- */

static void check_schedule(const struct weft_gpt_dataset *dataset, const char *schedule, uint32_t p,
                           bool tied, uint32_t *runs) {
  struct weft_error error;
  struct weft_named_source plan = {.schedule = schedule, .ranks = p};
  struct weft_program *program;
  if (weft_source_named(&plan, MICROBATCHES, true, &program, &error) < 0) {
    fail_msg("%s, %u ranks: %s", schedule, p, error.message);
  }
  struct weft_program *one = linearize(program);
  assert_true(orders_equal(program, one));
  struct weft_gpt_trainer_options options = base_options(dataset);
  options.training.config.tied = tied;
  struct run expected, run;
  char what[96];
  options.program = one;
  options.transport = "loopback";
  snprintf(what, sizeof what, "one rank in the order of %s on %u", schedule, p);
  train(options, what, &expected);
  assert_int_equal(expected.count, STEPS);
  assert_true(expected.losses[STEPS - 1] < expected.losses[0]);
  options.program = NULL;
  options.schedule = schedule;
  options.ranks = p;
  for (int transport = 0; transport < 2; transport++) {
    options.transport = transport == 0 ? "loopback" : "threads";
    options.loopback_seed = p;
    snprintf(what, sizeof what, "%s on %u ranks, %s%s", schedule, p,
             transport == 0 ? "loopback" : "threads", tied ? ", tied" : "");
    train(options, what, &run);
    expect_same(&run, &expected, what);
    (*runs)++;
  }
  weft_program_destroy(one);
  weft_program_destroy(program);
}

static void test_every_schedule(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = make_corpus();
  uint32_t runs = 0;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    if (info->fixed || !info->trains) {
      continue;
    }
    for (uint32_t power = 1; power <= 3; power++) {
      if ((k + power) % ONE_OF == 0) {
        check_schedule(&dataset, info->name, 1u << power, power == 2, &runs);
      }
    }
  }
  print_message("%u runs of %d steps, bit for bit\n", runs, STEPS);
}

/* ---- Resuming ---- */

struct segment {
  const char *schedule;
  uint32_t ranks;
  const char *transport;
};

static void remove_folder(const char *dir) {
  char command[256];
  snprintf(command, sizeof command, "rm -rf '%s'", dir);
  assert_int_equal(system(command), 0);
}

/* Stops after half the steps, as if interrupted. */
static bool stop_in_the_middle(void *context) {
  const struct run *run = context;
  return run->count + 1 >= STEPS / 2;
}

static void train_in_two(const struct weft_gpt_dataset *dataset, const struct segment *first,
                         const struct segment *second, const struct run *expected) {
  char dir[] = "/tmp/weft-resume-XXXXXX";
  assert_non_null(mkdtemp(dir));
  struct weft_error error;
  struct weft_gpt_trainer_options options = base_options(dataset);
  struct run before, after;
  char what[128];
  snprintf(what, sizeof what, "%s on %u, then %s on %u", first->schedule, first->ranks,
           second->schedule, second->ranks);
  options.checkpoint_dir = dir;
  options.schedule = first->schedule;
  options.ranks = first->ranks;
  options.transport = first->transport;
  options.interrupted = stop_in_the_middle;
  train(options, what, &before);
  assert_in_range(before.count, STEPS / 2, STEPS - 1);
  struct weft_gpt_checkpoint *checkpoint;
  if (weft_gpt_checkpoint_open(NULL, dir, &checkpoint, &error) < 0) {
    fail_msg("%s: %s", what, error.message);
  }
  options.interrupted = NULL;
  options.checkpoint_dir = NULL;
  options.resume = checkpoint;
  options.training = *weft_gpt_checkpoint_training(checkpoint);
  assert_int_equal(options.training.step, before.count);
  options.schedule = second->schedule;
  options.ranks = second->ranks;
  options.transport = second->transport;
  train(options, what, &after);
  weft_gpt_checkpoint_close(checkpoint);
  assert_int_equal(before.count + after.count, STEPS);
  memcpy(after.losses, before.losses, before.count * sizeof(double));
  expect_same(&after, expected, what);
  remove_folder(dir);
}

/* Schedules that take microbatches in order in every stage's backward: all but
 * LoopedBFS. So one uninterrupted run is the reference of all. */
static void test_resume(void **state) {
  (void)state;
  static const struct segment segments[][2] = {
      {{"1F1B", 2, "threads"}, {"1F1B", 2, "threads"}},
      {{"1F1B", 2, "threads"}, {"1F1B", 4, "threads"}},
      {{"1F1B", 4, "threads"}, {"GPipe", 1, "loopback"}},
      {{"GPipe", 1, "loopback"}, {"Interleaved1F1B", 2, "threads"}},
      {{"Interleaved1F1B", 4, "loopback"}, {"ZBH1", 2, "threads"}},
      {{"ZBVZeroBubble", 4, "threads"}, {"InterleavedZeroBubble", 4, "loopback"}},
      {{"ZBH1", 8, "threads"}, {"1F1B", 2, "loopback"}},
      {{"DualPipeV", 2, "threads"}, {"ZBVZeroBubble", 8, "threads"}},
  };
  const struct weft_gpt_dataset dataset = make_corpus();
  struct run expected;
  train(base_options(&dataset), "uninterrupted", &expected);
  for (size_t k = 0; k < sizeof segments / sizeof segments[0]; k++) {
    train_in_two(&dataset, &segments[k][0], &segments[k][1], &expected);
  }
}

/* ---- Measured costs ---- */

/* A stage's action takes what its layers take, and a little more. */
static void check_stage_costs(const struct weft_costs *costs, uint32_t stage, uint32_t first,
                              uint32_t end) {
  const struct weft_stage_costs *all = &costs->stages[stage];
  const double most = 1 + 1e-5; /* means are rounded to floats */
  double f = 0, i = 0, w = 0;
  for (uint32_t layer = first; layer < end; layer++) {
    assert_true(costs->parts[layer].f > 0 && costs->parts[layer].w > 0);
    assert_true(layer == 0 ? costs->parts[layer].i == 0 : costs->parts[layer].i > 0);
    f += costs->parts[layer].f;
    i += costs->parts[layer].i;
    w += costs->parts[layer].w;
  }
  assert_true(f <= all->f * most);
  assert_true(i <= all->i * most && w <= all->w * most);
  assert_true(i + w <= all->b * most && fabs(all->i + all->w - all->b) <= 1e-5 * all->b);
}

static void check_costs(const struct weft_gpt_dataset *dataset, const char *schedule) {
  struct weft_gpt_trainer_options options = base_options(dataset);
  struct weft_gpt_trainer *trainer;
  struct weft_costs *costs = NULL;
  struct weft_error error;
  uint32_t stage_count;
  options.schedule = schedule;
  options.ranks = 2;
  options.training.total_steps = 4;
  options.eval_every = 1; /* does not count */
  assert_int_equal(weft_gpt_trainer_create(&options, &trainer, &error), WEFT_OK);
  assert_int_equal(weft_gpt_trainer_costs(trainer, &costs, &error), WEFT_ERR_USAGE);
  assert_int_equal(weft_gpt_trainer_run(trainer, &error), WEFT_OK);
  assert_int_equal(weft_gpt_trainer_costs(trainer, &costs, &error), WEFT_OK);
  const uint32_t *first = weft_gpt_trainer_split(trainer, &stage_count);
  assert_int_equal(costs->stage_count, stage_count);
  assert_int_equal(costs->part_count, PARTS);
  assert_int_equal(weft_costs_check(costs, stage_count, &error), WEFT_OK);
  for (uint32_t s = 0; s < stage_count; s++) {
    check_stage_costs(costs, s, first[s], first[s + 1]);
  }
  weft_costs_destroy(costs);
  weft_gpt_trainer_destroy(trainer);
}

static void test_costs(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = make_corpus();
  check_costs(&dataset, "1F1B");
  check_costs(&dataset, "Interleaved1F1B");
  check_costs(&dataset, "ZBH1");
}

/* ---- What ranks tell ---- */

struct told {
  pthread_t made[2], runs[2]; /* by which thread */
  uint32_t announced[2];
  uint64_t steps[2]; /* that were told of so far, each time one more */
};

static void record_rank(void *context, uint32_t rank) {
  struct told *told = context;
  (told->announced[rank]++ == 0 ? told->made : told->runs)[rank] = pthread_self();
}

static void record_between(void *context, uint32_t rank, uint64_t step) {
  struct told *told = context;
  assert_true(pthread_equal(told->runs[rank], pthread_self()));
  assert_int_equal(step, told->steps[rank]++);
}

static void test_told(void **state) {
  (void)state;
  enum { THREE = 3 };
  const struct weft_gpt_dataset dataset = make_corpus();
  struct weft_gpt_trainer_options options = base_options(&dataset);
  struct weft_gpt_trainer *trainer;
  struct weft_error error;
  struct told told = {.announced = {0}};
  options.training.total_steps = THREE;
  options.ranks = 2;
  options.on_rank = record_rank;
  options.between_steps = record_between;
  options.context = &told;
  assert_int_equal(weft_gpt_trainer_create(&options, &trainer, &error), WEFT_OK);
  assert_int_equal(told.announced[0] + told.announced[1], 2);
  assert_int_equal(weft_gpt_trainer_run(trainer, &error), WEFT_OK);
  for (uint32_t r = 0; r < 2; r++) {
    assert_int_equal(told.announced[r], 2);
    assert_true(pthread_equal(told.made[r], pthread_self()));
    assert_int_equal(told.steps[r], THREE + 1);
    assert_false(pthread_equal(told.runs[r], pthread_self()));
  }
  weft_gpt_trainer_destroy(trainer);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_by_hand), cmocka_unit_test(test_every_schedule),
      cmocka_unit_test(test_resume), cmocka_unit_test(test_costs), cmocka_unit_test(test_told)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
