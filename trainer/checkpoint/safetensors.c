/* Reads the header of a safetensors file, which comes from outside and is not trusted, and writes
 * one. The tensors are known exactly; only their order is the file's. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

#include "trainer/checkpoint/checkpoint_json.h"
#include "trainer/checkpoint/safetensors.h"

/* A tensor has 5; the rest is for metadata. */
#define COMMAS_MAX 4096u
#define METADATA "__metadata__"

struct reader {
  struct weft_gpt_json json;
  const char *header; /* not terminated */
  uint64_t header_bytes;
  uint64_t data_bytes; /* after the header */
  const struct weft_gpt_tensor *tensors;
  uint32_t tensor_count;
  uint64_t offsets[WEFT_GPT_TENSORS_MAX]; /* from the beginning of the data */
};

#define fault(reader, ...) weft_gpt_json_fault(&(reader)->json, __VA_ARGS__)

/* ---- A tensor ---- */

/* "NAME: data_offsets is ..." */
static enum weft_status unexpected(const struct reader *reader,
                                   const struct weft_gpt_tensor *tensor, const char *what,
                                   const json_t *value, const char *expected) {
  char field[sizeof tensor->name + 48];
  (void)snprintf(field, sizeof field, "%s: %s", tensor->name, what);
  return weft_gpt_json_unexpected(&reader->json, field, value, expected);
}

static enum weft_status check_shape(const struct reader *reader,
                                    const struct weft_gpt_tensor *tensor, const json_t *value) {
  if (!json_is_array(value) || json_array_size(value) != tensor->dim_count) {
    return fault(reader, "%s: shape is not a list of %" PRIu32 " sizes", tensor->name,
                 tensor->dim_count);
  }
  for (uint32_t k = 0; k < tensor->dim_count; k++) {
    const json_t *found = json_array_get(value, k);
    uint64_t size;
    if (!weft_gpt_json_integer(found, INT64_MAX, &size) || size != tensor->dims[k]) {
      char what[40], expected[24];
      (void)snprintf(what, sizeof what, "size %" PRIu32 " of the shape", k);
      (void)snprintf(expected, sizeof expected, "%" PRIu64, tensor->dims[k]);
      return unexpected(reader, tensor, what, found, expected);
    }
  }
  return WEFT_OK;
}

static enum weft_status read_offsets(struct reader *reader, uint32_t index, const json_t *value) {
  const struct weft_gpt_tensor *tensor = &reader->tensors[index];
  uint64_t ends[2] = {0, 0};
  if (!json_is_array(value) || json_array_size(value) != 2) {
    return fault(reader, "%s: data_offsets is not a list of 2 numbers", tensor->name);
  }
  for (uint32_t k = 0; k < 2; k++) {
    if (!weft_gpt_json_integer(json_array_get(value, k), INT64_MAX, &ends[k])) {
      return unexpected(reader, tensor, "one of data_offsets", json_array_get(value, k),
                        "an integer from 0 on");
    }
  }
  if (ends[0] > ends[1] || ends[1] > reader->data_bytes || ends[1] - ends[0] != tensor->bytes) {
    return fault(reader,
                 "%s: data_offsets are %" PRIu64 " and %" PRIu64 "; expected %" PRIu64
                 " of the %" PRIu64 " bytes of data",
                 tensor->name, ends[0], ends[1], tensor->bytes, reader->data_bytes);
  }
  reader->offsets[index] = ends[0];
  return WEFT_OK;
}

static enum weft_status read_tensor(struct reader *reader, uint32_t index, json_t *value) {
  static const char *const members[] = {"dtype", "shape", "data_offsets"};
  const struct weft_gpt_tensor *tensor = &reader->tensors[index];
  WEFT_TRY(weft_gpt_json_check_members(&reader->json, tensor->name, value, members, 3));
  const json_t *dtype = json_object_get(value, members[0]);
  if (!json_is_string(dtype) || strcmp(json_string_value(dtype), "F32") != 0) {
    return unexpected(reader, tensor, "dtype", dtype, "F32");
  }
  WEFT_TRY(check_shape(reader, tensor, json_object_get(value, members[1])));
  return read_offsets(reader, index, json_object_get(value, members[2]));
}

/* ---- All of them ---- */

static bool is_expected(const struct reader *reader, const char *name) {
  for (uint32_t k = 0; k < reader->tensor_count; k++) {
    if (strcmp(reader->tensors[k].name, name) == 0) {
      return true;
    }
  }
  return false;
}

static enum weft_status check_metadata(const struct reader *reader, json_t *value) {
  const char *key;
  json_t *member;
  if (!json_is_object(value)) {
    return weft_gpt_json_unexpected(&reader->json, METADATA, value, "an object");
  }
  json_object_foreach(value, key, member) {
    if (!json_is_string(member)) {
      char escaped[48], field[80];
      (void)snprintf(field, sizeof field, METADATA ": %s",
                     weft_escape(escaped, sizeof escaped, key, strlen(key)));
      return weft_gpt_json_unexpected(&reader->json, field, member, "text");
    }
  }
  return WEFT_OK;
}

