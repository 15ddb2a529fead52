/* Reads the manifest, strictly: every field exactly once, and no other. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "gpt/checkpoint/checkpoint_json.h"
#include "gpt/checkpoint/manifest.h"
#include "gpt/model/aligned_memory.h"

/* A layer has 3. */
#define COMMAS_MAX (4u * WEFT_GPT_BLOCKS_MAX)

/* What the text ends with: the checksum of all before it. */
#define TRAILER_FRONT "  \"checksum\": \""
#define TRAILER_BACK "\"\n}\n"
enum {
  HEX_DIGITS = 16,
  FRONT_BYTES = sizeof TRAILER_FRONT - 1,
  BACK_BYTES = sizeof TRAILER_BACK - 1,
  TRAILER_BYTES = FRONT_BYTES + HEX_DIGITS + BACK_BYTES
};

struct reader {
  struct weft_gpt_json json;
  const struct weft_allocator *allocator;
  const char *text;
  uint64_t size;
  struct weft_gpt_training training;
  struct weft_gpt_manifest_layer *layers;
};

#define fault(reader, ...) weft_gpt_json_fault(&(reader)->json, __VA_ARGS__)

/* "model.layers is 0; expected ..." */
static enum weft_status unexpected(const struct reader *reader, const char *section,
                                   const char *field, const json_t *value, const char *expected) {
  char name[64];
  (void)snprintf(name, sizeof name, "%s%s%s", section, section[0] != '\0' ? "." : "", field);
  return weft_gpt_json_unexpected(&reader->json, name, value, expected);
}

/* ---- Values ---- */

static bool read_hex(const char *text, size_t length, uint64_t *number) {
  uint64_t value = 0;
  if (length != HEX_DIGITS) {
    return false;
  }
  for (size_t i = 0; i < length; i++) {
    const char *digits = "0123456789abcdef";
    const char *digit = text[i] != '\0' ? strchr(digits, text[i]) : NULL;
    if (digit == NULL) {
      return false;
    }
    value = value << 4 | (uint64_t)(digit - digits);
  }
  *number = value;
  return true;
}

/* Puts a value where its field is in the struct; false: it is not of that kind. */
static bool read_value(const json_t *value, enum weft_gpt_field_kind kind, void *to) {
  uint64_t number = 0;
  switch (kind) {
    case WEFT_GPT_FIELD_NUMBER32:
      if (!weft_gpt_json_integer(value, UINT32_MAX, &number)) {
        return false;
      }
      memcpy(to, &(uint32_t){(uint32_t)number}, sizeof(uint32_t));
      return true;
    case WEFT_GPT_FIELD_NUMBER64:
      if (!weft_gpt_json_integer(value, INT64_MAX, &number)) {
        return false;
      }
      break;
    case WEFT_GPT_FIELD_HEX:
      if (!json_is_string(value) ||
          !read_hex(json_string_value(value), json_string_length(value), &number)) {
        return false;
      }
      break;
    case WEFT_GPT_FIELD_FLAG:
      memcpy(to, &(bool){json_is_true(value)}, sizeof(bool));
      return json_is_boolean(value);
    case WEFT_GPT_FIELD_REAL:
      memcpy(to, &(double){json_number_value(value)}, sizeof(double));
      return json_is_number(value);
  }
  memcpy(to, &number, sizeof number);
  return true;
}

static const char *expected_of(enum weft_gpt_field_kind kind) {
  switch (kind) {
    case WEFT_GPT_FIELD_NUMBER32: return "an integer from 0 to 4294967295";
    case WEFT_GPT_FIELD_NUMBER64: return "an integer from 0 to 9223372036854775807";
    case WEFT_GPT_FIELD_HEX: return "16 hexadecimal digits in quotes";
    case WEFT_GPT_FIELD_FLAG: return "true or false";
    case WEFT_GPT_FIELD_REAL: return "a number";
  }
  return "something else";
}

/* ---- Objects ---- */

