/* The costs file: JSON to struct weft_costs, strictly. jansson reads the text;
 * json_place finds the line, column and name of a field that is wrong.
 *
 * jansson takes memory from malloc(): its hook is global, and this library has
 * no global state. What it can take is bounded before it begins, by the size of
 * the text and by the number of values in it. */
#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <weft/costs.h>
#include <weft/support.h>

#include "spec/costs_fields.h"
#include "spec/json_place.h"

#define SCHEMA "weft-costs/1"
#define TEXT_BYTES_MAX ((size_t)64 << 20)
/* A value after the first of its list or object has a comma before it. */
#define COMMAS_MAX (WEFT_STAGES_MAX * UINT32_C(16))

#define HINT_RANGE "times and sizes are numbers from 0 to 1e12; choose another unit for larger ones"
#define HINT_EXAMPLE                                                                          \
  "for example: {\"schema\": \"weft-costs/1\", \"stages\": [{\"f\": 1.5, \"i\": 1.4, \"w\": " \
  "0.9}]}"
#define HINT_SYNTAX "JSON has no NaN, no Infinity, no comments, and no comma after the last element"

struct reader {
  const char *text;
  size_t size;
  const char *name;
  struct weft_json_path path; /* to the value being read */
  struct weft_error *error;
};

/* ---- Faults ---- */

static enum weft_status fault_at(const struct reader *reader, const struct weft_json_place *place,
                                 enum weft_status status, const char *hint, const char *format, ...)
    WEFT_PRINTF(5, 6);

/* "file:line:column: field: ..." */
static enum weft_status fault_at(const struct reader *reader, const struct weft_json_place *place,
                                 enum weft_status status, const char *hint, const char *format,
                                 ...) {
  char name[128], what[256];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  weft_escape(name, sizeof name, reader->name, strlen(reader->name));
  (void)weft_fail(reader->error, status, hint, "%s:%" PRIu64 ":%" PRIu64 ": %s%s%s", name,
                  place->line, place->column, place->field, place->field[0] != '\0' ? ": " : "",
                  what);
  if (reader->error != NULL) {
    reader->error->line = place->line;
    reader->error->column = place->column;
  }
  return status;
}

/* What is at a place, as the file has it. */
static const char *found_at(const struct reader *reader, const struct weft_json_place *place,
                            char *buffer, size_t size) {
  if (place->begin >= reader->size) {
    return "the end of the file";
  }
  switch (reader->text[place->begin]) {
    case '{': return "an object";
    case '[': return "a list";
    default:
      return weft_escape(buffer, size, reader->text + place->begin, place->end - place->begin);
  }
}

/* The value being read is not what belongs there. */
static enum weft_status unexpected(const struct reader *reader, const char *hint,
                                   const char *expected) {
  const struct weft_json_place place = weft_json_find(reader->text, reader->size, &reader->path);
  char found[48];
  return fault_at(reader, &place, WEFT_ERR_FORMAT, hint, "expected %s, found %s", expected,
                  found_at(reader, &place, found, sizeof found));
}

/* ---- Numbers ---- */

static enum weft_status unexpected_number(const struct reader *reader) {
  char expected[64];
  (void)snprintf(expected, sizeof expected, "a number from 0 to %g", WEFT_COST_MAX);
  return unexpected(reader, HINT_RANGE, expected);
}

static enum weft_status read_number(const struct reader *reader, const json_t *value,
                                    double *number) {
  if (!json_is_real(value) || !weft_cost_is_sane(json_real_value(value))) {
    return unexpected_number(reader);
  }
  *number = json_real_value(value) + 0.0; /* -0 becomes 0 */
  return WEFT_OK;
}

static const struct weft_cost_field *find_field(const struct weft_cost_field *fields,
                                                const char *name) {
  for (; fields->name != NULL; fields++) {
    if (strcmp(fields->name, name) == 0) {
      return fields;
    }
  }
  return NULL;
}

