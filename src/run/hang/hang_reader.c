/* Reads a dump, strictly: jansson parses the text, and json_document finds the place of a field that
 * is wrong. */
#include "run/hang/hang.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "ir/action.h"
#include "run/hang/diagnosis_text.h"
#include "run/rank_status.h"
#include "spec/json_document.h"

#define SCHEMA "weft-hang/1"
#define TEXT_BYTES_MAX ((size_t)256 << 20)
/* A rank has 10 values and 16 recent actions with 3 each. */
#define COMMAS_MAX (WEFT_RANKS_MAX * UINT32_C(64))

struct reader {
  struct weft_json_document document;
  const char *leaf; /* member that lies too deep for a path; NULL: none */
  struct weft_hang *hang;
};

/* ---- Faults ---- */

/* Beside or below the value being read. */
#define fault(reader, place, ...) \
  weft_json_document_fail(&(reader)->document, place, WEFT_ERR_FORMAT, NULL, __VA_ARGS__)

static struct weft_json_place here(const struct reader *reader) {
  return weft_json_document_here(&reader->document);
}

/* The value being read is not the expected one. */
static enum weft_status unexpected(const struct reader *reader, const char *expected) {
  if (reader->leaf == NULL) {
    return weft_json_document_unexpected(&reader->document, NULL, expected);
  }
  const struct weft_json_place place = here(reader);
  return fault(reader, &place, "%s: expected %s", reader->leaf, expected);
}

/* ---- Objects ---- */

/* A member of an object: how it is read, into which field of the target. */
struct member {
  const char *name;
  enum weft_status (*read)(struct reader *reader, json_t *value, void *field);
  size_t offset;
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
    return fault(reader, &place, "%s: unknown field; expected %s",
                 weft_escape(escaped, sizeof escaped, key, strlen(key)), known);
  }
  weft_json_point(&place, reader->document.text, place.key);
  return fault(reader, &place, "unknown field; expected %s", known);
}

static enum weft_status read_member(struct reader *reader, const char *key, json_t *value,
                                    const struct member *members, void *target, bool *seen) {
  for (size_t k = 0; members[k].name != NULL; k++) {
    if (strcmp(members[k].name, key) == 0) {
      seen[k] = true;
      return members[k].read(reader, value, (unsigned char *)target + members[k].offset);
    }
  }
  return unknown_member(reader, key, members);
}

static enum weft_status read_members(struct reader *reader, json_t *object,
                                     const struct member *members, void *target, bool *seen) {
  const bool deep = reader->document.path.depth == WEFT_JSON_DEPTH_MAX;
  uint64_t ordinal = 0;
  for (void *at = json_object_iter(object); at != NULL; at = json_object_iter_next(object, at)) {
    const char *key = json_object_iter_key(at);
    if (deep) {
      reader->leaf = key;
    } else {
      reader->document.path.ordinals[reader->document.path.depth++] = ordinal++;
    }
    WEFT_TRY(read_member(reader, key, json_object_iter_value(at), members, target, seen));
    reader->leaf = NULL;
    reader->document.path.depth -= deep ? 0 : 1;
  }
  return WEFT_OK;
}

/* All members, each once, and no other; the optional ones may be missing. */
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
      return fault(reader, &place, "%s is missing", members[k].name);
    }
  }
  return WEFT_OK;
}

/* ---- Values ---- */

static enum weft_status read_time(struct reader *reader, json_t *value, void *field) {
  if (!json_is_integer(value)) {
    return unexpected(reader, "a whole number");
  }
  *(int64_t *)field = json_integer_value(value);
  return WEFT_OK;
}

static enum weft_status read_count(struct reader *reader, json_t *value, void *field) {
  if (!json_is_integer(value) || json_integer_value(value) < 0) {
    return unexpected(reader, "a whole number from 0 up");
  }
  *(uint64_t *)field = (uint64_t)json_integer_value(value);
  return WEFT_OK;
}

