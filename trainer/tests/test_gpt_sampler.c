/* Text from a model: the decoder's logits against the layers' own forward, the text
 * against a slow sampler that keeps nothing, and the choice of bytes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

#include "support_memory.h"
#include "trainer/infer/kv_cache.h"
#include "trainer/infer/sampler.h"
#include "trainer/kernels/kernels.h"
#include "trainer/model/layer.h"

/* ---- A model ---- */

enum { LAYERS_MAX = 8 };

struct model {
  struct weft_gpt_config config;
  struct weft_gpt_layer_state layers[LAYERS_MAX];
};

static float *floats_of(uint64_t count) {
  float *floats = aligned_alloc(64, (count * sizeof *floats / 64 + 1) * 64);
  assert_non_null(floats);
  memset(floats, 0, count * sizeof *floats);
  return floats;
}

/* Weights large enough for attention and GELU to matter, biases and norms at random. */
static void fill_model(struct model *model) {
  struct weft_random random = {3};
  for (uint32_t layer = 0; layer < weft_gpt_layer_count(&model->config); layer++) {
    const uint64_t floats = weft_gpt_layer_floats(&model->config, layer);
    float *parameters = floats_of(floats);
    weft_gpt_layer_initialize(&model->config, layer, parameters);
    for (uint64_t k = 0; k < floats; k++) {
      const float noise = (float)weft_random_below(&random, 2001) / 1000 - 1;
      const bool norm = parameters[k] == 1;
      parameters[k] = parameters[k] * (norm ? 1.0F : 10.0F) + noise * 0.1F;
    }
    model->layers[layer] =
        (struct weft_gpt_layer_state){.layer = layer, .floats = floats, .parameters = parameters};
  }
}

static void make_model(struct model *model, uint32_t layers, uint32_t heads, uint32_t dim,
                       uint32_t context) {
  *model = (struct model){.config = {.blocks = layers,
                                     .dim = dim,
                                     .heads = heads,
                                     .context = context,
                                     .vocabulary = WEFT_GPT_VOCABULARY,
                                     .seed = 11}};
  fill_model(model);
}

static void free_model(struct model *model) {
  for (uint32_t layer = 0; layer < weft_gpt_layer_count(&model->config); layer++) {
    free(model->layers[layer].parameters);
  }
}

static void run_layer(const struct model *model, uint32_t layer, const uint8_t *ids,
                      uint64_t tokens, const float *x, float *y) {
  const struct weft_gpt_config *config = &model->config;
  const struct weft_gpt_layer_call call = {
      .config = config,
      .layer = layer,
      .sequences = 1,
      .tokens = tokens,
      .parameters = model->layers[layer].parameters,
      .saved = floats_of(weft_gpt_layer_saved(config, layer, 1, tokens)),
      .scratch = floats_of(weft_gpt_layer_scratch(config, layer, 1, tokens))};
  if (layer == 0) {
    weft_gpt_embedding_forward(&call, ids, y);
  } else if (layer <= config->blocks) {
    weft_gpt_block_forward(&call, x, y);
  } else {
    (void)weft_gpt_head_forward(&call, x, NULL, false, y);
  }
  free(call.saved);
  free(call.scratch);
}

/* Logits [tokens, V] of the whole model; free them. */
static float *forward(const struct model *model, const uint8_t *ids, uint64_t tokens) {
  const uint32_t head = model->config.blocks + 1; /* the first one */
  const uint64_t width = model->config.dim > 256 ? model->config.dim : 256;
  float *x = floats_of(tokens * width), *y[LAYERS_MAX] = {NULL};
  for (uint32_t layer = 0; layer <= head; layer++) {
    const uint32_t skip = model->config.blocks + 1 - layer; /* its other end */
    y[layer] = floats_of(tokens * width);
    if (model->config.skips && layer <= model->config.blocks && skip + 1 < layer) {
      weft_gpt_add(tokens * model->config.dim, y[skip], x);
    }
    run_layer(model, layer, ids, tokens, x, y[layer]);
    memcpy(x, y[layer], tokens * width * sizeof *x);
  }
  for (uint32_t layer = 0; layer < head; layer++) {
    free(y[layer]);
  }
  free(x);
  return y[head];
}

static void fill_text(uint8_t *text, uint64_t size) {
  struct weft_random random = {5};
  for (uint64_t k = 0; k < size; k++) {
    text[k] = (uint8_t)weft_random_below(&random, 256);
  }
}

/* ---- The decoder ---- */

static double largest_of(const float *x, uint64_t count) {
  double largest = 0;
  for (uint64_t k = 0; k < count; k++) {
    largest = fmax(largest, fabs((double)x[k]));
  }
  return largest;
}

