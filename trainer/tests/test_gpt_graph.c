/* A model whose layers are no chain: skips between blocks, and a second head. The graph of stages
 * that follows from a split, the splits that there may be, and trainings on it: losses, gradients,
 * moments and parameters are those of layers called one after the other, bit for bit, on every
 * number of ranks, schedule, split and transport; also when they are resumed on others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_gpt_hand.h"
#include "trainer/model/layer_graph.h"

enum { MICROBATCHES = 8 };

static struct weft_gpt_config config_of(uint32_t blocks, bool skips, uint32_t predict) {
  return (struct weft_gpt_config){.blocks = blocks,
                                  .dim = 8,
                                  .heads = 2,
                                  .context = 6,
                                  .vocabulary = WEFT_GPT_VOCABULARY,
                                  .skips = skips,
                                  .predict = predict};
}

/* ---- Layers ---- */

static bool contains(struct weft_gpt_links links, uint32_t layer) {
  return (links.count > 0 && links.layers[0] == layer) ||
         (links.count > 1 && links.layers[1] == layer);
}

/* By the definition: block k goes to block k + 1 and, with skips, to block L - 1 - k if that is
 * further on; the last block to all heads. */
static bool should_read(const struct weft_gpt_config *config, uint32_t reader, uint32_t layer) {
  if (reader > config->blocks) {
    return layer == config->blocks;
  }
  const bool skips = config->skips && layer > 0 && reader > layer + 1 &&
                     reader - 1 == config->blocks - 1 - (layer - 1);
  return reader == layer + 1 || skips;
}

static void test_links(void **state) {
  (void)state;
  for (uint32_t blocks = 1; blocks <= 12; blocks++) {
    for (uint32_t kind = 0; kind < 4; kind++) {
      const struct weft_gpt_config config =
          config_of(blocks, blocks >= 3 && (kind & 1) != 0, 1 + kind / 2);
      uint32_t skips = 0;
      for (uint32_t a = 0; a < weft_gpt_layer_count(&config); a++) {
        const struct weft_gpt_links inputs = weft_gpt_layer_inputs(&config, a);
        skips += inputs.count > 1;
        assert_true(inputs.count < 2 || inputs.layers[0] < inputs.layers[1]);
        for (uint32_t b = 0; b < weft_gpt_layer_count(&config); b++) {
          assert_true(contains(inputs, b) == (b < a && should_read(&config, a, b)));
          assert_true(contains(weft_gpt_layer_readers(&config, b), a) == contains(inputs, b));
        }
      }
      assert_int_equal(weft_gpt_skip_count(&config), skips);
    }
  }
}

/* ---- Stages ---- */

static struct weft_graph *graph_of(const struct weft_gpt_config *config, uint32_t stages,
                                   const uint32_t *first) {
  const struct weft_gpt_stage_split split = {config, stages, first};
  struct weft_graph *graph;
  struct weft_error error;
  if (weft_gpt_stage_graph(NULL, &split, &graph, &error) < 0) {
    fail_msg("%s", error.message);
  }
  return graph;
}

