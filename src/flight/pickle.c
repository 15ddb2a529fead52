#include "flight/pickle.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "spec/json_document.h"

enum { PROTOCOL_MIN = 2, PROTOCOL_MAX = 5 };

/* The opcodes of data. Others call code, make objects or sets, or are for what no dump has. */
enum opcode {
  OP_PROTO = 0x80,
  OP_FRAME = 0x95,
  OP_STOP = '.',
  OP_MARK = '(',
  OP_NONE = 'N',
  OP_TRUE = 0x88,
  OP_FALSE = 0x89,
  OP_INT4 = 'J',
  OP_INT1 = 'K',
  OP_INT2 = 'M',
  OP_LONG1 = 0x8a,
  OP_REAL = 'G',
  OP_TEXT1 = 0x8c,
  OP_TEXT4 = 'X',
  OP_EMPTY_LIST = ']',
  OP_APPEND = 'a',
  OP_APPENDS = 'e',
  OP_EMPTY_TUPLE = ')',
  OP_TUPLE = 't',
  OP_TUPLE1 = 0x85,
  OP_TUPLE2 = 0x86,
  OP_TUPLE3 = 0x87,
  OP_EMPTY_DICT = '}',
  OP_SET_ITEM = 's',
  OP_SET_ITEMS = 'u',
  OP_PUT1 = 'q',
  OP_PUT4 = 'r',
  OP_MEMOIZE = 0x94,
  OP_GET1 = 'h',
  OP_GET4 = 'j'
};

struct values {
  struct weft_pickle_value **items; /* NULL: a mark */
  size_t count, capacity;
};

struct machine {
  struct weft_arena *arena;
  const unsigned char *data;
  size_t size, at, opcode_at;
  const char *name;
  struct values stack, memo;
  struct weft_error *error;
};

#define HINT "take the file that PyTorch has written, whole and as it is"

static enum weft_status fail(const struct machine *machine, const char *what) {
  return weft_fail(machine->error, WEFT_ERR_FORMAT, HINT, "%s: byte %zu: %s", machine->name,
                   machine->opcode_at, what);
}

/* ---- Bytes ---- */

/* The next `count` bytes. */
static enum weft_status take_bytes(struct machine *machine, uint64_t count,
                                   const unsigned char **bytes) {
  if (count > machine->size - machine->at) {
    return fail(machine, "the file ends in the middle of a value");
  }
  *bytes = machine->data + machine->at;
  machine->at += (size_t)count;
  return WEFT_OK;
}

/* A little-endian number of at most 8 bytes. */
static enum weft_status take_number(struct machine *machine, uint64_t bytes, uint64_t *number) {
  const unsigned char *from = NULL;
  assert(bytes <= sizeof *number);
  WEFT_TRY(take_bytes(machine, bytes, &from));
  assert(from != NULL);
  *number = 0;
  for (uint64_t k = 0; k < bytes; k++) {
    *number |= (uint64_t)from[k] << (8 * k);
  }
  return WEFT_OK;
}

/* ---- Stack ---- */

static bool grow_values(struct machine *machine, struct values *values, size_t count) {
  assert(values->count <= values->capacity);
  if (count > values->capacity) {
    const size_t capacity = count > SIZE_MAX / 4 ? count : 2 * count + 16;
    struct weft_pickle_value **items =
        weft_arena_allocate(machine->arena, capacity, sizeof(void *));
    if (items == NULL) {
      return false;
    }
    if (values->count > 0) {
      memcpy(items, values->items, values->count * sizeof(void *));
    }
    values->items = items;
    values->capacity = capacity;
  }
  return true;
}

static enum weft_status push(struct machine *machine, struct weft_pickle_value *value) {
  if (!grow_values(machine, &machine->stack, machine->stack.count + 1)) {
    return weft_arena_status(machine->arena, machine->error);
  }
  machine->stack.items[machine->stack.count++] = value;
  return WEFT_OK;
}

static enum weft_status push_new(struct machine *machine, struct weft_pickle_value value) {
  struct weft_pickle_value *copy = weft_arena_allocate(machine->arena, 1, sizeof *copy);
  if (copy == NULL) {
    return weft_arena_status(machine->arena, machine->error);
  }
  *copy = value;
  return push(machine, copy);
}

