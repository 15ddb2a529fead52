/* The trainer on GPUs, on the driver without a GPU of tests/device/fake_cuda and a cublasLt of
 * loops: losses and gradients are those of the host but for roundings to bf16, and the same bits
 * for every schedule, number of ranks, with and without graph, in any order of execution. */
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "fake_cuda.h"
#include "support_gpt_hand.h"

/* Under a sanitizer all of it takes ten times as long. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { RANKS_MAX = 2, SCHEDULE_STEP = 4, MANY_STEPS = 10 };
#else
enum { RANKS_MAX = 4, SCHEDULE_STEP = 1, MANY_STEPS = 50 };
#endif

/* The first step is enqueued, the second recorded, the third replayed. */
enum { STEPS = 3, BLOCKS = 6, LAYERS_MAX = BLOCKS + 1 + WEFT_GPT_HEADS_MAX };

static struct weft_gpt_trainer_options base_options(const struct weft_gpt_dataset *dataset) {
  struct weft_gpt_trainer_options options = hand_options(dataset);
  options.training.config.blocks = BLOCKS;
  options.training.config.dim = 32;
  options.training.config.heads = 2;
  options.training.config.context = 7; /* not a multiple of anything */
  options.training.batch = 8;
  options.training.microbatches = 8;
  options.training.total_steps = STEPS;
  options.training.rate = 1e-3; /* more, and roundings grow */
  options.eval_every = STEPS;
  return options;
}

struct run {
  double losses[STEPS], second_losses[STEPS], validation[STEPS], norms[STEPS];
  uint64_t hash, state_hash;
  enum weft_gpt_divergence divergence;
  uint64_t steps_done, skipped;
  /* Of the last step; freed by the caller. */
  float *gradients[LAYERS_MAX], *parameters[LAYERS_MAX];
};

static void record_step(void *context, const struct weft_gpt_step_report *report) {
  struct run *run = context;
  run->losses[report->step - 1] = report->loss;
  run->second_losses[report->step - 1] = report->second_loss;
  run->norms[report->step - 1] = report->gradient_norm;
  run->validation[report->step - 1] = report->validation_loss;
}

static void train(struct weft_gpt_trainer_options options, bool on_gpus, const char *what,
                  struct run *run) {
  struct weft_error error;
  struct weft_gpt_trainer *trainer;
  memset(run, 0, sizeof *run);
  options.on_step = record_step;
  options.context = run;
  if (on_gpus) {
    options.transport = "cuda";
    if (weft_cuda_open(NULL, NULL, options.ranks * (options.replicas > 0 ? options.replicas : 1),
                       &options.cuda, &error) < 0) {
      fail_msg("%s: %s", what, error.message);
    }
  }
  if (weft_gpt_trainer_create(&options, &trainer, &error) < 0 ||
      weft_gpt_trainer_run(trainer, &error) < 0) {
    fail_msg("%s: %s", what, error.message);
  }
  run->hash = weft_gpt_trainer_hash(trainer);
  run->state_hash = hand_hash_state_of(trainer, &options.training.config);
  for (uint32_t layer = 0; layer < weft_gpt_layer_count(&options.training.config); layer++) {
    const uint64_t count = weft_gpt_layer_floats(&options.training.config, layer);
    run->gradients[layer] = calloc((size_t)count, sizeof(float));
    run->parameters[layer] = calloc((size_t)count, sizeof(float));
    assert_true(weft_gpt_trainer_copy_layer(
        trainer, &(struct weft_gpt_layer_state){.layer = layer,
                                                .parameters = run->parameters[layer],
                                                .gradients = run->gradients[layer]}));
  }
  run->divergence = weft_gpt_trainer_divergence(trainer);
  run->steps_done = weft_gpt_trainer_steps_done(trainer);
  run->skipped = weft_gpt_trainer_steps_skipped(trainer);
  weft_gpt_trainer_destroy(trainer);
  weft_cuda_close(options.cuda);
  if (on_gpus && fake_cuda_finding_count() > 0) {
    fail_msg("%s: %s", what, fake_cuda_finding(0));
  }
}