static void assert_row(const float *found, const float *expected) {
  const double largest = largest_of(expected, 256);
  assert_true(largest > 0.5); /* not trivial */
  for (unsigned k = 0; k < 256; k++) {
    assert_true(fabs((double)found[k] - (double)expected[k]) <= 2e-5 * largest);
  }
}

/* Reads the text in pieces of given sizes, and again. */
static void check_pieces(const struct model *model, const float *expected, const uint8_t *text,
                         uint64_t size, uint64_t piece) {
  struct weft_gpt_inference *inference = NULL;
  struct weft_error error;
  assert_int_equal(
      weft_gpt_inference_create(NULL, &model->config, model->layers, &inference, &error), WEFT_OK);
  for (unsigned round = 0; round < 2; round++) {
    weft_gpt_inference_rewind(inference);
    for (uint64_t done = 0; done < size;) {
      const uint64_t now = size - done < piece ? size - done : piece;
      const float *logits = weft_gpt_inference_read(inference, text + done, now);
      done += now;
      assert_int_equal(weft_gpt_inference_position(inference), done);
      assert_row(logits, expected + (done - 1) * 256);
    }
  }
  weft_gpt_inference_destroy(inference);
}

static void test_decoder(void **state) {
  (void)state;
  const uint64_t pieces[] = {1, 7, 64, 300};
  struct model model;
  uint8_t text[300];
  fill_text(text, sizeof text);
  make_model(&model, 3, 3, 24, 300); /* longer than what is computed at once */
  float *expected = forward(&model, text, sizeof text);
  for (unsigned k = 0; k < sizeof pieces / sizeof *pieces; k++) {
    check_pieces(&model, expected, text, sizeof text, pieces[k]);
  }
  free(expected);
  free_model(&model);
}

static void test_decoder_of_one_head(void **state) {
  (void)state;
  struct model model;
  uint8_t text[40];
  fill_text(text, sizeof text);
  make_model(&model, 1, 1, 16, 40);
  float *expected = forward(&model, text, sizeof text);
  check_pieces(&model, expected, text, sizeof text, 3);
  free(expected);
  free_model(&model);
}

/* Its second head is not asked. */
static void test_decoder_of_a_graph(void **state) {
  (void)state;
  const uint64_t pieces[] = {1, 150};
  struct model model = {.config = {.blocks = 5,
                                   .dim = 16,
                                   .heads = 2,
                                   .context = 150,
                                   .vocabulary = WEFT_GPT_VOCABULARY,
                                   .skips = true,
                                   .predict = 2,
                                   .seed = 11}};
  uint8_t text[150];
  fill_text(text, sizeof text);
  fill_model(&model);
  float *expected = forward(&model, text, sizeof text);
  for (unsigned k = 0; k < sizeof pieces / sizeof *pieces; k++) {
    check_pieces(&model, expected, text, sizeof text, pieces[k]);
  }
  free(expected);
  free_model(&model);
}

/* ---- Text ---- */

static int choose(const float *logits, double temperature, uint32_t top_k, uint64_t seed,
                  uint64_t index) {
  struct weft_gpt_candidate candidates[WEFT_GPT_VOCABULARY];
  return weft_gpt_sampler_choose(logits, WEFT_GPT_VOCABULARY, candidates, temperature, top_k, seed,
                                 index);
}