static void test_edges(void **state) {
  (void)state;
  const struct weft_gpt_config skips = config_of(6, true, 1), both = config_of(6, true, 2);
  /* embedding, blocks 0-1 | 2-3 | 4-5 | head: block 0 to 5, and 1 to 4, are one message. */
  const uint32_t four[] = {0, 3, 5, 7, 8};
  struct weft_graph *graph = graph_of(&skips, 4, four);
  const struct weft_gpt_stage_split split = {&skips, 4, four};
  assert_int_equal(graph->edge_count, 4);
  assert_true(weft_graph_find(graph, 0, 2) != WEFT_EDGE_NONE);
  assert_int_equal(weft_gpt_edge_outputs(&split, 0, 2), 2);
  assert_true(weft_gpt_stage_reads(&split, 2, 1) && weft_gpt_stage_reads(&split, 2, 2) &&
              !weft_gpt_stage_reads(&split, 2, 0));
  assert_int_equal(weft_gpt_edge_outputs(&split, 0, 1), 1);
  assert_int_equal(weft_gpt_edge_outputs(&split, 1, 3), 0);
  static const char *const names[] = {"embedding, blocks 0-1", "blocks 2-3", "blocks 4-5", "head"};
  for (uint32_t s = 0; s < 4; s++) {
    assert_string_equal(graph->names[s], names[s]);
  }
  weft_graph_destroy(graph);
  /* On two stages it is a chain, whose message has the skips; on one there is none. */
  const uint32_t two[] = {0, 4, 8}, one[] = {0, 8};
  const struct weft_gpt_stage_split halves = {&skips, 2, two};
  assert_null(graph_of(&skips, 2, two));
  assert_int_equal(weft_gpt_edge_outputs(&halves, 0, 1), 3);
  assert_null(graph_of(&skips, 1, one));
  /* A block's output that is read twice in another stage is sent once. */
  const uint32_t last[] = {0, 2, 8};
  const struct weft_gpt_stage_split uneven = {&skips, 2, last};
  assert_int_equal(weft_gpt_edge_outputs(&uneven, 0, 1), 1);
  /* Two heads on stages of their own are two losses. */
  const uint32_t apart[] = {0, 7, 8, 9};
  graph = graph_of(&both, 3, apart);
  assert_int_equal(graph->edge_count, 2);
  assert_true(weft_graph_find(graph, 0, 1) != WEFT_EDGE_NONE &&
              weft_graph_find(graph, 0, 2) != WEFT_EDGE_NONE);
  assert_string_equal(graph->names[0], "embedding, blocks 0-5");
  assert_string_equal(graph->names[1], "head");
  assert_string_equal(graph->names[2], "second head");
  weft_graph_destroy(graph);
  const uint32_t mixed[] = {0, 2, 6, 9};
  graph = graph_of(&both, 3, mixed);
  assert_string_equal(graph->names[0], "embedding, block 0");
  assert_string_equal(graph->names[2], "block 5, head, second head");
  weft_graph_destroy(graph);
}

/* ---- Splits with two heads ---- */

static void test_split_of_heads(void **state) {
  (void)state;
  struct weft_error error;
  for (uint32_t tied = 0; tied < 2; tied++) {
    for (uint32_t stages = 1; stages <= 9; stages++) {
      struct weft_gpt_config config = config_of(6, false, 2);
      uint32_t first[10];
      config.tied = tied != 0;
      const enum weft_status status = weft_gpt_split(NULL, &config, NULL, stages, first, &error);
      if (tied != 0 && stages == 9) {
        assert_int_equal(status, WEFT_ERR_USAGE);
        continue;
      }
      assert_int_equal(status, WEFT_OK);
      assert_int_equal(weft_gpt_split_check(&config, stages, first, NULL), WEFT_OK);
      assert_int_equal(first[0], 0);
      assert_int_equal(first[stages], 9);
      for (uint32_t s = 0; s < stages; s++) {
        assert_true(first[s] < first[s + 1]);
      }
    }
  }
  /* Where heads are the heaviest, each is a stage; where blocks are, they are together. */
  const struct weft_gpt_config config = config_of(3, false, 2);
  const double heads[] = {1, 1, 1, 1, 9, 9}, blocks[] = {1, 9, 9, 9, 1, 1};
  uint32_t first[5];
  assert_int_equal(weft_gpt_split(NULL, &config, heads, 4, first, &error), WEFT_OK);
  assert_memory_equal(first, ((uint32_t[]){0, 2, 4, 5, 6}), sizeof first);
  assert_int_equal(weft_gpt_split(NULL, &config, blocks, 4, first, &error), WEFT_OK);
  assert_memory_equal(first, ((uint32_t[]){0, 2, 3, 4, 6}), sizeof first);
  /* By numbers of blocks. */
  assert_int_equal(weft_gpt_split_counts(&config, (uint32_t[]){1, 2, 0, 0}, 4, first, &error),
                   WEFT_OK);
  assert_memory_equal(first, ((uint32_t[]){0, 2, 4, 5, 6}), sizeof first);
  assert_int_equal(weft_gpt_split_counts(&config, (uint32_t[]){1, 1, 1, 0}, 4, first, &error),
                   WEFT_OK);
  assert_memory_equal(first, ((uint32_t[]){0, 2, 3, 4, 6}), sizeof first);
  assert_int_equal(weft_gpt_split_counts(&config, (uint32_t[]){1, 1, 0, 1}, 4, first, &error),
                   WEFT_ERR_USAGE);
  assert_int_equal(weft_gpt_split_counts(&config, (uint32_t[]){3, 0, 0, 0}, 4, first, &error),
                   WEFT_ERR_USAGE);
  /* A head beside a block, and the other one elsewhere. */
  const uint32_t mixed[] = {0, 2, 5, 6};
  assert_int_equal(weft_gpt_split_check(&config, 3, mixed, &error), WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "stage 1 has blocks and the first head"));
}