/* The number of values above the last mark, which goes; SIZE_MAX: there is no mark. */
static size_t above_mark(struct machine *machine) {
  struct values *stack = &machine->stack;
  size_t at = stack->count;
  while (at > 0 && stack->items[at - 1] != NULL) {
    at--;
  }
  if (at == 0) {
    return SIZE_MAX;
  }
  const size_t count = stack->count - at;
  memmove(stack->items + at - 1, stack->items + at, count * sizeof(void *));
  stack->count--;
  return count;
}

/* Whether the last `count` values are there, and none of them is a mark. */
static bool has_values(const struct machine *machine, size_t count) {
  const struct values *stack = &machine->stack;
  bool whole = count <= stack->count;
  for (size_t k = 0; whole && k < count; k++) {
    whole = stack->items[stack->count - 1 - k] != NULL;
  }
  return whole;
}

/* ---- Lists and dictionaries ---- */

/* Moves the last `count` values to a list or dictionary. */
static enum weft_status move_items(struct machine *machine, struct weft_pickle_value *target,
                                   size_t count) {
  struct values *stack = &machine->stack;
  struct values items = {target->items, target->count, target->capacity};
  if (!has_values(machine, count) || (target->kind == WEFT_PICKLE_DICTIONARY && count % 2)) {
    return fail(machine, "a list, tuple or dictionary of values that are not there");
  }
  if (!grow_values(machine, &items, items.count + count)) {
    return weft_arena_status(machine->arena, machine->error);
  }
  stack->count -= count;
  if (count > 0) {
    memcpy(items.items + items.count, stack->items + stack->count, count * sizeof(void *));
  }
  target->items = items.items;
  target->count += count;
  target->capacity = items.capacity;
  return WEFT_OK;
}

/* A list, tuple or dictionary of the last `count` values, which it replaces. */
static enum weft_status collect_items(struct machine *machine, enum weft_pickle_kind kind,
                                      size_t count) {
  struct weft_pickle_value *value = weft_arena_allocate(machine->arena, 1, sizeof *value);
  if (value == NULL) {
    return weft_arena_status(machine->arena, machine->error);
  }
  value->kind = kind;
  WEFT_TRY(move_items(machine, value, count));
  return push(machine, value);
}

/* Adds the last `count` values to the list or dictionary below them. */
static enum weft_status add_items(struct machine *machine, enum weft_pickle_kind kind,
                                  size_t count) {
  const struct values *stack = &machine->stack;
  if (count >= stack->count || !has_values(machine, count + 1)) {
    return fail(machine, "values for a list or dictionary that is not there");
  }
  struct weft_pickle_value *target = stack->items[stack->count - count - 1];
  return target->kind == kind ? move_items(machine, target, count)
                              : fail(machine, "values for something that is no list or dictionary");
}

/* ---- Values ---- */

static enum weft_status read_text(struct machine *machine, unsigned size_bytes) {
  uint64_t count;
  const unsigned char *text = NULL;
  WEFT_TRY(take_number(machine, size_bytes, &count));
  WEFT_TRY(take_bytes(machine, count, &text));
  return push_new(
      machine, (struct weft_pickle_value){
                   .kind = WEFT_PICKLE_TEXT, .text = (const char *)text, .count = (size_t)count});
}

/* `bytes` of a two's complement number; more than 8 are more than any field has. */
static enum weft_status read_integer(struct machine *machine, uint64_t bytes, bool is_signed) {
  uint64_t number;
  if (bytes > sizeof number) {
    return fail(machine, "an integer of more than 8 bytes");
  }
  WEFT_TRY(take_number(machine, bytes, &number));
  if (is_signed && bytes > 0 && bytes < sizeof number && number >> (8 * bytes - 1) != 0) {
    number |= ~UINT64_C(0) << (8 * bytes);
  }
  return push_new(
      machine, (struct weft_pickle_value){.kind = WEFT_PICKLE_INTEGER, .integer = (int64_t)number});
}

