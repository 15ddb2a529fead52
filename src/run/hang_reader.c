/* The dump read back: JSON to struct weft_hang, strictly. As with costs, jansson
 * reads the text and takes its memory from malloc(), after the text's size and
 * the number of its values have been looked at; json_place finds the field that
 * is wrong. */
#include "run/hang_reader.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "base/memory.h"
#include "ir/action.h"
#include "run/diagnosis_text.h"
#include "spec/json_place.h"

#define SCHEMA "weft-hang/1"
#define TEXT_BYTES_MAX ((size_t)256 << 20)
/* A rank has 10 values and 16 recent actions with 3 each. */
#define COMMAS_MAX (WEFT_RANKS_MAX * UINT32_C(64))
#define HINT_DUMP "a dump is what weft_hang_dump() writes"

struct reader {
  const char *text;
  size_t size;
  const char *name;
  struct weft_json_path path; /* to the value being read */
  const char *leaf;           /* member that lies too deep for a path; NULL: none */
  struct weft_hang *hang;
  struct weft_error *error;
};

/* ---- Faults ---- */

static enum weft_status fault_at(const struct reader *reader, const struct weft_json_place *place,
                                 const char *format, ...) WEFT_PRINTF(3, 4);

/* "file:line:column: field: ..." */
static enum weft_status fault_at(const struct reader *reader, const struct weft_json_place *place,
                                 const char *format, ...) {
  char name[128], what[256];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  weft_escape(name, sizeof name, reader->name, strlen(reader->name));
  (void)weft_fail(reader->error, WEFT_ERR_FORMAT, HINT_DUMP, "%s:%" PRIu64 ":%" PRIu64 ": %s%s%s",
                  name, place->line, place->column, place->field,
                  place->field[0] != '\0' ? ": " : "", what);
  if (reader->error != NULL) {
    reader->error->line = place->line;
    reader->error->column = place->column;
  }
  return WEFT_ERR_FORMAT;
}

static struct weft_json_place here(const struct reader *reader) {
  return weft_json_find(reader->text, reader->size, &reader->path);
}

/* What stands at a place, as the file has it. */
static const char *found_at(const struct reader *reader, const struct weft_json_place *place,
                            char *buffer, size_t size) {
  if (place->begin >= reader->size) {
    return "the end of the file";
  }
  switch (reader->text[place->begin]) {
    case '{': return "an object";
    case '[': return "a list";
    default:
      return weft_escape(buffer, size, reader->text + place->begin, place->end - place->begin);
  }
}

/* The value being read is not what belongs there. */
static enum weft_status unexpected(const struct reader *reader, const char *expected) {
  const struct weft_json_place place = here(reader);
  char found[48];
  return reader->leaf != NULL ? fault_at(reader, &place, "%s: expected %s", reader->leaf, expected)
                              : fault_at(reader, &place, "expected %s, found %s", expected,
                                         found_at(reader, &place, found, sizeof found));
}

/* ---- Objects ---- */

/* A member that an object must have, or may. */
struct member {
  const char *name;
  enum weft_status (*read)(struct reader *reader, json_t *value, void *target);
  bool optional;
};

enum { MEMBERS_MAX = 16 };

static enum weft_status unknown_member(const struct reader *reader, const char *key,
                                       const struct member *members) {
  struct weft_json_place place = here(reader);
  char known[192] = "", escaped[48];
  size_t used = 0;
  for (; members->name != NULL && used < sizeof known; members++) {
    used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "",
                             members->name);
  }
  if (reader->leaf != NULL) {
    return fault_at(reader, &place, "%s: unknown field; expected %s",
                    weft_escape(escaped, sizeof escaped, key, strlen(key)), known);
  }
  weft_json_point(&place, reader->text, place.key);
  return fault_at(reader, &place, "unknown field; expected %s", known);
}

static enum weft_status read_member(struct reader *reader, const char *key, json_t *value,
                                    const struct member *members, void *target, bool *seen) {
  for (size_t k = 0; members[k].name != NULL; k++) {
    if (strcmp(members[k].name, key) == 0) {
      seen[k] = true;
      return members[k].read(reader, value, target);
    }
  }
  return unknown_member(reader, key, members);
}