/* ---- Trainings ---- */

struct outcome {
  double losses[HAND_STEPS], second[HAND_STEPS];
  uint32_t count, edges;
  uint64_t hash, state;
};

static void note(void *context, const struct weft_gpt_step_report *report) {
  struct outcome *outcome = context;
  outcome->losses[report->step - 1] = report->loss;
  outcome->second[report->step - 1] = report->second_loss;
  outcome->count++;
}

static struct weft_gpt_trainer_options options_of(const struct weft_gpt_dataset *dataset,
                                                  uint32_t kind) {
  struct weft_gpt_trainer_options options = hand_options(dataset);
  options.training.config.skips = (kind & 1) != 0;
  options.training.config.predict = (kind & 2) != 0 ? 2 : 1;
  options.training.config.tied = (kind & 4) != 0;
  options.training.microbatches = MICROBATCHES;
  options.eval_every = 2;
  return options;
}

static void train(struct weft_gpt_trainer_options options, const char *what,
                  struct outcome *outcome) {
  struct weft_gpt_trainer *trainer;
  struct weft_error error;
  *outcome = (struct outcome){.count = 0};
  options.on_step = note;
  options.context = outcome;
  if (weft_gpt_trainer_create(&options, &trainer, &error) < 0 ||
      weft_gpt_trainer_run(trainer, &error) < 0) {
    fail_msg("%s: %s", what, error.message);
  }
  outcome->hash = weft_gpt_trainer_hash(trainer);
  const struct weft_graph *graph = weft_gpt_trainer_graph(trainer);
  outcome->edges = graph != NULL ? graph->edge_count : 0;
  outcome->state = hand_hash_state_of(trainer, &options.training.config);
  weft_gpt_trainer_destroy(trainer);
}

static struct outcome by_hand(const struct weft_gpt_trainer_options *options, uint32_t replicas) {
  struct outcome outcome = {.count = HAND_STEPS};
  struct hand hand;
  hand_init(&hand, &options->training, options->dataset);
  for (uint64_t step = 0; step < HAND_STEPS; step++) {
    outcome.losses[step] = hand_step(&hand, step, replicas);
    outcome.second[step] = hand.second_loss;
  }
  outcome.hash = hand_hash(&hand);
  outcome.state = hand_hash_state(&hand);
  hand_finish(&hand);
  return outcome;
}

static void expect_same(const struct outcome *outcome, const struct outcome *expected,
                        const char *what) {
  for (uint32_t k = 0; k < HAND_STEPS; k++) {
    if (outcome->losses[k] != expected->losses[k] || outcome->second[k] != expected->second[k]) {
      fail_msg("%s: step %u has losses %.17g and %.17g; by hand %.17g and %.17g", what, k + 1,
               outcome->losses[k], outcome->second[k], expected->losses[k], expected->second[k]);
    }
  }
  if (outcome->state != expected->state || outcome->hash != expected->hash) {
    fail_msg("%s: %s differ from those by hand", what,
             outcome->hash != expected->hash ? "parameters" : "gradients or moments");
  }
}

/* embedding, blocks ... | head | second head: the last two stages of four are losses. */
static const uint32_t heads_apart[] = {0, 4, 7, 8, 9};

