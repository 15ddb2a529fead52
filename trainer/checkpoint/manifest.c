/* The manifest's fields, once; the writer, which indents, as weft_json does not; and the reader, which
 * is strict: every field exactly once, and no other; but fields of models that are no chain are only
 * there in checkpoints of such models. */
#include "trainer/checkpoint/manifest.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

#include "trainer/checkpoint/checkpoint_json.h"
#include "trainer/model/aligned_memory.h"

/* ---- Fields ---- */

enum kind {
  NUMBER32,
  NUMBER64, /* up to 2^63 - 1 */
  HEX,      /* 64 bits, as "0123456789abcdef" */
  REAL,
  FLAG
};

struct field {
  const char *name;
  enum kind kind;
  size_t offset; /* in struct weft_gpt_training */
  bool optional; /* not written when it is false, 0 or 1 */
};

/* An object of fields. */
struct section {
  const char *name; /* "": the manifest itself */
  const struct field *fields;
  uint32_t field_count;
};

#define AT(member) offsetof(struct weft_gpt_training, member)
#define COUNT_OF(array) ((uint32_t)(sizeof(array) / sizeof *(array)))

static const struct field progress_fields[] = {
    {"step", NUMBER64, AT(step), false},
    {"batch", NUMBER64, AT(batch), false},
    {"microbatches", NUMBER32, AT(microbatches), false},
};

static const struct field model_fields[] = {
    {"layers", NUMBER32, AT(config.blocks), false},
    {"dim", NUMBER32, AT(config.dim), false},
    {"heads", NUMBER32, AT(config.heads), false},
    {"context", NUMBER32, AT(config.context), false},
    {"vocabulary", NUMBER32, AT(config.vocabulary), false},
    {"tied", FLAG, AT(config.tied), false},
    {"seed", HEX, AT(config.seed), false},
    {"skips", FLAG, AT(config.skips), true},
    {"predict_tokens", NUMBER32, AT(config.predict), true},
};

static const struct field data_fields[] = {
    {"hash", HEX, AT(data_hash), false},
    {"seed", HEX, AT(data_seed), false},
};

static const struct field optimizer_fields[] = {
    {"rate", REAL, AT(rate), false},
    {"rate_min", REAL, AT(rate_min), false},
    {"beta1", REAL, AT(beta1), false},
    {"beta2", REAL, AT(beta2), false},
    {"epsilon", REAL, AT(epsilon), false},
    {"decay", REAL, AT(decay), false},
    {"clip", REAL, AT(clip), false},
    {"warmup_steps", NUMBER64, AT(warmup_steps), false},
    {"total_steps", NUMBER64, AT(total_steps), false},
};

enum { SECTIONS = 4 };
static const struct section sections[SECTIONS] = {
    {"", progress_fields, COUNT_OF(progress_fields)},
    {"model", model_fields, COUNT_OF(model_fields)},
    {"data", data_fields, COUNT_OF(data_fields)},
    {"optimizer", optimizer_fields, COUNT_OF(optimizer_fields)},
};

/* ---- Writing ---- */

/* The shortest that reads back as the same number; with a point, whatever the locale. */
static void add_real(struct weft_text *text, double value) {
  char digits[40];
  for (int precision = 15; precision <= 17; precision++) {
    (void)snprintf(digits, sizeof digits, "%.*g", precision, value);
    if (strtod(digits, NULL) == value) {
      break;
    }
  }
  for (char *digit = digits; *digit != '\0'; digit++) {
    if (strchr("0123456789+-e", *digit) == NULL) {
      *digit = '.';
    }
  }
  weft_text_add(text, digits);
}

static enum weft_status add_number(struct weft_text *text, const char *name, uint64_t value,
                                   struct weft_error *error) {
  if (value > INT64_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "use a smaller number",
                     "%s is %" PRIu64 "; a checkpoint holds at most %" PRId64, name, value,
                     INT64_MAX);
  }
  weft_text_add_number(text, value);
  return WEFT_OK;
}

static enum weft_status add_value(struct weft_text *text, const struct field *field,
                                  const void *value, struct weft_error *error) {
  uint64_t number;
  uint32_t small;
  double real;
  switch (field->kind) {
    case NUMBER32:
      memcpy(&small, value, sizeof small);
      return add_number(text, field->name, small, error);
    case NUMBER64:
      memcpy(&number, value, sizeof number);
      return add_number(text, field->name, number, error);
    case HEX:
      memcpy(&number, value, sizeof number);
      weft_text_addf(text, "\"%016" PRIx64 "\"", number);
      return WEFT_OK;
    case FLAG: weft_text_add(text, *(const bool *)value ? "true" : "false"); return WEFT_OK;
    case REAL: break;
  }
  memcpy(&real, value, sizeof real);
  if (!isfinite(real)) {
    return weft_fail(error, WEFT_ERR_USAGE, "use a finite number",
                     "%s is %g, which a checkpoint cannot hold", field->name, real);
  }
  add_real(text, real);
  return WEFT_OK;
}

static bool is_left_out(const struct field *field, const struct weft_gpt_training *training) {
  const char *value = (const char *)training + field->offset;
  uint32_t number;
  if (!field->optional) {
    return false;
  }
  if (field->kind == FLAG) {
    return !*(const bool *)value;
  }
  memcpy(&number, value, sizeof number);
  return number <= 1;
}