static enum weft_status read_members(struct reader *reader, json_t *object,
                                     const struct member *members, void *target, bool *seen) {
  const bool deep = reader->path.depth == WEFT_JSON_DEPTH_MAX;
  uint64_t ordinal = 0;
  for (void *at = json_object_iter(object); at != NULL; at = json_object_iter_next(object, at)) {
    const char *key = json_object_iter_key(at);
    if (deep) {
      reader->leaf = key;
    } else {
      reader->path.ordinals[reader->path.depth++] = ordinal++;
    }
    WEFT_TRY(read_member(reader, key, json_object_iter_value(at), members, target, seen));
    reader->leaf = NULL;
    reader->path.depth -= deep ? 0 : 1;
  }
  return WEFT_OK;
}

/* All of the members, each once, and no other; those that are optional may be left out. */
static enum weft_status read_object(struct reader *reader, json_t *object,
                                    const struct member *members, void *target) {
  bool seen[MEMBERS_MAX] = {false};
  if (!json_is_object(object)) {
    return unexpected(reader, "an object");
  }
  WEFT_TRY(read_members(reader, object, members, target, seen));
  for (size_t k = 0; members[k].name != NULL; k++) {
    if (!seen[k] && !members[k].optional) {
      const struct weft_json_place place = here(reader);
      return fault_at(reader, &place, "%s is missing", members[k].name);
    }
  }
  return WEFT_OK;
}

/* ---- Values ---- */

static enum weft_status read_time(const struct reader *reader, const json_t *value, int64_t *time) {
  if (!json_is_integer(value)) {
    return unexpected(reader, "a whole number");
  }
  *time = json_integer_value(value);
  return WEFT_OK;
}

static enum weft_status read_count(const struct reader *reader, const json_t *value,
                                   uint64_t *count) {
  if (!json_is_integer(value) || json_integer_value(value) < 0) {
    return unexpected(reader, "a whole number from 0 up");
  }
  *count = (uint64_t)json_integer_value(value);
  return WEFT_OK;
}

static enum weft_status read_rank_or_null(const struct reader *reader, const json_t *value,
                                          uint32_t *rank) {
  char expected[64];
  if (json_is_null(value)) {
    *rank = UINT32_MAX;
    return WEFT_OK;
  }
  if (json_is_integer(value) && json_integer_value(value) >= 0 &&
      json_integer_value(value) < reader->hang->rank_count) {
    *rank = (uint32_t)json_integer_value(value);
    return WEFT_OK;
  }
  (void)snprintf(expected, sizeof expected, "a rank from 0 to %" PRIu32 ", or null",
                 reader->hang->rank_count - 1);
  return unexpected(reader, expected);
}

/* A number of decimal digits at *at; false when there is none or it is too large. */
static bool take_digits(const char **at, uint64_t most, uint64_t *number) {
  const char *begin = *at;
  for (*number = 0; **at >= '0' && **at <= '9'; ++*at) {
    *number = *number * 10 + (uint64_t)(**at - '0');
    if (*number > most) {
      return false;
    }
  }
  return *at > begin;
}

/* The op that is spelled by the next `size` bytes; IDLE: none. */
static enum weft_op find_op(const char *name, size_t size) {
  for (unsigned op = WEFT_OP_IDLE + 1; op < WEFT_OP_COUNT; op++) {
    const char *text = weft_op_info((enum weft_op)op)->text;
    if (op != WEFT_OP_OVERLAP_F_B && strlen(text) == size && memcmp(text, name, size) == 0) {
      return (enum weft_op)op;
    }
  }
  return WEFT_OP_IDLE;
}

/* What weft_hang_action() writes. */
static bool parse_action(const char *text, struct weft_action *action) {
  uint64_t stage = 0, microbatch = 0;
  if (strcmp(text, weft_op_info(WEFT_OP_OVERLAP_F_B)->text) == 0) {
    *action = weft_action_overlap(0);
    return true;
  }
  if (!take_digits(&text, WEFT_STAGES_MAX - 1, &stage)) {
    return false;
  }
  const size_t size = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
  const enum weft_op op = find_op(text, size);
  text += size;
  if (op == WEFT_OP_IDLE ||
      (weft_op_info(op)->has_microbatch && !take_digits(&text, UINT32_MAX, &microbatch))) {
    return false;
  }
  *action = weft_action_make(op, (uint32_t)stage, (uint32_t)microbatch);
  return *text == '\0';
}

