/* What the readers of JSON files share. */
#include "spec/json_document.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "base/plain_text.h"

/* ---- Places ---- */

struct level {
  char bracket; /* '{' or '[' */
  uint64_t ordinal;
  size_t key_begin, key_end; /* without quotes; of the member being read */
};

struct scan {
  const char *text;
  size_t size;
  size_t begin, end; /* the token */
  size_t depth;      /* levels open */
  bool at_key;       /* a string now is a key */
  char opened;       /* the token opened this level, which begins after it */
  struct level levels[WEFT_JSON_DEPTH_MAX];
};

static struct level *top(struct scan *scan) {
  return scan->depth > 0 && scan->depth <= WEFT_JSON_DEPTH_MAX ? &scan->levels[scan->depth - 1]
                                                               : NULL;
}

static void open_level(struct scan *scan) {
  scan->depth++;
  struct level *level = top(scan);
  if (level != NULL) {
    *level = (struct level){.bracket = scan->opened};
  }
  scan->at_key = level != NULL && scan->opened == '{';
  scan->opened = '\0';
}

static size_t string_end(const struct scan *scan) {
  size_t at = scan->begin + 1;
  while (at < scan->size && scan->text[at] != '"') {
    at += scan->text[at] == '\\' ? 2 : 1;
  }
  return at < scan->size ? at + 1 : scan->size;
}

static size_t word_end(const struct scan *scan) {
  size_t at = scan->begin + 1;
  while (at < scan->size && strchr("{}[]:,\" \t\r\n", scan->text[at]) == NULL) {
    at++;
  }
  return at;
}

static void take_separator(struct scan *scan, char byte) {
  struct level *level = top(scan);
  if (byte == ',' && level != NULL) {
    level->ordinal++;
    level->key_begin = level->key_end = 0;
    scan->at_key = level->bracket == '{';
  } else if ((byte == '}' || byte == ']') && scan->depth > 0) {
    scan->depth--;
    scan->at_key = false;
  }
}

/* A string that is a key; true when it was one. */
static bool take_key(struct scan *scan) {
  struct level *level = top(scan);
  if (!scan->at_key || level == NULL) {
    return false;
  }
  level->key_begin = scan->begin + 1;
  level->key_end = scan->end > scan->begin + 1 ? scan->end - 1 : scan->end;
  scan->at_key = false;
  return true;
}

/* The next token; true when it begins a value. False at the end as well, with
 * begin at the text's size. */
static bool next(struct scan *scan) {
  if (scan->opened != '\0') {
    open_level(scan);
  }
  scan->begin = scan->end;
  while (scan->begin < scan->size && memchr(" \t\r\n", scan->text[scan->begin], 4) != NULL) {
    scan->begin++;
  }
  scan->end = scan->begin;
  if (scan->begin == scan->size) {
    return false;
  }
  const char byte = scan->text[scan->begin];
  scan->end = scan->begin + 1;
  switch (byte) {
    case '{':
    case '[': scan->opened = byte; return true;
    case '}':
    case ']':
    case ',':
    case ':': take_separator(scan, byte); return false;
    case '"': scan->end = string_end(scan); return !take_key(scan);
    default: scan->end = word_end(scan); return true;
  }
}

static bool is_at(const struct scan *scan, const struct weft_json_path *path) {
  if (scan->depth != path->depth) {
    return false;
  }
  for (unsigned k = 0; k < path->depth; k++) {
    if (scan->levels[k].ordinal != path->ordinals[k]) {
      return false;
    }
  }
  return true;
}

/* ---- Places ---- */

static void name_field(const struct scan *scan, char *field, size_t size) {
  int used = 0;
  const size_t depth = scan->depth < WEFT_JSON_DEPTH_MAX ? scan->depth : WEFT_JSON_DEPTH_MAX;
  field[0] = '\0';
  for (size_t k = 0; k < depth && (size_t)used < size; k++) {
    const struct level *level = &scan->levels[k];
    char key[48];
    if (level->bracket == '[') {
      used += snprintf(field + used, size - (size_t)used, "[%" PRIu64 "]", level->ordinal);
    } else if (level->key_end > level->key_begin) {
      used += snprintf(field + used, size - (size_t)used, "%s%s", k > 0 ? "." : "",
                       weft_escape(key, sizeof key, scan->text + level->key_begin,
                                   level->key_end - level->key_begin));
    }
  }
  weft_mark_cut(field, size, used);
}

