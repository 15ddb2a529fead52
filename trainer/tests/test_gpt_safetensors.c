/* The safetensors format: what is written byte for byte, what is read, and every way in
 * which a header can be wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "trainer/checkpoint/crc64.h"
#include "trainer/checkpoint/layer_tensors.h"
#include "trainer/checkpoint/safetensors.h"

static const struct weft_gpt_tensor pair[2] = {
    {.name = "a", .dim_count = 1, .dims = {2}, .bytes = 8},
    {.name = "b.weight", .dim_count = 2, .dims = {1, 3}, .bytes = 12},
};

struct file {
  unsigned char bytes[4096];
  size_t size;
};

/* A file with this header and that many bytes after it. */
static struct file file_of(const char *header, size_t header_size, size_t data) {
  struct file file = {.size = 8 + header_size + data};
  const uint64_t length = header_size;
  assert_true(file.size <= sizeof file.bytes);
  memcpy(file.bytes, &length, sizeof length);
  memcpy(file.bytes + 8, header, header_size);
  return file;
}

static enum weft_status find(const struct file *file, struct weft_gpt_tensor *tensors,
                             struct weft_error *error) {
  /* A block of just that size, so that a byte beyond is seen by a sanitizer. */
  unsigned char *copy = malloc(file->size > 0 ? file->size : 1);
  assert_non_null(copy);
  memcpy(copy, file->bytes, file->size);
  const enum weft_status status =
      weft_gpt_safetensors_find("dir/x.safetensors", copy, file->size, tensors, 2, error);
  free(copy);
  return status;
}

/* It fails, says so, and changes nothing. */
static void refuses_file(const struct file *file, const char *said) {
  struct weft_gpt_tensor tensors[2];
  struct weft_error error = {.status = WEFT_OK};
  memcpy(tensors, pair, sizeof tensors);
  assert_int_equal(find(file, tensors, &error), WEFT_ERR_FORMAT);
  assert_int_equal(error.status, WEFT_ERR_FORMAT);
  if (strstr(error.message, said) == NULL || strstr(error.message, "dir/x.safetensors") == NULL) {
    fail_msg("'%s' is not in '%s'", said, error.message);
  }
  assert_true(error.hint[0] != '\0');
  assert_memory_equal(tensors, pair, sizeof tensors);
}

static void refuses(const char *header, const char *said) {
  const struct file file = file_of(header, strlen(header), 20);
  refuses_file(&file, said);
}

