/* What the readers of JSON in a checkpoint share. */
#include "trainer/checkpoint/checkpoint_json.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

enum weft_status weft_gpt_json_fault(const struct weft_gpt_json *json, const char *format, ...) {
  char what[256];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  return weft_fail(json->error, WEFT_ERR_FORMAT, json->hint, "'%s': %s", json->name, what);
}

enum weft_status weft_gpt_json_unexpected(const struct weft_gpt_json *json, const char *field,
                                          const json_t *value, const char *expected) {
  char buffer[48];
  char *dumped = json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
  const char *found = json_is_object(value)  ? "an object"
                      : json_is_array(value) ? "a list"
                      : dumped == NULL       ? "something else"
                                       : weft_escape(buffer, sizeof buffer, dumped, strlen(dumped));
  const enum weft_status status =
      weft_gpt_json_fault(json, "%s is %s; expected %s", field, found, expected);
  free(dumped);
  return status;
}

enum weft_status weft_gpt_json_load(const struct weft_gpt_json *json, const char *text, size_t size,
                                    uint32_t commas_max, json_t **document) {
  assert(document != NULL);
  json_error_t wrong;
  char words[160];
  uint32_t commas = 0;
  for (size_t i = 0; i < size; i++) {
    commas += text[i] == ',';
  }
  if (commas > commas_max) {
    return weft_gpt_json_fault(json, "%" PRIu32 " commas; the limit is %" PRIu32, commas,
                               commas_max);
  }
  *document = json_loadb(text, size, JSON_REJECT_DUPLICATES, &wrong);
  if (*document != NULL) {
    return WEFT_OK;
  }
  if (json_error_code(&wrong) == json_error_out_of_memory) {
    return weft_fail_memory(json->error, size);
  }
  return weft_gpt_json_fault(json, "line %d: not JSON: %s", wrong.line,
                             weft_escape(words, sizeof words, wrong.text, strlen(wrong.text)));
}

enum weft_status weft_gpt_json_check_members(const struct weft_gpt_json *json,
                                             const char *object_name, json_t *object,
                                             const char *const *names, uint32_t count) {
  const char *dot = object_name[0] != '\0' ? "." : "";
  const char *key;
  json_t *value;
  if (!json_is_object(object)) {
    return weft_gpt_json_unexpected(json, object_name, object, "an object");
  }
  for (uint32_t k = 0; k < count; k++) {
    if (json_object_get(object, names[k]) == NULL) {
      return weft_gpt_json_fault(json, "%s%s%s is missing", object_name, dot, names[k]);
    }
  }
  json_object_foreach(object, key, value) {
    uint32_t k = 0;
    while (k < count && strcmp(names[k], key) != 0) {
      k++;
    }
    if (k == count) {
      char escaped[64];
      return weft_gpt_json_fault(json, "%s%s%s is not a field of %s", object_name, dot,
                                 weft_escape(escaped, sizeof escaped, key, strlen(key)),
                                 json->format);
    }
  }
  return WEFT_OK;
}

bool weft_gpt_json_integer(const json_t *value, uint64_t most, uint64_t *number) {
  if (!json_is_integer(value) || json_integer_value(value) < 0 ||
      (uint64_t)json_integer_value(value) > most) {
    return false;
  }
  *number = (uint64_t)json_integer_value(value);
  return true;
}
