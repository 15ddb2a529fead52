/* Writing JSON: commas, escapes and numbers. */
#include <assert.h>
#include <weft/support.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plain_text.h"

/* A character that would control a terminal; those are one, two or three bytes long. */
static void add_control(struct weft_text *text, const char *data, size_t length) {
  const unsigned char *bytes = (const unsigned char *)data;
  const unsigned code =
      length == 1   ? bytes[0]
      : length == 2 ? (bytes[0] & 0x1fu) << 6 | (bytes[1] & 0x3fu)
                    : (bytes[0] & 0xfu) << 12 | (bytes[1] & 0x3fu) << 6 | (bytes[2] & 0x3fu);
  weft_text_addf(text, "\\u%04x", code);
}

/* JSON is UTF-8: a byte that is not, as in the name of a file, becomes the text \xff, as in
 * weft_text_add_escaped(). */
static void add_string(struct weft_text *text, const char *value) {
  const char *end = value + strlen(value);
  weft_text_add(text, "\"");
  while (value < end) {
    const char *plain = value;
    size_t length = 0;
    while (value < end && *value != '"' && *value != '\\' &&
           (length = weft_plain_length(value, (size_t)(end - value))) > 0) {
      value += length;
    }
    weft_text_append(text, plain, (size_t)(value - plain));
    if (value == end) {
      break;
    }
    length = weft_character_length(value, (size_t)(end - value));
    if (*value == '"' || *value == '\\') {
      const char escaped[2] = {'\\', *value};
      weft_text_append(text, escaped, sizeof escaped);
    } else if (length > 0) {
      add_control(text, value, length);
    } else {
      weft_text_addf(text, "\\\\x%02x", (unsigned char)*value);
    }
    value += length > 0 ? length : 1;
  }
  weft_text_add(text, "\"");
}

static void begin_value(struct weft_json *json, const char *key) {
  assert(json->text != NULL);
  if (json->comma) {
    weft_text_append(json->text, ",", 1);
  }
  json->comma = true;
  if (key != NULL) {
    add_string(json->text, key);
    weft_text_append(json->text, ":", 1);
  }
}

void weft_json_open(struct weft_json *json, const char *key, char bracket) {
  assert(bracket == '{' || bracket == '[');
  begin_value(json, key);
  weft_text_append(json->text, &bracket, 1);
  json->comma = false;
}

void weft_json_close(struct weft_json *json, char bracket) {
  assert(bracket == '}' || bracket == ']');
  weft_text_append(json->text, &bracket, 1);
  json->comma = true;
}

void weft_json_finish(struct weft_json *json) { weft_text_append(json->text, "\n", 1); }

struct weft_json weft_json_begin(struct weft_text *text, const char *schema) {
  struct weft_json json = {.text = text};
  weft_json_open(&json, NULL, '{');
  if (schema != NULL) {
    weft_json_string(&json, "schema", schema);
  }
  return json;
}

void weft_json_end(struct weft_json *json) {
  weft_json_close(json, '}');
  weft_json_finish(json);
}

void weft_json_string(struct weft_json *json, const char *key, const char *value) {
  if (value == NULL) {
    weft_json_null(json, key);
    return;
  }
  begin_value(json, key);
  add_string(json->text, value);
}

void weft_json_number(struct weft_json *json, const char *key, uint64_t value) {
  begin_value(json, key);
  weft_text_add_number(json->text, value);
}

void weft_json_optional(struct weft_json *json, const char *key, bool known, uint64_t value) {
  if (known) {
    weft_json_number(json, key, value);
  } else {
    weft_json_null(json, key);
  }
}

void weft_json_integer(struct weft_json *json, const char *key, int64_t value) {
  begin_value(json, key);
  weft_text_addf(json->text, "%" PRId64, value);
}

/* JSON has no infinity: null stands for what is not a number. */
void weft_json_real(struct weft_json *json, const char *key, double value) {
  if (!isfinite(value)) {
    weft_json_null(json, key);
    return;
  }
  begin_value(json, key);
  weft_text_addf(json->text, "%.6g", value);
}

void weft_json_exact(struct weft_json *json, const char *key, double value) {
  char digits[32];
  if (!isfinite(value)) {
    weft_json_null(json, key);
    return;
  }
  (void)snprintf(digits, sizeof digits, "%.15g", value);
  if (strtod(digits, NULL) != value) {
    (void)snprintf(digits, sizeof digits, "%.17g", value);
  }
  begin_value(json, key);
  weft_text_add(json->text, digits);
}

void weft_json_boolean(struct weft_json *json, const char *key, bool value) {
  begin_value(json, key);
  weft_text_add(json->text, value ? "true" : "false");
}

void weft_json_null(struct weft_json *json, const char *key) {
  begin_value(json, key);
  weft_text_add(json->text, "null");
}
