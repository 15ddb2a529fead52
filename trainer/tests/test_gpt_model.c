/* The reference model: tables of parameters, what they begin with, and cuts into
 * stages against brute force. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

#include "support_memory.h"
#include "trainer/model/model.h"

static struct weft_gpt_config config_of(uint32_t layers, uint32_t dim, uint32_t context) {
  return (struct weft_gpt_config){.blocks = layers,
                                  .dim = dim,
                                  .heads = 1,
                                  .context = context,
                                  .vocabulary = WEFT_GPT_VOCABULARY,
                                  .seed = 7};
}

static float *initialized(const struct weft_gpt_config *config, uint32_t layer) {
  const uint64_t floats = weft_gpt_layer_floats(config, layer);
  float *parameters = malloc(floats * sizeof *parameters);
  assert_non_null(parameters);
  memset(parameters, 0xa5, floats * sizeof *parameters); /* nothing of this may stay */
  weft_gpt_layer_initialize(config, layer, parameters);
  return parameters;
}

/* ---- Tables ---- */

struct expected {
  const char *name;
  uint32_t dim_count;
  uint64_t dims[2];
};

static void check_table(const struct weft_gpt_config *config, uint32_t layer,
                        const struct expected *expected, uint32_t expected_count) {
  struct weft_gpt_parameter table[WEFT_GPT_PARAMETERS_MAX];
  assert_int_equal(weft_gpt_layer_parameters(config, layer, table), expected_count);
  uint64_t end = 0;
  for (uint32_t k = 0; k < expected_count; k++) {
    assert_string_equal(table[k].name, expected[k].name);
    assert_int_equal(table[k].dim_count, expected[k].dim_count);
    assert_int_equal(table[k].dims[0], expected[k].dims[0]);
    assert_int_equal(table[k].dims[1], expected[k].dims[1]);
    assert_int_equal(table[k].count, table[k].dims[0] * table[k].dims[1]);
    assert_int_equal(table[k].decays, table[k].dim_count == 2);
    assert_int_equal(table[k].offset * sizeof(float) % 64, 0);
    assert_true(table[k].offset >= end && table[k].offset < end + 16);
    end = table[k].offset + table[k].count;
  }
  const uint64_t floats = weft_gpt_layer_floats(config, layer);
  assert_true(floats >= end && floats < end + 16 && floats % 16 == 0);
}

static void test_tables(void **state) {
  (void)state;
  const struct weft_gpt_config config = config_of(3, 10, 7); /* no size is aligned by itself */
  const struct expected embedding[] = {{"wte.weight", 2, {256, 10}}, {"wpe.weight", 2, {7, 10}}};
  const struct expected block[] = {
      {"block.2.ln1.weight", 1, {10, 1}},        {"block.2.ln1.bias", 1, {10, 1}},
      {"block.2.attn.qkv.weight", 2, {30, 10}},  {"block.2.attn.qkv.bias", 1, {30, 1}},
      {"block.2.attn.proj.weight", 2, {10, 10}}, {"block.2.attn.proj.bias", 1, {10, 1}},
      {"block.2.ln2.weight", 1, {10, 1}},        {"block.2.ln2.bias", 1, {10, 1}},
      {"block.2.mlp.fc.weight", 2, {40, 10}},    {"block.2.mlp.fc.bias", 1, {40, 1}},
      {"block.2.mlp.proj.weight", 2, {10, 40}},  {"block.2.mlp.proj.bias", 1, {10, 1}},
  };
  const struct expected head[] = {
      {"lnf.weight", 1, {10, 1}}, {"lnf.bias", 1, {10, 1}}, {"lm_head.weight", 2, {256, 10}}};
  check_table(&config, 0, embedding, 2);
  check_table(&config, 3, block, 12);
  check_table(&config, 4, head, 3);
}

static void test_largest_names(void **state) {
  (void)state;
  struct weft_gpt_parameter table[WEFT_GPT_PARAMETERS_MAX];
  const struct weft_gpt_config config =
      config_of(WEFT_GPT_BLOCKS_MAX, WEFT_GPT_DIM_MAX, WEFT_GPT_CONTEXT_MAX);
  (void)weft_gpt_layer_parameters(&config, WEFT_GPT_BLOCKS_MAX, table);
  assert_string_equal(table[4].name, "block.4095.attn.proj.weight");
  assert_int_equal(table[10].count, UINT64_C(4) * 65536 * 65536);
}