static void free_run(struct run *run) {
  for (uint32_t layer = 0; layer < LAYERS_MAX; layer++) {
    free(run->gradients[layer]);
    free(run->parameters[layer]);
  }
}

/* ---- The host's numbers ---- */

static void compare_gradients(const struct run *run, const struct run *host, uint32_t layer,
                              uint64_t count) {
  double difference = 0, size = 0;
  for (uint64_t k = 0; k < count; k++) {
    const double a = (double)run->gradients[layer][k], b = (double)host->gradients[layer][k];
    difference += (a - b) * (a - b);
    size += b * b;
  }
  if (!(sqrt(difference) <= 0.03 * sqrt(size))) {
    fail_msg("gradients of layer %u differ by %g of their size", layer,
             sqrt(difference) / sqrt(size));
  }
}

/* Losses of all steps, and gradients of the first: after it AdamW has made of a rounding what it
 * likes. */
static void check_against_host(struct weft_gpt_trainer_options options, const char *what) {
  struct run host, run;
  fake_cuda_reset(&(struct fake_cuda_options){.seed = 1});
  train(options, false, what, &host);
  train(options, true, what, &run);
  for (uint32_t k = 0; k < STEPS; k++) {
    if (!(fabs(run.losses[k] - host.losses[k]) < 0.002 * host.losses[k])) {
      fail_msg("%s: step %u has loss %g, on the host %g", what, k + 1, run.losses[k],
               host.losses[k]);
    }
    assert_true(fabs(run.second_losses[k] - host.second_losses[k]) <=
                0.002 * host.second_losses[k]);
    assert_true(fabs(run.norms[k] - host.norms[k]) < 0.02 * host.norms[k]);
  }
  assert_true(fabs(run.validation[STEPS - 1] - host.validation[STEPS - 1]) < 0.01);
  free_run(&host);
  free_run(&run);
  options.training.total_steps = 1;
  train(options, false, what, &host);
  train(options, true, what, &run);
  for (uint32_t layer = 0; layer < weft_gpt_layer_count(&options.training.config); layer++) {
    compare_gradients(&run, &host, layer, weft_gpt_layer_floats(&options.training.config, layer));
  }
  free_run(&host);
  free_run(&run);
}

/* Every width of a head that there is a kernel for. */
static void test_against_host(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  static const uint32_t widths[] = {16, 32, 64, 128};
  for (size_t k = 0; k<WEFT_ARRAY_LENGTH(widths); k += SCHEDULE_STEP> 1 ? 2 : 1) {
    struct weft_gpt_trainer_options options = base_options(&dataset);
    options.training.config.heads = k == 0 ? 2 : 1;
    options.training.config.dim = widths[k] * options.training.config.heads;
    options.training.config.tied = k % 2 == 1;
    char what[32];
    (void)snprintf(what, sizeof what, "heads of %u", widths[k]);
    check_against_host(options, what);
  }
}

/* ---- The same bits ---- */

static void test_same_bits(void **state) {
  (void)state;
  static const char *const schedules[] = {
      "GPipe",           "1F1B",          "Eager1F1B", "ZBH1",
      "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV", "InterleavedZeroBubble"};
  const struct weft_gpt_dataset dataset = hand_corpus();
  struct weft_gpt_trainer_options options = base_options(&dataset);
  struct run one, run;
  uint64_t seed = 1;
  options.training.config.tied = true;
  fake_cuda_reset(&(struct fake_cuda_options){.seed = seed});
  train(options, true, "one rank", &one);
  for (size_t s = 0; s < WEFT_ARRAY_LENGTH(schedules); s += SCHEDULE_STEP) {
    for (uint32_t ranks = 2; ranks <= RANKS_MAX; ranks += 2) {
      for (uint32_t graph = 0; graph < 2; graph++) {
        char what[64];
        options.schedule = schedules[s];
        options.ranks = ranks;
        options.eager = graph == 0;
        (void)snprintf(what, sizeof what, "%s, %u ranks, %s", schedules[s], ranks,
                       graph > 0 ? "graph" : "no graph");
        seed++;
        fake_cuda_reset(&(struct fake_cuda_options){
            .seed = seed, .queues = 1 + (uint32_t)seed % 9, .devices = 1 + (uint32_t)seed % 2});
        train(options, true, what, &run);
        if (memcmp(run.losses, one.losses, sizeof run.losses) != 0 || run.hash != one.hash ||
            run.state_hash != one.state_hash) {
          fail_msg("%s: not the bits of one rank", what);
        }
        free_run(&run);
      }
    }
  }
  free_run(&one);
}