static enum weft_status read_action(const struct reader *reader, const json_t *value,
                                    struct weft_action *action) {
  const char *text = json_string_value(value);
  *action = weft_action_idle();
  if (json_is_null(value) || (text != NULL && parse_action(text, action))) {
    return WEFT_OK;
  }
  return unexpected(reader, "an action like \"2RECV_F5\", or null");
}

/* ---- Recent actions ---- */

static enum weft_status read_entry_action(struct reader *reader, json_t *value, void *target) {
  struct weft_recent_action *entry = target;
  struct weft_action action;
  WEFT_TRY(read_action(reader, value, &action));
  memcpy(&entry->action, &action, sizeof entry->action);
  return WEFT_OK;
}

static enum weft_status read_entry_begin(struct reader *reader, json_t *value, void *target) {
  return read_time(reader, value, &((struct weft_recent_action *)target)->begin);
}

static enum weft_status read_entry_end(struct reader *reader, json_t *value, void *target) {
  return read_time(reader, value, &((struct weft_recent_action *)target)->end);
}

static enum weft_status read_recent(struct reader *reader, json_t *value, void *target) {
  static const struct member members[] = {{"action", read_entry_action, false},
                                          {"begin", read_entry_begin, false},
                                          {"end", read_entry_end, false},
                                          {NULL, NULL, false}};
  struct weft_hang_rank *rank = target;
  const size_t count = json_array_size(value);
  if (!json_is_array(value) || count > WEFT_STATUS_RECENT) {
    return unexpected(reader, "a list of at most 16 actions");
  }
  uint64_t *ordinal = &reader->path.ordinals[reader->path.depth++];
  for (*ordinal = 0; *ordinal < count; ++*ordinal) {
    WEFT_TRY(read_object(reader, json_array_get(value, (size_t)*ordinal), members,
                         &rank->recent[*ordinal]));
  }
  reader->path.depth--;
  rank->recent_count = (uint32_t)count;
  return WEFT_OK;
}

/* ---- Ranks ---- */

static enum weft_status read_number(struct reader *reader, json_t *value, void *target) {
  const int64_t expected = (struct weft_hang_rank *)target - reader->hang->ranks;
  char words[64];
  if (json_is_integer(value) && json_integer_value(value) == expected) {
    return WEFT_OK;
  }
  (void)snprintf(words, sizeof words, "%" PRId64 " (ranks stand in order, each once)", expected);
  return unexpected(reader, words);
}

static enum weft_status read_phase(struct reader *reader, json_t *value, void *target) {
  const char *text = json_string_value(value);
  for (unsigned phase = 0; text != NULL && phase < WEFT_PHASE_COUNT; phase++) {
    if (strcmp(text, weft_hang_phase_name(phase)) == 0) {
      ((struct weft_hang_rank *)target)->phase = (enum weft_rank_phase)phase;
      return WEFT_OK;
    }
  }
  return unexpected(reader, "away, greeting, compute, receive, send, done or failed");
}

static enum weft_status read_process(struct reader *reader, json_t *value, void *target) {
  static const uint64_t known[] = {WEFT_RANK_STOPPED, WEFT_RANK_SILENT};
  const char *text = json_string_value(value);
  for (size_t k = 0; text != NULL && k < sizeof known / sizeof known[0]; k++) {
    if (strcmp(text, weft_hang_flags_name(known[k])) == 0) {
      ((struct weft_hang_rank *)target)->flags = known[k];
      return WEFT_OK;
    }
  }
  return unexpected(reader, "stopped or silent");
}

static enum weft_status read_step(struct reader *reader, json_t *value, void *target) {
  return read_count(reader, value, &((struct weft_hang_rank *)target)->step);
}

static enum weft_status read_cell(struct reader *reader, json_t *value, void *target) {
  return read_count(reader, value, &((struct weft_hang_rank *)target)->cell);
}

static enum weft_status read_stand(struct reader *reader, json_t *value, void *target) {
  return read_action(reader, value, &((struct weft_hang_rank *)target)->action);
}

