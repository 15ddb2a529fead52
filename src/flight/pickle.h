/* Python's pickles as plain data: None, booleans, integers, floats (without their values), strings, lists, tuples and
 * dictionaries. A pickle is a program for a small stack machine, which may also name code to
 * call; this reader refuses all of that, so a file of unknown origin can do no harm. */
#ifndef FLIGHT_PICKLE_H
#define FLIGHT_PICKLE_H

#include <weft/support.h>

enum weft_pickle_kind {
  WEFT_PICKLE_NONE,
  WEFT_PICKLE_BOOLEAN,
  WEFT_PICKLE_INTEGER,
  WEFT_PICKLE_REAL,
  WEFT_PICKLE_TEXT,
  WEFT_PICKLE_LIST, /* or a tuple */
  WEFT_PICKLE_DICTIONARY
};

/* Values may be shared, and a list may hold itself: read to a fixed depth only. */
struct weft_pickle_value {
  enum weft_pickle_kind kind;
  int64_t integer;                  /* a boolean is 0 or 1 */
  const char *text;                 /* `count` bytes of UTF-8, not NUL-terminated */
  struct weft_pickle_value **items; /* of a dictionary: key, value, key, value ... */
  size_t count;
  size_t capacity;
};

/* Protocols 2 to 5. Values live in the arena, texts in `data`. WEFT_ERR_FORMAT names the byte and
 * what was found there; WEFT_ERR_LIMIT; WEFT_ERR_MEMORY. `name` is what messages call the file. */
enum weft_status weft_pickle_read(struct weft_arena *arena, const void *data, size_t size,
                                  const char *name, const struct weft_pickle_value **out,
                                  struct weft_error *error);

/* The same from JSON, for dumps that were written so; texts are in the arena, too. */
enum weft_status weft_pickle_from_json(struct weft_arena *arena, const char *text, size_t size,
                                       const char *name, const struct weft_pickle_value **out,
                                       struct weft_error *error);

/* The value of a key; NULL: there is none, or this is no dictionary (NULL is none either). */
const struct weft_pickle_value *weft_pickle_find(const struct weft_pickle_value *dictionary,
                                                 const char *key);

/* The same for a key that is a value itself; NULL is no key. */
const struct weft_pickle_value *weft_pickle_find_same(const struct weft_pickle_value *dictionary,
                                                      const struct weft_pickle_value *key);

/* Whether it is this text. */
bool weft_pickle_is(const struct weft_pickle_value *value, const char *text);

/* Its integer; `otherwise` if it has none. */
int64_t weft_pickle_integer(const struct weft_pickle_value *value, int64_t otherwise);

#endif
