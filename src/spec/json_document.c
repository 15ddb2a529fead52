/* What the readers of JSON files share. */
#include "spec/json_document.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

enum weft_status weft_json_document_fail(const struct weft_json_document *document,
                                         const struct weft_json_place *place,
                                         enum weft_status status, const char *hint,
                                         const char *format, ...) {
  char name[128], what[256];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  weft_escape(name, sizeof name, document->name, strlen(document->name));
  (void)weft_fail(document->error, status, hint != NULL ? hint : document->hint,
                  "%s:%" PRIu64 ":%" PRIu64 ": %s%s%s", name, place->line, place->column,
                  place->field, place->field[0] != '\0' ? ": " : "", what);
  if (document->error != NULL) {
    document->error->line = place->line;
    document->error->column = place->column;
  }
  return status;
}

struct weft_json_place weft_json_document_here(const struct weft_json_document *document) {
  return weft_json_find(document->text, document->size, &document->path);
}

/* The token at a place, as the file has it. */
static const char *found_at(const struct weft_json_document *document,
                            const struct weft_json_place *place, char *buffer, size_t size) {
  if (place->begin >= document->size) {
    return "the end of the file";
  }
  switch (document->text[place->begin]) {
    case '{': return "an object";
    case '[': return "a list";
    default:
      return weft_escape(buffer, size, document->text + place->begin, place->end - place->begin);
  }
}

enum weft_status weft_json_document_unexpected(const struct weft_json_document *document,
                                               const char *hint, const char *expected) {
  const struct weft_json_place place = weft_json_document_here(document);
  char found[48];
  return weft_json_document_fail(document, &place, WEFT_ERR_FORMAT, hint, "expected %s, found %s",
                                 expected, found_at(document, &place, found, sizeof found));
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
  struct weft_json_place place =
      weft_json_at(document->text, document->size, at_end ? document->size : position);
  if (at_end) {
    weft_json_point(&place, document->text, document->size);
  }
  if (code == json_error_numeric_overflow && document->numbers != NULL) {
    return weft_json_document_fail(document, &place, WEFT_ERR_FORMAT, document->numbers_hint,
                                   "expected %s, found %s", document->numbers,
                                   found_at(document, &place, words, 48));
  }
  return weft_json_document_fail(
      document, &place, WEFT_ERR_FORMAT, document->syntax_hint, "not JSON: %s",
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