static enum weft_status read_fields(struct reader *reader, const struct weft_gpt_section *section,
                                    json_t *object) {
  for (uint32_t k = 0; k < section->field_count; k++) {
    const struct weft_gpt_field *field = &section->fields[k];
    const json_t *value = json_object_get(object, field->name);
    if (!read_value(value, field->kind, (char *)&reader->training + field->offset)) {
      return unexpected(reader, section->name, field->name, value, expected_of(field->kind));
    }
  }
  return WEFT_OK;
}

static enum weft_status read_section(struct reader *reader, const struct weft_gpt_section *section,
                                     json_t *object) {
  const char *names[16];
  for (uint32_t k = 0; k < section->field_count; k++) {
    names[k] = section->fields[k].name;
  }
  WEFT_TRY(weft_gpt_json_check_members(&reader->json, section->name, object, names,
                                       section->field_count));
  return read_fields(reader, section, object);
}

/* ---- Layers ---- */

/* A path into another folder is no name of a layer's file. */
static bool is_file_of(const json_t *value, uint32_t layer, uint64_t checksum) {
  const char *file = json_string_value(value);
  return file != NULL && (strcmp(file, weft_gpt_layer_name(layer).text) == 0 ||
                          strcmp(file, weft_gpt_layer_name_again(layer, checksum).text) == 0);
}

static enum weft_status read_layer(struct reader *reader, uint32_t index, json_t *object) {
  static const char *const names[] = {"file", "size", "checksum"};
  struct weft_gpt_manifest_layer *layer = &reader->layers[index];
  char section[32];
  (void)snprintf(section, sizeof section, "parts[%" PRIu32 "]", index);
  WEFT_TRY(weft_gpt_json_check_members(&reader->json, section, object, names, 3));
  const json_t *file = json_object_get(object, names[0]);
  const json_t *size = json_object_get(object, names[1]);
  const json_t *checksum = json_object_get(object, names[2]);
  if (!read_value(size, WEFT_GPT_FIELD_NUMBER64, &layer->size)) {
    return unexpected(reader, section, names[1], size, expected_of(WEFT_GPT_FIELD_NUMBER64));
  }
  if (!read_value(checksum, WEFT_GPT_FIELD_HEX, &layer->checksum)) {
    return unexpected(reader, section, names[2], checksum, expected_of(WEFT_GPT_FIELD_HEX));
  }
  if (!is_file_of(file, index, layer->checksum)) {
    return unexpected(reader, section, names[0], file, weft_gpt_layer_name(index).text);
  }
  (void)snprintf(layer->file.text, sizeof layer->file.text, "%s", json_string_value(file));
  return WEFT_OK;
}

static enum weft_status read_layers(struct reader *reader, json_t *list) {
  const uint32_t count = weft_gpt_layer_count(&reader->training.config);
  if (!json_is_array(list)) {
    return unexpected(reader, "", "parts", list, "a list");
  }
  if (json_array_size(list) != count) {
    return fault(reader, "parts has %zu entries; expected %" PRIu32 ", for %" PRIu32 " layers",
                 json_array_size(list), count, reader->training.config.blocks);
  }
  reader->layers = weft_gpt_allocate(reader->allocator, count, sizeof *reader->layers);
  if (reader->layers == NULL) {
    return weft_fail_memory(reader->json.error, count * sizeof *reader->layers);
  }
  for (uint32_t k = 0; k < count; k++) {
    WEFT_TRY(read_layer(reader, k, json_array_get(list, k)));
  }
  return WEFT_OK;
}

/* ---- The text ---- */

static enum weft_status check_schema(const struct reader *reader, const json_t *document) {
  const json_t *schema = json_object_get(document, "schema");
  if (!json_is_object(document)) {
    return fault(reader, "not an object");
  }
  if (schema == NULL) {
    return fault(reader, "schema is missing");
  }
  if (!json_is_string(schema) || strcmp(json_string_value(schema), WEFT_GPT_MANIFEST_SCHEMA) != 0) {
    return unexpected(reader, "", "schema", schema, WEFT_GPT_MANIFEST_SCHEMA);
  }
  return WEFT_OK;
}