static enum weft_status read_peer(struct reader *reader, json_t *value, void *target) {
  return read_rank_or_null(reader, value, &((struct weft_hang_rank *)target)->peer);
}

static enum weft_status read_wants(struct reader *reader, json_t *value, void *target) {
  return read_action(reader, value, &((struct weft_hang_rank *)target)->wants);
}

static enum weft_status read_since(struct reader *reader, json_t *value, void *target) {
  return read_time(reader, value, &((struct weft_hang_rank *)target)->since);
}

static enum weft_status read_ranks(struct reader *reader, json_t *value, void *target) {
  static const struct member members[] = {{"rank", read_number, false},
                                          {"phase", read_phase, false},
                                          {"process", read_process, true},
                                          {"step", read_step, false},
                                          {"cell", read_cell, false},
                                          {"action", read_stand, false},
                                          {"waits_for", read_peer, false},
                                          {"wants", read_wants, false},
                                          {"since", read_since, false},
                                          {"recent", read_recent, false},
                                          {NULL, NULL, false}};
  struct weft_hang *hang = target;
  uint64_t *ordinal = &reader->path.ordinals[reader->path.depth++];
  for (*ordinal = 0; *ordinal < hang->rank_count; ++*ordinal) {
    WEFT_TRY(read_object(reader, json_array_get(value, (size_t)*ordinal), members,
                         &hang->ranks[*ordinal]));
  }
  reader->path.depth--;
  return WEFT_OK;
}

/* ---- The error ---- */

static enum weft_status read_status(struct reader *reader, json_t *value, void *target) {
  const char *text = json_string_value(value);
  for (int status = WEFT_ERR_USAGE; text != NULL && status >= WEFT_ERR_INTERNAL; status--) {
    if (strcmp(text, weft_status_name((enum weft_status)status)) == 0) {
      ((struct weft_failure *)target)->error.status = (enum weft_status)status;
      return WEFT_OK;
    }
  }
  return unexpected(reader, "the name of a status, like \"stalled\"");
}

static enum weft_status read_error_rank(struct reader *reader, json_t *value, void *target) {
  return read_rank_or_null(reader, value, &((struct weft_failure *)target)->rank);
}

static enum weft_status read_text(const struct reader *reader, const json_t *value, char *text,
                                  size_t size) {
  char expected[48];
  if (json_is_string(value) && json_string_length(value) < size) {
    memcpy(text, json_string_value(value), json_string_length(value) + 1);
    return WEFT_OK;
  }
  (void)snprintf(expected, sizeof expected, "a text of at most %zu bytes", size - 1);
  return unexpected(reader, expected);
}

static enum weft_status read_message(struct reader *reader, json_t *value, void *target) {
  struct weft_error *error = &((struct weft_failure *)target)->error;
  return read_text(reader, value, error->message, sizeof error->message);
}

static enum weft_status read_hint(struct reader *reader, json_t *value, void *target) {
  struct weft_error *error = &((struct weft_failure *)target)->error;
  return read_text(reader, value, error->hint, sizeof error->hint);
}

static enum weft_status read_error(struct reader *reader, json_t *value, void *target) {
  static const struct member members[] = {{"status", read_status, false},
                                          {"rank", read_error_rank, false},
                                          {"message", read_message, false},
                                          {"hint", read_hint, false},
                                          {NULL, NULL, false}};
  struct weft_hang *hang = target;
  hang->has_failure = !json_is_null(value);
  return hang->has_failure ? read_object(reader, value, members, &hang->failure) : WEFT_OK;
}

/* ---- The document ---- */

static enum weft_status read_schema(struct reader *reader, json_t *value, void *target) {
  const char *schema = json_string_value(value);
  (void)target;
  return schema != NULL && strcmp(schema, SCHEMA) == 0 ? WEFT_OK
                                                       : unexpected(reader, "\"" SCHEMA "\"");
}

static enum weft_status read_time_kind(struct reader *reader, json_t *value, void *target) {
  const char *kind = json_string_value(value);
  if (kind == NULL || (strcmp(kind, "ns") != 0 && strcmp(kind, "ticks") != 0)) {
    return unexpected(reader, "\"ns\" or \"ticks\"");
  }
  ((struct weft_hang *)target)->nanoseconds = strcmp(kind, "ns") == 0;
  return WEFT_OK;
}