static enum weft_status check_names(const struct reader *reader, json_t *document) {
  const char *key;
  json_t *value;
  json_object_foreach(document, key, value) {
    if (strcmp(key, METADATA) == 0) {
      WEFT_TRY(check_metadata(reader, value));
    } else if (!is_expected(reader, key)) {
      char escaped[80];
      return fault(reader, "there is a tensor '%s', which this part does not have",
                   weft_escape(escaped, sizeof escaped, key, strlen(key)));
    }
  }
  return WEFT_OK;
}

struct place {
  uint64_t offset;
  const struct weft_gpt_tensor *tensor;
};

static int by_offset(const void *left, const void *right) {
  const uint64_t a = ((const struct place *)left)->offset;
  const uint64_t b = ((const struct place *)right)->offset;
  return (a > b) - (a < b);
}

/* One after the other, from the first byte to the last. */
static enum weft_status check_tiling(const struct reader *reader) {
  struct place places[WEFT_GPT_TENSORS_MAX];
  for (uint32_t k = 0; k < reader->tensor_count; k++) {
    places[k] = (struct place){.offset = reader->offsets[k], .tensor = &reader->tensors[k]};
  }
  qsort(places, reader->tensor_count, sizeof *places, by_offset);
  uint64_t end = 0;
  for (uint32_t k = 0; k < reader->tensor_count; k++) {
    if (places[k].offset != end) {
      return fault(reader,
                   "%s begins at byte %" PRIu64 " of the data; expected %" PRIu64
                   ", where the tensor before it ends",
                   places[k].tensor->name, places[k].offset, end);
    }
    end += places[k].tensor->bytes;
  }
  if (end != reader->data_bytes) {
    return fault(reader, "%" PRIu64 " bytes of data; expected %" PRIu64, reader->data_bytes, end);
  }
  return WEFT_OK;
}

static enum weft_status read_document(struct reader *reader, json_t *document) {
  if (!json_is_object(document)) {
    return fault(reader, "the header is not an object");
  }
  WEFT_TRY(check_names(reader, document));
  for (uint32_t k = 0; k < reader->tensor_count; k++) {
    json_t *value = json_object_get(document, reader->tensors[k].name);
    if (value == NULL) {
      return fault(reader, "there is no tensor %s", reader->tensors[k].name);
    }
    WEFT_TRY(read_tensor(reader, k, value));
  }
  return check_tiling(reader);
}

/* ---- The bytes ---- */

static enum weft_status check_length(struct reader *reader, const unsigned char *bytes,
                                     uint64_t size) {
  uint64_t length;
  if (size < sizeof length) {
    return fault(reader, "%" PRIu64 " bytes; expected 8 with the header's length first", size);
  }
  memcpy(&length, bytes, sizeof length);
  if (length > size - sizeof length || length > WEFT_GPT_HEADER_BYTES_MAX) {
    return fault(reader, "a header of %" PRIu64 " bytes in a file of %" PRIu64 "; the limit is %u",
                 length, size, WEFT_GPT_HEADER_BYTES_MAX);
  }
  reader->header = (const char *)bytes + sizeof length;
  reader->header_bytes = length;
  reader->data_bytes = size - sizeof length - length;
  return WEFT_OK;
}

static enum weft_status read_text(struct reader *reader) {
  json_t *document;
  if (reader->header_bytes == 0 || reader->header[0] != '{') {
    return fault(reader, "the header does not begin with {");
  }
  WEFT_TRY(weft_gpt_json_load(&reader->json, reader->header, (size_t)reader->header_bytes,
                              COMMAS_MAX, &document));
  const enum weft_status status = read_document(reader, document);
  json_decref(document);
  return status;
}

enum weft_status weft_gpt_safetensors_find(const char *name, const unsigned char *bytes,
                                           uint64_t size, struct weft_gpt_tensor *tensors,
                                           uint32_t tensor_count, struct weft_error *error) {
  assert(tensor_count <= WEFT_GPT_TENSORS_MAX);
  struct reader reader = {
      .json = {.name = name,
               .format = "a tensor",
               .hint = "the file is damaged, or of another model: use another checkpoint",
               .error = error},
      .tensors = tensors,
      .tensor_count = tensor_count};
  WEFT_TRY(check_length(&reader, bytes, size));
  WEFT_TRY(read_text(&reader));
  for (uint32_t k = 0; k < tensor_count; k++) {
    tensors[k].begin = 8 + reader.header_bytes + reader.offsets[k];
  }
  return WEFT_OK;
}

/* ---- Writing ---- */

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
  struct weft_json json = weft_json_begin(text, NULL);
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
