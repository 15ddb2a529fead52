/* The part of jansson's interface that src/spec uses, for a target that Debian has no jansson for.
 * Reading only, and always as reals (JSON_DECODE_INT_AS_REAL): json_reader.c. */
#ifndef PLAYGROUND_JANSSON_H
#define PLAYGROUND_JANSSON_H

#include <stdbool.h>
#include <stddef.h>

enum { JSON_REJECT_DUPLICATES = 1, JSON_DECODE_INT_AS_REAL = 2 };

enum json_error_code {
  json_error_unknown,
  json_error_out_of_memory,
  json_error_invalid_utf8,
  json_error_premature_end_of_input,
  json_error_end_of_input_expected,
  json_error_invalid_syntax,
  json_error_duplicate_key,
  json_error_numeric_overflow,
  json_error_null_character,
  json_error_stack_overflow
};

typedef struct {
  int position; /* bytes read when it was found */
  enum json_error_code code;
  char text[160];
} json_error_t;

static inline enum json_error_code json_error_code(const json_error_t *error) {
  return error->code;
}

typedef struct json json_t;

/* The document must be an object or a list. The caller gives it back by json_decref(). */
json_t *json_loadb(const char *text, size_t size, size_t flags, json_error_t *error);
void json_decref(json_t *value);

/* All of these take NULL, and a value of another type. */
bool json_is_object(const json_t *value);
bool json_is_array(const json_t *value);
bool json_is_real(const json_t *value);
bool json_is_boolean(const json_t *value);
bool json_is_null(const json_t *value);
bool json_is_true(const json_t *value);
double json_real_value(const json_t *value);
const char *json_string_value(const json_t *value);
size_t json_array_size(const json_t *value);
json_t *json_array_get(const json_t *value, size_t index);
json_t *json_object_get(const json_t *value, const char *key);

/* Members in the order of the text. */
json_t *json_first_member(const json_t *object, const char **key);
json_t *json_next_member(const json_t *member, const char **key);
#define json_object_foreach(object, key, value)                        \
  for ((value) = json_first_member((object), &(key)); (value) != NULL; \
       (value) = json_next_member((value), &(key)))

#endif