static enum weft_status read_rank_or_null(struct reader *reader, json_t *value, void *field) {
  const json_int_t rank = json_is_null(value) ? UINT32_MAX : json_integer_value(value);
  char expected[64];
  if (json_is_null(value) ||
      (json_is_integer(value) && rank >= 0 && rank < reader->hang->rank_count)) {
    *(uint32_t *)field = (uint32_t)rank;
    return WEFT_OK;
  }
  (void)snprintf(expected, sizeof expected, "a rank from 0 to %" PRIu32 ", or null",
                 reader->hang->rank_count - 1);
  return unexpected(reader, expected);
}

/* One of `count` words; *index is its number. */
static enum weft_status read_word(struct reader *reader, json_t *value,
                                  const char *(*word_of)(uint32_t index), uint32_t count,
                                  const char *expected, uint32_t *index) {
  const char *text = json_string_value(value);
  for (*index = 0; text != NULL && *index < count; ++*index) {
    if (strcmp(text, word_of(*index)) == 0) {
      return WEFT_OK;
    }
  }
  return unexpected(reader, expected);
}

static enum weft_status read_text(struct reader *reader, json_t *value, char *text, size_t size) {
  char expected[48];
  if (json_is_string(value) && json_string_length(value) < size) {
    memcpy(text, json_string_value(value), json_string_length(value) + 1);
    return WEFT_OK;
  }
  (void)snprintf(expected, sizeof expected, "a text of at most %zu bytes", size - 1);
  return unexpected(reader, expected);
}

/* Decimal digits at *at; false when there are none or the number is too large. */
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

/* The op with that name of `size` bytes; IDLE: none. */
static enum weft_op find_op(const char *name, size_t size) {
  for (unsigned op = WEFT_OP_IDLE + 1; op < WEFT_OP_COUNT; op++) {
    const char *text = weft_op_info((enum weft_op)op)->text;
    if (op != WEFT_OP_OVERLAP_F_B && strlen(text) == size && memcmp(text, name, size) == 0) {
      return (enum weft_op)op;
    }
  }
  return WEFT_OP_IDLE;
}

/* The other end of a transfer over an edge that skips stages: ">5". */
static bool parse_other(const char *text, struct weft_action *action) {
  const bool sends = weft_op_in(action->op, WEFT_OPS_SEND);
  uint64_t other = 0;
  if ((!sends && !weft_op_in(action->op, WEFT_OPS_RECV)) || *text++ != (sends ? '>' : '<') ||
      !take_digits(&text, WEFT_STAGES_MAX - 1, &other) || *text != '\0') {
    return false;
  }
  const uint64_t apart = other > action->stage ? other - action->stage : action->stage - other;
  if (apart < 2 || apart - 1 > WEFT_SKIP_MAX) {
    return false;
  }
  action->skip = (uint8_t)(apart - 1);
  return weft_transfer_other(*action) == other;
}

/* What weft_diagnosis_action() writes. */
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
  return *text == '\0' || parse_other(text, action);
}

static enum weft_status read_action(struct reader *reader, json_t *value, void *field) {
  struct weft_action *action = field;
  const char *text = json_string_value(value);
  *action = weft_action_idle();
  if (json_is_null(value) || (text != NULL && parse_action(text, action))) {
    return WEFT_OK;
  }
  return unexpected(reader, "an action like \"2RECV_F5\", or null");
}

static enum weft_status read_packed_action(struct reader *reader, json_t *value, void *field) {
  struct weft_action action;
  WEFT_TRY(read_action(reader, value, &action));
  *(uint64_t *)field = weft_action_pack(action);
  return WEFT_OK;
}

/* ---- Ranks ---- */

static enum weft_status read_number(struct reader *reader, json_t *value, void *field) {
  const int64_t expected = (struct weft_hang_rank *)field - reader->hang->ranks;
  char words[64];
  if (json_is_integer(value) && json_integer_value(value) == expected) {
    return WEFT_OK;
  }
  (void)snprintf(words, sizeof words, "%" PRId64 " (ranks are in order, each once)", expected);
  return unexpected(reader, words);
}

static enum weft_status read_phase(struct reader *reader, json_t *value, void *field) {
  uint32_t phase;
  WEFT_TRY(read_word(reader, value, weft_diagnosis_phase, WEFT_PHASE_COUNT,
                     "away, greeting, compute, receive, send, done or failed", &phase));
  *(enum weft_rank_phase *)field = (enum weft_rank_phase)phase;
  return WEFT_OK;
}