static enum weft_status read_now(struct reader *reader, json_t *value, void *target) {
  return read_time(reader, value, &((struct weft_hang *)target)->now);
}

/* The ranks are counted first: other members name some of them. Called with the
 * path at the document. */
static enum weft_status allocate_ranks(const struct reader *reader, const json_t *document) {
  struct weft_hang *hang = reader->hang;
  const json_t *list = json_object_get(document, "ranks");
  const struct weft_json_place place = here(reader);
  if (!json_is_array(list)) {
    return fault_at(reader, &place, "ranks: expected a list with an object for each rank");
  }
  const size_t count = json_array_size(list);
  if (count == 0 || count > WEFT_RANKS_MAX) {
    return fault_at(reader, &place, "ranks: expected 1 to %" PRIu32 " of them, found %zu",
                    WEFT_RANKS_MAX, count);
  }
  hang->ranks = weft_array_allocate_zero(hang->allocator, count, sizeof *hang->ranks);
  if (hang->ranks == NULL) {
    return weft_fail_memory(reader->error, count * sizeof *hang->ranks);
  }
  hang->rank_count = (uint32_t)count;
  return WEFT_OK;
}

static enum weft_status read_document(struct reader *reader, json_t *document) {
  static const struct member members[] = {
      {"schema", read_schema, false}, {"time", read_time_kind, false}, {"now", read_now, false},
      {"error", read_error, false},   {"ranks", read_ranks, false},    {NULL, NULL, false}};
  if (!json_is_object(document)) {
    return unexpected(reader, "an object");
  }
  WEFT_TRY(allocate_ranks(reader, document));
  return read_object(reader, document, members, reader->hang);
}

/* ---- The text ---- */

static enum weft_status check_text(const struct reader *reader) {
  if (reader->size > TEXT_BYTES_MAX) {
    return weft_fail(reader->error, WEFT_ERR_LIMIT, HINT_DUMP,
                     "the dump has %zu bytes; the limit is %zu", reader->size, TEXT_BYTES_MAX);
  }
  uint64_t commas = 0;
  for (size_t i = 0; i < reader->size; i++) {
    commas += reader->text[i] == ',';
  }
  if (commas > COMMAS_MAX) {
    return weft_fail(reader->error, WEFT_ERR_LIMIT, HINT_DUMP,
                     "the dump has %" PRIu64 " values; the limit is %" PRIu32, commas, COMMAS_MAX);
  }
  return WEFT_OK;
}

/* jansson's words, which may quote the text. */
static enum weft_status syntax_fault(const struct reader *reader, const json_error_t *found) {
  const enum json_error_code code = json_error_code(found);
  char words[192];
  if (code == json_error_out_of_memory) {
    return weft_fail_memory(reader->error, reader->size);
  }
  const bool at_end = code == json_error_premature_end_of_input;
  const size_t position = found->position > 0 && !at_end ? (size_t)found->position : 0;
  struct weft_json_place place =
      weft_json_at(reader->text, reader->size, at_end ? reader->size : position);
  if (at_end) {
    weft_json_point(&place, reader->text, reader->size);
  }
  return fault_at(reader, &place, "not JSON: %s",
                  weft_escape(words, sizeof words, found->text, strlen(found->text)));
}

enum weft_status weft_hang_read(const struct weft_allocator *allocator, const char *dump,
                                size_t size, const char *name, struct weft_hang *hang,
                                struct weft_error *error) {
  struct weft_hang picture = {.allocator = allocator};
  struct reader reader = {.text = dump,
                          .size = size,
                          .name = name != NULL ? name : "dump",
                          .hang = &picture,
                          .error = error};
  WEFT_TRY(check_text(&reader));
  json_error_t found;
  json_t *document = json_loadb(dump, size, JSON_REJECT_DUPLICATES, &found);
  if (document == NULL) {
    return syntax_fault(&reader, &found);
  }
  const enum weft_status status = read_document(&reader, document);
  json_decref(document);
  if (status < 0) {
    weft_hang_finish(&picture);
    return status;
  }
  *hang = picture;
  return WEFT_OK;
}