static void point_at(struct weft_json_location *location, const char *text, size_t offset) {
  assert(location != NULL && text != NULL);
  location->line = 1;
  size_t line_begin = 0;
  for (size_t at = 0; at < offset; at++) {
    if (text[at] == '\n') {
      location->line++;
      line_begin = at + 1;
    }
  }
  location->column = offset - line_begin + 1;
}

static struct weft_json_location location_of(const struct scan *scan, bool found) {
  struct weft_json_location location = {.begin = scan->begin, .end = scan->end, .found = found};
  location.key = scan->begin;
  if (scan->depth > 0 && scan->depth <= WEFT_JSON_DEPTH_MAX) {
    const struct level *level = &scan->levels[scan->depth - 1];
    location.key = level->key_begin > 0 ? level->key_begin - 1 : scan->begin;
  }
  name_field(scan, location.field, sizeof location.field);
  point_at(&location, scan->text, location.begin);
  return location;
}

/* Where the value being read is. */
static struct weft_json_location find_value(const struct weft_json_document *document) {
  assert(document->text != NULL || document->size == 0);
  struct scan scan = {.text = document->text, .size = document->size};
  do {
    if (next(&scan) && is_at(&scan, &document->path)) {
      return location_of(&scan, true);
    }
  } while (scan.begin < document->size);
  return location_of(&scan, false);
}

/* The last token that begins before `offset`, or the first one, and the field that it belongs to. */
static struct weft_json_location location_at(const char *text, size_t size, size_t offset) {
  assert(offset <= size);
  struct scan scan = {.text = text, .size = size};
  struct scan last = scan;
  for (;;) {
    (void)next(&scan);
    if (scan.begin >= offset || scan.begin >= size) {
      return location_of(last.end == 0 ? &scan : &last, true);
    }
    last = scan;
  }
}

enum weft_status weft_json_document_fail(const struct weft_json_document *document,
                                         const struct weft_json_location *location,
                                         enum weft_status status, const char *hint,
                                         const char *format, ...) {
  char name[128], what[448];
  const struct weft_json_location at = location != NULL ? *location : find_value(document);
  va_list arguments;
  va_start(arguments, format);
  weft_mark_cut(what, sizeof what, vsnprintf(what, sizeof what, format, arguments));
  va_end(arguments);
  weft_escape(name, sizeof name, document->name, strlen(document->name));
  (void)weft_fail(document->error, status, hint != NULL ? hint : document->hint,
                  "%s:%" PRIu64 ":%" PRIu64 ": %s%s%s", name, at.line, at.column, at.field,
                  at.field[0] != '\0' ? ": " : "", what);
  if (document->error != NULL) {
    document->error->line = at.line;
    document->error->column = at.column;
  }
  return status;
}

/* The token at a place, as the file has it. */
static const char *found_at(const struct weft_json_document *document,
                            const struct weft_json_location *location, char *buffer, size_t size) {
  if (location->begin >= document->size) {
    return "the end of the file";
  }
  switch (document->text[location->begin]) {
    case '{': return "an object";
    case '[': return "a list";
    default:
      return weft_escape(buffer, size, document->text + location->begin,
                         location->end - location->begin);
  }
}

enum weft_status weft_json_document_unexpected(const struct weft_json_document *document,
                                               const char *hint, const char *expected) {
  const struct weft_json_location location = find_value(document);
  char found[48];
  return weft_json_document_fail(document, &location, WEFT_ERR_FORMAT, hint,
                                 "expected %s, found %s", expected,
                                 found_at(document, &location, found, sizeof found));
}

enum weft_status weft_json_document_require(const struct weft_json_document *document,
                                            const json_t *object, const char *hint, const char *key,
                                            const char *expected) {
  assert(object != NULL && key != NULL && expected != NULL);
  return json_object_get(object, key) != NULL
             ? WEFT_OK
             : weft_json_document_fail(document, NULL, WEFT_ERR_FORMAT, hint,
                                       "%s is missing: expected %s", key, expected);
}

/* ---- Lists and objects ---- */

uint64_t *weft_json_document_enter(struct weft_json_document *document) {
  assert(document->path.depth < WEFT_JSON_DEPTH_MAX);
  uint64_t *ordinal = &document->path.ordinals[document->path.depth++];
  *ordinal = 0;
  return ordinal;
}

void weft_json_document_leave(struct weft_json_document *document) {
  assert(document->path.depth > 0);
  document->path.depth--;
}