static const uint64_t process_flags[] = {WEFT_RANK_STOPPED, WEFT_RANK_SILENT, WEFT_RANK_DEAD};

static const char *process_of(uint32_t index) { return weft_diagnosis_flags(process_flags[index]); }

static enum weft_status read_process(struct reader *reader, json_t *value, void *field) {
  uint32_t index;
  WEFT_TRY(read_word(reader, value, process_of, 3, "stopped, silent or dead", &index));
  *(uint64_t *)field = process_flags[index];
  return WEFT_OK;
}

static enum weft_status read_flag(struct reader *reader, json_t *value, void *field) {
  if (!json_is_boolean(value)) {
    return unexpected(reader, "true or false");
  }
  *(bool *)field = json_is_true(value);
  return WEFT_OK;
}

static enum weft_status read_recent(struct reader *reader, json_t *value, void *field) {
  static const struct member members[] = {
      {"action", read_packed_action, offsetof(struct weft_recent_action, action), false},
      {"begin", read_time, offsetof(struct weft_recent_action, begin), false},
      {"end", read_time, offsetof(struct weft_recent_action, end), false},
      {NULL, NULL, 0, false}};
  struct weft_hang_rank *rank = field;
  const size_t count = json_array_size(value);
  if (!json_is_array(value) || count > WEFT_STATUS_RECENT) {
    return unexpected(reader, "a list of at most 16 actions");
  }
  uint64_t *ordinal = &reader->document.path.ordinals[reader->document.path.depth++];
  for (*ordinal = 0; *ordinal < count; ++*ordinal) {
    WEFT_TRY(read_object(reader, json_array_get(value, (size_t)*ordinal), members,
                         &rank->recent[*ordinal]));
  }
  reader->document.path.depth--;
  rank->recent_count = (uint32_t)count;
  rank->state.has_acted = count > 0;
  return WEFT_OK;
}

#define STATE(field) offsetof(struct weft_hang_rank, state.field)

static enum weft_status read_ranks(struct reader *reader, json_t *value, void *field) {
  static const struct member members[] = {{"rank", read_number, 0, false},
                                          {"phase", read_phase, STATE(phase), false},
                                          {"process", read_process, STATE(flags), true},
                                          {"on_device", read_flag, STATE(on_device), true},
                                          {"gpu", read_count, STATE(gpu), true},
                                          {"step", read_count, STATE(step), false},
                                          {"cell", read_count, STATE(cell), false},
                                          {"action", read_action, STATE(action), false},
                                          {"waits_for", read_rank_or_null, STATE(peer), false},
                                          {"wants", read_action, STATE(wants), false},
                                          {"since", read_time, STATE(since), false},
                                          {"recent", read_recent, 0, false},
                                          {NULL, NULL, 0, false}};
  struct weft_hang *hang = field;
  uint64_t *ordinal = &reader->document.path.ordinals[reader->document.path.depth++];
  for (*ordinal = 0; *ordinal < hang->rank_count; ++*ordinal) {
    WEFT_TRY(read_object(reader, json_array_get(value, (size_t)*ordinal), members,
                         &hang->ranks[*ordinal]));
  }
  reader->document.path.depth--;
  return WEFT_OK;
}

/* ---- The error ---- */

static const char *status_of(uint32_t index) {
  return weft_status_name((enum weft_status)(WEFT_ERR_USAGE - (int)index));
}

static enum weft_status read_status(struct reader *reader, json_t *value, void *field) {
  uint32_t index;
  WEFT_TRY(read_word(reader, value, status_of, WEFT_ERR_USAGE - WEFT_ERR_DEVICE + 1,
                     "the name of a status, like \"stalled\"", &index));
  *(enum weft_status *)field = (enum weft_status)(WEFT_ERR_USAGE - (int)index);
  return WEFT_OK;
}

static enum weft_status read_message(struct reader *reader, json_t *value, void *field) {
  return read_text(reader, value, field, sizeof((struct weft_error *)0)->message);
}

