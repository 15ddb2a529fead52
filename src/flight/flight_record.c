/* Reads a dump of PyTorch's flight recorder: {"entries": [{"profiling_name": "nccl:send 0->1",
 * "state", "p2p_seq_id", "process_group", "record_id", sizes and types}, ...]}.
 *
 * Sends and receives that are started as a batch, be it of one, are followed by an entry
 * "nccl:coalesced" with their p2p_seq_id; it alone has the state of all of them. Batches of a
 * group run one after the other on its communicator, so that a later one is done says that all
 * before it are; of transfers outside of batches, that is true for those with the same peer. */
#include "flight/flight_record.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "flight/pickle.h"

#define HINT "take the file that PyTorch's flight recorder has written, as it is"
#define NOBODY UINT32_MAX

enum entry_kind { ENTRY_TRANSFER, ENTRY_BATCH_END, ENTRY_COLLECTIVE };

struct entry {
  const struct weft_pickle_value *value;
  enum entry_kind kind;
  struct weft_flight_transfer transfer; /* of the other kinds: `group`, `batch` and `done` */
  uint64_t number;                      /* of a collective, in its group */
  uint32_t self;
  bool is_batched;
};

struct entries {
  struct entry *items;
  size_t count;
};

/* ---- One entry ---- */

static const struct weft_pickle_value *item_at(const struct weft_pickle_value *list, size_t k) {
  return list != NULL && list->kind == WEFT_PICKLE_LIST && k < list->count ? list->items[k] : NULL;
}

/* Reads a number at *at, and moves it. */
static bool parse_number(const char **at, const char *end, uint32_t *number) {
  const char *from = *at;
  uint64_t value = 0;
  while (*at < end && **at >= '0' && **at <= '9' && value < WEFT_RANKS_MAX) {
    value = value * 10 + (uint64_t)(*(*at)++ - '0');
  }
  *number = (uint32_t)value;
  return *at > from && value < WEFT_RANKS_MAX;
}

static bool parse_word(const char **at, const char *end, const char *word) {
  const size_t size = strlen(word);
  if ((size_t)(end - *at) < size || memcmp(*at, word, size) != 0) {
    return false;
  }
  *at += size;
  return true;
}

/* "nccl:send 0->1", "nccl:recv 1<-0". */
static bool parse_name(const struct weft_pickle_value *name, struct entry *entry) {
  if (name == NULL || name->kind != WEFT_PICKLE_TEXT) {
    return false;
  }
  const char *end = name->text + name->count;
  const char *colon = memchr(name->text, ':', name->count);
  const char *at = colon != NULL ? colon + 1 : name->text;
  entry->transfer.sends = parse_word(&at, end, "send ");
  return (entry->transfer.sends || parse_word(&at, end, "recv ")) &&
         parse_number(&at, end, &entry->self) &&
         parse_word(&at, end, entry->transfer.sends ? "->" : "<-") &&
         parse_number(&at, end, &entry->transfer.peer) && at == end;
}

/* Names count ranks within their process group. */
static uint32_t rank_in_job(const struct weft_flight_group *group, uint32_t rank) {
  return rank < group->rank_count ? group->ranks[rank] : rank;
}

/* Stages exchange activations, which are floating-point and more than one number. Connections are
 * set up with single numbers, and shapes travel as bytes and integers. */
static bool is_payload(const struct weft_pickle_value *entry) {
  const struct weft_pickle_value *size = item_at(weft_pickle_find(entry, "input_sizes"), 0);
  const struct weft_pickle_value *type = item_at(weft_pickle_find(entry, "input_dtypes"), 0);
  bool many = size == NULL || size->kind != WEFT_PICKLE_LIST; /* not known */
  for (size_t k = 0; !many && k < size->count; k++) {
    many = weft_pickle_integer(size->items[k], 0) > 1;
  }
  return many && !weft_pickle_is(type, "Byte") && !weft_pickle_is(type, "Char") &&
         !weft_pickle_is(type, "Int") && !weft_pickle_is(type, "Long");
}