enum weft_status weft_json_document_check_list(const struct weft_json_document *document,
                                               const json_t *list, const char *expected,
                                               uint32_t limit, const char *limit_hint) {
  if (!json_is_array(list)) {
    return weft_json_document_unexpected(document, document->example, expected);
  }
  const size_t count = json_array_size(list);
  if (count > 0 && count <= limit) {
    return WEFT_OK;
  }
  return count == 0 ? weft_json_document_fail(document, NULL, WEFT_ERR_FORMAT, document->example,
                                              "expected at least one entry, found an empty list")
                    : weft_json_document_fail(document, NULL, WEFT_ERR_LIMIT, limit_hint,
                                              "%zu entries; the limit is %" PRIu32, count, limit);
}

enum weft_status weft_json_document_unknown(const struct weft_json_document *document,
                                            const void *table, size_t size) {
  struct weft_json_location location = find_value(document);
  char known[192] = "";
  size_t used = 0;
  for (const char *entry = table; used < sizeof known; entry += size) {
    const char *name = *(const char *const *)(const void *)entry;
    if (name == NULL) {
      break;
    }
    used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "", name);
  }
  point_at(&location, document->text, location.key);
  return weft_json_document_fail(document, &location, WEFT_ERR_FORMAT, document->unknown_hint,
                                 "unknown field; expected %s", known);
}

enum weft_status weft_json_document_read(void *reader, json_t *object,
                                         const struct weft_json_member *members, void *into) {
  struct weft_json_document *document = reader; /* its first member */
  uint64_t *ordinal = weft_json_document_enter(document);
  const char *key;
  json_t *value;
  json_object_foreach(object, key, value) {
    const struct weft_json_member *member = members;
    while (member->name != NULL && strcmp(member->name, key) != 0) {
      member++;
    }
    if (member->name == NULL) {
      return weft_json_document_unknown(document, members, sizeof *members);
    }
    if (member->read != NULL) {
      void *at = into != NULL ? (char *)into + member->offset : NULL;
      WEFT_TRY(member->read(reader, value, at));
    }
    ++*ordinal;
  }
  weft_json_document_leave(document);
  return WEFT_OK;
}

/* ---- The text ---- */

static enum weft_status check_limits(const struct weft_json_document *document, size_t bytes_max,
                                     uint32_t commas_max) {
  uint64_t commas = 0;
  if (document->size > bytes_max) {
    return weft_fail(document->error, WEFT_ERR_LIMIT, document->hint,
                     "%zu bytes of %s; the limit is %zu", document->size, document->what,
                     bytes_max);
  }
  for (size_t i = 0; i < document->size; i++) {
    commas += document->text[i] == ',';
  }
  if (commas > commas_max) {
    return weft_fail(document->error, WEFT_ERR_LIMIT, document->hint,
                     "%" PRIu64 " values in %s; the limit is %" PRIu32, commas, document->what,
                     commas_max);
  }
  return WEFT_OK;
}

/* jansson's message may quote the text. */
static enum weft_status fail_syntax(const struct weft_json_document *document,
                                    const json_error_t *wrong) {
  const enum json_error_code code = json_error_code(wrong);
  char words[192];
  if (code == json_error_out_of_memory) {
    return weft_fail_memory(document->error, document->size);
  }
  const bool at_end = code == json_error_premature_end_of_input;
  const size_t position = wrong->position > 0 && !at_end ? (size_t)wrong->position : 0;
  struct weft_json_location location =
      location_at(document->text, document->size, at_end ? document->size : position);
  if (at_end) {
    point_at(&location, document->text, document->size);
  }
  if (code == json_error_numeric_overflow && document->numbers != NULL) {
    return weft_json_document_fail(document, &location, WEFT_ERR_FORMAT, document->numbers_hint,
                                   "expected %s, found %s", document->numbers,
                                   found_at(document, &location, words, 48));
  }
  return weft_json_document_fail(
      document, &location, WEFT_ERR_FORMAT, document->syntax_hint, "not JSON: %s",
      weft_escape(words, sizeof words, wrong->text, strlen(wrong->text)));
}

enum weft_status weft_json_document_load(const struct weft_json_document *document,
                                         size_t bytes_max, uint32_t commas_max, size_t flags,
                                         json_t **out) {
  assert(document->name != NULL && out != NULL);
  json_error_t wrong;
  WEFT_TRY(check_limits(document, bytes_max, commas_max));
  *out = json_loadb(document->text, document->size, JSON_REJECT_DUPLICATES | flags, &wrong);
  return *out != NULL ? WEFT_OK : fail_syntax(document, &wrong);
}
