/* Reads the header of a safetensors file, which comes from outside and is not trusted. The tensors
 * are known exactly; only their order is the file's. jansson allocates by malloc(), after the
 * header's size and the number of its values have been checked. */
#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

#include "gpt/checkpoint/safetensors.h"

/* A tensor has 5; the rest is for metadata. */
#define COMMAS_MAX 4096u
#define METADATA "__metadata__"

struct reader {
  const char *name;   /* of the file */
  const char *header; /* not terminated */
  uint64_t header_bytes;
  uint64_t data_bytes; /* after the header */
  const struct weft_gpt_tensor *tensors;
  uint32_t tensor_count;
  uint64_t offsets[WEFT_GPT_TENSORS_MAX]; /* from the beginning of the data */
  struct weft_error *error;
};

static enum weft_status fault(const struct reader *reader, const char *format, ...)
    WEFT_PRINTF(2, 3);

static enum weft_status fault(const struct reader *reader, const char *format, ...) {
  char what[256];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  return weft_fail(reader->error, WEFT_ERR_FORMAT,
                   "the file is damaged, or of another model: use another checkpoint", "'%s': %s",
                   reader->name, what);
}

/* ---- Values ---- */

/* A value in a few words. */
static const char *found(const json_t *value, char *buffer, size_t size) {
  switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING:
      return weft_escape(buffer, size, json_string_value(value), json_string_length(value));
    case JSON_INTEGER:
      (void)snprintf(buffer, size, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
      return buffer;
    case JSON_REAL: (void)snprintf(buffer, size, "%g", json_real_value(value)); return buffer;
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    default: return "null";
  }
}

static enum weft_status read_integer(const struct reader *reader,
                                     const struct weft_gpt_tensor *tensor, const char *what,
                                     const json_t *value, uint64_t *number) {
  char buffer[48];
  if (!json_is_integer(value) || json_integer_value(value) < 0) {
    return fault(reader, "%s: %s has %s; expected an integer from 0 on", tensor->name, what,
                 found(value, buffer, sizeof buffer));
  }
  *number = (uint64_t)json_integer_value(value);
  return WEFT_OK;
}

/* ---- A tensor ---- */

static enum weft_status check_dtype(const struct reader *reader,
                                    const struct weft_gpt_tensor *tensor, const json_t *value) {
  char buffer[48];
  if (!json_is_string(value) || strcmp(json_string_value(value), "F32") != 0) {
    return fault(reader, "%s: dtype is %s; expected F32", tensor->name,
                 found(value, buffer, sizeof buffer));
  }
  return WEFT_OK;
}

static enum weft_status check_shape(const struct reader *reader,
                                    const struct weft_gpt_tensor *tensor, const json_t *value) {
  if (!json_is_array(value) || json_array_size(value) != tensor->dim_count) {
    return fault(reader, "%s: shape is not a list of %" PRIu32 " sizes", tensor->name,
                 tensor->dim_count);
  }
  for (uint32_t k = 0; k < tensor->dim_count; k++) {
    uint64_t size = 0;
    WEFT_TRY(read_integer(reader, tensor, "shape", json_array_get(value, k), &size));
    if (size != tensor->dims[k]) {
      return fault(reader, "%s: size %" PRIu32 " of the shape is %" PRIu64 "; expected %" PRIu64,
                   tensor->name, k, size, tensor->dims[k]);
    }
  }
  return WEFT_OK;
}

static enum weft_status read_offsets(struct reader *reader, uint32_t index, const json_t *value) {
  const struct weft_gpt_tensor *tensor = &reader->tensors[index];
  uint64_t begin = 0, end = 0;
  if (!json_is_array(value) || json_array_size(value) != 2) {
    return fault(reader, "%s: data_offsets is not a list of 2 numbers", tensor->name);
  }
  WEFT_TRY(read_integer(reader, tensor, "data_offsets", json_array_get(value, 0), &begin));
  WEFT_TRY(read_integer(reader, tensor, "data_offsets", json_array_get(value, 1), &end));
  if (begin > end || end > reader->data_bytes) {
    return fault(reader,
                 "%s: data_offsets are %" PRIu64 " and %" PRIu64 "; the file has %" PRIu64
                 " bytes of data",
                 tensor->name, begin, end, reader->data_bytes);
  }
  if (end - begin != tensor->bytes) {
    return fault(reader,
                 "%s: data_offsets are %" PRIu64 " and %" PRIu64 ", %" PRIu64
                 " bytes; expected %" PRIu64,
                 tensor->name, begin, end, end - begin, tensor->bytes);
  }
  reader->offsets[index] = begin;
  return WEFT_OK;
}

