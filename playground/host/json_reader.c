/* A reader of JSON with jansson's interface (include/jansson.h). It accepts what jansson accepts
 * and words its errors likewise, so that a wrong costs file gets the same message in the browser
 * as from the command; tests/playground compares them. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

enum { DEPTH_MAX = 2048, CONTEXT_MAX = 20 };

enum kind { KIND_OBJECT, KIND_ARRAY, KIND_STRING, KIND_REAL, KIND_WORD };

struct json {
  enum kind kind;
  double real;
  char letter;  /* of KIND_WORD: the first one */
  char *string; /* of KIND_STRING */
  char *key;    /* where it is a member */
  struct json *parent;
  size_t ordinal; /* in the parent */
  struct json **items;
  size_t count, room;
};

enum token {
  TOKEN_END,
  TOKEN_INVALID,
  TOKEN_STRING,
  TOKEN_NUMBER,
  TOKEN_WORD,             /* true, false, null */
  TOKEN_PUNCTUATION = 256 /* + the character */
};

struct reader {
  const unsigned char *text;
  size_t size;
  size_t begin, at; /* the token is [begin, at) */
  unsigned token;
  double number;
  char *string; /* of TOKEN_STRING; taken by who uses it */
  size_t string_size;
  unsigned depth;
  bool failed;
  json_error_t *error;
};

/* ---- Errors ---- */