static void check_kind(const struct weft_gpt_dataset *dataset, uint32_t kind, uint32_t *runs) {
  static const char *const schedules[] = {"GPipe", "1F1B", "ZBH1", "Interleaved1F1B",
                                          "ZBVZeroBubble"};
  struct weft_gpt_trainer_options options = options_of(dataset, kind);
  const struct outcome expected = by_hand(&options, 1);
  assert_true(expected.losses[HAND_STEPS - 1] < expected.losses[0]);
  assert_true((expected.second[0] > 0) == ((kind & 2) != 0));
  for (uint32_t n = 0; n < sizeof schedules / sizeof *schedules; n++) {
    const bool two = n >= 3; /* stages per rank */
    for (uint32_t p = 1; p <= 4; p *= 2) {
      for (uint32_t with = 0; with < 4; with++) {
        const bool apart = (with & 2) != 0;
        struct outcome outcome;
        char what[128];
        if (apart && ((kind & 6) != 2 || p != (two ? 2 : 4))) {
          continue; /* that split has four stages and two heads */
        }
        options.schedule = schedules[n];
        options.ranks = p;
        options.transport = (with & 1) != 0 ? "threads" : "loopback";
        options.loopback_seed = p + n;
        options.first_layers = apart ? heads_apart : NULL;
        snprintf(what, sizeof what, "kind %u, %s on %u, %s%s", kind, options.schedule, p,
                 options.transport, apart ? ", heads apart" : "");
        train(options, what, &outcome);
        expect_same(&outcome, &expected, what);
        (*runs)++;
      }
    }
  }
}

static void test_every_shape(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  const uint32_t kinds[] = {1, 2, 3, 7};
  uint32_t runs = 0;
  for (uint32_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    check_kind(&dataset, kinds[k], &runs);
  }
  print_message("%u runs of %d steps, bit for bit\n", runs, HAND_STEPS);
}

/* Stages that begin anywhere: readers of an output in one other stage or in two, skips to the next
 * stage and over several, stages with an embedding, a block or a head alone. */
static void draw_split(struct weft_random *random, const struct weft_gpt_config *config,
                       uint32_t stages, uint32_t *first) {
  const uint32_t layers = weft_gpt_layer_count(config);
  do {
    bool begins[32] = {true};
    uint32_t at = 0;
    for (uint32_t drawn = 1; drawn < stages;) {
      const uint32_t layer = 1 + (uint32_t)weft_random_below(random, layers - 1);
      drawn += !begins[layer];
      begins[layer] = true;
    }
    for (uint32_t layer = 0; layer < layers; layer++) {
      if (begins[layer]) {
        first[at++] = layer;
      }
    }
    first[stages] = layers;
  } while (weft_gpt_split_check(config, stages, first, NULL) < 0);
}

/* Under AddressSanitizer some of them have to do. */
#if defined(__SANITIZE_ADDRESS__)
enum { RUNS = 6 };
#else
enum { RUNS = 40 };
#endif

static void test_random_splits(void **state) {
  (void)state;
  static const char *const schedules[] = {"1F1B", "ZBH1", "Interleaved1F1B"};
  const struct weft_gpt_dataset dataset = hand_corpus();
  struct weft_random random = {17};
  uint32_t skipping = 0;
  for (uint32_t n = 0; n < RUNS; n++) {
    struct weft_gpt_trainer_options options = options_of(&dataset, 1 + n % 3);
    struct outcome outcome;
    uint32_t first[32];
    char what[128];
    options.training.config.blocks = 3 + (uint32_t)weft_random_below(&random, 7);
    const struct outcome expected = by_hand(&options, 1);
    const uint32_t v = n % 2 + 1, most = weft_gpt_layer_count(&options.training.config) / v;
    options.ranks = 2 + (uint32_t)weft_random_below(&random, (most < 8 ? most : 8) - 1);
    options.ranks = v == 2 && options.ranks > 4 ? 4 : options.ranks; /* divides microbatches */
    options.ranks = v == 2 && options.ranks == 3 ? 2 : options.ranks;
    options.schedule = v == 2 ? schedules[2] : schedules[n / 2 % 2];
    options.transport = "loopback";
    options.loopback_seed = n;
    draw_split(&random, &options.training.config, options.ranks * v, first);
    options.first_layers = first;
    snprintf(what, sizeof what, "run %u: %u blocks, kind %u, %s on %u", n,
             options.training.config.blocks, 1 + n % 3, options.schedule, options.ranks);
    train(options, what, &outcome);
    expect_same(&outcome, &expected, what);
    skipping += outcome.edges > options.ranks * v - 1;
  }
  assert_true(skipping >= RUNS / 4); /* have edges over stages */
}