/* LoopedBFS takes the backwards of a stage in another order: its bits are its own, with and without
 * graph, and its losses those of the host. */
static void test_looped_bfs(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  struct weft_gpt_trainer_options options = base_options(&dataset);
  struct run host, graph, enqueued;
  options.schedule = "LoopedBFS";
  options.ranks = 2;
  fake_cuda_reset(NULL);
  train(options, false, "LoopedBFS on the host", &host);
  train(options, true, "LoopedBFS", &graph);
  options.eager = true;
  train(options, true, "LoopedBFS without graph", &enqueued);
  assert_int_equal(memcmp(&graph.state_hash, &enqueued.state_hash, sizeof graph.state_hash), 0);
  for (uint32_t s = 0; s < STEPS; s++) {
    assert_true(fabs(graph.losses[s] - host.losses[s]) < 0.002 * host.losses[s]);
  }
  free_run(&host);
  free_run(&graph);
  free_run(&enqueued);
}

/* As the others, after fifty steps. */
static void test_fifty_steps(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  uint64_t hashes[3];
  for (uint32_t k = 0; k < 3; k++) {
    struct weft_gpt_trainer_options options = base_options(&dataset);
    struct weft_gpt_trainer *trainer;
    struct weft_error error;
    options.training.config.dim = 16;
    options.training.config.heads = 1;
    options.training.config.blocks = 3;
    options.training.batch = options.training.microbatches = 4;
    options.training.total_steps = MANY_STEPS;
    options.eval_every = 0;
    options.transport = "cuda";
    options.ranks = 1 + k;
    options.schedule = k == 2 ? "ZBH1" : k == 1 ? "ZBVZeroBubble" : "1F1B";
    options.eager = k == 2;
    fake_cuda_reset(&(struct fake_cuda_options){.seed = k});
    assert_int_equal(weft_cuda_open(NULL, NULL, options.ranks, &options.cuda, &error), WEFT_OK);
    assert_int_equal(weft_gpt_trainer_create(&options, &trainer, &error), WEFT_OK);
    assert_int_equal(weft_gpt_trainer_run(trainer, &error), WEFT_OK);
    hashes[k] = weft_gpt_trainer_hash(trainer);
    weft_gpt_trainer_destroy(trainer);
    weft_cuda_close(options.cuda);
  }
  assert_true(hashes[0] == hashes[1] && hashes[0] == hashes[2]);
}

/* ---- Skips and a second head ---- */

static struct weft_gpt_trainer_options graph_options(const struct weft_gpt_dataset *dataset) {
  struct weft_gpt_trainer_options options = base_options(dataset);
  options.training.config.skips = true;
  options.training.config.predict = 2;
  return options;
}

static void test_graph_against_host(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  struct weft_gpt_trainer_options options = graph_options(&dataset);
  check_against_host(options, "skips and two heads");
  options.training.config.predict = 1;
  options.training.config.tied = true;
  check_against_host(options, "skips, tied");
}

static bool same_bits(const struct run *a, const struct run *b) {
  return memcmp(a->losses, b->losses, sizeof a->losses) == 0 &&
         memcmp(a->second_losses, b->second_losses, sizeof a->second_losses) == 0 &&
         memcmp(a->validation, b->validation, sizeof a->validation) == 0 && a->hash == b->hash &&
         a->state_hash == b->state_hash;
}

/* Heads beside blocks, on a stage of their own, and each on its own; skips that pass over several
 * stages, and over none. */
