/* Explains a dump: prints the sentence of each rank and the diagnosis, which the dump carries. Other
 * fields are for programs, and are not read. */
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "run/hang/hang.h"
#include "spec/json_document.h"

#define TEXT_BYTES_MAX ((size_t)256 << 20)
/* A rank has 13 values, 16 actions with 3 each, 3 commas in its sentence, and a place in a cycle. */
#define COMMAS_MAX (WEFT_RANKS_MAX * UINT32_C(80))

/* What is read of a dump; it belongs to the document. */
struct dump {
  json_t *ranks, *culprit, *cycle; /* objects with `says`; a rank, or null; ranks */
  const char *message, *hint;
};

static bool is_rank(const json_t *value) {
  return json_is_integer(value) && json_integer_value(value) >= 0 &&
         json_integer_value(value) < (json_int_t)WEFT_RANKS_MAX;
}

static enum weft_status fail_dump(const struct weft_json_document *document, const char *what) {
  return weft_json_document_fail(document, NULL, WEFT_ERR_FORMAT, NULL, "not a dump: %s", what);
}

static enum weft_status read_dump(const struct weft_json_document *document, json_t *json,
                                  struct dump *dump) {
  const char *schema;
  json_error_t reason;
  if (json_unpack_ex(json, &reason, 0, "{s:s}", "schema", &schema) < 0) {
    return fail_dump(document, reason.text);
  }
  if (strcmp(schema, WEFT_HANG_SCHEMA) != 0) {
    return fail_dump(document, "its schema is not \"" WEFT_HANG_SCHEMA
                               "\"; what another version of Weft has written is explained by that "
                               "version");
  }
  if (json_unpack_ex(json, &reason, 0, "{s:o, s:{s:o, s:o, s:s, s:s}}", "ranks", &dump->ranks,
                     "diagnosis", "culprit", &dump->culprit, "cycle", &dump->cycle, "message",
                     &dump->message, "hint", &dump->hint) < 0) {
    return fail_dump(document, reason.text);
  }
  const size_t count = json_array_size(dump->ranks);
  bool is_valid = json_is_array(dump->cycle);
  for (size_t k = 0; k < json_array_size(dump->cycle); k++) {
    is_valid = is_valid && is_rank(json_array_get(dump->cycle, k));
  }
  if (!is_valid || (!json_is_null(dump->culprit) && !is_rank(dump->culprit))) {
    return fail_dump(document,
                     "diagnosis.culprit is the number of a rank, or null, and .cycle a "
                     "list of ranks");
  }
  if (count == 0 || count > WEFT_RANKS_MAX) {
    return fail_dump(document, "ranks is a list with 1 to 65536 ranks");
  }
  for (size_t r = 0; r < count; r++) {
    if (!json_is_string(json_object_get(json_array_get(dump->ranks, r), "says"))) {
      return fail_dump(document, "each of ranks has a text `says`");
    }
  }
  return WEFT_OK;
}

static void add_escaped(struct weft_text *text, const char *label, const char *words) {
  weft_text_add(text, label);
  weft_text_add_escaped(text, words, strlen(words));
  weft_text_add(text, "\n");
}

static void add_words(struct weft_text *text, const struct dump *dump) {
  for (size_t r = 0; r < json_array_size(dump->ranks); r++) {
    weft_text_addf(text, "rank %zu", r);
    add_escaped(text, ": ",
                json_string_value(json_object_get(json_array_get(dump->ranks, r), "says")));
  }
  add_escaped(text, "\nverdict: ", dump->message);
  if (json_array_size(dump->cycle) > 0) {
    weft_text_add(text, "cycle: ranks");
    for (size_t k = 0; k < json_array_size(dump->cycle); k++) {
      weft_text_addf(text, " %" PRIu32,
                     (uint32_t)json_integer_value(json_array_get(dump->cycle, k)));
    }
    weft_text_add(text, "\n");
  } else if (json_is_null(dump->culprit)) {
    weft_text_add(text, "culprit: unknown\n");
  } else {
    weft_text_addf(text, "culprit: rank %" PRIu32 "\n",
                   (uint32_t)json_integer_value(dump->culprit));
  }
  if (dump->hint[0] != '\0') {
    add_escaped(text, "hint: ", dump->hint);
  }
}

static void add_json(struct weft_text *text, const struct dump *dump) {
  struct weft_json json = weft_json_begin(text, "weft-explain-hang/1");
  weft_json_optional(&json, "culprit", !json_is_null(dump->culprit),
                     (uint64_t)json_integer_value(dump->culprit));
  weft_json_open(&json, "cycle", '[');
  for (size_t k = 0; k < json_array_size(dump->cycle); k++) {
    weft_json_number(&json, NULL, (uint64_t)json_integer_value(json_array_get(dump->cycle, k)));
  }
  weft_json_close(&json, ']');
  weft_json_string(&json, "message", dump->message);
  weft_json_string(&json, "hint", dump->hint);
  weft_json_end(&json);
}

/* Outputs are written only on success. */
static enum weft_status explain_dump(void (*add)(struct weft_text *text, const struct dump *dump),
                                     const char *dump, size_t size, const char *name,
                                     struct weft_text *text, struct weft_error *error) {
  WEFT_NEED(text, error);
  if (size > 0) {
    WEFT_NEED(dump, error);
  }
  const struct weft_json_document document = {.text = dump,
                                              .size = size,
                                              .name = name != NULL ? name : "dump",
                                              .what = "a dump",
                                              .hint = "a dump is what weft_hang_dump() writes",
                                              .error = error};
  WEFT_SCOPED_TEXT words = {.allocator = text->allocator};
  struct dump read = {0};
  json_t *json;
  WEFT_TRY(weft_json_document_load(&document, TEXT_BYTES_MAX, COMMAS_MAX, 0, &json));
  const enum weft_status status = read_dump(&document, json, &read);
  if (status == WEFT_OK) {
    add(&words, &read);
  }
  json_decref(json);
  WEFT_TRY(status);
  WEFT_TRY(weft_text_status(&words, error));
  weft_text_append(text, words.data, words.size);
  return weft_text_status(text, error);
}

enum weft_status weft_hang_explain(const char *dump, size_t size, const char *name,
                                   struct weft_text *text, struct weft_error *error) {
  return explain_dump(add_words, dump, size, name, text, error);
}

enum weft_status weft_hang_explain_json(const char *dump, size_t size, const char *name,
                                        struct weft_text *text, struct weft_error *error) {
  return explain_dump(add_json, dump, size, name, text, error);
}