/* GPT-2's: V C + T C + L (12 C^2 + 13 C) + 2 C, and V C more when not tied. */
static void test_counts(void **state) {
  (void)state;
  struct weft_gpt_config config = config_of(12, 768, 1024);
  config.tied = true;
  assert_int_equal(weft_gpt_parameter_count(&config),
                   256 * 768 + 1024 * 768 + 12 * (12 * 768 * 768 + 13 * 768) + 2 * 768);
  /* GPT-2 small has 124,439,808 with its 50,257 tokens. */
  assert_int_equal(weft_gpt_parameter_count(&config) + (50257 - 256) * 768, 124439808);
  config.tied = false;
  assert_int_equal(weft_gpt_parameter_count(&config), 124439808 - (50257 - 2 * 256) * 768);
}

/* ---- What they begin with ---- */

static const char *last_word(const char *name) { return strrchr(name, '.') + 1; }

static void check_constant(const struct weft_gpt_parameter *parameter, const float *values,
                           float expected) {
  for (uint64_t k = 0; k < parameter->count; k++) {
    assert_true(values[k] == expected);
  }
}

/* Mean, deviation, skewness and kurtosis within six standard errors; neighbours are
 * uncorrelated. A sum of twelve uniform numbers has a kurtosis of 2.9. */
static void check_normal(const struct weft_gpt_parameter *parameter, const float *values,
                         double deviation) {
  const double n = (double)parameter->count;
  double sum1 = 0, sum2 = 0, sum3 = 0, sum4 = 0, pairs = 0;
  for (uint64_t k = 0; k < parameter->count; k++) {
    const double x = (double)values[k] / deviation;
    assert_true(fabs(x) <= 6);
    sum1 += x;
    sum2 += x * x;
    sum3 += x * x * x;
    sum4 += x * x * x * x;
    pairs += k > 0 ? x * (double)values[k - 1] / deviation : 0;
  }
  assert_true(fabs(sum1 / n) < 6 / sqrt(n));
  assert_true(fabs(sum2 / n - 1) < 6 * sqrt(2 / n));
  assert_true(fabs(sum3 / n) < 6 * sqrt(15 / n));
  assert_true(fabs(sum4 / n - 2.9) < 6 * sqrt(96 / n));
  assert_true(fabs(pairs / n) < 6 / sqrt(n));
}

static void check_fill(const struct weft_gpt_config *config,
                       const struct weft_gpt_parameter *parameter, const float *values) {
  const bool norm = strstr(parameter->name, "ln") != NULL && parameter->dim_count == 1;
  if (parameter->dim_count == 1) {
    const bool scale = norm && strcmp(last_word(parameter->name), "weight") == 0;
    check_constant(parameter, values, scale ? 1 : 0);
  } else {
    const bool residual = strstr(parameter->name, ".proj.") != NULL;
    check_normal(parameter, values, residual ? 0.02 / sqrt(2.0 * config->blocks) : 0.02);
  }
}

static void check_gaps(const struct weft_gpt_config *config, uint32_t layer,
                       const struct weft_gpt_parameter *table, uint32_t count,
                       const float *values) {
  for (uint32_t k = 0; k < count; k++) {
    const uint64_t next =
        k + 1 < count ? table[k + 1].offset : weft_gpt_layer_floats(config, layer);
    for (uint64_t f = table[k].offset + table[k].count; f < next; f++) {
      assert_true(values[f] == 0);
    }
  }
}

static void test_initial_values(void **state) {
  (void)state;
  const struct weft_gpt_config config = config_of(3, 90, 33);
  for (uint32_t layer = 0; layer < weft_gpt_layer_count(&config); layer++) {
    struct weft_gpt_parameter table[WEFT_GPT_PARAMETERS_MAX];
    const uint32_t count = weft_gpt_layer_parameters(&config, layer, table);
    float *values = initialized(&config, layer);
    for (uint32_t k = 0; k < count; k++) {
      check_fill(&config, &table[k], values + table[k].offset);
    }
    check_gaps(&config, layer, table, count, values);
    free(values);
  }
}

/* How many of two rows of floats are equal. */
static uint64_t equal_count(const float *a, const float *b, uint64_t count) {
  uint64_t equal = 0;
  for (uint64_t k = 0; k < count; k++) {
    equal += a[k] == b[k];
  }
  return equal;
}

