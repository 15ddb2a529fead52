/* Places in JSON text. A JSON library gives values without their
 * positions; here a value is found again by its position in the document, so that a
 * message can name line, column and field. Runs once, when something is wrong. */
#ifndef SPEC_JSON_PLACE_H
#define SPEC_JSON_PLACE_H

#include <weft/base.h>

enum { WEFT_JSON_DEPTH_MAX = 4 }; /* levels that a path can name; deeper ones are skipped */

/* "The second member of the first element of the third member." */
struct weft_json_path {
  unsigned depth; /* 0: the document itself */
  uint64_t ordinals[WEFT_JSON_DEPTH_MAX];
};

struct weft_json_place {
  size_t begin; /* of the value's first token, a bracket for lists and objects */
  size_t end;   /* of that token */
  size_t key;   /* of the member's key; `begin` where there is none */
  uint64_t line;
  uint64_t column; /* of `begin`; both count from 1 */
  char field[160]; /* "stages[3].f"; "" for the document; bytes escaped */
  bool found;      /* false: the text ended before it, all else is of the text's end */
};

/* Where the value of a path is. */
struct weft_json_place weft_json_find(const char *text, size_t size,
                                      const struct weft_json_path *path);

/* The last token that begins before `offset`, or the first one, and the field that
 * it belongs to. */
struct weft_json_place weft_json_at(const char *text, size_t size, size_t offset);

/* Sets line and column to those of `offset`. */
void weft_json_point(struct weft_json_place *place, const char *text, size_t offset);

#endif