/* More outputs than a message has tensors: 9 of them are 4 tensors of two and one of one, 17 are 5
 * of three and one of two. */
static void test_large_messages(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  for (uint32_t blocks = 18; blocks <= 34; blocks += 16) {
    struct weft_gpt_trainer_options options = options_of(&dataset, 3);
    struct outcome outcome;
    options.training.config.blocks = blocks;
    const uint32_t half = blocks / 2 + 1, first[] = {0, half, blocks + 3};
    const struct weft_gpt_stage_split split = {&options.training.config, 2, first};
    const struct outcome expected = by_hand(&options, 1);
    assert_int_equal(weft_gpt_edge_outputs(&split, 0, 1), blocks / 2);
    options.ranks = 2;
    options.schedule = "ZBH1";
    options.first_layers = first;
    train(options, "large messages", &outcome);
    expect_same(&outcome, &expected, "large messages");
  }
}

static void test_replicas(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  for (uint32_t n = 0; n < 6; n++) {
    struct weft_gpt_trainer_options options = options_of(&dataset, n < 3 ? 3 : 7);
    struct outcome outcome;
    char what[64];
    options.training.microbatches = 4;
    const struct outcome expected = by_hand(&options, 2);
    options.replicas = 2;
    options.shard = (enum weft_gpt_shard)(n % 3);
    options.schedule = n % 2 == 0 ? "1F1B" : "ZBVZeroBubble";
    options.ranks = n % 2 == 0 ? 4 : 2;
    options.first_layers = n < 3 ? heads_apart : NULL;
    options.transport = n < 3 ? "threads" : "loopback";
    snprintf(what, sizeof what, "two replicas, shard %u, %s", n % 3, options.schedule);
    train(options, what, &outcome);
    expect_same(&outcome, &expected, what);
  }
}

/* ---- Resuming ---- */

static bool stop_in_the_middle(void *context) {
  return ((const struct outcome *)context)->count + 1 >= HAND_STEPS / 2;
}

static void test_resume(void **state) {
  (void)state;
  static const struct {
    const char *schedule;
    uint32_t ranks;
    const uint32_t *split;
  } shapes[] = {{"1F1B", 4, heads_apart},
                {"ZBVZeroBubble", 2, NULL},
                {"GPipe", 1, NULL},
                {"Interleaved1F1B", 2, heads_apart}};
  enum { SHAPES = sizeof shapes / sizeof *shapes };
  const struct weft_gpt_dataset dataset = hand_corpus();
  const struct weft_gpt_trainer_options base = options_of(&dataset, 3);
  const struct outcome expected = by_hand(&base, 1);
  for (uint32_t k = 0; k < SHAPES; k++) {
    struct weft_gpt_trainer_options options = base;
    struct weft_gpt_checkpoint *checkpoint;
    struct outcome before, after;
    struct weft_error error;
    char dir[] = "/tmp/weft-graph-XXXXXX", command[64];
    assert_non_null(mkdtemp(dir));
    options.checkpoint_dir = dir;
    options.interrupted = stop_in_the_middle;
    options.schedule = shapes[k].schedule;
    options.ranks = shapes[k].ranks;
    options.first_layers = shapes[k].split;
    train(options, "before", &before);
    assert_int_equal(before.count, HAND_STEPS / 2);
    if (weft_gpt_checkpoint_open(NULL, dir, &checkpoint, &error) < 0) {
      fail_msg("%s", error.message);
    }
    options.interrupted = NULL;
    options.checkpoint_dir = NULL;
    options.resume = checkpoint;
    options.training = *weft_gpt_checkpoint_training(checkpoint);
    assert_true(options.training.config.skips && options.training.config.predict == 2);
    options.schedule = shapes[(k + 1) % SHAPES].schedule;
    options.ranks = shapes[(k + 1) % SHAPES].ranks;
    options.first_layers = shapes[(k + 1) % SHAPES].split;
    train(options, "after", &after);
    weft_gpt_checkpoint_close(checkpoint);
    memcpy(after.losses, before.losses, before.count * sizeof(double));
    memcpy(after.second, before.second, before.count * sizeof(double));
    expect_same(&after, &expected, options.schedule);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    assert_int_equal(system(command), 0);
  }
}