static enum weft_status unknown_field(const struct reader *reader,
                                      const struct weft_cost_field *fields) {
  struct weft_json_place place = weft_json_find(reader->text, reader->size, &reader->path);
  char known[192] = "";
  size_t used = 0;
  for (; fields->name != NULL; fields++) {
    used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "",
                             fields->name);
  }
  weft_json_point(&place, reader->text, place.key);
  return fault_at(reader, &place, WEFT_ERR_FORMAT, "take it out; docs/prediction.md has the format",
                  "unknown field; expected %s", known);
}

/* The members of an object, all of them numbers. */
static enum weft_status read_numbers(struct reader *reader, json_t *object,
                                     const struct weft_cost_field *fields, void *numbers) {
  const char *key;
  json_t *value;
  if (!json_is_object(object)) {
    return unexpected(reader, HINT_EXAMPLE, "an object with numbers");
  }
  uint64_t *ordinal = &reader->path.ordinals[reader->path.depth++];
  *ordinal = 0;
  json_object_foreach(object, key, value) {
    const struct weft_cost_field *field = find_field(fields, key);
    if (field == NULL) {
      return unknown_field(reader, fields);
    }
    enum weft_status status = read_number(reader, value, weft_cost_at(numbers, field));
    if (status < 0) {
      return status;
    }
    ++*ordinal;
  }
  reader->path.depth--;
  return WEFT_OK;
}

/* ---- Stages ---- */

static enum weft_status read_stage(struct reader *reader, json_t *entry,
                                   struct weft_stage_costs *stage) {
  *stage = weft_stage_costs_default();
  stage->b = -1; /* left out */
  WEFT_TRY(read_numbers(reader, entry, weft_stage_cost_fields(), stage));
  if (stage->b < 0) {
    stage->b = stage->i + stage->w;
    if (!weft_cost_is_sane(stage->b)) {
      const struct weft_json_place place =
          weft_json_find(reader->text, reader->size, &reader->path);
      return fault_at(reader, &place, WEFT_ERR_FORMAT, HINT_RANGE,
                      "b is left out, and i + w is %g: expected at most %g", stage->b,
                      WEFT_COST_MAX);
    }
  }
  return WEFT_OK;
}

static enum weft_status check_entries(const struct reader *reader, const json_t *list,
                                      const char *expected, const char *hint) {
  if (!json_is_array(list)) {
    return unexpected(reader, HINT_EXAMPLE, expected);
  }
  const size_t count = json_array_size(list);
  if (count > 0 && count <= WEFT_STAGES_MAX) {
    return WEFT_OK;
  }
  const struct weft_json_place place = weft_json_find(reader->text, reader->size, &reader->path);
  return count == 0 ? fault_at(reader, &place, WEFT_ERR_FORMAT, HINT_EXAMPLE,
                               "expected at least one entry, found an empty list")
                    : fault_at(reader, &place, WEFT_ERR_LIMIT, hint,
                               "%zu entries; the limit is %" PRIu32, count, WEFT_STAGES_MAX);
}

static enum weft_status read_stages(struct reader *reader, const json_t *list,
                                    const struct weft_costs *costs) {
  uint64_t *ordinal = &reader->path.ordinals[reader->path.depth++];
  for (*ordinal = 0; *ordinal < costs->stage_count; ++*ordinal) {
    WEFT_TRY(read_stage(reader, json_array_get(list, (size_t)*ordinal), &costs->stages[*ordinal]));
  }
  reader->path.depth--;
  return WEFT_OK;
}

/* ---- Parts ---- */

static enum weft_status read_parts(struct reader *reader, const json_t *list,
                                   struct weft_costs *costs) {
  WEFT_TRY(check_entries(reader, list, "a list with one object for each part of the model",
                         "parts can be left out"));
  WEFT_TRY(weft_costs_add_parts(costs, (uint32_t)json_array_size(list), reader->error));
  uint64_t *ordinal = &reader->path.ordinals[reader->path.depth++];
  for (*ordinal = 0; *ordinal < costs->part_count; ++*ordinal) {
    WEFT_TRY(read_numbers(reader, json_array_get(list, (size_t)*ordinal), weft_part_cost_fields(),
                          &costs->parts[*ordinal]));
  }
  reader->path.depth--;
  return WEFT_OK;
}