static enum weft_status read_long(struct machine *machine) {
  uint64_t bytes;
  WEFT_TRY(take_number(machine, 1, &bytes));
  return read_integer(machine, bytes, true);
}

/* ---- Memo ---- */

static enum weft_status put_value(struct machine *machine, uint64_t index) {
  if (!has_values(machine, 1)) {
    return fail(machine, "a value to remember that is not there");
  }
  if (index > machine->size) { /* there are not as many values */
    return fail(machine, "a place in the memo that no value can have");
  }
  if (!grow_values(machine, &machine->memo, (size_t)index + 1)) {
    return weft_arena_status(machine->arena, machine->error);
  }
  if (machine->memo.count <= index) {
    machine->memo.count = (size_t)index + 1; /* an arena's memory is cleared */
  }
  machine->memo.items[index] = machine->stack.items[machine->stack.count - 1];
  return WEFT_OK;
}

static enum weft_status put_number(struct machine *machine, unsigned bytes) {
  uint64_t index;
  WEFT_TRY(take_number(machine, bytes, &index));
  return put_value(machine, index);
}

static enum weft_status get_value(struct machine *machine, unsigned bytes) {
  uint64_t index;
  WEFT_TRY(take_number(machine, bytes, &index));
  if (index >= machine->memo.count || machine->memo.items[index] == NULL) {
    return fail(machine, "a value that was never remembered");
  }
  return push(machine, machine->memo.items[index]);
}

/* ---- The machine ---- */

static enum weft_status read_protocol(struct machine *machine) {
  uint64_t protocol;
  WEFT_TRY(take_number(machine, 1, &protocol));
  return protocol >= PROTOCOL_MIN && protocol <= PROTOCOL_MAX
             ? WEFT_OK
             : fail(machine, "a protocol other than 2 to 5");
}

static enum weft_status fail_opcode(const struct machine *machine, unsigned opcode) {
  return weft_fail(machine->error, WEFT_ERR_FORMAT, HINT,
                   "%s: byte %zu: found opcode 0x%02x, which makes an object or calls code; "
                   "expected numbers, texts, lists and dictionaries only",
                   machine->name, machine->opcode_at, opcode);
}

#define PUSH(...) push_new(machine, (struct weft_pickle_value){__VA_ARGS__})

/* Nothing asks for its value. */
static enum weft_status read_real(struct machine *machine) {
  const unsigned char *bytes;
  WEFT_TRY(take_bytes(machine, 8, &bytes));
  return PUSH(.kind = WEFT_PICKLE_REAL);
}

static enum weft_status run_opcode(struct machine *machine, unsigned opcode) {
  uint64_t ignored;
  switch (opcode) {
    case OP_PROTO: return read_protocol(machine);
    case OP_FRAME: return take_number(machine, 8, &ignored);
    case OP_MARK: return push(machine, NULL);
    case OP_NONE: return PUSH(.kind = WEFT_PICKLE_NONE);
    case OP_TRUE: return PUSH(.kind = WEFT_PICKLE_BOOLEAN, .integer = 1);
    case OP_FALSE: return PUSH(.kind = WEFT_PICKLE_BOOLEAN);
    case OP_INT1: return read_integer(machine, 1, false);
    case OP_INT2: return read_integer(machine, 2, false);
    case OP_INT4: return read_integer(machine, 4, true);
    case OP_LONG1: return read_long(machine);
    case OP_REAL: return read_real(machine);
    case OP_TEXT1: return read_text(machine, 1);
    case OP_TEXT4: return read_text(machine, 4);
    case OP_EMPTY_LIST:
    case OP_EMPTY_TUPLE: return PUSH(.kind = WEFT_PICKLE_LIST);
    case OP_EMPTY_DICT: return PUSH(.kind = WEFT_PICKLE_DICTIONARY);
    case OP_TUPLE: return collect_items(machine, WEFT_PICKLE_LIST, above_mark(machine));
    case OP_TUPLE1: return collect_items(machine, WEFT_PICKLE_LIST, 1);
    case OP_TUPLE2: return collect_items(machine, WEFT_PICKLE_LIST, 2);
    case OP_TUPLE3: return collect_items(machine, WEFT_PICKLE_LIST, 3);
    case OP_APPEND: return add_items(machine, WEFT_PICKLE_LIST, 1);
    case OP_APPENDS: return add_items(machine, WEFT_PICKLE_LIST, above_mark(machine));
    case OP_SET_ITEM: return add_items(machine, WEFT_PICKLE_DICTIONARY, 2);
    case OP_SET_ITEMS: return add_items(machine, WEFT_PICKLE_DICTIONARY, above_mark(machine));
    case OP_PUT1: return put_number(machine, 1);
    case OP_PUT4: return put_number(machine, 4);
    case OP_MEMOIZE: return put_value(machine, machine->memo.count);
    case OP_GET1: return get_value(machine, 1);
    case OP_GET4: return get_value(machine, 4);
    default: return fail_opcode(machine, opcode);
  }
}