static uint64_t number_in(const struct weft_pickle_value *dictionary, const char *key) {
  const int64_t number = weft_pickle_integer(weft_pickle_find(dictionary, key), 0);
  return number > 0 ? (uint64_t)number : 0;
}

static struct entry read_entry(const struct weft_flight_record *record, uint32_t group,
                               const struct weft_pickle_value *value, size_t number) {
  const struct weft_pickle_value *name = weft_pickle_find(value, "profiling_name");
  struct entry entry = {
      .value = value,
      .kind = ENTRY_TRANSFER,
      .transfer = {.group = group,
                   .entry = number,
                   .batch = number_in(value, "p2p_seq_id"),
                   .done = weft_pickle_is(weft_pickle_find(value, "state"), "completed") ||
                           number_in(value, "retired") > 0,
                   .payload = is_payload(value)},
      .number = number_in(value, "collective_seq_id")};
  if (parse_name(name, &entry)) {
    entry.self = rank_in_job(&record->groups[group], entry.self);
    entry.transfer.peer = rank_in_job(&record->groups[group], entry.transfer.peer);
  } else {
    entry.kind = weft_pickle_is(name, "nccl:coalesced") ? ENTRY_BATCH_END : ENTRY_COLLECTIVE;
  }
  return entry;
}

static bool contains(const struct weft_pickle_value *value, const char *part) {
  const size_t size = strlen(part);
  bool found = false;
  for (size_t k = 0; value != NULL && value->kind == WEFT_PICKLE_TEXT && k + size <= value->count;
       k++) {
    found = found || memcmp(value->text + k, part, size) == 0;
  }
  return found;
}

/* ---- Process groups ---- */

enum { GROUPS_MAX = 1024 }; /* a process is in a handful */

/* A text of the dump as a string of its own; "": it has none. */
static const char *copy_text(struct weft_arena *arena, const struct weft_pickle_value *value) {
  const char *copy = value != NULL && value->kind == WEFT_PICKLE_TEXT
                         ? weft_arena_copy_text(arena, value->text, value->count)
                         : NULL;
  return copy != NULL ? copy : ""; /* memory that is out ends the reading later */
}

/* "[0, 8, 16]"; none, where one of them is no rank. */
static void parse_ranks(struct weft_arena *arena, struct weft_flight_group *group) {
  const char *at = group->ranks_text, *end = at + strlen(at);
  uint32_t *ranks = weft_arena_allocate(arena, (size_t)(end - at) / 2 + 1, sizeof *ranks);
  group->ranks = ranks;
  while (ranks != NULL && (at += strcspn(at, "0123456789")) < end) {
    if (!parse_number(&at, end, ranks++)) {
      return;
    }
  }
  group->rank_count = ranks != NULL ? (uint32_t)(ranks - group->ranks) : 0;
}

/* The group with this name, which is added if it is new. What are too many count as one. */
static uint32_t find_group(struct weft_arena *arena, const struct weft_pickle_value *configurations,
                           const struct weft_pickle_value *name,
                           struct weft_flight_record *record) {
  uint32_t at = 0;
  while (at < record->group_count && !weft_pickle_is(name, record->groups[at].name)) {
    at++;
  }
  at = at < GROUPS_MAX ? at : GROUPS_MAX - 1;
  if (at == record->group_count) {
    struct weft_flight_group *group = &record->groups[record->group_count++];
    group->name = copy_text(arena, name);
    group->ranks_text =
        copy_text(arena, weft_pickle_find(weft_pickle_find_same(configurations, name), "ranks"));
    parse_ranks(arena, group);
  }
  return at;
}

static uint32_t group_of(struct weft_arena *arena, const struct weft_pickle_value *configurations,
                         const struct weft_pickle_value *entry, struct weft_flight_record *record) {
  static const struct weft_pickle_value no_name = {.kind = WEFT_PICKLE_TEXT, .text = ""};
  const struct weft_pickle_value *names = weft_pickle_find(entry, "process_group");
  const struct weft_pickle_value *name = item_at(names, 0), *description = item_at(names, 1);
  const bool has_name = name != NULL && name->kind == WEFT_PICKLE_TEXT;
  const uint32_t at = find_group(arena, configurations, has_name ? name : &no_name, record);
  struct weft_flight_group *group = &record->groups[at];
  if (group->description == NULL) {
    const char *text =
        weft_pickle_is(description, "undefined") ? "" : copy_text(arena, description);
    group->description = text[0] != '\0' ? text : group->name;
    group->id = weft_pickle_integer(weft_pickle_find(entry, "pg_id"), 0);
  }
  return at;
}

