/* Fuzzes the reader of safetensors headers. Beyond not crashing, what must hold:
 *   - a failing call explains itself in printable text, and changes nothing;
 *   - where tensors were found, they lie in the file, and cover its data exactly. */
#include <string.h>

#include "support_fuzz.h"
#include "trainer/checkpoint/safetensors.h"

/* Larger inputs only make it slower, not wiser. */
#define SIZE_MAX_FUZZED 4096u
#define COUNT 3

static const struct weft_gpt_tensor expected[COUNT] = {
    {.name = "a", .dim_count = 1, .dims = {2}, .bytes = 8},
    {.name = "b", .dim_count = 2, .dims = {2, 1}, .bytes = 8},
    {.name = "a.exp_avg", .dim_count = 1, .dims = {1}, .bytes = 4},
};

static void check_found(const struct weft_gpt_tensor *tensors, size_t size) {
  uint8_t taken[SIZE_MAX_FUZZED] = {0};
  size_t first = size;
  for (uint32_t k = 0; k < COUNT; k++) {
    fuzz_require(tensors[k].begin >= 8 && tensors[k].begin <= size, "a tensor outside of the file");
    fuzz_require(tensors[k].bytes <= size - tensors[k].begin, "a tensor that ends outside");
    first = tensors[k].begin < first ? (size_t)tensors[k].begin : first;
    for (uint64_t i = 0; i < tensors[k].bytes; i++) {
      fuzz_require(taken[tensors[k].begin + i]++ == 0, "tensors that overlap");
    }
  }
  for (size_t i = first; i < size; i++) {
    fuzz_require(taken[i] == 1, "bytes that are in no tensor");
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
    fuzz_require(status == WEFT_ERR_FORMAT && error.status == status,
                 "a status that it cannot have");
    fuzz_require(error.message[0] != '\0' && error.hint[0] != '\0',
                 "a failing call does not say why");
    fuzz_require(fuzz_is_printable(error.message, false), "a message with bytes of the file");
    for (uint32_t k = 0; k < COUNT; k++) {
      fuzz_require(tensors[k].begin == 0, "a failing call wrote its output");
    }
  }
  return 0;
}
