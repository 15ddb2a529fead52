/* The manifest: its text, and what is refused in one whose checksum is right. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "trainer/checkpoint/crc64.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/model/aligned_memory.h"

static const struct weft_gpt_training training = {
    .config = {.blocks = 1, .dim = 8, .heads = 2, .context = 16, .vocabulary = 256, .seed = 42},
    .step = 200,
    .data_hash = 0xdeadbeef,
    .data_seed = UINT64_MAX,
    .batch = 32,
    .microbatches = 8,
    .rate = 3e-4,
    .rate_min = 3e-5,
    .beta1 = 0.9,
    .beta2 = 0.95,
    .epsilon = 1e-8,
    .decay = 0.1,
    .clip = 1.5,
    .warmup_steps = 10,
    .total_steps = 1000,
};

static void layers_of(struct weft_gpt_manifest_layer layers[3]) {
  for (uint32_t k = 0; k < 3; k++) {
    layers[k] = (struct weft_gpt_manifest_layer){
        .file = weft_gpt_layer_name(k), .size = 1000 + k, .checksum = 0xabc0 + k};
  }
  layers[1].file = weft_gpt_layer_name_again(1, layers[1].checksum);
}

static const char body[] =
    "{\n"
    "  \"schema\": \"weft-checkpoint/1\",\n"
    "  \"step\": 200,\n"
    "  \"batch\": 32,\n"
    "  \"microbatches\": 8,\n"
    "  \"model\": {\n"
    "    \"layers\": 1,\n"
    "    \"dim\": 8,\n"
    "    \"heads\": 2,\n"
    "    \"context\": 16,\n"
    "    \"vocabulary\": 256,\n"
    "    \"tied\": false,\n"
    "    \"seed\": \"000000000000002a\"\n"
    "  },\n"
    "  \"data\": {\n"
    "    \"hash\": \"00000000deadbeef\",\n"
    "    \"seed\": \"ffffffffffffffff\"\n"
    "  },\n"
    "  \"optimizer\": {\n"
    "    \"rate\": 0.0003,\n"
    "    \"rate_min\": 3e-05,\n"
    "    \"beta1\": 0.9,\n"
    "    \"beta2\": 0.95,\n"
    "    \"epsilon\": 1e-08,\n"
    "    \"decay\": 0.1,\n"
    "    \"clip\": 1.5,\n"
    "    \"warmup_steps\": 10,\n"
    "    \"total_steps\": 1000\n"
    "  },\n"
    "  \"parts\": [\n"
    "    {\"file\": \"part-0000.safetensors\", \"size\": 1000, \"checksum\": "
    "\"000000000000abc0\"},\n"
    "    {\"file\": \"part-0001.000000000000abc1.safetensors\", \"size\": 1001, \"checksum\": "
    "\"000000000000abc1\"},\n"
    "    {\"file\": \"part-0002.safetensors\", \"size\": 1002, \"checksum\": "
    "\"000000000000abc2\"}\n"
    "  ],\n";

/* The body with `from` replaced, and the right last line. */
static void altered(struct weft_text *text, const char *from, const char *to) {
  const char *at = strstr(body, from);
  assert_non_null(at);
  weft_text_append(text, body, (size_t)(at - body));
  weft_text_add(text, to);
  weft_text_add(text, at + strlen(from));
  weft_text_addf(text, "  \"checksum\": \"%016" PRIx64 "\"\n}\n",
                 weft_gpt_checksum_of(text->data, text->size));
}

static enum weft_status read(const struct weft_text *text, struct weft_error *error) {
  struct weft_gpt_training found = {.step = 77};
  struct weft_gpt_manifest_layer *layers = NULL;
  const enum weft_status status = weft_gpt_manifest_read(NULL, "dir/manifest.json", text->data,
                                                         text->size, &found, &layers, error);
  if (status != WEFT_OK) {
    assert_int_equal(found.step, 77);
    assert_null(layers);
  }
  weft_gpt_free(NULL, layers);
  return status;
}

