/* A JSON file that is read strictly: its limits, its parser, and messages that name the file, the
 * place, the field, what was found and what was expected.
 *
 * jansson takes memory from malloc(): its hook is global, and this library has no global state.
 * What it can take is bounded before it begins, by the size of the text and by the number of
 * values in it. */
#ifndef SPEC_JSON_DOCUMENT_H
#define SPEC_JSON_DOCUMENT_H

#include <jansson.h>

#include <weft/base.h>

enum { WEFT_JSON_DEPTH_MAX = 4 }; /* levels that a path can name; deeper ones are skipped */

/* "The second member of the first element of the third member." */
struct weft_json_path {
  unsigned depth; /* 0: the document itself */
  uint64_t ordinals[WEFT_JSON_DEPTH_MAX];
};

struct weft_json_location {
  size_t begin; /* of the value's first token, a bracket for lists and objects */
  size_t end;   /* of that token */
  size_t key;   /* of the member's key; `begin` where there is none */
  uint64_t line;
  uint64_t column; /* of `begin`; both count from 1 */
  char field[160]; /* "stages[3].f"; "" for the document; bytes escaped */
  bool found;      /* false: the text ended before it, all else is of the text's end */
};

struct weft_json_document {
  const char *text;
  size_t size;
  const char *name;                   /* of the file */
  const char *what;                   /* "costs", for messages about limits */
  const char *hint;                   /* where no other fits */
  const char *example;                /* for a list that is none, or empty; NULL: `hint` */
  const char *unknown_hint;           /* for a member that nobody knows; NULL: `hint` */
  const char *syntax_hint;            /* for what is not JSON; NULL: `hint` */
  const char *numbers, *numbers_hint; /* expected where a number is too large; NULL: not JSON */
  struct weft_json_path path;         /* to the value being read */
  struct weft_error *error;
};

/* WEFT_ERR_LIMIT for more bytes, or commas, than these. The caller gives *out back by
 * json_decref(). */
enum weft_status weft_json_document_load(const struct weft_json_document *document,
                                         size_t bytes_max, uint32_t commas_max, size_t flags,
                                         json_t **out);

/* "file:line:column: field: ..."; location NULL: where the value being read is; hint NULL: the
 * document's. */
enum weft_status weft_json_document_fail(const struct weft_json_document *document,
                                         const struct weft_json_location *location,
                                         enum weft_status status, const char *hint,
                                         const char *format, ...) WEFT_PRINTF(5, 6);
/* The value being read is not the expected one. */
enum weft_status weft_json_document_unexpected(const struct weft_json_document *document,
                                               const char *hint, const char *expected);

/* Fails where an object has no member `key`: "key is missing: expected ...". */
enum weft_status weft_json_document_require(const struct weft_json_document *document,
                                            const json_t *object, const char *hint, const char *key,
                                            const char *expected);

/* ---- Lists and objects ---- */

/* Goes into the value being read. Returns the ordinal of what is read of it, which begins at 0. */
uint64_t *weft_json_document_enter(struct weft_json_document *document);
void weft_json_document_leave(struct weft_json_document *document);

/* Fails where a list is none ("expected ..."), is empty, or is longer than the limit. */
enum weft_status weft_json_document_check_list(const struct weft_json_document *document,
                                               const json_t *list, const char *expected,
                                               uint32_t limit, const char *limit_hint);

/* A member of an object, and what reads it. */
struct weft_json_member {
  const char *name;
  /* NULL: nothing does. `reader` begins with the document; `into` is at the offset of its object. */
  enum weft_status (*read)(void *reader, json_t *value, void *into);
  size_t offset;
};

/* Reads the members of an object. The table ends with one without a name; a member that is not in it
 * is a failure. */
enum weft_status weft_json_document_read(void *reader, json_t *object,
                                         const struct weft_json_member *members, void *into);

/* "unknown field; expected f, i, w" where the value being read has a key that is not in a table,
 * whose entries have `size` bytes and begin with their names; one without a name ends it. */
enum weft_status weft_json_document_unknown(const struct weft_json_document *document,
                                            const void *table, size_t size);

#endif
