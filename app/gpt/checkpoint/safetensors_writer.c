/* The header of a safetensors file. */
#include <assert.h>
#include <string.h>

#include <weft/support.h>

#include "gpt/checkpoint/safetensors.h"

static void add_tensor(struct weft_json *json, const struct weft_gpt_tensor *tensor,
                       uint64_t offset) {
  weft_json_open(json, tensor->name, '{');
  weft_json_string(json, "dtype", "F32");
  weft_json_open(json, "shape", '[');
  for (uint32_t k = 0; k < tensor->dim_count; k++) {
    weft_json_number(json, NULL, tensor->dims[k]);
  }
  weft_json_close(json, ']');
  weft_json_open(json, "data_offsets", '[');
  weft_json_number(json, NULL, offset);
  weft_json_number(json, NULL, offset + tensor->bytes);
  weft_json_close(json, ']');
  weft_json_close(json, '}');
}

void weft_gpt_safetensors_header(struct weft_text *text, struct weft_gpt_tensor *tensors,
                                 uint32_t tensor_count, const char *const *metadata) {
  assert(tensor_count <= WEFT_GPT_TENSORS_MAX);
  const size_t first = text->size;
  uint64_t offset = 0;
  weft_text_append(text, "\0\0\0\0\0\0\0\0", 8);
  struct weft_json json = {.text = text};
  weft_json_open(&json, NULL, '{');
  weft_json_open(&json, "__metadata__", '{');
  for (uint32_t k = 0; metadata[k] != NULL; k += 2) {
    weft_json_string(&json, metadata[k], metadata[k + 1]);
  }
  weft_json_close(&json, '}');
  for (uint32_t k = 0; k < tensor_count; k++) {
    add_tensor(&json, &tensors[k], offset);
    offset += tensors[k].bytes;
  }
  weft_json_close(&json, '}');
  while (!text->failed && (text->size - first) % 8 != 0) {
    weft_text_add(text, " ");
  }
  if (text->failed) {
    return;
  }
  const uint64_t length = text->size - first - 8;
  memcpy(text->data + first, &length, sizeof length);
  uint64_t begin = 8 + length;
  for (uint32_t k = 0; k < tensor_count; k++) {
    tensors[k].begin = begin;
    begin += tensors[k].bytes;
  }
}