static void accepts(const char *header, uint64_t a, uint64_t b) {
  const struct file file = file_of(header, strlen(header), 20);
  struct weft_gpt_tensor tensors[2];
  struct weft_error error = {.status = WEFT_OK};
  memcpy(tensors, pair, sizeof tensors);
  if (find(&file, tensors, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  assert_int_equal(tensors[0].begin, 8 + strlen(header) + a);
  assert_int_equal(tensors[1].begin, 8 + strlen(header) + b);
}

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"
#define B "\"b.weight\":{\"dtype\":\"F32\",\"shape\":[1,3],\"data_offsets\":[8,20]}"
#define A_AT(begin, end) \
  "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[" begin "," end "]}"
#define B_AT(begin, end) \
  "\"b.weight\":{\"dtype\":\"F32\",\"shape\":[1,3],\"data_offsets\":[" begin "," end "]}"

/* ---- Writing ---- */

static void test_header_is_as_the_format_says(void **state) {
  (void)state;
  struct weft_gpt_tensor tensors[2];
  struct weft_text text = {.allocator = NULL};
  const char *const metadata[] = {"format", "pt", NULL};
  memcpy(tensors, pair, sizeof tensors);
  weft_gpt_safetensors_header(&text, tensors, 2, metadata);
  const char *expected = "{\"__metadata__\":{\"format\":\"pt\"}," A "," B "}";
  const size_t padded = (strlen(expected) + 7) / 8 * 8;
  assert_int_equal(text.size, 8 + padded);
  uint64_t length;
  memcpy(&length, text.data, sizeof length);
  assert_int_equal(length, padded);
  assert_memory_equal(text.data + 8, expected, strlen(expected));
  for (size_t i = 8 + strlen(expected); i < text.size; i++) {
    assert_int_equal(text.data[i], ' ');
  }
  assert_int_equal(tensors[0].begin, text.size);
  assert_int_equal(tensors[1].begin, text.size + 8);
  weft_text_finish(&text);
}

static void test_a_layer_has_its_weights_and_moments(void **state) {
  (void)state;
  const struct weft_gpt_config config = {
      .blocks = 2, .dim = 4, .heads = 2, .context = 3, .vocabulary = 256};
  struct weft_gpt_tensor tensors[WEFT_GPT_TENSORS_MAX];
  struct weft_gpt_layer_tensor places[WEFT_GPT_TENSORS_MAX];
  struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX];
  assert_int_equal(weft_gpt_layer_tensors(&config, 2, tensors, places), 36);
  assert_int_equal(weft_gpt_layer_parameters(&config, 2, parameters), 12);
  assert_string_equal(tensors[6].name, "block.1.attn.qkv.weight");
  assert_string_equal(tensors[7].name, "block.1.attn.qkv.weight.exp_avg");
  assert_string_equal(tensors[8].name, "block.1.attn.qkv.weight.exp_avg_sq");
  for (uint32_t k = 6; k < 9; k++) {
    assert_int_equal(tensors[k].dims[0], 12);
    assert_int_equal(tensors[k].dims[1], 4);
    assert_int_equal(tensors[k].bytes, 192);
    assert_int_equal(places[k].array, k - 6);
    assert_int_equal(places[k].offset, parameters[2].offset);
  }
}

/* Of the catalogue of parametrised CRC algorithms. */
static void test_checksum_is_crc_64_xz(void **state) {
  (void)state;
  struct weft_gpt_checksum checksum;
  assert_int_equal(weft_gpt_checksum_of("123456789", 9), 0x995dc9bbdf1939fa);
  assert_int_equal(weft_gpt_checksum_of("", 0), 0);
  char bytes[100];
  for (size_t i = 0; i < sizeof bytes; i++) {
    bytes[i] = (char)(i * 37 + 5);
  }
  for (size_t cut = 0; cut <= sizeof bytes; cut++) {
    weft_gpt_checksum_init(&checksum);
    weft_gpt_checksum_add(&checksum, bytes, cut);
    weft_gpt_checksum_add(&checksum, bytes + cut, sizeof bytes - cut);
    assert_int_equal(weft_gpt_checksum_value(&checksum), weft_gpt_checksum_of(bytes, sizeof bytes));
  }
}

/* ---- Reading ---- */

static void test_any_order_is_read(void **state) {
  (void)state;
  accepts("{" A "," B "}", 0, 8);
  accepts("{" B "," A "}", 0, 8);
  accepts("{" A_AT("12", "20") "," B_AT("0", "12") "}", 12, 0);
  accepts("{\"__metadata__\":{}," A "," B "}", 0, 8);
  accepts("{\"__metadata__\":{\"format\":\"pt\",\"x\":\"\\u00e4\\n\"}," A "," B "}      ", 0, 8);
  accepts("{ \"b.weight\" : {\"shape\":[1, 3], \"data_offsets\":[8, 20], \"dtype\":\"F32\"}, " A
          " }\n",
          0, 8);
}

static void test_wrong_lengths(void **state) {
  (void)state;
  struct file file = {.size = 0};
  for (; file.size < 8; file.size++) {
    refuses_file(&file, "expected 8 with the header's length");
  }
  const uint64_t lengths[] = {61, 1u << 20, (1u << 20) + 1, UINT64_C(1) << 63, UINT64_MAX};
  for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
    file = file_of("{}", 2, 50);
    memcpy(file.bytes, &lengths[k], sizeof lengths[k]);
    char said[64];
    (void)snprintf(said, sizeof said, "a header of %llu bytes in a file of 60",
                   (unsigned long long)lengths[k]);
    refuses_file(&file, said);
  }
  file = file_of("", 0, 20);
  refuses_file(&file, "does not begin with {");
}