/* ---- Programs that are given ---- */

static enum weft_status create(const struct weft_gpt_trainer_options *options,
                               struct weft_error *error) {
  struct weft_gpt_trainer *trainer;
  WEFT_TRY(weft_gpt_trainer_create(options, &trainer, error));
  weft_gpt_trainer_destroy(trainer);
  return WEFT_OK;
}

static void test_programs(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  struct weft_gpt_trainer_options options = options_of(&dataset, 1);
  const struct outcome expected = by_hand(&options, 1);
  const struct weft_shape shape = {.ranks = 4, .microbatches = MICROBATCHES};
  struct weft_program *table, *lowered, *complete;
  struct weft_graph *own, *other;
  struct outcome outcome;
  struct weft_error error;
  assert_int_equal(weft_generate(NULL, "1F1B", &shape, &table, &error), WEFT_OK);
  assert_int_equal(weft_lower(NULL, table, NULL, &lowered, &error), WEFT_OK);
  /* A table of a chain gets the edges; with SEND and RECV it is too late. */
  options.program = table;
  train(options, "a table", &outcome);
  expect_same(&outcome, &expected, "a table");
  options.program = lowered;
  assert_int_equal(create(&options, &error), WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "the SEND and RECV of a chain"));
  /* A table with the edges of the model's stages, and its program. */
  uint32_t first[5];
  assert_int_equal(weft_gpt_split(NULL, &options.training.config, NULL, 4, first, &error), WEFT_OK);
  own = graph_of(&options.training.config, 4, first);
  assert_non_null(own);
  assert_int_equal(weft_program_set_graph(table, own, &error), WEFT_OK);
  assert_int_equal(weft_lower(NULL, table, NULL, &complete, &error), WEFT_OK);
  for (uint32_t k = 0; k < 2; k++) {
    options.program = k == 0 ? table : complete;
    train(options, "with edges", &outcome);
    expect_same(&outcome, &expected, "with edges");
  }
  weft_graph_destroy(own);
  weft_program_destroy(complete);
  /* A table of another graph, for a graph and for a chain. */
  const struct weft_edge edges[] = {weft_edge_make(0, 1), weft_edge_make(1, 2),
                                    weft_edge_make(2, 3), weft_edge_make(1, 3)};
  assert_int_equal(weft_graph_create(NULL, 4, edges, 4, NULL, &other, &error), WEFT_OK);
  assert_int_equal(weft_program_set_graph(table, other, &error), WEFT_OK);
  options.program = table;
  for (uint32_t kind = 0; kind < 2; kind++) {
    options.training.config.skips = kind == 0;
    assert_int_equal(create(&options, &error), WEFT_ERR_USAGE);
    assert_non_null(strstr(error.message, "the edges of another graph"));
    assert_non_null(strstr(error.message, "only the program has the edge 1>3"));
  }
  weft_graph_destroy(other);
  weft_program_destroy(table);
  weft_program_destroy(lowered);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_links),          cmocka_unit_test(test_edges),
      cmocka_unit_test(test_large_messages), cmocka_unit_test(test_split_of_heads),
      cmocka_unit_test(test_every_shape),    cmocka_unit_test(test_random_splits),
      cmocka_unit_test(test_replicas),       cmocka_unit_test(test_resume),
      cmocka_unit_test(test_programs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