static void test_graph_same_bits(void **state) {
  (void)state;
  static const struct {
    const char *schedule;
    uint32_t ranks, stage_count, blocks[8];
    bool tied, eager;
  } cases[] = {{"1F1B", 2, 2, {3, 3}, true, false},
               {"ZBVZeroBubble", 2, 4, {2, 2, 2, 0}, true, false},
               {"ZBH1", 3, 3, {6, 0, 0}, false, true},
               {"GPipe", 4, 4, {3, 3, 0, 0}, false, true},
               {"Interleaved1F1B", 2, 4, {0, 6, 0, 0}, false, false},
               {"ZBH1", 4, 4, {0, 1, 2, 3}, false, false},
               {"Interleaved1F1B", 4, 8, {1, 1, 1, 1, 1, 1, 0, 0}, false, true},
               {"DualPipeV", 4, 8, {0, 1, 1, 1, 1, 1, 1, 0}, true, false},
               {"ZBVZeroBubble", 4, 8, {1, 1, 1, 1, 1, 1, 0, 0}, false, false}};
  const struct weft_gpt_dataset dataset = hand_corpus();
  struct run one[2], run;
  for (uint32_t tied = 0; tied < 2; tied++) {
    struct weft_gpt_trainer_options options = graph_options(&dataset);
    options.training.config.tied = tied > 0;
    fake_cuda_reset(NULL);
    train(options, true, "a graph on one rank", &one[tied]);
  }
  for (uint32_t k = 0; k < WEFT_ARRAY_LENGTH(cases); k++) {
    struct weft_gpt_trainer_options options = graph_options(&dataset);
    uint32_t first[9];
    struct weft_error error;
    if (cases[k].ranks > RANKS_MAX) {
      continue;
    }
    options.training.config.tied = cases[k].tied;
    options.schedule = cases[k].schedule;
    options.ranks = cases[k].ranks;
    options.eager = cases[k].eager;
    options.first_layers = first;
    assert_int_equal(weft_gpt_split_counts(&options.training.config, cases[k].blocks,
                                           cases[k].stage_count, first, &error),
                     WEFT_OK);
    char what[64];
    (void)snprintf(what, sizeof what, "graph %u, %s on %u ranks", k, cases[k].schedule,
                   cases[k].ranks);
    fake_cuda_reset(
        &(struct fake_cuda_options){.seed = k, .queues = 1 + k % 9, .devices = 1 + k % 2});
    train(options, true, what, &run);
    assert_true(fake_cuda_calls("cuGraphLaunch") >= STEPS - 1 || cases[k].eager);
    if (!same_bits(&run, &one[cases[k].tied])) {
      fail_msg("%s: not the bits of one rank", what);
    }
    free_run(&run);
  }
  free_run(&one[0]);
  free_run(&one[1]);
}

/* ---- Replicas ---- */

/* For a number of replicas, losses are the host's, and bits the same however they are sharded. */
static void test_replicas(void **state) {
  (void)state;
  static const struct {
    uint32_t ranks;
    enum weft_gpt_shard shard;
    const char *schedule;
    bool eager;
  } cases[] = {{1, WEFT_GPT_SHARD_NONE, "GPipe", true},
               {2, WEFT_GPT_SHARD_FULL, "ZBVZeroBubble", false},
               {1, WEFT_GPT_SHARD_GRADS, "1F1B", false},
               {2, WEFT_GPT_SHARD_NONE, "ZBH1", false},
               {2, WEFT_GPT_SHARD_GRADS, "Interleaved1F1B", true},
               {1, WEFT_GPT_SHARD_FULL, "GPipe", true}};
  const struct weft_gpt_dataset dataset = hand_corpus();
  uint64_t seed = 0;
  for (uint32_t replicas = 2; replicas <= (SCHEDULE_STEP > 1 ? 2 : 3); replicas++) {
    struct weft_gpt_trainer_options options = base_options(&dataset);
    struct run host, one, run;
    options.replicas = replicas;
    options.training.batch = 12;
    options.training.microbatches = 2;
    options.training.config.tied = replicas == 2;
    options.training.config.dim = 16;
    options.training.config.heads = 1;
    train(options, false, "replicas on the host", &host);
    for (size_t k = 0; k < WEFT_ARRAY_LENGTH(cases); k++) {
      char what[64];
      options.ranks = cases[k].ranks;
      options.shard = cases[k].shard;
      options.schedule = cases[k].schedule;
      options.eager = cases[k].eager;
      (void)snprintf(what, sizeof what, "%u replicas, case %u", replicas, (unsigned)k);
      seed++;
      fake_cuda_reset(&(struct fake_cuda_options){
          .seed = seed, .queues = 1 + (uint32_t)seed % 9, .devices = 1 + (uint32_t)seed % 3});
      train(options, true, what, k == 0 ? &one : &run);
      assert_true(cases[k].eager || fake_cuda_calls("cuGraphLaunch") >= STEPS - 1);
      if (k == 0) {
        for (uint32_t s = 0; s < STEPS; s++) {
          assert_true(fabs(one.losses[s] - host.losses[s]) < 0.002 * host.losses[s]);
          assert_true(fabs(one.norms[s] - host.norms[s]) < 0.02 * host.norms[s]);
        }
        continue;
      }
      if (memcmp(run.losses, one.losses, sizeof run.losses) != 0 ||
          memcmp(run.validation, one.validation, sizeof run.validation) != 0 ||
          run.hash != one.hash || run.state_hash != one.state_hash) {
        fail_msg("%s: not the bits of the first", what);
      }
      free_run(&run);
    }
    free_run(&host);
    free_run(&one);
  }
}