static void refuses_text(const struct weft_text *text, const char *said) {
  struct weft_error error = {.status = WEFT_OK};
  assert_int_equal(read(text, &error), WEFT_ERR_FORMAT);
  assert_int_equal(error.status, WEFT_ERR_FORMAT);
  if (strstr(error.message, said) == NULL ||
      strncmp(error.message, "'dir/manifest.json': ", 21) != 0 || error.hint[0] == '\0') {
    fail_msg("'%s' is not in '%s'", said, error.message);
  }
}

static void refuses(const char *from, const char *to, const char *said) {
  struct weft_text text = {.allocator = NULL};
  altered(&text, from, to);
  refuses_text(&text, said);
  weft_text_finish(&text);
}

static void accepts(const char *from, const char *to) {
  struct weft_text text = {.allocator = NULL};
  struct weft_error error;
  altered(&text, from, to);
  if (read(&text, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  weft_text_finish(&text);
}

static void test_the_text(void **state) {
  (void)state;
  struct weft_gpt_manifest_layer layers[3], *found;
  struct weft_gpt_training read_back;
  struct weft_text text = {.allocator = NULL}, expected = {.allocator = NULL};
  layers_of(layers);
  assert_int_equal(weft_gpt_manifest_write(&text, &training, layers, NULL), WEFT_OK);
  altered(&expected, "{", "{");
  assert_string_equal(text.data, expected.data);
  assert_int_equal(
      weft_gpt_manifest_read(NULL, "x", text.data, text.size, &read_back, &found, NULL), WEFT_OK);
  for (uint32_t k = 0; k < 3; k++) {
    assert_string_equal(found[k].file.text, layers[k].file.text);
    assert_int_equal(found[k].size, layers[k].size);
    assert_int_equal(found[k].checksum, layers[k].checksum);
  }
  assert_int_equal(read_back.data_seed, UINT64_MAX);
  assert_true(read_back.rate == training.rate && read_back.clip == training.clip);
  weft_gpt_free(NULL, found);
  weft_text_finish(&text);
  weft_text_finish(&expected);
}

static void test_other_spellings_are_read(void **state) {
  (void)state;
  accepts("\"clip\": 1.5", "\"clip\": 1");
  accepts("  \"step\": 200,\n  \"batch\": 32,", "\"batch\":32,\"step\":200,");
  accepts("\"tied\": false", "\"tied\": true");
}

static void test_wrong_values(void **state) {
  (void)state;
  refuses("\"step\": 200", "\"step\": \"200\"",
          "step is \"200\"; expected an integer from 0 to 9223372036854775807");
  refuses("\"step\": 200", "\"step\": -1", "step is -1; expected");
  refuses("\"step\": 200", "\"step\": 2.5", "step is 2.5; expected");
  refuses("\"step\": 200", "\"step\": 9223372036854775808", "too big integer");
  refuses("\"microbatches\": 8", "\"microbatches\": 4294967296",
          "microbatches is 4294967296; expected an integer from 0 to 4294967295");
  refuses("\"microbatches\": 8", "\"microbatches\": [8]", "microbatches is a list");
  refuses("\"layers\": 1", "\"layers\": {}", "model.layers is an object");
  refuses("\"tied\": false", "\"tied\": 0", "model.tied is 0; expected true or false");
  refuses("000000000000002a", "00000000000002a", "model.seed is \"00000000000002a\"; expected 16");
  refuses("00000000deadbeef", "00000000DEADBEEF", "data.hash is \"00000000DEADBEEF\"; expected");
  refuses("\"00000000deadbeef\"", "3735928559", "data.hash is 3735928559; expected 16");
  refuses("\"rate\": 0.0003", "\"rate\": \"fast\"",
          "optimizer.rate is \"fast\"; expected a number");
  refuses("\"rate\": 0.0003", "\"rate\": 1e999", "not JSON: real number overflow");
  refuses("\"rate\": 0.0003", "\"rate\": NaN", "not JSON");
  refuses("\"rate\": 0.0003", "\"rate\": null", "optimizer.rate is null");
  refuses("\"rate\": 0.0003", "\"rate\": \"\\u001b\\u00e4\"", "\"\\u001B\\u00E4\"");
}

static void test_wrong_models(void **state) {
  (void)state;
  refuses("\"layers\": 1", "\"layers\": 0", "model: the number of layers is 0");
  refuses("\"layers\": 1", "\"layers\": 4294967295", "model: the number of layers is 4294967295");
  refuses("\"heads\": 2", "\"heads\": 3", "model: the number of heads is 3");
  refuses("\"vocabulary\": 256", "\"vocabulary\": 255", "model: the vocabulary is 255");
  refuses("\"layers\": 1", "\"layers\": 2", "parts has 3 entries; expected 4, for 2 layers");
}

static void test_wrong_members(void **state) {
  (void)state;
  refuses("  \"batch\": 32,\n", "", "batch is missing");
  refuses("    \"heads\": 2,\n", "", "model.heads is missing");
  refuses("\"step\": 200", "\"step\": 200, \"mood\": 1",
          "mood is not a field of weft-checkpoint/1");
  refuses("\"heads\": 2", "\"heads\": 2, \"hea\\u0007ds\": 2", "model.hea\\x07ds is not a field");
  refuses("\"heads\": 2", "\"heads\": 2, \"heads\": 2", "duplicate object key");
  refuses("weft-checkpoint/1", "weft-checkpoint/2",
          "schema is \"weft-checkpoint/2\"; expected weft-checkpoint/1");
  refuses("  \"schema\": \"weft-checkpoint/1\",\n", "", "schema is missing");
  refuses(
      "  \"data\": {\n    \"hash\": \"00000000deadbeef\",\n    \"seed\": \"ffffffffffffffff\"\n  }",
      "  \"data\": 3", "data is 3; expected an object");
}

static void test_wrong_layers(void **state) {
  (void)state;
  refuses("part-0000.safetensors", "part-0002.safetensors",
          "parts[0].file is \"part-0002.safetensors\"; expected part-0000.safetensors");
  refuses("part-0000.safetensors", "../part-0000.safetensors", "parts[0].file is \"../part");
  refuses("part-0000.safetensors", "/etc/passwd", "parts[0].file is \"/etc/passwd\"");
  refuses("\"part-0000.safetensors\"", "[]", "parts[0].file is a list");
  refuses("part-0001.000000000000abc1", "part-0001.000000000000abc2", "parts[1].file is");
  refuses("\"size\": 1002", "\"size\": -1", "parts[2].size is -1");
  refuses("\"size\": 1002", "\"size\": 1e30", "parts[2].size is 1e30");
  refuses("\"size\": 1002, ", "", "parts[2].size is missing");
  refuses("\"size\": 1002", "\"size\": 1002, \"x\": 0", "parts[2].x is not a field");
  refuses("\"000000000000abc2\"", "\"abc2\"", "parts[2].checksum is \"abc2\"");
  refuses(
      "{\"file\": \"part-0002.safetensors\", \"size\": 1002, \"checksum\": "
      "\"000000000000abc2\"}",
      "7", "parts[2] is 7; expected an object");
}

static void test_wrong_ends(void **state) {
  (void)state;
  struct weft_text text = {.allocator = NULL};
  altered(&text, "{", "{");
  text.data[100] ^= 1;
  refuses_text(&text, "");
  text.data[100] ^= 1;
  char *digit = &text.data[text.size - 5]; /* the checksum's last */
  const char was = *digit;
  *digit = was == '0' ? '1' : '0';
  refuses_text(&text, "it was changed after it was written");
  *digit = was;
  weft_text_add(&text, " ");
  refuses_text(&text, "does not end with a line that has its checksum");
  text.size = 0;
  refuses_text(&text, "not JSON");
  weft_text_add(&text, "[1]");
  refuses_text(&text, "not an object");
  text.size = 0;
  weft_text_add(&text, "{\"schema\": \"weft-checkpoint/1\"}");
  refuses_text(&text, "does not end with a line that has its checksum");
  weft_text_finish(&text);
}

static void test_limits(void **state) {
  (void)state;
  struct weft_text text = {.allocator = NULL};
  weft_text_add(&text, "[0");
  while (text.size < 2u * 17000) {
    weft_text_add(&text, ",0");
  }
  weft_text_add(&text, "]");
  refuses_text(&text, "commas; the limit is 16384");
  while (text.size <= WEFT_GPT_MANIFEST_BYTES_MAX) {
    weft_text_add(&text, "                                ");
  }
  refuses_text(&text, "the limit is 2097152");
  weft_text_finish(&text);
}

/* The largest model's manifest is below the limits. */
static void test_the_largest(void **state) {
  (void)state;
  struct weft_gpt_training large = training, found;
  large.config.blocks = WEFT_GPT_BLOCKS_MAX;
  const uint32_t count = weft_gpt_layer_count(&large.config);
  struct weft_gpt_manifest_layer *layers = calloc(count, sizeof *layers), *back;
  struct weft_text text = {.allocator = NULL};
  struct weft_error error;
  assert_non_null(layers);
  for (uint32_t k = 0; k < count; k++) {
    layers[k] = (struct weft_gpt_manifest_layer){.file = weft_gpt_layer_name_again(k, UINT64_MAX),
                                                 .size = INT64_MAX,
                                                 .checksum = UINT64_MAX};
  }
  assert_int_equal(weft_gpt_manifest_write(&text, &large, layers, &error), WEFT_OK);
  if (weft_gpt_manifest_read(NULL, "x", text.data, text.size, &found, &back, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  assert_string_equal(back[count - 1].file.text, layers[count - 1].file.text);
  weft_gpt_free(NULL, back);
  free(layers);
  weft_text_finish(&text);
}

/* Of models that are no chain; others have no such fields, as ever. */
static void test_graph_fields(void **state) {
  (void)state;
  struct weft_gpt_training graph = training, found;
  struct weft_gpt_manifest_layer layers[6], *read;
  struct weft_error error;
  struct weft_text text = {.allocator = NULL};
  graph.config.blocks = 3;
  graph.config.skips = true;
  graph.config.predict = 2;
  for (uint32_t k = 0; k < 6; k++) {
    layers[k] = (struct weft_gpt_manifest_layer){
        .file = weft_gpt_layer_name(k), .size = 1000 + k, .checksum = 0xabc0 + k};
  }
  assert_int_equal(weft_gpt_manifest_write(&text, &graph, layers, &error), WEFT_OK);
  assert_non_null(strstr(text.data,
                         "\"seed\": \"000000000000002a\",\n    \"skips\": true,\n    "
                         "\"predict_tokens\": 2\n  },\n"));
  assert_int_equal(weft_gpt_manifest_read(NULL, "it", text.data, text.size, &found, &read, &error),
                   WEFT_OK);
  assert_true(found.config.skips && found.config.predict == 2);
  weft_gpt_free(NULL, read);
  weft_text_finish(&text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_text),      cmocka_unit_test(test_other_spellings_are_read),
      cmocka_unit_test(test_wrong_values),  cmocka_unit_test(test_wrong_models),
      cmocka_unit_test(test_wrong_members), cmocka_unit_test(test_wrong_layers),
      cmocka_unit_test(test_wrong_ends),    cmocka_unit_test(test_limits),
      cmocka_unit_test(test_the_largest),   cmocka_unit_test(test_graph_fields),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
