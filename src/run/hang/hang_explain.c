/* Explains a dump: prints the sentence of each rank and the diagnosis, which the dump carries. Other
 * fields are for programs, and are not looked at. */
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "run/hang/hang.h"
#include "spec/json_document.h"

#define TEXT_BYTES_MAX ((size_t)256 << 20)
/* A rank has 13 values, 16 actions with 3 each, 3 commas in its sentence, and a place in a cycle. */
#define COMMAS_MAX (WEFT_RANKS_MAX * UINT32_C(80))

#define EXPECTED_RANK "the number of a rank, or null"

struct reader {
  struct weft_json_document document;
  struct weft_text *text; /* the explanation so far */
  struct weft_json *json; /* the same as JSON; NULL: in words */
};

/* ---- Values ---- */

static bool is_rank(const json_t *value) {
  return json_is_integer(value) && json_integer_value(value) >= 0 &&
         json_integer_value(value) < (json_int_t)WEFT_RANKS_MAX;
}

/* Goes to the member `key` of an object, which must be there; reader->document.path names it. */
static enum weft_status enter(struct reader *reader, json_t *object, const char *key,
                              const char *expected, json_t **out) {
  struct weft_json_path *path = &reader->document.path;
  if (!json_is_object(object)) {
    return weft_json_document_unexpected(&reader->document, NULL, "an object");
  }
  WEFT_TRY(weft_json_document_require(&reader->document, object, NULL, key, expected));
  uint64_t ordinal = 0;
  for (void *at = json_object_iter(object); strcmp(json_object_iter_key(at), key) != 0;
       at = json_object_iter_next(object, at)) {
    ordinal++;
  }
  path->ordinals[path->depth++] = ordinal;
  *out = json_object_get(object, key);
  return WEFT_OK;
}

static void leave(struct reader *reader) { reader->document.path.depth--; }

static enum weft_status read_text(struct reader *reader, json_t *object, const char *key,
                                  const char **out) {
  json_t *value;
  WEFT_TRY(enter(reader, object, key, "a text", &value));
  if (!json_is_string(value)) {
    return weft_json_document_unexpected(&reader->document, NULL, "a text");
  }
  *out = json_string_value(value);
  leave(reader);
  return WEFT_OK;
}

static void add_escaped(struct weft_text *text, const char *label, const char *words) {
  weft_text_add(text, label);
  weft_text_add_escaped(text, words, strlen(words));
  weft_text_add(text, "\n");
}

/* ---- Ranks ---- */

static enum weft_status explain_ranks(struct reader *reader, json_t *dump) {
  struct weft_json_path *path = &reader->document.path;
  json_t *ranks;
  WEFT_TRY(enter(reader, dump, "ranks", "a list with an object for each rank", &ranks));
  if (!json_is_array(ranks) || json_array_size(ranks) == 0 ||
      json_array_size(ranks) > WEFT_RANKS_MAX) {
    return weft_json_document_unexpected(&reader->document, NULL, "a list with 1 to 65536 ranks");
  }
  path->depth++;
  for (size_t r = 0; r < json_array_size(ranks); r++) {
    const char *says;
    path->ordinals[path->depth - 1] = r;
    WEFT_TRY(read_text(reader, json_array_get(ranks, r), "says", &says));
    if (reader->json == NULL) {
      weft_text_addf(reader->text, "rank %zu", r);
      add_escaped(reader->text, ": ", says);
    }
  }
  leave(reader);
  leave(reader);
  return WEFT_OK;
}

/* ---- The diagnosis ---- */

struct diagnosis {
  const json_t *culprit; /* a rank, or null */
  const json_t *cycle;   /* a list of ranks */
  const char *message, *hint;
};

static enum weft_status read_culprit(struct reader *reader, json_t *object,
                                     struct diagnosis *diagnosis) {
  json_t *value;
  WEFT_TRY(enter(reader, object, "culprit", EXPECTED_RANK, &value));
  if (!json_is_null(value) && !is_rank(value)) {
    return weft_json_document_unexpected(&reader->document, NULL, EXPECTED_RANK);
  }
  diagnosis->culprit = value;
  leave(reader);
  return WEFT_OK;
}

static enum weft_status read_cycle(struct reader *reader, json_t *object,
                                   struct diagnosis *diagnosis) {
  json_t *value;
  WEFT_TRY(enter(reader, object, "cycle", "a list of ranks", &value));
  bool is_list = json_is_array(value);
  for (size_t k = 0; is_list && k < json_array_size(value); k++) {
    is_list = is_rank(json_array_get(value, k));
  }
  if (!is_list) {
    return weft_json_document_unexpected(&reader->document, NULL, "a list of ranks");
  }
  diagnosis->cycle = value;
  leave(reader);
  return WEFT_OK;
}