/* ---- The optimizer ---- */

/* AdamW's first step on weights and gradients, as the kernel computes it. */
static float first_step(const struct weft_gpt_training *t, double norm, float w, float g,
                        bool decays) {
  const float rate = (float)(t->rate / (double)t->warmup_steps), beta1 = (float)t->beta1;
  const float correction1 = (float)(1 - t->beta1), correction2 = (float)(1 - t->beta2);
  const float clipped = g * (float)(t->clip / (norm + 1e-6)), beta2 = (float)t->beta2;
  const float m = (1 - beta1) * clipped, v = (1 - beta2) * (clipped * clipped);
  const float keep = decays ? 1 - rate * (float)t->decay : 1;
  return w * keep -
         rate / correction1 * m / (sqrtf(v) * (1 / sqrtf(correction2)) + (float)t->epsilon);
}

/* One step, with the norm and AdamW that the host finds from its gradients. */
static void test_optimizer(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  struct weft_gpt_trainer_options options = base_options(&dataset);
  struct run run;
  options.training.total_steps = 1;
  options.training.clip = 0.1;
  options.eval_every = 0;
  options.ranks = RANKS_MAX;
  fake_cuda_reset(&(struct fake_cuda_options){.devices = 2, .seed = 7});
  train(options, true, "one step", &run);
  double sum = 0;
  for (uint32_t layer = 0; layer < BLOCKS + 2; layer++) {
    double squares = 0;
    for (uint64_t k = 0; k < weft_gpt_layer_floats(&options.training.config, layer); k++) {
      squares += (double)run.gradients[layer][k] * (double)run.gradients[layer][k];
    }
    sum += squares;
  }
  assert_true(sqrt(sum) > 5 * options.training.clip);
  assert_true(fabs(run.norms[0] - sqrt(sum)) < 1e-12 * sqrt(sum));
  for (uint32_t layer = 0; layer < BLOCKS + 2; layer++) {
    struct weft_gpt_parameter tensors[WEFT_GPT_PARAMETERS_MAX];
    const uint32_t count = weft_gpt_layer_parameters(&options.training.config, layer, tensors);
    float *before = calloc(weft_gpt_layer_floats(&options.training.config, layer), sizeof *before);
    weft_gpt_layer_initialize(&options.training.config, layer, before);
    for (uint32_t n = 0; n < count; n++) {
      for (uint64_t k = tensors[n].offset; k < tensors[n].offset + tensors[n].count; k++) {
        const float expected = first_step(&options.training, run.norms[0], before[k],
                                          run.gradients[layer][k], tensors[n].decays);
        if (memcmp(&expected, &run.parameters[layer][k], sizeof expected) != 0) {
          fail_msg("layer %u, parameter %u is %.9g, expected %.9g", layer, (unsigned)k,
                   (double)run.parameters[layer][k], (double)expected);
        }
      }
    }
    free(before);
  }
  free_run(&run);
}