/* ---- What is done ---- */

static bool same_batch(const struct entry *a, const struct entry *b) {
  return a->transfer.group == b->transfer.group && a->transfer.batch == b->transfer.batch;
}

/* From the last to the first: a transfer takes the state of the batch that ends after it. */
static void end_batches(const struct entries *entries) {
  const struct entry *end = NULL;
  for (size_t k = entries->count; k > 0; k--) {
    struct entry *entry = &entries->items[k - 1];
    if (entry->kind == ENTRY_BATCH_END) {
      end = entry;
    } else if (entry->kind == ENTRY_TRANSFER && end != NULL && same_batch(entry, end)) {
      entry->is_batched = true;
      entry->transfer.done = entry->transfer.done || end->transfer.done;
    }
  }
}

/* Whether the later one being done proves it of the earlier one. */
static bool proves(const struct entry *later, const struct entry *earlier) {
  return later->transfer.group == earlier->transfer.group &&
         ((later->is_batched && earlier->is_batched) ||
          (!later->is_batched && !earlier->is_batched &&
           later->transfer.peer == earlier->transfer.peer &&
           later->transfer.sends == earlier->transfer.sends));
}

/* The last ones that are done, one of each kind of proof. */
enum { PROOFS_MAX = 64 };

static void prove_earlier(const struct entries *entries) {
  const struct entry *proofs[PROOFS_MAX];
  size_t proof_count = 0;
  for (size_t k = entries->count; k > 0; k--) {
    struct entry *entry = &entries->items[k - 1];
    bool known = entry->kind != ENTRY_TRANSFER;
    for (size_t p = 0; p < proof_count && !known; p++) {
      known = proves(proofs[p], entry);
      entry->transfer.done = entry->transfer.done || known;
    }
    if (entry->transfer.done && !known && proof_count < PROOFS_MAX) {
      proofs[proof_count++] = entry;
    }
  }
}

/* A count of the group's own; 0: the dump does not have it. */
static uint64_t group_count(const struct weft_pickle_value *dump,
                            const struct weft_flight_group *group, const char *which) {
  char id[32];
  (void)snprintf(id, sizeof id, "%" PRId64, group->id);
  return number_in(weft_pickle_find(weft_pickle_find(dump, "pg_status"), id), which);
}

/* The group's count of what is done, where it has no collectives, which count too. It tells how
 * much is pending of what the record has lost. */
static uint64_t last_done_batch(const struct weft_pickle_value *dump,
                                const struct weft_flight_record *record) {
  for (const struct weft_flight_group *group = record->groups;
       group < record->groups + record->group_count; group++) {
    if (group->has_transfers) {
      return group->has_collectives ? 0 : group_count(dump, group, "last_completed_collective");
    }
  }
  return 0;
}

/* Whether more was started than the last entry tells: a ring loses its beginning only. */
static bool has_lost_end(const struct weft_pickle_value *dump,
                         const struct weft_flight_record *record) {
  const struct weft_flight_group *group = record->groups, *end = group + record->group_count;
  while (group < end && (group->last == 0 ||
                         group_count(dump, group, "last_enqueued_collective") <= group->last)) {
    group++;
  }
  return group < end;
}

/* ---- Collectives ---- */

/* The innermost frame that is not PyTorch's own, else the innermost. NULL: the dump has none. */
static const struct weft_pickle_value *find_frame(const struct weft_pickle_value *entry) {
  const struct weft_pickle_value *frames = weft_pickle_find(entry, "frames");
  const struct weft_pickle_value *frame = NULL;
  for (size_t k = 0; (frame = item_at(frames, k)) != NULL; k++) {
    if (!contains(weft_pickle_find(frame, "filename"), "/torch/")) {
      return frame;
    }
  }
  return item_at(frames, 0);
}

