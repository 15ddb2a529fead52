/* Fuzzes the reader of safetensors headers. Beyond not crashing, what must hold:
 *   - a failing call explains itself in printable text, and changes nothing;
 *   - where tensors were found, they lie in the file, and cover its data exactly. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plain_text.h"
#include "gpt/checkpoint/safetensors.h"

/* Larger inputs only make it slower, not wiser. */
#define SIZE_MAX_FUZZED 4096u
#define COUNT 3

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct weft_gpt_tensor expected[COUNT] = {
    {.name = "a", .dim_count = 1, .dims = {2}, .bytes = 8},
    {.name = "b", .dim_count = 2, .dims = {2, 1}, .bytes = 8},
    {.name = "a.exp_avg", .dim_count = 1, .dims = {1}, .bytes = 4},
};

static void require(bool good, const char *what) {
  if (!good) {
    (void)fprintf(stderr, "fuzz_safetensors: %s\n", what);
    abort();
  }
}

/* Nothing that controls a terminal, and whole characters only. */
static bool is_printable(const char *text) {
  size_t length;
  for (; *text != '\0'; text += length) {
    length = weft_plain_length(text, strlen(text));
    if (length == 0) {
      return false;
    }
  }
  return true;
}

static void check_found(const struct weft_gpt_tensor *tensors, size_t size) {
  uint8_t taken[SIZE_MAX_FUZZED] = {0};
  size_t first = size;
  for (uint32_t k = 0; k < COUNT; k++) {
    require(tensors[k].begin >= 8 && tensors[k].begin <= size, "a tensor outside of the file");
    require(tensors[k].bytes <= size - tensors[k].begin, "a tensor that ends outside");
    first = tensors[k].begin < first ? (size_t)tensors[k].begin : first;
    for (uint64_t i = 0; i < tensors[k].bytes; i++) {
      require(taken[tensors[k].begin + i]++ == 0, "tensors that overlap");
    }
  }
  for (size_t i = first; i < size; i++) {
    require(taken[i] == 1, "bytes that are in no tensor");
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct weft_gpt_tensor tensors[COUNT];
  struct weft_error error = {.status = WEFT_OK};
  if (size > SIZE_MAX_FUZZED) {
    return 0;
  }
  memcpy(tensors, expected, sizeof tensors);
  const enum weft_status status =
      weft_gpt_safetensors_find("fuzz", data, size, tensors, COUNT, &error);
  if (status == WEFT_OK) {
    check_found(tensors, size);
  } else {
    require(status == WEFT_ERR_FORMAT && error.status == status, "a status that it cannot have");
    require(error.message[0] != '\0' && error.hint[0] != '\0', "a failing call does not say why");
    require(is_printable(error.message), "a message with bytes of the file");
    for (uint32_t k = 0; k < COUNT; k++) {
      require(tensors[k].begin == 0, "a failing call wrote its output");
    }
  }
  return 0;
}