/* After the second step the host launches nothing but the graph, which has the optimizer. */
static void test_a_step_is_one_launch(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  uint64_t kernels[2], graphs[2], waits[2];
  for (uint32_t k = 0; k < 2; k++) {
    struct weft_gpt_trainer_options options = base_options(&dataset);
    struct run run;
    options.training.total_steps = STEPS - 1 + k;
    options.eval_every = 0;
    options.ranks = 2;
    fake_cuda_reset(NULL);
    train(options, true, "steps", &run);
    kernels[k] = fake_cuda_calls("cuLaunchKernel");
    graphs[k] = fake_cuda_calls("cuGraphLaunch");
    waits[k] = fake_cuda_calls("cuEventSynchronize");
    free_run(&run);
  }
  assert_int_equal(kernels[1], kernels[0]);
  assert_int_equal(waits[1], waits[0]);
  assert_int_equal(graphs[1], graphs[0] + 1);
}

/* Ranks on a GPU share descriptors and algorithms of products: four choose as often as one. */
static void test_products_are_shared(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  void *library = dlopen("libcublasLt.so.13", RTLD_NOW);
  assert_non_null(library);
  const unsigned *choices = dlsym(library, "fake_cublaslt_choices");
  assert_non_null(choices);
  unsigned chosen[2];
  for (uint32_t k = 0; k < 2; k++) {
    struct weft_gpt_trainer_options options = base_options(&dataset);
    struct run run;
    options.ranks = k == 0 ? 1 : RANKS_MAX;
    fake_cuda_reset(NULL);
    const unsigned before = *choices;
    train(options, true, "products", &run);
    chosen[k] = *choices - before;
    free_run(&run);
  }
  assert_true(chosen[0] > 0);
  assert_int_equal(chosen[0], chosen[1]);
  (void)dlclose(library);
}

/* A first step so long that the second one overflows: it ends the training, changes nothing, or
 * counts, with the optimizer on the device. */
static void test_divergence(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  for (uint32_t ranks = 1; ranks <= 2; ranks++) {
    struct weft_gpt_trainer_options options = base_options(&dataset);
    struct run one, run;
    options.training.rate = options.training.rate_min = 1e30;
    options.training.warmup_steps = 0;
    options.training.config.predict = ranks;
    options.training.total_steps = 1;
    options.eval_every = 0;
    options.ranks = ranks;
    fake_cuda_reset(NULL);
    train(options, true, "a long step", &one);
    assert_int_equal(one.divergence, WEFT_GPT_NOT_DIVERGED);
    options.training.total_steps = STEPS;
    for (int on = WEFT_GPT_ON_DIVERGENCE_STOP; on <= WEFT_GPT_ON_DIVERGENCE_CONTINUE; on++) {
      options.on_divergence = (enum weft_gpt_on_divergence)on;
      train(options, true, "a step that diverges", &run);
      const bool continues = on == WEFT_GPT_ON_DIVERGENCE_CONTINUE;
      assert_int_equal(memcmp(&run.hash, &one.hash, sizeof run.hash) != 0, continues);
      assert_int_equal(run.steps_done, on == WEFT_GPT_ON_DIVERGENCE_STOP ? 1 : STEPS);
      assert_int_equal(run.skipped, on == WEFT_GPT_ON_DIVERGENCE_SKIP ? STEPS - 1 : 0);
      assert_int_equal(run.divergence, on == WEFT_GPT_ON_DIVERGENCE_STOP ? WEFT_GPT_DIVERGED_STEP
                                                                         : WEFT_GPT_NOT_DIVERGED);
      free_run(&run);
    }
    free_run(&one);
  }
}

/* ---- Tokens of 16 bits ---- */

static void test_wide_tokens(void **state) {
  (void)state;
  struct weft_gpt_dataset dataset;
  struct weft_error error;
  struct run run;
  assert_int_equal(weft_gpt_dataset_draw(&dataset, NULL, 5, 600, 4000, &error), WEFT_OK);
  struct weft_gpt_trainer_options options = base_options(&dataset);
  options.training.config.vocabulary = 600;
  fake_cuda_reset(NULL);
  train(options, true, "600 tokens", &run);
  assert_true(fabs(run.losses[0] - log(600)) < 0.05);
  free_run(&run);
  check_against_host(options, "600 tokens");
  weft_gpt_dataset_finish(&dataset);
}