static struct weft_flight_collective read_collective(struct weft_arena *arena,
                                                     const struct entry *entry) {
  const struct weft_pickle_value *frame = find_frame(entry->value);
  return (struct weft_flight_collective){
      .name = copy_text(arena, weft_pickle_find(entry->value, "profiling_name")),
      .file = copy_text(arena, weft_pickle_find(frame, "filename")),
      .function = copy_text(arena, weft_pickle_find(frame, "name")),
      .line = number_in(frame, "line"),
      .number = entry->number};
}

/* Whether none can be done before all ranks have started it, unlike "nccl:broadcast". */
static bool needs_all(const struct weft_pickle_value *name) {
  return contains(name, "all") || contains(name, "reduce_scatter") || contains(name, "barrier");
}

/* Notes of each group what is started and done, and the oldest collective that is not. Those of a
 * group run one after the other: from the last entry to the first, one that is done says so of all
 * before it. */
static void read_collectives(struct weft_arena *arena, const struct entries *entries,
                             struct weft_flight_record *record) {
  bool is_done_later[GROUPS_MAX] = {false};
  const struct entry *oldest[GROUPS_MAX] = {NULL};
  for (size_t k = entries->count; k > 0; k--) {
    const struct entry *entry = &entries->items[k - 1];
    const struct weft_pickle_value *name = weft_pickle_find(entry->value, "profiling_name");
    struct weft_flight_group *group = &record->groups[entry->transfer.group];
    bool *done = &is_done_later[entry->transfer.group];
    if (entry->kind == ENTRY_TRANSFER || name == NULL) {
      group->has_transfers |= entry->kind == ENTRY_TRANSFER;
      continue;
    }
    *done |= entry->transfer.done;
    if (entry->kind == ENTRY_COLLECTIVE) {
      group->has_collectives = true;
      group->started = entry->number > group->started ? entry->number : group->started;
      oldest[entry->transfer.group] = *done ? oldest[entry->transfer.group] : entry;
      group->done = *done && needs_all(name) && group->done == 0 ? entry->number : group->done;
    }
  }
  for (uint32_t g = 0; g < record->group_count; g++) {
    if (oldest[g] != NULL) {
      record->groups[g].pending = read_collective(arena, oldest[g]);
    }
  }
}

/* ---- The record ---- */

/* The number at the end of a file's name, without its extension. */
static uint32_t rank_of_name(const char *name) {
  const char *slash = strrchr(name, '/');
  const char *base = slash != NULL ? slash + 1 : name;
  const char *dot = strchr(base, '.');
  const char *end = dot != NULL && dot > base ? dot : base + strlen(base);
  const char *at = end;
  uint32_t rank;
  while (at > base && at[-1] >= '0' && at[-1] <= '9') {
    at--;
  }
  return parse_number(&at, end, &rank) ? rank : NOBODY;
}

/* Keeps the payloads; if there are none, all: then activations are single numbers. */
static enum weft_status keep_payloads(struct weft_arena *arena, const struct weft_flight_dump *dump,
                                      const struct entries *entries,
                                      struct weft_flight_record *record, struct weft_error *error) {
  bool payloads = false;
  size_t transfers = 0;
  for (size_t k = 0; k < entries->count; k++) {
    const bool is_transfer = entries->items[k].kind == ENTRY_TRANSFER;
    transfers += is_transfer;
    payloads |= is_transfer && entries->items[k].transfer.payload;
  }
  record->transfers = weft_arena_allocate(arena, transfers + 1, sizeof *record->transfers);
  WEFT_TRY(weft_arena_status(arena, error));
  for (size_t k = 0; k < entries->count; k++) {
    const struct entry *entry = &entries->items[k];
    if (entry->kind != ENTRY_TRANSFER) {
      continue;
    }
    if (record->rank != NOBODY && record->rank != entry->self) {
      return weft_fail(error, WEFT_ERR_FORMAT, HINT,
                       "%s: has transfers of rank %" PRIu32 " and of rank %" PRIu32
                       "; expected those of one rank of one pipeline",
                       dump->name, record->rank, entry->self);
    }
    record->rank = entry->self;
    if (entry->transfer.payload || !payloads) {
      record->transfers[record->count++] = entry->transfer;
    }
  }
  record->rank = record->rank != NOBODY ? record->rank : rank_of_name(dump->name);
  return record->rank != NOBODY
             ? WEFT_OK
             : weft_fail(error, WEFT_ERR_FORMAT, "name the files rank0.pkl, rank1.pkl ...",
                         "%s: has no send and no receive, and no number at the end of its name, "
                         "so its rank is not known",
                         dump->name);
}

