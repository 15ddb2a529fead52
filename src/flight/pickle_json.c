#include "flight/pickle_json.h"

#include <assert.h>
#include <string.h>

#include "spec/json_document.h"

enum { DEPTH_MAX = 8 }; /* a dump has 4 */
#define BYTES_MAX ((size_t)256 << 20)
#define COMMAS_MAX (UINT32_C(1) << 26)

static struct weft_pickle_value *convert(struct weft_arena *arena, json_t *json, unsigned depth);

static void convert_list(struct weft_arena *arena, json_t *json, unsigned depth,
                         struct weft_pickle_value *value) {
  const size_t count = json_array_size(json);
  value->kind = WEFT_PICKLE_LIST;
  value->items = weft_arena_allocate(arena, count + 1, sizeof(void *));
  for (size_t k = 0; value->items != NULL && k < count; k++) {
    value->items[value->count++] = convert(arena, json_array_get(json, k), depth + 1);
  }
}

static void copy_text(struct weft_arena *arena, const char *text, size_t size,
                      struct weft_pickle_value *value) {
  value->kind = WEFT_PICKLE_TEXT;
  value->text = weft_arena_copy_text(arena, text, size);
  value->count = value->text != NULL ? size : 0;
}

static void convert_dictionary(struct weft_arena *arena, json_t *json, unsigned depth,
                               struct weft_pickle_value *value) {
  const char *key;
  json_t *member;
  value->kind = WEFT_PICKLE_DICTIONARY;
  value->items = weft_arena_allocate(arena, 2 * json_object_size(json) + 1, sizeof(void *));
  if (value->items == NULL) {
    return;
  }
  json_object_foreach(json, key, member) {
    struct weft_pickle_value *name = weft_arena_allocate(arena, 1, sizeof *name);
    if (name == NULL) {
      return;
    }
    copy_text(arena, key, strlen(key), name);
    value->items[value->count++] = name;
    value->items[value->count++] = convert(arena, member, depth + 1);
  }
}

/* What lies deeper than a dump has it is none. An item is never NULL, unless memory is out. */
static struct weft_pickle_value *convert(struct weft_arena *arena, json_t *json, unsigned depth) {
  struct weft_pickle_value *value = weft_arena_allocate(arena, 1, sizeof *value);
  if (value == NULL || depth > DEPTH_MAX) {
    return value;
  }
  switch (json_typeof(json)) {
    case JSON_OBJECT: convert_dictionary(arena, json, depth, value); break;
    case JSON_ARRAY: convert_list(arena, json, depth, value); break;
    case JSON_STRING:
      copy_text(arena, json_string_value(json), json_string_length(json), value);
      break;
    case JSON_INTEGER:
      value->kind = WEFT_PICKLE_INTEGER;
      value->integer = json_integer_value(json);
      break;
    case JSON_REAL:
      value->kind = WEFT_PICKLE_REAL;
      value->real = json_real_value(json);
      break;
    case JSON_TRUE:
    case JSON_FALSE:
      value->kind = WEFT_PICKLE_BOOLEAN;
      value->integer = json_is_true(json);
      break;
    case JSON_NULL: break;
  }
  return value;
}

enum weft_status weft_pickle_from_json(struct weft_arena *arena, const char *text, size_t size,
                                       const char *name, const struct weft_pickle_value **out,
                                       struct weft_error *error) {
  assert(arena != NULL && text != NULL && name != NULL && out != NULL);
  const struct weft_json_document document = {
      .text = text,
      .size = size,
      .name = name,
      .what = "a dump",
      .hint = "take the file that PyTorch has written, whole",
      .error = error};
  json_t *json = NULL;
  WEFT_TRY(weft_json_document_load(&document, BYTES_MAX, COMMAS_MAX, 0, &json));
  *out = convert(arena, json, 0);
  json_decref(json);
  return weft_arena_status(arena, error);
}