static enum weft_status add_section(struct weft_text *text, const struct section *section,
                                    const struct weft_gpt_training *training,
                                    struct weft_error *error) {
  const bool inner = section->name[0] != '\0';
  const char *indent = inner ? "    " : "  ";
  if (inner) {
    weft_text_addf(text, ",\n  \"%s\": {", section->name);
  }
  for (uint32_t k = 0; k < section->field_count; k++) {
    const struct field *field = &section->fields[k];
    if (is_left_out(field, training)) {
      continue;
    }
    weft_text_addf(text, "%s\n%s\"%s\": ", inner && k == 0 ? "" : ",", indent, field->name);
    WEFT_TRY(add_value(text, field, (const char *)training + field->offset, error));
  }
  weft_text_add(text, inner ? "\n  }" : "");
  return WEFT_OK;
}

static enum weft_status add_layers(struct weft_text *text, uint32_t layer_count,
                                   const struct weft_gpt_manifest_layer *layers,
                                   struct weft_error *error) {
  weft_text_add(text, ",\n  \"parts\": [");
  for (uint32_t k = 0; k < layer_count; k++) {
    weft_text_addf(text, "%s\n    {\"file\": \"%s\", \"size\": ", k > 0 ? "," : "",
                   layers[k].file.text);
    WEFT_TRY(add_number(text, "the size of a part", layers[k].size, error));
    weft_text_addf(text, ", \"checksum\": \"%016" PRIx64 "\"}", layers[k].checksum);
  }
  weft_text_add(text, "\n  ]");
  return WEFT_OK;
}

enum weft_status weft_gpt_manifest_write(struct weft_text *text,
                                         const struct weft_gpt_training *training,
                                         const struct weft_gpt_manifest_layer *layers,
                                         struct weft_error *error) {
  assert(training != NULL && layers != NULL);
  const size_t first = text->size;
  weft_text_add(text, "{\n  \"schema\": \"" WEFT_GPT_MANIFEST_SCHEMA "\"");
  for (uint32_t k = 0; k < SECTIONS; k++) {
    WEFT_TRY(add_section(text, &sections[k], training, error));
  }
  WEFT_TRY(add_layers(text, weft_gpt_layer_count(&training->config), layers, error));
  weft_text_add(text, ",\n");
  WEFT_TRY(weft_text_status(text, error));
  weft_text_addf(text, "  \"checksum\": \"%016" PRIx64 "\"\n}\n",
                 weft_gpt_checksum_of(text->data + first, text->size - first));
  return weft_text_status(text, error);
}

/* ---- Reading ---- */

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
static bool read_value(const json_t *value, enum kind kind, void *to) {
  uint64_t number = 0;
  switch (kind) {
    case NUMBER32:
      if (!weft_gpt_json_integer(value, UINT32_MAX, &number)) {
        return false;
      }
      memcpy(to, &(uint32_t){(uint32_t)number}, sizeof(uint32_t));
      return true;
    case NUMBER64:
      if (!weft_gpt_json_integer(value, INT64_MAX, &number)) {
        return false;
      }
      break;
    case HEX:
      if (!json_is_string(value) ||
          !read_hex(json_string_value(value), json_string_length(value), &number)) {
        return false;
      }
      break;
    case FLAG:
      memcpy(to, &(bool){json_is_true(value)}, sizeof(bool));
      return json_is_boolean(value);
    case REAL:
      memcpy(to, &(double){json_number_value(value)}, sizeof(double));
      return json_is_number(value);
  }
  memcpy(to, &number, sizeof number);
  return true;
}

static const char *expected_of(enum kind kind) {
  switch (kind) {
    case NUMBER32: return "an integer from 0 to 4294967295";
    case NUMBER64: return "an integer from 0 to 9223372036854775807";
    case HEX: return "16 hexadecimal digits in quotes";
    case FLAG: return "true or false";
    case REAL: return "a number";
  }
  return "something else";
}

/* ---- Objects ---- */

static enum weft_status read_fields(struct reader *reader, const struct section *section,
                                    json_t *object) {
  for (uint32_t k = 0; k < section->field_count; k++) {
    const struct field *field = &section->fields[k];
    const json_t *value = json_object_get(object, field->name);
    if (value == NULL && field->optional) {
      continue; /* it is 0 */
    }
    if (!read_value(value, field->kind, (char *)&reader->training + field->offset)) {
      return unexpected(reader, section->name, field->name, value, expected_of(field->kind));
    }
  }
  return WEFT_OK;
}

static enum weft_status read_section(struct reader *reader, const struct section *section,
                                     json_t *object) {
  const char *names[16];
  uint32_t count = 0;
  for (uint32_t k = 0; k < section->field_count; k++) {
    const struct field *field = &section->fields[k];
    if (!field->optional || json_object_get(object, field->name) != NULL) {
      names[count++] = field->name;
    }
  }
  WEFT_TRY(weft_gpt_json_check_members(&reader->json, section->name, object, names, count));
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
  if (!read_value(size, NUMBER64, &layer->size)) {
    return unexpected(reader, section, names[1], size, expected_of(NUMBER64));
  }
  if (!read_value(checksum, HEX, &layer->checksum)) {
    return unexpected(reader, section, names[2], checksum, expected_of(HEX));
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
  const char *names[16] = {"schema", "parts", "checksum"};
  uint32_t count = 3;
  WEFT_TRY(check_schema(reader, document));
  WEFT_TRY(check_checksum(reader));
  for (uint32_t k = 0; k < sections[0].field_count; k++) {
    names[count++] = sections[0].fields[k].name;
  }
  for (uint32_t k = 1; k < SECTIONS; k++) {
    names[count++] = sections[k].name;
  }
  WEFT_TRY(weft_gpt_json_check_members(&reader->json, "", document, names, count));
  WEFT_TRY(read_fields(reader, &sections[0], document));
  for (uint32_t k = 1; k < SECTIONS; k++) {
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