static enum weft_status read_value(struct weft_arena *arena, const struct weft_flight_dump *dump,
                                   const struct weft_pickle_value **value,
                                   struct weft_error *error) {
  const char *text = dump->data;
  size_t at = 0;
  while (at < dump->size && (text[at] == ' ' || text[at] == '\n' || text[at] == '\t')) {
    at++;
  }
  return at < dump->size && text[at] == '{'
             ? weft_pickle_from_json(arena, text, dump->size, dump->name, value, error)
             : weft_pickle_read(arena, dump->data, dump->size, dump->name, value, error);
}

enum weft_status weft_flight_record_read(struct weft_arena *arena,
                                         const struct weft_flight_dump *dump,
                                         struct weft_flight_record *record,
                                         struct weft_error *error) {
  assert(arena != NULL && dump != NULL && dump->name != NULL && record != NULL);
  WEFT_SCOPED_ARENA scratch = {.allocator = arena->allocator}; /* a dump is large */
  const struct weft_pickle_value *value;
  *record = (struct weft_flight_record){.name = dump->name, .rank = NOBODY};
  WEFT_TRY(read_value(&scratch, dump, &value, error));
  const struct weft_pickle_value *list = weft_pickle_find(value, "entries");
  const struct weft_pickle_value *groups = weft_pickle_find(value, "pg_config");
  const bool has_groups = groups != NULL && groups->kind == WEFT_PICKLE_DICTIONARY;
  if (list == NULL || list->kind != WEFT_PICKLE_LIST) {
    return weft_fail(error, WEFT_ERR_FORMAT, HINT,
                     "%s: has no list \"entries\"; expected a dump of PyTorch's flight recorder",
                     dump->name);
  }
  struct entries entries = {
      .items = weft_arena_allocate(&scratch, list->count + 1, sizeof(struct entry)),
      .count = list->count};
  record->groups = weft_arena_allocate(&scratch, GROUPS_MAX, sizeof *record->groups);
  WEFT_TRY(weft_arena_status(&scratch, error));
  for (size_t k = 0; has_groups && k < groups->count; k += 2) { /* also those without an entry */
    (void)find_group(arena, groups, groups->items[k], record);
  }
  for (size_t k = 0; k < list->count; k++) {
    const uint32_t group = group_of(arena, groups, list->items[k], record);
    const struct entry entry = read_entry(record, group, list->items[k], k);
    const uint64_t last = entry.number > entry.transfer.batch ? entry.number : entry.transfer.batch;
    record->groups[group].last =
        last > record->groups[group].last ? last : record->groups[group].last;
    entries.items[k] = entry;
  }
  if (has_lost_end(value, record)) {
    return weft_fail(error, WEFT_ERR_FORMAT, HINT, "%s: its last entries are lost", dump->name);
  }
  record->whole =
      list->count == 0 ||
      weft_pickle_integer(weft_pickle_find(list->items[0], "record_id"), INT64_MAX) == 0;
  end_batches(&entries);
  prove_earlier(&entries);
  read_collectives(arena, &entries, record);
  record->last_done = last_done_batch(value, record);
  const struct weft_flight_group *found = record->groups;
  record->groups = weft_arena_allocate(arena, record->group_count + 1u, sizeof *found);
  WEFT_TRY(weft_arena_status(arena, error));
  memcpy(record->groups, found, record->group_count * sizeof *found);
  return keep_payloads(arena, dump, &entries, record, error);
}