/* Of other layers, tensors and seeds nothing is seen, also not further along. */
static void test_streams_differ(void **state) {
  (void)state;
  struct weft_gpt_config config = config_of(3, 32, 256);
  struct weft_gpt_parameter table[WEFT_GPT_PARAMETERS_MAX];
  (void)weft_gpt_layer_parameters(&config, 1, table);
  float *one = initialized(&config, 1);
  float *two = initialized(&config, 2);
  float *ends = initialized(&config, 0);
  config.seed++;
  float *other = initialized(&config, 1);
  const uint64_t qkv = table[2].offset;
  const uint64_t fc = table[8].offset;
  assert_true(equal_count(one + qkv, two + qkv, 3072) < 10);
  assert_true(equal_count(one + qkv, other + qkv, 3072) < 10);
  assert_true(equal_count(one + qkv, one + fc, 3072) < 10);
  assert_true(equal_count(one + qkv, one + qkv + 1, 3071) < 10);
  assert_true(equal_count(ends, ends + 256 * 32, 8192) < 10);
  free(one);
  free(two);
  free(ends);
  free(other);
}

static void test_tied_head(void **state) {
  (void)state;
  struct weft_gpt_config config = config_of(2, 20, 8);
  for (unsigned tied = 0; tied < 2; tied++) {
    struct weft_gpt_parameter table[WEFT_GPT_PARAMETERS_MAX];
    config.tied = tied != 0;
    float *embedding = initialized(&config, 0);
    float *head = initialized(&config, 3);
    assert_int_equal(weft_gpt_layer_parameters(&config, 3, table), 3);
    const uint64_t equal = equal_count(embedding, head + table[2].offset, 256 * 20);
    assert_true(tied ? equal == 256 * 20 : equal < 10);
    free(embedding);
    free(head);
  }
}

static uint64_t hash_bits(const float *values, uint64_t count) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (uint64_t k = 0; k < count; k++) {
    uint32_t bits;
    memcpy(&bits, &values[k], sizeof bits);
    hash = (hash ^ bits) * UINT64_C(0x100000001b3);
  }
  return hash;
}

/* The same bits on every machine, and from release to release: a run that is started
 * again with the same seed must not change. */
static void test_pinned(void **state) {
  (void)state;
  const uint64_t expected[] = {UINT64_C(0x8d67fe5670221356), UINT64_C(0x91c5cb05084a5052),
                               UINT64_C(0x85bef425a7c4db04), UINT64_C(0xc61de1a9df6d6fcd)};
  const struct weft_gpt_config config = config_of(2, 24, 10);
  for (uint32_t turn = 0; turn < 8; turn++) { /* in any order */
    const uint32_t layer = turn * 3 % 4;
    float *values = initialized(&config, layer);
    const uint64_t hash = hash_bits(values, weft_gpt_layer_floats(&config, layer));
    if (hash != expected[layer]) {
      fail_msg("part %u: %#llx", (unsigned)layer, (unsigned long long)hash);
    }
    free(values);
  }
}

/* ---- Configurations ---- */

static void refuse_config(struct weft_gpt_config config, const char *word) {
  struct weft_error error = {0};
  config.heads = config.heads == 1 ? 2 : config.heads;
  assert_int_equal(weft_gpt_config_check(&config, &error), WEFT_ERR_USAGE);
  assert_int_equal(error.status, WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, word));
  assert_int_equal(weft_gpt_config_check(&config, NULL), WEFT_ERR_USAGE);
}

static void test_configs(void **state) {
  (void)state;
  struct weft_gpt_config config = config_of(1, 2, 1);
  assert_int_equal(weft_gpt_config_check(&config, NULL), WEFT_OK);
  refuse_config(config_of(0, 2, 1), "layers");
  refuse_config(config_of(4097, 2, 1), "layers");
  refuse_config(config_of(1, 0, 1), "dimension");
  refuse_config(config_of(1, 65538, 1), "dimension");
  refuse_config(config_of(1, 3, 1), "heads");
  refuse_config(config_of(1, 2, 0), "context");
  refuse_config(config_of(1, 2, 1048577), "context");
  config.vocabulary = 255;
  refuse_config(config, "vocabulary");
}

/* ---- Cuts ---- */

struct loads {
  double heaviest, squares;
};

