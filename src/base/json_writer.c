/* Writing JSON: commas, escapes and numbers. */
#include <assert.h>
#include <weft/support.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add_string(struct weft_text *text, const char *value) {
  weft_text_add(text, "\"");
  while (*value != '\0') {
    const size_t plain = strcspn(value,
                                 "\"\\\x01\x02\x03\x04\x05\x06\x07\x08\t\n\x0b\x0c\r\x0e"
                                 "\x0f\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c"
                                 "\x1d\x1e\x1f");
    weft_text_append(text, value, plain);
    value += plain;
    if (*value == '"' || *value == '\\') {
      const char escaped[2] = {'\\', *value++};
      weft_text_append(text, escaped, sizeof escaped);
    } else if (*value != '\0') {
      weft_text_addf(text, "\\u%04x", (unsigned char)*value++);
    }
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
  begin_value(json, key);
  if (isfinite(value)) {
    weft_text_addf(json->text, "%.6g", value);
  } else {
    weft_text_add(json->text, "null");
  }
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