static void test_a_header_above_the_limit_is_not_read(void **state) {
  (void)state;
  struct weft_gpt_tensor tensors[2];
  struct weft_error error = {.status = WEFT_OK};
  const uint64_t length = (1u << 20) + 8;
  unsigned char *bytes = calloc(1, 8 + length + 20);
  assert_non_null(bytes);
  memcpy(tensors, pair, sizeof tensors);
  memcpy(bytes, &length, 8);
  memset(bytes + 8, ' ', length);
  memcpy(bytes + 8, "{" A "," B "}", strlen("{" A "," B "}"));
  assert_int_equal(weft_gpt_safetensors_find("x", bytes, 8 + length + 20, tensors, 2, &error),
                   WEFT_ERR_FORMAT);
  assert_non_null(strstr(error.message, "the limit is 1048576"));
  const uint64_t most = 1u << 20;
  memcpy(bytes, &most, 8);
  assert_int_equal(weft_gpt_safetensors_find("x", bytes, 8 + most + 20, tensors, 2, &error),
                   WEFT_OK);
  /* As many values, and as deep, as fit. */
  for (int kind = 0; kind < 3; kind++) {
    memset(bytes + 8, " ,["[kind], most);
    memcpy(bytes + 8, "{\"a\":", 5);
    assert_int_equal(weft_gpt_safetensors_find("x", bytes, 8 + most + 20, tensors, 2, &error),
                     WEFT_ERR_FORMAT);
  }
  free(bytes);
}

static void test_not_json(void **state) {
  (void)state;
  refuses("[]", "does not begin with {");
  refuses(" {" A "," B "}", "does not begin with {");
  refuses("{" A "," B "} x", "not JSON");
  refuses("{" A "," B "},", "not JSON");
  refuses("{" A "," B, "not JSON");
  refuses("{" A "," A "," B "}", "duplicate object key");
  refuses("{" A ",\"\\u0061\":1," B "}", "duplicate object key");
  refuses("{" A "," B ",\"\xff\xfe\":1}", "not JSON");
  refuses("{" A "," B ",\"\xc0\xaf\":1}", "not JSON");
  refuses("{" A "," B ",\"\xed\xa0\x80\":1}", "not JSON");
  refuses("{" A "," B ",\"x\\u0000y\":1}", "not JSON");
  const struct file file = file_of("{" A "," B "}\0", strlen("{" A "," B "}") + 1, 20);
  refuses_file(&file, "not JSON");
}

static void test_wrong_names(void **state) {
  (void)state;
  refuses("{}", "there is no tensor a");
  refuses("{" A "}", "there is no tensor b.weight");
  refuses("{" A "," B ",\"c\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[20,20]}}",
          "a tensor 'c', which this part does not have");
  refuses("{" A "," B ",\"\\u001b[2J\\u00e4\":{}}", "'\\x1b[2J\xc3\xa4'");
  refuses("{\"__metadata__\":[]," A "," B "}", "__metadata__ is a list; expected an object");
  refuses("{\"__metadata__\":{\"k\":3}," A "," B "}", "__metadata__: k is 3; expected text");
}