static struct weft_gpt_sampler *sampler_of(const struct model *model) {
  struct weft_gpt_sampler *sampler = NULL;
  struct weft_error error;
  if (weft_gpt_sampler_create(NULL, &model->config, model->layers, &sampler, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return sampler;
}

static struct weft_gpt_sample_options options_of(const char *prompt, uint64_t count,
                                                 double temperature) {
  struct weft_gpt_sample_options options = weft_gpt_sample_options_default();
  options.prompt = prompt;
  options.prompt_size = prompt != NULL ? strlen(prompt) : 0;
  options.count = count;
  options.temperature = temperature;
  return options;
}

/* The text a sampler makes, NUL-terminated; free it with weft_text_finish(). */
static struct weft_text sample(struct weft_gpt_sampler *sampler,
                               struct weft_gpt_sample_options options) {
  struct weft_text text = {0};
  struct weft_error error;
  if (weft_gpt_sample(sampler, &options, &text, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  assert_int_equal(text.size, options.count);
  return text;
}

/* As the header says it, computing everything anew for every byte. */
static void check_slowly(const struct model *model, const char *prompt,
                         const struct weft_text *text,
                         const struct weft_gpt_sample_options *options) {
  const uint64_t context = model->config.context;
  uint8_t window[64];
  uint64_t used = strlen(prompt) < context ? strlen(prompt) : context;
  memcpy(window, prompt + strlen(prompt) - used, used);
  for (uint64_t k = 0; k < text->size; k++) {
    float *logits = forward(model, window, used);
    const int byte =
        choose(logits + (used - 1) * 256, options->temperature, options->top_k, options->seed, k);
    free(logits);
    assert_int_equal((uint8_t)text->data[k], byte);
    if (used == context) {
      memmove(window, window + context - context / 2, context / 2);
      used = context / 2;
    }
    window[used++] = (uint8_t)byte;
  }
}

static void test_text(void **state) {
  (void)state;
  const uint32_t contexts[] = {1, 2, 17, 32};
  for (unsigned k = 0; k < sizeof contexts / sizeof *contexts; k++) {
    struct model model;
    make_model(&model, 2, 2, 16, contexts[k]);
    struct weft_gpt_sampler *sampler = sampler_of(&model);
    for (unsigned hot = 0; hot < 2; hot++) {
      const char *prompt = "a prompt of 24 bytes ...";
      struct weft_gpt_sample_options options = options_of(prompt, 70, hot);
      options.seed = 9;
      struct weft_text text = sample(sampler, options);
      check_slowly(&model, prompt, &text, &options);
      weft_text_finish(&text);
    }
    weft_gpt_sampler_destroy(sampler);
    free_model(&model);
  }
}

static void assert_same(struct weft_text a, struct weft_text b, bool same) {
  assert_true((a.size == b.size && memcmp(a.data, b.data, a.size) == 0) == same);
  weft_text_finish(&a);
  weft_text_finish(&b);
}

static void test_what_text_depends_on(void **state) {
  (void)state;
  struct model model;
  make_model(&model, 1, 2, 16, 16);
  struct weft_gpt_sampler *sampler = sampler_of(&model);
  const struct weft_gpt_sample_options options = options_of("prompt", 50, 1);
  struct weft_gpt_sample_options other = options;
  assert_same(sample(sampler, options), sample(sampler, options), true);
  other.seed = 1;
  assert_same(sample(sampler, options), sample(sampler, other), false);
  other.temperature = 0; /* then the seed is of no matter */
  assert_same(sample(sampler, other), sample(sampler, options_of("prompt", 50, 0)), true);
  other.temperature = 1;
  other.top_k = 1;
  assert_same(sample(sampler, other), sample(sampler, options_of("prompt", 50, 0)), true);
  assert_same(sample(sampler, options_of(NULL, 50, 1)), sample(sampler, options_of("\n", 50, 1)),
              true);
  /* Of a long prompt the last 16 bytes count. */
  assert_same(sample(sampler, options_of("????0123456789abcdef", 50, 1)),
              sample(sampler, options_of("0123456789abcdef", 50, 1)), true);
  weft_gpt_sampler_destroy(sampler);
  free_model(&model);
}

/* The first byte of a context is seen too: some other one there changes the text. */
static void test_first_byte_counts(void **state) {
  (void)state;
  struct model model;
  make_model(&model, 1, 2, 16, 16);
  struct weft_gpt_sampler *sampler = sampler_of(&model);
  struct weft_text text = sample(sampler, options_of("0123456789abcdef", 1, 1));
  unsigned changes = 0;
  for (int first = '1'; first < 'z'; first++) {
    char prompt[] = "0123456789abcdef";
    prompt[0] = (char)first;
    struct weft_text other = sample(sampler, options_of(prompt, 1, 1));
    changes += other.data[0] != text.data[0];
    weft_text_finish(&other);
  }
  assert_true(changes > 0);
  weft_text_finish(&text);
  weft_gpt_sampler_destroy(sampler);
  free_model(&model);
}

/* ---- Bytes as they are made ---- */

/* A model of 257 tokens, the last of which is as likely as the one before it, makes the same text as
 * that of bytes, as numbers. */
static void test_wide_tokens(void **state) {
  (void)state;
  enum { COUNT = 40 };
  struct model narrow, wide;
  make_model(&narrow, 2, 2, 16, 16);
  make_model(&wide, 2, 2, 16, 16);
  free_model(&wide);
  wide.config.vocabulary = 257;
  fill_model(&wide);
  for (uint32_t layer = 0; layer < weft_gpt_layer_count(&wide.config); layer++) {
    struct weft_gpt_parameter from[WEFT_GPT_PARAMETERS_MAX], to[WEFT_GPT_PARAMETERS_MAX];
    const uint32_t tensors = weft_gpt_layer_parameters(&narrow.config, layer, from);
    (void)weft_gpt_layer_parameters(&wide.config, layer, to);
    for (uint32_t k = 0; k < tensors; k++) {
      const float *source = narrow.layers[layer].parameters + from[k].offset;
      float *target = wide.layers[layer].parameters + to[k].offset;
      memcpy(target, source, from[k].count * sizeof *target);
      memcpy(target + from[k].count, source + from[k].count - (to[k].count - from[k].count),
             (to[k].count - from[k].count) * sizeof *target);
    }
  }
  struct weft_gpt_sampler *samplers[] = {sampler_of(&narrow), sampler_of(&wide)};
  struct weft_gpt_sample_options options = options_of("xy", COUNT, 0);
  struct weft_text bytes = sample(samplers[0], options), numbers = {0}, expected = {0};
  const uint16_t prompt[] = {'x', 'y'};
  options.prompt = prompt;
  assert_int_equal(weft_gpt_sample(samplers[1], &options, &numbers, NULL), WEFT_OK);
  for (uint32_t k = 0; k < COUNT; k++) {
    weft_text_addf(&expected, " %u", (unsigned)(uint8_t)bytes.data[k]);
  }
  assert_string_equal(numbers.data, expected.data);
  weft_text_finish(&bytes);
  weft_text_finish(&numbers);
  weft_text_finish(&expected);
  weft_gpt_sampler_destroy(samplers[0]);
  weft_gpt_sampler_destroy(samplers[1]);
  free_model(&narrow);
  free_model(&wide);
}

struct listener {
  uint8_t bytes[64];
  uint64_t count, most;
};

static bool listen(void *context, uint32_t token) {
  struct listener *listener = context;
  listener->bytes[listener->count++] = (uint8_t)token;
  return listener->count < listener->most;
}

static void test_listener(void **state) {
  (void)state;
  struct model model;
  make_model(&model, 1, 2, 16, 16);
  struct weft_gpt_sampler *sampler = sampler_of(&model);
  struct weft_gpt_sample_options options = options_of("x", 30, 1);
  struct weft_text text = sample(sampler, options);
  struct listener listener = {.most = 64};
  options.on_token = listen;
  options.context = &listener;
  assert_int_equal(weft_gpt_sample(sampler, &options, NULL, NULL), WEFT_OK);
  assert_int_equal(listener.count, 30);
  assert_memory_equal(listener.bytes, text.data, 30);
  struct weft_text some = {0};
  listener = (struct listener){.most = 5};
  assert_int_equal(weft_gpt_sample(sampler, &options, &some, NULL), WEFT_OK);
  assert_int_equal(listener.count, 5);
  assert_int_equal(some.size, 5);
  options.count = 0;
  assert_int_equal(weft_gpt_sample(sampler, &options, &some, NULL), WEFT_OK);
  assert_int_equal(some.size, 5);
  weft_text_finish(&some);
  weft_text_finish(&text);
  weft_gpt_sampler_destroy(sampler);
  free_model(&model);
}

/* ---- The choice ---- */

static void count_choices(const float *logits, double temperature, uint32_t top_k, unsigned trials,
                          unsigned counts[256]) {
  memset(counts, 0, 256 * sizeof *counts);
  for (unsigned k = 0; k < trials; k++) {
    const int byte = choose(logits, temperature, top_k, 77, k);
    assert_in_range(byte, 0, 255);
    counts[byte]++;
  }
}

/* Within five standard deviations of a binomial distribution. */
static void assert_share(unsigned count, unsigned trials, double share) {
  assert_true(fabs(count - share * trials) <= 5 * sqrt(trials * share * (1 - share)));
}

static void test_choice(void **state) {
  (void)state;
  enum { TRIALS = 20000 };
  float logits[256];
  unsigned counts[256];
  for (unsigned k = 0; k < 256; k++) {
    logits[k] = -1000;
  }
  logits[7] = logf(4) + 50; /* 4 : 2 : 1 : 1 */
  logits[200] = logf(2) + 50;
  logits[0] = logits[255] = 50;
  count_choices(logits, 1, 0, TRIALS, counts);
  assert_share(counts[7], TRIALS, 4.0 / 8);
  assert_share(counts[200], TRIALS, 2.0 / 8);
  assert_share(counts[0], TRIALS, 1.0 / 8);
  assert_share(counts[255], TRIALS, 1.0 / 8);
  count_choices(logits, 0.5, 0, TRIALS, counts); /* squares: 16 : 4 : 1 : 1 */
  assert_share(counts[7], TRIALS, 16.0 / 22);
  assert_share(counts[255], TRIALS, 1.0 / 22);
  count_choices(logits, 1, 3, TRIALS, counts); /* of the two equal ones, the smaller */
  assert_share(counts[0], TRIALS, 1.0 / 7);
  assert_int_equal(counts[255], 0);
  assert_int_equal(counts[7] + counts[200] + counts[0], TRIALS);
}

static void test_choice_at_the_ends(void **state) {
  (void)state;
  float logits[256] = {0};
  unsigned counts[256];
  assert_int_equal(choose(logits, 0, 0, 1, 1), 0); /* all are equal */
  logits[9] = logits[8] = 1e-6F;
  assert_int_equal(choose(logits, 0, 0, 1, 1), 8);
  count_choices(logits, 1e-300, 0, 100, counts); /* the two likeliest are left */
  assert_int_equal(counts[8] + counts[9], 100);
  count_choices(logits, 1e300, 0, 25600, counts); /* all are alike */
  assert_share(counts[0], 25600, 1.0 / 256);
  assert_share(counts[255], 25600, 1.0 / 256);
  logits[3] = 3e38F;
  logits[4] = -3e38F;
  count_choices(logits, 1, 0, 100, counts);
  assert_int_equal(counts[3], 100);
  logits[4] = NAN;
  assert_int_equal(choose(logits, 0, 0, 1, 1), -1);
  logits[4] = INFINITY;
  assert_int_equal(choose(logits, 1, 0, 1, 1), -1);
}

/* ---- What goes wrong ---- */

static void refuse(struct weft_gpt_sampler *sampler, struct weft_gpt_sample_options options,
                   enum weft_status status, const char *message) {
  struct weft_error error = {0};
  struct weft_text text = {0};
  assert_int_equal(weft_gpt_sample(sampler, &options, &text, &error), status);
  assert_string_equal(error.message, message);
  assert_int_equal(text.size, 0);
}

static void test_refused(void **state) {
  (void)state;
  struct model model;
  make_model(&model, 1, 2, 16, 16);
  struct weft_gpt_sampler *sampler = sampler_of(&model);
  struct weft_gpt_sample_options options = options_of("x", 5, -1);
  refuse(sampler, options, WEFT_ERR_USAGE, "the temperature is -1; expected 0 or more");
  options.temperature = (double)NAN;
  refuse(sampler, options, WEFT_ERR_USAGE, "the temperature is nan; expected 0 or more");
  options.temperature = 1;
  options.top_k = 257;
  refuse(sampler, options, WEFT_ERR_USAGE, "top-k is 257; expected 1 to 256, or 0 for all");
  options.top_k = 256;
  model.layers[1].parameters[0] = NAN;
  refuse(sampler, options, WEFT_ERR_INVALID,
         "the model's answer for byte 0 is not made of numbers");
  weft_gpt_sampler_destroy(sampler);
  weft_gpt_sampler_destroy(NULL);
  free_model(&model);
}

static void test_memory_failures(void **state) {
  (void)state;
  struct model model;
  make_model(&model, 2, 2, 16, 16);
  for (uint64_t k = 1;; k++) {
    struct test_memory memory;
    struct weft_gpt_sampler *sampler = NULL;
    struct weft_error error;
    test_memory_init(&memory);
    memory.fail_at = k;
    const enum weft_status status =
        weft_gpt_sampler_create(&memory.allocator, &model.config, model.layers, &sampler, &error);
    if (status == WEFT_OK) {
      struct weft_text text = {.allocator = &memory.allocator};
      const struct weft_gpt_sample_options options = options_of("x", 5, 1);
      assert_int_equal(weft_gpt_sample(sampler, &options, &text, &error), WEFT_ERR_MEMORY);
      weft_text_finish(&text);
      weft_gpt_sampler_destroy(sampler);
      assert_int_equal(memory.blocks, 0);
      assert_int_equal(k, 7); /* a sampler is six blocks; its text is the seventh */
      break;
    }
    assert_int_equal(status, WEFT_ERR_MEMORY);
    assert_null(sampler);
    assert_int_equal(memory.blocks, 0);
  }
  free_model(&model);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_decoder),
      cmocka_unit_test(test_decoder_of_one_head),
      cmocka_unit_test(test_decoder_of_a_graph),
      cmocka_unit_test(test_text),
      cmocka_unit_test(test_what_text_depends_on),
      cmocka_unit_test(test_first_byte_counts),
      cmocka_unit_test(test_wide_tokens),
      cmocka_unit_test(test_listener),
      cmocka_unit_test(test_choice),
      cmocka_unit_test(test_choice_at_the_ends),
      cmocka_unit_test(test_refused),
      cmocka_unit_test(test_memory_failures),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