/* ---- What cannot be done ---- */

static void refuse(const struct weft_gpt_trainer_options *given, enum weft_status status,
                   const char *words) {
  struct weft_gpt_trainer_options options = *given;
  struct weft_gpt_trainer *trainer;
  struct weft_error error;
  options.transport = "cuda";
  const uint32_t replicas = options.replicas > 0 ? options.replicas : 1;
  assert_int_equal(weft_cuda_open(NULL, NULL, options.ranks * replicas, &options.cuda, &error),
                   WEFT_OK);
  assert_int_equal(weft_gpt_trainer_create(&options, &trainer, &error), status);
  if (strstr(error.message, words) == NULL) {
    fail_msg("'%s' does not say '%s'", error.message, words);
  }
  weft_cuda_close(options.cuda);
}

static void test_refusals(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  struct weft_gpt_trainer_options options = base_options(&dataset);
  fake_cuda_reset(NULL);
  options.training.config.heads = 4;
  refuse(&options, WEFT_ERR_USAGE, "heads of 8 channels");
  options = base_options(&dataset);
  options.training.config.vocabulary = 257;
  refuse(&options, WEFT_ERR_USAGE, "vocabulary of 257");
  options = base_options(&dataset);
  options.ranks = 2;
  options.training.config.tied = true;
  fake_cuda_reset(&(struct fake_cuda_options){.devices = 2, .no_peers = true});
  refuse(&options, WEFT_ERR_USAGE, "cannot access each other's memory");
  options = base_options(&dataset);
  options.training.microbatches = 4;
  options.replicas = 2;
  refuse(&options, WEFT_ERR_USAGE, "the replicas' GPUs cannot access each other's memory");
}

/* Memory that runs out, and a launch that fails, are errors; nothing is left behind. */
static void test_failures(void **state) {
  (void)state;
  static const struct {
    const char *function;
    uint64_t nth;
  } cases[] = {{"cuMemAlloc", 1},     {"cuMemAlloc", 3},      {"cuMemHostAlloc", 1},
               {"cuLaunchKernel", 2}, {"cuLaunchKernel", 60}, {"cuLibraryGetKernel", 20}};
  const struct weft_gpt_dataset dataset = hand_corpus();
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(cases); k++) {
    struct weft_gpt_trainer_options options = base_options(&dataset);
    struct weft_gpt_trainer *trainer = NULL;
    struct weft_error error;
    options.transport = "cuda";
    options.ranks = 2;
    options.stall_limit = INT64_C(2000000000);
    fake_cuda_reset(NULL);
    fake_cuda_fail(cases[k].function, cases[k].nth, 0, false);
    enum weft_status status = weft_cuda_open(NULL, NULL, 2, &options.cuda, &error);
    if (status == WEFT_OK) {
      status = weft_gpt_trainer_create(&options, &trainer, &error);
    }
    if (status == WEFT_OK) {
      status = weft_gpt_trainer_run(trainer, &error);
    }
    if (status >= 0 || error.message[0] == '\0') {
      fail_msg("call %u of %s failed, and training ended with %d", (unsigned)cases[k].nth,
               cases[k].function, (int)status);
    }
    weft_gpt_trainer_destroy(trainer);
    weft_cuda_close(options.cuda);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_against_host),
      cmocka_unit_test(test_same_bits),
      cmocka_unit_test(test_looped_bfs),
      cmocka_unit_test(test_fifty_steps),
      cmocka_unit_test(test_graph_against_host),
      cmocka_unit_test(test_graph_same_bits),
      cmocka_unit_test(test_replicas),
      cmocka_unit_test(test_optimizer),
      cmocka_unit_test(test_a_step_is_one_launch),
      cmocka_unit_test(test_products_are_shared),
      cmocka_unit_test(test_divergence),
      cmocka_unit_test(test_wide_tokens),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_failures),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