static struct loads loads_of(const double *costs, const uint32_t *first, uint32_t stage_count) {
  struct loads loads = {0, 0};
  for (uint32_t s = 0; s < stage_count; s++) {
    double load = 0;
    for (uint32_t p = first[s]; p < first[s + 1]; p++) {
      load += costs[p];
    }
    loads.heaviest = fmax(loads.heaviest, load);
    loads.squares += load * load;
  }
  return loads;
}

static void check_cut(const uint32_t *first, uint32_t stage_count, uint32_t layer_count) {
  assert_int_equal(first[0], 0);
  assert_int_equal(first[stage_count], layer_count);
  for (uint32_t s = 0; s < stage_count; s++) {
    assert_true(first[s] < first[s + 1]);
  }
}

static bool is_better(struct loads a, struct loads b) {
  return a.heaviest < b.heaviest || (a.heaviest == b.heaviest && a.squares < b.squares);
}

/* The best over all cuts of layers begin ... end - 1, after stages with `so_far`. */
static struct loads best_of(const double *costs, uint32_t begin, uint32_t end, uint32_t stage_count,
                            struct loads so_far) {
  struct loads best = {INFINITY, INFINITY};
  double load = 0;
  for (uint32_t p = begin; p + stage_count <= end; p++) {
    load += costs[p];
    struct loads loads = {fmax(so_far.heaviest, load), so_far.squares + load * load};
    if (stage_count > 1) {
      loads = best_of(costs, p + 1, end, stage_count - 1, loads);
    } else if (p + 1 < end) {
      continue;
    }
    best = is_better(loads, best) ? loads : best;
  }
  return best;
}

static void check_best(const double *costs, uint32_t layer_count, uint32_t stage_count) {
  const struct weft_gpt_config config = config_of(layer_count - 2, 2, 1);
  uint32_t first[16];
  struct weft_error error;
  assert_int_equal(weft_gpt_split(NULL, &config, costs, stage_count, first, &error), WEFT_OK);
  check_cut(first, stage_count, layer_count);
  /* Costs are whole numbers or halves: sums are exact, and squares of up to 2^24 too. */
  const struct loads loads = loads_of(costs, first, stage_count);
  const struct loads best = best_of(costs, 0, layer_count, stage_count, (struct loads){0, 0});
  assert_true(loads.heaviest == best.heaviest);
  assert_true(loads.squares == best.squares);
}

static void test_split_brute_force(void **state) {
  (void)state;
  struct weft_random random = {1};
  for (unsigned trial = 0; trial < 4000; trial++) {
    const uint32_t layer_count = 3 + weft_random_below(&random, 8);
    const uint32_t range = (uint32_t[]){2, 4, 100, 1000000}[trial % 4];
    double costs[10];
    for (uint32_t p = 0; p < layer_count; p++) {
      costs[p] = 0.5 * weft_random_below(&random, range);
    }
    if (trial % 3 == 0) { /* alone the bound: the others may be cut in many ways */
      costs[weft_random_below(&random, layer_count)] = 2 * range;
    }
    for (uint32_t s = 1; s <= layer_count; s++) {
      check_best(costs, layer_count, s);
    }
  }
}

/* Sizes of stages, by estimated work. */
static void check_sizes(const struct weft_gpt_config *config, uint32_t stage_count,
                        const uint32_t *sizes) {
  uint32_t first[16];
  assert_int_equal(weft_gpt_split(NULL, config, NULL, stage_count, first, NULL), WEFT_OK);
  check_cut(first, stage_count, weft_gpt_layer_count(config));
  for (uint32_t s = 0; s < stage_count; s++) {
    assert_int_equal(first[s + 1] - first[s], sizes[s]);
  }
}