enum weft_status weft_pickle_read(struct weft_arena *arena, const void *data, size_t size,
                                  const char *name, const struct weft_pickle_value **out,
                                  struct weft_error *error) {
  assert(arena != NULL && (data != NULL || size == 0) && name != NULL && out != NULL);
  struct machine machine = {
      .arena = arena, .data = data, .size = size, .name = name, .error = error};
  if (size == 0 || machine.data[0] != OP_PROTO) {
    return fail(&machine, size == 0 ? "the file is empty" : "this is no pickle of protocol 2 to 5");
  }
  for (;;) {
    machine.opcode_at = machine.at;
    if (machine.at == size) {
      return fail(&machine, "the file ends before its value does");
    }
    const unsigned opcode = machine.data[machine.at++];
    if (opcode == OP_STOP) {
      break;
    }
    WEFT_TRY(run_opcode(&machine, opcode));
  }
  if (machine.stack.count != 1 || !has_values(&machine, 1)) {
    return fail(&machine, "the pickle does not end with one value");
  }
  *out = machine.stack.items[0];
  return WEFT_OK;
}

/* ---- The same from JSON ---- */

enum { DEPTH_MAX = 8 }; /* a dump has 4 */
#define JSON_BYTES_MAX ((size_t)256 << 20)
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
    case JSON_REAL: value->kind = WEFT_PICKLE_REAL; break;
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
  WEFT_TRY(weft_json_document_load(&document, JSON_BYTES_MAX, COMMAS_MAX, 0, &json));
  *out = convert(arena, json, 0);
  json_decref(json);
  return weft_arena_status(arena, error);
}

/* ---- Reading values ---- */

static bool is_text(const struct weft_pickle_value *value, const char *text, size_t size) {
  return value != NULL && value->kind == WEFT_PICKLE_TEXT && value->count == size &&
         (size == 0 || memcmp(value->text, text, size) == 0);
}

bool weft_pickle_is(const struct weft_pickle_value *value, const char *text) {
  assert(text != NULL);
  return is_text(value, text, strlen(text));
}

/* The last one counts, as in Python. */
static const struct weft_pickle_value *find_value(const struct weft_pickle_value *dictionary,
                                                  const char *key, size_t size) {
  if (dictionary == NULL || dictionary->kind != WEFT_PICKLE_DICTIONARY) {
    return NULL;
  }
  for (size_t k = dictionary->count; k >= 2; k -= 2) {
    if (is_text(dictionary->items[k - 2], key, size)) {
      return dictionary->items[k - 1];
    }
  }
  return NULL;
}

const struct weft_pickle_value *weft_pickle_find(const struct weft_pickle_value *dictionary,
                                                 const char *key) {
  assert(key != NULL);
  return find_value(dictionary, key, strlen(key));
}

const struct weft_pickle_value *weft_pickle_find_same(const struct weft_pickle_value *dictionary,
                                                      const struct weft_pickle_value *key) {
  return key != NULL && key->kind == WEFT_PICKLE_TEXT
             ? find_value(dictionary, key->text, key->count)
             : NULL;
}

int64_t weft_pickle_integer(const struct weft_pickle_value *value, int64_t otherwise) {
  return value != NULL && (value->kind == WEFT_PICKLE_INTEGER || value->kind == WEFT_PICKLE_BOOLEAN)
             ? value->integer
             : otherwise;
}