/* ---- The other members ---- */

static enum weft_status read_hop(struct reader *reader, json_t *object,
                                 struct weft_hop_costs *hop) {
  WEFT_TRY(read_numbers(reader, object, weft_hop_cost_fields(), hop));
  if (!weft_cost_is_sane(weft_hop_transfer(hop))) {
    const struct weft_json_place place = weft_json_find(reader->text, reader->size, &reader->path);
    return fault_at(reader, &place, WEFT_ERR_FORMAT, HINT_RANGE,
                    "bytes / bytes_per_unit is %g: expected at most %g", weft_hop_transfer(hop),
                    WEFT_COST_MAX);
  }
  return WEFT_OK;
}

/* Shown on terminals and in pictures; jansson has seen that it is UTF-8. */
static bool is_printable(const char *text) {
  for (; *text != '\0'; text++) {
    const unsigned char byte = (unsigned char)*text, after = (unsigned char)text[1];
    if (byte < 0x20 || byte == 0x7f || (byte == 0xc2 && after < 0xa0)) {
      return false;
    }
  }
  return true;
}

static enum weft_status read_unit(const struct reader *reader, const json_t *value,
                                  struct weft_costs *costs) {
  const char *unit = json_string_value(value);
  if (unit == NULL || strlen(unit) >= sizeof costs->unit || !is_printable(unit)) {
    return unexpected(reader, "for example \"unit\": \"ms\"",
                      "a text of at most 15 bytes that can be printed");
  }
  memcpy(costs->unit, unit, strlen(unit) + 1);
  return WEFT_OK;
}

static enum weft_status read_schema(const struct reader *reader, const json_t *value) {
  const char *schema = json_string_value(value);
  return schema != NULL && strcmp(schema, SCHEMA) == 0
             ? WEFT_OK
             : unexpected(reader, "this release reads no other", "\"" SCHEMA "\"");
}

static enum weft_status read_member(struct reader *reader, const char *key, json_t *value,
                                    struct weft_costs *costs) {
  static const struct weft_cost_field members[] = {{"schema", 0, false}, {"unit", 0, false},
                                                   {"stages", 0, false}, {"hop", 0, false},
                                                   {"parts", 0, false},  {NULL, 0, false}};
  if (strcmp(key, "schema") == 0) {
    return read_schema(reader, value);
  }
  if (strcmp(key, "unit") == 0) {
    return read_unit(reader, value, costs);
  }
  if (strcmp(key, "stages") == 0) {
    return read_stages(reader, value, costs);
  }
  if (strcmp(key, "hop") == 0) {
    return read_hop(reader, value, &costs->hop);
  }
  if (strcmp(key, "parts") == 0) {
    return read_parts(reader, value, costs);
  }
  return unknown_field(reader, members);
}

static enum weft_status read_members(struct reader *reader, json_t *document,
                                     struct weft_costs *costs) {
  const char *key;
  json_t *value;
  reader->path = (struct weft_json_path){.depth = 1};
  json_object_foreach(document, key, value) {
    WEFT_TRY(read_member(reader, key, value, costs));
    reader->path.ordinals[0]++;
  }
  return WEFT_OK;
}

/* ---- The document ---- */

static enum weft_status require_member(const struct reader *reader, const json_t *document,
                                       const char *key, const char *expected) {
  if (json_object_get(document, key) != NULL) {
    return WEFT_OK;
  }
  const struct weft_json_place place = weft_json_find(reader->text, reader->size, &reader->path);
  return fault_at(reader, &place, WEFT_ERR_FORMAT, HINT_EXAMPLE, "%s is missing: expected %s", key,
                  expected);
}

/* Leaves the path at the member `stages`. */
static void go_to_stages(struct reader *reader, json_t *document) {
  const char *key;
  json_t *value;
  reader->path = (struct weft_json_path){.depth = 1};
  json_object_foreach(document, key, value) {
    if (strcmp(key, "stages") == 0) {
      return;
    }
    reader->path.ordinals[0]++;
  }
}