static void add_diagnosis(struct weft_text *text, const struct diagnosis *diagnosis) {
  add_escaped(text, "\nverdict: ", diagnosis->message);
  if (json_array_size(diagnosis->cycle) > 0) {
    weft_text_add(text, "cycle: ranks");
    for (size_t k = 0; k < json_array_size(diagnosis->cycle); k++) {
      weft_text_addf(text, " %" PRIu32,
                     (uint32_t)json_integer_value(json_array_get(diagnosis->cycle, k)));
    }
    weft_text_add(text, "\n");
  } else if (json_is_null(diagnosis->culprit)) {
    weft_text_add(text, "culprit: unknown\n");
  } else {
    weft_text_addf(text, "culprit: rank %" PRIu32 "\n",
                   (uint32_t)json_integer_value(diagnosis->culprit));
  }
  if (diagnosis->hint[0] != '\0') {
    add_escaped(text, "hint: ", diagnosis->hint);
  }
}

static void write_diagnosis(struct weft_json *json, const struct diagnosis *diagnosis) {
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "schema", "weft-explain-hang/1");
  weft_json_optional(json, "culprit", !json_is_null(diagnosis->culprit),
                     (uint64_t)json_integer_value(diagnosis->culprit));
  weft_json_open(json, "cycle", '[');
  for (size_t k = 0; k < json_array_size(diagnosis->cycle); k++) {
    weft_json_number(json, NULL, (uint64_t)json_integer_value(json_array_get(diagnosis->cycle, k)));
  }
  weft_json_close(json, ']');
  weft_json_string(json, "message", diagnosis->message);
  weft_json_string(json, "hint", diagnosis->hint);
  weft_json_close(json, '}');
  weft_json_finish(json);
}

static enum weft_status explain_diagnosis(struct reader *reader, json_t *dump) {
  struct diagnosis diagnosis;
  json_t *object;
  WEFT_TRY(enter(reader, dump, "diagnosis", "an object", &object));
  WEFT_TRY(read_culprit(reader, object, &diagnosis));
  WEFT_TRY(read_cycle(reader, object, &diagnosis));
  WEFT_TRY(read_text(reader, object, "message", &diagnosis.message));
  WEFT_TRY(read_text(reader, object, "hint", &diagnosis.hint));
  leave(reader);
  if (reader->json != NULL) {
    write_diagnosis(reader->json, &diagnosis);
  } else {
    add_diagnosis(reader->text, &diagnosis);
  }
  return WEFT_OK;
}

/* ---- The dump ---- */

static enum weft_status check_schema(struct reader *reader, json_t *dump) {
  const char *schema;
  WEFT_TRY(read_text(reader, dump, "schema", &schema));
  if (strcmp(schema, WEFT_HANG_SCHEMA) == 0) {
    return WEFT_OK;
  }
  reader->document.path.depth++; /* its ordinal is still there */
  return weft_json_document_unexpected(&reader->document, NULL,
                                       "\"" WEFT_HANG_SCHEMA
                                       "\" (what another version of Weft has "
                                       "written is explained by that version)");
}

static enum weft_status explain(struct weft_json *json, const char *dump, size_t size,
                                const char *name, struct weft_text *text,
                                struct weft_error *error) {
  struct reader reader = {.document = {.text = dump,
                                       .size = size,
                                       .name = name != NULL ? name : "dump",
                                       .what = "a dump",
                                       .hint = "a dump is what weft_hang_dump() writes",
                                       .error = error},
                          .text = text,
                          .json = json};
  json_t *document;
  WEFT_TRY(weft_json_document_load(&reader.document, TEXT_BYTES_MAX, COMMAS_MAX, 0, &document));
  enum weft_status status = check_schema(&reader, document);
  status = status < 0 ? status : explain_ranks(&reader, document);
  status = status < 0 ? status : explain_diagnosis(&reader, document);
  json_decref(document);
  return status < 0 ? status : weft_text_status(text, error);
}

/* Outputs are written only on success. */
static enum weft_status explain_into(bool as_json, const char *dump, size_t size, const char *name,
                                     struct weft_text *text, struct weft_error *error) {
  WEFT_NEED(text, error);
  if (size > 0) {
    WEFT_NEED(dump, error);
  }
  struct weft_text words = {.allocator = text->allocator};
  struct weft_json json = {.text = &words};
  const enum weft_status status = explain(as_json ? &json : NULL, dump, size, name, &words, error);
  if (status == WEFT_OK) {
    weft_text_append(text, words.data, words.size);
  }
  weft_text_finish(&words);
  return status < 0 ? status : weft_text_status(text, error);
}

enum weft_status weft_hang_explain(const char *dump, size_t size, const char *name,
                                   struct weft_text *text, struct weft_error *error) {
  return explain_into(false, dump, size, name, text, error);
}

enum weft_status weft_hang_explain_json(const char *dump, size_t size, const char *name,
                                        struct weft_text *text, struct weft_error *error) {
  return explain_into(true, dump, size, name, text, error);
}