static void test_wrong_tensors(void **state) {
  (void)state;
  refuses("{\"a\":7," B "}", "a is 7; expected an object");
  refuses("{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}," B "}", "a.dtype is missing");
  refuses("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}," B "}", "a.shape is missing");
  refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}," B "}", "a.data_offsets is missing");
  refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":0}," B "}",
          "a.x is not a field of a tensor");
  refuses("{\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,8]}," B "}",
          "a: dtype is \"F16\"; expected F32");
  refuses("{\"a\":{\"dtype\":null,\"shape\":[2],\"data_offsets\":[0,8]}," B "}",
          "a: dtype is null; expected F32");
  refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}," B "}",
          "a: size 0 of the shape is 3; expected 2");
  refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]}," B "}",
          "a: shape is not a list of 1 sizes");
  refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}," B "}",
          "a: shape is not a list of 1 sizes");
  refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}," B "}",
          "a: size 0 of the shape is -2; expected 2");
  refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}," B "}",
          "a: size 0 of the shape is 2.0; expected 2");
  refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,8]}," B
          "}",
          "too big integer");
  refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[1e30],\"data_offsets\":[0,8]}," B "}",
          "a: size 0 of the shape is 1e30; expected 2");
  refuses("{\"a\":{\"dtype\":\"F32\",\"shape\":[1e999],\"data_offsets\":[0,8]}," B "}", "not JSON");
}

static void test_wrong_offsets(void **state) {
  (void)state;
  refuses("{" A_AT("0", "9223372036854775807") "," B "}",
          "a: data_offsets are 0 and 9223372036854");
  refuses("{" A_AT("0", "9223372036854775808") "," B "}", "too big integer");
  refuses("{" A_AT("9223372036854775800", "9223372036854775807") "," B "}",
          "expected 8 of the 20 bytes of data");
  refuses("{" A_AT("-8", "0") "," B "}", "a: one of data_offsets is -8");
  refuses("{" A_AT("0", "1e30") "," B "}", "a: one of data_offsets is 1e30");
  refuses("{" A_AT("8", "0") "," B "}", "a: data_offsets are 8 and 0");
  refuses("{" A_AT("0", "4") "," B "}", "0 and 4; expected 8 of the 20 bytes");
  refuses("{" A_AT("0,8", "16") "," B "}", "not a list of 2 numbers");
  refuses("{" A "," B_AT("4", "16") "}", "b.weight begins at byte 4 of the data; expected 8");
  refuses("{" A_AT("8", "16") "," B_AT("8", "20") "}", "expected 0");
  refuses("{" A_AT("4", "12") "," B_AT("4", "16") "}", "expected 0");
}

static void test_gaps_and_other_sizes(void **state) {
  (void)state;
  const char *header = "{" A "," B "}", *gap = "{" A "," B_AT("12", "24") "}";
  struct file file = file_of(header, strlen(header), 19);
  refuses_file(&file, "of the 19 bytes of data");
  file = file_of(header, strlen(header), 21);
  refuses_file(&file, "21 bytes of data; expected 20");
  file = file_of(gap, strlen(gap), 24);
  refuses_file(&file, "b.weight begins at byte 12 of the data; expected 8");
  file = file_of(header, strlen(header), 0);
  refuses_file(&file, "of the 0 bytes of data");
}

static void test_cut_anywhere_it_is_refused(void **state) {
  (void)state;
  const char *header = "{" A "," B "}";
  struct file file = file_of(header, strlen(header), 20);
  while (file.size > 0) {
    file.size--;
    refuses_file(&file, "");
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_header_is_as_the_format_says),
      cmocka_unit_test(test_a_layer_has_its_weights_and_moments),
      cmocka_unit_test(test_checksum_is_crc_64_xz),
      cmocka_unit_test(test_any_order_is_read),
      cmocka_unit_test(test_wrong_lengths),
      cmocka_unit_test(test_a_header_above_the_limit_is_not_read),
      cmocka_unit_test(test_not_json),
      cmocka_unit_test(test_wrong_names),
      cmocka_unit_test(test_wrong_tensors),
      cmocka_unit_test(test_wrong_offsets),
      cmocka_unit_test(test_gaps_and_other_sizes),
      cmocka_unit_test(test_cut_anywhere_it_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