/* The first one counts. */
static void fail(struct reader *reader, enum json_error_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void fail(struct reader *reader, enum json_error_code code, const char *format, ...) {
  char message[96];
  va_list arguments;
  if (reader->failed) {
    return;
  }
  va_start(arguments, format);
  (void)vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  const size_t read = reader->at - reader->begin;
  json_error_t *error = reader->error;
  reader->failed = true;
  error->position = (int)reader->at;
  error->code = code;
  if (read > 0 && read <= CONTEXT_MAX) {
    (void)snprintf(error->text, sizeof error->text, "%s near '%.*s'", message, (int)read,
                   (const char *)reader->text + reader->begin);
  } else if (read == 0 && code != json_error_invalid_utf8) {
    error->code =
        code == json_error_invalid_syntax ? json_error_premature_end_of_input : error->code;
    (void)snprintf(error->text, sizeof error->text, "%s near end of file", message);
  } else {
    (void)snprintf(error->text, sizeof error->text, "%s", message);
  }
}

static void *fail_memory(struct reader *reader) {
  fail(reader, json_error_out_of_memory, "out of memory");
  return NULL;
}

/* ---- Bytes ---- */

/* Bytes of the well-formed UTF-8 sequence at `at`; 0: none. */
static size_t sequence_size(const struct reader *reader, size_t at) {
  static const struct {
    unsigned char first, last, second_least, second_most;
    size_t size;
  } forms[] = {
      {0x00, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
      {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
      {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
  const unsigned char *text = reader->text + at;
  const size_t left = reader->size - at;
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
    if (text[0] < forms[i].first || text[0] > forms[i].last) {
      continue;
    }
    bool good = forms[i].size <= left;
    for (size_t k = 1; good && k < forms[i].size; k++) {
      good = k == 1 ? text[1] >= forms[i].second_least && text[1] <= forms[i].second_most
                    : (text[k] & 0xc0) == 0x80;
    }
    return good ? forms[i].size : 0;
  }
  return 0;
}

/* The next byte without taking it, the first of a sequence; -1 at the end, and where the text is
 * not UTF-8. */
static int peek(struct reader *reader) {
  if (reader->at >= reader->size || reader->failed) {
    return -1;
  }
  const unsigned char byte = reader->text[reader->at];
  if (sequence_size(reader, reader->at) == 0) {
    fail(reader, json_error_invalid_utf8, "unable to decode byte 0x%x", byte);
    return -1;
  }
  return byte;
}

static void take_sequence(struct reader *reader) {
  reader->at += sequence_size(reader, reader->at);
}

static bool is_digit(int byte) { return byte >= '0' && byte <= '9'; }

static bool is_letter(int byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
}

static int hex_value(int byte) {
  return is_digit(byte)               ? byte - '0'
         : byte >= 'a' && byte <= 'f' ? byte - 'a' + 10
         : byte >= 'A' && byte <= 'F' ? byte - 'A' + 10
                                      : -1;
}

/* ---- Strings ---- */

/* Four hex digits at `at`, which scan_string() has checked. */
static unsigned escaped_unit(const struct reader *reader, size_t at) {
  unsigned unit = 0;
  for (size_t i = 0; i < 4; i++) {
    unit = unit << 4 | (unsigned)hex_value(reader->text[at + i]);
  }
  return unit;
}

static size_t put_utf8(char *out, unsigned point) {
  if (point < 0x80) {
    out[0] = (char)point;
    return 1;
  }
  const size_t size = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
  static const unsigned marks[] = {0, 0, 0xc0, 0xe0, 0xf0};
  for (size_t i = size - 1; i > 0; i--, point >>= 6) {
    out[i] = (char)(0x80 | (point & 0x3f));
  }
  out[0] = (char)(marks[size] | point);
  return size;
}

/* A \u at `at`, which may be the first of a pair; returns where the text goes on, 0 on failure. */
static size_t put_escape(struct reader *reader, size_t at, char *out, size_t *used) {
  unsigned point = escaped_unit(reader, at + 2);
  at += 6;
  if (point >= 0xd800 && point <= 0xdbff) {
    const bool pair = reader->text[at] == '\\' && reader->text[at + 1] == 'u';
    const unsigned low = pair ? escaped_unit(reader, at + 2) : 0;
    if (!pair) {
      fail(reader, json_error_invalid_syntax, "invalid Unicode '\\u%04X'", point);
      return 0;
    }
    if (low < 0xdc00 || low > 0xdfff) {
      fail(reader, json_error_invalid_syntax, "invalid Unicode '\\u%04X\\u%04X'", point, low);
      return 0;
    }
    point = ((point - 0xd800) << 10) + (low - 0xdc00) + 0x10000;
    at += 6;
  } else if (point >= 0xdc00 && point <= 0xdfff) {
    fail(reader, json_error_invalid_syntax, "invalid Unicode '\\u%04X'", point);
    return 0;
  }
  *used += put_utf8(out + *used, point);
  return at;
}

/* The token without its quotes and escapes. */
static bool unescape(struct reader *reader) {
  static const char letters[] = "bfnrt", bytes[] = "\b\f\n\r\t";
  char *out = malloc(reader->at - reader->begin);
  size_t used = 0;
  if (out == NULL) {
    return fail_memory(reader) != NULL;
  }
  for (size_t at = reader->begin + 1; at < reader->at - 1;) {
    const char byte = (char)reader->text[at];
    if (byte != '\\') {
      out[used++] = byte;
      at++;
    } else if (reader->text[at + 1] == 'u') {
      at = put_escape(reader, at, out, &used);
      if (at == 0) {
        free(out);
        return false;
      }
    } else {
      const char escaped = (char)reader->text[at + 1];
      const char *letter = strchr(letters, escaped);
      out[used++] = letter != NULL ? bytes[letter - letters] : escaped;
      at += 2;
    }
  }
  out[used] = '\0';
  reader->string = out;
  reader->string_size = used;
  return true;
}

static bool scan_escape(struct reader *reader) {
  const int escaped = peek(reader);
  if (escaped < 0) {
    return !reader->failed; /* the end is found by who called */
  }
  take_sequence(reader);
  if (escaped != 'u') {
    if (escaped != 0 && strchr("\"\\/bfnrt", escaped) != NULL) {
      return true;
    }
    fail(reader, json_error_invalid_syntax, "invalid escape");
    return false;
  }
  for (unsigned i = 0; i < 4; i++) {
    const int digit = peek(reader);
    if (digit >= 0) {
      take_sequence(reader);
    }
    if (digit < 0 || hex_value(digit) < 0) {
      fail(reader, json_error_invalid_syntax, "invalid escape");
      return false;
    }
  }
  return true;
}

static unsigned scan_string(struct reader *reader) {
  for (;;) {
    const int byte = peek(reader);
    if (byte < 0) {
      fail(reader, json_error_premature_end_of_input, "premature end of input");
      return TOKEN_INVALID;
    }
    if (byte < 0x20) {
      if (byte == '\n') {
        fail(reader, json_error_invalid_syntax, "unexpected newline");
      } else {
        fail(reader, json_error_invalid_syntax, "control character 0x%x", (unsigned)byte);
      }
      return TOKEN_INVALID;
    }
    take_sequence(reader);
    if (byte == '"') {
      return unescape(reader) ? TOKEN_STRING : TOKEN_INVALID;
    }
    if (byte == '\\' && !scan_escape(reader)) {
      return TOKEN_INVALID;
    }
  }
}

/* ---- Other tokens ---- */

static bool scan_digits(struct reader *reader) {
  bool any = false;
  while (is_digit(peek(reader))) {
    reader->at++;
    any = true;
  }
  return any;
}

/* The first byte, a digit or a minus, has been taken. */
static unsigned scan_number(struct reader *reader) {
  int first = reader->text[reader->at - 1];
  if (first == '-') {
    first = peek(reader);
    if (!is_digit(first)) {
      return TOKEN_INVALID;
    }
    reader->at++;
  }
  if (first == '0' && is_digit(peek(reader))) {
    return TOKEN_INVALID;
  }
  (void)scan_digits(reader);
  if (peek(reader) == '.') {
    reader->at++;
    if (!scan_digits(reader)) {
      return TOKEN_INVALID;
    }
  }
  const int exponent = peek(reader);
  if (exponent == 'e' || exponent == 'E') {
    reader->at++;
    const int sign = peek(reader);
    reader->at += sign == '+' || sign == '-';
    if (!scan_digits(reader)) {
      return TOKEN_INVALID;
    }
  }
  char *copy = strndup((const char *)reader->text + reader->begin, reader->at - reader->begin);
  if (copy == NULL) {
    (void)fail_memory(reader);
    return TOKEN_INVALID;
  }
  errno = 0;
  reader->number = strtod(copy, NULL);
  free(copy);
  if (errno == ERANGE && isinf(reader->number)) {
    fail(reader, json_error_numeric_overflow, "real number overflow");
    return TOKEN_INVALID;
  }
  return TOKEN_NUMBER;
}

static unsigned scan_word(struct reader *reader) {
  static const char *const words[] = {"true", "false", "null"};
  while (is_letter(peek(reader))) {
    reader->at++;
  }
  const size_t size = reader->at - reader->begin;
  for (size_t i = 0; i < 3; i++) {
    if (size == strlen(words[i]) && memcmp(reader->text + reader->begin, words[i], size) == 0) {
      return TOKEN_WORD;
    }
  }
  return TOKEN_INVALID;
}

static unsigned scan_token(struct reader *reader) {
  const int byte = peek(reader);
  if (byte < 0) {
    return reader->failed ? TOKEN_INVALID : TOKEN_END;
  }
  take_sequence(reader);
  if (byte == '"') {
    return scan_string(reader);
  }
  if (byte != 0 && strchr("{}[]:,", byte) != NULL) {
    return TOKEN_PUNCTUATION + (unsigned)byte;
  }
  return is_digit(byte) || byte == '-' ? scan_number(reader)
         : is_letter(byte)             ? scan_word(reader)
                                       : TOKEN_INVALID;
}

static void scan(struct reader *reader) {
  free(reader->string);
  reader->string = NULL;
  for (;;) {
    reader->begin = reader->at;
    const int byte = peek(reader);
    if (byte != ' ' && byte != '\t' && byte != '\n' && byte != '\r') {
      break;
    }
    reader->at++;
  }
  reader->token = scan_token(reader);
}

static bool is(const struct reader *reader, char punctuation) {
  return reader->token == TOKEN_PUNCTUATION + (unsigned)punctuation;
}

/* ---- Values ---- */

static json_t *make(struct reader *reader, enum kind kind) {
  json_t *value = calloc(1, sizeof *value);
  if (value == NULL) {
    return fail_memory(reader);
  }
  value->kind = kind;
  return value;
}

void json_decref(json_t *value) {
  if (value == NULL) {
    return;
  }
  for (size_t i = 0; i < value->count; i++) {
    json_decref(value->items[i]);
  }
  free(value->items);
  free(value->string);
  free(value->key);
  free(value);
}

/* Gives the item to the list or object, also when that fails. */
static bool append(struct reader *reader, json_t *to, json_t *item) {
  if (item == NULL) {
    return false;
  }
  if (to->count == to->room) {
    const size_t room = to->room > 0 ? 2 * to->room : 8;
    json_t **items = realloc(to->items, room * sizeof(json_t *));
    if (items == NULL) {
      json_decref(item);
      return fail_memory(reader) != NULL;
    }
    to->items = items;
    to->room = room;
  }
  item->parent = to;
  item->ordinal = to->count;
  to->items[to->count++] = item;
  return true;
}

static json_t *parse_value(struct reader *reader);

/* The reader is at the key. */
static bool parse_member(struct reader *reader, json_t *object) {
  if (reader->token != TOKEN_STRING) {
    fail(reader, json_error_invalid_syntax, "string or '}' expected");
    return false;
  }
  if (strlen(reader->string) != reader->string_size) {
    fail(reader, json_error_null_character, "NUL byte in object key not supported");
    return false;
  }
  if (json_object_get(object, reader->string) != NULL) {
    fail(reader, json_error_duplicate_key, "duplicate object key");
    return false;
  }
  char *key = reader->string;
  reader->string = NULL;
  scan(reader);
  if (!is(reader, ':')) {
    fail(reader, json_error_invalid_syntax, "':' expected");
    free(key);
    return false;
  }
  scan(reader);
  json_t *value = parse_value(reader);
  if (value == NULL) {
    free(key);
    return false;
  }
  value->key = key;
  return append(reader, object, value);
}

static json_t *parse_object(struct reader *reader) {
  json_t *object = make(reader, KIND_OBJECT);
  scan(reader);
  if (object == NULL || is(reader, '}')) {
    return object;
  }
  while (parse_member(reader, object)) {
    scan(reader);
    if (is(reader, '}')) {
      return object;
    }
    if (!is(reader, ',')) {
      fail(reader, json_error_invalid_syntax, "'}' expected");
      break;
    }
    scan(reader);
  }
  json_decref(object);
  return NULL;
}

static json_t *parse_array(struct reader *reader) {
  json_t *array = make(reader, KIND_ARRAY);
  scan(reader);
  if (array == NULL || is(reader, ']')) {
    return array;
  }
  while (reader->token != TOKEN_END && append(reader, array, parse_value(reader))) {
    scan(reader);
    if (is(reader, ']')) {
      return array;
    }
    if (!is(reader, ',')) {
      break;
    }
    scan(reader);
  }
  fail(reader, json_error_invalid_syntax, "']' expected");
  json_decref(array);
  return NULL;
}

static json_t *parse_string(struct reader *reader) {
  if (strlen(reader->string) != reader->string_size) {
    fail(reader, json_error_null_character, "\\u0000 is not allowed without JSON_ALLOW_NUL");
    return NULL;
  }
  json_t *value = make(reader, KIND_STRING);
  if (value != NULL) {
    value->string = reader->string;
    reader->string = NULL;
  }
  return value;
}

static json_t *parse_value(struct reader *reader) {
  json_t *value = NULL;
  if (++reader->depth > DEPTH_MAX) {
    fail(reader, json_error_stack_overflow, "maximum parsing depth reached");
    return NULL;
  }
  if (is(reader, '{')) {
    value = parse_object(reader);
  } else if (is(reader, '[')) {
    value = parse_array(reader);
  } else if (reader->token == TOKEN_STRING) {
    value = parse_string(reader);
  } else if (reader->token == TOKEN_NUMBER) {
    value = make(reader, KIND_REAL);
    if (value != NULL) {
      value->real = reader->number;
    }
  } else if (reader->token == TOKEN_WORD) {
    value = make(reader, KIND_WORD);
    if (value != NULL) {
      value->letter = reader->text[reader->begin];
    }
  } else {
    fail(reader, json_error_invalid_syntax,
         reader->token == TOKEN_INVALID ? "invalid token" : "unexpected token");
  }
  reader->depth--;
  return value;
}

json_t *json_loadb(const char *text, size_t size, size_t flags, json_error_t *error) {
  struct reader reader = {.text = (const unsigned char *)text, .size = size, .error = error};
  json_t *document = NULL;
  (void)flags; /* both are always on */
  scan(&reader);
  if (is(&reader, '{') || is(&reader, '[')) {
    document = parse_value(&reader);
  } else {
    fail(&reader, json_error_invalid_syntax, "'[' or '{' expected");
  }
  if (document != NULL) {
    scan(&reader);
    if (reader.token != TOKEN_END) {
      fail(&reader, json_error_end_of_input_expected, "end of file expected");
      json_decref(document);
      document = NULL;
    }
  }
  free(reader.string);
  return document;
}

/* ---- Looking at values ---- */

static bool has_kind(const json_t *value, enum kind kind) {
  return value != NULL && value->kind == kind;
}

bool json_is_object(const json_t *value) { return has_kind(value, KIND_OBJECT); }
bool json_is_array(const json_t *value) { return has_kind(value, KIND_ARRAY); }
bool json_is_real(const json_t *value) { return has_kind(value, KIND_REAL); }

bool json_is_boolean(const json_t *value) {
  return has_kind(value, KIND_WORD) && value->letter != 'n';
}
bool json_is_null(const json_t *value) {
  return has_kind(value, KIND_WORD) && value->letter == 'n';
}
bool json_is_true(const json_t *value) {
  return has_kind(value, KIND_WORD) && value->letter == 't';
}

double json_real_value(const json_t *value) { return json_is_real(value) ? value->real : 0; }

const char *json_string_value(const json_t *value) {
  return has_kind(value, KIND_STRING) ? value->string : NULL;
}

size_t json_array_size(const json_t *value) { return json_is_array(value) ? value->count : 0; }

json_t *json_array_get(const json_t *value, size_t index) {
  return index < json_array_size(value) ? value->items[index] : NULL;
}

json_t *json_object_get(const json_t *value, const char *key) {
  for (size_t i = 0; json_is_object(value) && i < value->count; i++) {
    if (strcmp(value->items[i]->key, key) == 0) {
      return value->items[i];
    }
  }
  return NULL;
}

static json_t *member_at(const json_t *object, size_t index, const char **key) {
  if (!json_is_object(object) || index >= object->count) {
    return NULL;
  }
  *key = object->items[index]->key;
  return object->items[index];
}

json_t *json_first_member(const json_t *object, const char **key) {
  return member_at(object, 0, key);
}

json_t *json_next_member(const json_t *member, const char **key) {
  return member_at(member->parent, member->ordinal + 1, key);
}
