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

static int64_t group_of(const struct weft_pickle_value *entry) {
  return weft_pickle_integer(weft_pickle_find(entry, "pg_id"), 0);
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

/* Names count ranks within their process group; its configuration lists their numbers in the job:
 * "[0, 8, 16]". */
static uint32_t rank_in_job(const struct weft_pickle_value *groups,
                            const struct weft_pickle_value *entry, uint32_t rank) {
  const struct weft_pickle_value *name = item_at(weft_pickle_find(entry, "process_group"), 0);
  const struct weft_pickle_value *ranks =
      weft_pickle_find(weft_pickle_find_same(groups, name), "ranks");
  if (ranks == NULL || ranks->kind != WEFT_PICKLE_TEXT) {
    return rank;
  }
  const char *at = ranks->text, *end = ranks->text + ranks->count;
  uint32_t number = NOBODY;
  for (uint32_t k = 0; k <= rank; k++) {
    while (at < end && (*at < '0' || *at > '9')) {
      at++;
    }
    if (!parse_number(&at, end, &number)) {
      return rank;
    }
  }
  return number;
}

static bool is_done(const struct weft_pickle_value *entry) {
  return weft_pickle_is(weft_pickle_find(entry, "state"), "completed") ||
         weft_pickle_integer(weft_pickle_find(entry, "retired"), 0) != 0;
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

static struct entry read_entry(const struct weft_pickle_value *groups,
                               const struct weft_pickle_value *value, size_t number) {
  const struct weft_pickle_value *name = weft_pickle_find(value, "profiling_name");
  struct entry entry = {
      .value = value,
      .kind = ENTRY_TRANSFER,
      .transfer = {.group = (uint32_t)group_of(value),
                   .entry = number,
                   .batch = (uint64_t)weft_pickle_integer(weft_pickle_find(value, "p2p_seq_id"), 0),
                   .done = is_done(value),
                   .payload = is_payload(value)}};
  if (parse_name(name, &entry)) {
    entry.self = rank_in_job(groups, value, entry.self);
    entry.transfer.peer = rank_in_job(groups, value, entry.transfer.peer);
  } else {
    entry.kind = weft_pickle_is(name, "nccl:coalesced") ? ENTRY_BATCH_END : ENTRY_COLLECTIVE;
  }
  return entry;
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

/* The group's own count of what is done, where it has no collectives, which count too. It tells how
 * much is pending of what the record has lost. */
static uint64_t last_done_batch(const struct weft_pickle_value *dump,
                                const struct entries *entries) {
  const struct entry *first = entries->items, *end = entries->items + entries->count;
  char group[16];
  while (first < end && first->kind == ENTRY_COLLECTIVE) {
    first++;
  }
  for (const struct entry *at = entries->items; first < end && at < end; at++) {
    if (at->kind == ENTRY_COLLECTIVE && at->transfer.group == first->transfer.group) {
      return 0;
    }
  }
  if (first == end) {
    return 0;
  }
  (void)snprintf(group, sizeof group, "%" PRIu32, first->transfer.group);
  const struct weft_pickle_value *status =
      weft_pickle_find(weft_pickle_find(dump, "pg_status"), group);
  const int64_t last =
      weft_pickle_integer(weft_pickle_find(status, "last_completed_collective"), 0);
  return last > 0 ? (uint64_t)last : 0;
}

/* ---- Collectives ---- */

/* A text of the dump as a string of its own; "": it has none. */
static const char *copy_text(struct weft_arena *arena, const struct weft_pickle_value *value) {
  const char *copy = value != NULL && value->kind == WEFT_PICKLE_TEXT
                         ? weft_arena_copy_text(arena, value->text, value->count)
                         : NULL;
  return copy != NULL ? copy : ""; /* memory that is out ends the reading later */
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

static void read_collective(struct weft_arena *arena, const struct weft_pickle_value *groups,
                            const struct weft_pickle_value *entry,
                            struct weft_flight_collective *collective) {
  const struct weft_pickle_value *group = weft_pickle_find(entry, "process_group");
  const struct weft_pickle_value *name = item_at(group, 0), *description = item_at(group, 1);
  const struct weft_pickle_value *frame = find_frame(entry);
  const bool described = description != NULL && description->kind == WEFT_PICKLE_TEXT &&
                         description->count > 0 && !weft_pickle_is(description, "undefined");
  const int64_t line = weft_pickle_integer(weft_pickle_find(frame, "line"), 0);
  *collective = (struct weft_flight_collective){
      .name = copy_text(arena, weft_pickle_find(entry, "profiling_name")),
      .group = copy_text(arena, described ? description : name),
      .ranks = copy_text(arena, weft_pickle_find(weft_pickle_find_same(groups, name), "ranks")),
      .file = copy_text(arena, weft_pickle_find(frame, "filename")),
      .function = copy_text(arena, weft_pickle_find(frame, "name")),
      .line = line > 0 ? (uint64_t)line : 0,
      .group_id = group_of(entry)};
}

/* Which of these is of the same group; `count`: none. */
static size_t find_group(const struct entry *const *entries, size_t count,
                         const struct entry *entry) {
  size_t at = 0;
  while (at < count && group_of(entries[at]->value) != group_of(entry->value)) {
    at++;
  }
  return at;
}

/* Lists the oldest collective of each group that is not done. Those of a group run one after the
 * other: from the last entry to the first, one that is done says so of all before it. */
static enum weft_status list_collectives(struct weft_arena *arena,
                                         const struct weft_pickle_value *groups,
                                         const struct entries *entries,
                                         struct weft_flight_record *record,
                                         struct weft_error *error) {
  enum { GROUPS_MAX = 64 }; /* a process is in a handful of groups */
  const struct entry *done[GROUPS_MAX], *oldest[GROUPS_MAX];
  size_t done_count = 0, count = 0;
  for (size_t k = entries->count; k > 0; k--) {
    const struct entry *entry = &entries->items[k - 1];
    if (entry->kind == ENTRY_TRANSFER || find_group(done, done_count, entry) < done_count ||
        weft_pickle_find(entry->value, "profiling_name") == NULL) {
      continue;
    }
    if (entry->transfer.done) {
      done[done_count] = entry;
      done_count += done_count + 1 < GROUPS_MAX;
    } else if (entry->kind == ENTRY_COLLECTIVE) {
      const size_t at = find_group(oldest, count, entry);
      if (at < GROUPS_MAX) {
        oldest[at] = entry;
        count += at == count;
      }
    }
  }
  record->collectives = weft_arena_allocate(arena, count + 1, sizeof *record->collectives);
  WEFT_TRY(weft_arena_status(arena, error));
  for (size_t k = 0; k < count; k++) {
    read_collective(arena, groups, oldest[k]->value,
                    &record->collectives[record->collective_count++]);
  }
  return weft_arena_status(arena, error);
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

static enum weft_status check_rank(const struct weft_flight_dump *dump,
                                   const struct weft_flight_record *record,
                                   struct weft_error *error) {
  return record->rank != NOBODY
             ? WEFT_OK
             : weft_fail(error, WEFT_ERR_FORMAT, "name the files rank0.pkl, rank1.pkl ...",
                         "%s: has no send and no receive, and no number at the end of its name, "
                         "so its rank is not known",
                         dump->name);
}

/* Keeps the payloads; if there are none, all: then activations are single numbers. */
static enum weft_status keep_payloads(struct weft_arena *arena, const struct weft_flight_dump *dump,
                                      const struct entries *entries,
                                      struct weft_flight_record *record, struct weft_error *error) {
  bool payloads = false;
  for (size_t k = 0; k < entries->count; k++) {
    payloads = payloads ||
               (entries->items[k].kind == ENTRY_TRANSFER && entries->items[k].transfer.payload);
  }
  record->transfers = weft_arena_allocate(arena, entries->count + 1, sizeof *record->transfers);
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
  return check_rank(dump, record, error);
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
  const struct weft_pickle_value *value;
  *record = (struct weft_flight_record){.name = dump->name, .rank = NOBODY};
  WEFT_TRY(read_value(arena, dump, &value, error));
  const struct weft_pickle_value *list = weft_pickle_find(value, "entries");
  const struct weft_pickle_value *groups = weft_pickle_find(value, "pg_config");
  if (list == NULL || list->kind != WEFT_PICKLE_LIST) {
    return weft_fail(error, WEFT_ERR_FORMAT, HINT,
                     "%s: has no list \"entries\"; expected a dump of PyTorch's flight recorder",
                     dump->name);
  }
  struct entries entries = {
      .items = weft_arena_allocate(arena, list->count + 1, sizeof(struct entry)),
      .count = list->count};
  WEFT_TRY(weft_arena_status(arena, error));
  for (size_t k = 0; k < list->count; k++) {
    entries.items[k] = read_entry(groups, list->items[k], k);
  }
  record->last_done = last_done_batch(value, &entries);
  record->whole =
      list->count == 0 ||
      weft_pickle_integer(weft_pickle_find(list->items[0], "record_id"), INT64_MAX) == 0;
  end_batches(&entries);
  prove_earlier(&entries);
  WEFT_TRY(list_collectives(arena, groups, &entries, record, error));
  return keep_payloads(arena, dump, &entries, record, error);
}