static void test_split_by_work(void **state) {
  (void)state;
  const struct weft_gpt_config twelve = config_of(12, 768, 1024);
  assert_true(weft_gpt_layer_work(&twelve, 0) > 0);
  assert_true(weft_gpt_layer_work(&twelve, 1) == 24.0 * 768 * 768 + 2.0 * 768 * 1024);
  assert_true(weft_gpt_layer_work(&twelve, 12) == weft_gpt_layer_work(&twelve, 1));
  assert_true(weft_gpt_layer_work(&twelve, 13) == 2.0 * 768 * 256);
  check_sizes(&twelve, 1, (uint32_t[]){14});
  check_sizes(&twelve, 2, (uint32_t[]){7, 7});
  check_sizes(&twelve, 4, (uint32_t[]){4, 3, 3, 4});
  check_sizes(&twelve, 14, (uint32_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
}

/* Under the least bound, stages are as equal as can be: neither the most that the bound
 * allows nor the least. */
static void test_split_is_balanced(void **state) {
  (void)state;
  const struct weft_gpt_config config = config_of(14, 2, 1);
  double costs[16];
  uint32_t first[17];
  for (uint32_t p = 0; p < 16; p++) {
    costs[p] = p == 15 ? 8 : 1; /* the last layer alone is the bound */
  }
  assert_int_equal(weft_gpt_split(NULL, &config, costs, 4, first, NULL), WEFT_OK);
  const uint32_t expected[] = {0, 5, 10, 15, 16};
  assert_memory_equal(first, expected, sizeof expected);
  memset(costs, 0, sizeof costs); /* layers count alike */
  assert_int_equal(weft_gpt_split(NULL, &config, costs, 4, first, NULL), WEFT_OK);
  const uint32_t even[] = {0, 4, 8, 12, 16};
  assert_memory_equal(first, even, sizeof even);
}

/* Measured costs are seconds with noise; any scale, also at the ends of what a double
 * can hold. */
static void test_split_scales(void **state) {
  (void)state;
  const struct weft_gpt_config config = config_of(8, 2, 1);
  const double scales[] = {1, 1e-9, 1e300, 1e-300, 0x1p-1060};
  uint32_t expected[5];
  uint32_t first[5];
  for (unsigned k = 0; k < sizeof scales / sizeof *scales; k++) {
    double costs[10];
    for (uint32_t p = 0; p < 10; p++) {
      costs[p] = (3 + p * p % 7) * scales[k];
    }
    assert_int_equal(weft_gpt_split(NULL, &config, costs, 4, k == 0 ? expected : first, NULL),
                     WEFT_OK);
    if (k > 0) {
      assert_memory_equal(first, expected, sizeof expected);
    }
  }
}

static void test_split_large(void **state) {
  (void)state;
  const struct weft_gpt_config config = config_of(WEFT_GPT_BLOCKS_MAX, 1024, 2048);
  const uint32_t layers = weft_gpt_layer_count(&config);
  uint32_t *first = malloc((layers + 1) * sizeof *first);
  assert_non_null(first);
  for (uint32_t s = 1; s <= layers; s = s < 1024 ? 2 * s : s + 1537) {
    assert_int_equal(weft_gpt_split(NULL, &config, NULL, s, first, NULL), WEFT_OK);
    check_cut(first, s, layers);
    for (uint32_t k = 0; k < s; k++) {
      assert_true(first[k + 1] - first[k] <= (WEFT_GPT_BLOCKS_MAX + s) / s + 1);
    }
  }
  free(first);
}

/* Where one layer alone is the bound, every begin is possible for every stage. */
static void test_split_large_and_free(void **state) {
  (void)state;
  const struct weft_gpt_config config = config_of(WEFT_GPT_BLOCKS_MAX, 1024, 2048);
  const uint32_t layers = weft_gpt_layer_count(&config);
  double *costs = malloc(layers * sizeof *costs);
  uint32_t *first = malloc((layers + 1) * sizeof *first);
  assert_true(costs != NULL && first != NULL);
  for (uint32_t p = 0; p < layers; p++) {
    costs[p] = p == 0 ? 1e4 : 1;
  }
  assert_int_equal(weft_gpt_split(NULL, &config, costs, 242, first, NULL), WEFT_OK);
  check_cut(first, 242, layers);
  for (uint32_t s = 1; s < 242; s++) {
    assert_int_equal(first[s + 1] - first[s], 17); /* 4097 = 241 * 17 */
  }
  assert_int_equal(weft_gpt_split(NULL, &config, costs, 2050, first, NULL), WEFT_OK);
  check_cut(first, 2050, layers);
  free(costs);
  free(first);
}

static void test_split_without_memory(void **state) {
  (void)state;
  const struct weft_gpt_config config = config_of(2, 2, 1);
  uint32_t first[3] = {99};
  enum weft_status status = WEFT_ERR_MEMORY;
  for (uint64_t n = 1; status == WEFT_ERR_MEMORY; n++) {
    struct test_memory memory;
    test_memory_init(&memory);
    memory.fail_at = n;
    assert_int_equal(first[0], 99);
    status = weft_gpt_split(&memory.allocator, &config, NULL, 2, first, NULL);
    assert_int_equal(memory.blocks, 0);
  }
  assert_int_equal(status, WEFT_OK);
  check_cut(first, 2, 4);
}

static void refuse_split(const struct weft_gpt_config *config, const double *costs,
                         uint32_t stage_count, const char *message) {
  struct weft_error error = {0};
  uint32_t first[8] = {99, 99, 99, 99, 99, 99, 99, 99};
  assert_int_equal(weft_gpt_split(NULL, config, costs, stage_count, first, &error), WEFT_ERR_USAGE);
  assert_string_equal(error.message, message);
  assert_int_equal(first[0], 99);
  assert_int_equal(weft_gpt_split(NULL, config, costs, stage_count, first, NULL), WEFT_ERR_USAGE);
}

static void test_split_errors(void **state) {
  (void)state;
  const struct weft_gpt_config config = config_of(2, 2, 1);
  refuse_split(&config, NULL, 5, "5 stages; 2 layers, the embedding and the head make 1 to 4");
  refuse_split(&config, NULL, 0, "0 stages; 2 layers, the embedding and the head make 1 to 4");
  refuse_split(&config, (double[]){1, 1, -2, 1}, 2,
               "the cost of part 2 is -2; expected a number from 0 on");
  refuse_split(&config, (double[]){1, 1, 1, INFINITY}, 2,
               "the cost of part 3 is inf; expected a number from 0 on");
  refuse_split(&config, (double[]){NAN, 1, 1, 1}, 2,
               "the cost of part 0 is nan; expected a number from 0 on");
}

static void check_counts(const uint32_t *blocks, uint32_t stage_count, const uint32_t *expected) {
  const struct weft_gpt_config config = config_of(12, 2, 1);
  uint32_t first[8];
  assert_int_equal(weft_gpt_split_counts(&config, blocks, stage_count, first, NULL), WEFT_OK);
  assert_memory_equal(first, expected, (stage_count + 1) * sizeof *expected);
}

static void refuse_counts(const uint32_t *blocks, uint32_t stage_count, const char *message) {
  const struct weft_gpt_config config = config_of(12, 2, 1);
  struct weft_error error = {0};
  uint32_t first[8] = {99};
  assert_int_equal(weft_gpt_split_counts(&config, blocks, stage_count, first, &error),
                   WEFT_ERR_USAGE);
  assert_string_equal(error.message, message);
  assert_int_equal(first[0], 99);
}

static void test_split_counts(void **state) {
  (void)state;
  check_counts((uint32_t[]){3, 4, 4, 1}, 4, (uint32_t[]){0, 4, 8, 12, 14});
  check_counts((uint32_t[]){12}, 1, (uint32_t[]){0, 14});
  check_counts((uint32_t[]){0, 12, 0}, 3, (uint32_t[]){0, 1, 13, 14});
  check_counts((uint32_t[]){12, 0}, 2, (uint32_t[]){0, 13, 14});
  refuse_counts((uint32_t[]){3, 4, 4}, 3, "the 3 stages have 11 blocks; the model has 12");
  refuse_counts((uint32_t[]){UINT32_MAX, 13}, 2,
                "the 2 stages have 4294967308 blocks; the model has 12");
  refuse_counts((uint32_t[]){6, 0, 6}, 3, "stage 1 has no block");
  refuse_counts(NULL, 0, "the 0 stages have 0 blocks; the model has 12");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_tables),
      cmocka_unit_test(test_largest_names),
      cmocka_unit_test(test_counts),
      cmocka_unit_test(test_initial_values),
      cmocka_unit_test(test_streams_differ),
      cmocka_unit_test(test_tied_head),
      cmocka_unit_test(test_pinned),
      cmocka_unit_test(test_configs),
      cmocka_unit_test(test_split_brute_force),
      cmocka_unit_test(test_split_by_work),
      cmocka_unit_test(test_split_is_balanced),
      cmocka_unit_test(test_split_scales),
      cmocka_unit_test(test_split_large),
      cmocka_unit_test(test_split_large_and_free),
      cmocka_unit_test(test_split_without_memory),
      cmocka_unit_test(test_split_errors),
      cmocka_unit_test(test_split_counts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