static enum weft_status read_tensor(struct reader *reader, uint32_t index, json_t *value) {
  const struct weft_gpt_tensor *tensor = &reader->tensors[index];
  static const char *const members[] = {"dtype", "shape", "data_offsets"};
  char buffer[48];
  if (!json_is_object(value)) {
    return fault(reader, "%s is %s; expected an object", tensor->name,
                 found(value, buffer, sizeof buffer));
  }
  for (uint32_t k = 0; k < 3; k++) {
    if (json_object_get(value, members[k]) == NULL) {
      return fault(reader, "%s has no %s", tensor->name, members[k]);
    }
  }
  if (json_object_size(value) != 3) {
    return fault(reader, "%s has %zu members; expected dtype, shape and data_offsets", tensor->name,
                 json_object_size(value));
  }
  WEFT_TRY(check_dtype(reader, tensor, json_object_get(value, members[0])));
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
  char buffer[48];
  if (!json_is_object(value)) {
    return fault(reader, METADATA " is %s; expected an object",
                 found(value, buffer, sizeof buffer));
  }
  json_object_foreach(value, key, member) {
    if (!json_is_string(member)) {
      char escaped[48];
      return fault(reader, METADATA ": %s is %s; expected text",
                   weft_escape(escaped, sizeof escaped, key, strlen(key)),
                   found(member, buffer, sizeof buffer));
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

static enum weft_status check_text(const struct reader *reader) {
  uint32_t commas = 0;
  if (reader->header_bytes == 0 || reader->header[0] != '{') {
    return fault(reader, "the header does not begin with {");
  }
  for (uint64_t i = 0; i < reader->header_bytes; i++) {
    commas += reader->header[i] == ',';
  }
  if (commas > COMMAS_MAX) {
    return fault(reader, "a header with %" PRIu32 " commas; the limit is %u", commas, COMMAS_MAX);
  }
  return WEFT_OK;
}

static enum weft_status read_text(struct reader *reader) {
  json_error_t wrong;
  json_t *document =
      json_loadb(reader->header, (size_t)reader->header_bytes, JSON_REJECT_DUPLICATES, &wrong);
  if (document == NULL) {
    char words[160];
    if (json_error_code(&wrong) == json_error_out_of_memory) {
      return weft_fail_memory(reader->error, reader->header_bytes);
    }
    return fault(reader, "the header is not JSON, at its byte %d: %s", wrong.position,
                 weft_escape(words, sizeof words, wrong.text, strlen(wrong.text)));
  }
  const enum weft_status status = read_document(reader, document);
  json_decref(document);
  return status;
}

enum weft_status weft_gpt_safetensors_find(const char *name, const unsigned char *bytes,
                                           uint64_t size, struct weft_gpt_tensor *tensors,
                                           uint32_t tensor_count, struct weft_error *error) {
  assert(tensor_count <= WEFT_GPT_TENSORS_MAX);
  struct reader reader = {
      .name = name, .tensors = tensors, .tensor_count = tensor_count, .error = error};
  assert(tensor_count <= WEFT_GPT_TENSORS_MAX);
  WEFT_TRY(check_length(&reader, bytes, size));
  WEFT_TRY(check_text(&reader));
  WEFT_TRY(read_text(&reader));
  for (uint32_t k = 0; k < tensor_count; k++) {
    tensors[k].begin = 8 + reader.header_bytes + reader.offsets[k];
  }
  return WEFT_OK;
}