static enum weft_status read_hint(struct reader *reader, json_t *value, void *field) {
  return read_text(reader, value, field, sizeof((struct weft_error *)0)->hint);
}

static enum weft_status read_error(struct reader *reader, json_t *value, void *field) {
  static const struct member members[] = {
      {"status", read_status, offsetof(struct weft_failure, error.status), false},
      {"rank", read_rank_or_null, offsetof(struct weft_failure, rank), false},
      {"message", read_message, offsetof(struct weft_failure, error.message), false},
      {"hint", read_hint, offsetof(struct weft_failure, error.hint), false},
      {NULL, NULL, 0, false}};
  struct weft_hang *hang = field;
  hang->has_failure = !json_is_null(value);
  return hang->has_failure ? read_object(reader, value, members, &hang->failure) : WEFT_OK;
}

/* ---- The document ---- */

static const char *schema_of(uint32_t index) {
  (void)index;
  return SCHEMA;
}

static enum weft_status read_schema(struct reader *reader, json_t *value, void *field) {
  uint32_t index;
  (void)field;
  return read_word(reader, value, schema_of, 1, "\"" SCHEMA "\"", &index);
}

static const char *unit_of(uint32_t index) { return index == 0 ? "ticks" : "ns"; }

static enum weft_status read_unit(struct reader *reader, json_t *value, void *field) {
  uint32_t index;
  WEFT_TRY(read_word(reader, value, unit_of, 2, "\"ns\" or \"ticks\"", &index));
  *(bool *)field = index == 1;
  return WEFT_OK;
}

/* Ranks are counted first, because other members refer to them. */
static enum weft_status allocate_ranks(const struct reader *reader, const json_t *document) {
  struct weft_hang *hang = reader->hang;
  const json_t *list = json_object_get(document, "ranks");
  const struct weft_json_place place = here(reader);
  if (!json_is_array(list)) {
    return fault(reader, &place, "ranks: expected a list with an object for each rank");
  }
  const size_t count = json_array_size(list);
  if (count == 0 || count > WEFT_RANKS_MAX) {
    return fault(reader, &place, "ranks: expected 1 to %" PRIu32 " of them, found %zu",
                 WEFT_RANKS_MAX, count);
  }
  hang->ranks = weft_array_allocate_zero(hang->allocator, count, sizeof *hang->ranks);
  if (hang->ranks == NULL) {
    return weft_fail_memory(reader->document.error, count * sizeof *hang->ranks);
  }
  hang->rank_count = (uint32_t)count;
  return WEFT_OK;
}

static enum weft_status read_document(struct reader *reader, json_t *document) {
  static const struct member members[] = {
      {"schema", read_schema, 0, false},
      {"time", read_unit, offsetof(struct weft_hang, nanoseconds), false},
      {"now", read_time, offsetof(struct weft_hang, now), false},
      {"error", read_error, 0, false},
      {"ranks", read_ranks, 0, false},
      {NULL, NULL, 0, false}};
  if (!json_is_object(document)) {
    return unexpected(reader, "an object");
  }
  WEFT_TRY(allocate_ranks(reader, document));
  return read_object(reader, document, members, reader->hang);
}

/* ---- The text ---- */

enum weft_status weft_hang_read(const struct weft_allocator *allocator, const char *dump,
                                size_t size, const char *name, struct weft_hang *hang,
                                struct weft_error *error) {
  struct weft_hang picture = {.allocator = allocator};
  struct reader reader = {.document = {.text = dump,
                                       .size = size,
                                       .name = name != NULL ? name : "dump",
                                       .what = "a dump",
                                       .hint = "a dump is what weft_hang_dump() writes",
                                       .error = error},
                          .hang = &picture};
  json_t *document;
  WEFT_TRY(weft_json_document_load(&reader.document, TEXT_BYTES_MAX, COMMAS_MAX, 0, &document));
  const enum weft_status status = read_document(&reader, document);
  json_decref(document);
  if (status < 0) {
    weft_hang_finish(&picture);
    return status;
  }
  *hang = picture;
  return WEFT_OK;
}