static enum weft_status check_document(struct reader *reader, json_t *document) {
  if (!json_is_object(document)) {
    return unexpected(reader, HINT_EXAMPLE, "an object");
  }
  WEFT_TRY(require_member(reader, document, "schema", "\"schema\": \"" SCHEMA "\""));
  WEFT_TRY(require_member(reader, document, "stages", "a list of objects"));
  go_to_stages(reader, document);
  return check_entries(reader, json_object_get(document, "stages"),
                       "a list with one object for all stages or one for each",
                       "one entry serves all stages");
}

static enum weft_status read_document(struct reader *reader, const struct weft_allocator *allocator,
                                      json_t *document, struct weft_costs **out) {
  struct weft_costs *costs;
  WEFT_TRY(check_document(reader, document));
  WEFT_TRY(weft_costs_create(allocator,
                             (uint32_t)json_array_size(json_object_get(document, "stages")), &costs,
                             reader->error));
  const enum weft_status status = read_members(reader, document, costs);
  if (status < 0) {
    weft_costs_destroy(costs);
    return status;
  }
  *out = costs;
  return WEFT_OK;
}

/* ---- The text ---- */

static enum weft_status check_text(const struct reader *reader) {
  if (reader->size > TEXT_BYTES_MAX) {
    return weft_fail(reader->error, WEFT_ERR_LIMIT, "is this a costs file?",
                     "the costs have %zu bytes; the limit is %zu", reader->size, TEXT_BYTES_MAX);
  }
  uint64_t commas = 0;
  for (size_t i = 0; i < reader->size; i++) {
    commas += reader->text[i] == ',';
  }
  if (commas > COMMAS_MAX) {
    return weft_fail(reader->error, WEFT_ERR_LIMIT, "is this a costs file?",
                     "the costs have %" PRIu64 " values; the limit is %" PRIu32, commas,
                     COMMAS_MAX);
  }
  return WEFT_OK;
}

/* jansson's message, which may quote the text. */
static enum weft_status syntax_fault(const struct reader *reader, const json_error_t *found) {
  const enum json_error_code code = json_error_code(found);
  char words[192];
  if (code == json_error_out_of_memory) {
    return weft_fail_memory(reader->error, reader->size);
  }
  const bool at_end = code == json_error_premature_end_of_input;
  const size_t position = found->position > 0 && !at_end ? (size_t)found->position : 0;
  struct weft_json_place place =
      weft_json_at(reader->text, reader->size, at_end ? reader->size : position);
  if (at_end) {
    weft_json_point(&place, reader->text, reader->size);
  }
  if (code == json_error_numeric_overflow) {
    char number[48];
    return fault_at(reader, &place, WEFT_ERR_FORMAT, HINT_RANGE,
                    "expected a number from 0 to %g, found %s", WEFT_COST_MAX,
                    found_at(reader, &place, number, sizeof number));
  }
  return fault_at(reader, &place, WEFT_ERR_FORMAT, HINT_SYNTAX, "not JSON: %s",
                  weft_escape(words, sizeof words, found->text, strlen(found->text)));
}

enum weft_status weft_costs_parse(const struct weft_allocator *allocator, const char *text,
                                  size_t size, const char *name, struct weft_costs **out,
                                  struct weft_error *error) {
  WEFT_NEED(out, error);
  if (size > 0) {
    WEFT_NEED(text, error);
  }
  struct reader reader = {
      .text = text, .size = size, .name = name != NULL ? name : "costs", .error = error};
  WEFT_TRY(check_text(&reader));
  json_error_t found;
  /* Whole numbers as reals, so that 10^30 is a number like others, and refused by name. */
  json_t *document =
      json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &found);
  if (document == NULL) {
    return syntax_fault(&reader, &found);
  }
  const enum weft_status status = read_document(&reader, allocator, document, out);
  json_decref(document);
  return status;
}