static enum weft_status check_checksum(const struct reader *reader) {
  uint64_t found;
  const bool fits = reader->size >= TRAILER_BYTES;
  const char *trailer = fits ? reader->text + reader->size - TRAILER_BYTES : reader->text;
  if (!fits || memcmp(trailer, TRAILER_FRONT, FRONT_BYTES) != 0 ||
      !read_hex(trailer + FRONT_BYTES, HEX_DIGITS, &found) ||
      memcmp(trailer + FRONT_BYTES + HEX_DIGITS, TRAILER_BACK, BACK_BYTES) != 0) {
    return fault(reader, "does not end with a line that has its checksum");
  }
  const uint64_t expected =
      weft_gpt_checksum_of(reader->text, (size_t)(reader->size - TRAILER_BYTES));
  if (found != expected) {
    return fault(reader,
                 "checksum is %016" PRIx64 ", but that of the text is %016" PRIx64
                 ": it was changed after it was written",
                 found, expected);
  }
  return WEFT_OK;
}

static enum weft_status check_config(const struct reader *reader) {
  struct weft_error wrong;
  if (weft_gpt_config_check(&reader->training.config, &wrong) < 0) {
    return fault(reader, "model: %s", wrong.message);
  }
  return WEFT_OK;
}

static enum weft_status read_document(struct reader *reader, json_t *document) {
  const struct weft_gpt_section *sections = weft_gpt_manifest_sections();
  const char *names[16] = {"schema", "parts", "checksum"};
  uint32_t count = 3;
  WEFT_TRY(check_schema(reader, document));
  WEFT_TRY(check_checksum(reader));
  for (uint32_t k = 0; k < sections[0].field_count; k++) {
    names[count++] = sections[0].fields[k].name;
  }
  for (uint32_t k = 1; k < WEFT_GPT_SECTIONS; k++) {
    names[count++] = sections[k].name;
  }
  WEFT_TRY(weft_gpt_json_check_members(&reader->json, "", document, names, count));
  WEFT_TRY(read_fields(reader, &sections[0], document));
  for (uint32_t k = 1; k < WEFT_GPT_SECTIONS; k++) {
    WEFT_TRY(read_section(reader, &sections[k], json_object_get(document, sections[k].name)));
  }
  WEFT_TRY(check_config(reader));
  return read_layers(reader, json_object_get(document, "parts"));
}

static enum weft_status read_text(struct reader *reader) {
  json_t *document;
  if (reader->size > WEFT_GPT_MANIFEST_BYTES_MAX) {
    return fault(reader, "%" PRIu64 " bytes; the limit is %" PRIu64, reader->size,
                 WEFT_GPT_MANIFEST_BYTES_MAX);
  }
  WEFT_TRY(
      weft_gpt_json_load(&reader->json, reader->text, (size_t)reader->size, COMMAS_MAX, &document));
  const enum weft_status status = read_document(reader, document);
  json_decref(document);
  return status;
}

enum weft_status weft_gpt_manifest_read(const struct weft_allocator *allocator, const char *name,
                                        const char *text, uint64_t size,
                                        struct weft_gpt_training *training,
                                        struct weft_gpt_manifest_layer **layers,
                                        struct weft_error *error) {
  assert(name != NULL && training != NULL && layers != NULL);
  struct reader reader = {.json = {.name = name,
                                   .format = WEFT_GPT_MANIFEST_SCHEMA,
                                   .hint = "name the folder of another step, or move this one away",
                                   .error = error},
                          .allocator = allocator,
                          .text = text,
                          .size = size};
  const enum weft_status status = read_text(&reader);
  if (status < 0) {
    weft_gpt_free(allocator, reader.layers);
    return status;
  }
  *training = reader.training;
  *layers = reader.layers;
  return WEFT_OK;
}
