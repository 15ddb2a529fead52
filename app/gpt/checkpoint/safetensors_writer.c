/* The header of a safetensors file. */
#include <inttypes.h>
#include <string.h>

#include "gpt/checkpoint/safetensors.h"

static void add_tensor(struct weft_text *text, const struct weft_gpt_tensor *tensor,
                       uint64_t offset) {
  weft_text_addf(text, ",\"%s\":{\"dtype\":\"F32\",\"shape\":[", tensor->name);
  for (uint32_t k = 0; k < tensor->dim_count; k++) {
    weft_text_addf(text, "%s%" PRIu64, k > 0 ? "," : "", tensor->dims[k]);
  }
  weft_text_addf(text, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset,
                 offset + tensor->bytes);
}

static void add_metadata(struct weft_text *text, const char *const *metadata) {
  weft_text_add(text, "\"__metadata__\":{");
  for (uint32_t k = 0; metadata[k] != NULL; k += 2) {
    weft_text_addf(text, "%s\"%s\":\"%s\"", k > 0 ? "," : "", metadata[k], metadata[k + 1]);
  }
  weft_text_add(text, "}");
}

void weft_gpt_safetensors_header(struct weft_text *text, struct weft_gpt_tensor *tensors,
                                 uint32_t tensor_count, const char *const *metadata) {
  const size_t first = text->size;
  uint64_t offset = 0;
  weft_text_append(text, "\0\0\0\0\0\0\0\0{", 9);
  add_metadata(text, metadata);
  for (uint32_t k = 0; k < tensor_count; k++) {
    add_tensor(text, &tensors[k], offset);
    offset += tensors[k].bytes;
  }
  weft_text_add(text, "}");
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
